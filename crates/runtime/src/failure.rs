//! How a command fails: with a sentence and an exit code, never a backtrace.

use crate::error::StoreError;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Wrong usage or configuration: exit code 2.
    Usage(String),
    /// Anything else: exit code 1.
    Other(anyhow::Error),
}

/// A [`Failure::Usage`].
pub fn usage(text: impl Into<String>) -> Failure {
    Failure::Usage(text.into())
}

impl Failure {
    /// The exit code of the contract.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Other(_) => 1,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::Other(error) => write!(f, "{error:#}"),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// What a store's failure means for the exit code: what a person must mend is
/// configuration.
pub fn store_failure(error: StoreError) -> Failure {
    match error {
        StoreError::Broken(_) => usage(error.to_string()),
        _ => Failure::Other(error.into()),
    }
}
