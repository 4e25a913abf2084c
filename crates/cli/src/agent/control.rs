//! The control socket: how commands on this machine speak to an agent.
//!
//! A connection is a greeting, one request and its answers: notes while it is
//! waited for, and one last word. An agent that does not greet is stopped or
//! starved; it is asked nothing, so that it does nothing when it goes on. Only the agent's user can reach the socket (`place.rs`).
//! At most [`CONNECTIONS_MAX`] are served at a time; more wait. A command that
//! goes away takes nothing back.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::Name;
use tenure::ha::{AskError, Heartbeat, Keys, Manager, NodeId, Place, View};
use tenure::store::Store;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::book::{Book, Condition, Entry, Status};
use super::place::{self, CONTROL, Door};
use super::spec::Workload;
use super::wait::waits_for;
use super::wire::{Restart, Wire};
use crate::failure::{Failure, usage};

/// How many commands are served at a time.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// How long an agent may take to greet.
const GREETING: Duration = Duration::from_secs(3);

/// What a command asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub(crate) enum Ask {
    /// Run this, and wait until it does.
    Deploy { workload: Box<Workload>, wait: bool },
    /// Wait until it runs that was deployed before.
    Await(Box<Deployed>),
    /// End it, wherever it is, and wait until it has.
    Undeploy { name: String },
    /// Have a node, this one by default, hand everything on and leave.
    Drain { node: Option<String> },
}

/// What has been deployed, for whoever waits for it later.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Deployed {
    pub(crate) name: String,
    pub(crate) restart: Restart,
    /// An epoch from before it was: what ran then was another of its name.
    pub(crate) after: u64,
    /// The first epoch that this agent knows to have it.
    pub(crate) since: u64,
}

/// What an agent answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The first word: go ahead.
    Hello,
    /// What is being waited for.
    Note { text: String },
    /// The last word: it is done.
    Done { text: String, object: Value },
    /// The last word: it is not.
    Failed { text: String, usage: bool },
}

/// Asks an agent of this group on this machine; of `via`, if that is named.
/// Notes are handed on as they come.
pub(crate) async fn ask(
    root: &Path,
    group: &str,
    via: Option<&str>,
    ask: &Ask,
    mut note: impl FnMut(&str),
) -> Result<(String, Value), Failure> {
    // Which of several would be drained is not for the alphabet to say.
    let alone = matches!(ask, Ask::Drain { node: None });
    let mut wire = connect(root, group, via, alone).await?;
    wire.queue(ask);
    loop {
        match wire.next::<Answer>().await? {
            Some(Answer::Hello) => {}
            Some(Answer::Note { text }) => note(&text),
            Some(Answer::Done { text, object }) => return Ok((text, object)),
            Some(Answer::Failed { text, usage: true }) => return Err(usage(text)),
            Some(Answer::Failed { text, .. }) => {
                return Err(Failure::Other(anyhow::anyhow!("{text}")));
            }
            None => {
                return Err(Failure::Other(anyhow::anyhow!(
                    "expected an answer of the agent, found that it has ended; whether it was \
                     done can be seen with `tenure ps`"
                )));
            }
        }
    }
}

/// To the first agent that answers; if it is to be `alone`, none if a second
/// one does.
async fn connect(
    root: &Path,
    group: &str,
    via: Option<&str>,
    alone: bool,
) -> Result<Wire, Failure> {
    let directory = place::of_group(root, group);
    let nodes = match via {
        Some(name) => vec![place::of_node(root, group, name)],
        None => {
            let entries = std::fs::read_dir(&directory).into_iter().flatten();
            let mut nodes: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            nodes.sort();
            nodes
        }
    };
    let (mut mute, mut found) = (Vec::new(), Vec::new());
    for node in nodes {
        let Ok(door) = Door::open(&node) else {
            continue;
        };
        let Ok(stream) = door.connect(CONTROL).await else {
            continue;
        };
        let mut wire = Wire::new(stream);
        let greeting = tokio::time::timeout(GREETING, wire.next::<Answer>()).await;
        if matches!(greeting, Ok(Ok(Some(Answer::Hello)))) {
            if !alone {
                return Ok(wire);
            }
            found.push((node, wire));
            continue;
        }
        mute.push(node.display().to_string());
    }
    if found.len() > 1 {
        let name = |(node, _): &(PathBuf, Wire)| {
            let name = node.file_name().map(|it| it.to_string_lossy().into_owned());
            name.unwrap_or_default()
        };
        let names: Vec<String> = found.iter().map(name).collect();
        return Err(usage(format!(
            "expected NODE or --via where several agents of group {group} run on this machine, \
             found neither, and {}; nothing was asked",
            names.join(", ")
        )));
    }
    if let Some((_, wire)) = found.pop() {
        return Ok(wire);
    }
    if !mute.is_empty() {
        let mute = mute.join(", ");
        return Err(Failure::Other(anyhow::anyhow!(
            "expected an agent to answer within {GREETING:?}, found that none does: {mute}; \
             nothing was asked"
        )));
    }
    let named = via.map_or_else(String::new, |name| format!(" of name {name}"));
    Err(usage(format!(
        "expected an agent{named} of group {group} on this machine, found none below {}; start \
         one with `tenure node --group {group}`, or ask where one runs",
        directory.display()
    )))
}

