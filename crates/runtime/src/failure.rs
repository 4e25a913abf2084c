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
            Self::Other(error) => {
                write!(f, "{error:#}")?;
                if has_no_thread(error) {
                    f.write_str(
                        "; the system gave no thread or process: raise its limit on processes \
                         (ulimit -u, pids.max, TasksMax= of systemd)",
                    )?;
                }
                Ok(())
            }
        }
    }
}

/// Whether the system has refused a thread or a process: it says no more than that a resource
/// is *temporarily unavailable*.
fn has_no_thread(error: &anyhow::Error) -> bool {
    let root = error.root_cause().downcast_ref::<std::io::Error>();
    root.is_some_and(|it| {
        it.kind() == std::io::ErrorKind::WouldBlock && it.raw_os_error().is_some()
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_had_is_told_with_what_to_do() {
        let refused = std::io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error());
        assert!(Failure::from(refused).to_string().contains("ulimit -u"));
        let other = std::io::Error::from(std::io::ErrorKind::WouldBlock);
        assert!(!Failure::from(other).to_string().contains("ulimit"));
    }
}
