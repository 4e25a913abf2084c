//! One node of a group as a machine (§2).
//!
//! ```text
//!            heartbeat created,            told to leave, or
//!            view swapped                  drained of everything
//!  joining ──────────────────────> member ─────────────────────> leaving ──> stopped
//!     ^  ^                            │          work ended, view swapped,
//!     │  │ resuming: a heartbeat ─────┘          heartbeat deleted
//!     │  │           in time
//!     │  └ (else)
//!     └────────── fenced <── unconfirmed until drain_at, judged dead, removed
//!        under a new id, once everything has ended
//! ```
//!
//! The parts are [`own_heartbeat`](super::own_heartbeat),
//! [`view_sync`](super::view_sync) (the view), [`detector`](super::detector) (the
//! other nodes) and [`reconcile`](super::reconcile) (what should run here). This
//! file passes events between them. What may run is decided in one place:
//! [`Node::is_open`].

use alloc::collections::{BTreeMap, BTreeSet};

use tenure_core::call::{Call, Failure, Pending};
use tenure_core::cas::Bytes;
use tenure_core::ids::{Key, Name, Version};
use tenure_core::machine::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{Instant, Now};
use tenure_election::Grant;

use super::content::{Collector, Uploads};
use super::context::Context;
use super::detector::FailureDetector;
use super::edit::Refusal;
use super::heartbeat::STATUS_BYTES_MAX;
use super::own_heartbeat::{BeatOutcome, OwnHeartbeat};
use super::reconcile::{HEALTHY, Jobs, Phase};
use super::resume_state::ResumeState;
use super::types::{Command, Event, Input, Output, Run, Why};
use super::view::View;
use super::view_sync::ViewSync;
use super::{Bug, Config, NodeId};

