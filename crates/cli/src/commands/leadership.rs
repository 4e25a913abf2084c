//! One leadership of `tenure run`: what becomes of the command, and why.
//!
//! The guardian reports, people ask and the campaign decides, all at the same
//! time; a [`Leading`] takes each as it comes and knows in the end how the
//! command ended: by itself, or because it was asked to. That decides whether
//! the candidate stands again, so it must not depend on who was heard first.

use std::time::Duration;

use tenure::core::time::Instant;
use tenure::election::{Event as ElectionEvent, Grant, Why};
use tenure::{Election, Leadership, clock};

use crate::guard::{Guardian, GuardianEvent, SignalRequest, StartError, StartOrder};

/// How a leadership ended.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) ran_for: Duration,
}

/// What became of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// It ended by itself, or could not be started, with this code.
    ByItself(u8),
    /// It was ended, because the leadership was lost or we were asked to stop,
    /// with this code if it is known.
    Ended(Option<u8>),
    /// It was never started: the go-ahead came too late.
    Late,
}

impl Outcome {
    /// The code to pass on.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::ByItself(code) => code,
            Self::Ended(code) => code.unwrap_or(0),
            Self::Late => 0,
        }
    }
}

/// A leadership on its way.
pub(super) struct Leading<'a> {
    name: &'a str,
    election: &'a Election,
    leadership: &'a Leadership,
    began: Instant,
    /// What the guardian was told last.
    grant: Grant,
    outcome: Outcome,
    /// The command has been told to stop.
    stopping: bool,
}

impl<'a> Leading<'a> {
    pub(super) fn new(name: &'a str, election: &'a Election, leadership: &'a Leadership) -> Self {
        Self {
            name,
            election,
            leadership,
            began: clock::boot(),
            grant: leadership.grant(),
            outcome: Outcome::Ended(None),
            stopping: false,
        }
    }

    /// How it ended, once it has.
    pub(super) fn ended(self) -> Ended {
        Ended {
            outcome: self.outcome,
            ran_for: clock::boot().since(self.began),
        }
    }

    /// Gives the go-ahead; false if the leadership is over already.
    pub(super) fn begin(&mut self, guardian: &Guardian, start: StartOrder) -> bool {
        // Lost while it was being handed over; of a loss before drain_at the
        // guardian knows nothing.
        if !self.leadership.is_valid() {
            self.outcome = Outcome::Late;
            return false;
        }
        stop_here_for_a_test();
        debug_assert_eq!(start.kill_at, self.grant.kill_at, "no renewal comes before");
        guardian.start(start);
        true
    }

    /// What the guardian reports; false after the last report.
    pub(super) async fn handle_guardian_event(&mut self, event: GuardianEvent) -> bool {
        let last = event.is_last();
        match event {
            GuardianEvent::Ready | GuardianEvent::Gone => {}
            GuardianEvent::Started { pid } => tracing::debug!("the command runs as {pid}"),
            GuardianEvent::Refused { why } => {
                tracing::error!("{}: {why}", self.name);
                self.outcome = match why {
                    StartError::Late => Outcome::Late,
                    _ => Outcome::ByItself(why.code()),
                };
            }
            GuardianEvent::Exited { status, asked } if self.stopping || asked => {
                tracing::debug!("the command {status}");
                self.outcome = Outcome::Ended(Some(status.code()));
            }
            GuardianEvent::Exited { status, .. } => {
                tracing::info!("{}: the command {status}", self.name);
                self.outcome = Outcome::ByItself(status.code());
            }
            GuardianEvent::Lost { why } => {
                tracing::error!("{}: the guardian has died: {why}", self.name);
            }
            GuardianEvent::WatchdogLost => {
                tracing::error!(
                    "{}: the watchdog thread has failed, so the end of the command cannot be \
                     observed; keeping the election until the lease runs out",
                    self.name
                );
                wait_out_lease(self.election, self.leadership).await;
            }
        }
        !last
    }

