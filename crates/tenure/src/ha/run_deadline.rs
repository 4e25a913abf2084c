//! Until when the workloads of one incarnation of a node may run.
//!
//! Every confirmed heartbeat moves the deadline later. It is kept here a second time,
//! beside the machine that ends work in good order: if that machine's thread
//! is starved, each workload is dropped at `kill_at` by itself, and a look at
//! [`RunDeadline::is_valid`] compares a clock and sends no message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::time::Instant;
use tenure_election::Grant;
use tokio::sync::watch as state;

use crate::clock;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct RunDeadline {
    /// Nanoseconds on the boot-time clock; zero when nothing may run.
    valid_until: AtomicU64,
    kill_at: state::Sender<Instant>,
}

impl RunDeadline {
    /// Nothing may run before the first beat.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            valid_until: AtomicU64::new(0),
            kill_at: state::Sender::new(Instant::ZERO),
        })
    }

    /// A beat was confirmed.
    pub(super) fn extend(&self, grant: Grant) {
        let until = grant.valid_until.as_nanos();
        self.valid_until.store(until, Ordering::Release);
        self.kill_at.send_replace(grant.kill_at);
    }

    /// Everything ends now.
    pub(super) fn cut(&self) {
        self.valid_until.store(0, Ordering::Release);
        self.kill_at.send_replace(Instant::ZERO);
    }

    /// Whether nobody else can be running what runs here.
    pub(super) fn is_valid(&self) -> bool {
        clock::boot().as_nanos() < self.valid_until.load(Ordering::Acquire)
    }

    /// Until when that stays so, if nothing more is confirmed.
    pub(super) fn valid_until(&self) -> Instant {
        Instant::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Waits until everything must have been killed.
    pub(super) async fn pulled(&self) {
        let mut kill_at = self.kill_at.subscribe();
        loop {
            let at = *kill_at.borrow_and_update();
            let left = at.since(clock::boot());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                // The sender lives as long as `self`.
                _ = kill_at.changed() => {}
            }
        }
    }
}
