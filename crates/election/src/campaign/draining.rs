//! Leaving office, always in one order (§4.6): tell the application, let its
//! work end, make the grant invalid, vacate the register, stand again under
//! a new id.
//!
//! The office is vacated by compare-and-swap on our own version, so it can
//! never empty somebody else's. If the store does not let us vacate before
//! the grant would have run out anyway, we leave it at that: judges find out
//! by themselves.

use super::watching::Watching;
use super::{
    Answer, Bug, Call, Desk, Event, Expect, Failure, FailureClass, Grant, Instant, Office, Pending,
    Reading, Record, State, Term, Version, Why,
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
    over_at: Instant,
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
    /// The compare-and-swap that empties the office is under way.
    Vacating(Pending, Record),
    /// The office is not ours any more, or there is no more time.
    Done,
}

impl Draining {
    /// Begins to give up a valid office.
    pub(super) fn begin(
        desk: &mut Desk,
        record: Record,
        version: Version,
        certain: bool,
        grant: Grant,
        why: Why,
    ) -> State {
        desk.event(Event::Draining {
            term: record.term,
            why: why.clone(),
            grant,
        });
        let draining = Self {
            record,
            version: certain.then_some(version),
            why,
            grant: Some(grant),
            over_at: grant.valid_until,
            kill_told: false,
            drained: desk.config.planted(Bug::VacateUndrained),
            conflicted: None,
            stage: Stage::Idle {
                next_at: desk.now.boot,
            },
        };
        draining.advance(desk)
    }

    /// The register shows that the office is lost already.
    pub(super) fn replaced(desk: &mut Desk, record: Record) -> State {
        let term = record.term;
        desk.event(Event::Ousted {
            term,
            why: Why::Replaced,
        });
        desk.event(Event::Kill { term });
        State::Draining(Self {
            record,
            version: None,
            why: Why::Replaced,
            grant: None,
            over_at: desk.now.boot,
            kill_told: true,
            drained: false,
            conflicted: None,
            stage: Stage::Done,
        })
    }

    /// The office was won too late to be used; the application never knew.
    pub(super) fn unused(desk: &mut Desk, record: Record, version: Version, grant: Grant) -> State {
        let draining = Self {
            record,
            version: Some(version),
            why: Why::Unconfirmed,
            grant: None,
            over_at: grant.valid_until,
            kill_told: true,
            drained: true,
            conflicted: None,
            stage: Stage::Idle {
                next_at: desk.now.boot,
            },
        };
        draining.advance(desk)
    }

    pub(super) const fn term(&self) -> Term {
        self.record.term
    }

    pub(super) const fn grant(&self) -> Option<Grant> {
        self.grant
    }

    /// The application's work has ended.
    pub(super) fn drained(mut self, desk: &mut Desk) -> State {
        self.drained = true;
        self.take_back(desk);
        State::Draining(self)
    }

    /// Makes the grant invalid, once.
    fn take_back(&mut self, desk: &mut Desk) {
        if self.grant.take().is_some() {
            desk.event(Event::Ousted {
                term: self.term(),
                why: self.why.clone(),
            });
        }
    }

    pub(super) fn answer(mut self, desk: &mut Desk, call: Call, answer: Answer) -> State {
        let pending = match &self.stage {
            Stage::Reading(pending) | Stage::Vacating(pending, _) if pending.call == call => {
                pending.clone()
            }
            _ => return State::Draining(self),
        };
        match answer {
            Answer::Wrote(Ok(version)) => {
                desk.write_succeeded();
                if let Stage::Vacating(_, vacant) = &self.stage {
                    desk.wrote(vacant, &version);
                }
                self.stage = Stage::Done;
            }
            Answer::Wrote(Err(failure)) | Answer::Read(Err(failure)) => {
                self.failed(desk, &failure);
            }
            Answer::Read(Ok(reading)) => {
                desk.learn(&pending, &reading);
                self.checked(desk, &reading);
            }
            Answer::Confirmed(_) => {}
        }
        State::Draining(self)
    }

