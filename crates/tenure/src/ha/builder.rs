//! Preparing to join a group. [`Manager::builder`] is here, so that this file
//! takes the manager, and the manager takes nothing from here.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::ids::{Name, NameError};
use tenure_core::time::Drift;
use tenure_group::{Config, ConfigError, LABELS_MAX};
use tenure_runtime::host_name;
use tokio::runtime::Handle;

use super::host::{Host, Hosting};
use super::workload::{Registry, Workload};
use super::{Manager, NodeId, PreviousIncarnation, ResumeState, StartFrom};
use crate::election::entropy;
use crate::store::Store;

/// What a node is told before it joins. Every setting has a default; nothing
/// is checked before [`start`](Self::start).
#[derive(Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct Builder {
    store: Arc<dyn Store>,
    group: String,
    name: Option<String>,
    ha: bool,
    quorum: u32,
    spread: bool,
    labels: Vec<String>,
    max: Option<u32>,
    lease: Duration,
    interval: Option<Duration>,
    grace: Option<Duration>,
    kill_margin: Option<Duration>,
    keep: Option<Duration>,
    drift: Drift,
    registry: Registry,
    runtime: Option<Handle>,
    start_from: StartFrom,
}

/// Why a node could not be started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A name is not one.
    #[error("{what}: {source}")]
    Name {
        /// Which.
        what: &'static str,
        /// Why.
        source: NameError,
    },
    /// A relation between the settings does not hold.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is nothing to run workloads on.
    #[error(
        "expected to be started on a Tokio runtime, which workloads then run on, found none; \
         start it there, or name one with `runtime`"
    )]
    Runtime,
    /// The operating system gives no random numbers, and a node id that is
    /// not unique is worth nothing.
    #[error("no random numbers from the operating system: {0}")]
    Entropy(String),
}

impl Manager {
    /// Prepares a node of the group of this name, in `store`.
    pub fn builder(store: Arc<dyn Store>, group: impl Into<String>) -> Builder {
        Builder::new(store, group.into())
    }
}

impl Builder {
    pub(super) fn new(store: Arc<dyn Store>, group: String) -> Self {
        Self {
            store,
            group,
            name: None,
            ha: true,
            quorum: 0,
            spread: false,
            labels: Vec::new(),
            max: None,
            lease: tenure_election::Config::LEASE,
            interval: None,
            grace: None,
            kill_margin: None,
            keep: None,
            drift: Drift::DEFAULT,
            registry: Registry::default(),
            runtime: None,
            start_from: StartFrom::default(),
        }
    }

    /// Registers how workloads of this kind are made, anew for every start.
    /// Every node that may take one over must know its kind.
    pub fn workload<W: Workload>(
        mut self,
        kind: impl Into<String>,
        make: impl Fn() -> W + Send + Sync + 'static,
    ) -> Self {
        self.registry.add(kind.into(), make);
        self
    }

    /// Has `host` run all workloads of this node, which are of this kind. No
    /// factory is used then.
    pub fn host(mut self, kind: impl Into<String>, host: impl Host) -> Self {
        let (kind, host) = (kind.into(), Box::new(host));
        self.registry.host(kind.clone());
        self.start_from.hosting = Some(Mutex::new(Hosting { kind, host }));
        self
    }

    /// Goes on under an old id, whose workloads the host may still have. If no
    /// beat succeeds in time they are all ended, and the node joins as another.
    /// The configuration must be that of the old incarnation, and so must the clock:
    /// [`may_resume`](tenure_group::may_resume) says whether it is.
    pub fn resume(mut self, past: ResumeState) -> Self {
        self.start_from.before = PreviousIncarnation::Runs(past);
        self
    }

    /// An id that this node had before and under which nothing runs any more:
    /// the others need not wait for its silence.
    pub fn replaces_node(mut self, id: NodeId) -> Self {
        self.start_from.before = PreviousIncarnation::Ended(id);
        self
    }

    /// The node's name for people; by default the host name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Whether it counts for the quorum and takes over; it does by default.
    pub fn ha(mut self, ha: bool) -> Self {
        self.ha = ha;
        self
    }

