//! One node of a group as a machine (§2).
//!
//! ```text
//!            heartbeat created,            told to leave, or
//!            view swapped                  drained of everything
//!  joining ──────────────────────> member ─────────────────────> leaving ──> stopped
//!     ^  ^                            │          work ended, view swapped,
//!     │  │ resuming: a beat in time ──┘          heartbeat deleted
//!     │  └ (else)
//!     └────────── fenced <── unconfirmed until drain_at, judged dead, removed
//!        under a new id, once everything has ended
//! ```
//!
//! The parts are [`pulse`](super::pulse) (the own heartbeat),
//! [`roll`](super::roll) (the view), [`judge`](super::judge) (the others) and
//! [`plan`](super::plan) (what ought to run here); this file lets them hear of
//! each other. What may run is decided in one place: [`Node::is_open`].

use alloc::collections::{BTreeMap, BTreeSet};

use tenure_core::cas::Bytes;
use tenure_core::ids::{Key, Name};
use tenure_core::machine::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{Instant, Now};
use tenure_election::Grant;

use super::content::{Collector, Shelf};
use super::desk::{Desk, Pending};
use super::edit::Refusal;
use super::heartbeat::STATUS_BYTES_MAX;
use super::judge::Judge;
use super::past::Past;
use super::plan::{HEALTHY, Jobs, Phase};
use super::pulse::{Pulse, Pulsed};
use super::roll::Roll;
use super::types::{Command, Event, Input, Output, Run, Why};
use super::view::View;
use super::{Bug, Config, NodeId};

/// One node of one group.
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) desk: Desk,
    pub(super) pulse: Pulse,
    pub(super) roll: Roll,
    pub(super) judge: Judge,
    pub(super) shelf: Shelf,
    pub(super) collector: Collector,
    pub(super) jobs: Jobs,
    pub(super) stage: Stage,
    pub(super) last_run: u64,
    /// The user wants it to hand everything on and leave.
    pub(super) draining: bool,
    /// The user wants it to leave, so it does not come back.
    pub(super) leaving: bool,
    /// Whether HA workloads may run, as last told.
    pub(super) quorum: Option<bool>,
    /// It goes on from an earlier life, of which a swap of the view may still
    /// be on its way: nothing starts before one of this life has landed.
    pub(super) unsettled: bool,
    /// Whether something has changed that the plan depends on.
    pub(super) replan: bool,
    pub(super) was_open: bool,
    /// What is being taken over, by whom it was.
    pub(super) takeovers: BTreeMap<NodeId, BTreeSet<Name>>,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    Resuming,
    Joining,
    Member,
    /// Everything ends, then the view is told.
    Leaving,
    /// Out of the view; the heartbeat is being deleted.
    Deleting(Option<Pending>),
    /// The id is lost; everything ends.
    Fenced,
    Stopped,
}

impl Node {
    /// A node that joins. The configuration must have been
    /// [validated](Config::validate). `former` is an id that this node had
    /// before and under which nothing runs any more: nobody needs to wait
    /// for its silence.
    pub fn new(config: Config, rng: Rng, now: Now, former: Option<NodeId>) -> Self {
        debug_assert_eq!(config.validate(), Ok(()), "validate before you join");
        let desk = Desk::new(config, rng, now);
        let mut node = Self {
            pulse: Pulse::new(now.boot, Bytes::from([])),
            roll: Roll::new(now.boot),
            judge: Judge::new(now.boot),
            shelf: Shelf::default(),
            collector: Collector::new(),
            desk,
            jobs: Jobs::default(),
            stage: Stage::Joining,
            last_run: 0,
            draining: false,
            leaving: false,
            quorum: None,
            unsettled: false,
            replan: false,
            was_open: false,
            takeovers: BTreeMap::new(),
        };
        if let Some(former) = former {
            node.judge.give_up(former);
        }
        node.advance();
        node
    }

