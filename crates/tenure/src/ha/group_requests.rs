//! Deploying and undeploying: a request that goes into the view, and waiting
//! until it is so.
//!
//! A request has taken effect when a view with it has landed. That a workload
//! *runs* comes after, and may take as long as the quorum does. Cancelling the
//! wait does not cancel the request.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::Name;
use tenure_group::{Place, Refusal, Request, Spec};

use super::content::{CONFIG_BYTES_MAX, Content};
use super::group_request_error::GroupRequestError;
use super::{Manager, NodeId};
use crate::drive;
use crate::error::StoreError;

/// What somebody wants to run: one instance, HA, with no config and no wishes,
/// unless said otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a deployment does nothing until it is given to `Manager::deploy`"]
pub struct Deployment {
    name: String,
    kind: String,
    config: Vec<u8>,
    instances: u32,
    ha: bool,
    order: u32,
    needs: Vec<String>,
}

impl Deployment {
    /// A workload of this name, made by the factory for this kind.
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: kind.into(),
            config: Vec::new(),
            instances: 1,
            ha: true,
            order: 0,
            needs: Vec::new(),
        }
    }

    /// What it is told wherever it starts: opaque bytes, by custom JSON, at
    /// most [`CONFIG_BYTES_MAX`].
    pub fn config(mut self, config: impl Into<Vec<u8>>) -> Self {
        self.config = config.into();
        self
    }

    /// How many of it, from 1 to [`INSTANCES_MAX`](super::INSTANCES_MAX).
    pub fn instances(mut self, instances: u32) -> Self {
        self.instances = instances;
        self
    }

    /// Whether it outlives its node and needs the quorum.
    pub fn ha(mut self, ha: bool) -> Self {
        self.ha = ha;
        self
    }

    /// Its place in the order of starts on one node: lower ones first.
    pub fn order(mut self, order: u32) -> Self {
        self.order = order;
        self
    }

    /// Adds a label that a node must have to run it.
    pub fn needs(mut self, label: impl Into<String>) -> Self {
        self.needs.push(label.into());
        self
    }

    fn content(&self) -> Result<Content, GroupRequestError> {
        let bytes = self.config.len();
        if bytes > CONFIG_BYTES_MAX {
            return Err(GroupRequestError::ConfigTooLong { bytes });
        }
        let kind = named("kind of workload", &self.kind)?;
        let config = self.config.as_slice().into();
        Ok(Content { kind, config })
    }

    fn spec(&self, content: &Content) -> Result<Spec, GroupRequestError> {
        let mut spec = Spec::new(named("workload", &self.name)?, content.digest());
        (spec.instances, spec.ha, spec.order) = (self.instances, self.ha, self.order);
        for label in &self.needs {
            spec.needs.push(named("label", label)?);
        }
        spec.content = Some(content.encode());
        Ok(spec)
    }
}

fn named(what: &'static str, text: &str) -> Result<Name, GroupRequestError> {
    Name::new(text).map_err(|source| GroupRequestError::Name { what, source })
}

