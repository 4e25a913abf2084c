//! What a server says unasked goes to the log, but no flood of it does.
//!
//! A trigger, or a server that is not what it should be, may send notices by the
//! thousand, over one connection or over many that it ends. A process logs some a minute,
//! and counts the others.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;

use crate::clock;
use crate::error::quoted;

/// How many notices are logged a minute.
const LOGGED_MAX: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// Logs a notice, unless many were logged within this minute.
pub(super) fn log(message: &str) {
    static LOG: Mutex<Option<NoticeLog>> = Mutex::new(None);
    let (left_out, is_logged) = {
        let now = clock::boot();
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        let log = log.get_or_insert_with(|| NoticeLog::new(now));
        (log.begin_minute(now), log.is_logged())
    };
    if let Some(left_out) = left_out {
        tracing::warn!("the database has said {left_out} more in a minute, which are not here");
    }
    if is_logged {
        tracing::warn!("the database says: {}", quoted(message));
    }
}

/// Which notices are logged.
#[derive(Debug)]
struct NoticeLog {
    since: Instant,
    /// How many there were since then.
    seen: u32,
}

impl NoticeLog {
    const fn new(now: Instant) -> Self {
        Self {
            since: now,
            seen: 0,
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
