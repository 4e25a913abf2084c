//! Three clocks that never mix.
//!
//! * [`Instant`]: this machine's *boot-time* clock (`CLOCK_BOOTTIME`). It goes
//!   on while the machine is suspended, never steps, and means nothing on any
//!   other machine. All deadlines live here.
//! * [`WallTime`]: the calendar. It can step either way at any moment, so it is
//!   shown to people and, only on request, judged with a stated skew bound.
//! * [`StoreTime`]: the store's own clock, named by a [`ClockId`]. Two of them
//!   compare only if they come from the same clock.
//!
//! There is no conversion between the three, and no arithmetic that wraps:
//! additions saturate, differences of times in the wrong order are zero.
//! *Rates* of clocks are assumed to be within a [`Drift`] of true time; that
//! is the one assumption exclusivity rests on.

use core::fmt;
use core::time::Duration;

/// A point on this machine's boot-time clock, in nanoseconds since boot.
/// 64 bits last 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The moment of boot; before every other.
    pub const ZERO: Self = Self(0);
    /// After every other; a deadline that never comes.
    pub const MAX: Self = Self(u64::MAX);

    /// From nanoseconds since boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Later by `by`; [`Instant::MAX`] if that cannot be said.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }

    /// Earlier by `by`; [`Instant::ZERO`] if that would be before boot.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }

    /// Time since `earlier`; zero if it is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        seconds(f, self.0)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        seconds(f, self.0)
    }
}

/// A calendar time in milliseconds since 1970-01-01T00:00:00Z. May step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct WallTime(u64);

impl WallTime {
    /// From milliseconds since the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if it is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// What the clocks of this process say at the moment an input is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// The boot-time clock, on which every deadline is kept.
    pub boot: Instant,
    /// The calendar, written down for people.
    pub wall: WallTime,
}

/// Which clock a [`StoreTime`] was read from.
///
/// Both halves are opaque hashes. `boot` names the boot of the machine (or
/// the database) whose clock it is; `namespace` tells apart views of the same
/// clock that are shifted against each other (a Linux time namespace).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ClockId {
    /// The machine and its boot, or the database.
    pub boot: u64,
    /// The time namespace within it; 0 where there is no such thing.
    pub namespace: u64,
}

/// A point on a store's clock, in nanoseconds from a zero of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct StoreTime {
    /// The clock it was read from.
    pub clock: ClockId,
    /// Nanoseconds on that clock.
    pub nanos: u64,
}

impl StoreTime {
    /// Time since `earlier` (zero if it is in fact later), or `None` if the
    /// two come from different clocks and so cannot be compared.
    pub fn since(self, earlier: Self) -> Option<Duration> {
        (self.clock == earlier.clock)
            .then(|| Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos)))
    }
}

/// How far the *rate* of any clock may be off true time, in parts per million.
///
/// A holder shortens its lease by this much and a judge lengthens it, so that
/// a slow holder and a fast judge still agree in the right order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Drift(u32);

impl Drift {
    /// The default bound, 1 %: far above any quartz, below any usable lease.
    pub const DEFAULT: Self = Self(10_000);
    /// No drift at all: for clocks that are one and the same.
    pub const NONE: Self = Self(0);

    /// From parts per million; `None` above 100,000 (10 %), where a lease
    /// would mean nothing.
    pub const fn from_ppm(ppm: u32) -> Option<Self> {
        if ppm <= 100_000 {
            Some(Self(ppm))
        } else {
            None
        }
    }

    /// Parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// `span x (1 - drift)`, rounded down: what a holder may count on.
    pub fn shorten(self, span: Duration) -> Duration {
        span.saturating_sub(self.part(span))
    }

    /// `span x (1 + drift)`, rounded up: what a judge must wait.
    pub fn lengthen(self, span: Duration) -> Duration {
        span.saturating_add(self.part(span))
    }

    fn part(self, span: Duration) -> Duration {
        let part = span
            .as_nanos()
            .saturating_mul(u128::from(self.0))
            .div_ceil(1_000_000);
        Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

impl Default for Drift {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Nanoseconds of a duration, saturating at 584 years.
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(f: &mut fmt::Formatter<'_>, nanos: u64) -> fmt::Result {
    write!(
        f,
        "{}.{:06}s",
        nanos / 1_000_000_000,
        nanos % 1_000_000_000 / 1_000
    )
}
