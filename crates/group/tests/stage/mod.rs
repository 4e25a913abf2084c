//! The stage on which the scripts of `tests/scripts` are played: nodes of
//! one group with their guardians, one store, and time that moves from
//! deadline to deadline. Routine is not told: beats, polls and reads.

mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use tenure_core::Machine as _;
use tenure_core::cas::{Reading, Register, Registers, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::{Instant, Now, WallTime};
use tenure_election::{Call, Failure, FailureClass, Grant};
use tenure_group::{
    Event, Heartbeat, Input, KeyPage, Keys, Node, NodeId, Order, Output, Place, Plant, Run, Target,
    View,
};

/// How many registers a page of the store has.
const PAGE: usize = 3;

/// How a node reaches the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    /// Nothing arrives and nothing is answered.
    Cut,
    /// Writes wait until the script lets them land.
    Held,
    /// Those of the view wait.
    HeldView,
    /// Writes take effect, and the answer says that this is not known.
    Vague,
    /// Writes are answered with a conflict, and do nothing.
    Denied,
}

#[derive(Clone)]
enum Op {
    Read(Key),
    List(String),
    Page(String, Option<Key>),
    Write(Write),
    Delete(Key, Version),
}

/// A node, its guardian, and what it runs.
pub(crate) struct Actor {
    name: String,
    config: tenure_group::Config,
    node: Option<Node>,
    link: Link,
    watch: bool,
    suspended: bool,
    /// Work that does not care to be told to stop.
    stubborn: bool,
    works: BTreeMap<Run, Order>,
    run_deadline: Instant,
    file: Option<(NodeId, Grant)>,
    /// What was held, and in which life of the node it was asked.
    held: VecDeque<(u64, Call, Op)>,
    life: u64,
    inbox: VecDeque<Input>,
}

pub(crate) struct Stage {
    at: Duration,
    store: Registers,
    actors: Vec<Actor>,
    ids: BTreeMap<NodeId, String>,
    failing: BTreeSet<String>,
    /// Copies of registers that may come back, by whose they are and what.
    kept: BTreeMap<(usize, String), (Key, Register)>,
    seed: u64,
    tickets: u64,
    trace: String,
    /// The mistake that all nodes make, if any.
    plant: Plant,
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            at: Duration::ZERO,
            store: Registers::new(0),
            actors: Vec::new(),
            ids: BTreeMap::new(),
            failing: BTreeSet::new(),
            kept: BTreeMap::new(),
            seed: 0,
            tickets: 0,
            trace: String::new(),
            plant: Plant::NONE,
        }
    }
}

