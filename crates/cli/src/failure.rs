//! How a command fails: with a sentence and an exit code, never a backtrace.

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Wrong usage or configuration: exit code 2.
    Usage(String),
    /// Anything else: exit code 1.
    Other(anyhow::Error),
}

/// A [`Failure::Usage`].
pub(crate) fn usage(text: impl Into<String>) -> Failure {
    Failure::Usage(text.into())
}

impl Failure {
    /// The exit code of the contract.
    pub(crate) const fn code(&self) -> u8 {
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
