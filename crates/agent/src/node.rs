//! The agent itself, from its start to its end.
//!
//! It takes the lock of its directory, finds the shim of a previous incarnation
//! or starts one, and joins. Then it handles events: of the node, of the shim, of
//! commands and of signals. The first TERM or INT drains the node, so that its
//! work runs elsewhere before it ends. A second one, later than [`SIGNAL_ECHO`],
//! ends everything at once, and the other nodes find out by its silence.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::Name;
use tenure::clock;
use tenure::core::ha::MEMBERS_MAX;
use tenure::core::time::Instant;
use tenure::election::FailureClass;
use tenure::ha::{
    Builder, Config, Event, Events, GroupState, Keys, NodeId, Refusal, ResumeState, View,
};
use tenure::store::Store;
use tenure_runtime::failure::{Failure, usage};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::sync::watch;

use super::completion::undeploy_completed;
use super::control_server;
use super::drift_check;
use super::messages::LogLimits;
use super::node_status::{NodeStatus, StatusTracker};
use super::request_handler::{RequestHandler, Trouble};
use super::shim_client::{self, ShimHandle};
use super::shim_discovery::{self, CompletedWorkload, ConnectedShim};
use super::spec::{KIND, WorkloadDefaults};
use super::state_directory::{AgentLock, CONTROL_SOCKET, SocketDirectory};
use super::{metrics, quorum_advice, state_directory};
use crate::format::{counted, quorum_of};
use crate::guard::{MARGIN_MIN, SLACK};

/// How long commands may take to read the last answer of an agent that ends.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Within what time two requests to stop are one: `timeout` and others signal
/// both a process and its group.
const SIGNAL_ECHO: Duration = Duration::from_millis(500);

/// How many different causes of one trouble with the store are logged.
const TROUBLES_MAX: usize = 8;

/// The options of an agent.
pub struct Options {
    /// The node, as it is to join its group.
    pub builder: Builder,
    /// Where its group is.
    pub store: Arc<dyn Store>,
    /// The store's URL, only to tell whether it is another one than before.
    pub url: String,
    /// The directory that has one for each node.
    pub root: PathBuf,
    /// Where metrics are served, if they are.
    pub metrics: Option<String>,
    /// How much of what workloads print is kept.
    pub log: LogLimits,
}

/// Runs a node until it has left. `announce` gets a line for people, and an
/// object for programs, once the agent takes requests. It must not wait for its
/// reader.
///
/// # Errors
/// Why it ends, if it was not asked to.
pub async fn run(
    options: Options,
    announce: impl FnOnce(&str, &Value),
) -> Result<ExitCode, Failure> {
    // Signals first: one that comes while the shim starts must not be lost.
    let mut stop = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    ];
    let config = check_config(&options.builder)?;
    let (group, name) = (config.group.as_str(), config.name.as_str());
    let Some((directory, lock)) = take_lock(&options.root, group, name, &mut stop).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    tokio::spawn(Arc::clone(&lock).watch(config.lease));
    let metrics_port = match &options.metrics {
        Some(address) => Some(metrics::listen(address).await?),
        None => None,
    };
    // The grant of a previous incarnation, and the times that its shim keeps,
    // are of the clock that it read (docs/design/groups.md §7.1).
    let clock = clock::id();
    let settings = shim_discovery::settings(&options.url, &config, clock);
    let mut found = shim_discovery::find(&directory, config.lease, clock).await?;
    let resume_state = found.resume_state(&settings, clock);
    let resumes = resume_state.is_ok();
    let bound = metrics_port.as_ref().and_then(|it| it.local_addr().ok());
    let mut tracker = StatusTracker::new(own_status(&config, bound), &found.state.notes);
    if let Ok(resume_state) = &resume_state {
        tracker.resume(&resume_state.jobs, clock::wall());
    }
    let former = found.former_id();
    let (builder, completed) =
        resume_or_end(options.builder, &mut found, resume_state, &directory).await?;
    let defaults = WorkloadDefaults {
        group: group.to_owned(),
        node: name.to_owned(),
        grace_ms: u64::try_from(config.grace.as_millis()).unwrap_or(u64::MAX),
        log: options.log,
    };
    let (host, shim) = shim_client::connect(found, defaults, settings, directory.clone())?;
    let manager = builder.host(KIND, host).start();
    let manager = Arc::new(manager.map_err(|error| usage(error.to_string()))?);
    let events = manager.events();
    let handler = Arc::new(RequestHandler {
        manager,
        store: options.store,
        keys: Keys::of(config.group.clone()),
        tracker: Mutex::new(tracker),
        former: Mutex::new(former.filter(|_| !resumes)),
        connection_permits: Arc::new(Semaphore::new(control_server::CONNECTIONS_MAX)),
        pending_permits: Arc::new(Semaphore::new(control_server::PENDING_MAX)),
        trouble: watch::Sender::new(None),
    });
    let sockets = SocketDirectory::open(&directory)?;
    let listener = sockets.listen(CONTROL_SOCKET)?;
    tokio::spawn(control_server::serve(listener, Arc::clone(&handler)));
    if let Some(listener) = metrics_port {
        tokio::spawn(metrics::serve(listener, Arc::clone(&handler)));
    }
    announce(
        &format!(
            "node {name} of group {group}, directory {}",
            directory.display()
        ),
        &json!({ "node": name, "group": group, "directory": directory }),
    );
    let agent = Agent::new(handler, events, shim, (config.quorum, resumes));
    for completed in completed {
        agent.complete(completed);
    }
    let ended = agent.serve(&mut stop).await;
    sockets.remove(CONTROL_SOCKET).await;
    drop(lock);
    ended
}

