//! The view as one node knows it, and how the node gets its edits into it (§1,
//! §4).
//!
//! Reading, drafting and swapping never overlap: at most one call on the view is
//! under way. After a swap that met a conflict, or whose outcome is unknown, the
//! node reads, and drafts again from what it found. Edits that follow from the
//! state of things repair themselves that way.
//!
//! Commands of users must take effect once, and their users must learn the
//! outcome. A draft with commands is an *attempt*. Each attempt has a serial of
//! its own, which goes into the node's line of the view with it. All attempts
//! on one version of the view exclude each other, since each is a
//! compare-and-swap on that version. So the first view of another version
//! settles all of them: the attempt whose serial it shows took effect, and no
//! other ever will.
//!
//! Until then each of them may take effect, so a refusal by the latest of them
//! is not final either.
//!
//! A view from which the node was removed settles nothing. The node's serial went
//! with its line, and an attempt may have taken effect in a view that this node
//! never saw. Its users are told to find out (`begin_again`).
//!
//! A node that resumes begins its serials at the boot-time clock, where no earlier
//! incarnation of this boot has come. So an attempt of such an incarnation cannot
//! be taken for one of this.

mod refusal;

use alloc::collections::VecDeque;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use tenure_core::call::{Call, Failure, FailureClass, Pending};
use tenure_core::cas::{Bytes, Expect, Reading, Register};
use tenure_core::ids::Version;
use tenure_core::time::Instant;

use super::content::Uploads;
use super::context::Context;
use super::edit::{Draft, Refusal, Request};
use super::types::Event;
use super::view::{SERIALS, View};
use super::{Bug, Digest, NodeId, Plant};

/// The most commands that wait; above it a command is refused.
pub const COMMANDS_MAX: usize = 1_024;

/// The most attempts on one version of the view. After them a draft without
/// commands settles which of them took effect.
const ATTEMPTS_MAX: usize = 8;

/// A command that is not in the view yet.
#[derive(Clone, Debug)]
struct QueuedCommand {
    ticket: u64,
    request: Request,
    /// When it was made.
    at: Instant,
}

impl QueuedCommand {
    /// What must be written before the view may name it.
    fn content(&self) -> Option<(&Digest, &Bytes)> {
        match &self.request {
            Request::Deploy(spec, _) => Some((&spec.digest, spec.content.as_ref()?)),
            _ => None,
        }
    }
}

/// How a command ended.
pub(super) type Outcome = (u64, Result<(), Refusal>);

/// A draft that answers the first commands that wait.
#[derive(Clone, Debug)]
struct Attempt {
    serial: u64,
    outcomes: Vec<Outcome>,
}

/// The view, as one node knows it.
#[derive(Clone, Debug)]
pub(super) struct ViewSync {
    known: Latest,
    /// The highest epoch ever seen, which survives a deleted register.
    pub(super) top_epoch: u64,
    pending: Option<Op>,
    read_at: Instant,
    /// When a draft that failed may be repeated.
    retry_at: Instant,
    /// Something has changed since the last draft.
    pub(super) dirty: bool,
    /// A swap did not succeed, or may have: read before drafting again.
    unsure: bool,
    /// What the last swap expected.
    sent: Expect,
    /// It met a conflict, and the view has not been read since.
    conflicted: bool,
    /// How many swaps in a row met a conflict though the view was as expected.
    refusals: u32,
    /// When the view that is known was first seen.
    learnt: Instant,
    /// When the view was asked for that is known now.
    fresh_at: Instant,
    malformed: Option<(Version, u32)>,
    failures: u32,
    queued_commands: VecDeque<QueuedCommand>,
    /// The highest serial of any attempt.
    serial: u64,
    /// Attempts on the version of the view that is known. Any may land.
    attempts: VecDeque<Attempt>,
    /// The view does not list this id any more: what became of the attempts
    /// cannot be told.
    removed: bool,
}

#[derive(Clone, Debug)]
enum Latest {
    Nothing,
    Absent,
    View(View, Version),
}

