//! Waiting for the election to become vacant (§4.3).
//!
//! A watcher keeps its [`LeaseJudge`](super::super::LeaseJudge) fresh (by the
//! store's watch, or by polling once an interval), and when the grant may be
//! over it reads. Only what a read says ends a grant. An election that *ran
//! out* is raced for after a jitter; one that was *resigned* at once, on the
//! word of the watch alone: there the compare-and-swap picks the winner, and a
//! stampede lasts one round trip.
//!
//! While a candidate leads in a lower term than was seen before, it asks that
//! leader to go ([`floor`](super::floor)).

use super::racing::Racing;
use super::{
    Answer, Bug, Call, Context, Expect, Failure, FailureClass, Instant, LeaseState, Pending,
    ReadOutcome, Reading, Register, State, Version,
};

#[derive(Clone, Debug)]
pub(super) struct Standby {
    pending: Option<Pending>,
    /// A request to a leader below the floor is under way.
    leader_request: Option<Pending>,
    /// The next look, if nothing else calls for one before.
    read_at: Instant,
    /// When to race for what the last look found free.
    race_at: Option<Instant>,
    /// No race before this: others go first.
    hold_until: Instant,
    /// What was seen is known to be out of date: no race before a look.
    outdated: bool,
    /// What the race expected that has just met a conflict.
    lost: Option<Expect>,
    /// The store refused a race for what it shows: no other before this, unless
    /// the register changes.
    refused_until: Instant,
}

