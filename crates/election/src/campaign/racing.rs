//! One compare-and-swap for the office (§4.4).
//!
//! Won, lost, or *unknown*. Unknown is settled by reading: if the register
//! shows this attempt (its id and its sequence), it was won, and the grant
//! counts from before the attempt was sent. If it still shows the version
//! that was to be swapped, the attempt may yet land; the id it carries is
//! abandoned, so that a late landing elects somebody who is nobody.

use super::draining::Draining;
use super::leading::Leading;
use super::watching::Watching;
use super::{
    Answer, Bug, Call, Desk, Event, Expect, Failure, FailureClass, Fence, Grant, Instant, Office,
    Pending, Reading, Record, State, Term, Version,
};

#[derive(Clone, Debug)]
pub(super) struct Racing {
    /// What was sent.
    record: Record,
    expect: Expect,
    /// The moment before it was sent: the grant counts from here.
    start: Instant,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The compare-and-swap is under way.
    Writing(Pending),
    /// Its outcome is unknown; a read is under way.
    Settling(Pending),
    /// Its outcome is unknown and so was the read's; read again.
    Unsettled { read_at: Instant },
}

impl Racing {
    pub(super) fn begin(desk: &mut Desk) -> State {
        let now = desk.now;
        // Above everything this process has seen, not only above what the
        // register shows: that may be an older copy (§1.9, §4.14).
        let floor = if desk.config.planted(Bug::FloorForgotten) {
            desk.sight.record().map_or(Term::ZERO, |record| record.term)
        } else {
            desk.sight.top_term()
        };
        let Some(term) = floor.next() else {
            // Two hundred million years of elections: a damaged register.
            let why = alloc::format!(
                "expected a term after which there is one, found {floor}: the record was written \
                 by hand; stop every candidate and delete it (`tenure forget {}`), and fences \
                 begin again at 1",
                desk.config.election
            );
            desk.write_failed(&Failure::new(FailureClass::Broken, &why));
            return State::Watching(Watching::looking_again(now.boot.after(desk.config.lease)));
        };
        let known = desk.sight.record().cloned();
        let sequence = match &known {
            None => desk.next_sequence(0),
            Some(record) if record.sequence > Record::STAND_MAX => None,
            Some(record) => desk.next_sequence(record.sequence),
        };
        let Some(sequence) = sequence else {
            let pause = known.map_or(desk.config.lease, |record| desk.exhausted(&record));
            return State::Watching(Watching::looking_again(now.boot.after(pause)));
        };
        let expect = desk
            .sight
            .version()
            .cloned()
            .map_or(Expect::Absent, Expect::Version);
        let record = Record {
            election: desk.config.election.clone(),
            term,
            sequence,
            renewal: sequence,
            lease: desk.config.lease,
            acquired_at: now.wall,
            renewed_at: now.wall,
            office: Office::Held(desk.holder()),
        };
        let stage = Stage::Writing(desk.write(expect.clone(), &record, desk.config.interval));
        State::Racing(Self {
            record,
            expect,
            start: now.boot,
            stage,
        })
    }

    pub(super) fn answer(self, desk: &mut Desk, call: Call, answer: Answer) -> State {
        let awaited = match &self.stage {
            Stage::Writing(pending) | Stage::Settling(pending) => pending.call == call,
            Stage::Unsettled { .. } => false,
        };
        match answer {
            _ if !awaited => State::Racing(self),
            Answer::Wrote(Ok(version)) => self.won(desk, version),
            Answer::Wrote(Err(failure)) => self.write_failed(desk, &failure),
            Answer::Read(Ok(reading)) => self.settle(desk, &reading),
            Answer::Read(Err(failure)) => self.unsettled(desk, &failure),
            Answer::Confirmed(_) => State::Racing(self),
        }
    }

    fn write_failed(self, desk: &mut Desk, failure: &Failure) -> State {
        let now = desk.now.boot;
        match failure.class {
            // Lost. Look at once who has won.
            FailureClass::Conflict => State::Watching(Watching::lost(now, self.expect)),
            FailureClass::Unknown if desk.config.planted(Bug::UnknownIsWon) => {
                let version = Version::from_u64(0);
                self.won(desk, version)
            }
            FailureClass::Unknown if desk.config.planted(Bug::UnknownIsLost) => {
                State::Watching(Watching::new(now))
            }
            FailureClass::Unknown => {
                desk.write_failed(failure);
                let stage = Stage::Settling(desk.ask());
                State::Racing(Self { stage, ..self })
            }
            FailureClass::Unavailable | FailureClass::Broken => {
                let pause = desk.write_failed(failure);
                State::Watching(Watching::looking_again(now.after(pause)))
            }
        }
    }

