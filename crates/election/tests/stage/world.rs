//! Time and effects: what the actors ask for is carried out as their links
//! allow, and time moves from deadline to deadline.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use tenure_core::cas::Stamp;
use tenure_core::ids::Key;
use tenure_election::{Event, Failure, FailureClass, Input, Output};

use super::actor::{Actor, Asked, Effect, Kind, Link, Watch, What, answer, seen};
use super::args::Outcome;
use super::show::{Ids, time};
use super::store::Store;

/// More inputs and ticks than this at one instant are a machine that spins.
const SPIN: u32 = 1_000;

pub(crate) struct World {
    pub(crate) at: Duration,
    pub(crate) store: Store,
    pub(crate) actors: Vec<Actor>,
    pub(crate) ids: Ids,
    queue: VecDeque<(usize, Input)>,
    trace: String,
    /// Who led at once when it was last looked at.
    leading: Vec<String>,
    steps: u32,
    /// An actor that never comes to rest: the script fails.
    pub(crate) spins: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            at: Duration::ZERO,
            store: Store::new(),
            actors: Vec::new(),
            ids: Ids::new(),
            queue: VecDeque::new(),
            trace: String::new(),
            leading: Vec::new(),
            steps: 0,
            spins: false,
        }
    }

    pub(crate) fn actor(&mut self, name: &str) -> Outcome<usize> {
        let position = self.actors.iter().position(|actor| actor.name == name);
        position.ok_or_else(|| format!("there is no {name}").into())
    }

    /// What has happened since this was last asked.
    pub(crate) fn take_trace(&mut self) -> String {
        std::mem::take(&mut self.trace)
    }

    pub(crate) fn say(&mut self, line: &str) {
        let _ = writeln!(self.trace, "{} {line}", time(self.at));
    }

    fn say_of(&mut self, index: usize, line: &str) {
        let line = format!("{}: {line}", self.actors[index].name);
        self.say(&line);
    }

    pub(crate) fn send(&mut self, index: usize, input: Input) {
        self.queue.push_back((index, input));
    }

    /// Carries out everything that is due at this instant.
    pub(crate) fn settle(&mut self) {
        loop {
            for index in 0..self.actors.len() {
                self.drain_outputs(index);
            }
            self.serve_watches();
            let next = self.queue.pop_front().filter(|_| !self.spins);
            let Some((index, input)) = next else {
                return;
            };
            let at = self.at;
            let actor = &mut self.actors[index];
            if let Some(waiting) = &mut actor.suspended {
                waiting.push_back(input);
                continue;
            }
            let now = actor.now(at);
            actor.machine().handle(now, input);
            self.moved();
        }
    }

    /// Lets time pass, from deadline to deadline.
    pub(crate) fn advance_to(&mut self, target: Duration) {
        self.settle();
        loop {
            let awake = self.actors.iter().filter(|actor| actor.suspended.is_none());
            let due = awake.filter_map(|actor| actor.deadline().map(|at| actor.when(at)));
            let next = due.min().filter(|next| *next <= target && !self.spins);
            let Some(next) = next else {
                break;
            };
            if next > self.at {
                self.at = next;
                self.steps = 0;
            }
            for index in 0..self.actors.len() {
                self.tick_if_due(index);
            }
        }
        self.at = target;
        self.steps = 0;
        self.check_leaders();
    }

    fn tick_if_due(&mut self, index: usize) {
        let at = self.at;
        let actor = &mut self.actors[index];
        let due = actor.deadline().is_some_and(|due| actor.when(due) <= at);
        if due && actor.suspended.is_none() {
            let now = actor.now(at);
            actor.machine().tick(now);
            self.moved();
            self.settle();
        }
    }

    fn moved(&mut self) {
        self.steps += 1;
        self.spins |= self.steps >= SPIN;
        self.check_leaders();
    }

    /// The law of the whole project, after every step of every script.
    pub(crate) fn check_leaders(&mut self) {
        let at = self.at;
        let mut leading: Vec<(Key, String)> = Vec::new();
        for actor in &self.actors {
            let valid = actor
                .leadership()
                .is_some_and(|(_, grant)| grant.is_valid(actor.now(at).boot));
            if let (true, Kind::Campaign(campaign)) = (valid, &actor.kind) {
                let key = Key::of_election(&campaign.config().election);
                leading.push((key, actor.name.clone()));
            }
        }
        let twice = |key: &Key| leading.iter().filter(|(other, _)| other == key).count() > 1;
        let twice: Vec<String> = leading
            .iter()
            .filter(|(key, _)| twice(key))
            .map(|(_, name)| name.clone())
            .collect();
        if twice != self.leading {
            if !twice.is_empty() {
                let line = format!("!! {} LEAD AT ONCE", twice.join(" and "));
                self.say(&line);
            }
            self.leading = twice;
        }
    }

    fn drain_outputs(&mut self, index: usize) {
        if self.actors[index].suspended.is_some() {
            return;
        }
        let actor = &mut self.actors[index];
        if let Kind::Campaign(campaign) = &actor.kind {
            self.ids
                .note(campaign.id(), &actor.name, &mut actor.incarnations);
        }
        while let Some(output) = self.actors[index].machine().poll() {
            match output {
                Output::Event(event) => self.event(index, &event),
                Output::Read { call, key, .. } => {
                    let shown = match key.as_str() {
                        "elections/payroll" => format!("read #{}", call.0),
                        other => format!("read #{} of {other}", call.0),
                    };
                    self.request_read(index, call, What::Read(key), &shown);
                }
                Output::Write {
                    call, write, bind, ..
                } => {
                    let bound = if bind.is_some() { ", bound" } else { "" };
                    let shown = format!("#{} {}{bound}", call.0, self.ids.write(&write));
                    let session = self.session(index, bind.is_some());
                    let last = bind.map(|bind| bind.last);
                    self.request_read(index, call, What::Write(write, session, last), &shown);
                }
                Output::Confirm { call, .. } => {
                    let actor = &self.actors[index];
                    let what = What::Confirm(actor.session, actor.now(self.at).boot);
                    self.request_read(index, call, what, &format!("#{} confirm", call.0));
                }
                Output::Release => {
                    if let Some(session) = self.actors[index].session.take() {
                        self.say_of(index, "releases what it has bound");
                        self.end_session(session);
                    }
                }
            }
        }
    }

    /// The session of an actor, and a new one if it has none that lives.
    fn session(&mut self, index: usize, wanted: bool) -> Option<usize> {
        let sessions = &mut self.store.sessions;
        let known = self.actors[index].session;
        let alive = known.filter(|session| sessions.is_alive(*session));
        let session = match (alive, wanted) {
            (None, true) => Some(sessions.open()),
            (Some(alive), _) => Some(alive),
            (None, false) => known,
        };
        self.actors[index].session = session;
        session
    }

    /// Ends a session: what it held is vacated.
    pub(crate) fn end_session(&mut self, session: usize) {
        for (key, last) in self.store.sessions.end(session) {
            self.store.put(self.at, &key, last, Stamp::Now);
            let shown = self.ids.register(self.store.registers.read(&key));
            self.say(&format!("{key}: {shown}"));
        }
    }

    fn event(&mut self, index: usize, event: &Event) {
        let shown = self.ids.event(&self.actors[index], event);
        self.say_of(index, &shown);
        let ends = matches!(event, Event::Draining { .. } | Event::Ousted { .. });
        if ends && self.actors[index].obedient {
            self.send(index, Input::Drained);
        }
    }

    fn request_read(&mut self, index: usize, call: tenure_election::Call, what: What, shown: &str) {
        let link = self.actors[index].link;
        let mut asked = Asked {
            call,
            what,
            effect: None,
            answered: link != Link::Held,
        };
        let carried_out = matches!(link, Link::Up | Link::Deaf);
        if carried_out {
            let clock = self.actors[index].clock;
            asked.effect = Some(self.store.carry_out(self.at, clock, &asked.what));
        }
        let result = asked.effect.as_ref().map(|effect| self.ids.effect(effect));
        let outcome = match link {
            Link::Up => format!(" → {}", result.unwrap_or_default()),
            Link::Held => " …".to_string(),
            Link::Silent => " → lost".to_string(),
            Link::Deaf => format!(" → {}, answer lost", result.unwrap_or_default()),
            Link::Unavailable => " → unavailable".to_string(),
            Link::Unknown => " → unknown".to_string(),
            Link::Broken => " → broken".to_string(),
        };
        self.say_of(index, &format!("{shown}{outcome}"));
        let class = match link {
            Link::Up => {
                if let Some(effect) = asked.effect.clone() {
                    self.send(index, answer(call, effect));
                }
                None
            }
            Link::Unavailable => Some(FailureClass::Unavailable),
            Link::Unknown => Some(FailureClass::Unknown),
            Link::Broken => Some(FailureClass::Broken),
            Link::Held | Link::Silent | Link::Deaf => None,
        };
        if let Some(class) = class {
            let failed = failure(&asked, class);
            self.send(index, failed);
        }
        self.actors[index].calls.push(asked);
    }

    /// Carries out a held call in the store, without answering it.
    pub(crate) fn land(&mut self, index: usize, call: Option<u64>) -> Outcome<()> {
        let (at, clock) = (self.at, self.actors[index].clock);
        let asked = self.actors[index].asked(call).ok_or("no such call")?;
        if asked.effect.is_some() {
            return Err("it has been carried out already".into());
        }
        let effect = self.store.carry_out(at, clock, &asked.what);
        let shown = format!(
            "#{} takes effect → {}",
            asked.call.0,
            self.ids.effect(&effect)
        );
        asked.effect = Some(effect);
        self.say_of(index, &shown);
        Ok(())
    }

    /// Answers a held call with what came of it, carrying it out if need be.
    pub(crate) fn reply(&mut self, index: usize, call: Option<u64>) -> Outcome<()> {
        let (at, clock) = (self.at, self.actors[index].clock);
        let asked = self.actors[index].asked(call).ok_or("no such call")?;
        let what = &asked.what;
        let effect = asked
            .effect
            .get_or_insert_with(|| self.store.carry_out(at, clock, what))
            .clone();
        asked.answered = true;
        let call = asked.call;
        let shown = format!("#{} → {}", call.0, self.ids.effect(&effect));
        self.say_of(index, &shown);
        self.send(index, answer(call, effect));
        Ok(())
    }

    /// Answers a held call with a failure, whatever came of it.
    pub(crate) fn fail(
        &mut self,
        index: usize,
        call: Option<u64>,
        class: FailureClass,
    ) -> Outcome<()> {
        let asked = self.actors[index].asked(call).ok_or("no such call")?;
        asked.answered = true;
        let shown = format!("#{} → {class}", asked.call.0);
        let input = failure(asked, class);
        self.say_of(index, &shown);
        self.send(index, input);
        Ok(())
    }

    /// Answers a held read with one bit of the register's bytes turned.
    pub(crate) fn garble(&mut self, index: usize, call: Option<u64>) -> Outcome<()> {
        let (at, clock) = (self.at, self.actors[index].clock);
        let asked = self.actors[index].asked(call).ok_or("no such call")?;
        let Effect::Read(mut reading) = self.store.carry_out(at, clock, &asked.what) else {
            return Err("only the answer to a read can be garbled".into());
        };
        asked.answered = true;
        let call = asked.call;
        if let Some(register) = &mut reading.register {
            let mut bytes = register.value.to_vec();
            bytes[20] ^= 1;
            register.value = bytes.into();
        }
        self.say_of(index, &format!("#{} → garbled", call.0));
        self.send(index, answer(call, Effect::Read(reading)));
        Ok(())
    }

    fn serve_watches(&mut self) {
        for change in self.store.unserved() {
            for index in 0..self.actors.len() {
                let actor = &self.actors[index];
                if actor.watch == Watch::On && actor.follows(&change.key) {
                    self.send(index, seen(&change.key, change.register.clone()));
                }
            }
        }
    }
}

fn failure(asked: &Asked, class: FailureClass) -> Input {
    let failed = Failure::new(class, "the script says so");
    let call = asked.call;
    match asked.what {
        What::Read(_) => Input::Read {
            call,
            result: Err(failed),
        },
        What::Write(..) => answer(call, Effect::Wrote(Err(failed))),
        What::Confirm(..) => answer(call, Effect::Confirmed(Err(failed))),
    }
}
