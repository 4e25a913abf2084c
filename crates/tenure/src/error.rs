//! Errors by what the caller must do next.
//!
//! Which library raised an error is of no use to a campaign; what it may
//! conclude about its write is everything. So the classes are four, and the
//! one most libraries lack is [`StoreError::Unknown`]: the write may have
//! happened and may not. Reading it as "no" loses offices, reading it as
//! "yes" makes two leaders.

use std::error::Error as StdError;
use std::fmt;

/// The cause behind a [`StoreError`], for people.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// How a store's operation failed, by what the caller must do next.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else wrote first. Re-read, then decide.
    #[error("the register was changed by somebody else")]
    Conflict,
    /// It certainly did not happen. Retry within the lease budget.
    #[error("the store is not available: {0}")]
    Unavailable(Cause),
    /// It may or may not have happened. Treat it as neither: re-read and
    /// compare leader id, term and sequence.
    #[error("no certain answer from the store: {0}")]
    Unknown(Cause),
    /// It will not work until a person does something: wrong credentials, a
    /// table of another shape, a store that ignores preconditions.
    #[error("{0}")]
    Broken(Cause),
}

impl StoreError {
    /// [`StoreError::Unavailable`] with a sentence.
    pub fn unavailable(text: impl fmt::Display) -> Self {
        Self::Unavailable(text.to_string().into())
    }

    /// [`StoreError::Unknown`] with a sentence.
    pub fn unknown(text: impl fmt::Display) -> Self {
        Self::Unknown(text.to_string().into())
    }

    /// [`StoreError::Broken`] with a sentence that says what was expected,
    /// what was found and what to do.
    pub fn broken(text: impl fmt::Display) -> Self {
        Self::Broken(text.to_string().into())
    }
}
