//! Work that moves off dead machines: a [`Manager`] is this process's node of
//! a group.
//!
//! ```no_run
//! use tenure::ha::{Deployment, Manager, RunHandle, Workload};
//!
//! struct Reports;
//!
//! impl Workload for Reports {
//!     async fn deploy(&mut self, run: &RunHandle) -> Result<(), tenure::error::Cause> {
//!         println!("reporting, with fence {}", run.fence());
//!         Ok(())
//!     }
//!     async fn undeploy(&mut self) {}
//! }
//!
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! let store = tenure::open("sqlite:///var/lib/group.db").await?;
//! let node = Manager::builder(store, "reporting")
//!     .quorum(2)
//!     .workload("reports", || Reports)
//!     .start()?;
//! node.deploy(Deployment::new("weekly", "reports").config("{}")).await?;
//! // … and when it is to go, with its work handed on:
//! node.drain().await;
//! # Ok(()) }
//! ```
//!
//! Every node of a group registers the same kinds of workloads. What one of
//! them deploys is written into the group's view; if it dies, another one
//! makes the workload anew and starts it with the same config and instances.
//! A workload runs on at most one node at any instant: before others can judge
//! a node dead, it has ended everything by itself. The protocol is that of
//! [`tenure_group`], told in `docs/design/groups.md`.
//!
//! # Three ways to go
//!
//! [`Manager::leave`] ends everything and takes it along: nothing fails over.
//! [`Manager::drain`] hands HA workloads on first. **Dropping a manager is
//! sudden death**: what runs here is dropped at once, nothing is released, and
//! the others find out when the lease has run out.
//!
//! # What is left out on purpose
//!
//! State that moves along, and a guardian in another process: a workload that
//! blocks its thread cannot be dropped, and then only its fence protects.
//! Workloads that are processes are run by a [`Host`] (the `tenure` binary has
//! one, with guardians).

mod builder;
mod content;
mod environment;
mod group_request_error;
mod group_requests;
mod host;
mod mailbox;
mod run;
mod run_deadline;
mod shared;
mod workload;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use builder::{Builder, StartError};
pub use content::CONFIG_BYTES_MAX;
pub use group_request_error::GroupRequestError;
pub use group_requests::Deployment;
pub use host::{Host, Report, Start};
pub use shared::GroupState;
use tenure_core::ids::Name;
use tenure_core::rng::Rng;
use tenure_group::Node;
pub use tenure_group::{
    Assignment, Config, ConfigError, Digest, Event, Heartbeat, INSTANCES_MAX, Job, Keys, Member,
    NodeId, Phase, Place, Refusal, ResumeState, Run, STATUS_BYTES_MAX, Target, View, Why,
};
use tokio::runtime::Handle;
use tokio::sync::watch as state;
use tokio::task::AbortHandle;
pub use workload::{RunHandle, Workload};

use self::environment::{NodeEnvironment, Published};
use self::host::Hosting;
use self::run::RunContext;
use self::shared::Shared;
use self::workload::Registry;
use crate::clock;
use crate::drive;
use crate::store::Store;

/// A stream of events: delivered in order, never concurrently. The last one
/// is [`Event::Stopped`], also of a manager that was dropped.
pub type Events = drive::Events<Event>;

/// This process's node of a group. Dropping it is sudden death; see the
/// [module](self).
#[derive(Debug)]
pub struct Manager {
    config: Config,
    store: Arc<dyn Store>,
    keys: Keys,
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    /// The stream of events that was there from the start, until it is taken.
    first: Mutex<Option<Events>>,
    driver: AbortHandle,
}

