//! The view as one node knows it, and how it gets its edits into it (§1, §4).
//!
//! Reading, drafting and swapping never overlap: at most one call on the view
//! is under way. A swap that met a conflict, or whose outcome is unknown, is
//! followed by a read and then by another draft from what was found. Edits
//! that follow from the state of things repair themselves that way.
//!
//! Commands of users must take effect once, and their users must be told what
//! became of them. A draft with commands is an *attempt*. Each attempt has a
//! serial of its own, which goes into the node's line of the view with it. All
//! attempts on one version of the view exclude each other, since each is a
//! compare-and-swap on that version. So the first view of another version
//! settles all of them: the attempt whose serial it shows has landed, and no
//! other ever will. Until then each of them may land, so that a refusal by the
//! latest of them is not final either.
//!
//! A view from which the node was removed settles nothing. The node's serial
//! went with its line, and an attempt may have landed in a view that this node
//! never saw. Its users are told to find out (`begin_again`).
//!
//! A life that goes on from an earlier one begins its serials at the boot-time
//! clock, where no earlier life of this boot has come: an attempt of that life
//! cannot be taken for one of this.

mod refusal;

use alloc::collections::VecDeque;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use tenure_core::call::{Call, Failure, FailureClass};
use tenure_core::cas::{Bytes, Expect, Reading, Register};
use tenure_core::ids::Version;
use tenure_core::time::Instant;

use super::content::{SERIALS, Shelf};
use super::desk::{Desk, Pending};
use super::edit::{Draft, Refusal, Request};
use super::types::Event;
use super::view::View;
use super::{Bug, Digest, NodeId, Plant};

/// The most commands that wait; above it a command is refused.
pub const COMMANDS_MAX: usize = 1_024;

/// The most attempts on one version of the view. After them a draft without
/// commands settles which of them has landed.
const ATTEMPTS_MAX: usize = 8;

/// A command that is not in the view yet.
#[derive(Clone, Debug)]
struct Wish {
    ticket: u64,
    request: Request,
    /// When it was made.
    at: Instant,
}

impl Wish {
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
pub(super) struct Roll {
    known: Known,
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
    garbled: Option<(Version, u32)>,
    failures: u32,
    wishes: VecDeque<Wish>,
    /// The highest serial of any attempt.
    serial: u64,
    /// Attempts on the version of the view that is known. Any may land.
    attempts: VecDeque<Attempt>,
    /// The view does not list this id any more: what became of the attempts
    /// cannot be told.
    removed: bool,
}

#[derive(Clone, Debug)]
enum Known {
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

impl Roll {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            known: Known::Nothing,
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
            garbled: None,
            failures: 0,
            wishes: VecDeque::new(),
            serial: SERIALS,
            attempts: VecDeque::new(),
            removed: false,
        }
    }

    /// The view of a life that goes on from an earlier one on the same boot.
    /// An attempt takes at least a nanosecond, so no earlier life has given out
    /// a serial as high as the clock.
    pub(super) fn resumed(now: Instant) -> Self {
        Self {
            serial: SERIALS.saturating_add(now.as_nanos()),
            ..Self::new(now)
        }
    }

    pub(super) const fn view(&self) -> Option<&View> {
        match &self.known {
            Known::View(view, _) => Some(view),
            Known::Nothing | Known::Absent => None,
        }
    }

