//! What every command needs: what was typed, what the files say, and where to print.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Registry, Store};
use tenure_agent as agent;

use crate::args::Common;
use crate::config::{self, File};
use crate::failure::Failure;
use crate::output::Output;

/// What every command needs.
pub(crate) struct Context {
    pub(crate) common: Common,
    pub(crate) file: File,
    pub(crate) output: Output,
    pub(crate) timeout: Duration,
    /// The same, if somebody has said it.
    pub(crate) said: Option<Duration>,
    /// The stores that can be opened.
    pub(crate) registry: Registry,
}

impl Context {
    /// The store; made if it is missing.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>, Failure> {
        self.open_within(None).await
    }

    /// The same for a candidate that was told by how much clocks may differ.
    pub(crate) async fn open_within(
        &self,
        skew: Option<Duration>,
    ) -> Result<Arc<dyn Store>, Failure> {
        config::open(&self.common, &self.file, &self.registry, skew).await
    }

    /// The store, for commands that make none: calls fail as unavailable
    /// while it is missing.
    pub(crate) async fn open_existing(&self) -> Result<Arc<dyn Store>, Failure> {
        config::open_existing(&self.common, &self.file, &self.registry).await
    }

    /// How long to wait for a leader to do what it was asked: it may have to
    /// stop its work first.
    pub(crate) fn max_wait(&self) -> Duration {
        self.timeout.max(Duration::from_secs(60))
    }

    /// How long the agent that is asked may be kept from its group: it goes
    /// on asking its store, which mostly comes back.
    pub(crate) fn patience_of_agents(&self) -> Duration {
        self.said.unwrap_or(agent::DEFAULT_TIMEOUT)
    }
}
