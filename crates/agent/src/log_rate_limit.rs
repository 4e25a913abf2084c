//! Logging once a minute what a process on this machine can bring about as often
//! as it likes, so that it cannot fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure::core::time::Instant;

/// How long the same is not logged again.
const SILENCE: Duration = Duration::from_secs(60);

/// When it was logged last.
#[derive(Debug, Default)]
pub(super) struct LogRateLimit(Mutex<Option<Instant>>);

impl LogRateLimit {
    /// Whether it is to be logged now.
    pub(super) fn should_log(&self, now: Instant) -> bool {
        let mut logged_at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged_at.is_none_or(|at| now.since(at) >= SILENCE);
        if is_due {
            *logged_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_all_the_time_is_logged_once_a_minute() {
        let (limit, begun) = (LogRateLimit::default(), Instant::from_nanos(7));
        let second = |number| begun.after(Duration::from_secs(number));
        let logged = (0..300).filter(|number| limit.should_log(second(*number)));
        assert_eq!(logged.collect::<Vec<_>>(), [0, 60, 120, 180, 240]);
    }
}
