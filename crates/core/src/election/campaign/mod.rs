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
//! knows; the transitions are in this file. At most one store call of the
//! campaign counts at a time: when its patience runs out the call is given up
//! as *unknown*, and an answer that comes later is ignored.
//!
//! # What the application owes
//!
//! After [`Event::Draining`] or [`Event::Ousted`] it ends its work and says
//! [`Input::Drained`]. Until then the campaign neither vacates the office nor
//! stands again. That order (stop, then flip, then release) is the whole
//! point: an office released while its work still runs is two leaders.

mod draining;
mod leading;
mod racing;
mod types;
mod watching;

use alloc::collections::VecDeque;
use core::time::Duration;

pub use types::{Call, Command, Event, Failure, FailureClass, Input, Output, Why};

use self::draining::Draining;
use self::leading::Leading;
use self::racing::Racing;
use self::types::Pending;
use self::watching::Watching;
use super::{Bug, Config, Grant, Holder, Leader, News, Office, Record, Sight, Standing};
use crate::cas::{Expect, Reading, Register, Stamp, Write};
use crate::ids::{Fence, Key, LeaderId, Term, Version};
use crate::machine::Machine;
use crate::rng::Rng;
use crate::time::{Instant, Now};

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

/// What all states share.
#[derive(Clone, Debug)]
struct Desk {
    config: Config,
    key: Key,
    me: LeaderId,
    rng: Rng,
    /// The latest time seen; time never goes back.
    now: Now,
    sight: Sight,
    affinity: Option<Affinity>,
    /// Whether the store reports changes by itself at present.
    watching: bool,
    /// The application wants the campaign to end.
    stopping: bool,
    /// Failures of reads in a row, and of writes. A read that succeeds does
    /// not end the trouble with writes: a full disk can be read all day.
    read_failures: u32,
    write_failures: u32,
    last_call: u64,
    /// Who led when it was last told; `None` before the first look.
    told: Option<Option<(Term, LeaderId)>>,
    outputs: VecDeque<Output>,
}

/// The other election whose leader must have this candidate's name.
#[derive(Clone, Debug)]
struct Affinity {
    key: Key,
    config: Config,
    sight: Sight,
    pending: Option<Pending>,
    read_at: Instant,
    /// The last look failed: do not look again before `read_at`.
    failed: bool,
}

