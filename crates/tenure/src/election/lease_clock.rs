//! The clock by which a leadership is judged: that of the machine, or one that
//! a test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::time::Instant;

use crate::clock;

/// Where a leadership reads the time.
#[derive(Clone, Debug)]
pub(super) enum LeaseClock {
    /// The boot-time clock of this machine.
    Boot,
    /// Moved by a test.
    Fake(Arc<FakeClock>),
}

/// A clock that stands still until it is moved, in nanoseconds.
#[derive(Debug)]
pub(super) struct FakeClock(AtomicU64);

impl LeaseClock {
    #[inline]
    pub(super) fn now(&self) -> Instant {
        match self {
            Self::Boot => clock::boot(),
            Self::Fake(clock) => clock.now(),
        }
    }
}

impl FakeClock {
    /// Begins at the time of the machine, so that both can be compared.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(clock::boot().as_nanos()))
    }

    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Acquire))
    }

    pub(super) fn set(&self, now: Instant) {
        self.0.store(now.as_nanos(), Ordering::Release);
    }
}