    fn settle(self, desk: &mut Desk, reading: &Reading) -> State {
        let now = desk.now.boot;
        let asked = match &self.stage {
            Stage::Writing(pending) | Stage::Settling(pending) => pending.clone(),
            Stage::Unsettled { .. } => return State::Racing(self),
        };
        desk.learn(&asked, reading);
        desk.read_succeeded();
        let register = reading.register.as_ref();
        let shown = register.and_then(|register| Record::decode(&register.value).ok());
        let unchanged = self.expect.is_met_by(register);
        match (register, shown) {
            (Some(register), Some(shown)) if self.is_shown_by(desk, &shown) => {
                // What is shown may hold a request that somebody wrote since.
                let version = register.version.clone();
                Self {
                    record: shown,
                    ..self
                }
                .won(desk, version)
            }
            (Some(_), None) => {
                let failure = Failure::garbled();
                self.unsettled(desk, &failure)
            }
            _ if unchanged => {
                desk.renew_id();
                let again = desk.config.interval / 8;
                State::Watching(Watching::racing_again(now.after(again)))
            }
            // The expected version is gone, so the attempt cannot land now. It
            // may land later all the same, where what was expected comes back:
            // nothing at all, when the register is deleted or lost; a version,
            // when an older copy returns. So nobody goes by its id any more.
            _ => {
                desk.renew_id();
                State::Watching(Watching::new(now))
            }
        }
    }

    fn is_shown_by(&self, desk: &Desk, shown: &Record) -> bool {
        shown.is_held_by(desk.me, self.record.term) && shown.renewal == self.record.renewal
    }

    fn unsettled(self, desk: &mut Desk, failure: &Failure) -> State {
        let pause = desk.read_failed(failure);
        let read_at = desk.now.boot.after(pause);
        State::Racing(Self {
            stage: Stage::Unsettled { read_at },
            ..self
        })
    }

    fn won(self, desk: &mut Desk, version: Version) -> State {
        let mut start = self.start;
        if desk.config.planted(Bug::DeadlineFromEnd) {
            start = desk.now.boot;
        }
        let grant = Grant::new(start, &desk.config);
        let term = self.record.term;
        desk.write_succeeded();
        desk.wrote(&self.record, &version);
        if desk.now.boot >= grant.drain_at || desk.stopping {
            // Too late to begin anything; the application never knew.
            return Draining::unused(desk, self.record, version, grant);
        }
        desk.event(Event::Elected {
            fence: Fence {
                term,
                leader: desk.me,
            },
            grant,
        });
        State::Leading(Leading::new(desk, self.record, version, grant))
    }

    pub(super) fn advance(self, desk: &mut Desk) -> State {
        let now = desk.now.boot;
        if desk.stopping && now >= self.settle_until(desk) {
            return desk.stopped();
        }
        match &self.stage {
            Stage::Writing(pending) if pending.is_given_up(now) => {
                self.write_failed(desk, &Failure::no_answer())
            }
            Stage::Settling(pending) if pending.is_given_up(now) => {
                self.unsettled(desk, &Failure::no_answer())
            }
            Stage::Unsettled { read_at } if now >= *read_at => {
                let stage = Stage::Settling(desk.ask());
                State::Racing(Self { stage, ..self })
            }
            Stage::Writing(_) | Stage::Settling(_) | Stage::Unsettled { .. } => State::Racing(self),
        }
    }

    /// Whoever wants to stop settles for as long as there may be an office
    /// to vacate, and no longer: the store may be gone for good.
    fn settle_until(&self, desk: &Desk) -> Instant {
        Grant::new(self.start, &desk.config).valid_until
    }

    pub(super) fn deadline(&self, desk: &Desk) -> Instant {
        let next = match &self.stage {
            Stage::Writing(pending) | Stage::Settling(pending) => pending.give_up_at,
            Stage::Unsettled { read_at } => *read_at,
        };
        if desk.stopping {
            next.min(self.settle_until(desk))
        } else {
            next
        }
    }
}
