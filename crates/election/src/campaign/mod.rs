//! The campaign: one candidate's way through an election (§4).
//!
//! ```text
//!            vacant or over             won
//! watching ------------------> racing --------> leading
//!    ^  ^                        |                 |  resign, request, unconfirmed
//!    |  |  lost, or unresolved   |                 v  until drain_at, other leader
//!    |  +------------------------+              draining
//!    +-------------------------------------------+   work ended, office vacated,
//!                    under a new id                   or over
//! ```
//!
//! Each state is a type in a file of its own and holds only what that state
//! knows; what they share is in `desk`, and the transitions are in this file. At most one store call of the
//! campaign counts at a time: when its patience runs out the call is given up
//! as *unknown*, and an answer that comes later is ignored.
//!
//! # What the application owes
//!
//! After [`Event::Draining`] or [`Event::Ousted`] it ends its work and says
//! [`Input::Drained`]. Until then the campaign neither vacates the office nor
//! stands again. That order (stop, then flip, then release) is the whole
//! point: an office released while its work still runs is two leaders.

mod affinity;
mod desk;
mod draining;
mod floor;
mod leading;
mod racing;
mod types;
mod watching;

pub use types::{Bind, Command, Event, Input, Output, Why};

use tenure_core::call::{Call, Failure, FailureClass};
use tenure_core::cas::{Expect, Reading, Register};
use tenure_core::ids::{Fence, Key, LeaderId, Term, Version};
use tenure_core::machine::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{Instant, Now};

use self::affinity::Affinity;
use self::desk::Desk;
use self::draining::Draining;
use self::leading::Leading;
use self::racing::Racing;
use self::types::Pending;
use self::watching::Watching;
use super::{Bug, Config, Grant, News, Office, Record, Sight, Standing};

/// One candidate in one election.
#[derive(Clone, Debug)]
pub struct Campaign {
    state: State,
    desk: Desk,
}

#[derive(Clone, Debug)]
enum State {
    Watching(Watching),
    Racing(Racing),
    Leading(Leading),
    Draining(Draining),
    Stopped,
}

impl Campaign {
    /// A candidate that begins to stand at `now`. The configuration must have
    /// been [validated](Config::validate).
    pub fn new(config: Config, rng: Rng, now: Now) -> Self {
        Self::above(Term::ZERO, config, rng, now)
    }

    /// The same for one that knows from elsewhere that terms up to `floor`
    /// have been used: it leads above that, as if it had seen them (§4.14).
    pub fn above(floor: Term, config: Config, rng: Rng, now: Now) -> Self {
        debug_assert_eq!(config.validate(), Ok(()), "validate before you campaign");
        let mut campaign = Self {
            state: State::Watching(Watching::new(now.boot)),
            desk: Desk::new(floor, config, rng, now),
        };
        campaign.advance();
        campaign
    }

    /// The id under which it stands at present.
    pub const fn id(&self) -> LeaderId {
        self.desk.me
    }

    /// What it was told.
    pub const fn config(&self) -> &Config {
        &self.desk.config
    }

    /// What it has seen of the register.
    pub const fn sight(&self) -> &Sight {
        &self.desk.sight
    }

    /// The fence and the grant it holds, while it holds one.
    pub const fn reign(&self) -> Option<(Fence, Grant)> {
        let (term, grant) = match &self.state {
            State::Leading(leading) => (leading.term(), leading.grant()),
            State::Draining(draining) => match draining.grant() {
                Some(grant) => (draining.term(), grant),
                None => return None,
            },
            State::Watching(_) | State::Racing(_) | State::Stopped => return None,
        };
        Some((
            Fence {
                term,
                leader: self.desk.me,
            },
            grant,
        ))
    }

    /// Whether it neither leads nor has a race under way.
    pub const fn is_watching(&self) -> bool {
        matches!(self.state, State::Watching(_))
    }

