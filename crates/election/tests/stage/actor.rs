//! One campaign or observer, with its own clocks and its own link to the
//! store.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::Machine;
use tenure_core::cas::{Bytes, Reading, Register, Write};
use tenure_core::ids::{Fence, Key, Version};
use tenure_core::time::{ClockId, Instant, Now, WallTime};
use tenure_election::{Call, Campaign, Failure, Grant, Input, Observer, Output};

/// The wall clock at the start of every script: 2025-11-21, in milliseconds.
pub(crate) const DAWN_MS: i128 = 1_763_700_000_000;

#[expect(clippy::large_enum_variant, reason = "a handful a script")]
pub(crate) enum Kind {
    Campaign(Campaign),
    Observer(Observer),
}

/// How the store's answers reach an actor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    /// At once and true.
    Up,
    /// When the script says so.
    Held,
    /// Requests get lost and nothing is answered.
    Silent,
    /// Requests arrive and nothing is answered.
    Deaf,
    /// Refused at once: certainly nothing happened.
    Unavailable,
    /// An error at once that says nothing; nothing happened.
    Unknown,
    /// An error at once that a person must mend.
    Broken,
}

/// What the watch does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Watch {
    Off,
    /// Every change is reported at once.
    On,
    /// It claims to be up and reports nothing unless the script says so.
    Withheld,
}

/// A store call that was asked for.
pub(crate) struct Asked {
    pub(crate) call: Call,
    pub(crate) what: What,
    /// What came of it in the store, once it was carried out there.
    pub(crate) effect: Option<Effect>,
    pub(crate) answered: bool,
}

pub(crate) enum What {
    Read(Key),
    /// Under this session, and bound to it if there is an on-expiry value.
    Write(Write, Option<usize>, Option<Bytes>),
    /// Whether this session lives; asked at this time of the asker's clock.
    Confirm(Option<usize>, Instant),
}

#[derive(Clone)]
pub(crate) enum Effect {
    Read(Reading),
    Wrote(Result<Version, Failure>),
    Confirmed(Result<Instant, Failure>),
}

pub(crate) struct Actor {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) link: Link,
    pub(crate) watch: Watch,
    /// Work ends by itself when it is told to.
    pub(crate) obedient: bool,
    /// Nanoseconds since its boot when the script began.
    pub(crate) boot: i128,
    /// Its wall clock minus the script's, in milliseconds.
    pub(crate) wall: i128,
    /// How much faster its boot-time clock runs, in parts per million.
    pub(crate) rate: i128,
    /// By which name it knows the store's clock; none if it cannot read one.
    pub(crate) clock: Option<ClockId>,
    /// Inputs that wait while it is suspended.
    pub(crate) suspended: Option<VecDeque<Input>>,
    pub(crate) calls: Vec<Asked>,
    /// The session that it binds its register to, once it has one.
    pub(crate) session: Option<usize>,
    /// How many ids it has had.
    pub(crate) incarnations: u32,
}

impl Actor {
    pub(crate) fn machine(&mut self) -> &mut dyn Machine<Input = Input, Output = Output> {
        match &mut self.kind {
            Kind::Campaign(campaign) => campaign,
            Kind::Observer(observer) => observer,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.kind {
            Kind::Campaign(campaign) => campaign.deadline(),
            Kind::Observer(observer) => observer.deadline(),
        }
    }

    /// What its clocks say at `at` of the script.
    pub(crate) fn now(&self, at: Duration) -> Now {
        local(at, self.boot, self.rate, self.wall)
    }

    /// When its boot-time clock reaches `deadline`, in the script's time.
    pub(crate) fn when(&self, deadline: Instant) -> Duration {
        let goal = i128::from(deadline.as_nanos()) - self.boot;
        let mut at = (goal * 1_000_000 / (1_000_000 + self.rate)).max(0);
        while self.boot + at + at * self.rate / 1_000_000 < i128::from(deadline.as_nanos()) {
            at += 1;
        }
        Duration::from_nanos(u64::try_from(at).unwrap_or(u64::MAX))
    }

    pub(crate) fn leadership(&self) -> Option<(Fence, Grant)> {
        match &self.kind {
            Kind::Campaign(campaign) => campaign.leadership(),
            Kind::Observer(_) => None,
        }
    }

    /// Whether its watch follows `key`.
    pub(crate) fn follows(&self, key: &Key) -> bool {
        match &self.kind {
            Kind::Campaign(campaign) => campaign.keys().any(|followed| followed == key),
            // An observer ignores what is not its own.
            Kind::Observer(_) => true,
        }
    }

    /// The call of that number, or the oldest that has no answer yet.
    pub(crate) fn asked(&mut self, call: Option<u64>) -> Option<&mut Asked> {
        self.calls.iter_mut().find(|asked| match call {
            Some(call) => asked.call.0 == call,
            None => !asked.answered,
        })
    }
}

/// What the clocks of an actor say at `at` of the script.
pub(crate) fn local(at: Duration, boot: i128, rate: i128, wall: i128) -> Now {
    let at = i128::try_from(at.as_nanos()).unwrap_or(i128::MAX);
    let nanos = boot + at + at * rate / 1_000_000;
    let millis = DAWN_MS + at / 1_000_000 + wall;
    Now {
        boot: Instant::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)),
        wall: WallTime::from_millis(u64::try_from(millis.max(0)).unwrap_or(u64::MAX)),
    }
}

/// The input that tells a machine how its call ended.
pub(crate) fn answer(call: Call, effect: Effect) -> Input {
    match effect {
        Effect::Read(reading) => Input::Read {
            call,
            result: Ok(reading),
        },
        Effect::Wrote(result) => Input::Wrote { call, result },
        Effect::Confirmed(result) => Input::Confirmed { call, result },
    }
}

/// The input that tells a machine what its watch saw.
pub(crate) fn seen(key: &Key, register: Option<Register>) -> Input {
    Input::Seen {
        key: key.clone(),
        register,
    }
}
