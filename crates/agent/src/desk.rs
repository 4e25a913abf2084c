//! What an agent does for commands: deploying, undeploying, and waiting until
//! it is so. Draining has a file of its own, `drain.rs`.
//!
//! Each answer is for one request, which has *landed* when a view has it.
//! Until then a store that fails is asked again, for as long as the agent
//! lives; who waits, and for how long, is not decided here (`errand.rs`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tenure::Name;
use tenure::StoreError;
use tenure::ha::{AskError, Heartbeat, Keys, Manager, NodeId, Place, Refusal, Target, View};
use tenure::store::Store;
use tokio::sync::{Semaphore, watch};

use super::book::{Book, Condition, Entry, Status};
use super::control::{Ask, Deployed};
use super::errand::Errand;
use super::spec::Workload;
use super::wait::waits_for;
use super::which::which;
use super::wire::Restart;

/// What answers need.
pub(super) struct Desk {
    pub(super) manager: Arc<Manager>,
    pub(super) store: Arc<dyn Store>,
    pub(super) keys: Keys,
    pub(super) book: Mutex<Book>,
    /// The last id that this node gave up. The view may have it still.
    pub(super) former: Mutex<Option<NodeId>>,
    pub(super) permits: Arc<Semaphore>,
    /// What is asked and not yet in the view, or refused.
    pub(super) errands: Arc<Semaphore>,
    pub(super) trouble: watch::Sender<Option<Trouble>>,
}

impl Desk {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What keeps the agent from its group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Trouble {
    pub(super) why: String,
    /// A person must mend it: it does not pass by itself.
    pub(super) broken: bool,
}

pub(super) struct Wrong {
    pub(super) text: String,
    pub(super) usage: bool,
}

pub(super) fn wrong(text: impl Into<String>) -> Wrong {
    let text = text.into();
    Wrong { text, usage: false }
}

impl From<AskError> for Wrong {
    fn from(error: AskError) -> Self {
        let usage = matches!(
            error,
            AskError::Name { .. } | AskError::ConfigTooLong { .. } | AskError::Kind { .. }
        );
        let text = error.to_string();
        Self { text, usage }
    }
}

pub(super) type Done = Result<(String, Value), Wrong>;

impl Desk {
    pub(super) async fn answer(&self, asked: Ask, errand: &Errand) -> Done {
        match asked {
            Ask::Deploy { workload, wait } => self.deploy(&workload, wait, errand).await,
            Ask::Await(deployed) => {
                errand.lands();
                self.comes_to_run(&deployed, errand).await
            }
            Ask::Undeploy { name } => self.undeploy(&name, errand).await,
            Ask::Drain { node } => self.drain(node.as_deref(), errand).await,
        }
    }

    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.manager.group_state().borrow().view.clone()
    }

    pub(super) async fn joined(&self, errand: &Errand) -> Result<NodeId, AskError> {
        if !self.manager.group_state().borrow().member {
            errand.note("waiting: the agent has not joined its group yet");
        }
        self.manager.joined().await
    }

    async fn deploy(&self, workload: &Workload, wait: bool, errand: &Errand) -> Done {
        let _ = self.joined(errand).await?;
        let before = self.view().map_or(0, |view| view.epoch);
        self.place(workload, errand).await?;
        errand.lands();
        let since = self.view().map_or(0, |view| view.epoch);
        let deployed = Deployed {
            name: workload.name.clone(),
            restart: workload.restart,
            after: before,
            since,
        };
        if !wait {
            let name = &deployed.name;
            let waits = self.waits(name);
            let object = json!({
                "workload": name, "deployed": true, "after": before, "epoch": since,
                "waits_for": waits,
            });
            let waits = waits.map_or_else(String::new, |it| format!(", and waits: {it}"));
            return Ok((format!("{name} is deployed{waits}"), object));
        }
        self.comes_to_run(&deployed, errand).await
    }

    /// What a workload waits for that has just been deployed, if it cannot
    /// be begun now.
    fn waits(&self, name: &str) -> Option<String> {
        let (view, name) = (self.view()?, Name::new(name).ok()?);
        waits_for(&view, view.workloads.get(&name)?, |_| true)
    }

