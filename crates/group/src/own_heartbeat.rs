//! The node's own heartbeat (§2): created once, written once an interval, never
//! created again.
//!
//! A heartbeat is a compare-and-swap on the version of the last one. So a node
//! that judges this one dead, and swaps the register first, prevails. Each
//! attempt has a sequence of its own, so that a read can tell after an unknown
//! outcome which of them took effect. The grant counts from before *that* attempt
//! was sent.
//!
//! A node that resumes begins its sequences at the boot-time clock. An attempt of
//! its earlier incarnation may still be on its way. It must not be taken for one
//! of this incarnation, because its grant would count from too late.

use alloc::collections::VecDeque;

use tenure_core::call::{Call, Failure, FailureClass, Pending};
use tenure_core::cas::{Bytes, Expect, Reading};
use tenure_core::ids::Version;
use tenure_core::time::Instant;
use tenure_election::Grant;

use super::context::Context;
use super::heartbeat::Heartbeat;
use super::types::{Event, Why};
use super::{Bug, NodeId};

/// How many attempts of unknown outcome are remembered.
const ATTEMPTS_MAX: usize = 8;

/// The heartbeat of one incarnation.
#[derive(Clone, Debug)]
pub(super) struct OwnHeartbeat {
    /// The version of the register, if it is known to exist.
    version: Option<Version>,
    /// Whether it has ever been seen to exist.
    created: bool,
    sequence: u64,
    grant: Option<Grant>,
    attempts: VecDeque<(u64, Instant)>,
    stage: Stage,
    failures: u32,
    /// What the last heartbeat expected, if it met a conflict and the register has
    /// not been read since.
    conflicted: Option<Expect>,
    /// How many registers in a row could not be created though they are not
    /// there, and when the next may be.
    refusals: u32,
    create_at: Instant,
    /// Whether the heartbeats of the incarnation before this one failed, and none
    /// has succeeded since.
    failed_before: bool,
    pub(super) status: Bytes,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Idle {
        at: Instant,
    },
    Writing(Pending),
    Reading(Pending),
    /// It is unclear what the register holds; read it then.
    Unread {
        at: Instant,
    },
    Still,
}

/// What a heartbeat came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BeatOutcome {
    Nothing,
    /// The grant was extended.
    Beat,
    /// The id is lost.
    Lost(Why),
}

impl OwnHeartbeat {
    /// The heartbeat of a node that joins now.
    pub(super) fn new(now: Instant, status: Bytes) -> Self {
        Self {
            version: None,
            created: false,
            sequence: 0,
            grant: None,
            attempts: VecDeque::new(),
            stage: Stage::Idle { at: now },
            failures: 0,
            conflicted: None,
            refusals: 0,
            create_at: now,
            failed_before: false,
            status,
        }
    }

    /// The heartbeat of an incarnation that may go on: first it must be read.
    pub(super) fn resumed(now: Instant, grant: Grant) -> Self {
        Self {
            created: true,
            // An attempt takes at least a nanosecond, so no earlier incarnation of
            // this boot has given out a sequence as high as the clock.
            sequence: now.as_nanos(),
            grant: Some(grant),
            stage: Stage::Unread { at: now },
            ..Self::new(now, Bytes::from([]))
        }
    }

    pub(super) const fn grant(&self) -> Option<Grant> {
        self.grant
    }

    /// The version to delete by, once the node has left.
    pub(super) const fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// Whether the last heartbeat failed, be it one of the incarnation before this.
    pub(super) const fn fails(&self) -> bool {
        self.failures > 0 || self.refusals > 0 || self.failed_before
    }

    /// The heartbeat of the incarnation that comes after this one. The store is
    /// as it was, but is asked anew without a pause, unless it refused to create
    /// the last one.
    pub(super) fn again(&self, now: Instant) -> Self {
        Self {
            failed_before: self.fails(),
            refusals: self.refusals,
            stage: Stage::Idle {
                at: now.max(self.create_at),
            },
            ..Self::new(now, self.status.clone())
        }
    }

    /// No heartbeat any more.
    pub(super) fn stop(&mut self) {
        self.stage = Stage::Still;
    }

    /// Whether a success may still be counted: not when it is heard of at
    /// `drain_at` or later.
    fn counts(&self, context: &Context, deadline: Instant) -> bool {
        self.grant.is_none() || context.now < deadline || context.config.plant.is(Bug::Revival)
    }

    pub(super) fn wrote(
        &mut self,
        context: &mut Context,
        call: Call,
        result: &Result<Version, Failure>,
        deadline: Instant,
    ) -> BeatOutcome {
        match self.stage {
            Stage::Writing(pending) if pending.call == call => {}
            _ => return BeatOutcome::Nothing,
        }
        match result {
            Ok(version) => {
                let last = self.attempts.pop_back();
                self.attempts.clear();
                let start = last.map_or(context.now, |(_, start)| start);
                self.version = Some(version.clone());
                self.extend(context, start, deadline)
            }
            Err(failure) => {
                if matches!(
                    failure.class,
                    FailureClass::Unavailable | FailureClass::Broken
                ) {
                    // It certainly did not land.
                    self.attempts.pop_back();
                    let pause = self.failed(context, failure);
                    self.stage = Stage::Idle { at: pause };
                    return BeatOutcome::Nothing;
                }
                if failure.class == FailureClass::Unknown {
                    self.failed(context, failure);
                } else {
                    self.conflicted = Some(self.expect());
                }
                self.stage = Stage::Reading(context.read(context.keys.heartbeat(context.me)));
                BeatOutcome::Nothing
            }
        }
    }

