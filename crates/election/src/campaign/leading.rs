//! Leading: renew, and be told to stop (§4.5).
//!
//! A renewal is a compare-and-swap on the version of the last write. It is sent
//! once an interval and retried until `drain_at`, so that one failure never
//! costs the leadership. A conflict or an unknown outcome is settled by
//! reading: as long as the register shows this id in this term, the election is
//! held, no matter who wrote last (a late write of our own, or a stranger's
//! request), and the version found is the one to go on from.
//!
//! # Held by a session (§4.12)
//!
//! Then nothing is written: the race has bound the register to a session of
//! this process, and what extends the grant is a *confirmation*, the answer to
//! a keep-alive of that session, which any number of elections share. Why is
//! that safe? Let the keep-alive be sent at `s` on this process's clock; the
//! store takes it at some `a >= s`, and from then on the session lives for
//! `lease x (1 + drift)` on the store's clock.
//!
//! All that time the store lets no other client write the register, no matter what they
//! have judged and whatever version they expect. The grant counts from `s`, and
//! ends at `s + lease x (1 - drift)` on this clock: before the session can, if
//! the rates of both clocks are within the bound. (One of the two margins alone
//! is not enough: this clock may be slow while the store's is fast.)
//!
//! To count from the answer, to take an answer that did not come for one that
//! did, and to have the session live for a lease and no longer are ways to be
//! wrong; each is planted in [`Bug`]. A confirmation says nothing of *this*
//! register, and need not: bound by the race that was won, it can be let go
//! only by this campaign, or by the end of the session.
//!
//! What a renewal brings besides, the notes that others have left in the
//! register, is brought by the watch, and by a look without which, from time
//! to time, nothing is confirmed: so a note is heeded also where a watch has
//! died without a word.

use alloc::collections::VecDeque;

use super::draining::Draining;
use super::{
    Answer, Bug, Call, Context, Event, Expect, Failure, FailureClass, Grant, Instant, Pending,
    Reading, Record, Register, State, Term, Version, Why,
};
use crate::Request;

/// How many attempts of unknown outcome are remembered. One more pushes out
/// the oldest, whose grant would have been the shortest.
const ATTEMPTS_MAX: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Leading {
    /// What the register holds as far as we know, and its version.
    record: Record,
    version: Version,
    grant: Grant,
    /// Attempts that may have landed: their sequence and when they were sent.
    attempts: VecDeque<(u64, Instant)>,
    stage: Stage,
    /// A watch has shown something that is not ours: look when there is time.
    look: bool,
    /// Held by a session: nothing is confirmed from here on without a look.
    look_by: Instant,
    /// What the renewal expected that has just met a conflict.
    conflicted: Option<Version>,
    /// The start of the latest grant that the work is known to go by.
    work: Option<Instant>,
}

/// How many leases an election that is held by a session goes without a look at
/// its register while a watch is up.
const LEASES_BETWEEN_READS: u32 = 10;

#[derive(Clone, Debug)]
enum Stage {
    /// The next renewal is due then.
    Idle { renew_at: Instant },
    /// A renewal is under way.
    Renewing(Pending),
    /// A confirmation of the session is under way.
    Confirming(Pending),
    /// It is unclear what the register holds; a read is under way.
    Checking(Pending),
    /// The same, and the read failed; read again then.
    Unchecked { read_at: Instant },
}

impl Leading {
    pub(super) fn new(context: &Context, record: Record, version: Version, grant: Grant) -> Self {
        let renew_at = grant.start.after(context.config.interval);
        let stage = Stage::Idle { renew_at };
        Self {
            record,
            version,
            grant,
            attempts: VecDeque::new(),
            stage,
            look: false,
            look_by: Self::look_by(context),
            conflicted: None,
            work: None,
        }
    }

    fn look_by(context: &Context) -> Instant {
        let leases = if context.watch_up {
            LEASES_BETWEEN_READS
        } else {
            1
        };
        context.now.boot.after(context.config.lease * leases)
    }

    /// The work has confirmed the grant that began at `start`. A confirmation that is
    /// older than the last one, or of another leadership, permits no renewal: its start
    /// is below that of the grant, since the boot-time clock only grows.
    pub(super) const fn work_confirmed(&mut self, start: Instant) {
        match self.work {
            Some(known) if known.as_nanos() >= start.as_nanos() => {}
            _ => self.work = Some(start),
        }
    }

