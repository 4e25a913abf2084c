//! Leaving the election, always in one order (§4.6): tell the application, let its
//! work end, make the grant invalid, vacate the register, stand again under
//! a new id.
//!
//! The election is vacated by compare-and-swap on our own version, so it can
//! never empty that of another leader. If the store does not let us vacate before
//! the grant would have run out anyway, we leave it at that: judges find out
//! by themselves.

use super::standby::Standby;
use super::{
    Answer, Bug, Call, Context, Event, Expect, Failure, FailureClass, Grant, Instant, Occupancy,
    Pending, Reading, Record, State, Term, Version, Why,
};

#[derive(Clone, Debug)]
pub(super) struct Draining {
    /// What the register held as far as we know.
    record: Record,
    /// Its version; `None` if one of our writes may have changed it.
    version: Option<Version>,
    why: Why,
    /// The grant while it lasts; `None` once it has been taken back.
    grant: Option<Grant>,
    /// When there is no point in vacating any more.
    expires_at: Instant,
    kill_told: bool,
    /// The application's work has ended.
    drained: bool,
    /// What the vacating expected that has just met a conflict.
    conflicted: Option<Version>,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Nothing is under way; when drained, go on then.
    Idle { next_at: Instant },
    /// A read is under way, to learn the version.
    Reading(Pending),
    /// The compare-and-swap that empties the election is under way.
    Vacating(Pending, Record),
    /// The election is not ours any more, or there is no more time.
    Done,
}

impl Draining {
    /// Begins to give up a valid leadership.
    pub(super) fn begin(
        context: &mut Context,
        record: Record,
        version: Version,
        certain: bool,
        grant: Grant,
        why: Why,
    ) -> State {
        context.event(Event::Draining {
            term: record.term,
            why: why.clone(),
            grant,
        });
        let draining = Self {
            record,
            version: certain.then_some(version),
            why,
            grant: Some(grant),
            expires_at: grant.valid_until,
            kill_told: false,
            drained: context.config.planted(Bug::VacateUndrained),
            conflicted: None,
            stage: Stage::Idle {
                next_at: context.now.boot,
            },
        };
        draining.advance(context)
    }

    /// The register shows that the leadership is lost already.
    pub(super) fn replaced(context: &mut Context, record: Record) -> State {
        let term = record.term;
        context.event(Event::Ousted {
            term,
            why: Why::Replaced,
        });
        context.event(Event::Kill { term });
        State::Draining(Self {
            record,
            version: None,
            why: Why::Replaced,
            grant: None,
            expires_at: context.now.boot,
            kill_told: true,
            drained: false,
            conflicted: None,
            stage: Stage::Done,
        })
    }

    /// The election was won too late to be used; the application never knew.
    pub(super) fn unused(
        context: &mut Context,
        record: Record,
        version: Version,
        grant: Grant,
    ) -> State {
        let draining = Self {
            record,
            version: Some(version),
            why: Why::Unconfirmed,
            grant: None,
            expires_at: grant.valid_until,
            kill_told: true,
            drained: true,
            conflicted: None,
            stage: Stage::Idle {
                next_at: context.now.boot,
            },
        };
        draining.advance(context)
    }

    pub(super) const fn term(&self) -> Term {
        self.record.term
    }

    pub(super) const fn grant(&self) -> Option<Grant> {
        self.grant
    }

    /// The application's work has ended.
    pub(super) fn drained(mut self, context: &mut Context) -> State {
        self.drained = true;
        self.take_back(context);
        State::Draining(self)
    }

    /// Makes the grant invalid, once.
    fn take_back(&mut self, context: &mut Context) {
        if self.grant.take().is_some() {
            context.event(Event::Ousted {
                term: self.term(),
                why: self.why.clone(),
            });
        }
    }

    pub(super) fn answer(mut self, context: &mut Context, call: Call, answer: Answer) -> State {
        let pending = match &self.stage {
            Stage::Reading(pending) | Stage::Vacating(pending, _) if pending.call == call => {
                *pending
            }
            _ => return State::Draining(self),
        };
        match answer {
            Answer::Wrote(Ok(version)) => {
                context.write_succeeded();
                if let Stage::Vacating(_, vacant) = &self.stage {
                    context.wrote(vacant, &version);
                }
                self.stage = Stage::Done;
            }
            Answer::Wrote(Err(failure)) | Answer::Read(Err(failure)) => {
                self.failed(context, &failure);
            }
            Answer::Read(Ok(reading)) => {
                context.learn(&pending, &reading);
                self.checked(context, &reading);
            }
            Answer::Confirmed(_) => {}
        }
        State::Draining(self)
    }

