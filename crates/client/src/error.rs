//! How a call to a cluster fails, by what its caller must do next.
//!
//! The line that matters runs between "certainly not" and "perhaps". What was
//! sent and not answered is [`Error::Unknown`], whatever broke and however
//! likely it is that nothing happened: a command that another server has on
//! its disk may still be done after everybody stopped waiting for it.

use tenure_api::v1;
use tenure_core::cas::{MAX_VALUE_BYTES, Write};
use tenure_runtime::error::{StoreError, quoted};
use tenure_runtime::tls::FilesError;

/// How a call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The register is not as expected, and nothing was done.
    #[error("the register was changed by somebody else")]
    Conflict,
    /// It certainly was not done. Try again.
    #[error("the cluster is not available: {0}")]
    Unavailable(String),
    /// It may or may not have been done, or may be yet. Look before asking
    /// for it again.
    #[error("no certain answer from the cluster: {0}")]
    Unknown(String),
    /// It was not done, and will not be if asked in the same way.
    #[error("{message}")]
    Refused {
        /// Why, for programs.
        cause: v1::Cause,
        /// What was expected, what was found, what to do.
        message: String,
    },
    /// What was asked for is kept no more.
    #[error("expected to read from {first} on, which is the oldest that is kept")]
    Compacted {
        /// The oldest that is still there.
        first: u64,
    },
    /// The cluster was restored from a backup, and the number that was asked
    /// for is one that the lost cluster may have given.
    #[error(
        "expected a number of this cluster, found one that it had before it was restored from a \
         backup: entries after the backup are lost, and it goes on at {next}"
    )]
    Restored {
        /// Where it goes on here.
        next: u64,
    },
}

impl Error {
    /// Whether a server refused it since the caller lacks a right, or is not
    /// known.
    pub const fn is_denied(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                cause: v1::Cause::Denied | v1::Cause::Unauthenticated,
                ..
            }
        )
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::Refused {
            cause: v1::Cause::Invalid,
            message: message.into(),
        }
    }

    /// What a server's refusal means to somebody who asked once and will not
    /// ask again.
    pub(super) fn from_wire(error: &v1::Error) -> Self {
        let message = || {
            if error.message.is_empty() {
                format!("the server says {}", error.cause().as_str_name())
            } else {
                quoted(&error.message)
            }
        };
        match error.cause() {
            v1::Cause::NotLeader
            | v1::Cause::Busy
            | v1::Cause::SessionExpired
            | v1::Cause::OtherContent
            | v1::Cause::NotOwner
            | v1::Cause::OutOfOrder
            | v1::Cause::Window
            | v1::Cause::TooManySessions
            | v1::Cause::NotReady
            | v1::Cause::TooSlow => Self::Unavailable(message()),
            v1::Cause::Unspecified | v1::Cause::Interrupted | v1::Cause::TooOld => {
                Self::Unknown(message())
            }
            v1::Cause::Compacted => Self::Compacted {
                first: error.expected,
            },
            v1::Cause::Restored => Self::Restored {
                next: error.expected,
            },
            cause @ (v1::Cause::TooLarge
            | v1::Cause::Members
            | v1::Cause::NotHandedOver
            | v1::Cause::Held
            | v1::Cause::Invalid
            | v1::Cause::Denied
            | v1::Cause::Unauthenticated) => Self::Refused {
                cause,
                message: message(),
            },
        }
    }
}

impl From<FilesError> for Error {
    fn from(unread: FilesError) -> Self {
        match unread {
            FilesError::Wrong(why) => Self::invalid(why),
            FilesError::Late(why) => Self::Unavailable(why),
        }
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error {
            Error::Conflict => Self::Conflict,
            Error::Unavailable(why) => Self::unavailable(why),
            Error::Unknown(why) => Self::unknown(why),
            Error::Refused { .. } | Error::Compacted { .. } | Error::Restored { .. } => {
                Self::broken(error)
            }
        }
    }
}

/// The error that a failed call carries in its trailers, if it carries one.
pub(super) fn carried(status: &tonic::Status) -> Option<v1::Error> {
    use prost::Message as _;

    let value = status.metadata().get_bin(tenure_api::ERROR_TRAILER)?;
    v1::Error::decode(value.to_bytes().ok()?).ok()
}

/// A failed call as a server would report it.
pub(super) fn carrying(error: &v1::Error) -> tonic::Status {
    use prost::Message as _;
    use tonic::metadata::MetadataValue;

    let mut status = tonic::Status::unavailable(&*error.message);
    let bytes = MetadataValue::from_bytes(&error.encode_to_vec());
    let trailers = status.metadata_mut();
    trailers.insert_bin(tenure_api::ERROR_TRAILER, bytes);
    status
}

/// What a failed call means if it changes nothing, or only reads.
pub(super) fn of_reading(status: &tonic::Status) -> Error {
    match carried(status) {
        Some(error) => match Error::from_wire(&error) {
            Error::Unknown(why) => Error::Unavailable(why),
            other => other,
        },
        None => Error::Unavailable(sentence(status)),
    }
}

