//! What a server says unasked goes to the log, but no flood of it does.
//!
//! A trigger, or a server that is not what it should be, may send notices by the
//! thousand. Each connection logs some a minute, and counts the others.

use std::time::Duration;

use tenure_core::time::Instant;

use crate::error::quoted;

/// How many notices of one connection are logged a minute.
const LOGGED_MAX: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// Which notices of one connection are logged.
#[derive(Debug)]
pub(super) struct NoticeLog {
    since: Instant,
    /// How many there were since then.
    seen: u32,
}

impl NoticeLog {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            since: now,
            seen: 0,
        }
    }

    /// Logs a notice, unless many were logged within this minute.
    pub(super) fn log(&mut self, message: &str, now: Instant) {
        if let Some(left_out) = self.begin_minute(now) {
            tracing::warn!("the database has said {left_out} more in a minute, which are not here");
        }
        if self.is_logged() {
            tracing::warn!("the database says: {}", quoted(message));
        }
    }

    /// Begins another minute if one is over; how many notices of that were left out,
    /// if any were.
    fn begin_minute(&mut self, now: Instant) -> Option<u32> {
        if now.since(self.since) < MINUTE {
            return None;
        }
        let left_out = self.seen.saturating_sub(LOGGED_MAX);
        *self = Self::new(now);
        (left_out > 0).then_some(left_out)
    }

    /// Counts one; whether it is among those that are logged.
    fn is_logged(&mut self) -> bool {
        self.seen = self.seen.saturating_add(1);
        self.seen <= LOGGED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_flood_is_counted_and_some_of_it_logged() {
        let mut notices = NoticeLog::new(at(5));
        let logged = |notices: &mut NoticeLog| (0..1_000).filter(|_| notices.is_logged()).count();
        assert_eq!(notices.begin_minute(at(64)), None);
        assert_eq!(logged(&mut notices), 20);
        assert_eq!(notices.begin_minute(at(64)), None);
        assert_eq!(logged(&mut notices), 0);
        assert_eq!(notices.begin_minute(at(65)), Some(1_980));
        assert_eq!(logged(&mut notices), 20);
        assert_eq!(notices.begin_minute(at(125)), Some(980));
        assert!(notices.is_logged());
        assert_eq!(notices.begin_minute(at(185)), None, "nothing was left out");
    }
}