    /// Whether the register is known, and does not list `id`.
    pub(super) fn excludes(&self, id: NodeId) -> bool {
        match &self.known {
            Known::Nothing => false,
            Known::Absent => true,
            Known::View(view, _) => view.member(id).is_none(),
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
    pub(super) fn begin_again(&mut self, desk: &mut Desk) {
        let attempts = core::mem::take(&mut self.attempts);
        let asked = attempts.iter().map(|it| it.outcomes.len()).max();
        for wish in self.wishes.drain(..asked.unwrap_or(0)) {
            let (ticket, why) = (wish.ticket, Refusal::Leaving);
            desk.event(Event::Refused { ticket, why });
        }
        self.removed = false;
        // A swap that is under way is nobody's any more.
        self.pending = None;
        self.serial = SERIALS;
        self.read_at = desk.now;
        self.dirty = true;
    }

    /// Refuses whatever waits.
    pub(super) fn close(&mut self, desk: &mut Desk) {
        self.attempts.clear();
        for wish in core::mem::take(&mut self.wishes) {
            let (ticket, why) = (wish.ticket, Refusal::Leaving);
            desk.event(Event::Refused { ticket, why });
        }
    }

    /// A user wants something.
    pub(super) fn wish(&mut self, desk: &mut Desk, ticket: u64, request: Request) {
        if self.wishes.len() >= COMMANDS_MAX {
            let why = Refusal::OutOfRange("expected at most 1024 requests at a time");
            return desk.event(Event::Refused { ticket, why });
        }
        let at = desk.now;
        self.wishes.push_back(Wish {
            ticket,
            request,
            at,
        });
        self.dirty = true;
    }

    /// Puts the commands that wait into a draft. What is done by it is kept
    /// until it is known which attempt landed. If all of it is refused, and no
    /// earlier attempt may still land, that is final.
    pub(super) fn grant_wishes(&mut self, desk: &mut Desk, draft: &mut Draft, shelf: &Shelf) {
        if self.attempts.len() >= ATTEMPTS_MAX {
            return draft.touch();
        }
        let mut outcomes = Vec::new();
        for wish in &self.wishes {
            // The view names no content that may be gone (§1.11).
            if wish
                .content()
                .is_some_and(|(digest, _)| !shelf.holds(digest))
            {
                break;
            }
            let outcome = draft.request(&wish.request);
            if outcome.is_err() && self.fresh_at < wish.at {
                // Refused by a view that may be older than the wish.
                self.read_at = self.read_at.min(desk.now);
                break;
            }
            outcomes.push((wish.ticket, outcome));
        }
        if outcomes.is_empty() {
            return;
        }
        if desk.config.plant.is(Bug::AttemptForgotten) {
            self.attempts.clear();
        }
        let done = outcomes.iter().any(|(_, outcome)| outcome.is_ok());
        if done || !self.attempts.is_empty() {
            self.serial += 1;
            let serial = self.serial;
            draft.count(desk.me, serial);
            self.attempts.push_back(Attempt { serial, outcomes });
        } else {
            self.settle(desk, outcomes);
        }
    }

    /// Tells the outcomes of the first commands that wait.
    fn settle(&mut self, desk: &mut Desk, outcomes: Vec<Outcome>) {
        for (ticket, outcome) in outcomes {
            self.wishes.pop_front();
            desk.event(match outcome {
                Ok(()) => Event::Done { ticket },
                Err(why) => Event::Refused { ticket, why },
            });
        }
    }

    /// The view of another version shows `serial`: that attempt has landed, if
    /// there is one, and the others never will.
    fn settle_attempts(&mut self, desk: &mut Desk, serial: u64) {
        let mut attempts = core::mem::take(&mut self.attempts);
        let landed = attempts.iter().position(|it| it.serial == serial);
        let landed = landed.and_then(|place| {
            if desk.config.plant.is(Bug::AttemptsAlike) {
                return attempts.pop_back();
            }
            attempts.swap_remove_back(place)
        });
        if let Some(attempt) = landed {
            self.settle(desk, attempt.outcomes);
        }
    }

    /// The content that the commands wait for, in their order.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&Digest, &Bytes)> {
        self.wishes.iter().filter_map(Wish::content)
    }

    /// Whether the node may draft now.
    pub(super) fn may_draft(&self, now: Instant) -> bool {
        let known = !matches!(self.known, Known::Nothing) && self.garbled.is_none();
        self.dirty && !self.unsure && self.pending.is_none() && known && now >= self.retry_at
    }

    /// Sends a draft.
    pub(super) fn swap(&mut self, desk: &mut Desk, next: View) {
        let expect = match &self.known {
            Known::View(_, version) => Expect::Version(version.clone()),
            Known::Nothing | Known::Absent => Expect::Absent,
        };
        self.sent = expect.clone();
        let pending = desk.write(desk.view_key(), expect, next.encode());
        self.pending = Some(Op::Write(pending, next));
    }

    /// Takes note of an answer to a read; gives the view that was known
    /// before if there is another now.
    pub(super) fn read(
        &mut self,
        desk: &mut Desk,
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
                self.poll_again(desk);
                let news = self.learn(desk, reading.register.as_ref(), Some(pending.asked));
                self.settle_conflict(desk, reading);
                news
            }
            Err(failure) => {
                self.failed(desk, failure);
                None
            }
        }
    }

    fn poll_again(&mut self, desk: &mut Desk) {
        let gap = if desk.watching {
            desk.config.lease
        } else {
            desk.config.interval
        };
        self.read_at = desk.after_about(gap);
    }

    /// Whether the last call failed.
    pub(super) const fn fails(&self) -> bool {
        self.failures > 0 || self.refusals > 0
    }

    fn failed(&mut self, desk: &mut Desk, failure: &Failure) {
        self.failures = self.failures.saturating_add(1);
        let pause = desk.trouble(failure, self.failures);
        self.read_at = desk.now.after(pause);
    }

    /// The watch has seen the view.
    pub(super) fn hint(
        &mut self,
        desk: &mut Desk,
        register: Option<&Register>,
    ) -> Option<Option<View>> {
        let shown = register.map(|register| View::decode(&register.value));
        if !matches!(shown, Some(Ok(_))) {
            // Gone, or damaged on the way: a read will say.
            self.look(desk.now);
            return None;
        }
        self.learn(desk, register, None)
    }

    /// Takes note of what the register holds.
    fn learn(
        &mut self,
        desk: &mut Desk,
        register: Option<&Register>,
        asked: Option<Instant>,
    ) -> Option<Option<View>> {
        // The news of a watch came between the asking and this older answer.
        let overtaken = asked.is_some_and(|asked| asked <= self.learnt);
        let Some(register) = register else {
            if overtaken && self.view().is_some() {
                self.look(desk.now);
                return None;
            }
            self.garbled = None;
            self.unsure = false;
            self.fresh_at = asked.unwrap_or(self.fresh_at);
            let before = core::mem::replace(&mut self.known, Known::Absent);
            self.dirty = true;
            return match before {
                Known::View(view, _) => Some(Some(view)),
                Known::Nothing => Some(None),
                Known::Absent => None,
            };
        };
        if let (Known::View(_, version), Some(asked)) = (&self.known, asked)
            && *version == register.version
        {
            // As it was, which most polls say.
            self.garbled = None;
            self.failures = 0;
            self.unsure = false;
            self.fresh_at = asked;
            self.dirty |= !self.wishes.is_empty();
            return None;
        }
        let shared = desk.config.plant.is(Bug::GroupsMixed);
        let view = match View::decode(&register.value) {
            Ok(view) if view.group == desk.config.group || shared => view,
            Ok(other) => {
                let why = alloc::format!("expected the view of this group, found {}", other.group);
                self.unreadable(desk, register, &why);
                return None;
            }
            Err(error) => {
                self.unreadable(desk, register, &error.to_string());
                return None;
            }
        };
        self.garbled = None;
        if let (Known::View(known, version), None) = (&self.known, asked)
            && (view.epoch <= known.epoch || *version == register.version)
        {
            return None;
        }
        if overtaken && self.view().is_some_and(|known| view.epoch < known.epoch) {
            self.look(desk.now);
            return None;
        }
        self.failures = 0;
        self.unsure &= asked.is_none();
        self.fresh_at = asked.unwrap_or(self.fresh_at);
        self.dirty |= !self.wishes.is_empty();
        let next = Known::View(view, register.version.clone());
        self.know(desk, next)
    }

    fn know(&mut self, desk: &mut Desk, next: Known) -> Option<Option<View>> {
        if let (Known::View(_, known), Known::View(_, version)) = (&self.known, &next)
            && known == version
        {
            return None;
        }
        let before = core::mem::replace(&mut self.known, next);
        (self.dirty, self.learnt) = (true, desk.now);
        if core::mem::take(&mut self.refusals) > 0 {
            self.retry_at = desk.now;
        }
        let was_listed = matches!(&before, Known::View(view, _) if view.member(desk.me).is_some());
        self.removed |= was_listed && self.excludes(desk.me);
        if let Some(view) = self.view() {
            let (epoch, member) = (view.epoch, view.member(desk.me));
            let serial = member.map_or(0, |member| member.serial);
            self.top_epoch = self.top_epoch.max(epoch);
            self.serial = self.serial.max(serial);
            let plant = desk.config.plant;
            let told = !self.removed || plant.is(Bug::RemovalSettles);
            if told && !plant.is(Bug::UnknownIsNo) {
                self.settle_attempts(desk, serial);
            }
        }
        match before {
            Known::View(view, _) => Some(Some(view)),
            Known::Nothing | Known::Absent => Some(None),
        }
    }

    fn unreadable(&mut self, desk: &mut Desk, register: &Register, why: &str) {
        let times = match &self.garbled {
            Some((version, times)) if *version == register.version => times.saturating_add(1),
            _ => 1,
        };
        self.garbled = Some((register.version.clone(), times));
        // Once proves nothing: perhaps only the answer was damaged.
        let class = if times >= 2 {
            FailureClass::Broken
        } else {
            FailureClass::Unknown
        };
        // A store holds many registers, and a person must find this one.
        let why = alloc::format!("the view of the group, {}: {why}", desk.keys.view());
        self.failed(desk, &Failure::new(class, &why));
    }

    /// Whether that call is the swap that is under way.
    pub(super) fn is_swap(&self, call: Call) -> bool {
        matches!(&self.pending, Some(Op::Write(pending, _)) if pending.call == call)
    }

    /// Takes note of the end of a swap; gives the view that was known before
    /// if it succeeded.
    pub(super) fn wrote(
        &mut self,
        desk: &mut Desk,
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
                self.retry_at = desk.now;
                if self.view().is_some_and(|known| known.epoch >= next.epoch) {
                    // The watch was faster, and has shown what came after.
                    self.fresh_at = pending.asked;
                    return None;
                }
                if desk.config.plant.is(Bug::UnknownIsNo) {
                    self.settle_attempts(desk, self.serial);
                }
                self.fresh_at = pending.asked;
                self.know(desk, Known::View(next, version.clone()))
            }
            Err(failure) => {
                match failure.class {
                    FailureClass::Conflict => {
                        (self.unsure, self.conflicted) = (true, true);
                        self.look(desk.now);
                    }
                    FailureClass::Unknown => {
                        self.unsure = true;
                        self.failed(desk, failure);
                        self.read_at = desk.now;
                    }
                    FailureClass::Unavailable | FailureClass::Broken => {
                        // It certainly did not land.
                        let serial = next.member(desk.me).map(|it| it.serial);
                        self.attempts.pop_back_if(|it| Some(it.serial) == serial);
                        self.failed(desk, failure);
                        self.retry_at = self.read_at;
                    }
                }
                None
            }
        }
    }

    pub(super) fn advance(&mut self, desk: &mut Desk) {
        let pending = self.pending.as_ref().map(Op::pending);
        if pending.is_some_and(|pending| desk.now >= pending.give_up_at) {
            let was_write = matches!(self.pending.take(), Some(Op::Write(..)));
            self.failed(desk, &Failure::no_answer());
            if was_write {
                (self.dirty, self.unsure) = (true, true);
                self.read_at = desk.now;
            }
        }
        if self.pending.is_none() && desk.now >= self.read_at {
            self.read_at = Instant::MAX;
            let pending = desk.read(desk.view_key());
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