    /// A node that was restarted on the same boot of its machine and whose
    /// guardian kept its workloads running: it goes on under its old id if a
    /// beat succeeds before `kill_at`, and otherwise ends everything.
    pub fn resume(config: Config, rng: Rng, now: Now, past: Past) -> Self {
        let mut node = Self::new(config, rng, now, None);
        // Nothing of the new incarnation has been said yet.
        node.desk.outputs.clear();
        node.desk.me = past.id;
        node.pulse = Pulse::resumed(now.boot, past.grant);
        node.roll = Roll::resumed(now.boot);
        if node.desk.config.plant.is(Bug::LivesShareNumbers) {
            node.roll = Roll::new(now.boot);
        }
        node.last_run = past.jobs.values().map(|job| job.run.0).max().unwrap_or(0);
        // Their failures are not known; the view may count those of others.
        let proven = now.boot.after(HEALTHY);
        let names = past.jobs.keys().cloned();
        node.jobs.proving = names.map(|name| (name, proven)).collect();
        node.jobs.jobs = past.jobs;
        node.stage = Stage::Resuming;
        node.unsettled = !node.desk.config.plant.is(Bug::StartsUnsettled);
        node.advance();
        node
    }

    /// The id under which it is known at present.
    pub const fn id(&self) -> NodeId {
        self.desk.me
    }

    /// What it was told.
    pub const fn config(&self) -> &Config {
        &self.desk.config
    }

    /// The view as it knows it.
    pub const fn view(&self) -> Option<&View> {
        self.roll.view()
    }

    /// What runs here.
    pub const fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Until when what may run.
    pub const fn grant(&self) -> Option<Grant> {
        self.pulse.grant()
    }

    /// Whether it is in the view and expects to stay.
    pub const fn is_member(&self) -> bool {
        matches!(self.stage, Stage::Member)
    }

    /// Whether it has ended; nothing moves it any more.
    pub const fn is_stopped(&self) -> bool {
        matches!(self.stage, Stage::Stopped)
    }

    /// The keys that a watch should follow: the view, and all that begin with
    /// the second one.
    pub fn keys(&self) -> (Key, alloc::string::String) {
        (self.desk.view_key(), self.desk.keys.heartbeats())
    }

    /// Whether workloads may run here at all.
    pub(super) fn is_open(&self) -> bool {
        let granted = self
            .grant()
            .is_some_and(|grant| self.desk.now < grant.drain_at);
        matches!(self.stage, Stage::Member) && granted
    }

    /// From when on the success of a beat is too late.
    fn deadline_of_beats(&self) -> Instant {
        let grant = self.grant();
        match self.stage {
            // Nothing has been told to stop: the guardian still counts.
            Stage::Resuming => grant.map_or(Instant::MAX, |grant| grant.kill_at),
            _ => grant.map_or(Instant::MAX, |grant| grant.drain_at),
        }
    }

    fn pulsed(&mut self, pulsed: Pulsed) {
        match pulsed {
            Pulsed::Nothing => {}
            Pulsed::Beat => {
                if matches!(self.stage, Stage::Resuming) {
                    if self.roll.excludes(self.desk.me) {
                        // Its earlier life had not joined yet, or was removed.
                        // No other view need ever come to say so.
                        return self.fence(Why::Removed);
                    }
                    let leaves = self.leaving;
                    self.stage = if leaves {
                        Stage::Leaving
                    } else {
                        Stage::Member
                    };
                    (self.roll.dirty, self.replan) = (true, true);
                    self.roll.look(self.desk.now);
                }
            }
            Pulsed::Lost(why) => self.fence(why),
        }
    }

    /// The id is lost: end everything under it.
    fn fence(&mut self, why: Why) {
        if matches!(
            self.stage,
            Stage::Fenced | Stage::Stopped | Stage::Deleting(_)
        ) {
            return;
        }
        let id = self.desk.me;
        self.desk.event(Event::Fenced { id, why });
        self.stage = Stage::Fenced;
        self.replan = true;
        self.pulse.stop();
        self.takeovers.clear();
    }

