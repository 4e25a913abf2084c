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
//! (`shim.rs`) holds the processes and outlives it; a guardian for each
//! (`guard/`) keeps the times by itself. Whichever *one* of them is killed or
//! stopped, whatever runs has ended before anybody else may start it, and an
//! agent that is back in time goes on as if nothing had happened.
//!
//! Left out on purpose: limits on what processes use, users other than the
//! agent's own, and images. A command is what is found on the machine.

use std::process::ExitCode;

mod completion;
mod control;
mod control_server;
mod drain;
mod drift_check;
mod env_file;
pub mod format;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzed;
pub mod guard;
mod messages;
mod metrics;
mod node;
mod node_status;
mod order_queue;
pub mod output_log;
mod output_queue;
mod pending_reason;
mod quorum_advice;
mod request_handler;
mod resolve_node;
mod shim;
mod shim_client;
mod shim_discovery;
pub mod spec;
pub mod stall;
pub mod state_directory;
mod workload_run;

pub use control::{AgentRequest, DEFAULT_TIMEOUT, Deployed, RequestError, send_request};
pub use messages::{LogLimits, RestartPolicy};
pub use node::{Options, run as run_node};
pub use node_status::{Condition, MoveReason, NodeStatus};
pub use pending_reason::pending_reason;

/// Runs the hidden subcommand this process was started for, if any.
pub fn dispatch() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != shim::NAME {
        return None;
    }
    let directory = args.next()?;
    Some(shim::main(directory.as_ref()))
}
