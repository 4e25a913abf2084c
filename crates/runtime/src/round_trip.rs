//! How far away the servers of a store are, and which lease that allows.
//!
//! What a client waits for before it tries something else has to follow from
//! that: 200 ms are an age within a data centre, and no time at all for a
//! server on the other side of the earth, which takes two round trips to say
//! that it leads, and four over TLS. So each answer is timed, and a caller that
//! waits asks here how long. Nothing is waited for longer than [`TIMEOUT_MAX`]
//! on that account, and never shorter than where no distance is known.
//!
//! A lease has to be some round trips long: a renewal is one, must be done
//! within an interval, which is a fifth of the lease by default, and one that
//! is lost on the way must not be the last. With [`LEASE_TRIPS`] there is room
//! for that. A call that failed for want of time says what was measured, the
//! time that it had, and the lease that would do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::about;

/// The longest that distance makes anybody wait.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// A time-out is this multiple of what the slowest recent answer took. That may include
/// setting up the connection, which takes two round trips, and four with TLS.
const TIMEOUT_FACTOR: u32 = 4;

/// How many round trips to its store a lease has to be.
pub const LEASE_TRIPS: u32 = 8;

/// The lease that would do where a round trip takes so long: with room for
/// what differs from one moment to the next, in whole seconds.
pub fn lease_for(trip: Duration) -> Duration {
    let least = trip.saturating_mul(LEASE_TRIPS);
    let millis = (least + least / 4).as_millis().div_ceil(1_000);
    Duration::from_secs(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// The text for a call that had `within` and needs `trip`: what was measured, the time that
/// it had, and the lease that would do.
pub fn advice(trip: Duration, within: Duration) -> String {
    format!(
        "a round trip takes {}, and this call had {} (a fifth of the lease at most, if no \
         interval was set): {ADVICE} {LEASE_TRIPS} round trips; {} would do. Where the lease is \
         longer already, the servers were slow for a moment",
        about(trip),
        about(within),
        about(lease_for(trip))
    )
}

/// What every advice says.
pub const ADVICE: &str = "expected a lease of at least";

/// What answers took lately. Clones are the same.
#[derive(Clone, Default, Debug)]
pub struct RoundTripTimes {
    slowest: Arc<AtomicU64>,
    /// 0: unknown.
    quickest: Arc<AtomicU64>,
}

impl RoundTripTimes {
    /// An answer took so long. A slow one counts at once, and is forgotten
    /// over some quicker ones.
    pub fn record(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (slowest, quickest) = (
            self.slowest.load(Ordering::Relaxed),
            self.quickest.load(Ordering::Relaxed),
        );
        // Two at once may overwrite each other: it is an estimate.
        let slowest = micros.max(slowest - slowest / 4);
        self.slowest.store(slowest, Ordering::Relaxed);
        let quickest = match quickest {
            0 => micros,
            before => micros.min(before.saturating_add(before / 4)),
        };
        self.quickest.store(quickest, Ordering::Relaxed);
    }

    /// An answer over a connection that was there took so long, what the server did for
    /// it included. That shows that slower ones are out of date: those of a machine
    /// that was busy when this process began, say. It shows no distance, as the
    /// server may have waited for its disk, so it makes nothing slower.
    pub fn record_answer(&self, time: Duration) {
        // A connection is set up in two round trips.
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let slowest = self.slowest.load(Ordering::Relaxed);
        let least = slowest.min(micros.saturating_mul(2));
        let slowest = least.max(slowest - slowest / 4);
        self.slowest.store(slowest, Ordering::Relaxed);
    }

    /// What the quickest answer took lately.
    pub fn quickest(&self) -> Option<Duration> {
        let micros = self.quickest.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Why a call that had so long for it was not answered, if that is less
    /// than its part of a lease of [`LEASE_TRIPS`] round trips.
    pub fn explain_timeout(&self, within: Duration) -> Option<String> {
        let trip = self.quickest()?;
        let is_short = within < trip.saturating_mul(LEASE_TRIPS) / 5;
        is_short.then(|| advice(trip, within))
    }

    /// What a person is told of a call that had so long and was not answered.
    pub fn timeout_text(&self, server: &str, within: Duration) -> String {
        let late = format!("{server} did not answer within {}", about(within));
        match self.explain_timeout(within) {
            Some(excuse) => format!("{late}; {excuse}"),
            None => late,
        }
    }

    /// How long to wait for what takes as much time as an answer and is near
    /// if it takes no more than `near`.
    pub fn timeout(&self, near: Duration) -> Duration {
        let slowest = Duration::from_micros(self.slowest.load(Ordering::Relaxed));
        slowest
            .saturating_mul(TIMEOUT_FACTOR)
            .min(TIMEOUT_MAX)
            .max(near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn patience_follows_what_was_measured_within_bounds() {
        let distance = RoundTripTimes::default();
        assert_eq!(distance.timeout(ms(200)), ms(200));
        distance.record(ms(3));
        assert_eq!(distance.timeout(ms(200)), ms(200), "near enough");
        distance.record(ms(300));
        assert_eq!(distance.timeout(ms(200)), ms(1_200));
        distance.record(ms(60_000));
        assert_eq!(distance.timeout(ms(200)), TIMEOUT_MAX);
        assert_eq!(distance.timeout(ms(9_000)), ms(9_000), "never shorter");
        for _ in 0..40 {
            distance.record(ms(1));
        }
        assert_eq!(distance.timeout(ms(200)), ms(200), "it came nearer");
    }

    #[test]
    fn answers_that_come_at_once_end_the_patience_of_a_busy_start() {
        let distance = RoundTripTimes::default();
        distance.record_answer(ms(900));
        assert_eq!(
            distance.timeout(ms(1)),
            ms(1),
            "a slow disk is not far away"
        );
        distance.record(ms(1_000));
        distance.record_answer(ms(60_000));
        assert_eq!(distance.timeout(ms(1)), ms(4_000));
        distance.record_answer(ms(3));
        assert_eq!(
            distance.timeout(ms(1)),
            ms(3_000),
            "one is no more than one"
        );
        for _ in 0..40 {
            distance.record_answer(ms(3));
        }
        assert_eq!(distance.timeout(ms(1)), ms(24), "twice, for a connection");
    }

    #[test]
    fn what_is_too_short_a_time_is_said_with_the_lease_that_would_do() {
        let distance = RoundTripTimes::default();
        assert_eq!(
            distance.explain_timeout(ms(1)),
            None,
            "nothing was measured"
        );
        distance.record(ms(1_000));
        distance.record(ms(500));
        assert_eq!(
            distance.explain_timeout(ms(800)),
            None,
            "a fifth of 8 round trips"
        );
        let said = distance.explain_timeout(ms(200)).expect("too short");
        for words in [
            "takes 500ms",
            "had 200ms",
            "at least 8 round trips; 5s would do",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}
