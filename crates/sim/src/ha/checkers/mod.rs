//! The checkers of the HA simulator: what must be true of every run, each in
//! a file of its own. They see what no node does: true time, every register,
//! the clocks and the processes of all machines.

mod check;
mod contents;
mod fate;
mod floors;
mod heartbeats;
mod local;
mod members;
mod once;
mod placement;
mod registers;
mod state;
mod views;

pub use check::Check;
pub(super) use check::Finding;
pub(super) use local::may_start;
pub(super) use once::Once;
pub(super) use state::{CheckerState, Floors, HeartbeatRecord, Writer};
