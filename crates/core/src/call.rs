//! A call to a store as a machine sees it: which one, until when its answer is
//! awaited, how it failed, and how long to wait before the next.
//!
//! All machines that call stores share this policy of timeouts and back-off. An answer
//! that comes too late (its call was given up, or followed by another) is ignored,
//! because its number does not match any more.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use crate::cas::Reading;
use crate::ids::Key;
use crate::time::Instant;

/// Ties an answer to its question.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Call(pub u64);

/// Numbers the calls of one machine.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    last: u64,
}

impl Calls {
    /// The next call, asked at `now` and awaited for `within`.
    pub fn begin(&mut self, now: Instant, within: Duration) -> Pending {
        self.last += 1;
        Pending {
            call: Call(self.last),
            asked: now,
            give_up_at: now.after(within),
        }
    }
}

/// A call whose answer is awaited.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Which.
    pub call: Call,
    /// Since when.
    pub asked: Instant,
    /// Until when. What it was to do may happen later all the same.
    pub give_up_at: Instant,
}

impl Pending {
    /// Whether its answer is awaited no more.
    pub fn is_given_up(&self, now: Instant) -> bool {
        now >= self.give_up_at
    }
}

/// The longest pause after one failure. With a lease of hours an eighth of the interval is
/// minutes. A leader that is told to stop while its connection is down would wait so long
/// before it vacates.
const FIRST_PAUSE_MAX: Duration = Duration::from_secs(2);

/// The pause after so many failures in a row: `least`, doubled each time, and
/// at most `most`.
pub fn back_off(least: Duration, in_a_row: u32, most: Duration) -> Duration {
    let doubled = 1u32 << in_a_row.saturating_sub(1).min(8);
    least.saturating_mul(doubled).min(most)
}

/// How a store call failed, by what may be concluded from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailureClass {
    /// Another write came first.
    Conflict,
    /// It certainly did not happen.
    Unavailable,
    /// It may or may not have happened.
    Unknown,
    /// A person must do something.
    Broken,
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conflict => "conflict",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
            Self::Broken => "broken",
        })
    }
}

/// A store call that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What may be concluded.
    pub class: FailureClass,
    /// The cause, for people.
    pub why: Arc<str>,
}

impl Failure {
    /// A failure with its cause.
    pub fn new(class: FailureClass, why: &str) -> Self {
        Self {
            class,
            why: why.into(),
        }
    }

    /// A write of `key` met a conflict, and `reading`, asked after it, still shows what
    /// was expected.
    pub fn refused(key: &Key, reading: &Reading) -> Self {
        Self::new(FailureClass::Broken, &reading.refusal(key))
    }

    /// What was read is no record. Once proves nothing about the register:
    /// perhaps only the answer was damaged.
    pub fn malformed() -> Self {
        Self::new(FailureClass::Unknown, "the answer was not a record")
    }

    /// The session that holds an election confirms it no more.
    pub fn session_over() -> Self {
        Self::new(
            FailureClass::Conflict,
            "the session that holds the election is over",
        )
    }

    /// How long to wait before the next call, after so many failures in a row:
    /// an eighth of the interval and at most two seconds, doubled each time, at most an
    /// interval; at most a lease where a person must do something first.
    pub fn pause(&self, in_a_row: u32, interval: Duration, lease: Duration) -> Duration {
        let most = match self.class {
            FailureClass::Broken => lease,
            FailureClass::Conflict | FailureClass::Unavailable | FailureClass::Unknown => interval,
        };
        back_off((interval / 8).min(FIRST_PAUSE_MAX), in_a_row, most)
    }

    /// The time for an answer has passed.
    pub fn no_answer() -> Self {
        Self::new(FailureClass::Unknown, "the store did not answer in time")
    }
}
