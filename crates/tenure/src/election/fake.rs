//! An election that a test decides, over a clock that the test moves.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::ids::{Fence, LeaderId, Name, NameError, Term};
use tenure_core::time::Instant;
use tenure_election::{Command, Config, Event, Grant, Input, Why};

use super::lease_clock::{FakeClock, LeaseClock};
use super::{Election, Shared};
use crate::drive;

/// The test's side of an [`Election`] without a store: it says when this
/// candidate is elected, renews and is deposed, and what time it is. The
/// program under test has the [`Election`]: it is handed a
/// [`Leadership`](super::Leadership), is told to stop at the deadlines of its
/// lease, and may resign, transfer and stop. It hears nothing of other leaders
/// and of the store: [`Election::leader`] is `None`, and there is no
/// [`Event::LeaderChanged`].
///
/// Time stands still but for [`advance`](Self::advance). Clones are the same
/// election.
///
/// ```
/// # fn main() -> Result<(), tenure::core::ids::NameError> {
/// # tenure::blocking::wait(async {
/// use std::time::Duration;
/// use tenure::{election::Why, test::FakeElection};
///
/// let (fake, mut election) = FakeElection::new("payroll")?;
/// fake.elect();
/// let Some(leadership) = election.elected().await else {
///     unreachable!("it was not stopped");
/// };
/// assert!(leadership.is_valid());
///
/// // No renewal is confirmed for as long as the lease.
/// fake.advance(Duration::from_secs(10));
/// assert!(!leadership.is_valid());
/// assert_eq!(leadership.cancelled().await, Why::Unconfirmed);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
pub struct FakeElection {
    shared: Arc<Shared>,
    clock: Arc<FakeClock>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// The last term in which this candidate, or another, was elected.
    term: Term,
    /// While this candidate leads.
    leadership: Option<FakeLeadership>,
    /// A clone of the last leadership is left.
    work_runs: bool,
    /// The election was stopped, and ends with the leadership.
    stopping: bool,
    stopped: bool,
}

#[derive(Debug)]
struct FakeLeadership {
    grant: Grant,
    /// Why the work is to stop.
    draining: Option<Why>,
    killed: bool,
}

impl FakeElection {
    /// An election of this name with the default settings: a lease of 10 s.
    ///
    /// # Errors
    /// If the name is none.
    pub fn new(election: &str) -> Result<(Self, Election), NameError> {
        let config = Config::new(Name::new(election)?, Name::new("a-test")?);
        Ok(Self::with(config))
    }

    /// The same with the settings of a [`Builder`](super::Builder).
    pub fn with(config: Config) -> (Self, Election) {
        let clock = Arc::new(FakeClock::new());
        let election = Election::idle(config, LeaseClock::Fake(Arc::clone(&clock)));
        let fake = Self {
            shared: Arc::clone(&election.shared),
            clock,
            state: Arc::new(Mutex::new(State {
                term: Term::ZERO,
                leadership: None,
                work_runs: false,
                stopping: false,
                stopped: false,
            })),
        };
        let hears = fake.clone();
        drive::background().spawn(async move {
            while !hears.deliver().stopped {
                hears.shared.mailbox.changed().await;
            }
        });
        (fake, election)
    }

    /// Now, by the clock of this election.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Has this candidate elected in the next term.
    ///
    /// # Panics
    /// If it leads, or a [`Leadership`](super::Leadership) of it is still
    /// held: then no candidate stands. If the election was stopped.
    pub fn elect(&self) -> Fence {
        let mut state = self.deliver();
        assert!(
            !state.work_runs,
            "expected a candidate that may stand, found that its last Leadership is held"
        );
        assert!(
            !state.stopped,
            "expected an election that goes on, found that it was stopped"
        );
        state.next_term();
        let fence = Fence {
            term: state.term,
            leader: LeaderId::from_u128(1),
        };
        let grant = Grant::new(self.clock.now(), &self.shared.config);
        state.work_runs = true;
        state.leadership = Some(FakeLeadership {
            grant,
            draining: None,
            killed: false,
        });
        self.shared.on_event(Event::Elected { fence, grant });
        fence
    }