    fn failed(&mut self, context: &mut Context, failure: &Failure) -> Instant {
        self.failures = self.failures.saturating_add(1);
        let pause = context.trouble(failure, self.failures);
        context.now.after(pause)
    }

    fn extend(&mut self, context: &mut Context, start: Instant, deadline: Instant) -> BeatOutcome {
        self.created = true;
        if !self.counts(context, deadline) {
            return BeatOutcome::Nothing;
        }
        let late = context.config.plant.is(Bug::DeadlineFromEnd);
        let grant = context.config.grant(if late { context.now } else { start });
        self.grant = Some(grant);
        self.stage = Stage::Idle {
            at: start.after(context.config.interval),
        };
        (self.failures, self.refusals) = (0, 0);
        self.failed_before = false;
        context.event(Event::Beat { grant });
        BeatOutcome::Beat
    }

    pub(super) fn read(
        &mut self,
        context: &mut Context,
        call: Call,
        result: &Result<Reading, Failure>,
        deadline: Instant,
    ) -> BeatOutcome {
        match self.stage {
            Stage::Reading(pending) if pending.call == call => {}
            _ => return BeatOutcome::Nothing,
        }
        let reading = match result {
            Ok(reading) => reading,
            Err(failure) => {
                let at = self.failed(context, failure);
                self.stage = Stage::Unread { at };
                return BeatOutcome::Nothing;
            }
        };
        // No race, if it shows what the heartbeat expected: the store refuses it.
        let conflicted = self.conflicted.take();
        let refused = conflicted.filter(|it| it.is_met_by(reading.register.as_ref()));
        let refused =
            refused.map(|_| Failure::refused(&context.keys.heartbeat(context.me), reading));
        let Some(register) = &reading.register else {
            if let Some(failure) = refused {
                self.refusals = self.refusals.saturating_add(1);
                let pause = context.trouble(&failure, self.refusals);
                self.create_at = context.now.after(pause);
            }
            return self.absent(context);
        };
        match Heartbeat::decode(&register.value) {
            Ok(shown) if shown.node == context.me => {
                if shown.dead.is_some() {
                    return BeatOutcome::Lost(Why::JudgedDead);
                }
                self.version = Some(register.version.clone());
                self.created = true;
                if context.config.plant.is(Bug::IncarnationsShareNumbers)
                    && self.attempts.is_empty()
                {
                    self.sequence = shown.sequence;
                }
                self.sequence = self.sequence.max(shown.sequence);
                let landed = self
                    .attempts
                    .iter()
                    .find(|(sequence, _)| *sequence == shown.sequence);
                let landed = landed.map(|(_, start)| *start);
                // An attempt that was sent before the one that is shown, or
                // on an older version, can never land any more.
                self.attempts
                    .retain(|(sequence, _)| *sequence > shown.sequence);
                let at = refused.map_or(context.now, |failure| self.failed(context, &failure));
                self.stage = Stage::Idle { at };
                landed.map_or(BeatOutcome::Nothing, |start| {
                    self.extend(context, start, deadline)
                })
            }
            _ => {
                let malformed = Failure::new(FailureClass::Unknown, "the answer was no heartbeat");
                let at = self.failed(context, &malformed);
                self.stage = Stage::Unread { at };
                BeatOutcome::Nothing
            }
        }
    }

    /// It is not there: it was deleted, or an attempt to create it is still on
    /// its way, or took effect and was deleted since. An id is created once.
    fn absent(&mut self, context: &Context) -> BeatOutcome {
        let tried = self.created || !self.attempts.is_empty();
        if tried && !context.config.plant.is(Bug::HeartbeatCreates) {
            return BeatOutcome::Lost(Why::Forgotten);
        }
        self.version = None;
        self.stage = Stage::Idle { at: context.now };
        BeatOutcome::Nothing
    }

    pub(super) fn advance(&mut self, context: &mut Context) {
        match self.stage {
            Stage::Writing(pending) if pending.is_given_up(context.now) => {
                self.failed(context, &Failure::no_answer());
                self.stage = Stage::Reading(context.read(context.keys.heartbeat(context.me)));
            }
            Stage::Reading(pending) if pending.is_given_up(context.now) => {
                let at = self.failed(context, &Failure::no_answer());
                self.stage = Stage::Unread { at };
            }
            Stage::Unread { at } if context.now >= at => {
                self.stage = Stage::Reading(context.read(context.keys.heartbeat(context.me)));
            }
            Stage::Idle { at } if context.now >= at => self.beat(context),
            _ => {}
        }
    }

    fn beat(&mut self, context: &mut Context) {
        self.sequence += 1;
        if self.attempts.len() >= ATTEMPTS_MAX {
            self.attempts.pop_front();
        }
        self.attempts.push_back((self.sequence, context.now));
        let expect = self.expect();
        let value = self.record(context.me, context).encode();
        let pending = context.write(context.keys.heartbeat(context.me), expect, value);
        self.stage = Stage::Writing(pending);
    }

    fn expect(&self) -> Expect {
        self.version.clone().map_or(Expect::Absent, Expect::Version)
    }

    fn record(&self, node: NodeId, context: &Context) -> Heartbeat {
        Heartbeat {
            node,
            sequence: self.sequence,
            lease: context.config.lease,
            status: self.status.clone(),
            dead: None,
        }
    }

    pub(super) const fn deadline(&self) -> Instant {
        match self.stage {
            Stage::Idle { at } | Stage::Unread { at } => at,
            Stage::Writing(pending) | Stage::Reading(pending) => pending.give_up_at,
            Stage::Still => Instant::MAX,
        }
    }
}
