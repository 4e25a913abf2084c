//! What to check, and at what cost.

use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::store::{Opened, Registry};

/// The fewest requests with which a check tries something.
pub const BUDGET_MIN: u64 = 500;

/// Makes a command that starts this program as a [`worker`](super::worker).
type WorkerCommand = dyn Fn() -> std::io::Result<Command> + Send + Sync;

/// What to check, and at what cost.
#[derive(Clone)]
pub struct Plan {
    /// The store.
    pub url: String,
    /// What opens it, here and in the other processes.
    pub registry: Registry,
    /// How long a call may take.
    pub within: Duration,
    /// How many requests the trials may make. Deleting what they made comes on top.
    pub budget: u64,
    /// How many threads of this process race, each over a connection of its own.
    pub threads: u32,
    /// How many other processes race.
    pub processes: u32,
    /// Starts one of them.
    pub worker: Arc<WorkerCommand>,
    /// A line for `sh` that restarts the store, and returns when it is restarted.
    pub restart: Option<String>,
}

impl Plan {
    /// Another connection to the store.
    pub(super) async fn open(&self) -> Opened {
        self.registry.open(&self.url).await
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the URL, which may have a password.
        f.debug_struct("Plan")
            .field("within", &self.within)
            .field("budget", &self.budget)
            .field("threads", &self.threads)
            .field("processes", &self.processes)
            .finish_non_exhaustive()
    }
}
