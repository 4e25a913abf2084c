//! An agent is this machine's node of a group. Its workloads are processes. The
//! crate also has the guardians that end a process by its lease times, which
//! `tenure run` uses too. Internal to Tenure.
//!
//! ```text
//!   tenure deploy, undeploy, drain ──control.sock──► agent ──► the store
//!                                                      │ (a manager, heartbeats)
//!                                                 steward.sock
//!                                                      ▼
//!                                    shim ──► guardian ──► CMD   (one each)
//! ```
//!
//! The agent decides, by means of the library's manager (`tenure::ha`). The shim
//! (`shim.rs`) holds the processes and outlives the agent. Each process has a
//! guardian (`guard/`), which keeps the lease times by itself. If any *one* of
//! these is killed or stopped, what runs has ended before another node may start
//! it. An agent that is back in time goes on with what runs.
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
#[cfg(test)]
#[path = "../../tenure/tests/common/intercepted.rs"]
mod intercepted;
mod log_rate_limit;
mod messages;
mod metrics;
mod node;
mod node_status;
mod order_queue;
pub mod output_log;
mod output_queue;
mod peer_check;
mod pending_reason;
mod pending_request;
mod quorum_advice;
mod request_handler;
mod resolve_node;
mod shim;
mod shim_client;
mod shim_discovery;
pub mod spec;
pub mod stall;
pub mod state_directory;
pub mod workload_file;
mod workload_run;

pub use control::{AgentRequest, DEFAULT_TIMEOUT, Deployed, RequestError, send_request};
pub use messages::{LogLimits, RestartPolicy};
pub use node::{Options, run as run_node};
pub use node_status::{Condition, MoveReason, NodeStatus};
pub use pending_reason::pending_reason;

/// Runs the hidden subcommand this process was started for, if any.
pub fn dispatch() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != shim::SUBCOMMAND {
        return None;
    }
    let directory = args.next()?;
    Some(shim::main(directory.as_ref()))
}