impl Manager {
    /// Deploys a workload on this node, and waits until it runs here: until the
    /// node has joined, the group has its quorum (for an HA workload), and a
    /// start has succeeded. Returns its fence. A start that fails is told by
    /// [`Event::StartFailed`](super::Event::StartFailed) and tried again.
    /// Dropping this does not cancel the request.
    ///
    /// # Errors
    /// See [`GroupRequestError`].
    pub async fn deploy(&self, deployment: Deployment) -> Result<u64, GroupRequestError> {
        let spec = self.prepare(deployment).await?;
        loop {
            let id = self.joined().await?;
            match self.request(Request::Deploy(spec.clone(), Some(id))).await {
                // It was fenced meanwhile, and comes back under another id.
                Err(GroupRequestError::Refused(Refusal::NoNode(_))) if self.id() != id => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        self.runs_here(&spec.name).await
    }

    /// Deploys a workload on that node of the group, or on whichever fits, and
    /// returns when a view says so; it runs later. A workload that is not HA
    /// must be given a node.
    ///
    /// # Errors
    /// See [`GroupRequestError`].
    pub async fn place(
        &self,
        deployment: Deployment,
        on: Option<NodeId>,
    ) -> Result<(), GroupRequestError> {
        let spec = self.prepare(deployment).await?;
        self.request(Request::Deploy(spec, on)).await
    }

    /// Has another node, or this one, hand on all it has and leave. Returns
    /// when a view says so; the node leaves later.
    ///
    /// # Errors
    /// See [`GroupRequestError`].
    pub async fn drain_node(&self, id: NodeId) -> Result<(), GroupRequestError> {
        self.request(Request::Drain(id)).await
    }

    /// Sees to it that the store has the content, and says what to ask. The
    /// node writes it once more before the view names it (`docs/design/groups.md` §1.11);
    /// this first time tells trouble before anything is asked.
    async fn prepare(&self, deployment: Deployment) -> Result<Spec, GroupRequestError> {
        let content = deployment.content()?;
        let spec = deployment.spec(&content)?;
        if !self.registry.knows(&deployment.kind) {
            let (kind, known) = (deployment.kind, self.registry.described());
            return Err(GroupRequestError::Kind { kind, known });
        }
        self.publish(content).await?;
        Ok(spec)
    }

    /// Undeploys a workload, wherever in the group it is, and waits until it
    /// has ended and its name is free.
    ///
    /// # Errors
    /// See [`GroupRequestError`].
    pub async fn undeploy(&self, name: &str) -> Result<(), GroupRequestError> {
        self.request_undeploy(name).await?;
        let name = named("workload", name)?;
        let mut group_state = self.shared.group_state.subscribe();
        let gone = group_state.wait_for(|group_state| {
            let view = group_state.view.as_ref();
            view.is_some_and(|view| !view.workloads.contains_key(&name))
        });
        tokio::select! {
            _ = gone => Ok(()),
            () = self.stopped() => Err(GroupRequestError::Stopped),
        }
    }

    /// Asks for a workload to be undeployed, on any node. Returns when the request is
    /// in the view, before the workload has ended; [`undeploy`](Self::undeploy) waits
    /// for its end.
    ///
    /// # Errors
    /// See [`GroupRequestError`].
    pub async fn request_undeploy(&self, name: &str) -> Result<(), GroupRequestError> {
        let name = named("workload", name)?;
        self.request(Request::Undeploy(name)).await
    }

    /// Waits until the node is in the view of its group; returns its id.
    ///
    /// # Errors
    /// [`GroupRequestError::Stopped`] if it never will be.
    pub async fn joined(&self) -> Result<NodeId, GroupRequestError> {
        let mut group_state = self.shared.group_state.subscribe();
        tokio::select! {
            biased;
            () = self.stopped() => Err(GroupRequestError::Stopped),
            group_state = group_state.wait_for(|group_state| group_state.member) => {
                group_state.map(|group_state| group_state.id).map_err(|_| GroupRequestError::Stopped)
            }
        }
    }

    /// On the background thread, where calls of a store belong.
    async fn publish(&self, content: Content) -> Result<(), GroupRequestError> {
        let store = Arc::clone(&self.store);
        let (keys, within) = (self.keys.clone(), self.max_wait());
        let publishing = drive::background()
            .spawn(async move { content.publish(store.as_ref(), &keys, within).await });
        let published = publishing.await;
        let panicked = |_| StoreError::unknown("the store has panicked");
        Ok(published.map_err(panicked)??)
    }

    /// How long a call that is not a beat may take.
    fn max_wait(&self) -> Duration {
        self.config().lease
    }

    async fn request(&self, request: Request) -> Result<(), GroupRequestError> {
        let answer = self.shared.send_request(request)?;
        let answer = answer.await.map_err(|_| GroupRequestError::Stopped)?;
        Ok(answer?)
    }

    /// Waits until a workload that is in the view runs here.
    async fn runs_here(&self, name: &Name) -> Result<u64, GroupRequestError> {
        let mut group_state = self.shared.group_state.subscribe();
        let mut running = self.shared.running.subscribe();
        loop {
            if let Some(fence) = running.borrow_and_update().get(name) {
                return Ok(*fence);
            }
            {
                let group_state = group_state.borrow_and_update();
                if let Some(view) = &group_state.view {
                    let place = view.workloads.get(name).map(|it| it.place);
                    match place {
                        None => return Err(GroupRequestError::Undeployed),
                        Some(Place::Assigned(on)) if on != group_state.id => {
                            return Err(GroupRequestError::Elsewhere(on));
                        }
                        Some(_) => {}
                    }
                }
            }
            // The senders live as long as `self`.
            tokio::select! {
                _ = running.changed() => {}
                _ = group_state.changed() => {}
                () = self.stopped() => return Err(GroupRequestError::Stopped),
            }
        }
    }
}
