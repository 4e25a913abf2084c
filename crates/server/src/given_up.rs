//! Calls that their callers gave up.
//!
//! Over HTTP/2 a call is given up by one small frame, and its place among the
//! calls of its connection is free at once, though what it asked for may
//! still be under way here. Deadlines that pass and futures that are dropped
//! do that by the hundred, and must not cost the other calls of their
//! connection anything; an attacker does it as fast as the network carries
//! frames. So there are two limits, both of one connection:
//!
//! * Calls that were given up before this server came to them: they have come
//!   in one burst with their ends, and take memory until it does. Of these
//!   [`UNSEEN_MAX`] may wait; one more closes the connection. The HTTP/2
//!   library counts them, and would stop at 20 by itself.
//! * Calls that were given up while they were worked on. What one connection
//!   may have of these is filled up as time passes ([`BURST`],
//!   [`PER_SECOND`]). Where it is used up, new calls are refused with BUSY
//!   before they cost anything; what is under way goes on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tenure_api::v1::{self, Cause};
use tenure_core::time::Instant;
use tenure_runtime::clock;

use super::errors::error;

/// Calls of one connection that may wait for the server after they were given
/// up: as many as a client can have under way, four times over. A kilobyte or
/// so each.
pub(super) const UNSEEN_MAX: usize = 4_096;
/// How many calls a connection may give up in a row.
pub(super) const BURST: u32 = 8_192;
/// How many more each second.
pub(super) const PER_SECOND: u32 = 1_024;

/// What one connection may still give up.
#[derive(Debug)]
pub(super) struct GivenUp {
    remaining: Mutex<Remaining>,
}

#[derive(Debug)]
struct Remaining {
    calls: u32,
    /// Up to when it was filled up.
    at: Instant,
}

impl Remaining {
    fn fill(&mut self, now: Instant) {
        let each = Duration::from_secs(1) / PER_SECOND;
        let more = now.since(self.at).as_nanos() / each.as_nanos();
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let room = BURST - self.calls;
        if more >= room {
            (self.calls, self.at) = (BURST, now);
        } else {
            self.calls += more;
            self.at = self.at.after(each * more);
        }
    }
}

impl GivenUp {
    /// That of a new connection.
    pub(super) fn new() -> Arc<Self> {
        let (calls, at) = (BURST, clock::boot());
        Arc::new(Self {
            remaining: Mutex::new(Remaining { calls, at }),
        })
    }

    /// A call begins; refused if too many were given up lately. `count` is
    /// that of the server.
    pub(super) fn begin(self: &Arc<Self>, count: &Counter) -> Result<CancelGuard, v1::Error> {
        self.begin_at(clock::boot(), count)
    }

    fn begin_at(self: &Arc<Self>, now: Instant, count: &Counter) -> Result<CancelGuard, v1::Error> {
        let mut remaining = self
            .remaining
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        remaining.fill(now);
        if remaining.calls == 0 {
            return Err(error(
                Cause::Busy,
                format!(
                    "expected a connection to give up at most {BURST} calls in a row and \
                     {PER_SECOND} a second, found more; give calls more time, or wait for their \
                     answers"
                ),
            ));
        }
        drop(remaining);
        Ok(CancelGuard {
            of: Arc::clone(self),
            count: count.clone(),
            answered: false,
        })
    }

    fn count(&self) {
        let mut remaining = self
            .remaining
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        remaining.calls = remaining.calls.saturating_sub(1);
    }
}

/// A call under way. Dropped before it is answered, it was given up.
pub(super) struct CancelGuard {
    of: Arc<GivenUp>,
    count: Counter,
    answered: bool,
}

impl CancelGuard {
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if !self.answered {
            self.count.inc();
            self.of.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_row_and_so_many_a_second_may_be_given_up() {
        let count = Counter::default();
        let of = GivenUp::new();
        // Time stands still: it would give calls back.
        let now = clock::boot();
        let begin = || of.begin_at(now, &count);
        for _ in 0..3 * BURST {
            begin().expect("answered calls are free").answered();
        }
        assert_eq!(count.get(), 0);
        // Those that began before are not harmed by those that are given up.
        let calls: Vec<_> = (0..BURST + 4_000).map(|_| begin()).collect();
        assert!(calls.iter().all(Result::is_ok));
        drop(calls);
        assert_eq!(count.get(), u64::from(BURST) + 4_000);
        let refused = begin().err().expect("too many");
        assert_eq!(refused.cause(), Cause::Busy, "{}", refused.message);
    }

    #[test]
    fn what_was_used_up_comes_back_with_time() {
        let start = Instant::from_nanos(1);
        let mut remaining = Remaining {
            calls: 0,
            at: start,
        };
        remaining.fill(start.after(Duration::from_millis(500)));
        assert_eq!(remaining.calls, PER_SECOND / 2);
        // In small steps it is not less.
        for step in 0..=1_000 {
            remaining.fill(start.after(Duration::from_micros(500_000 + step * 500)));
        }
        assert_eq!(remaining.calls, PER_SECOND);
        remaining.fill(start.after(Duration::from_secs(3_600)));
        assert_eq!(remaining.calls, BURST, "and never more than it was");
    }
}
