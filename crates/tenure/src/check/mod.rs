//! Whether a store keeps the contract that elections rest on, tried on the real one.
//!
//! A store that ignores a condition, or only sometimes, lets two candidates lead; a
//! document of its maker does not show whether it does. So `tenure check` makes
//! registers of its own below a prefix, races writers of several processes for them,
//! cuts connections while they write, and counts what came of it (`run`).
//!
//! A trial can find that the contract is broken. It cannot prove that it is kept:
//! what a trial passes happened so many times without a breach, and no more.
//!
//! `run` has the order of the trials, each of which is a file; `connection` counts
//! every request against the budget, `report` is what came of it, `advice` what to
//! make of the times that were measured.
//!
//! Left out: load ([`crate::store`]'s figures are what `tenure bench` measures), the
//! watch (nothing safe depends on it), and values and names at their limits, which
//! [`crate::store::conformance`] has.

mod advice;
mod clean_up;
mod clock_trial;
mod collisions;
mod connection;
mod cuts;
mod finding;
mod hosts;
mod latency;
mod plan;
mod preconditions;
mod proxy;
mod race;
mod report;
mod restart;
mod run;
mod stale;
mod worker;
mod writer;

pub use advice::{Advice, PerDay};
pub use clock_trial::ClockSeen;
pub use finding::{Fault, Finding};
pub use latency::{Latencies, Percentiles};
pub use plan::{BUDGET_MIN, Plan};
pub use report::{Outcome, Report, Trial, Verdict};
pub use run::run;
pub use worker::{WORKER, worker};
