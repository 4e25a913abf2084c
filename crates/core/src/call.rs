//! A call to a store as a machine sees it: which one, and how it failed.

use alloc::sync::Arc;
use core::fmt;

use crate::cas::Reading;
use crate::ids::Key;

/// Ties an answer to its question.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Call(pub u64);

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

    /// The time for an answer has passed.
    pub fn no_answer() -> Self {
        Self::new(FailureClass::Unknown, "the store did not answer in time")
    }
}