    /// What a person or a service manager asks.
    pub(super) fn handle_signal(&mut self, signal: SignalRequest, guardian: &Guardian) {
        match signal {
            SignalRequest::Kill => guardian.kill(),
            SignalRequest::Stop => {
                self.stopping = true;
                // No more renewals: the deadlines stand from here on.
                self.election.resign();
                guardian.stop(self.election.config().grace);
            }
            SignalRequest::Forward(signal) => guardian.signal(signal),
        }
    }

    /// The guardian confirms that the command runs, and by which time it is
    /// killed. Only that of the latest grant lets the next renewal go: an
    /// older word may have been said before the guardian was stopped.
    pub(super) fn confirm(&self, kill_at: Instant) {
        if kill_at >= self.grant.kill_at {
            self.leadership.confirm_work(&self.grant);
        }
    }

    /// What the campaign says.
    pub(super) fn handle_election_event(&mut self, event: &ElectionEvent, guardian: &Guardian) {
        match event {
            ElectionEvent::Renewed { grant, .. } => {
                self.grant = *grant;
                guardian.extend(grant.drain_at, grant.kill_at);
            }
            ElectionEvent::Draining { why, grant, .. } if !self.stopping => {
                self.stopping = true;
                guardian.stop(grace(why, *grant, self.election));
            }
            ElectionEvent::Kill { .. } => guardian.kill(),
            _ => {}
        }
    }
}

/// How long the command gets when the election drains: what was configured, and
/// all the time there is if that is because renewals fail. The election cannot
/// be handed over earlier then, so haste is of no use.
fn grace(why: &Why, grant: Grant, election: &Election) -> Duration {
    match why {
        Why::Unconfirmed => grant.kill_at.since(grant.drain_at),
        _ => election.config().grace,
    }
}

/// The guardian may have ended the command at `drain_at` before the campaign
/// has looked at its clock. To drop the leadership now would be told as a
/// resignation. So this waits until the campaign has told why it ended. If the
/// lease was renewed in the last moment no reason comes, and it is a resignation.
pub(super) async fn await_reason(leadership: &Leadership) {
    if clock::boot() >= leadership.grant().drain_at {
        let _ = tokio::time::timeout(leadership.remaining(), leadership.cancelled()).await;
    }
}

/// Whether the leadership was lost, which `--exit-unconfirmed` is about: not resigned,
/// handed over or asked for.
pub(super) async fn was_lost(outcome: Outcome, leadership: &Leadership) -> bool {
    match outcome {
        Outcome::ByItself(_) => false,
        Outcome::Late => true,
        // It has been told by now, if it is over.
        Outcome::Ended(_) => {
            let why = tokio::time::timeout(Duration::ZERO, leadership.cancelled()).await;
            let lost = |why| matches!(why, Why::Unconfirmed | Why::Replaced | Why::WorkUnconfirmed);
            why.is_ok_and(lost)
        }
    }
}

/// Lets a leadership run out. The guardian ends the command by itself before that.
async fn wait_out_lease(election: &Election, leadership: &Leadership) {
    // No more renewals: the deadlines stand from here on.
    election.resign();
    // One that was under way may have succeeded meanwhile.
    while leadership.is_valid() {
        tokio::time::sleep(leadership.remaining()).await;
    }
}

/// Lets a test stop this process at the moment that matters most: it leads,
/// and the go-ahead has not left. No release does this.
fn stop_here_for_a_test() {
    #[cfg(debug_assertions)]
    if std::env::var_os("TENURE_TEST_STOP_BEFORE_START").is_some() {
        use rustix::process::{Signal, getpid, kill_process};
        // Another thread may take the signal, and this one goes on until that
        // thread has run. It waits here for the signal that ends the stop.
        let continued = signal_hook::iterator::Signals::new([signal_hook::consts::SIGCONT]);
        let _ = kill_process(getpid(), Signal::STOP);
        if let Ok(mut continued) = continued {
            continued.wait().for_each(drop);
        }
    }
}