/// What answers need.
pub(super) struct Desk {
    pub(super) manager: Arc<Manager>,
    pub(super) store: Arc<dyn Store>,
    pub(super) keys: Keys,
    pub(super) book: Mutex<Book>,
    /// The last id that this node gave up. The view may have it still.
    pub(super) former: Mutex<Option<NodeId>>,
    pub(super) permits: Arc<Semaphore>,
}

impl Desk {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves until this is dropped.
pub(super) async fn serve(listener: UnixListener, desk: Arc<Desk>) {
    loop {
        let Ok(permit) = Arc::clone(&desk.permits).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors: those that are open will end.
                tracing::warn!("the control socket: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let desk = Arc::clone(&desk);
        tokio::spawn(async move {
            attend(Wire::new(stream), &desk).await;
            drop(permit);
        });
    }
}

async fn attend(mut wire: Wire, desk: &Desk) {
    wire.queue(&Answer::Hello);
    let asked = match wire.next::<Ask>().await {
        Ok(Some(asked)) => asked,
        Ok(None) => return,
        Err(error) => {
            let text = format!("expected a request that this version understands: {error}");
            wire.queue(&Answer::Failed { text, usage: true });
            let _ = wire.flush().await;
            return;
        }
    };
    let (note, mut notes) = unbounded_channel();
    let mut work = std::pin::pin!(desk.answer(asked, note));
    let answer = loop {
        tokio::select! {
            answer = &mut work => break answer,
            Some(text) = notes.recv() => wire.queue(&Answer::Note { text }),
            // It says nothing more; its end is the end of waiting.
            more = wire.next::<Ask>() => if !matches!(more, Ok(Some(_))) {
                return;
            },
        }
    };
    while let Ok(text) = notes.try_recv() {
        wire.queue(&Answer::Note { text });
    }
    wire.queue(&match answer {
        Ok((text, object)) => Answer::Done { text, object },
        Err(Wrong { text, usage }) => Answer::Failed { text, usage },
    });
    let _ = wire.flush().await;
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
pub(super) type Notes = UnboundedSender<String>;

impl Desk {
    async fn answer(&self, asked: Ask, note: Notes) -> Done {
        match asked {
            Ask::Deploy { workload, wait } => self.deploy(&workload, wait, &note).await,
            Ask::Await(deployed) => self.comes_to_run(&deployed, &note).await,
            Ask::Undeploy { name } => {
                self.manager.undeploy(&name).await?;
                let object = json!({ "workload": name, "undeployed": true });
                Ok((format!("{name} has ended, and its name is free"), object))
            }
            Ask::Drain { node } => self.drain(node.as_deref(), &note).await,
        }
    }

    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.manager.sight().borrow().view.clone()
    }

    pub(super) async fn joined(&self, note: &Notes) -> Result<NodeId, AskError> {
        if !self.manager.sight().borrow().member {
            let _ = note.send("waiting: the agent has not joined its group yet".into());
        }
        self.manager.joined().await
    }

    async fn deploy(&self, workload: &Workload, wait: bool, note: &Notes) -> Done {
        let deployment = workload
            .deployment()
            .map_err(|text| Wrong { text, usage: true })?;
        let me = self.joined(note).await?;
        let on = match &workload.node {
            Some(node) => Some(self.resolve(node)?.0),
            None if workload.ha => None,
            // Nobody else may be asked for what dies with its node.
            None => Some(me),
        };
        let before = self.view().map_or(0, |view| view.epoch);
        self.manager.place(deployment, on).await?;
        let since = self.view().map_or(0, |view| view.epoch);
        let deployed = Deployed {
            name: workload.name.clone(),
            restart: workload.restart,
            after: before,
            since,
        };
        if !wait {
            let name = &deployed.name;
            let object =
                json!({ "workload": name, "deployed": true, "after": before, "epoch": since });
            return Ok((format!("{name} is deployed"), object));
        }
        self.comes_to_run(&deployed, note).await
    }

    /// Waits until what was deployed runs, or has done so already.
    async fn comes_to_run(&self, it: &Deployed, note: &Notes) -> Done {
        let name = Name::new(&it.name).map_err(|error| wrong(error.to_string()))?;
        let ran = self.runs(&name, it, note).await;
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
    async fn runs(&self, name: &Name, it: &Deployed, note: &Notes) -> Done {
        let mut sight = self.manager.sight();
        let pause = self.manager.config().interval / 4;
        let mut told = String::new();
        loop {
            let view = sight.borrow_and_update().view.clone();
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
                let _ = note.send(format!("{name}: waiting: {waits_for}"));
                told = waits_for;
            }
            tokio::select! {
                _ = sight.changed() => {}
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
    async fn status(&self, id: NodeId) -> Status {
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
        let fits = |it: &&tenure::ha::Member| {
            let named = it.name.as_str() == node || it.id.to_string() == node;
            named && Some(it.id) != former
        };
        let found: Vec<_> = view.members.iter().filter(fits).collect();
        match found.as_slice() {
            [one] => Ok((one.id, one.name.to_string())),
            [] => {
                let names: Vec<&str> = view.members.iter().map(|it| it.name.as_str()).collect();
                let names = names.join(", ");
                Err(wrong(format!(
                    "expected a node of the group ({names}), found {node}"
                )))
            }
            more => {
                let ids: Vec<String> = more.iter().map(|it| it.id.to_string()).collect();
                let ids = ids.join(", ");
                Err(wrong(format!(
                    "expected one node called {node}, found {}; name one by its id: {ids}",
                    more.len()
                )))
            }
        }
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