    /// Everything under the lost id has ended: join under another.
    fn join_again(&mut self) {
        self.judge.give_up(self.desk.me);
        self.desk.me = NodeId::from_u128(self.desk.rng.next_u128());
        self.pulse = self.pulse.again(self.desk.now);
        self.jobs.cooling.clear();
        self.jobs.let_go.clear();
        self.unsettled = false;
        self.roll.begin_again(&mut self.desk);
        self.stage = Stage::Joining;
    }

    /// There is another view; `before` is the one that was known.
    fn another_view(&mut self, before: Option<Option<View>>) {
        let Some(before) = before else {
            return;
        };
        self.replan = true;
        self.jobs.let_go.clear();
        let (desk, view) = (&self.desk, self.roll.view());
        self.shelf.another_view(desk, before.as_ref(), view);
        self.collector.another_view(desk, before.as_ref(), view);
        if let Some(before) = &before {
            self.tell_lost(before);
        }
        let me = self.desk.me;
        let here = self
            .roll
            .view()
            .is_some_and(|view| view.member(me).is_some());
        match self.stage {
            Stage::Joining if here => {
                self.stage = Stage::Member;
                self.tell_joined();
            }
            Stage::Member if !here => return self.fence(Why::Removed),
            Stage::Leaving if !here => self.stage = Stage::Deleting(None),
            _ => {}
        }
        self.tell_changes(before.as_ref());
        if let Some(view) = self.roll.view() {
            self.jobs.forget(view, me);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Ask { ticket, request } => {
                if self.leaving || matches!(self.stage, Stage::Stopped) {
                    let why = Refusal::Leaving;
                    return self.desk.event(Event::Refused { ticket, why });
                }
                self.roll.wish(&mut self.desk, ticket, request);
            }
            Command::Status(status) => {
                let most = status.len().min(STATUS_BYTES_MAX);
                self.pulse.status = status[..most].into();
            }
            Command::Drain => {
                self.draining = true;
                self.roll.dirty = true;
            }
            Command::Leave => {
                self.leaving = true;
                self.roll.dirty = true;
                if matches!(self.stage, Stage::Member) {
                    self.stage = Stage::Leaving;
                    self.replan = true;
                }
            }
        }
    }

    fn started(&mut self, run: Run) {
        let Some((name, job)) = self.jobs.by_run(run) else {
            return;
        };
        if job.phase != Phase::Starting {
            return;
        }
        let (name, fence) = (name.clone(), job.fence);
        let (now, elsewhere) = (self.desk.now, self.failed_elsewhere(&name));
        self.jobs.started(&name, now, elsewhere);
        (self.roll.dirty, self.replan) = (true, true);
        self.taken_over(&name, true);
        self.desk.event(Event::Deployed { name, fence });
    }

    /// On how many nodes in a row it has failed, by the view.
    fn failed_elsewhere(&self, name: &Name) -> u32 {
        let view = self.roll.view().and_then(|view| view.workloads.get(name));
        view.map_or(0, |it| it.fails)
    }

    fn ended(&mut self, run: Run, failed: Option<alloc::sync::Arc<str>>) {
        let Some((name, job)) = self.jobs.by_run(run) else {
            return;
        };
        let (name, job) = (name.clone(), job.clone());
        self.jobs.ended(&name);
        (self.roll.dirty, self.replan) = (true, true);
        if matches!(job.phase, Phase::Stopping { .. }) {
            return self.desk.event(Event::Undeployed { name });
        }
        let why = failed.unwrap_or_else(|| "it ended by itself".into());
        let (now, elsewhere) = (self.desk.now, self.failed_elsewhere(&name));
        let in_a_row = self.jobs.failed(name.clone(), job.digest, now, elsewhere);
        self.taken_over(&name, false);
        self.desk.event(Event::StartFailed {
            name,
            in_a_row,
            why,
        });
    }

