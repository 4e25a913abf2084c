//! Whether what waits to be written still gets through.
//!
//! A writer has stalled once nothing has moved for [`STALL_TIMEOUT`]. A process
//! that was stopped itself finds the same. So a second look decides,
//! `SECOND_LOOK` after the first that found no movement: by then the thread that
//! writes has run.

use std::time::Duration;

use tenure::core::time::Instant;

/// After how long without progress a writer counts as stalled.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long after the first look that found no movement the second one may
/// decide.
const SECOND_LOOK: Duration = Duration::from_millis(200);

/// When something moved last. It means something while anything waits.
#[derive(Clone, Copy, Debug)]
pub struct StallDetector {
    at: Instant,
    /// When it was first found that nothing has moved since.
    suspected_at: Option<Instant>,
    /// How many bytes the reader had not read then, where the kernel tells.
    unread: Option<u64>,
}

impl StallDetector {
    /// No progress has been seen yet.
    pub const NONE: Self = Self::at(Instant::ZERO, None);

    /// It moves now, and so many bytes are unread.
    pub const fn at(now: Instant, unread: Option<u64>) -> Self {
        Self {
            at: now,
            suspected_at: None,
            unread,
        }
    }

    /// Whether nothing has moved for [`STALL_TIMEOUT`], seen by two looks. `unread`
    /// asks how many bytes the reader has not read: another number than before
    /// is movement too.
    pub fn is_stalled(&mut self, now: Instant, unread: impl FnOnce() -> Option<u64>) -> bool {
        if now.since(self.at) < STALL_TIMEOUT {
            return false;
        }
        let unread = unread();
        if unread != self.unread {
            *self = Self::at(now, unread);
            return false;
        }
        now.since(*self.suspected_at.get_or_insert(now)) >= SECOND_LOOK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: Instant = Instant::from_nanos(100_000_000_000);

    #[test]
    fn a_stop_of_this_process_is_not_taken_for_a_reader_that_hangs() {
        let mut stall = StallDetector::at(BEGUN, Some(4));
        // It was stopped for a minute; the first look is the first thing it does.
        let back = BEGUN.after(Duration::from_secs(60));
        assert!(!stall.is_stalled(back, || Some(4)));
        let soon = back.after(Duration::from_millis(1));
        assert!(!stall.is_stalled(soon, || Some(4)));
        // The thread that writes has run.
        stall = StallDetector::at(soon, Some(0));
        assert!(!stall.is_stalled(soon.after(SECOND_LOOK), || Some(0)));
    }

    #[test]
    fn a_reader_that_hangs_is_seen_by_the_second_look() {
        let mut stall = StallDetector::at(BEGUN, Some(4));
        assert!(!stall.is_stalled(BEGUN.after(STALL_TIMEOUT / 2), || Some(4)));
        assert!(!stall.is_stalled(BEGUN.after(STALL_TIMEOUT), || Some(4)));
        assert!(stall.is_stalled(BEGUN.after(STALL_TIMEOUT + SECOND_LOOK), || Some(4)));
        // A page that was read is movement, and the doubt begins anew.
        let read = BEGUN.after(STALL_TIMEOUT + 2 * SECOND_LOOK);
        assert!(!stall.is_stalled(read, || Some(3)));
        assert!(!stall.is_stalled(read.after(STALL_TIMEOUT), || Some(3)));
        assert!(stall.is_stalled(read.after(STALL_TIMEOUT + SECOND_LOOK), || Some(3)));
    }
}
