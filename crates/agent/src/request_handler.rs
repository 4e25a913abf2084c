//! What an agent does for commands: it deploys, undeploys, and waits until that
//! is done. Draining has a file of its own, `drain.rs`.
//!
//! Each answer is for one request. Until the request is in the view, a store that
//! fails is asked again, for as long as the agent lives. How long a command waits
//! is not decided here but in `control_server.rs`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tenure::Name;
use tenure::StoreError;
use tenure::ha::{
    GroupRequestError, Heartbeat, Keys, Manager, NodeId, Place, Refusal, Target, View,
};
use tenure::store::Store;
use tokio::sync::{Semaphore, watch};

use super::control::{AgentRequest, Deployed};
use super::messages::RestartPolicy;
use super::node_status::{Condition, NodeStatus, StatusTracker, WorkloadStatus};
use super::pending_reason::pending_reason;
use super::pending_request::PendingRequest;
use super::resolve_node::resolve_node;
use super::spec::Workload;

/// What the answers to commands need.
pub(super) struct RequestHandler {
    pub(super) manager: Arc<Manager>,
    pub(super) store: Arc<dyn Store>,
    pub(super) keys: Keys,
    pub(super) tracker: Mutex<StatusTracker>,
    /// The last id that this node gave up. The view may have it still.
    pub(super) former: Mutex<Option<NodeId>>,
    pub(super) connection_permits: Arc<Semaphore>,
    /// Requests that are neither in the view nor refused yet.
    pub(super) pending_permits: Arc<Semaphore>,
    pub(super) trouble: watch::Sender<Option<Trouble>>,
}

impl RequestHandler {
    pub(super) fn tracker(&self) -> MutexGuard<'_, StatusTracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What keeps the agent from its group, such as a store that does not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Trouble {
    pub(super) why: String,
    /// A person must repair it: it does not pass by itself.
    pub(super) broken: bool,
}

pub(super) struct RequestFailure {
    pub(super) text: String,
    pub(super) usage: bool,
}

pub(super) fn failure(text: impl Into<String>) -> RequestFailure {
    let text = text.into();
    RequestFailure { text, usage: false }
}

impl From<GroupRequestError> for RequestFailure {
    fn from(error: GroupRequestError) -> Self {
        let usage = matches!(
            error,
            GroupRequestError::Name { .. }
                | GroupRequestError::ConfigTooLong { .. }
                | GroupRequestError::Kind { .. }
        );
        let text = error.to_string();
        Self { text, usage }
    }
}

pub(super) type RequestResult = Result<(String, Value), RequestFailure>;