impl Manager {
    fn start(
        config: Config,
        store: Arc<dyn Store>,
        registry: Registry,
        runtime: Handle,
        (start_from, rng): (StartFrom, Rng),
    ) -> Self {
        let now = clock::now();
        let (mut grant, mut adopted) = (None, BTreeMap::new());
        let node = match start_from.before {
            PreviousIncarnation::Nothing => Node::new(config.clone(), rng, now, None),
            PreviousIncarnation::Ended(former) => Node::new(config.clone(), rng, now, Some(former)),
            PreviousIncarnation::Runs(past) => {
                grant = Some(past.grant);
                adopted = running(&past);
                Node::resume(config.clone(), rng, now, past)
            }
        };
        let hosting = start_from.hosting.map(|hosting| {
            let hosting = hosting.into_inner().unwrap_or_else(PoisonError::into_inner);
            (hosting, grant)
        });
        let shared = Arc::new(Shared::new(node.id(), adopted));
        let first = Mutex::new(Some(shared.events.subscribe_unclaimed()));
        let (registry, keys) = (Arc::new(registry), Keys::of(config.group.clone()));
        let run_context = RunContext {
            store: Arc::clone(&store),
            keys: keys.clone(),
            registry: Arc::clone(&registry),
            runtime,
            mailbox: Arc::clone(&shared.mailbox),
            within: config.interval,
        };
        let ending = EndGuard(Arc::clone(&shared));
        let driver = drive::background().spawn(async move {
            let shared = &ending.0;
            let environment =
                NodeEnvironment::new(node.keys(), run_context, hosting, Arc::clone(shared));
            drive::drive(Published::new(node, Arc::clone(shared)), environment).await;
        });
        Self {
            config,
            store,
            keys,
            registry,
            shared,
            first,
            driver: driver.abort_handle(),
        }
    }

    /// What it was told.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The id under which it is known at present.
    pub fn id(&self) -> NodeId {
        self.shared.group_state.borrow().id
    }

    /// What it knows of its group, as a value that changes. It may be older
    /// than the store's, never younger.
    pub fn group_state(&self) -> state::Receiver<GroupState> {
        self.shared.group_state.subscribe()
    }

    /// The workloads that run here, with their fences.
    pub fn running(&self) -> BTreeMap<Name, u64> {
        self.shared.running.borrow().clone()
    }

    /// Everything that happens, in order, but for beats and for answers to
    /// requests. The first stream that is asked for begins with the node, so
    /// that nothing is lost between starting and listening (the latest 32 events are
    /// kept until then); others begin now.
    pub fn events(&self) -> Events {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let first = first.take().map(Events::claimed);
        first.unwrap_or_else(|| self.shared.events.subscribe())
    }

    /// Sets the status that this node publishes in its heartbeat register, from the
    /// next heartbeat on. The status is opaque bytes; those above [`STATUS_BYTES_MAX`]
    /// are cut off.
    pub fn set_status(&self, status: &[u8]) {
        self.shared.mailbox.status(status.into());
    }

    /// Hands all HA workloads on to others, each once it has ended here, ends
    /// the rest, and leaves. Returns when the node has left; dropping the
    /// future does not stop it.
    pub async fn drain(&self) {
        self.shared.mailbox.drain();
        self.stopped().await;
    }

    /// Ends everything and leaves, taking it all along: nothing fails over.
    /// Returns when the node has left; dropping the future does not stop it.
    pub async fn leave(&self) {
        self.shared.mailbox.leave();
        self.stopped().await;
    }

    /// Whether the node has ended. What [`group_state`](Self::group_state) shows then is
    /// the last that it saw.
    pub fn has_stopped(&self) -> bool {
        *self.shared.stopped.borrow()
    }

    /// Waits until the node has ended: it has left, or could not join
    /// ([`Event::Excluded`]).
    pub async fn stopped(&self) {
        let mut stopped = self.shared.stopped.subscribe();
        // The sender lives as long as `self`.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

/// What came before a node, and who runs its workloads.
#[derive(Debug, Default)]
struct StartFrom {
    before: PreviousIncarnation,
    /// A host can be sent to another thread and need not be shared between threads. With
    /// the lock, which is never contended, a [`Builder`] can be shared.
    hosting: Option<Mutex<Hosting>>,
}

/// What is known of an earlier incarnation of this node.
#[derive(Debug, Default)]
enum PreviousIncarnation {
    #[default]
    Nothing,
    /// This was its id, and all of it has ended.
    Ended(NodeId),
    /// All of this may still run.
    Runs(ResumeState),
}

/// What runs already, with its fences.
fn running(past: &ResumeState) -> BTreeMap<Name, u64> {
    let running = past.jobs.iter();
    let running = running.filter(|(_, job)| job.phase == Phase::Running);
    running
        .map(|(name, job)| (name.clone(), job.fence))
        .collect()
}

impl Drop for Manager {
    fn drop(&mut self) {
        // Nothing runs on, whatever the background thread is doing.
        self.shared.run_deadline().cut();
        self.driver.abort();
    }
}

/// Sees that nobody waits for a node that has ended, nor runs on under it:
/// because it has left, was dropped, or has panicked.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.run_deadline().cut();
        self.0.pending_requests().close();
        self.0.running.send_replace(BTreeMap::new());
        self.0.events.send(&Event::Stopped);
        self.0.stopped.send_replace(true);
    }
}