    fn failed(&mut self, context: &mut Context, failure: &Failure) {
        if failure.class != FailureClass::Unavailable {
            // The register may have changed: read before the next try.
            let expected = self.version.take();
            self.conflicted = expected.filter(|_| failure.class == FailureClass::Conflict);
        }
        let pause = match failure.class {
            FailureClass::Conflict => core::time::Duration::ZERO,
            _ => context.write_failed(failure),
        };
        self.stage = Stage::Idle {
            next_at: context.now.boot.after(pause),
        };
    }

    fn checked(&mut self, context: &mut Context, reading: &Reading) {
        let register = reading.register.as_ref();
        let shown = register.map(|register| (register, Record::decode(&register.value)));
        match shown {
            Some((register, Ok(shown))) if shown.is_held_by(context.me, self.term()) => {
                let conflicted = self.conflicted.take();
                let mut next_at = context.now.boot;
                if conflicted.is_some_and(|expected| expected == register.version) {
                    // No race: the store refuses it (§4.4.7).
                    let pause = context.refused(reading);
                    next_at = next_at.after(pause.min(context.config.interval));
                }
                self.version = Some(register.version.clone());
                self.record = shown;
                self.stage = Stage::Idle { next_at };
            }
            Some((_, Err(_))) => {
                let failure = Failure::malformed();
                self.failed(context, &failure);
            }
            Some((_, Ok(_))) | None => self.stage = Stage::Done,
        }
    }

    pub(super) fn advance(mut self, context: &mut Context) -> State {
        let now = context.now.boot;
        if let Some(grant) = self.grant {
            if !self.drained && now >= grant.kill_at && !self.kill_told {
                self.kill_told = true;
                context.event(Event::Kill { term: self.term() });
            }
            if !grant.is_valid(now) {
                self.take_back(context);
            }
        }
        match self.stage.clone() {
            Stage::Reading(pending) | Stage::Vacating(pending, _) if pending.is_given_up(now) => {
                self.failed(context, &Failure::no_answer());
            }
            _ => {}
        }
        if !self.drained {
            return State::Draining(self);
        }
        if let Stage::Idle { next_at } = self.stage {
            if now >= self.expires_at {
                self.stage = Stage::Done;
            } else if now >= next_at {
                self.vacate(context);
            }
        }
        if matches!(self.stage, Stage::Done) {
            self.leave(context)
        } else {
            State::Draining(self)
        }
    }

    fn vacate(&mut self, context: &mut Context) {
        let Some(version) = self.version.clone() else {
            self.stage = Stage::Reading(context.request_read());
            return;
        };
        let Some(sequence) = context.next_sequence(self.record.sequence) else {
            // Nobody could read it: the election is left to run out.
            context.exhausted(&self.record);
            self.stage = Stage::Done;
            return;
        };
        let successor = match &self.why {
            Why::Transferred(to) => Some(to.clone()),
            _ => None,
        };
        let reset = context.config.planted(Bug::TermReset);
        let record = Record {
            term: if reset { Term::ZERO } else { self.term() },
            sequence,
            renewal: sequence,
            occupancy: Occupancy::Vacant { successor },
            ..self.record.clone()
        };
        let within = context.config.interval;
        let pending = context.write(Expect::Version(version), &record, within);
        self.stage = Stage::Vacating(pending, record);
    }

    /// Stands again under a new id, or ends.
    fn leave(self, context: &mut Context) -> State {
        context.renew_id();
        if context.stopping {
            return context.stopped();
        }
        let now = context.now.boot;
        State::Standby(match &self.why {
            // The named one goes first, then everybody, this one among them:
            // if nobody of that name stands, a healthy leader leads again.
            Why::Transferred(_) => {
                Standby::holding_back(now, now.after(context.turn_of_successor()))
            }
            // The others first, then this one.
            why if why.lets_others_race_first() => {
                Standby::holding_back(now, now.after(context.config.interval * 2))
            }
            _ => Standby::new(now),
        })
    }

    pub(super) fn deadline(&self) -> Instant {
        let work = match &self.stage {
            Stage::Reading(pending) | Stage::Vacating(pending, _) => pending.give_up_at,
            Stage::Idle { next_at } if self.drained => (*next_at).min(self.expires_at),
            Stage::Idle { .. } | Stage::Done => Instant::MAX,
        };
        let grant = self.grant.map_or(Instant::MAX, |grant| {
            if self.kill_told || self.drained {
                grant.valid_until
            } else {
                grant.kill_at
            }
        });
        work.min(grant)
    }
}