impl RequestHandler {
    pub(super) async fn handle(
        &self,
        request: AgentRequest,
        pending: &PendingRequest,
    ) -> RequestResult {
        match request {
            AgentRequest::Deploy { workload, wait } => self.deploy(&workload, wait, pending).await,
            AgentRequest::Await(deployed) => {
                pending.mark_in_view();
                self.wait_for_deployed(&deployed, pending).await
            }
            AgentRequest::Undeploy { name } => self.undeploy(&name, pending).await,
            AgentRequest::Drain { node } => self.drain(node.as_deref(), pending).await,
        }
    }

    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.manager.group_state().borrow().view.clone()
    }

    pub(super) async fn wait_until_joined(
        &self,
        pending: &PendingRequest,
    ) -> Result<NodeId, GroupRequestError> {
        if !self.manager.group_state().borrow().member {
            pending.send_note_once("waiting: the agent has not joined its group yet");
        }
        self.manager.joined().await
    }

    async fn deploy(
        &self,
        workload: &Workload,
        wait: bool,
        pending: &PendingRequest,
    ) -> RequestResult {
        let _ = self.wait_until_joined(pending).await?;
        let before = self.view().map_or(0, |view| view.epoch);
        self.write_to_view(workload, pending).await?;
        pending.mark_in_view();
        let since = self.view().map_or(0, |view| view.epoch);
        let deployed = Deployed {
            name: workload.name.clone(),
            restart: workload.restart,
            after: before,
            since,
        };
        if !wait {
            let name = &deployed.name;
            let waits = self.pending_reason_of(name);
            let object = json!({
                "workload": name, "deployed": true, "after": before, "epoch": since,
                "waits_for": waits,
            });
            let waits = waits.map_or_else(String::new, |it| format!(", and waits: {it}"));
            return Ok((format!("{name} is deployed{waits}"), object));
        }
        self.wait_for_deployed(&deployed, pending).await
    }

    /// Why a workload that has just been deployed does not start now, if it does
    /// not.
    fn pending_reason_of(&self, name: &str) -> Option<String> {
        let (view, name) = (self.view()?, Name::new(name).ok()?);
        pending_reason(&view, view.workloads.get(&name)?, |_| true)
    }

    /// Writes a workload into the view, however long that takes.
    async fn write_to_view(
        &self,
        workload: &Workload,
        pending: &PendingRequest,
    ) -> Result<(), RequestFailure> {
        loop {
            let deployment = workload
                .deployment()
                .map_err(|text| RequestFailure { text, usage: true })?;
            let me = self.wait_until_joined(pending).await?;
            let on = match &workload.node {
                Some(node) => Some(self.resolve(node)?.0),
                None if workload.ha => None,
                // What dies with its node runs on this one.
                None => Some(me),
            };
            match self.manager.place(deployment, on).await {
                Ok(()) => return Ok(()),
                // The node was fenced meanwhile, and joins again under another id.
                Err(GroupRequestError::Refused(Refusal::NoNode(id)))
                    if id == me && self.manager.id() != me => {}
                // The request did not reach the store.
                Err(GroupRequestError::Store(error)) if !matches!(error, StoreError::Broken(_)) => {
                    pending.send_note_once(&format!("waiting: {error}"));
                    tokio::time::sleep(self.manager.config().interval).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn undeploy(&self, name: &str, pending: &PendingRequest) -> RequestResult {
        let _ = self.wait_until_joined(pending).await?;
        self.manager.request_undeploy(name).await?;
        pending.mark_in_view();
        let key = Name::new(name).map_err(|error| failure(error.to_string()))?;
        let mut group_state = self.manager.group_state();
        loop {
            let view = group_state.borrow_and_update().view.clone();
            let view = view.as_deref();
            let it = view.and_then(|view| Some((view, view.workloads.get(&key)?)));
            let ends = |place| {
                matches!(
                    place,
                    Place::Releasing {
                        to: Target::Nowhere,
                        ..
                    }
                )
            };
            match it.filter(|(_, it)| ends(it.place)) {
                Some((view, it)) => {
                    let pending_reason = pending_reason(view, it, |_| true).unwrap_or_default();
                    pending.send_note_once(&format!("{name}: waiting: {pending_reason}"));
                }
                // If the name is in the view, another workload has it.
                None => break,
            }
            tokio::select! {
                _ = group_state.changed() => {}
                () = self.manager.stopped() => return Err(GroupRequestError::Stopped.into()),
            }
        }
        let object = json!({ "workload": name, "undeployed": true });
        Ok((format!("{name} has ended, and its name is free"), object))
    }

    /// Waits until a workload that was deployed runs, or has completed.
    async fn wait_for_deployed(&self, it: &Deployed, pending: &PendingRequest) -> RequestResult {
        let name = Name::new(&it.name).map_err(|error| failure(error.to_string()))?;
        let ran = self.wait_until_running(&name, it, pending).await;
        let gone = self
            .view()
            .is_some_and(|view| !view.workloads.contains_key(&name));
        if ran.is_err() && gone && it.restart != RestartPolicy::Always {
            // It has completed before this was seen.
            let object = json!({ "workload": name.as_str(), "gone": true });
            return Ok((format!("{name} has ended, and is undeployed"), object));
        }
        ran
    }

    /// Waits until a workload runs as it was deployed.
    async fn wait_until_running(
        &self,
        name: &Name,
        it: &Deployed,
        pending: &PendingRequest,
    ) -> RequestResult {
        let mut group_state = self.manager.group_state();
        let pause = self.manager.config().interval / 4;
        let mut last_note = String::new();
        loop {
            let view = group_state.borrow_and_update().view.clone();
            let pending_reason = match view {
                Some(view) if view.epoch >= it.since => match self.status_of(name, &view).await? {
                    (Some((node, entry)), _) if entry.epoch > it.after => match entry.condition {
                        Condition::Running | Condition::Completed => {
                            return Ok(running(name, &node, &entry));
                        }
                        Condition::Failing => return Err(failing(name, &node, &entry)),
                        Condition::Starting | Condition::Stopped => format!("{node} starts it"),
                    },
                    (_, pending_reason) => pending_reason,
                },
                // Another agent may have deployed it, of a later view.
                _ => "the group's view".to_owned(),
            };
            if last_note != pending_reason {
                pending.send_note(&format!("{name}: waiting: {pending_reason}"));
                last_note = pending_reason;
            }
            tokio::select! {
                _ = group_state.changed() => {}
                () = tokio::time::sleep(pause) => {}
                () = self.manager.stopped() => return Err(GroupRequestError::Stopped.into()),
            }
        }
    }

    /// The status of a workload on the node that has it, and what is waited for.
    async fn status_of(
        &self,
        name: &Name,
        view: &View,
    ) -> Result<(Option<(String, WorkloadStatus)>, String), RequestFailure> {
        let it = view
            .workloads
            .get(name)
            .ok_or_else(|| failure(format!("{name} was undeployed by another command")))?;
        // The group judges which node is dead. Until then each counts as live.
        let pending_reason = pending_reason(view, it, |_| true);
        let (Place::Assigned(id), None) = (it.place, &pending_reason) else {
            return Ok((None, pending_reason.unwrap_or_default()));
        };
        let node = view
            .member(id)
            .map_or_else(|| id.to_string(), |it| it.name.to_string());
        let entry = if id == self.manager.id() {
            self.tracker().entry(name).cloned()
        } else {
            self.status(id).await.workloads.remove(name.as_str())
        };
        let pending_reason = format!("{node} starts it");
        Ok((entry.map(|entry| (node, entry)), pending_reason))
    }

    /// What another node publishes of itself.
    pub(super) async fn status(&self, id: NodeId) -> NodeStatus {
        let (key, within) = (self.keys.heartbeat(id), self.manager.config().lease);
        let read = self.store.read(&key, within).await;
        let register = read.ok().and_then(|reading| reading.register);
        let heartbeat = register.and_then(|it| Heartbeat::decode(&it.value).ok());
        heartbeat.map_or_else(NodeStatus::default, |heartbeat| {
            NodeStatus::parse(&heartbeat.status)
        })
    }

    /// The node that a name or an id stands for.
    pub(super) fn resolve(&self, node: &str) -> Result<(NodeId, String), RequestFailure> {
        let view = self.view().ok_or(GroupRequestError::Stopped)?;
        let former = *self.former.lock().unwrap_or_else(PoisonError::into_inner);
        let it = resolve_node(&view, former, node).map_err(failure)?;
        Ok((it.id, it.name.to_string()))
    }
}

fn running(name: &Name, node: &str, entry: &WorkloadStatus) -> (String, Value) {
    let object = json!({ "workload": name.as_str(), "node": node, "fence": entry.epoch });
    let fence = entry.epoch;
    (format!("{name} runs on {node} with fence {fence}"), object)
}

fn failing(name: &Name, node: &str, entry: &WorkloadStatus) -> RequestFailure {
    let why = entry.why.as_deref().unwrap_or("for a reason unknown");
    failure(format!(
        "{name} would not start on {node}: {why}. It stays deployed and is tried again, there and \
         on other nodes; `tenure undeploy {name}` gives it up"
    ))
}
