//! The campaign as a machine: it hands what happens to the state that it is in.

use tenure_core::machine::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::Now;

use super::affinity::Affinity;
use super::standby::Standby;
use super::{
    Answer, Call, Command, Config, Context, Fence, Grant, Input, Instant, Key, LeaderId,
    LeaseJudge, Output, Register, State, Term, Why,
};

/// One candidate in one election.
#[derive(Clone, Debug)]
pub struct Campaign {
    state: State,
    context: Context,
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
            state: State::Standby(Standby::new(now.boot)),
            context: Context::new(floor, config, rng, now),
        };
        campaign.advance();
        campaign
    }

    /// The id under which it stands at present.
    pub const fn id(&self) -> LeaderId {
        self.context.me
    }

    /// What it was told.
    pub const fn config(&self) -> &Config {
        &self.context.config
    }

    /// What it has seen of the register.
    pub const fn judge(&self) -> &LeaseJudge {
        &self.context.judge
    }

    /// The fence and the grant it holds, while it holds one.
    pub const fn leadership(&self) -> Option<(Fence, Grant)> {
        let (term, grant) = match &self.state {
            State::Leading(leading) => (leading.term(), leading.grant()),
            State::Draining(draining) => match draining.grant() {
                Some(grant) => (draining.term(), grant),
                None => return None,
            },
            State::Standby(_) | State::Racing(_) | State::Stopped => return None,
        };
        Some((
            Fence {
                term,
                leader: self.context.me,
            },
            grant,
        ))
    }

    /// Whether it neither leads nor has a race under way.
    pub const fn is_standby(&self) -> bool {
        matches!(self.state, State::Standby(_))
    }

    /// Whether it has ended; nothing moves it any more.
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped)
    }

    /// The keys that a watch should follow.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        core::iter::once(&self.context.key).chain(self.context.affinity.iter().map(Affinity::key))
    }

    fn answer(&mut self, call: Call, answer: Answer) {
        if self.context.affinity_answer(call, &answer) {
            return;
        }
        self.state = match core::mem::replace(&mut self.state, State::Stopped) {
            State::Standby(standby) => standby.answer(&mut self.context, call, answer),
            State::Racing(racing) => racing.answer(&mut self.context, call, answer),
            State::Leading(leading) => leading.answer(&mut self.context, call, answer),
            State::Draining(draining) => draining.answer(&mut self.context, call, answer),
            State::Stopped => State::Stopped,
        };
    }

    fn seen(&mut self, key: &Key, register: Option<&Register>) {
        if self.context.affinity_seen(key, register) || *key != self.context.key {
            return;
        }
        match &mut self.state {
            State::Standby(standby) => standby.hint(&mut self.context, register),
            State::Leading(leading) => leading.hint(&self.context, register),
            // Both are about to know better.
            State::Racing(_) | State::Draining(_) | State::Stopped => {}
        }
    }

    /// The watch came or went. Either way something may have happened that
    /// nobody has reported, so look; unless the store is in trouble anyway.
    fn watch_changed(&mut self, up: bool) {
        if core::mem::replace(&mut self.context.watch_up, up) == up {
            return;
        }
        let now = self.context.now.boot;
        for other in &mut self.context.affinity {
            other.look(now);
        }
        match &mut self.state {
            State::Standby(standby) if self.context.read_failures == 0 => standby.look(now),
            State::Leading(leading) => leading.watch_changed(&self.context),
            _ => {}
        }
    }

    fn command(&mut self, command: Command) {
        let why = match command {
            Command::Stop => {
                self.context.stopping = true;
                Why::Resigned
            }
            Command::Resign => Why::Resigned,
            Command::Transfer(to) => Why::Transferred(to),
        };
        self.state = match core::mem::replace(&mut self.state, State::Stopped) {
            State::Leading(leading) => leading.drain(&mut self.context, why),
            other => other,
        };
    }

    fn drained(&mut self) {
        self.state = match core::mem::replace(&mut self.state, State::Stopped) {
            State::Draining(draining) => draining.drained(&mut self.context),
            // Work that ended by itself: there is nothing to drain.
            State::Leading(leading) => match leading.drain(&mut self.context, Why::Resigned) {
                State::Draining(draining) => draining.drained(&mut self.context),
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
        self.context.affinity_advance();
        self.state = match core::mem::replace(&mut self.state, State::Stopped) {
            State::Standby(standby) => standby.advance(&mut self.context),
            State::Racing(racing) => racing.advance(&mut self.context),
            State::Leading(leading) => leading.advance(&mut self.context),
            State::Draining(draining) => draining.advance(&mut self.context),
            State::Stopped => return,
        };
        if !self.is_stopped() {
            self.context.tell_leader();
        }
    }
}

impl Machine for Campaign {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        self.context.set_now(now);
        match input {
            Input::Read { call, result } => self.answer(call, Answer::Read(result)),
            Input::Wrote { call, result } => self.answer(call, Answer::Wrote(result)),
            Input::Confirmed { call, result } => self.answer(call, Answer::Confirmed(result)),
            Input::Seen { key, register } => self.seen(&key, register.as_ref()),
            Input::WatchUp(up) => self.watch_changed(up),
            Input::Command(command) => self.command(command),
            Input::Drained => self.drained(),
            Input::WorkConfirmed { start } => self.work_confirmed(start),
        }
        self.advance();
    }

    fn tick(&mut self, now: Now) {
        self.context.set_now(now);
        self.advance();
    }

    fn poll(&mut self) -> Option<Output> {
        self.context.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let own = match &self.state {
            State::Standby(standby) => standby.deadline(&self.context),
            State::Racing(racing) => racing.deadline(&self.context),
            State::Leading(leading) => leading.deadline(&self.context),
            State::Draining(draining) => draining.deadline(),
            State::Stopped => return None,
        };
        let others = self.context.affinity.iter().map(Affinity::deadline);
        Some(others.fold(own, Instant::min))
    }
}