    /// Whether the next renewal waits for a confirmation of the work (§4.13). client-go
    /// has no counterpart.
    ///
    /// A leadership is renewed for the work that is done in it. Where that
    /// runs elsewhere, a candidate that renews on its own would keep everybody
    /// out for ever with nothing running: what it tells the work may not arrive.
    /// So each grant has to be confirmed by the work before it is extended. To
    /// wait is safe: a grant that is not renewed ends by its time table.
    fn waits_for_work(&self, context: &Context) -> bool {
        let asked =
            context.config.require_work_confirmation && !context.config.planted(Bug::WorkUnasked);
        let older = |start| start < self.grant.start && !context.config.planted(Bug::OldWord);
        asked && self.work.is_none_or(older)
    }

    /// The watch came or went: what happened in between nobody has reported,
    /// and no renewal will find.
    pub(super) const fn watch_changed(&mut self, context: &Context) {
        self.look |= context.config.by_session;
    }

    pub(super) const fn term(&self) -> Term {
        self.record.term
    }

    pub(super) const fn grant(&self) -> Grant {
        self.grant
    }

    pub(super) fn answer(self, context: &mut Context, call: Call, answer: Answer) -> State {
        let awaited = match &self.stage {
            Stage::Renewing(pending) | Stage::Confirming(pending) | Stage::Checking(pending) => {
                pending.call == call
            }
            Stage::Idle { .. } | Stage::Unchecked { .. } => false,
        };
        // A success that arrives after `drain_at` extends nothing: the work
        // has been told to stop, and judges may have begun to count.
        let late = context.now.boot >= self.grant.drain_at
            && !context.config.planted(Bug::RenewAfterDeadline);
        if !awaited || late {
            return State::Leading(self);
        }
        match answer {
            Answer::Wrote(Ok(version)) => State::Leading(self.renewed(context, version)),
            Answer::Wrote(Err(failure)) => State::Leading(self.renewal_failed(context, &failure)),
            Answer::Confirmed(Ok(start)) => State::Leading(self.confirmed(context, start)),
            Answer::Confirmed(Err(failure)) => State::Leading(self.unconfirmed(context, &failure)),
            Answer::Read(Ok(reading)) => self.checked(context, &reading),
            Answer::Read(Err(failure)) => {
                let read_at = context.now.boot.after(context.read_failed(&failure));
                State::Leading(Self {
                    stage: Stage::Unchecked { read_at },
                    ..self
                })
            }
        }
    }

    /// A renewal was acknowledged.
    fn renewed(mut self, context: &mut Context, version: Version) -> Self {
        let Some((sequence, mut start)) = self.attempts.pop_back() else {
            return self;
        };
        // The version of this attempt is the register's, so no other attempt
        // can have landed, or ever will.
        self.attempts.clear();
        if context.config.planted(Bug::DeadlineFromEnd) {
            start = context.now.boot;
        }
        self.version = version;
        self.record.sequence = sequence;
        self.record.renewal = sequence;
        context.write_succeeded();
        self.extend(context, start);
        self
    }

    /// The session lived after `start`, and so it holds the election for a
    /// lease from then.
    fn confirmed(mut self, context: &mut Context, start: Instant) -> Self {
        let now = context.now.boot;
        let start = if context.config.planted(Bug::ConfirmedFromAnswer) {
            now
        } else {
            start.min(now)
        };
        context.write_succeeded();
        if start > self.grant.start {
            self.extend(context, start);
        } else {
            // Older than what is known already: ask again, and not at once.
            let renew_at = now.after(context.config.interval / 8);
            self.stage = Stage::Idle { renew_at };
        }
        self
    }

    /// Nothing is confirmed, whatever the failure is.
    fn unconfirmed(mut self, context: &mut Context, failure: &Failure) -> Self {
        if failure.class == FailureClass::Unknown
            && context.config.planted(Bug::UnknownIsConfirmed)
            && let Stage::Confirming(pending) = &self.stage
        {
            let asked = pending.asked;
            return self.confirmed(context, asked);
        }
        // A confirmation writes nothing that anybody could have outrun.
        let over = Failure::session_over();
        let ended = failure.class == FailureClass::Conflict;
        let pause = context.write_failed(if ended { &over } else { failure });
        self.stage = if ended {
            // The session is over: the register says who holds it now.
            Stage::Checking(context.request_read())
        } else {
            let renew_at = context.now.boot.after(pause);
            Stage::Idle { renew_at }
        };
        self
    }

