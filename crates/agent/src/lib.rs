//! An agent: this machine's node of a group, whose workloads are processes; and
//! the guardians that keep processes on the leash, which `tenure run` has too.
//! Internal to Tenure.
//!
//! ```text
//!   tenure deploy, undeploy, drain ──control.sock──► agent ──► the store
//!                                                      │ (a manager, beats)
//!                                                 steward.sock
//!                                                      ▼
//!                                 steward ──► guardian ──► CMD   (one each)
//! ```
//!
//! The agent decides through the library's manager (`tenure::ha`); the steward
//! (`steward.rs`) holds the processes and outlives it; a guardian for each
//! (`guard/`) keeps the times by itself. Whichever *one* of them is killed or
//! stopped, whatever runs has ended before anybody else may start it, and an
//! agent that is back in time goes on as if nothing had happened.
//!
//! Left out on purpose: limits on what processes use, users other than the
//! agent's own, and images. A command is what is found on the machine.

use std::process::ExitCode;

mod book;
mod control;
mod desk;
mod drain;
mod drifts;
mod env_file;
mod errand;
mod found;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzed;
pub mod guard;
mod link;
mod metrics;
pub mod movement;
mod node;
mod orders;
pub mod place;
mod queue;
mod refused;
mod retire;
mod run;
pub mod spec;
pub mod spool;
mod steward;
mod wait;
mod which;
mod wire;
pub mod words;

pub use book::{Condition, How, Status};
pub use control::{Ask, Deployed, NotDone, WITHIN, ask};
pub use node::{Options, run as run_node};
pub use wait::waits_for;
pub use wire::{LogLimits, Restart};

/// Runs the hidden subcommand this process was started for, if any.
pub fn dispatch() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != steward::NAME {
        return None;
    }
    let directory = args.next()?;
    Some(steward::main(directory.as_ref()))
}