#[derive(Clone, Debug)]
enum Op {
    Read(Pending),
    Write(Pending, View),
}

impl Op {
    const fn pending(&self) -> Pending {
        match self {
            Self::Read(pending) | Self::Write(pending, _) => *pending,
        }
    }
}

impl ViewSync {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            known: Latest::Nothing,
            top_epoch: 0,
            pending: None,
            read_at: now,
            retry_at: Instant::ZERO,
            dirty: false,
            unsure: false,
            sent: Expect::Absent,
            conflicted: false,
            refusals: 0,
            learnt: Instant::ZERO,
            fresh_at: Instant::ZERO,
            malformed: None,
            failures: 0,
            queued_commands: VecDeque::new(),
            serial: SERIALS,
            attempts: VecDeque::new(),
            removed: false,
        }
    }

    /// The view of an incarnation that goes on from an earlier one on the same boot.
    /// An attempt takes at least a nanosecond, so no earlier incarnation has given out
    /// a serial as high as the clock.
    pub(super) fn resumed(now: Instant) -> Self {
        Self {
            serial: SERIALS.saturating_add(now.as_nanos()),
            ..Self::new(now)
        }
    }

    pub(super) const fn view(&self) -> Option<&View> {
        match &self.known {
            Latest::View(view, _) => Some(view),
            Latest::Nothing | Latest::Absent => None,
        }
    }

    /// Whether the register is known, and does not list `id`.
    pub(super) fn excludes(&self, id: NodeId) -> bool {
        match &self.known {
            Latest::Nothing => false,
            Latest::Absent => true,
            Latest::View(view, _) => view.member(id).is_none(),
        }
    }

    /// Whether the view that is known is below one that was seen before: the
    /// store has lost that one. Epochs only grow, and an answer that was asked
    /// for before the higher one was seen is not taken for the view. Should old
    /// news of a watch look so, a swap of that view meets a conflict.
    pub(super) fn has_fallen(&self, plant: Plant) -> bool {
        let top = self.top_epoch + u64::from(plant.is(Bug::FloorRepeated));
        self.view().is_some_and(|view| view.epoch < top)
    }

    /// Look again, now.
    pub(super) fn look(&mut self, now: Instant) {
        self.read_at = self.read_at.min(now);
    }

    /// The node begins under another id: what its last one asked for and may
    /// have got is for its users to find out.
    pub(super) fn begin_again(&mut self, context: &mut Context) {
        let attempts = core::mem::take(&mut self.attempts);
        let asked = attempts.iter().map(|it| it.outcomes.len()).max();
        for queued_command in self.queued_commands.drain(..asked.unwrap_or(0)) {
            let (ticket, why) = (queued_command.ticket, Refusal::Leaving);
            context.event(Event::Refused { ticket, why });
        }
        self.removed = false;
        // A swap that is under way settles no command any more.
        self.pending = None;
        self.serial = SERIALS;
        self.read_at = context.now;
        self.dirty = true;
    }

    /// Refuses whatever waits.
    pub(super) fn close(&mut self, context: &mut Context) {
        self.attempts.clear();
        for queued_command in core::mem::take(&mut self.queued_commands) {
            let (ticket, why) = (queued_command.ticket, Refusal::Leaving);
            context.event(Event::Refused { ticket, why });
        }
    }

    /// A user wants something.
    pub(super) fn queued_command(&mut self, context: &mut Context, ticket: u64, request: Request) {
        if self.queued_commands.len() >= COMMANDS_MAX {
            let why = Refusal::OutOfRange("expected at most 1024 requests at a time");
            return context.event(Event::Refused { ticket, why });
        }
        let at = context.now;
        self.queued_commands.push_back(QueuedCommand {
            ticket,
            request,
            at,
        });
        self.dirty = true;
    }

    /// Puts the commands that wait into a draft. What is done by it is kept
    /// until it is known which attempt took effect. If all of it is refused, and no
    /// earlier attempt may still land, that is final.
    pub(super) fn apply_requests(
        &mut self,
        context: &mut Context,
        draft: &mut Draft,
        uploads: &Uploads,
    ) {
        if self.attempts.len() >= ATTEMPTS_MAX {
            return draft.touch();
        }
        let mut outcomes = Vec::new();
        for queued_command in &self.queued_commands {
            // The view names no content that may be gone (§1.11).
            if queued_command
                .content()
                .is_some_and(|(digest, _)| !uploads.holds(digest))
            {
                break;
            }
            let outcome = draft.request(&queued_command.request);
            if outcome.is_err() && self.fresh_at < queued_command.at {
                // Refused by a view that may be older than the wish.
                self.read_at = self.read_at.min(context.now);
                break;
            }
            outcomes.push((queued_command.ticket, outcome));
        }
        if outcomes.is_empty() {
            return;
        }
        if context.config.plant.is(Bug::AttemptForgotten) {
            self.attempts.clear();
        }
        let done = outcomes.iter().any(|(_, outcome)| outcome.is_ok());
        if done || !self.attempts.is_empty() {
            self.serial += 1;
            let serial = self.serial;
            draft.count(context.me, serial);
            self.attempts.push_back(Attempt { serial, outcomes });
        } else {
            self.settle(context, outcomes);
        }
    }

    /// Tells the outcomes of the first commands that wait.
    fn settle(&mut self, context: &mut Context, outcomes: Vec<Outcome>) {
        for (ticket, outcome) in outcomes {
            self.queued_commands.pop_front();
            context.event(match outcome {
                Ok(()) => Event::Done { ticket },
                Err(why) => Event::Refused { ticket, why },
            });
        }
    }

    /// The view of another version shows `serial`: that attempt took effect, if
    /// there is one, and the others never will.
    fn settle_attempts(&mut self, context: &mut Context, serial: u64) {
        let mut attempts = core::mem::take(&mut self.attempts);
        let landed = attempts.iter().position(|it| it.serial == serial);
        let landed = landed.and_then(|place| {
            if context.config.plant.is(Bug::AttemptsAlike) {
                return attempts.pop_back();
            }
            attempts.swap_remove_back(place)
        });
        if let Some(attempt) = landed {
            self.settle(context, attempt.outcomes);
        }
    }

    /// The content that the commands wait for, in their order.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&Digest, &Bytes)> {
        self.queued_commands
            .iter()
            .filter_map(QueuedCommand::content)
    }

    /// Whether the node may draft now.
    pub(super) fn may_draft(&self, now: Instant) -> bool {
        let known = !matches!(self.known, Latest::Nothing) && self.malformed.is_none();
        self.dirty && !self.unsure && self.pending.is_none() && known && now >= self.retry_at
    }

    /// Sends a draft.
    pub(super) fn swap(&mut self, context: &mut Context, next: View) {
        let expect = match &self.known {
            Latest::View(_, version) => Expect::Version(version.clone()),
            Latest::Nothing | Latest::Absent => Expect::Absent,
        };
        self.sent = expect.clone();
        let pending = context.write(context.view_key(), expect, next.encode());
        self.pending = Some(Op::Write(pending, next));
    }

    /// Takes note of an answer to a read; gives the view that was known
    /// before if there is another now.
    pub(super) fn read(
        &mut self,
        context: &mut Context,
        call: Call,
        result: &Result<Reading, Failure>,
    ) -> Option<Option<View>> {
        let pending = match &self.pending {
            Some(Op::Read(pending)) if pending.call == call => *pending,
            _ => return None,
        };
        self.pending = None;
        match result {
            Ok(reading) => {
                self.poll_again(context);
                let news = self.learn(context, reading.register.as_ref(), Some(pending.asked));
                self.settle_conflict(context, reading);
                news
            }
            Err(failure) => {
                self.failed(context, failure);
                None
            }
        }
    }

    fn poll_again(&mut self, context: &mut Context) {
        let gap = if context.watch_up {
            context.config.lease
        } else {
            context.config.interval
        };
        self.read_at = context.after_about(gap);
    }

    /// Whether the last call failed.
    pub(super) const fn fails(&self) -> bool {
        self.failures > 0 || self.refusals > 0
    }

    fn failed(&mut self, context: &mut Context, failure: &Failure) {
        self.failures = self.failures.saturating_add(1);
        let pause = context.trouble(failure, self.failures);
        self.read_at = context.now.after(pause);
    }

    /// The watch has seen the view.
    pub(super) fn hint(
        &mut self,
        context: &mut Context,
        register: Option<&Register>,
    ) -> Option<Option<View>> {
        let shown = register.map(|register| View::decode(&register.value));
        if !matches!(shown, Some(Ok(_))) {
            // Gone, or damaged on the way: a read will say.
            self.look(context.now);
            return None;
        }
        self.learn(context, register, None)
    }

    /// Takes note of what the register holds.
    fn learn(
        &mut self,
        context: &mut Context,
        register: Option<&Register>,
        asked: Option<Instant>,
    ) -> Option<Option<View>> {
        // The news of a watch came between the asking and this older answer.
        let overtaken = asked.is_some_and(|asked| asked <= self.learnt);
        let Some(register) = register else {
            if overtaken && self.view().is_some() {
                self.look(context.now);
                return None;
            }
            self.malformed = None;
            self.unsure = false;
            self.fresh_at = asked.unwrap_or(self.fresh_at);
            let before = core::mem::replace(&mut self.known, Latest::Absent);
            self.dirty = true;
            return match before {
                Latest::View(view, _) => Some(Some(view)),
                Latest::Nothing => Some(None),
                Latest::Absent => None,
            };
        };
        if let (Latest::View(_, version), Some(asked)) = (&self.known, asked)
            && *version == register.version
        {
            // As it was, which most polls say.
            self.malformed = None;
            self.failures = 0;
            self.unsure = false;
            self.fresh_at = asked;
            self.dirty |= !self.queued_commands.is_empty();
            return None;
        }
        let shared = context.config.plant.is(Bug::GroupsMixed);
        let view = match View::decode(&register.value) {
            Ok(view) if view.group == context.config.group || shared => view,
            Ok(other) => {
                let why = alloc::format!("expected the view of this group, found {}", other.group);
                self.unreadable(context, register, &why);
                return None;
            }
            Err(error) => {
                self.unreadable(context, register, &error.to_string());
                return None;
            }
        };
        self.malformed = None;
        if let (Latest::View(known, version), None) = (&self.known, asked)
            && (view.epoch <= known.epoch || *version == register.version)
        {
            return None;
        }
        if overtaken && self.view().is_some_and(|known| view.epoch < known.epoch) {
            self.look(context.now);
            return None;
        }
        self.failures = 0;
        self.unsure &= asked.is_none();
        self.fresh_at = asked.unwrap_or(self.fresh_at);
        self.dirty |= !self.queued_commands.is_empty();
        let next = Latest::View(view, register.version.clone());
        self.know(context, next)
    }

    fn know(&mut self, context: &mut Context, next: Latest) -> Option<Option<View>> {
        if let (Latest::View(_, known), Latest::View(_, version)) = (&self.known, &next)
            && known == version
        {
            return None;
        }
        let before = core::mem::replace(&mut self.known, next);
        (self.dirty, self.learnt) = (true, context.now);
        if core::mem::take(&mut self.refusals) > 0 {
            self.retry_at = context.now;
        }
        let was_listed =
            matches!(&before, Latest::View(view, _) if view.member(context.me).is_some());
        self.removed |= was_listed && self.excludes(context.me);
        if let Some(view) = self.view() {
            let (epoch, member) = (view.epoch, view.member(context.me));
            let serial = member.map_or(0, |member| member.serial);
            self.top_epoch = self.top_epoch.max(epoch);
            self.serial = self.serial.max(serial);
            let plant = context.config.plant;
            let reported = !self.removed || plant.is(Bug::RemovalSettles);
            if reported && !plant.is(Bug::UnknownIsNo) {
                self.settle_attempts(context, serial);
            }
        }
        match before {
            Latest::View(view, _) => Some(Some(view)),
            Latest::Nothing | Latest::Absent => Some(None),
        }
    }

    fn unreadable(&mut self, context: &mut Context, register: &Register, why: &str) {
        let times = match &self.malformed {
            Some((version, times)) if *version == register.version => times.saturating_add(1),
            _ => 1,
        };
        self.malformed = Some((register.version.clone(), times));
        // Once proves nothing: perhaps only the answer was damaged.
        let class = if times >= 2 {
            FailureClass::Broken
        } else {
            FailureClass::Unknown
        };
        // A store holds many registers, and a person must find this one.
        let why = alloc::format!("the view of the group, {}: {why}", context.keys.view());
        self.failed(context, &Failure::new(class, &why));
    }

    /// Whether that call is the swap that is under way.
    pub(super) fn is_swap(&self, call: Call) -> bool {
        matches!(&self.pending, Some(Op::Write(pending, _)) if pending.call == call)
    }

    /// Takes note of the end of a swap; gives the view that was known before
    /// if it succeeded.
    pub(super) fn wrote(
        &mut self,
        context: &mut Context,
        call: Call,
        result: &Result<Version, Failure>,
    ) -> Option<Option<View>> {
        match &self.pending {
            Some(Op::Write(pending, _)) if pending.call == call => {}
            _ => return None,
        }
        let Some(Op::Write(pending, next)) = self.pending.take() else {
            return None;
        };
        self.dirty = true;
        match result {
            Ok(version) => {
                (self.failures, self.refusals) = (0, 0);
                self.retry_at = context.now;
                if self.view().is_some_and(|known| known.epoch >= next.epoch) {
                    // The watch was faster, and has shown what came after.
                    self.fresh_at = pending.asked;
                    return None;
                }
                if context.config.plant.is(Bug::UnknownIsNo) {
                    self.settle_attempts(context, self.serial);
                }
                self.fresh_at = pending.asked;
                self.know(context, Latest::View(next, version.clone()))
            }
            Err(failure) => {
                match failure.class {
                    FailureClass::Conflict => {
                        (self.unsure, self.conflicted) = (true, true);
                        self.look(context.now);
                    }
                    FailureClass::Unknown => {
                        self.unsure = true;
                        self.failed(context, failure);
                        self.read_at = context.now;
                    }
                    FailureClass::Unavailable | FailureClass::Broken => {
                        // It certainly did not land.
                        let serial = next.member(context.me).map(|it| it.serial);
                        self.attempts.pop_back_if(|it| Some(it.serial) == serial);
                        self.failed(context, failure);
                        self.retry_at = self.read_at;
                    }
                }
                None
            }
        }
    }

    pub(super) fn advance(&mut self, context: &mut Context) {
        let pending = self.pending.as_ref().map(Op::pending);
        if pending.is_some_and(|pending| pending.is_given_up(context.now)) {
            let was_write = matches!(self.pending.take(), Some(Op::Write(..)));
            self.failed(context, &Failure::no_answer());
            if was_write {
                (self.dirty, self.unsure) = (true, true);
                self.read_at = context.now;
            }
        }
        if self.pending.is_none() && context.now >= self.read_at {
            self.read_at = Instant::MAX;
            let pending = context.read(context.view_key());
            self.pending = Some(Op::Read(pending));
        }
    }

    pub(super) fn deadline(&self, now: Instant) -> Instant {
        if let Some(op) = &self.pending {
            return op.pending().give_up_at;
        }
        let retry = if self.dirty && self.retry_at > now {
            self.retry_at
        } else {
            Instant::MAX
        };
        self.read_at.min(retry)
    }
}