    fn failed(&mut self, desk: &mut Desk, failure: &Failure) {
        if failure.class != FailureClass::Unavailable {
            // The register may have changed: read before the next try.
            let expected = self.version.take();
            self.conflicted = expected.filter(|_| failure.class == FailureClass::Conflict);
        }
        let pause = match failure.class {
            FailureClass::Conflict => core::time::Duration::ZERO,
            _ => desk.write_failed(failure),
        };
        self.stage = Stage::Idle {
            next_at: desk.now.boot.after(pause),
        };
    }

    fn checked(&mut self, desk: &mut Desk, reading: &Reading) {
        let register = reading.register.as_ref();
        let shown = register.map(|register| (register, Record::decode(&register.value)));
        match shown {
            Some((register, Ok(shown))) if shown.is_held_by(desk.me, self.term()) => {
                let conflicted = self.conflicted.take();
                let mut next_at = desk.now.boot;
                if conflicted.is_some_and(|expected| expected == register.version) {
                    // No race: the store refuses it (§4.4.7).
                    let pause = desk.refused(reading);
                    next_at = next_at.after(pause.min(desk.config.interval));
                }
                self.version = Some(register.version.clone());
                self.record = shown;
                self.stage = Stage::Idle { next_at };
            }
            Some((_, Err(_))) => {
                let failure = Failure::garbled();
                self.failed(desk, &failure);
            }
            Some((_, Ok(_))) | None => self.stage = Stage::Done,
        }
    }

    pub(super) fn advance(mut self, desk: &mut Desk) -> State {
        let now = desk.now.boot;
        if let Some(grant) = self.grant {
            if !self.drained && now >= grant.kill_at && !self.kill_told {
                self.kill_told = true;
                desk.event(Event::Kill { term: self.term() });
            }
            if !grant.is_valid(now) {
                self.take_back(desk);
            }
        }
        match self.stage.clone() {
            Stage::Reading(pending) | Stage::Vacating(pending, _) if pending.is_given_up(now) => {
                self.failed(desk, &Failure::no_answer());
            }
            _ => {}
        }
        if !self.drained {
            return State::Draining(self);
        }
        if let Stage::Idle { next_at } = self.stage {
            if now >= self.over_at {
                self.stage = Stage::Done;
            } else if now >= next_at {
                self.vacate(desk);
            }
        }
        if matches!(self.stage, Stage::Done) {
            self.leave(desk)
        } else {
            State::Draining(self)
        }
    }

    fn vacate(&mut self, desk: &mut Desk) {
        let Some(version) = self.version.clone() else {
            self.stage = Stage::Reading(desk.ask());
            return;
        };
        let Some(sequence) = desk.next_sequence(self.record.sequence) else {
            // Nobody could read it: the office is left to run out.
            desk.exhausted(&self.record);
            self.stage = Stage::Done;
            return;
        };
        let successor = match &self.why {
            Why::Transferred(to) => Some(to.clone()),
            _ => None,
        };
        let reset = desk.config.planted(Bug::TermReset);
        let record = Record {
            term: if reset { Term::ZERO } else { self.term() },
            sequence,
            renewal: sequence,
            office: Office::Vacant { successor },
            ..self.record.clone()
        };
        let within = desk.config.interval;
        let pending = desk.write(Expect::Version(version), &record, within);
        self.stage = Stage::Vacating(pending, record);
    }

    /// Stands again under a new id, or ends.
    fn leave(self, desk: &mut Desk) -> State {
        desk.renew_id();
        if desk.stopping {
            return desk.stopped();
        }
        let now = desk.now.boot;
        State::Watching(match &self.why {
            // The named one goes first, then everybody, this one among them:
            // if nobody of that name stands, a healthy leader leads again.
            Why::Transferred(_) => Watching::holding_back(now, now.after(desk.turn_of_successor())),
            // The others first, then this one.
            why if why.is_voluntary() => {
                Watching::holding_back(now, now.after(desk.config.interval * 2))
            }
            _ => Watching::new(now),
        })
    }

    pub(super) fn deadline(&self) -> Instant {
        let work = match &self.stage {
            Stage::Reading(pending) | Stage::Vacating(pending, _) => pending.give_up_at,
            Stage::Idle { next_at } if self.drained => (*next_at).min(self.over_at),
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