    /// How many HA nodes the group needs before any HA workload runs; 0, the
    /// default, needs none. The same on every HA node of the group.
    pub fn quorum(mut self, nodes: u32) -> Self {
        self.quorum = nodes;
        self
    }

    /// Whether a dead node's load lands on all survivors, rather than on one;
    /// by default on one. The same on every HA node of the group.
    pub fn spread(mut self, spread: bool) -> Self {
        self.spread = spread;
        self
    }

    /// Adds a label that workloads may ask for, such as `zone=a`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.labels.push(label.into());
        self
    }

    /// The most workloads it takes; any number by default.
    pub fn max_workloads(mut self, workloads: u32) -> Self {
        self.max = Some(workloads);
        self
    }

    /// How long it may be silent before it can be judged dead; 10 s by
    /// default. Interval, grace and kill margin follow from it unless they
    /// are set.
    ///
    /// With these defaults it is at least 863 ms, [as that of an
    /// election](crate::election::Builder::lease). A shorter lease needs a shorter
    /// [`kill_margin`](Self::kill_margin).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often to beat; a fifth of the lease by default.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// How long workloads get to stop; three tenths of the lease by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// How long before the end of validity whatever still runs is killed; by
    /// default the larger of 250 ms and 2 % of the lease.
    pub fn kill_margin(mut self, margin: Duration) -> Self {
        self.kill_margin = Some(margin);
        self
    }

    /// How long kinds and configs that no workload needs any more stay in the
    /// store; as long as the lease by default. A shorter time loses nothing,
    /// and makes a deploy write its own twice more often.
    pub fn keep(mut self, time: Duration) -> Self {
        self.keep = Some(time);
        self
    }

    /// The bound on how far the rate of any clock may be off; 1 % by default.
    pub fn drift(mut self, drift: Drift) -> Self {
        self.drift = drift;
        self
    }

    /// What workloads run on; by default the runtime that
    /// [`start`](Self::start) is called on.
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// What the node would join with.
    ///
    /// # Errors
    /// The first thing that is wrong, with what was expected and found.
    pub fn config(&self) -> Result<Config, StartError> {
        let name = self.name.clone().unwrap_or_else(host_name);
        let (group, name) = (named("group", &self.group)?, named("name", &name)?);
        let mut config = Config::new(group, name).with_lease(self.lease);
        // One more than allowed is enough to be refused.
        for label in self.labels.iter().take(LABELS_MAX + 1) {
            config.labels.push(named("label", label)?);
        }
        for kind in self.registry.kinds() {
            named("kind of workload", kind)?;
        }
        (config.ha, config.quorum) = (self.ha, self.quorum);
        (config.spread, config.max) = (self.spread, self.max);
        config.interval = self.interval.unwrap_or(config.interval);
        config.grace = self.grace.unwrap_or(config.grace);
        config.kill_margin = self.kill_margin.unwrap_or(config.kill_margin);
        config.keep = self.keep.unwrap_or(config.keep);
        config.drift = self.drift;
        config.validate()?;
        Ok(config)
    }

    /// Begins to join.
    ///
    /// # Errors
    /// The first thing that is wrong, with what was expected and found.
    /// Trouble with the store is no error here: it is an event, and the node
    /// goes on trying.
    pub fn start(self) -> Result<Manager, StartError> {
        let config = self.config()?;
        let rng = entropy().map_err(StartError::Entropy)?;
        let here = || Handle::try_current().map_err(|_| StartError::Runtime);
        let runtime = self.runtime.map_or_else(here, Ok)?;
        Ok(Manager::start(
            config,
            self.store,
            self.registry,
            runtime,
            (self.start_from, rng),
        ))
    }
}

fn named(what: &'static str, text: &str) -> Result<Name, StartError> {
    Name::new(text).map_err(|source| StartError::Name { what, source })
}

#[cfg(test)]
mod tests {
    /// Compiles only if programs may keep a builder where threads share it, as the
    /// builder of an election.
    #[test]
    fn a_builder_can_be_shared_between_threads() {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<super::Builder>();
    }
}