/// One node of one group.
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) context: Context,
    pub(super) own_heartbeat: OwnHeartbeat,
    pub(super) view_sync: ViewSync,
    pub(super) detector: FailureDetector,
    pub(super) uploads: Uploads,
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
    /// It goes on from an earlier incarnation, of which a swap of the view may still
    /// be on its way: nothing starts before one of this incarnation took effect.
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
    /// before and under which nothing runs any more: no node needs to wait
    /// for its silence.
    pub fn new(config: Config, rng: Rng, now: Now, former: Option<NodeId>) -> Self {
        debug_assert_eq!(config.validate(), Ok(()), "validate before you join");
        let context = Context::new(config, rng, now);
        let mut node = Self {
            own_heartbeat: OwnHeartbeat::new(now.boot, Bytes::from([])),
            view_sync: ViewSync::new(now.boot),
            detector: FailureDetector::new(now.boot),
            uploads: Uploads::default(),
            collector: Collector::new(),
            context,
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
            node.detector.give_up(former);
        }
        node.advance();
        node
    }

    /// A node that was restarted on the same boot of its machine and whose
    /// guardian kept its workloads running: it goes on under its old id if a
    /// heartbeat succeeds before `kill_at`, and otherwise ends everything.
    pub fn resume(config: Config, rng: Rng, now: Now, resume_state: ResumeState) -> Self {
        let mut node = Self::new(config, rng, now, None);
        // Nothing of the new incarnation has been said yet.
        node.context.outputs.clear();
        node.context.me = resume_state.id;
        node.own_heartbeat = OwnHeartbeat::resumed(now.boot, resume_state.grant);
        node.view_sync = ViewSync::resumed(now.boot);
        if node.context.config.plant.is(Bug::IncarnationsShareNumbers) {
            node.view_sync = ViewSync::new(now.boot);
        }
        node.last_run = resume_state
            .jobs
            .values()
            .map(|job| job.run.0)
            .max()
            .unwrap_or(0);
        // Their failures are not known; the view may count those of others.
        let proven = now.boot.after(HEALTHY);
        let names = resume_state.jobs.keys().cloned();
        node.jobs.backoff_resets_at = names.map(|name| (name, proven)).collect();
        node.jobs.jobs = resume_state.jobs;
        node.stage = Stage::Resuming;
        node.unsettled = !node.context.config.plant.is(Bug::StartsUnsettled);
        node.advance();
        node
    }

    /// The id under which it is known at present.
    pub const fn id(&self) -> NodeId {
        self.context.me
    }

    /// What it was told.
    pub const fn config(&self) -> &Config {
        &self.context.config
    }

    /// The view as it knows it.
    pub const fn view(&self) -> Option<&View> {
        self.view_sync.view()
    }

    /// What runs here.
    pub const fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Until when what may run.
    pub const fn grant(&self) -> Option<Grant> {
        self.own_heartbeat.grant()
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
        (self.context.view_key(), self.context.keys.heartbeats())
    }

    /// Whether workloads may run here at all.
    pub(super) fn is_open(&self) -> bool {
        let granted = self
            .grant()
            .is_some_and(|grant| self.context.now < grant.drain_at);
        matches!(self.stage, Stage::Member) && granted
    }

    /// From when on the success of a heartbeat is too late.
    fn heartbeat_deadline(&self) -> Instant {
        let grant = self.grant();
        match self.stage {
            // Nothing has been told to stop: the guardian still counts.
            Stage::Resuming => grant.map_or(Instant::MAX, |grant| grant.kill_at),
            _ => grant.map_or(Instant::MAX, |grant| grant.drain_at),
        }
    }

    fn pulsed(&mut self, pulsed: BeatOutcome) {
        match pulsed {
            BeatOutcome::Nothing => {}
            BeatOutcome::Beat => {
                if matches!(self.stage, Stage::Resuming) {
                    if self.view_sync.excludes(self.context.me) {
                        // Its earlier incarnation had not joined yet, or was removed.
                        // No other view need ever come to say so.
                        return self.fence(Why::Removed);
                    }
                    let leaves = self.leaving;
                    self.stage = if leaves {
                        Stage::Leaving
                    } else {
                        Stage::Member
                    };
                    (self.view_sync.dirty, self.replan) = (true, true);
                    self.view_sync.look(self.context.now);
                }
            }
            BeatOutcome::Lost(why) => self.fence(why),
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
        let id = self.context.me;
        self.context.event(Event::Fenced { id, why });
        self.stage = Stage::Fenced;
        self.replan = true;
        self.own_heartbeat.stop();
        self.takeovers.clear();
    }

    /// Everything under the lost id has ended: join under another.
    fn join_again(&mut self) {
        self.detector.give_up(self.context.me);
        self.context.me = NodeId::from_u128(self.context.rng.next_u128());
        self.own_heartbeat = self.own_heartbeat.again(self.context.now);
        self.jobs.backoffs.clear();
        self.jobs.released_in_flight.clear();
        self.unsettled = false;
        self.view_sync.begin_again(&mut self.context);
        self.stage = Stage::Joining;
    }

    /// There is another view; `before` is the one that was known.
    fn another_view(&mut self, before: Option<Option<View>>) {
        let Some(before) = before else {
            return;
        };
        self.replan = true;
        self.jobs.released_in_flight.clear();
        let (context, view) = (&self.context, self.view_sync.view());
        self.uploads.another_view(context, before.as_ref(), view);
        self.collector.another_view(context, before.as_ref(), view);
        if let Some(before) = &before {
            self.report_lost(before);
        }
        let me = self.context.me;
        let here = self
            .view_sync
            .view()
            .is_some_and(|view| view.member(me).is_some());
        match self.stage {
            Stage::Joining if here => {
                self.stage = Stage::Member;
                self.report_joined();
            }
            Stage::Member if !here => return self.fence(Why::Removed),
            Stage::Leaving if !here => self.stage = Stage::Deleting(None),
            _ => {}
        }
        self.report_changes(before.as_ref());
        if let Some(view) = self.view_sync.view() {
            self.jobs.forget(view, me);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Ask { ticket, request } => {
                if self.leaving || matches!(self.stage, Stage::Stopped) {
                    let why = Refusal::Leaving;
                    return self.context.event(Event::Refused { ticket, why });
                }
                self.view_sync
                    .queued_command(&mut self.context, ticket, request);
            }
            Command::Status(status) => {
                let most = status.len().min(STATUS_BYTES_MAX);
                self.own_heartbeat.status = status[..most].into();
            }
            Command::Drain => {
                self.draining = true;
                self.view_sync.dirty = true;
            }
            Command::Leave => {
                self.leaving = true;
                self.view_sync.dirty = true;
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
        let (now, elsewhere) = (self.context.now, self.failed_elsewhere(&name));
        self.jobs.started(&name, now, elsewhere);
        (self.view_sync.dirty, self.replan) = (true, true);
        self.taken_over(&name, true);
        self.context.event(Event::Deployed { name, fence });
    }

    /// On how many nodes in a row it has failed, by the view.
    fn failed_elsewhere(&self, name: &Name) -> u32 {
        let view = self
            .view_sync
            .view()
            .and_then(|view| view.workloads.get(name));
        view.map_or(0, |it| it.fails)
    }

    fn ended(&mut self, run: Run, failed: Option<alloc::sync::Arc<str>>) {
        let Some((name, job)) = self.jobs.by_run(run) else {
            return;
        };
        let (name, job) = (name.clone(), job.clone());
        self.jobs.ended(&name);
        (self.view_sync.dirty, self.replan) = (true, true);
        if matches!(job.phase, Phase::Stopping { .. }) {
            return self.context.event(Event::Undeployed { name });
        }
        let why = failed.unwrap_or_else(|| "it ended by itself".into());
        let (now, elsewhere) = (self.context.now, self.failed_elsewhere(&name));
        let in_a_row = self.jobs.failed(name.clone(), job.digest, now, elsewhere);
        self.taken_over(&name, false);
        self.context.event(Event::StartFailed {
            name,
            in_a_row,
            why,
        });
    }

    /// Does what time and news have made due, until nothing is.
    fn advance(&mut self) {
        let now = self.context.now;
        if now >= self.heartbeat_deadline() && !self.context.config.plant.is(Bug::Revival) {
            self.fence(Why::Unconfirmed);
        }
        if matches!(self.stage, Stage::Stopped) {
            return;
        }
        self.view_sync.dirty |= self.jobs.reset_backoffs(now);
        self.own_heartbeat.advance(&mut self.context);
        self.view_sync.advance(&mut self.context);
        if let (Stage::Member, Some(view)) = (self.stage, self.view_sync.view()) {
            self.detector.advance(&mut self.context, view);
            self.uploads
                .advance(&mut self.context, self.view_sync.contents());
            let collects = self.collector.advance(&mut self.context, view);
            let me = self.context.me;
            let declared_dead = self.detector.declared_dead(view, now).next().is_some();
            let drained = view.member(me).is_some_and(|it| it.draining)
                && self.jobs.is_empty()
                && view.held_by(me).next().is_none();
            self.view_sync.dirty |= declared_dead || drained || collects;
            if drained {
                self.leaving = true;
                self.stage = Stage::Leaving;
            }
        } else {
            self.uploads.clear();
            self.collector.clear();
        }
        if self.view_sync.may_draft(now) && self.view_sync.has_room(&mut self.context) {
            self.view_sync.dirty = false;
            if let Some(next) = self.draft() {
                if let Some(view) = self.view_sync.view() {
                    self.jobs.note_releases(self.context.me, view, &next);
                }
                self.view_sync.swap(&mut self.context, next);
            }
        }
        self.work();
        self.go_on();
    }

    /// Goes on to the next stage if the present one is through.
    fn go_on(&mut self) {
        let adopt = self.context.config.plant.is(Bug::AdoptAcross);
        match self.stage {
            Stage::Fenced if self.jobs.is_empty() || adopt => {
                if self.leaving {
                    self.stop();
                } else {
                    self.join_again();
                    self.own_heartbeat.advance(&mut self.context);
                    self.view_sync.advance(&mut self.context);
                }
            }
            Stage::Joining if self.leaving => {
                self.stage = Stage::Deleting(None);
                self.go_on();
            }
            Stage::Deleting(None) => {
                self.own_heartbeat.stop();
                match self.own_heartbeat.version().cloned() {
                    Some(version) => {
                        let key = self.context.keys.heartbeat(self.context.me);
                        let pending = self.context.delete(key, version);
                        self.stage = Stage::Deleting(Some(pending));
                    }
                    None => self.stop(),
                }
            }
            // If it cannot be deleted, those who stay will.
            Stage::Deleting(Some(pending)) if pending.is_given_up(self.context.now) => self.stop(),
            _ => {}
        }
    }

    fn stop(&mut self) {
        self.view_sync.close(&mut self.context);
        self.stage = Stage::Stopped;
        self.context.event(Event::Stopped);
    }
}

impl Machine for Node {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        // Whatever comes first after a stall: the clock is asked, and what was
        // due before is late (§2.6).
        if !self.context.config.plant.is(Bug::GuardByTimer) {
            self.context.set_now(now);
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
        let fails = self.own_heartbeat.fails() || self.view_sync.fails() || self.detector.fails();
        let fails = fails || self.uploads.fails();
        if answered && self.context.troubled && !fails {
            self.context.troubled = false;
            self.context.event(Event::Recovered);
        }
        self.advance();
    }

    fn tick(&mut self, now: Now) {
        self.context.set_now(now);
        self.advance();
    }

    fn poll(&mut self) -> Option<Output> {
        self.context.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let now = self.context.now;
        let jobs = self.jobs.deadline(now);
        match self.stage {
            Stage::Stopped => return None,
            Stage::Deleting(Some(pending)) => return Some(pending.give_up_at),
            Stage::Fenced | Stage::Deleting(None) => return Some(jobs),
            Stage::Resuming | Stage::Joining | Stage::Member | Stage::Leaving => {}
        }
        let mut at = self
            .own_heartbeat
            .deadline()
            .min(self.view_sync.deadline(now))
            .min(jobs);
        at = at.min(self.heartbeat_deadline());
        if let (Stage::Member, Some(view)) = (self.stage, self.view_sync.view()) {
            at = at.min(self.detector.deadline(view, now));
            at = at
                .min(self.uploads.deadline())
                .min(self.collector.deadline());
        }
        Some(at)
    }
}

impl Node {
    fn handle_input(&mut self, input: Input) {
        match input {
            Input::Read { call, result } => {
                let deadline = self.heartbeat_deadline();
                let pulsed = self
                    .own_heartbeat
                    .read(&mut self.context, call, &result, deadline);
                self.pulsed(pulsed);
                let before = self.view_sync.read(&mut self.context, call, &result);
                self.another_view(before);
                if let Some(view) = self.view_sync.view() {
                    self.detector.read(&mut self.context, view, call, &result);
                }
                self.uploads.read(&mut self.context, call, &result);
            }
            Input::Wrote { call, result } => self.wrote(call, &result),
            Input::Listed { call, result } => {
                if let Some(view) = self.view_sync.view() {
                    self.detector.listed(&mut self.context, view, call, &result);
                }
            }
            Input::Paged { call, result } => {
                if let Some(view) = self.view_sync.view() {
                    self.collector.paged(&self.context, view, call, &result);
                }
            }
            Input::Deleted { call, result } => match self.stage {
                Stage::Deleting(Some(pending)) if pending.call == call => self.stop(),
                _ => {
                    self.detector.deleted(&mut self.context, call, &result);
                    self.collector.deleted(&self.context, call, &result);
                }
            },
            Input::Seen { key, register } => {
                if key == self.context.view_key() {
                    let before = self.view_sync.hint(&mut self.context, register.as_ref());
                    self.another_view(before);
                } else if let (Some(id), Some(view)) =
                    (self.context.keys.node(&key), self.view_sync.view())
                {
                    self.detector
                        .hint(&mut self.context, view, id, register.as_ref());
                }
            }
            Input::WatchUp(up) => {
                if core::mem::replace(&mut self.context.watch_up, up) != up {
                    self.view_sync.look(self.context.now);
                    self.detector.look(self.context.now);
                }
            }
            Input::Started { run } => self.started(run),
            Input::Ended { run, failed } => self.ended(run, failed),
            Input::Command(command) => self.command(command),
        }
    }

    fn wrote(&mut self, call: Call, result: &Result<Version, Failure>) {
        let deadline = self.heartbeat_deadline();
        let pulsed = self
            .own_heartbeat
            .wrote(&mut self.context, call, result, deadline);
        let first = pulsed == BeatOutcome::Beat && matches!(self.stage, Stage::Joining);
        self.view_sync.dirty |= first;
        self.pulsed(pulsed);
        let swapped = self.view_sync.is_swap(call) && result.is_ok();
        if self.view_sync.is_swap(call) {
            self.collector.swapped(swapped);
        }
        self.unsettled &= !swapped;
        self.replan |= swapped;
        let before = self.view_sync.wrote(&mut self.context, call, result);
        self.another_view(before);
        self.detector.wrote(&mut self.context, call, result);
        self.view_sync.dirty |= self.uploads.wrote(&mut self.context, call, result);
    }
}
