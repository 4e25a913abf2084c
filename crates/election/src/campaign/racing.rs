//! One compare-and-swap for the election (§4.4).
//!
//! Won, lost, or *unknown*. Unknown is settled by reading: if the register
//! shows this attempt (its id and its sequence), it was won, and the grant
//! counts from before the attempt was sent. If it still shows the version
//! that was to be swapped, the attempt may yet land; the id it carries is
//! abandoned, so that a late landing elects an id that no candidate uses.

use super::draining::Draining;
use super::leading::Leading;
use super::standby::Standby;
use super::{
    Answer, Bug, Call, Context, Event, Expect, Failure, FailureClass, Fence, Grant, Instant,
    Occupancy, Pending, Reading, Record, State, Term, Version,
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
    pub(super) fn begin(context: &mut Context) -> State {
        let now = context.now;
        // Above everything this process has seen, not only above what the
        // register shows: that may be an older copy (§1.9, §4.14).
        let floor = if context.config.planted(Bug::FloorForgotten) {
            context
                .judge
                .record()
                .map_or(Term::ZERO, |record| record.term)
        } else {
            context.judge.top_term()
        };
        let Some(term) = floor.next() else {
            // Two hundred million years of elections: a damaged register.
            let why = alloc::format!(
                "expected a term after which there is one, found {floor}: the record was written \
                 by hand; stop every candidate and delete it (`tenure forget {}`), and fences \
                 begin again at 1",
                context.config.election
            );
            context.write_failed(&Failure::new(FailureClass::Broken, &why));
            return State::Standby(Standby::looking_again(now.boot.after(context.config.lease)));
        };
        let known = context.judge.record().cloned();
        let sequence = match &known {
            None => context.next_sequence(0),
            Some(record) if record.sequence_to_stand().is_none() => None,
            Some(record) => context.next_sequence(record.sequence),
        };
        let Some(sequence) = sequence else {
            let pause = known.map_or(context.config.lease, |record| context.exhausted(&record));
            return State::Standby(Standby::looking_again(now.boot.after(pause)));
        };
        let expect = context
            .judge
            .version()
            .cloned()
            .map_or(Expect::Absent, Expect::Version);
        let record = Record {
            election: context.config.election.clone(),
            term,
            sequence,
            renewal: sequence,
            lease: context.config.lease,
            acquired_at: now.wall,
            renewed_at: now.wall,
            occupancy: Occupancy::Held(context.holder()),
        };
        let stage = Stage::Writing(context.write(expect.clone(), &record, context.config.interval));
        State::Racing(Self {
            record,
            expect,
            start: now.boot,
            stage,
        })
    }

    pub(super) fn answer(self, context: &mut Context, call: Call, answer: Answer) -> State {
        let awaited = match &self.stage {
            Stage::Writing(pending) | Stage::Settling(pending) => pending.call == call,
            Stage::Unsettled { .. } => false,
        };
        match answer {
            _ if !awaited => State::Racing(self),
            Answer::Wrote(Ok(version)) => self.won(context, version),
            Answer::Wrote(Err(failure)) => self.write_failed(context, &failure),
            Answer::Read(Ok(reading)) => self.settle(context, &reading),
            Answer::Read(Err(failure)) => self.unsettled(context, &failure),
            Answer::Confirmed(_) => State::Racing(self),
        }
    }

    fn write_failed(self, context: &mut Context, failure: &Failure) -> State {
        let now = context.now.boot;
        match failure.class {
            // Lost. Look at once who has won.
            FailureClass::Conflict => State::Standby(Standby::lost(now, self.expect)),
            FailureClass::Unknown if context.config.planted(Bug::UnknownIsWon) => {
                let version = Version::from_u64(0);
                self.won(context, version)
            }
            FailureClass::Unknown if context.config.planted(Bug::UnknownIsLost) => {
                State::Standby(Standby::new(now))
            }
            FailureClass::Unknown => {
                context.write_failed(failure);
                let stage = Stage::Settling(context.request_read());
                State::Racing(Self { stage, ..self })
            }
            FailureClass::Unavailable | FailureClass::Broken => {
                let pause = context.write_failed(failure);
                State::Standby(Standby::looking_again(now.after(pause)))
            }
        }
    }

    fn settle(self, context: &mut Context, reading: &Reading) -> State {
        let now = context.now.boot;
        let asked = match &self.stage {
            Stage::Writing(pending) | Stage::Settling(pending) => *pending,
            Stage::Unsettled { .. } => return State::Racing(self),
        };
        context.learn(&asked, reading);
        context.read_succeeded();
        let register = reading.register.as_ref();
        let shown = register.and_then(|register| Record::decode(&register.value).ok());
        let unchanged = self.expect.is_met_by(register);
        match (register, shown) {
            (Some(register), Some(shown)) if self.is_shown_by(context, &shown) => {
                // What is shown may hold a request that somebody wrote since.
                let version = register.version.clone();
                Self {
                    record: shown,
                    ..self
                }
                .won(context, version)
            }
            (Some(_), None) => {
                let failure = Failure::malformed();
                self.unsettled(context, &failure)
            }
            _ if unchanged => {
                context.renew_id();
                let again = context.config.interval / 8;
                State::Standby(Standby::racing_again(now.after(again)))
            }
            // The expected version is gone, so the attempt cannot land now. It
            // may land later all the same, where what was expected comes back:
            // nothing at all, when the register is deleted or lost; a version,
            // when an older copy returns. So nobody goes by its id any more.
            _ => {
                context.renew_id();
                State::Standby(Standby::new(now))
            }
        }
    }

    fn is_shown_by(&self, context: &Context, shown: &Record) -> bool {
        shown.is_held_by(context.me, self.record.term) && shown.renewal == self.record.renewal
    }

    fn unsettled(self, context: &mut Context, failure: &Failure) -> State {
        let pause = context.read_failed(failure);
        let read_at = context.now.boot.after(pause);
        State::Racing(Self {
            stage: Stage::Unsettled { read_at },
            ..self
        })
    }

    fn won(self, context: &mut Context, version: Version) -> State {
        let mut start = self.start;
        if context.config.planted(Bug::DeadlineFromEnd) {
            start = context.now.boot;
        }
        let grant = Grant::new(start, &context.config);
        let term = self.record.term;
        context.write_succeeded();
        context.wrote(&self.record, &version);
        if context.now.boot >= grant.drain_at || context.stopping {
            // Too late to begin anything; the application never knew.
            return Draining::unused(context, self.record, version, grant);
        }
        context.event(Event::Elected {
            fence: Fence {
                term,
                leader: context.me,
            },
            grant,
        });
        State::Leading(Leading::new(context, self.record, version, grant))
    }

    pub(super) fn advance(self, context: &mut Context) -> State {
        let now = context.now.boot;
        if context.stopping && now >= self.settle_until(context) {
            return context.stopped();
        }
        match &self.stage {
            Stage::Writing(pending) if pending.is_given_up(now) => {
                self.write_failed(context, &Failure::no_answer())
            }
            Stage::Settling(pending) if pending.is_given_up(now) => {
                self.unsettled(context, &Failure::no_answer())
            }
            Stage::Unsettled { read_at } if now >= *read_at => {
                let stage = Stage::Settling(context.request_read());
                State::Racing(Self { stage, ..self })
            }
            Stage::Writing(_) | Stage::Settling(_) | Stage::Unsettled { .. } => State::Racing(self),
        }
    }

    /// A candidate that wants to stop settles the race for as long as there may
    /// be an election to vacate, and no longer: the store may be gone for good.
    fn settle_until(&self, context: &Context) -> Instant {
        Grant::new(self.start, &context.config).valid_until
    }

    pub(super) fn deadline(&self, context: &Context) -> Instant {
        let next = match &self.stage {
            Stage::Writing(pending) | Stage::Settling(pending) => pending.give_up_at,
            Stage::Unsettled { read_at } => *read_at,
        };
        if context.stopping {
            next.min(self.settle_until(context))
        } else {
            next
        }
    }
}