    /// Does what time and news have made due, until nothing is.
    fn advance(&mut self) {
        let now = self.desk.now;
        if now >= self.deadline_of_beats() && !self.desk.config.plant.is(Bug::Revival) {
            self.fence(Why::Unconfirmed);
        }
        if matches!(self.stage, Stage::Stopped) {
            return;
        }
        self.roll.dirty |= self.jobs.forgive(now);
        self.pulse.advance(&mut self.desk);
        self.roll.advance(&mut self.desk);
        if let (Stage::Member, Some(view)) = (self.stage, self.roll.view()) {
            self.judge.advance(&mut self.desk, view);
            self.shelf.advance(&mut self.desk, self.roll.contents());
            let collects = self.collector.advance(&mut self.desk, view);
            let me = self.desk.me;
            let condemned = self.judge.condemned(view, now).next().is_some();
            let drained = view.member(me).is_some_and(|it| it.draining)
                && self.jobs.is_empty()
                && view.held_by(me).next().is_none();
            self.roll.dirty |= condemned || drained || collects;
            if drained {
                self.leaving = true;
                self.stage = Stage::Leaving;
            }
        } else {
            self.shelf.clear();
            self.collector.clear();
        }
        if self.roll.may_draft(now) && self.roll.has_room(&mut self.desk) {
            self.roll.dirty = false;
            if let Some(next) = self.draft() {
                if let Some(view) = self.roll.view() {
                    self.jobs.lets_go(self.desk.me, view, &next);
                }
                self.roll.swap(&mut self.desk, next);
            }
        }
        self.work();
        self.go_on();
    }

    /// Goes on to the next stage if the present one is through.
    fn go_on(&mut self) {
        let adopt = self.desk.config.plant.is(Bug::AdoptAcross);
        match self.stage {
            Stage::Fenced if self.jobs.is_empty() || adopt => {
                if self.leaving {
                    self.stop();
                } else {
                    self.join_again();
                    self.pulse.advance(&mut self.desk);
                    self.roll.advance(&mut self.desk);
                }
            }
            Stage::Joining if self.leaving => {
                self.stage = Stage::Deleting(None);
                self.go_on();
            }
            Stage::Deleting(None) => {
                self.pulse.stop();
                match self.pulse.version().cloned() {
                    Some(version) => {
                        let key = self.desk.keys.heartbeat(self.desk.me);
                        let pending = self.desk.delete(key, version);
                        self.stage = Stage::Deleting(Some(pending));
                    }
                    None => self.stop(),
                }
            }
            // If it cannot be deleted, those who stay will.
            Stage::Deleting(Some(pending)) if self.desk.now >= pending.give_up_at => self.stop(),
            _ => {}
        }
    }

    fn stop(&mut self) {
        self.roll.close(&mut self.desk);
        self.stage = Stage::Stopped;
        self.desk.event(Event::Stopped);
    }
}