impl Standby {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            pending: None,
            leader_request: None,
            read_at: now,
            race_at: None,
            hold_until: now,
            outdated: true,
            lost: None,
            refused_until: now,
        }
    }

    /// After a race that met a conflict.
    pub(super) fn lost(now: Instant, expect: Expect) -> Self {
        Self {
            lost: Some(expect),
            ..Self::new(now)
        }
    }

    /// After resigning of its own accord: others go first.
    pub(super) fn holding_back(now: Instant, hold_until: Instant) -> Self {
        Self {
            hold_until,
            ..Self::new(now)
        }
    }

    /// After a race that did not happen: what was seen still stands, so race
    /// again at `at`.
    pub(super) fn racing_again(at: Instant) -> Self {
        Self {
            race_at: Some(at),
            outdated: false,
            ..Self::new(at)
        }
    }

    /// After a race that failed for want of a store: look again at `at`.
    pub(super) fn looking_again(at: Instant) -> Self {
        Self::new(at)
    }

    pub(super) fn answer(mut self, context: &mut Context, call: Call, answer: Answer) -> State {
        if self.leader_request.take_if(|it| it.call == call).is_some() {
            if let Answer::Wrote(result) = answer {
                self.leader_request_answered(context, result);
            }
            return State::Standby(self);
        }
        let Some(pending) = self.pending.take_if(|pending| pending.call == call) else {
            return State::Standby(self);
        };
        match answer {
            Answer::Read(Ok(reading)) => {
                let outcome = context.learn(&pending, &reading);
                self.read_at = context.next_look(context.is_held());
                context.read_refused = false;
                self.note(context, outcome);
                self.settle(context, &reading);
            }
            Answer::Read(Err(failure)) => {
                context.read_refused = failure.class == FailureClass::Broken;
                self.retry(context, &failure);
            }
            Answer::Wrote(_) | Answer::Confirmed(_) => {}
        }
        State::Standby(self)
    }

    /// The look after a lost race. Where it shows what the race expected,
    /// nobody has won: the store refuses this candidate's writes, be it that
    /// the register is bound to another's session, or that a rule of its table
    /// keeps it as it is. To race on at once would be to write as fast as the
    /// store answers, so it is tried less and less often (§4.4.7).
    fn settle(&mut self, context: &mut Context, reading: &Reading) {
        let Some(expect) = self.lost.take() else {
            return;
        };
        if expect.is_met_by(reading.register.as_ref())
            && !context.config.planted(Bug::RefusalIsRace)
        {
            let pause = context.refused(reading);
            self.refused_until = context.now.boot.after(pause);
        }
    }

    /// A request has been written to the leader, or not. Either way look what
    /// the register holds now; where the store is in trouble, after a pause.
    fn leader_request_answered(&mut self, context: &mut Context, result: Result<Version, Failure>) {
        self.read_at = context.now.boot;
        match result {
            Ok(_) => context.write_succeeded(),
            Err(failure) if failure.class == FailureClass::Conflict => {
                context.leader_request_failed();
            }
            Err(failure) => {
                // Where it is unknown it counts as written: the request may
                // land yet.
                if failure.class != FailureClass::Unknown {
                    context.leader_request_failed();
                }
                let pause = context.write_failed(&failure);
                self.read_at = context.now.boot.after(pause);
            }
        }
    }

    pub(super) fn hint(&mut self, context: &mut Context, register: Option<&Register>) {
        let outcome = context.judge.hint(&context.config, context.now, register);
        // What a read has overtaken is no look, and no sign of a good store.
        if outcome != ReadOutcome::Nothing {
            self.note(context, outcome);
        }
    }

    pub(super) const fn look(&mut self, now: Instant) {
        self.read_at = now;
    }

    fn note(&mut self, context: &mut Context, outcome: ReadOutcome) {
        match outcome {
            ReadOutcome::Malformed(_) => return self.retry(context, &Failure::malformed()),
            ReadOutcome::Corrupt(error) => {
                let text = alloc::string::ToString::to_string(&error);
                return self.retry(context, &Failure::new(FailureClass::Broken, &text));
            }
            ReadOutcome::Unplaced => self.read_at = context.now.boot,
            // Somebody wrote: what was to be raced for is gone.
            ReadOutcome::LeaderChanged | ReadOutcome::Written
                if !context.config.planted(Bug::SwapUnjudged) =>
            {
                self.race_at = None;
                self.refused_until = context.now.boot;
            }
            ReadOutcome::LeaderChanged
            | ReadOutcome::Written
            | ReadOutcome::Expired
            | ReadOutcome::Nothing => {}
        }
        if outcome != ReadOutcome::Unplaced {
            self.outdated = false;
            match outcome {
                // A watch goes on telling where a user's rights were taken away. While
                // the store refuses each read, only a read can say that it is well.
                _ if context.read_refused => {}
                // Somebody's write has got through.
                ReadOutcome::LeaderChanged | ReadOutcome::Written => context.write_succeeded(),
                _ => context.read_succeeded(),
            }
        }
    }

    /// The store is in trouble: keep looking, less and less often.
    fn retry(&mut self, context: &mut Context, failure: &Failure) {
        let pause = context.read_failed(failure);
        self.read_at = context.now.boot.after(pause);
    }

    pub(super) fn advance(mut self, context: &mut Context) -> State {
        if context.stopping {
            return context.stopped();
        }
        let now = context.now.boot;
        if self.pending.is_some_and(|it| it.is_given_up(now)) {
            self.pending = None;
            self.retry(context, &Failure::no_answer());
        }
        if context.config.planted(Bug::SilentWatch) && context.watch_up {
            context.judge.judge_unread(now);
        }
        self.plan(context);
        if let Some(race_at) = self.race_at()
            && now >= race_at
            && context.may_stand()
        {
            return Racing::begin(context);
        }
        if self.leader_request.is_some_and(|it| it.is_given_up(now)) {
            self.leader_request = None;
            self.leader_request_answered(context, Err(Failure::no_answer()));
        }
        if self.leader_request_at(context).is_some_and(|at| now >= at) {
            self.leader_request = context.send_leader_request();
        }
        if self.pending.is_none() && self.leader_request.is_none() && now >= self.look_at(context) {
            self.pending = Some(context.request_read());
            self.read_at = Instant::MAX;
        }
        State::Standby(self)
    }

    fn race_at(&self) -> Option<Instant> {
        self.race_at.map(|at| at.max(self.refused_until))
    }

    /// Decides when to race for what has just been found free.
    fn plan(&mut self, context: &mut Context) {
        let now = context.now.boot;
        let wait = match context.judge.lease_state() {
            _ if self.outdated => return self.race_at = None,
            LeaseState::Unknown | LeaseState::Corrupt => return self.race_at = None,
            LeaseState::Held { .. } => {
                if !context.config.planted(Bug::SwapUnjudged) {
                    self.race_at = None;
                }
                return;
            }
            _ if self.race_at.is_some() => return,
            LeaseState::Expired(_) => context.jitter(),
            LeaseState::Vacant {
                successor: Some(name),
            } if name != context.config.name => context.turn_of_successor(),
            LeaseState::Vacant { successor: Some(_) } => {
                // The election was handed to this candidate.
                self.hold_until = now;
                return self.race_at = Some(now);
            }
            LeaseState::Vacant { successor: None } => core::time::Duration::ZERO,
        };
        let wait = wait + context.config.priority.wait(context.config.lease);
        self.race_at = Some(now.after(wait).max(self.hold_until));
    }

    /// When to ask a leader below the floor to go: not while a call is under
    /// way, not on what is known to be out of date, and not while this
    /// candidate holds itself back, for it could not win the election.
    fn leader_request_at(&self, context: &Context) -> Option<Instant> {
        if self.outdated || self.pending.is_some() || self.leader_request.is_some() {
            return None;
        }
        context
            .leader_request_at()
            .map(|at| at.max(self.hold_until))
    }

    fn look_at(&self, context: &Context) -> Instant {
        match context.judge.lease_state() {
            // In trouble the back-off rules; a grant may be over any time.
            LeaseState::Held { expires_at } if context.read_failures == 0 => {
                self.read_at.min(expires_at)
            }
            _ => self.read_at,
        }
    }

    pub(super) fn deadline(&self, context: &Context) -> Instant {
        let look = match self.pending.or(self.leader_request) {
            Some(pending) => pending.give_up_at,
            None => self.look_at(context),
        };
        let look = self
            .leader_request_at(context)
            .map_or(look, |at| at.min(look));
        // A race that waits for the other election is woken by its news.
        let race = self.race_at().filter(|_| context.may_stand());
        race.map_or(look, |race| race.min(look))
    }
}
