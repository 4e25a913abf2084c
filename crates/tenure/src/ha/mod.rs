//! Work that moves off dead machines: a [`Manager`] is this process's node of
//! a group.
//!
//! ```no_run
//! use tenure::ha::{Deployment, Manager, Placement, Workload};
//!
//! struct Reports;
//!
//! impl Workload for Reports {
//!     async fn deploy(&mut self, placement: &Placement) -> Result<(), tenure::error::Cause> {
//!         println!("reporting, with fence {}", placement.fence());
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

mod ask;
mod builder;
mod content;
mod environment;
mod host;
mod mailbox;
mod run;
mod run_deadline;
mod workload;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use ask::{AskError, Deployment};
pub use builder::{Builder, StartError};
pub use content::CONFIG_BYTES_MAX;
pub use host::{Host, Report, Start};
use tenure_core::ids::Name;
use tenure_core::rng::Rng;
pub use tenure_group::{
    Assignment, Config, ConfigError, Digest, Event, Heartbeat, INSTANCES_MAX, Job, Keys, Member,
    NodeId, Phase, Place, Refusal, ResumeState, Run, STATUS_BYTES_MAX, Target, View, Why,
};
use tenure_group::{Node, Request};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch as state};
use tokio::task::AbortHandle;
pub use workload::{Placement, Workload};

use self::environment::{NodeEnvironment, Published};
use self::host::Hosting;
use self::mailbox::Mailbox;
use self::run::RunContext;
use self::run_deadline::RunDeadline;
use self::workload::Registry;
use crate::clock;
use crate::drive::{self, EventBroadcaster, Flow};
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

/// What a node knows of its group at present.
#[derive(Clone, Debug)]
pub struct GroupState {
    /// The id under which it is known; another one after it was fenced.
    pub id: NodeId,
    /// Whether it is in the view and expects to stay.
    pub member: bool,
    /// The view; `None` before the first look, or if the group has none.
    pub view: Option<Arc<View>>,
}

/// How a request was answered.
type Answer = Result<(), Refusal>;

/// What the driver and the application share.
#[derive(Debug)]
struct Shared {
    mailbox: Arc<Mailbox>,
    events: EventBroadcaster<Event>,
    group_state: state::Sender<GroupState>,
    /// The workloads that run here, with their fences.
    running: state::Sender<BTreeMap<Name, u64>>,
    stopped: state::Sender<bool>,
    /// The deadline of the present incarnation.
    run_deadline: Mutex<Arc<RunDeadline>>,
    asked: Mutex<Asked>,
}

/// Requests that wait for an answer; at most as many as the machine takes.
#[derive(Debug, Default)]
struct Asked {
    last: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Answer>>,
    closed: bool,
}

impl Manager {
    /// Prepares a node of the group of this name, in `store`.
    pub fn builder(store: Arc<dyn Store>, group: impl Into<String>) -> Builder {
        Builder::new(store, group.into())
    }

