//! Lease election on any store of compare-and-swap registers.
//!
//! One register per election says who leads, in which term, and for
//! how long a grant lasts without renewal ([`Record`]). Candidates race for
//! it by compare-and-swap; the winner renews; everybody else judges from the
//! outside whether the grant is over ([`LeaseJudge`]) and races again when it is.
//! The clauses cited as `§` are those of `docs/design/election.md`.
//!
//! # Why do two never lead?
//!
//! Let the holder send a renewal at `s` on its own clock, and let the store
//! apply it at `a >= s`. The holder counts its grant from `s` and believes in
//! it until `s + lease x (1 - drift)`. A judge first sees that renewal at some
//! `f >= a` and calls it over only on a read *asked* after `f + lease x (1 +
//! drift)`. With every clock's rate within `drift` of true time the first ends
//! before the second begins.
//!
//! The judge then swaps exactly the version that it judged; had a renewal come
//! in between, the swap would fail. A holder does not renew after `drain_at <
//! valid_until`, and ignores the late success of a renewal sent before, so a
//! grant once over stays over. Clock *offsets and steps* appear nowhere in this
//! argument.
//!
//! # What is left out on purpose
//!
//! No metrics (events are counted outside), no retries hidden in a store, no
//! time test inside a write (the version proves it), no clean-up of dead
//! registers (an election is vacated, never deleted: deleting restarts the
//! fence).
#![no_std]

extern crate alloc;

mod bug;
mod campaign;
mod config;
mod grant;
mod judge;
mod observation;
mod observer;
mod record;

pub use bug::Bug;
pub use campaign::{Bind, Campaign, Command, Event, Input, Output, Why};
pub use config::{Config, ConfigError, Expiry, Priority};
pub use grant::Grant;
pub use judge::{LeaseJudge, LeaseState, ReadOutcome};
pub use observation::{Certainty, Observation, TermRegression};
pub use observer::Observer;
pub use record::{Holder, Leader, Occupancy, Record, RecordError, Request};
pub use tenure_core::call::{Call, Failure, FailureClass};