impl Machine for Node {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        // Whatever comes first after a stall: the clock is asked, and what was
        // due before is late (§2.6).
        if !self.desk.config.plant.is(Bug::GuardByTimer) {
            self.desk.set_now(now);
        }
        if matches!(self.stage, Stage::Stopped) {
            if let Input::Command(command) = input {
                self.command(command);
            }
            return;
        }
        let answered = matches!(
            input,
            Input::Read { result: Ok(_), .. }
                | Input::Wrote { result: Ok(_), .. }
                | Input::Listed { result: Ok(_), .. }
        );
        // What is late is late, whichever comes first.
        self.handle_input(input);
        // A store may answer one part and fail another: one that is locked
        // for writers is read. So it is over when it is for all of them.
        let fails = self.pulse.fails() || self.roll.fails() || self.judge.fails();
        let fails = fails || self.shelf.fails();
        if answered && self.desk.troubled && !fails {
            self.desk.troubled = false;
            self.desk.event(Event::Recovered);
        }
        self.advance();
    }

    fn tick(&mut self, now: Now) {
        self.desk.set_now(now);
        self.advance();
    }

    fn poll(&mut self) -> Option<Output> {
        self.desk.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let now = self.desk.now;
        let jobs = self.jobs.deadline(now);
        match self.stage {
            Stage::Stopped => return None,
            Stage::Deleting(Some(pending)) => return Some(pending.give_up_at),
            Stage::Fenced | Stage::Deleting(None) => return Some(jobs),
            Stage::Resuming | Stage::Joining | Stage::Member | Stage::Leaving => {}
        }
        let mut at = self.pulse.deadline().min(self.roll.deadline(now)).min(jobs);
        at = at.min(self.deadline_of_beats());
        if let (Stage::Member, Some(view)) = (self.stage, self.roll.view()) {
            at = at.min(self.judge.deadline(view, now));
            at = at.min(self.shelf.deadline()).min(self.collector.deadline());
        }
        Some(at)
    }
}

impl Node {
    fn handle_input(&mut self, input: Input) {
        match input {
            Input::Read { call, result } => {
                let deadline = self.deadline_of_beats();
                let pulsed = self.pulse.read(&mut self.desk, call, &result, deadline);
                self.pulsed(pulsed);
                let before = self.roll.read(&mut self.desk, call, &result);
                self.another_view(before);
                if let Some(view) = self.roll.view() {
                    self.judge.read(&mut self.desk, view, call, &result);
                }
                self.shelf.read(&mut self.desk, call, &result);
            }
            Input::Wrote { call, result } => {
                let deadline = self.deadline_of_beats();
                let pulsed = self.pulse.wrote(&mut self.desk, call, &result, deadline);
                let first = pulsed == Pulsed::Beat && matches!(self.stage, Stage::Joining);
                self.roll.dirty |= first;
                self.pulsed(pulsed);
                let swapped = self.roll.is_swap(call) && result.is_ok();
                if self.roll.is_swap(call) {
                    self.collector.swapped(swapped);
                }
                self.unsettled &= !swapped;
                self.replan |= swapped;
                let before = self.roll.wrote(&mut self.desk, call, &result);
                self.another_view(before);
                self.judge.wrote(&mut self.desk, call, &result);
                self.roll.dirty |= self.shelf.wrote(&mut self.desk, call, &result);
            }
            Input::Listed { call, result } => {
                if let Some(view) = self.roll.view() {
                    self.judge.listed(&mut self.desk, view, call, &result);
                }
            }
            Input::Paged { call, result } => {
                if let Some(view) = self.roll.view() {
                    self.collector.paged(&self.desk, view, call, &result);
                }
            }
            Input::Deleted { call, result } => match self.stage {
                Stage::Deleting(Some(pending)) if pending.call == call => self.stop(),
                _ => {
                    self.judge.deleted(&mut self.desk, call, &result);
                    self.collector.deleted(&self.desk, call, &result);
                }
            },
            Input::Seen { key, register } => {
                if key == self.desk.view_key() {
                    let before = self.roll.hint(&mut self.desk, register.as_ref());
                    self.another_view(before);
                } else if let (Some(id), Some(view)) = (self.desk.keys.node(&key), self.roll.view())
                {
                    self.judge.hint(&mut self.desk, view, id, register.as_ref());
                }
            }
            Input::Watching(up) => {
                if core::mem::replace(&mut self.desk.watching, up) != up {
                    self.roll.look(self.desk.now);
                    self.judge.look(self.desk.now);
                }
            }
            Input::Started { run } => self.started(run),
            Input::Ended { run, failed } => self.ended(run, failed),
            Input::Command(command) => self.command(command),
        }
    }
}
