//! The campaign: one candidate's way through an election (§4).
//!
//! ```text
//!            vacant or over             won
//! standby  ------------------> racing --------> leading
//!    ^  ^                        |                 |  resign, request, unconfirmed
//!    |  |  lost, or unresolved   |                 v  until drain_at, other leader
//!    |  +------------------------+              draining
//!    +-------------------------------------------+   work ended, election vacated,
//!                    under a new id                   or over
//! ```
//!
//! Each state is a type in a file of its own and holds only what that state
//! knows; what they share is in `context`, and the transitions are in `machine`. At most one store call of the
//! campaign counts at a time: when its patience runs out the call is given up
//! as *unknown*, and an answer that comes later is ignored.
//!
//! # What the application owes
//!
//! After [`Event::Draining`] or [`Event::Ousted`] it ends its work and says
//! [`Input::Drained`]. Until then the campaign neither vacates the election nor
//! stands again. That order (stop, then flip, then release) is the whole
//! point: an election released while its work still runs is two leaders.

mod affinity;
mod context;
mod draining;
mod floor;
mod leading;
mod machine;
mod racing;
mod standby;
mod state;
mod types;

pub use machine::Campaign;
pub use types::{Bind, Command, Event, Input, Output, Why};

use tenure_core::call::{Call, Failure, FailureClass, Pending};
use tenure_core::cas::{Expect, Reading, Register};
use tenure_core::ids::{Fence, Key, LeaderId, Term, Version};
use tenure_core::time::Instant;

use self::context::Context;
use self::state::State;
use self::types::Answer;
use super::{Bug, Config, Grant, LeaseJudge, LeaseState, Occupancy, ReadOutcome, Record};
