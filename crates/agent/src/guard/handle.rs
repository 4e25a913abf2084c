//! The supervisor's handle of a guardian. `tenure run` holds one guardian, for
//! one leadership at most. A shim holds one for each instance of a workload.
//!
//! Orders never block and never fail (`order_mailbox.rs`). What becomes of them is
//! reported as events, in order. The last event is [`GuardianEvent::Gone`] or
//! [`GuardianEvent::Lost`], after which nothing that CMD started is left, or
//! [`GuardianEvent::WatchdogLost`], after which that is not known.

use std::io;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use tenure::clock;
use tenure::core::time::Instant;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::watch;

use super::event::GuardianEvent;
use super::launcher::SELF;
use super::messages::{GuardianOrder, StartOrder};
use super::order_mailbox::{OrderSender, order_mailbox};
use super::watchdog::{self, Watchdog};

/// More than all events a guardian can cause.
const EVENTS: usize = 16;

/// A guardian, standing by or guarding. Dropping it kills everything.
pub struct Guardian {
    orders: OrderSender,
    wake: UnixStream,
    events: Receiver<GuardianEvent>,
    confirmed: watch::Receiver<Option<Instant>>,
    last: Option<GuardianEvent>,
}

impl Guardian {
    /// Starts a guardian that waits for its go-ahead. To be done ahead of an
    /// election, so that no fork stands between winning it and starting.
    ///
    /// Makes this process a subreaper for good, and expects that it starts no
    /// other children from now on.
    pub fn stand_by() -> io::Result<Self> {
        Self::stand_by_as(Path::new(SELF))
    }

    /// The same, with a place for what CMD prints, and the name of what it is
    /// for, which lists of processes show.
    pub fn stand_by_to(output: OwnedFd, name: &str) -> io::Result<Self> {
        Self::begin(Path::new(SELF), Some((output, name)))
    }

    /// The same with another binary that calls [`super::dispatch`].
    pub fn stand_by_as(program: &Path) -> io::Result<Self> {
        Self::begin(program, None)
    }

    fn begin(program: &Path, output: Option<(OwnedFd, &str)>) -> io::Result<Self> {
        let (orders, order_receiver) = order_mailbox();
        let (events, event_receiver) = channel(EVENTS);
        let (confirmed_sender, confirmed) = watch::channel(None);
        let (wake, wake_receiver) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let watchdog = Watchdog::new(
            watchdog::spawn(program, output)?,
            order_receiver,
            wake_receiver,
            events,
            confirmed_sender,
        )?;
        std::thread::Builder::new()
            .name("tenure-watchdog".into())
            .spawn(move || watchdog.run())?;
        Ok(Self {
            orders,
            wake,
            events: event_receiver,
            confirmed,
            last: None,
        })
    }

    /// What the guardian confirms from now on.
    pub fn confirmations(&self) -> Confirmations {
        Confirmations(self.confirmed.clone())
    }

    /// Gives the go-ahead. It is void if it arrives at `drain_at` or later.
    pub fn start(&self, start: StartOrder) {
        self.order(GuardianOrder::Start(start));
    }

    /// Moves both times, as far as they are later than before.
    pub fn extend(&self, drain_at: Instant, kill_at: Instant) {
        self.order(GuardianOrder::Extend { drain_at, kill_at });
    }

    /// TERM now, KILL `grace` from now or at `kill_at`. The lease may go on
    /// being extended meanwhile.
    pub fn stop(&self, grace: Duration) {
        let stop_by = clock::boot().after(grace);
        self.order(GuardianOrder::Stop { stop_by });
    }

    /// KILL now.
    pub fn kill(&self) {
        self.order(GuardianOrder::Kill);
    }

    /// Passes a signal on to CMD's process group, if CMD runs.
    pub fn signal(&self, number: i32) {
        self.order(GuardianOrder::Signal(number));
    }

    /// The next event. May be cancelled without loss. After the last event it
    /// returns the same again.
    pub async fn event(&mut self) -> GuardianEvent {
        if let Some(last) = &self.last {
            return last.clone();
        }
        let event = self
            .events
            .recv()
            .await
            .unwrap_or(GuardianEvent::WatchdogLost);
        if event.is_last() {
            self.last = Some(event.clone());
        }
        event
    }

    fn order(&self, order: GuardianOrder) {
        // After the end no thread takes orders, and nothing is left to do.
        self.orders.send(order);
        // A full pipe has woken the watchdog already.
        let _ = (&self.wake).write(&[1]);
    }
}

/// By which times a guardian holds CMD, as it confirms them. Bounded: only the
/// latest is kept.
pub struct Confirmations(watch::Receiver<Option<Instant>>);

impl Confirmations {
    /// Waits until the guardian confirms that CMD runs, and by which `kill_at`
    /// it is held. May be cancelled without loss.
    pub async fn next(&mut self) -> Instant {
        while self.0.changed().await.is_ok() {
            if let Some(kill_at) = *self.0.borrow_and_update() {
                return kill_at;
            }
        }
        // The watchdog has ended, and says so as an event.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_that_is_gone_is_not_taken_for_the_end_of_cmd() {
        let (orders, _) = order_mailbox();
        let (_, events) = channel(EVENTS);
        let (_, confirmed) = watch::channel(None);
        let (wake, _) = UnixStream::pair().expect("a pair");
        let mut guardian = Guardian {
            orders,
            wake,
            events,
            confirmed,
            last: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let event = runtime.expect("a runtime").block_on(guardian.event());
        assert_eq!(event, GuardianEvent::WatchdogLost);
        // An order that no thread takes does no harm.
        guardian.kill();
    }
}