    fn extend(&mut self, context: &mut Context, start: Instant) {
        self.grant = Grant::new(start, &context.config);
        context.wrote(&self.record, &self.version);
        self.stage = Stage::Idle {
            renew_at: start.after(context.config.interval),
        };
        context.event(Event::Renewed {
            term: self.term(),
            grant: self.grant,
        });
    }

    fn renewal_failed(mut self, context: &mut Context, failure: &Failure) -> Self {
        let stage = match failure.class {
            FailureClass::Conflict => {
                self.conflicted = Some(self.version.clone());
                Stage::Checking(context.request_read())
            }
            FailureClass::Unknown => {
                context.write_failed(failure);
                Stage::Checking(context.request_read())
            }
            FailureClass::Unavailable | FailureClass::Broken => {
                // It certainly did not land.
                self.attempts.pop_back();
                Stage::Idle {
                    renew_at: context.now.boot.after(context.write_failed(failure)),
                }
            }
        };
        Self { stage, ..self }
    }

    /// A read has said what the register holds.
    fn checked(mut self, context: &mut Context, reading: &Reading) -> State {
        let Stage::Checking(asked) = self.stage.clone() else {
            return State::Leading(self);
        };
        let conflicted = self.conflicted.take();
        context.learn(&asked, reading);
        let register = reading.register.as_ref();
        let shown = register.map(|register| (register, Record::decode(&register.value)));
        let (register, shown) = match shown {
            Some((register, Ok(shown))) => (register, shown),
            Some((_, Err(_))) => {
                let failure = Failure::malformed();
                let read_at = context.now.boot.after(context.read_failed(&failure));
                return State::Leading(Self {
                    stage: Stage::Unchecked { read_at },
                    ..self
                });
            }
            None => return self.replaced(context),
        };
        if !shown.is_held_by(context.me, self.term())
            || (context.config.planted(Bug::RequestIsOusting) && shown.sequence != shown.renewal)
        {
            return self.replaced(context);
        }
        context.read_succeeded();
        // Which of our attempts does it show? Those sent before it can only
        // have failed; those sent after it may yet land.
        let landed = self
            .attempts
            .iter()
            .find(|(sequence, _)| *sequence == shown.renewal);
        let landed = landed.map(|(_, start)| *start);
        self.attempts
            .retain(|(sequence, _)| *sequence > shown.renewal);
        if !context.config.planted(Bug::StaleVersion) {
            self.version = register.version.clone();
        }
        self.record = shown;
        self.look_by = Self::look_by(context);
        // Unless the grant is as fresh as a renewal would make it.
        let mut renew_at = self.grant.start.after(context.config.interval);
        if context.config.by_session && context.write_failures > 0 {
            // What has just failed is not asked for in the same breath.
            renew_at = renew_at.max(context.now.boot.after(context.config.interval / 8));
        }
        if conflicted.is_some_and(|expected| expected == register.version) {
            // No race: the store refuses the renewal (§4.4.7). It is tried until
            // `drain_at`, as after any other failure.
            let pause = context.refused(reading);
            renew_at = renew_at.max(context.now.boot.after(pause.min(context.config.interval)));
        }
        self.stage = Stage::Idle { renew_at };
        if let Some(start) = landed {
            context.write_succeeded();
            self.extend(context, start);
        }
        State::Leading(self)
    }

    /// The register shows another leader, or none: too late to drain.
    fn replaced(self, context: &mut Context) -> State {
        Draining::replaced(context, self.record)
    }

    /// Begins to give up the leadership.
    pub(super) fn drain(self, context: &mut Context, why: Why) -> State {
        let certain = self.attempts.is_empty();
        Draining::begin(context, self.record, self.version, certain, self.grant, why)
    }

    pub(super) fn hint(&mut self, context: &Context, register: Option<&Register>) {
        self.look |= !self.is_echo(context, register);
    }

    /// Whether a watch shows nothing but our own writes, or what they have
    /// replaced. What another id has written below them is old news where this
    /// leader renews: if it is not, the next renewal meets a conflict. A holder
    /// by session has none, so it looks.
    fn is_echo(&self, context: &Context, register: Option<&Register>) -> bool {
        let shown = register.and_then(|register| Record::decode(&register.value).ok());
        shown.is_some_and(|shown| {
            let below = shown.sequence <= self.record.sequence && shown.term <= self.term();
            let known = !context.config.by_session || shown.is_held_by(context.me, self.term());
            below && known
                || shown.is_held_by(context.me, self.term()) && shown.sequence == shown.renewal
        })
    }