    /// Whether it has ended; nothing moves it any more.
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped)
    }

    /// The keys that a watch should follow.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        core::iter::once(&self.desk.key).chain(self.desk.affinity.iter().map(Affinity::key))
    }

    fn answer(&mut self, call: Call, answer: Answer) {
        if self.desk.affinity_answer(call, &answer) {
            return;
        }
        self.state = match core::mem::replace(&mut self.state, State::Stopped) {
            State::Watching(watching) => watching.answer(&mut self.desk, call, answer),
            State::Racing(racing) => racing.answer(&mut self.desk, call, answer),
            State::Leading(leading) => leading.answer(&mut self.desk, call, answer),
            State::Draining(draining) => draining.answer(&mut self.desk, call, answer),
            State::Stopped => State::Stopped,
        };
    }

    fn seen(&mut self, key: &Key, register: Option<&Register>) {
        if self.desk.affinity_seen(key, register) || *key != self.desk.key {
            return;
        }
        match &mut self.state {
            State::Watching(watching) => watching.hint(&mut self.desk, register),
            State::Leading(leading) => leading.hint(&self.desk, register),
            // Both are about to know better.
            State::Racing(_) | State::Draining(_) | State::Stopped => {}
        }
    }

    /// The watch came or went. Either way something may have happened that
    /// nobody has reported, so look; unless the store is in trouble anyway.
    fn watching(&mut self, up: bool) {
        if core::mem::replace(&mut self.desk.watching, up) == up {
            return;
        }
        let now = self.desk.now.boot;
        if let Some(other) = &mut self.desk.affinity {
            other.look(now);
        }
        match &mut self.state {
            State::Watching(watching) if self.desk.read_failures == 0 => watching.look(now),
            State::Leading(leading) => leading.watch_changed(&self.desk),
            _ => {}
        }
    }

    fn command(&mut self, command: Command) {
        let why = match command {
            Command::Stop => {
                self.desk.stopping = true;
                Why::Resigned
            }
            Command::Resign => Why::Resigned,
            Command::Transfer(to) => Why::Transferred(to),
        };
        self.state = match core::mem::replace(&mut self.state, State::Stopped) {
            State::Leading(leading) => leading.drain(&mut self.desk, why),
            other => other,
        };
    }

    fn drained(&mut self) {
        self.state = match core::mem::replace(&mut self.state, State::Stopped) {
            State::Draining(draining) => draining.drained(&mut self.desk),
            // Work that ended by itself: there is nothing to drain.
            State::Leading(leading) => match leading.drain(&mut self.desk, Why::Resigned) {
                State::Draining(draining) => draining.drained(&mut self.desk),
                other => other,
            },
            other => other,
        };
    }

    const fn work_confirmed(&mut self, start: Instant) {
        if let State::Leading(leading) = &mut self.state {
            leading.work_confirmed(start);
        }
    }

    /// Does what time alone has made due, until nothing is.
    fn advance(&mut self) {
        self.desk.affinity_advance();
        self.state = match core::mem::replace(&mut self.state, State::Stopped) {
            State::Watching(watching) => watching.advance(&mut self.desk),
            State::Racing(racing) => racing.advance(&mut self.desk),
            State::Leading(leading) => leading.advance(&mut self.desk),
            State::Draining(draining) => draining.advance(&mut self.desk),
            State::Stopped => return,
        };
        if !self.is_stopped() {
            self.desk.tell_leader();
        }
    }
}

impl Machine for Campaign {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        self.desk.set_now(now);
        match input {
            Input::Read { call, result } => self.answer(call, Answer::Read(result)),
            Input::Wrote { call, result } => self.answer(call, Answer::Wrote(result)),
            Input::Confirmed { call, result } => self.answer(call, Answer::Confirmed(result)),
            Input::Seen { key, register } => self.seen(&key, register.as_ref()),
            Input::Watching(up) => self.watching(up),
            Input::Command(command) => self.command(command),
            Input::Drained => self.drained(),
            Input::WorkConfirmed { start } => self.work_confirmed(start),
        }
        self.advance();
    }

    fn tick(&mut self, now: Now) {
        self.desk.set_now(now);
        self.advance();
    }

    fn poll(&mut self) -> Option<Output> {
        self.desk.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let own = match &self.state {
            State::Watching(watching) => watching.deadline(&self.desk),
            State::Racing(racing) => racing.deadline(&self.desk),
            State::Leading(leading) => leading.deadline(&self.desk),
            State::Draining(draining) => draining.deadline(),
            State::Stopped => return None,
        };
        let other = self.desk.affinity.as_ref().map(Affinity::deadline);
        other.map_or(Some(own), |other| Some(own.min(other)))
    }
}

/// The end of a store call.
#[derive(Clone, Debug)]
enum Answer {
    Read(Result<Reading, Failure>),
    Wrote(Result<Version, Failure>),
    /// Since when the session is known to have lived.
    Confirmed(Result<Instant, Failure>),
}