/// What a failed call means if it may have changed something.
pub(super) fn of_changing(status: &tonic::Status) -> Error {
    match carried(status) {
        Some(error) => Error::from_wire(&error),
        None => Error::Unknown(sentence(status)),
    }
}

/// What a failed call means that ends a session: that there is none to end is
/// final. Elsewhere the session is the client's own, and it opens another.
pub(super) fn of_ending(status: &tonic::Status) -> Error {
    match (of_changing(status), carried(status)) {
        (Error::Unavailable(message), Some(error))
            if error.cause() == v1::Cause::SessionExpired =>
        {
            Error::Refused {
                cause: v1::Cause::SessionExpired,
                message,
            }
        }
        (other, _) => other,
    }
}

/// The text of a status and of what lies behind it, in one line: it was written
/// by the program that answers at the address of a server.
pub(super) fn sentence(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    if text.is_empty() {
        text = status.code().description().to_owned();
    }
    if let Some(source) = std::error::Error::source(status) {
        let below = chain(source);
        if !below.is_empty() && !text.contains(&below) {
            text = format!("{text}: {below}");
        }
    }
    quoted(&text)
}

/// The innermost cause of an error: what the operating system said.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// What is too large is refused before anything is sent.
pub(super) fn oversized(write: &Write) -> Error {
    Error::invalid(format!(
        "expected a value of at most {MAX_VALUE_BYTES} bytes for {}, found {}",
        write.key,
        write.value.len()
    ))
}

pub(super) fn strange() -> Error {
    Error::Unknown("the server answered another question".into())
}

pub(super) fn gone() -> Error {
    Error::Unknown("the client's connection was given up".into())
}

#[cfg(test)]
mod tests {
    use tenure_runtime::error::QUOTED_MAX;

    use super::*;

    #[test]
    fn a_server_says_nothing_but_text() {
        let words = "no\n2026-01-01 INFO elected\u{1b}[2J\u{9b}31m\u{202e}";
        let shown = r"no\n2026-01-01 INFO elected\u{1b}[2J\u{9b}31m\u{202e}";
        let bare = tonic::Status::internal(words);
        assert_eq!(sentence(&bare), shown);
        for cause in [v1::Cause::Busy, v1::Cause::TooOld, v1::Cause::Invalid] {
            let error = v1::Error {
                cause: cause.into(),
                message: words.into(),
                ..v1::Error::default()
            };
            let told = Error::from_wire(&error).to_string();
            assert!(told.ends_with(shown), "{told}");
            let told = of_reading(&carrying(&error)).to_string();
            assert!(told.ends_with(shown), "{told}");
        }
        for told in [of_reading(&bare), of_changing(&bare)] {
            assert!(told.to_string().ends_with(shown), "{told}");
        }
    }

    #[test]
    fn a_server_that_says_much_is_quoted_by_its_beginning() {
        let words = "ä".repeat(3_000_000);
        let shown = "ä".repeat(QUOTED_MAX) + " …";
        assert_eq!(sentence(&tonic::Status::internal(&*words)), shown);
        let error = v1::Error {
            cause: v1::Cause::Invalid.into(),
            message: words,
            ..v1::Error::default()
        };
        assert_eq!(Error::from_wire(&error).to_string(), shown);
    }

    #[test]
    fn a_session_that_is_not_there_to_be_ended_is_no_cluster_that_is_away() {
        let status = |cause: v1::Cause| {
            carrying(&v1::Error {
                cause: cause.into(),
                ..v1::Error::default()
            })
        };
        let expired = v1::Cause::SessionExpired;
        let told = of_ending(&status(expired));
        assert!(
            matches!(told, Error::Refused { cause, .. } if cause == expired),
            "{told}"
        );
        let told = of_ending(&status(v1::Cause::Busy));
        assert!(matches!(told, Error::Unavailable(_)), "{told}");
        let told = of_ending(&status(v1::Cause::Interrupted));
        assert!(matches!(told, Error::Unknown(_)), "{told}");
    }

    #[test]
    fn perhaps_is_never_read_as_no() {
        let error = |cause: v1::Cause| v1::Error {
            cause: cause.into(),
            ..v1::Error::default()
        };
        for cause in [
            v1::Cause::Interrupted,
            v1::Cause::TooOld,
            v1::Cause::Unspecified,
        ] {
            let meant = Error::from_wire(&error(cause));
            assert!(matches!(meant, Error::Unknown(_)), "{cause:?}: {meant:?}");
            let store = StoreError::from(meant);
            assert!(matches!(store, StoreError::Unknown(_)), "{cause:?}");
        }
        // A cause that a later version has added.
        let newer = v1::Error {
            cause: 99,
            ..v1::Error::default()
        };
        assert!(matches!(Error::from_wire(&newer), Error::Unknown(_)));
        let kept = carried(&carrying(&newer));
        assert_eq!(kept, Some(newer));
        let lost = tonic::Status::unavailable("gone");
        assert!(matches!(of_changing(&lost), Error::Unknown(_)));
        assert!(matches!(of_reading(&lost), Error::Unavailable(_)));
    }
}