impl Stage {
    /// One whose nodes make a mistake.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn with(bug: tenure_group::Bug) -> Self {
        Self {
            plant: Plant::of(Some(bug)),
            ..Self::default()
        }
    }

    fn say(&mut self, line: &str) {
        let seconds = self.at.as_micros() as f64 / 1e6;
        let _ = writeln!(self.trace, "{seconds}s {line}");
    }

    /// All clocks of a script agree; drift is the simulator's business.
    fn now(&self) -> Now {
        Now {
            boot: Instant::from_nanos(self.at.as_nanos() as u64 + 1_000_000_000_000),
            wall: WallTime::from_millis(0),
        }
    }

    fn id(&self, id: NodeId) -> String {
        self.ids.get(&id).cloned().unwrap_or_else(|| "?".into())
    }

    /// Gives a name to an id that is seen for the first time.
    fn name_id(&mut self, index: usize) {
        let Some(id) = self.actors[index].node.as_ref().map(Node::id) else {
            return;
        };
        if !self.ids.contains_key(&id) {
            let name = self.actors[index].name.clone();
            let lives = self
                .ids
                .values()
                .filter(|label| label.trim_end_matches(|c: char| c.is_ascii_digit()) == name);
            let label = format!("{name}{}", lives.count() + 1);
            self.ids.insert(id, label);
        }
    }

    /// Carries out everything that is due at this instant.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut quiet = true;
            for index in 0..self.actors.len() {
                if self.actors[index].suspended {
                    continue;
                }
                while let Some(input) = self.actors[index].inbox.pop_front() {
                    quiet = false;
                    let now = self.now();
                    if let Some(node) = &mut self.actors[index].node {
                        node.handle(now, input);
                    }
                    self.outputs(index);
                }
                self.outputs(index);
            }
            let waits = |actor: &Actor| !actor.suspended && !actor.inbox.is_empty();
            if quiet && !self.actors.iter().any(waits) {
                return;
            }
        }
        self.say("!! it never comes to rest");
    }

    /// Lets time pass, from deadline to deadline.
    fn advance_to(&mut self, target: Duration) {
        self.settle();
        let base = 1_000_000_000_000;
        loop {
            let awake = self.actors.iter().filter(|actor| !actor.suspended);
            let nodes = awake.filter_map(|actor| actor.node.as_ref().and_then(Node::deadline));
            let working = self.actors.iter().filter(|actor| !actor.works.is_empty());
            let deadlines = working.map(|actor| actor.run_deadline);
            let next = nodes.chain(deadlines).min().unwrap_or(Instant::MAX);
            let next = Duration::from_nanos(next.as_nanos().saturating_sub(base));
            if next > target {
                break;
            }
            self.at = next.max(self.at);
            self.guard();
            for index in 0..self.actors.len() {
                let now = self.now();
                let actor = &mut self.actors[index];
                if let Some(node) = actor.node.as_mut().filter(|_| !actor.suspended)
                    && node.deadline().is_some_and(|at| at <= now.boot)
                {
                    node.tick(now);
                }
            }
            self.settle();
        }
        self.at = target;
    }

    /// Guardians look at the clock, whatever their nodes do.
    fn guard(&mut self) {
        let now = self.now().boot;
        for index in 0..self.actors.len() {
            if now < self.actors[index].run_deadline || self.actors[index].works.is_empty() {
                continue;
            }
            let runs: Vec<Run> = self.actors[index].works.keys().copied().collect();
            for run in runs {
                self.end(index, run, "its guardian kills", None);
            }
        }
    }

    fn outputs(&mut self, index: usize) {
        self.name_id(index);
        loop {
            let output = self.actors[index].node.as_mut().and_then(Node::poll);
            self.name_id(index);
            match output {
                None => return,
                Some(Output::Read { call, key, .. }) => self.call(index, call, Op::Read(key)),
                Some(Output::List { call, prefix, .. }) => self.call(index, call, Op::List(prefix)),
                Some(Output::Page {
                    call,
                    prefix,
                    after,
                    ..
                }) => self.call(index, call, Op::Page(prefix, after)),
                Some(Output::Write { call, write, .. }) => self.call(index, call, Op::Write(write)),
                Some(Output::Delete {
                    call, key, version, ..
                }) => self.call(index, call, Op::Delete(key, version)),
                Some(Output::Deploy(order)) => self.begin(index, order),
                Some(Output::Undeploy { run }) => {
                    if self.actors[index].stubborn {
                        self.say_of(index, "its work does not stop");
                    } else {
                        self.end(index, run, "ends", None);
                    }
                }
                Some(Output::Kill { run }) => self.end(index, run, "kills", None),
                Some(Output::Event(event)) => self.event(index, event),
            }
        }
    }

    fn say_of(&mut self, index: usize, line: &str) {
        let line = format!("{}: {line}", self.actors[index].name);
        self.say(&line);
    }

    fn event(&mut self, index: usize, event: Event) {
        match &event {
            Event::Beat { grant } => {
                let actor = &mut self.actors[index];
                actor.run_deadline = grant.kill_at;
                actor.file = actor.node.as_ref().map(|node| (node.id(), *grant));
                return;
            }
            Event::Stopped => self.actors[index].file = None,
            Event::Deployed { .. } | Event::Undeployed { .. } | Event::Recovered => return,
            _ => {}
        }
        let mut text = format!("{event:?}");
        for (id, label) in &self.ids {
            text = text.replace(&id.to_string(), label);
        }
        self.say_of(index, &text);
    }

    fn begin(&mut self, index: usize, order: Order) {
        let (run, name) = (order.run, order.name.to_string());
        if self.failing.contains(&name) {
            self.say_of(index, &format!("cannot start {name}"));
            let failed = Some("the script says so".into());
            return self.actors[index]
                .inbox
                .push_back(Input::Ended { run, failed });
        }
        let line = format!("starts {name} x{}, fence {}", order.instances, order.fence);
        self.say_of(index, &line);
        self.actors[index].works.insert(run, order);
        self.actors[index].inbox.push_back(Input::Started { run });
        let works = self.actors.iter().flat_map(|actor| actor.works.values());
        if works.filter(|work| work.name.as_str() == name).count() > 1 {
            self.say(&format!("!! {name} RUNS TWICE"));
        }
    }

    fn end(&mut self, index: usize, run: Run, how: &str, failed: Option<&str>) {
        if let Some(order) = self.actors[index].works.remove(&run) {
            self.say_of(index, &format!("{how} {}", order.name));
            let failed = failed.map(Into::into);
            self.actors[index]
                .inbox
                .push_back(Input::Ended { run, failed });
        }
    }

    fn call(&mut self, index: usize, call: Call, op: Op) {
        let write = matches!(op, Op::Write(_));
        let keys = Keys::of(self.actors[index].config.group.clone());
        let of_view = matches!(&op, Op::Write(write) if write.key == keys.view());
        let holds = match self.actors[index].link {
            Link::Held => write,
            Link::HeldView => of_view,
            Link::Up | Link::Cut | Link::Vague | Link::Denied => false,
        };
        match self.actors[index].link {
            Link::Cut => {}
            Link::Held | Link::HeldView if holds => {
                let life = self.actors[index].life;
                self.actors[index].held.push_back((life, call, op));
            }
            Link::Vague if write => {
                self.apply(index, call, &op);
                let result = Err(Failure::new(FailureClass::Unknown, "who knows"));
                self.actors[index]
                    .inbox
                    .push_back(Input::Wrote { call, result });
            }
            Link::Denied if write => {
                self.say_of(index, "is denied a write");
                let why = "somebody wrote first";
                let result = Err(Failure::new(FailureClass::Conflict, why));
                self.actors[index]
                    .inbox
                    .push_back(Input::Wrote { call, result });
            }
            Link::Up | Link::Held | Link::HeldView | Link::Vague | Link::Denied => {
                let input = self.apply(index, call, &op);
                self.actors[index].inbox.push_back(input);
            }
        }
    }

    fn apply(&mut self, index: usize, call: Call, op: &Op) -> Input {
        let conflict = || Failure::new(FailureClass::Conflict, "somebody wrote first");
        match op {
            Op::Read(key) => {
                let (register, now) = (self.store.read(key).cloned(), None);
                let result = Ok(Reading {
                    register,
                    now,
                    bound: None,
                });
                Input::Read { call, result }
            }
            Op::List(prefix) => {
                let listed = self.store.list(prefix);
                let result = Ok(listed.map(|(key, it)| (key.clone(), it.clone())).collect());
                Input::Listed { call, result }
            }
            Op::Page(prefix, after) => {
                let mut left = self.store.list_after(prefix, after.as_ref());
                let page = left.by_ref().take(PAGE);
                let page = page.map(|(key, it)| (key.clone(), it.version.clone()));
                let registers = page.collect();
                let more = left.next().is_some();
                let result = Ok(KeyPage { registers, more });
                Input::Paged { call, result }
            }
            Op::Write(write) => {
                let result = self.store.compare_and_swap(write.clone(), None);
                match &result {
                    Ok(_) => self.written(index, &write.key),
                    Err(_) => {
                        self.say_of(index, &format!("conflict on {}", self.short(&write.key)));
                    }
                }
                let result = result.map_err(|_| conflict());
                Input::Wrote { call, result }
            }
            Op::Delete(key, version) => {
                let result = self.store.delete(key, version).map_err(|_| conflict());
                if result.is_ok() {
                    self.written(index, key);
                }
                Input::Deleted { call, result }
            }
        }
    }

    fn short(&self, key: &Key) -> String {
        let groups = self.actors.iter().map(|actor| actor.config.group.clone());
        if let Some((_, digest)) = key.as_str().split_once("/content/") {
            return format!("the content {digest}");
        }
        let node = groups.filter_map(|group| Keys::of(group).node(key)).next();
        node.map_or_else(
            || "the view".into(),
            |id| format!("the heartbeat of {}", self.id(id)),
        )
    }

    /// A register has changed: tell it if it is no routine, and tell watches.
    fn written(&mut self, index: usize, key: &Key) {
        let register = self.store.read(key).cloned();
        let shown = match &register {
            None => Some(format!("deletes {}", self.short(key))),
            Some(it) => match (View::decode(&it.value), Heartbeat::decode(&it.value)) {
                (Ok(view), _) => Some(self.show(&view)),
                _ if key.as_str().contains("/content/") => {
                    Some(format!("writes {}", self.short(key)))
                }
                (_, Ok(beat)) if beat.dead.is_some() => {
                    Some(format!("declares {} dead", self.id(beat.node)))
                }
                _ => None,
            },
        };
        if let Some(shown) = shown {
            self.say_of(index, &shown);
        }
        for actor in self.actors.iter_mut().filter(|actor| actor.watch) {
            if actor.node.is_some() && actor.link != Link::Cut {
                let (key, register) = (key.clone(), register.clone());
                actor.inbox.push_back(Input::Seen { key, register });
            }
        }
    }

    fn show(&self, view: &View) -> String {
        let mut text = format!("view {}:", view.epoch);
        if view.group.as_str() != "shop" {
            text = format!("{} {text}", view.group);
        }
        for member in &view.members {
            let ha = if member.ha { "" } else { " (not HA)" };
            let drains = if member.draining { " (draining)" } else { "" };
            let _ = write!(text, " {}{ha}{drains}", self.id(member.id));
        }
        for digest in &view.marks {
            let _ = write!(text, ", {digest} is marked");
        }
        for (name, it) in &view.workloads {
            let place = match it.place {
                Place::Waiting => "waits".to_string(),
                Place::Assigned(node) => self.id(node),
                Place::Releasing { from, to } => {
                    let to = match to {
                        Target::Node(node) => self.id(node),
                        Target::Anyone => "anyone".into(),
                        Target::Nowhere => "nowhere".into(),
                    };
                    format!("{} → {to}", self.id(from))
                }
            };
            let _ = write!(text, ", {name}: {place}");
        }
        text
    }
}