/// Takes the lock of this node's directory, as soon as its file system answers.
/// `None` if the agent is asked to stop before.
async fn take_lock(
    root: &Path,
    group: &str,
    name: &str,
    [terminate, interrupt]: &mut [Signal; 2],
) -> Result<Option<(PathBuf, Arc<AgentLock>)>, Failure> {
    let (below, directory) = (
        root.to_owned(),
        state_directory::node_directory(root, group, name),
    );
    let slow = || {
        tracing::warn!(
            "{} has not answered: its file system is slow or hangs; this agent begins when it does",
            root.display()
        );
    };
    let look = move || {
        state_directory::create_private(&below)?;
        state_directory::create_private(&directory)?;
        let lock = AgentLock::take(&directory)?;
        Ok(Some((directory, Arc::new(lock))))
    };
    tokio::select! {
        taken = state_directory::run_on_thread(root, Duration::MAX, slow, look) => return taken,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("asked to stop before it had begun");
    Ok(None)
}

/// Checks the settings, also for guardians: one that hangs takes up a part of
/// the kill margin.
fn check_config(builder: &Builder) -> Result<Config, Failure> {
    let config = builder.config().map_err(|error| usage(error.to_string()))?;
    let (margin, least) = (config.kill_margin, MARGIN_MIN);
    if margin < least {
        return Err(usage(format!(
            "expected a kill margin >= {least:?} ({SLACK:?} until a hung guardian is killed + \
             {:?} for the killing), found {margin:?}: lengthen --kill-margin, or leave it out",
            least.saturating_sub(SLACK)
        )));
    }
    if config.quorum as usize > MEMBERS_MAX {
        return Err(usage(format!(
            "expected a quorum that a group can reach, at most {MEMBERS_MAX}, found {}",
            config.quorum
        )));
    }
    Ok(config)
}

/// Goes on from a previous incarnation, or makes sure that nothing of it is
/// left. Returns which of its workloads had completed.
async fn resume_or_end(
    builder: Builder,
    found: &mut ConnectedShim,
    resume_state: Result<ResumeState, &'static str>,
    directory: &Path,
) -> Result<(Builder, Vec<CompletedWorkload>), Failure> {
    let why = match resume_state {
        Ok(resume_state) => {
            tracing::info!(
                "going on as {}, with {} kept running",
                resume_state.id,
                counted(resume_state.jobs.len(), "workload")
            );
            return Ok((builder.resume(resume_state), Vec::new()));
        }
        Err(why) => why,
    };
    let (former, mut completed) = (found.former_id(), Vec::new());
    if !found.state.runs.is_empty() {
        tracing::info!(
            "ending {} of an earlier incarnation: {why}",
            counted(found.state.runs.len(), "workload")
        );
        completed = found.end_all(directory).await?;
    }
    found.ensure_same_clock(directory).await?;
    let builder = match former {
        Some(former) => builder.replaces_node(former),
        None => builder,
    };
    Ok((builder, completed))
}

fn own_status(config: &Config, metrics: Option<SocketAddr>) -> NodeStatus {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    NodeStatus {
        host: host.trim().to_owned(),
        pid: std::process::id(),
        since: clock::wall().as_millis(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        drift_ppm: Some(config.drift.ppm()),
        metrics: metrics.map(|it| it.to_string()),
        ..NodeStatus::default()
    }
}

/// The workloads that have ended for good because their node has died, by
/// node: they were not HA.
fn ended_with_node(before: &View, view: &View) -> Vec<(String, String)> {
    let dead = before.members.iter().filter(|member| {
        let gone = view.departures.iter().find(|gone| gone.id == member.id);
        view.member(member.id).is_none() && gone.is_none_or(|gone| gone.died)
    });
    let along = dead.map(|member| {
        let held = before.held_by(member.id);
        let lost = held.filter(|(name, it)| !it.ha && !view.workloads.contains_key(*name));
        let names: Vec<&str> = lost.map(|(name, _)| name.as_str()).collect();
        (member.name.to_string(), names.join(", "))
    });
    along.filter(|(_, names)| !names.is_empty()).collect()
}

struct Agent {
    handler: Arc<RequestHandler>,
    events: Events,
    shim: ShimHandle,
    group_state: watch::Receiver<GroupState>,
    seen: GroupState,
    quorum: u32,
    /// The node is, or was, in the view: workloads may be assigned to it.
    has_joined: bool,
    /// The id under which the node is, or was last, in the view.
    joined_as: Option<NodeId>,
    /// When it was first asked to stop.
    stop_requested_at: Option<Instant>,
    /// What was logged of the trouble that lasts. It may alternate between two
    /// causes, such as a read and a write that fail.
    troubles: BTreeSet<String>,
    excluded: Option<Refusal>,
}

/// What the agent handles.
enum AgentEvent {
    Node(Option<Event>),
    ViewChanged,
    Completed(CompletedWorkload),
    ShimLost,
    Stop,
}

impl Agent {
    fn new(
        handler: Arc<RequestHandler>,
        events: Events,
        shim: ShimHandle,
        (quorum, has_joined): (u32, bool),
    ) -> Self {
        let mut group_state = handler.manager.group_state();
        let seen = group_state.borrow_and_update().clone();
        Self {
            handler,
            events,
            shim,
            group_state,
            quorum,
            has_joined,
            joined_as: has_joined.then_some(seen.id),
            stop_requested_at: None,
            troubles: BTreeSet::new(),
            excluded: None,
            seen,
        }
    }

    async fn serve(mut self, stop: &mut [Signal; 2]) -> Result<ExitCode, Failure> {
        loop {
            let [terminate, interrupt] = stop;
            let happened = tokio::select! {
                biased;
                _ = terminate.recv() => AgentEvent::Stop,
                _ = interrupt.recv() => AgentEvent::Stop,
                Ok(()) = self.group_state.changed() => AgentEvent::ViewChanged,
                event = self.events.next() => AgentEvent::Node(event),
                Some(completed) = self.shim.completed.recv() => AgentEvent::Completed(completed),
                Ok(()) = self.shim.lost.changed() => AgentEvent::ShimLost,
            };
            match happened {
                AgentEvent::ViewChanged => self.handle_view(),
                AgentEvent::Node(None | Some(Event::Stopped)) => break,
                AgentEvent::Node(Some(event)) => self.handle_event(event),
                AgentEvent::Completed(completed) => self.complete(completed),
                AgentEvent::ShimLost => self.handler.tracker().count_lost_shim(),
                AgentEvent::Stop => match self.stop_requested_at {
                    None => self.stop(),
                    Some(at) if clock::boot().since(at) < SIGNAL_ECHO => {
                        tracing::debug!("asked to stop once more, at the same time");
                    }
                    Some(_) => {
                        tracing::warn!("asked twice: ending everything at once");
                        self.shim.quit().await;
                        return Err(Failure::Other(anyhow::anyhow!(if self.has_joined {
                            "ended without leaving: the others take over when the lease is over"
                        } else {
                            "ended before it had joined: nothing ran here"
                        })));
                    }
                },
            }
            self.publish();
        }
        let all = u32::try_from(control_server::CONNECTIONS_MAX - 1).unwrap_or(u32::MAX);
        let served = self.handler.connection_permits.acquire_many(all);
        let _ = tokio::time::timeout(FLUSH_WITHIN, served).await;
        if self.excluded.is_none() {
            self.log_end();
        }
        self.shim.quit().await;
        match self.excluded {
            None => Ok(ExitCode::SUCCESS),
            Some(why) => {
                let told = quorum_advice::quorum_advice(&self.handler, &why).await;
                Err(usage(format!("{why}{told}")))
            }
        }
    }

    /// Has the node hand everything on, and leave.
    fn stop(&mut self) {
        self.stop_requested_at = Some(clock::boot());
        let (manager, has_joined) = (Arc::clone(&self.handler.manager), self.has_joined);
        if has_joined {
            tracing::info!("asked to stop: handing everything on first");
        } else {
            tracing::info!("asked to stop before it had joined: nothing is to be handed on");
        }
        tokio::spawn(async move {
            if has_joined {
                manager.drain().await;
            } else {
                manager.leave().await;
            }
        });
    }

    /// Logs how the agent ended.
    fn log_end(&self) {
        let group_state = self.group_state.borrow();
        let view = group_state.view.as_ref();
        if !self.has_joined {
            tracing::info!("ended; it had not joined");
        } else if view.is_some_and(|view| view.member(group_state.id).is_some()) {
            tracing::warn!("ended without leaving: the others take over when the lease is over");
        } else {
            tracing::info!("left the group, with nothing running here");
        }
    }

    /// Publishes what has changed, to other nodes and to the next incarnation.
    fn publish(&self) {
        let tracker = self.handler.tracker();
        let (status, notes) = (tracker.status(), tracker.notes());
        drop(tracker);
        self.handler.manager.set_status(&status);
        self.shim.note(notes);
    }

    fn handle_view(&mut self) {
        let group_state = self.group_state.borrow_and_update().clone();
        self.has_joined |= group_state.member;
        if let Some(view) = &group_state.view {
            let before = self.seen.view.as_deref();
            for (node, names) in before.map_or_else(Vec::new, |it| ended_with_node(it, view)) {
                tracing::warn!(
                    "{node} has died, and with it what was deployed with --no-ha: {names}; \
                     deploy it again, or without --no-ha, so that another node takes it over"
                );
            }
            let mut tracker = self.handler.tracker();
            tracker.handle_view(before, view, group_state.id, clock::wall());
        }
        self.seen = group_state;
    }

    fn complete(&self, completed: CompletedWorkload) {
        tracing::info!(
            "{} has ended as it should, and is undeployed",
            completed.name
        );
        self.handler
            .tracker()
            .set_completed(&completed.name, clock::wall());
        tokio::spawn(undeploy_completed(
            Arc::clone(&self.handler.manager),
            completed,
        ));
    }

    fn handle_event(&mut self, event: Event) {
        if let Event::Fenced { id, why } = event
            && self.joined_as != Some(id)
        {
            // Nothing was ever assigned to it, so nothing is ended.
            return tracing::info!("{why} before {id} had joined: joining under another id");
        }
        self.handler.tracker().handle_event(&event, clock::wall());
        match event {
            Event::Joined { id, namesake } => {
                tracing::info!("joined as {id}");
                self.joined_as = Some(id);
                if namesake {
                    tracing::warn!(
                        "another node has this name: name nodes by their ids, or give one of \
                         them another --name; if it is only what is left of one that was killed \
                         here, it is judged dead when its lease is over"
                    );
                }
                self.warn_of_quorum();
                tokio::spawn(drift_check::warn_if_different(Arc::clone(&self.handler)));
            }
            Event::Fenced { id, why } => {
                let former = &self.handler.former;
                *former.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
                tracing::warn!("{why}: everything is ended, and {id} is given up");
            }
            Event::ViewLost {
                epoch,
                found,
                workloads,
            } => tracing::warn!("{}", lost_view(&self.handler, (epoch, found), &workloads)),
            Event::QuorumAttained { nodes, quorum } => {
                tracing::info!("quorum attained: {}", quorum_of(nodes, quorum));
            }
            Event::QuorumLost { nodes, quorum } => {
                tracing::warn!("quorum lost: {}", quorum_of(nodes, quorum));
            }
            Event::NodeJoined { id, name } if name == self.handler.manager.config().name => {
                tracing::warn!(
                    "another node of this name has joined ({id}); name nodes by their ids"
                );
            }
            Event::NodeJoined { id, name } => tracing::info!("{name} has joined ({id})"),
            Event::NodeLeft { id, name } => tracing::info!("{name} has left ({id})"),
            Event::NodeDied { id, name } => tracing::warn!("{name} has died ({id})"),
            Event::FailoverBegun { from, workloads } => {
                tracing::warn!("taking over {} of {from}", counted(workloads, "workload"));
            }
            Event::FailoverCompleted { from } => tracing::info!("all of {from} runs here"),
            Event::FailoverFailed { from, name } => {
                tracing::warn!("{name} of {from} would not start");
            }
            Event::Deployed { name, fence } => tracing::info!("{name} runs with fence {fence}"),
            Event::Undeployed { name } => tracing::info!("{name} has ended"),
            Event::StartFailed {
                name,
                in_a_row,
                why,
            } => tracing::warn!("{name} failed ({in_a_row} in a row): {why}"),
            Event::Excluded { why } => self.excluded = Some(why),
            Event::Trouble { failure, in_a_row } => {
                let broken = failure.class == FailureClass::Broken;
                self.report_trouble(failure.why.to_string(), broken, in_a_row);
            }
            Event::Recovered => {
                self.troubles.clear();
                self.handler.trouble.send_replace(None);
                tracing::warn!("the store answers again");
            }
            // The log has no line for answers, heartbeats and the end.
            _ => {}
        }
    }

    /// Logs once what is wrong with the store, until it answers again.
    fn report_trouble(&mut self, why: String, broken: bool, in_a_row: u32) {
        // Some stores say who they are, others only what happened.
        let store = self.handler.store.to_string();
        let why = if why.contains(&store) {
            why
        } else {
            format!("{store}: {why}")
        };
        let trouble = Trouble {
            why: why.clone(),
            broken,
        };
        self.handler.trouble.send_replace(Some(trouble));
        // What comes before the store's name says what the call was.
        let cause = why.find(&store).map_or(&*why, |at| &why[at..]);
        if self.troubles.len() < TROUBLES_MAX && self.troubles.insert(cause.to_owned()) {
            tracing::warn!("{why}");
        } else {
            tracing::debug!("{why} ({in_a_row} in a row)");
        }
    }

    fn warn_of_quorum(&self) {
        let view = self.group_state.borrow().view.clone();
        let nodes = view.map_or(0, |view| view.voters());
        if (nodes as u64) < u64::from(self.quorum) {
            let quorum = self.quorum;
            tracing::warn!(
                "the group has {nodes} of the {quorum} nodes it needs: HA workloads wait until \
                 {quorum} agents run; if there will never be that many, give every node a lower \
                 --quorum"
            );
        }
    }
}

/// The warning that the view is gone, or that an older copy is back.
fn lost_view(
    handler: &RequestHandler,
    (epoch, found): (u64, Option<u64>),
    workloads: &[Name],
) -> String {
    let (key, store) = (handler.keys.view(), &handler.store);
    let found = found.map_or_else(|| "nothing".to_owned(), |found| format!("epoch {found}"));
    let names: Vec<&str> = workloads.iter().map(Name::as_str).collect();
    let names = match names.len() {
        0 => "no workload went with it".to_owned(),
        many => format!(
            "{} went with it: {}; deploy them again (`tenure deploy`), for what to run stood \
             there alone",
            counted(many, "workload"),
            names.join(", ")
        ),
    };
    format!(
        "the view of this group was lost: expected epoch {epoch} or a later one in {key} of \
         {store}, found {found}. {names}"
    )
}