    /// Confirms a renewal that was sent now. Does nothing if this candidate
    /// does not lead, or has been told to stop.
    pub fn renew(&self) {
        let mut state = self.deliver();
        let term = state.term;
        if let Some(leadership) = state
            .leadership
            .as_mut()
            .filter(|leadership| leadership.draining.is_none())
        {
            leadership.grant = Grant::new(self.clock.now(), &self.shared.config);
            let grant = leadership.grant;
            self.shared.on_event(Event::Renewed { term, grant });
        }
    }

    /// Lets time pass without a renewal: what the lease has on the way
    /// happens, each at its moment.
    pub fn advance(&self, by: Duration) {
        let mut state = self.deliver();
        let end = self.clock.now().after(by);
        while let Some((at, event)) = state.next_deadline().filter(|(at, _)| *at <= end) {
            self.clock.set(at.max(self.clock.now()));
            self.tell(&mut state, event);
        }
        self.clock.set(end);
    }

    /// Has another candidate elected: if this one leads, it is deposed.
    pub fn depose(&self) {
        let mut state = self.deliver();
        let term = state.term;
        let why = Why::Replaced;
        if state.leadership.is_some() {
            self.tell(&mut state, Event::Ousted { term, why });
        }
        state.next_term();
    }

    /// Hears what the program under test has said.
    fn deliver(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(input) = self.shared.mailbox.take() {
            match input {
                Input::Command(Command::Resign) => self.drain(&mut state, Why::Resigned),
                Input::Command(Command::Transfer(to)) => {
                    self.drain(&mut state, Why::Transferred(to));
                }
                Input::Command(Command::Stop) => {
                    state.stopping = true;
                    self.drain(&mut state, Why::Resigned);
                }
                Input::Drained => self.end_drained(&mut state),
                _ => {}
            }
            if state.stopping && state.leadership.is_none() && !state.stopped {
                self.tell(&mut state, Event::Stopped);
            }
        }
        state
    }

    fn drain(&self, state: &mut State, why: Why) {
        let term = state.term;
        let running = state
            .leadership
            .as_ref()
            .filter(|leadership| leadership.draining.is_none());
        if let Some(grant) = running.map(|leadership| leadership.grant) {
            self.tell(state, Event::Draining { term, why, grant });
        }
    }

    /// The last clone of the leadership was dropped.
    fn end_drained(&self, state: &mut State) {
        state.work_runs = false;
        self.drain(state, Why::Resigned);
        let term = state.term;
        let why = state
            .leadership
            .as_ref()
            .and_then(|leadership| leadership.draining.clone());
        if let Some(why) = why {
            self.tell(state, Event::Ousted { term, why });
        }
    }

    fn tell(&self, state: &mut State, event: Event) {
        match &event {
            Event::Draining { why, .. } => {
                if let Some(leadership) = &mut state.leadership {
                    leadership.draining = Some(why.clone());
                }
            }
            Event::Kill { .. } => {
                if let Some(leadership) = &mut state.leadership {
                    leadership.killed = true;
                }
            }
            Event::Ousted { .. } => state.leadership = None,
            Event::Stopped => state.stopped = true,
            _ => {}
        }
        self.shared.on_event(event);
    }
}

impl State {
    fn next_term(&mut self) {
        // A test does not come to the last of them.
        self.term = self.term.next().unwrap_or(self.term);
    }

    /// What the lease has on its way, if nothing is renewed.
    fn next_deadline(&self) -> Option<(Instant, Event)> {
        let FakeLeadership {
            grant,
            draining,
            killed,
        } = self.leadership.as_ref()?;
        let (term, why, grant) = (self.term, Why::Unconfirmed, *grant);
        Some(if draining.is_none() {
            (grant.drain_at, Event::Draining { term, why, grant })
        } else if !killed {
            (grant.kill_at, Event::Kill { term })
        } else {
            let why = draining.clone().unwrap_or(why);
            (grant.valid_until, Event::Ousted { term, why })
        })
    }
}
