//! Following an election without standing in it (§6).
//!
//! An observer tells who leads, at first and after every change, with how
//! sure it is and when the grant may be over. It judges by the same rules as
//! a candidate (its [`LeaseJudge`] is the same one), so a resolver that lives long
//! gives answers as good as a rival's.
//!
//! Where the store has no watch it reads about twice per renewal, timed from
//! the renewals it sees, and backs off while the election is vacant.

use alloc::collections::VecDeque;
use core::time::Duration;

use tenure_core::call::{Call, Calls, Failure, FailureClass, Pending, back_off};
use tenure_core::cas::{Reading, Register};
use tenure_core::ids::{Key, LeaderId, Name, Term};
use tenure_core::machine::Machine;
use tenure_core::time::{Drift, Instant, Now};

use super::campaign::{Command, Event, Input, Output};
use super::{Config, Expiry, Leader, LeaseJudge, LeaseState, ReadOutcome, TermRegression};

/// How long to wait for a read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest pause between two reads of a vacant election or after failures.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The shortest pause between two reads.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// One process's view of an election it does not stand in.
#[derive(Clone, Debug)]
pub struct Observer {
    config: Config,
    key: Key,
    now: Now,
    judge: LeaseJudge,
    /// Whether to tell of every renewal.
    renewals: bool,
    watch_up: bool,
    stopped: bool,
    pending: Option<Pending>,
    read_at: Instant,
    /// The pause before the next poll, as learnt so far.
    pause: Duration,
    renewed_at: Option<Instant>,
    failures: u32,
    /// The last read was refused by the store: what a watch still tells does not mean
    /// that the store answers.
    read_refused: bool,
    calls: Calls,
    reported: Option<Option<(Term, LeaderId)>>,
    /// The fall of the register that was told last.
    fell: Option<TermRegression>,
    outputs: VecDeque<Output>,
}

impl Observer {
    /// Begins to observe. With `renewals` every renewal is told, not only
    /// changes.
    pub fn new(election: Name, expiry: Expiry, drift: Drift, renewals: bool, now: Now) -> Self {
        let key = Key::of_election(&election);
        let config = Config {
            expiry,
            drift,
            ..Config::new(election.clone(), election)
        };
        let mut observer = Self {
            config,
            key,
            now,
            judge: LeaseJudge::new(),
            renewals,
            watch_up: false,
            stopped: false,
            pending: None,
            read_at: now.boot,
            pause: PAUSE_MIN,
            renewed_at: None,
            failures: 0,
            read_refused: false,
            calls: Calls::default(),
            reported: None,
            fell: None,
            outputs: VecDeque::new(),
        };
        observer.advance();
        observer
    }

