//! An agent: this machine's node of a group, whose workloads are processes.
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
#[cfg(all(feature = "tenure", any(test, fuzzing)))]
pub(crate) mod fuzzed;
mod link;
mod metrics;
mod node;
mod orders;
pub(crate) mod place;
mod queue;
mod refused;
mod retire;
mod run;
pub(crate) mod spec;
pub(crate) mod spool;
mod steward;
mod wait;
mod which;
mod wire;

pub(crate) use book::{Condition, How, Status};
pub(crate) use control::{Ask, Deployed, NotDone, WITHIN, ask};
pub(crate) use node::{Options, run as run_node};
pub(crate) use wait::waits_for;
pub(crate) use wire::{LogLimits, Restart};

/// Runs the hidden subcommand this process was started for, if any.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != steward::NAME {
        return None;
    }
    let directory = args.next()?;
    Some(steward::main(directory.as_ref()))
}