impl Campaign {
    /// A candidate that begins to stand at `now`. The configuration must have
    /// been [validated](Config::validate).
    pub fn new(config: Config, mut rng: Rng, now: Now) -> Self {
        debug_assert_eq!(config.validate(), Ok(()), "validate before you campaign");
        let affinity = config.affinity.clone().map(|election| Affinity {
            key: Key::of_election(&election),
            config: Config {
                election,
                affinity: None,
                ..config.clone()
            },
            sight: Sight::new(),
            pending: None,
            read_at: now.boot,
            failed: false,
        });
        let desk = Desk {
            key: Key::of_election(&config.election),
            config,
            me: LeaderId::from_u128(rng.next_u128()),
            rng,
            now,
            sight: Sight::new(),
            affinity,
            watching: false,
            stopping: false,
            read_failures: 0,
            write_failures: 0,
            last_call: 0,
            told: None,
            outputs: VecDeque::new(),
        };
        let mut campaign = Self {
            state: State::Watching(Watching::new(now.boot)),
            desk,
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
        core::iter::once(&self.desk.key).chain(self.desk.affinity.iter().map(|other| &other.key))
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
        if let Some(other) = self.desk.affinity.as_mut().filter(|other| !other.failed) {
            other.read_at = now;
        }
        if let State::Watching(watching) = &mut self.state
            && self.desk.read_failures == 0
        {
            watching.look(now);
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
            Input::Seen { key, register } => self.seen(&key, register.as_ref()),
            Input::Watching(up) => self.watching(up),
            Input::Command(command) => self.command(command),
            Input::Drained => self.drained(),
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
            State::Leading(leading) => leading.deadline(),
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
}

impl Desk {
    fn set_now(&mut self, now: Now) {
        self.now = Now {
            boot: now.boot.max(self.now.boot),
            wall: now.wall,
        };
    }

    fn call(&mut self) -> Call {
        self.last_call += 1;
        Call(self.last_call)
    }

    fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    /// Asks for a read of the register.
    fn ask(&mut self) -> Pending {
        let key = self.key.clone();
        self.ask_for(key)
    }

    fn ask_for(&mut self, key: Key) -> Pending {
        let within = self.config.interval;
        let pending = Pending::new(self.call(), self.now.boot, within);
        self.outputs.push_back(Output::Read {
            call: pending.call,
            key,
            within,
        });
        pending
    }

    /// Asks for a compare-and-swap of the register.
    fn write(&mut self, expect: Expect, record: &Record, within: Duration) -> Pending {
        let pending = Pending::new(self.call(), self.now.boot, within);
        let (key, value) = (self.key.clone(), record.encode());
        let write = Write {
            key,
            expect,
            value,
            stamp: Stamp::Now,
        };
        self.outputs.push_back(Output::Write {
            call: pending.call,
            write,
            within,
        });
        pending
    }

    /// The sequence after `last`.
    fn next_sequence(&self, last: u64) -> u64 {
        if self.config.planted(Bug::SequenceKept) {
            last
        } else {
            last.saturating_add(1)
        }
    }

    /// This candidate as a holder.
    fn holder(&self) -> Holder {
        Holder {
            id: self.me,
            name: self.config.name.clone(),
            addresses: self.config.addresses.clone().into(),
            params: self.config.params.clone(),
            request: None,
        }
    }

    /// Counts a failed read and says how long to wait before the next.
    fn read_failed(&mut self, failure: &Failure) -> Duration {
        self.read_failures = self.read_failures.saturating_add(1);
        self.trouble(failure, self.read_failures)
    }

    /// Counts a failed write and says how long to wait before the next.
    fn write_failed(&mut self, failure: &Failure) -> Duration {
        self.write_failures = self.write_failures.saturating_add(1);
        self.trouble(failure, self.write_failures)
    }

    /// Tells of a failure. The pause after it is an eighth of the interval,
    /// doubled each time, at most an interval; at most a lease where a person
    /// must do something first.
    fn trouble(&mut self, failure: &Failure, in_a_row: u32) -> Duration {
        let most = match failure.class {
            FailureClass::Broken => self.config.lease,
            _ => self.config.interval,
        };
        let failure = failure.clone();
        self.event(Event::Trouble { failure, in_a_row });
        let doubled = 1u32 << (in_a_row - 1).min(8);
        (self.config.interval / 8).saturating_mul(doubled).min(most)
    }

    /// A read has succeeded.
    fn read_succeeded(&mut self) {
        if core::mem::take(&mut self.read_failures) > 0 && self.write_failures == 0 {
            self.event(Event::Recovered);
        }
    }

    /// A write has succeeded, ours or somebody else's.
    fn write_succeeded(&mut self) {
        if core::mem::take(&mut self.write_failures) + core::mem::take(&mut self.read_failures) > 0
        {
            self.event(Event::Recovered);
        }
    }

    /// Takes note of a reading; says whether it may be acted on.
    fn learn(&mut self, pending: &Pending, reading: &Reading) -> News {
        self.sight
            .read(&self.config, self.now, pending.asked, reading)
    }

    /// Takes note of an acknowledged write of our own.
    fn wrote(&mut self, record: &Record, version: &Version) {
        self.sight
            .wrote(&self.config, self.now, record.clone(), version.clone());
    }

    /// The last thing the application hears.
    fn stopped(&mut self) -> State {
        self.tell_leader();
        self.event(Event::Stopped);
        State::Stopped
    }

    fn tell_leader(&mut self) {
        if self.sight.standing() == Standing::Unknown {
            return;
        }
        let told = Some(self.sight.leader().map(|leader| (leader.term, leader.id)));
        if told != self.told {
            self.told = told;
            let observation = self.sight.observation(self.config.expiry);
            self.event(Event::LeaderChanged(observation));
        }
    }

    /// Another incarnation, so that nothing the last one sent can surprise.
    fn renew_id(&mut self) {
        let fresh = LeaderId::from_u128(self.rng.next_u128());
        if !self.config.planted(Bug::OldId) {
            self.me = fresh;
        }
    }

    /// Whether this candidate may stand: it has no affinity, or the other
    /// election is led by its namesake.
    fn may_stand(&self) -> bool {
        let namesake = |leader: Leader| leader.name == self.config.name;
        let stands = |other: &Affinity| other.sight.leader().is_some_and(namesake);
        self.affinity.as_ref().is_none_or(stands)
    }

    fn affinity_answer(&mut self, call: Call, answer: &Answer) -> bool {
        let (now, look) = (self.now, self.next_look(false));
        let Some(other) = &mut self.affinity else {
            return false;
        };
        let Some(pending) = other.pending.take_if(|pending| pending.call == call) else {
            return false;
        };
        other.read_at = look;
        other.failed = !matches!(answer, Answer::Read(Ok(_)));
        if let Answer::Read(Ok(reading)) = answer {
            other.sight.read(&other.config, now, pending.asked, reading);
        }
        true
    }

    fn affinity_seen(&mut self, key: &Key, register: Option<&Register>) -> bool {
        let now = self.now;
        let Some(other) = self.affinity.as_mut().filter(|other| other.key == *key) else {
            return false;
        };
        if other.sight.hint(&other.config, now, register) == News::Doubtful {
            other.read_at = now.boot;
        }
        true
    }

    fn affinity_advance(&mut self) {
        let now = self.now.boot;
        let Some(other) = &mut self.affinity else {
            return;
        };
        if other
            .pending
            .as_ref()
            .is_some_and(|pending| pending.is_given_up(now))
        {
            other.pending = None;
            other.failed = true;
            other.read_at = now;
        }
        if other.pending.is_some() || now < other.due() {
            return;
        }
        let key = other.key.clone();
        let pending = self.ask_for(key);
        if let Some(other) = &mut self.affinity {
            other.pending = Some(pending);
            other.read_at = Instant::MAX;
        }
    }

    /// When to look again if nothing else calls for it: after an interval, a
    /// little more or less so that candidates spread out. Where a watch
    /// reports changes, after a lease; and not at all while somebody holds the
    /// office, for then the end of the grant calls for a look anyway. So a
    /// crowd of watchers costs the store nothing while its leaders renew.
    fn next_look(&mut self, held: bool) -> Instant {
        let gap = match (self.watching, held) {
            (true, true) => return Instant::MAX,
            (true, false) => self.config.lease,
            (false, _) => self.config.interval,
        };
        let spread = self.rng.span(gap / 5);
        self.now.boot.after(gap / 10 * 9 + spread)
    }

    fn is_held(&self) -> bool {
        // A session has no such end, so it is polled all the same.
        matches!(self.sight.standing(), Standing::Held { over_at } if over_at < Instant::MAX)
    }

    /// At most 10 % of the lease, so that candidates do not stampede.
    fn jitter(&mut self) -> Duration {
        let lease = self
            .sight
            .record()
            .map_or(self.config.lease, |record| record.lease);
        self.rng.span(lease.min(self.config.lease) / 10)
    }
}

impl Affinity {
    fn due(&self) -> Instant {
        match self.sight.standing() {
            Standing::Held { over_at } if !self.failed => self.read_at.min(over_at),
            _ => self.read_at,
        }
    }

    fn deadline(&self) -> Instant {
        self.pending
            .as_ref()
            .map_or_else(|| self.due(), |pending| pending.give_up_at)
    }
}