    /// The keys that a watch should follow.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        core::iter::once(&self.key)
    }

    /// What it has seen.
    pub const fn judge(&self) -> &LeaseJudge {
        &self.judge
    }

    fn answer(&mut self, call: Call, result: Result<Reading, Failure>) {
        let Some(Pending { asked, .. }) = self.pending.take_if(|it| it.call == call) else {
            return;
        };
        match result {
            Ok(reading) => {
                let outcome = self.judge.read(&self.config, self.now, asked, &reading);
                self.read_refused = false;
                self.note(outcome, true);
            }
            Err(failure) => {
                self.read_refused = failure.class == FailureClass::Broken;
                self.failed(failure);
            }
        }
    }

    fn seen(&mut self, register: Option<&Register>) {
        let outcome = self.judge.hint(&self.config, self.now, register);
        self.note(outcome, false);
    }

    /// The watch came or went: something may have happened unreported.
    fn watch_changed(&mut self, up: bool) {
        let changed = core::mem::replace(&mut self.watch_up, up) != up;
        if changed && self.failures == 0 {
            self.read_at = self.now.boot;
        }
    }

    fn note(&mut self, outcome: ReadOutcome, by_read: bool) {
        match &outcome {
            ReadOutcome::Malformed(_) => return self.failed(Failure::malformed()),
            ReadOutcome::Corrupt(error) => {
                let why = alloc::string::ToString::to_string(error);
                return self.failed(Failure::new(FailureClass::Broken, &why));
            }
            ReadOutcome::Unplaced => {
                self.read_at = self.now.boot;
                return;
            }
            ReadOutcome::Written => self.learn_pace(self.renewed_at),
            ReadOutcome::LeaderChanged => self.learn_pace(None),
            ReadOutcome::Expired => {}
            ReadOutcome::Nothing if by_read && self.judge.leader().is_none() => {
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
            ReadOutcome::Nothing => {}
        }
        if self.failures > 0 && !self.read_refused {
            self.failures = 0;
            self.outputs.push_back(Output::Event(Event::Recovered));
        }
        if by_read {
            let gap = if self.watch_up {
                PAUSE_MAX * 5
            } else {
                self.pause
            };
            self.read_at = self.now.boot.after(gap);
        }
        self.tell(outcome == ReadOutcome::Written);
    }

    /// Half the time between two renewals seen is when to look again; until
    /// two were seen, half of the usual interval of a fifth of the lease.
    fn learn_pace(&mut self, last: Option<Instant>) {
        let led = self.judge.leader().is_some();
        let Some(record) = self.judge.record().filter(|_| led) else {
            self.renewed_at = None;
            self.pause = PAUSE_MIN;
            return;
        };
        let (usual, most) = (record.lease / 10, record.lease / 4);
        let gap = last.map_or(usual, |last| self.now.boot.since(last) / 2);
        self.pause = gap.min(most).max(PAUSE_MIN);
        self.renewed_at = Some(self.now.boot);
    }

    fn failed(&mut self, failure: Failure) {
        self.failures = self.failures.saturating_add(1);
        let pause = back_off(PAUSE_MIN, self.failures, PAUSE_MAX);
        self.read_at = self.now.boot.after(pause);
        let in_a_row = self.failures;
        self.outputs
            .push_back(Output::Event(Event::Trouble { failure, in_a_row }));
    }

    fn tell(&mut self, written: bool) {
        let leads = |leader: Leader| (leader.term, leader.id);
        let reported = Some(self.judge.leader().map(leads));
        let observation = self.judge.observation(self.config.expiry);
        if reported != self.reported {
            self.reported = reported;
            self.outputs
                .push_back(Output::Event(Event::LeaderChanged(observation)));
        } else if written && self.renewals {
            self.outputs
                .push_back(Output::Event(Event::LeaderRenewed(observation)));
        }
        // It remembers, and cannot do more than tell: it writes nothing.
        let regression = self.judge.regression();
        if let Some(news) = regression.filter(|_| self.fell != regression) {
            self.fell = regression;
            self.outputs.push_back(Output::Event(Event::TermFell(news)));
        }
    }

    fn advance(&mut self) {
        if self.stopped {
            return;
        }
        let now = self.now.boot;
        if self.pending.is_some_and(|it| it.is_given_up(now)) {
            self.pending = None;
            self.failed(Failure::no_answer());
        }
        if self.pending.is_none() && now >= self.look_at() {
            let pending = self.calls.begin(now, READ_TIMEOUT);
            self.pending = Some(pending);
            self.read_at = Instant::MAX;
            let key = self.key.clone();
            self.outputs.push_back(Output::Read {
                call: pending.call,
                key,
                within: READ_TIMEOUT,
            });
        }
    }

    fn look_at(&self) -> Instant {
        match self.judge.lease_state() {
            LeaseState::Held { expires_at } if self.failures == 0 => self.read_at.min(expires_at),
            _ => self.read_at,
        }
    }
}

impl Machine for Observer {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        self.now = Now {
            boot: now.boot.max(self.now.boot),
            wall: now.wall,
        };
        match input {
            Input::Read { call, result } => self.answer(call, result),
            Input::Seen { key, register } if key == self.key => self.seen(register.as_ref()),
            Input::WatchUp(up) => self.watch_changed(up),
            Input::Command(Command::Stop) => {
                self.stopped = true;
                self.outputs.push_back(Output::Event(Event::Stopped));
            }
            // It stands for nothing and writes nothing.
            Input::Seen { .. }
            | Input::Wrote { .. }
            | Input::Confirmed { .. }
            | Input::Command(_)
            | Input::Drained
            | Input::WorkConfirmed { .. } => {}
        }
        self.advance();
    }

    fn tick(&mut self, now: Now) {
        self.now = Now {
            boot: now.boot.max(self.now.boot),
            wall: now.wall,
        };
        self.advance();
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let look_at = || self.look_at();
        Some(self.pending.map_or_else(look_at, |it| it.give_up_at))
    }
}
