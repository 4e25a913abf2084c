//! How long the heartbeats of a candidate take: its writes of the register, from the
//! moment before each was sent to its answer, on any store.
//!
//! An election that a session holds is confirmed and not written; there the
//! confirmations count. A write that was refused, or not answered, counts as none: it is
//! told as trouble.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::error::about;

/// How long the writes of a candidate took since it began to stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WriteTimes {
    /// How many there were.
    pub count: u64,
    /// The quickest; zero if there was none.
    pub min: Duration,
    /// All of them on average; zero if there was none.
    pub mean: Duration,
    /// The slowest; zero if there was none.
    pub max: Duration,
    /// How many took longer than the interval.
    pub late: u64,
}

/// Takes note of writes.
#[derive(Debug)]
pub(super) struct WriteTimer {
    /// What the candidate is called in the log.
    who: String,
    interval: Duration,
    times: Mutex<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    times: WriteTimes,
    total: Duration,
    /// The last one was late, and that was told.
    told: bool,
}

impl WriteTimer {
    pub(super) fn new(who: String, interval: Duration) -> Self {
        Self {
            who,
            interval,
            times: Mutex::default(),
        }
    }

    /// A write has taken so long. The first of several that are late is warned of: HPC
    /// Pack HA warns of a heartbeat that takes longer than I.
    pub(super) fn record(&self, took: Duration) {
        if self.note(took) {
            tracing::warn!(
                "{}: a heartbeat took {}, longer than the interval of {}: the store is slow, or far \
                 away; another that is late may cost the leadership",
                self.who,
                about(took),
                about(self.interval)
            );
        }
    }

    /// Counts a write; whether it is to be warned of.
    fn note(&self, took: Duration) -> bool {
        let mut sums = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let is_late = took > self.interval;
        sums.total = sums.total.saturating_add(took);
        let (before, total) = (sums.times, sums.total);
        let count = before.count.saturating_add(1);
        let nanos = total.as_nanos() / u128::from(count);
        sums.times = WriteTimes {
            count,
            min: match before.count {
                0 => took,
                _ => before.min.min(took),
            },
            mean: Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)),
            max: before.max.max(took),
            late: before.late + u64::from(is_late),
        };
        let was_told = std::mem::replace(&mut sums.told, is_late);
        is_late && !was_told
    }

    pub(super) fn times(&self) -> WriteTimes {
        let sums = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        sums.times
    }
}

/// What notes how long a write took that begins now, told whether it succeeded.
pub(super) fn stopwatch(timer: Option<Arc<WriteTimer>>) -> impl FnOnce(bool) + Send + 'static {
    let asked = clock::boot();
    move |is_done| {
        if let Some(timer) = timer.filter(|_| is_done) {
            timer.record(clock::boot().since(asked));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn writes_are_counted_and_the_first_late_one_of_several_is_told() {
        let timer = WriteTimer::new("payroll".into(), ms(100));
        assert_eq!(timer.times(), WriteTimes::default());
        let told: Vec<_> = [20, 10, 100, 150, 400, 30, 101]
            .map(|took| timer.note(ms(took)))
            .into();
        assert_eq!(told, [false, false, false, true, false, false, true]);
        let times = timer.times();
        assert_eq!((times.count, times.late), (7, 3));
        assert_eq!((times.min, times.max), (ms(10), ms(400)));
        assert_eq!(times.mean, ms(811) / 7);
    }
}