    pub(super) fn advance(mut self, context: &mut Context) -> State {
        let now = context.now.boot;
        // `RenewDeadline` of client-go.
        if now >= self.grant.drain_at && !context.config.planted(Bug::RenewAfterDeadline) {
            let why = if self.waits_for_work(context) {
                Why::WorkUnconfirmed
            } else {
                Why::Unconfirmed
            };
            return self.drain(context, why);
        }
        match self
            .record
            .holder()
            .and_then(|holder| holder.request.clone())
        {
            Some(Request::Resign) => return self.drain(context, Why::Requested),
            Some(Request::Transfer(to)) => return self.drain(context, Why::Transferred(to)),
            None => {}
        }
        if !context.may_stand() {
            return self.drain(context, Why::AffinityEnded);
        }
        match self.stage.clone() {
            Stage::Idle { .. } if self.look => self.check(context),
            Stage::Renewing(pending) if pending.is_given_up(now) => {
                self = self.renewal_failed(context, &Failure::no_answer());
            }
            Stage::Confirming(pending) if pending.is_given_up(now) => {
                self = self.unconfirmed(context, &Failure::no_answer());
            }
            Stage::Checking(pending) if pending.is_given_up(now) => {
                let read_at = now.after(context.read_failed(&Failure::no_answer()));
                self.stage = Stage::Unchecked { read_at };
            }
            Stage::Unchecked { read_at } if now >= read_at => self.check(context),
            // Looks go on: what others have written is read as always.
            Stage::Idle { .. } if self.waits_for_work(context) => {}
            Stage::Idle { renew_at } if now >= renew_at && context.config.by_session => {
                if now < self.look_by || context.config.planted(Bug::NeverLooks) {
                    let within = self.call_timeout(context);
                    self.stage = Stage::Confirming(context.confirm(within));
                } else {
                    self.check(context);
                }
            }
            Stage::Idle { renew_at } if now >= renew_at => self.renew(context),
            Stage::Renewing(_)
            | Stage::Confirming(_)
            | Stage::Checking(_)
            | Stage::Unchecked { .. }
            | Stage::Idle { .. } => {}
        }
        State::Leading(self)
    }

    fn check(&mut self, context: &mut Context) {
        self.look = false;
        self.stage = Stage::Checking(context.request_read());
    }

    fn renew(&mut self, context: &mut Context) {
        let last = self.attempts.back().map_or(0, |(sequence, _)| *sequence);
        let Some(sequence) = context.next_sequence(self.record.sequence.max(last)) else {
            // It is tried until `drain_at`, as after any other failure.
            let pause = context.exhausted(&self.record).min(context.config.interval);
            let renew_at = context.now.boot.after(pause);
            self.stage = Stage::Idle { renew_at };
            return;
        };
        self.record.renewed_at = context.now.wall;
        let record = Record {
            sequence,
            renewal: sequence,
            ..self.record.clone()
        };
        if self.attempts.len() >= ATTEMPTS_MAX {
            self.attempts.pop_front();
        }
        self.attempts.push_back((sequence, context.now.boot));
        let within = self.call_timeout(context);
        let expect = Expect::Version(self.version.clone());
        self.stage = Stage::Renewing(context.write(expect, &record, within));
    }

    /// A slow answer is better than none, but one lost answer must leave time
    /// for another try: half of what there is until draining.
    fn call_timeout(&self, context: &Context) -> core::time::Duration {
        let left = self.grant.drain_at.since(context.now.boot);
        (left / 2).max(context.config.interval / 8)
    }

    pub(super) fn deadline(&self, context: &Context) -> Instant {
        let next = match &self.stage {
            // The word that it waits for wakes it, or its deadline does.
            Stage::Idle { .. } if self.waits_for_work(context) => Instant::MAX,
            Stage::Idle { renew_at: at } | Stage::Unchecked { read_at: at } => *at,
            Stage::Renewing(pending) | Stage::Confirming(pending) | Stage::Checking(pending) => {
                pending.give_up_at
            }
        };
        next.min(self.grant.drain_at)
    }
}
