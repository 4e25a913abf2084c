//! What the simulators of elections, of clusters and of HA groups share.
//!
//! | module | what it holds |
//! |---|---|
//! | `queue` | everything that will happen in a world, in order |
//! | `run` | a world that lives once, and what was wrong in it |
//! | `sweep` | many runs, and what they found |
//! | `stats` | what happened, counted |
//! | `checks` | the checkers of a simulator by their names |
//! | `fault_kinds` | kinds of faults, and how rarely each comes |
//! | `store` | a store behind a network |
//! | `lossy_store` | stores that break their promise |

mod checks;
mod fault_kinds;
mod lossy_store;
mod queue;
mod run;
mod stats;
mod store;
mod sweep;

pub(crate) use checks::checks;
pub(crate) use fault_kinds::{fault_kinds, sometimes};
pub(crate) use lossy_store::{HISTORY_MAX, StoreCopy, StoreDamage, give_out_again};
pub(crate) use queue::Queue;
pub(crate) use run::{Ended, Found, run};
pub use run::{Verdict, Violation};
pub use stats::Counts;
pub(crate) use stats::{show, show_hours, stats};
pub(crate) use store::{damaged, hop, swap};
pub use sweep::Report;
pub(crate) use sweep::sweep;