    /// Has a workload put into the view, however long that takes.
    async fn place(&self, workload: &Workload, errand: &Errand) -> Result<(), Wrong> {
        loop {
            let deployment = workload
                .deployment()
                .map_err(|text| Wrong { text, usage: true })?;
            let me = self.joined(errand).await?;
            let on = match &workload.node {
                Some(node) => Some(self.resolve(node)?.0),
                None if workload.ha => None,
                // Nobody else may be asked for what dies with its node.
                None => Some(me),
            };
            match self.manager.place(deployment, on).await {
                Ok(()) => return Ok(()),
                // It was fenced meanwhile, and comes back under another id.
                Err(AskError::Refused(Refusal::NoNode(id)))
                    if id == me && self.manager.id() != me => {}
                // Nothing was asked yet.
                Err(AskError::Store(error)) if !matches!(error, StoreError::Broken(_)) => {
                    errand.note(&format!("waiting: {error}"));
                    tokio::time::sleep(self.manager.config().interval).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn undeploy(&self, name: &str, errand: &Errand) -> Done {
        let _ = self.joined(errand).await?;
        self.manager.release(name).await?;
        errand.lands();
        let key = Name::new(name).map_err(|error| wrong(error.to_string()))?;
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
                    let waits_for = waits_for(view, it, |_| true).unwrap_or_default();
                    errand.note(&format!("{name}: waiting: {waits_for}"));
                }
                // It is another one of its name that is there, if one is.
                None => break,
            }
            tokio::select! {
                _ = group_state.changed() => {}
                () = self.manager.stopped() => return Err(AskError::Stopped.into()),
            }
        }
        let object = json!({ "workload": name, "undeployed": true });
        Ok((format!("{name} has ended, and its name is free"), object))
    }

    /// Waits until what was deployed runs, or has done so already.
    async fn comes_to_run(&self, it: &Deployed, errand: &Errand) -> Done {
        let name = Name::new(&it.name).map_err(|error| wrong(error.to_string()))?;
        let ran = self.runs(&name, it, errand).await;
        let gone = self
            .view()
            .is_some_and(|view| !view.workloads.contains_key(&name));
        if ran.is_err() && gone && it.restart != Restart::Always {
            // It was quicker than we are.
            let object = json!({ "workload": name.as_str(), "gone": true });
            return Ok((format!("{name} has ended, and is undeployed"), object));
        }
        ran
    }

    /// Waits until a workload runs as it was deployed.
    async fn runs(&self, name: &Name, it: &Deployed, errand: &Errand) -> Done {
        let mut group_state = self.manager.group_state();
        let pause = self.manager.config().interval / 4;
        let mut told = String::new();
        loop {
            let view = group_state.borrow_and_update().view.clone();
            let waits_for = match view {
                Some(view) if view.epoch >= it.since => match self.condition(name, &view).await? {
                    (Some((node, entry)), _) if entry.epoch > it.after => match entry.condition {
                        Condition::Running | Condition::Completed => {
                            return Ok(running(name, &node, &entry));
                        }
                        Condition::Failing => return Err(failing(name, &node, &entry)),
                        Condition::Starting | Condition::Stopped => format!("{node} starts it"),
                    },
                    (_, waits_for) => waits_for,
                },
                // It may be another agent than the one that deployed it.
                _ => "the group's view".to_owned(),
            };
            if told != waits_for {
                errand.tell(&format!("{name}: waiting: {waits_for}"));
                told = waits_for;
            }
            tokio::select! {
                _ = group_state.changed() => {}
                () = tokio::time::sleep(pause) => {}
                () = self.manager.stopped() => return Err(AskError::Stopped.into()),
            }
        }
    }

    /// How a workload is on the node that has it; else what is waited for.
    async fn condition(
        &self,
        name: &Name,
        view: &View,
    ) -> Result<(Option<(String, Entry)>, String), Wrong> {
        let it = view
            .workloads
            .get(name)
            .ok_or_else(|| wrong(format!("{name} was undeployed by somebody else")))?;
        // Who is silent is judged by the group; until then it counts as live.
        let waits_for = waits_for(view, it, |_| true);
        let (Place::Assigned(id), None) = (it.place, &waits_for) else {
            return Ok((None, waits_for.unwrap_or_default()));
        };
        let node = view
            .member(id)
            .map_or_else(|| id.to_string(), |it| it.name.to_string());
        let entry = if id == self.manager.id() {
            self.book().entry(name).cloned()
        } else {
            self.status(id).await.workloads.remove(name.as_str())
        };
        let waits_for = format!("{node} starts it");
        Ok((entry.map(|entry| (node, entry)), waits_for))
    }

    /// What another node says of itself.
    pub(super) async fn status(&self, id: NodeId) -> Status {
        let (key, within) = (self.keys.heartbeat(id), self.manager.config().lease);
        let read = self.store.read(&key, within).await;
        let register = read.ok().and_then(|reading| reading.register);
        let beat = register.and_then(|it| Heartbeat::decode(&it.value).ok());
        beat.map_or_else(Status::default, |beat| Status::parse(&beat.status))
    }

    /// The node that somebody means by a name or an id.
    pub(super) fn resolve(&self, node: &str) -> Result<(NodeId, String), Wrong> {
        let view = self.view().ok_or(AskError::Stopped)?;
        let former = *self.former.lock().unwrap_or_else(PoisonError::into_inner);
        let it = which(&view, former, node).map_err(wrong)?;
        Ok((it.id, it.name.to_string()))
    }
}

fn running(name: &Name, node: &str, entry: &Entry) -> (String, Value) {
    let object = json!({ "workload": name.as_str(), "node": node, "fence": entry.epoch });
    let fence = entry.epoch;
    (format!("{name} runs on {node} with fence {fence}"), object)
}

fn failing(name: &Name, node: &str, entry: &Entry) -> Wrong {
    let why = entry.why.as_deref().unwrap_or("for a reason unknown");
    wrong(format!(
        "{name} would not start on {node}: {why}. It stays deployed and is tried again, there and \
         on other nodes; `tenure undeploy {name}` gives it up"
    ))
}
