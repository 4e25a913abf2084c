//! How much of the log may be uncommitted before proposals wait their turn.
//!
//! An entry waits for all before it: for their bytes on the slowest way to a
//! majority, a link or a disk. So the leader appends no more than commits
//! within a part of a second, and keeps the rest where it can still choose
//! ([`super::fair_queue`]). The leader does not know beforehand how much that is.
//!
//! The delay from appending an entry to committing it says how long the queue
//! before it was; the least delay of this leadership is that of an empty one.
//! If the queue is longer than [`LONG`] the window becomes half as large; if it
//! is shorter than [`SHORT`], and proposals had to wait, larger by a quarter.
//! Each time the next judgement is made of an entry that was appended after it.
//! So a way of any speed is kept busy, and what is appended to a full window is
//! committed about [`LONG`] later, if syncs and round trips take no time.
//!
//! [`super::pacing`] does the same for each link, for the sake of heartbeats,
//! and by the election timeout. This window bounds how long clients wait, so it is
//! measured in time, and not in timeouts.

use core::time::Duration;

use tenure_core::time::nanos;

use super::super::config::Config;
use super::super::entry::LogTime;
use super::super::ids::LogId;

/// A queue that takes longer than this is too long.
const LONG: Duration = Duration::from_millis(250);
/// One that takes less than this may be longer.
const SHORT: Duration = Duration::from_millis(125);

/// The window of one leadership.
#[derive(Clone, Debug, Default)]
pub(super) struct AdmissionWindow {
    /// Bytes of entries that may be uncommitted; 0 before the first is asked
    /// for.
    bytes: usize,
    /// The least delay.
    least: Option<LogTime>,
    /// Proposals had to wait since it was judged last.
    is_used_up: bool,
    /// Commits up to this entry say nothing about the present window.
    judged_at: LogId,
}

impl AdmissionWindow {
    /// Bytes of entries that may be uncommitted.
    pub(super) fn bytes(&self, config: &Config) -> usize {
        match self.bytes {
            0 => config.append_bytes.saturating_mul(2),
            bytes => bytes,
        }
        .min(config.uncommitted_bytes)
    }

    /// A proposal waits.
    pub(super) const fn note_wait(&mut self) {
        self.is_used_up = true;
    }

    /// Entry `id` was committed so long after it was appended; `last` was
    /// appended last.
    pub(super) fn committed(&mut self, id: LogId, delay: LogTime, last: LogId, config: &Config) {
        let least = self.least.map_or(delay, |least| least.min(delay));
        self.least = Some(least);
        if id <= self.judged_at {
            return;
        }
        let (bytes, queue) = (self.bytes(config), delay - least);
        let floor = config.append_bytes.div_ceil(8);
        if queue > nanos(LONG) && bytes <= floor {
            // So little makes no queue: the way itself has become longer.
            self.least = Some(delay);
            return;
        }
        if queue > nanos(LONG) {
            self.bytes = (bytes / 2).max(floor);
        } else if queue < nanos(SHORT) && self.is_used_up {
            self.bytes = bytes.saturating_add(bytes.div_ceil(4));
        } else {
            return;
        }
        self.bytes = self.bytes(config);
        self.is_used_up = false;
        self.judged_at = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: LogTime = 1_000_000;

    #[test]
    fn it_follows_the_delay_and_only_what_tells_of_it() {
        let config = Config::default();
        let mut window = AdmissionWindow::default();
        let first = window.bytes(&config);
        window.committed(1, 5 * MILLI, 1, &config);
        assert_eq!(window.bytes(&config), first, "nothing has waited");
        window.note_wait();
        window.committed(2, 5 * MILLI, 10, &config);
        assert_eq!(window.bytes(&config), first + first / 4);
        window.note_wait();
        window.committed(10, 5 * MILLI, 20, &config);
        assert_eq!(window.bytes(&config), first + first / 4, "of before");
        window.committed(11, 300 * MILLI, 20, &config);
        assert_eq!(window.bytes(&config), (first + first / 4) / 2);
        for id in 1..100 {
            window.committed(20 + id, 300 * MILLI, 20 + id, &config);
        }
        assert_eq!(window.bytes(&config), config.append_bytes / 8);
        // A disk or a link that has become slower for good is no queue.
        for id in 1..100 {
            window.note_wait();
            window.committed(200 + id, 310 * MILLI, 200 + id, &config);
        }
        assert_eq!(window.bytes(&config), config.uncommitted_bytes);
    }

    #[test]
    fn a_way_that_is_long_is_no_queue() {
        let config = Config::default();
        let mut window = AdmissionWindow::default();
        for id in 1..20 {
            window.note_wait();
            window.committed(id, 2_000 * MILLI, id, &config);
        }
        assert!(window.bytes(&config) > 16 << 20);
    }
}