    fn start(
        config: Config,
        store: Arc<dyn Store>,
        registry: Registry,
        runtime: Handle,
        (life, rng): (Origin, Rng),
    ) -> Self {
        let now = clock::now();
        let (mut grant, mut adopted) = (None, BTreeMap::new());
        let node = match life.before {
            Before::Nothing => Node::new(config.clone(), rng, now, None),
            Before::Ended(former) => Node::new(config.clone(), rng, now, Some(former)),
            Before::Runs(past) => {
                grant = Some(past.grant);
                adopted = running(&past);
                Node::resume(config.clone(), rng, now, past)
            }
        };
        let hosting = life.hosting.map(|hosting| (hosting, grant));
        let shared = Arc::new(Shared::new(node.id(), adopted));
        let first = Mutex::new(Some(shared.events.subscribe()));
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
    /// that nothing is lost between starting and listening; others begin now.
    pub fn events(&self) -> Events {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let first = first.take();
        first.unwrap_or_else(|| self.shared.events.subscribe())
    }

    /// Tells people this of the node, from the next beat on, in its heartbeat
    /// register: opaque bytes, of which those above [`STATUS_BYTES_MAX`] are
    /// cut.
    pub fn tell(&self, status: &[u8]) {
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
struct Origin {
    before: Before,
    hosting: Option<Hosting>,
}

/// What is known of an earlier life of this node.
#[derive(Debug, Default)]
enum Before {
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
        self.0.asked().close();
        self.0.running.send_replace(BTreeMap::new());
        self.0.events.send(&Event::Stopped);
        self.0.stopped.send_replace(true);
    }
}

impl Asked {
    fn close(&mut self) {
        self.closed = true;
        self.waiting.clear();
    }
}

impl Shared {
    fn new(id: NodeId, running: BTreeMap<Name, u64>) -> Self {
        let group_state = GroupState {
            id,
            member: false,
            view: None,
        };
        Self {
            mailbox: Arc::default(),
            events: EventBroadcaster::new(Event::Stopped),
            group_state: state::Sender::new(group_state),
            running: state::Sender::new(running),
            stopped: state::Sender::new(false),
            run_deadline: Mutex::new(RunDeadline::new()),
            asked: Mutex::default(),
        }
    }

    fn run_deadline(&self) -> Arc<RunDeadline> {
        Arc::clone(
            &self
                .run_deadline
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a request to the machine; says where its answer comes.
    fn ask(&self, request: Request) -> Result<oneshot::Receiver<Answer>, AskError> {
        let mut asked = self.asked();
        if asked.closed {
            return Err(AskError::Stopped);
        }
        asked.last += 1;
        let ticket = asked.last;
        if !self.mailbox.ask(ticket, request) {
            return Err(AskError::TooMany);
        }
        let (answer, answered) = oneshot::channel();
        asked.waiting.insert(ticket, answer);
        Ok(answered)
    }

    fn answer(&self, ticket: u64, answer: Answer) {
        if let Some(asker) = self.asked().waiting.remove(&ticket) {
            // A caller that has stopped waiting does not want to know.
            let _ = asker.send(answer);
        }
    }

    /// Shows what the machine knows now, if it is another thing than before.
    fn show(&self, id: NodeId, member: bool, view: Option<&View>) {
        self.group_state.send_if_modified(|group_state| {
            let epoch = group_state.view.as_ref().map(|view| view.epoch);
            let same_view = epoch == view.map(|view| view.epoch);
            if same_view && group_state.id == id && group_state.member == member {
                return false;
            }
            (group_state.id, group_state.member) = (id, member);
            if !same_view {
                group_state.view = view.cloned().map(Arc::new);
            }
            true
        });
    }

    /// What an event means for the holder of the manager. Runs on the driver's
    /// thread and blocks on nothing.
    fn on_event(&self, event: Event) -> Flow {
        match &event {
            Event::Beat { grant } => {
                self.run_deadline().extend(*grant);
                return Flow::On;
            }
            Event::Done { ticket } => {
                self.answer(*ticket, Ok(()));
                return Flow::On;
            }
            Event::Refused { ticket, why } => {
                self.answer(*ticket, Err(why.clone()));
                return Flow::On;
            }
            // What still runs keeps the deadline it has, which nothing extends.
            Event::Fenced { .. } => {
                *self
                    .run_deadline
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = RunDeadline::new();
            }
            Event::Deployed { name, fence } => {
                let (name, fence) = (name.clone(), *fence);
                self.running.send_modify(|running| {
                    running.insert(name, fence);
                });
            }
            Event::Undeployed { name } | Event::StartFailed { name, .. } => {
                self.running
                    .send_if_modified(|running| running.remove(name).is_some());
            }
            _ => {}
        }
        self.events.send(&event);
        if event == Event::Stopped {
            Flow::End
        } else {
            Flow::On
        }
    }
}
