//! How the log fails, without saying where the disk is.
//!
//! What is wrong with the bytes themselves is a [`Refused`]; a driver adds
//! the directory and the advice. Nothing here knows what an error of a disk
//! is: that is the driver's `E`.

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use core::fmt;

/// What is wrong with a file, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamageReport {
    /// The name of the file.
    pub file: String,
    /// Where in it, in bytes from its start.
    pub offset: u64,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// Why the bytes on a disk are not taken for the log of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The files belong to another server or cluster, name none, or are in a directory
    /// that should be empty. The disk is not damaged.
    Misplaced(DamageReport),
    /// Written by a newer version.
    Newer {
        /// The name of the file.
        file: String,
        /// Its version.
        found: u32,
        /// The newest this code reads.
        known: u32,
    },
    /// A record that is whole, and of a kind that this code does not know.
    Later(DamageReport),
    /// What was acknowledged is damaged or gone.
    Damaged(DamageReport),
}

impl Refused {
    pub(super) fn damaged(
        file: &str,
        offset: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::Damaged(DamageReport {
            file: file.to_owned(),
            offset,
            expected: expected.into(),
            found: found.into(),
        })
    }

    pub(super) fn misplaced(
        file: &str,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::Misplaced(DamageReport {
            file: file.to_owned(),
            offset: 0,
            expected: expected.into(),
            found: found.into(),
        })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misplaced(flaw) | Self::Later(flaw) | Self::Damaged(flaw) => write!(
                f,
                "{} at byte {}: expected {}, found {}",
                flaw.file, flaw.offset, flaw.expected, flaw.found
            ),
            Self::Newer { file, found, known } => write!(
                f,
                "{file}: expected format version {known} or older, found version {found}"
            ),
        }
    }
}

impl core::error::Error for Refused {}

/// Why the log could not be opened, read or written, on a disk that fails
/// with `E`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WalError<E> {
    /// The bytes are refused. Nothing was changed.
    Refused(Refused),
    /// The disk failed.
    Disk {
        /// The name of the file; empty for the directory.
        file: String,
        /// Where in it, in bytes, if it was at a place.
        offset: Option<u64>,
        /// What failed.
        doing: &'static str,
        /// What the disk said.
        source: E,
    },
    /// An earlier write or sync failed, so nobody knows what is on disk until
    /// it is read again.
    Poisoned,
    /// A batch that no correct machine hands out, and what is wrong with it.
    /// Nothing was written.
    Misuse(String),
}

impl<E> WalError<E> {
    /// The disk failed while doing something to a file of this name.
    pub fn disk(
        file: &str,
        offset: impl Into<Option<u64>>,
        doing: &'static str,
        source: E,
    ) -> Self {
        Self::Disk {
            file: file.to_owned(),
            offset: offset.into(),
            doing,
            source,
        }
    }
}

impl<E> From<Refused> for WalError<E> {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl<E: fmt::Display> fmt::Display for WalError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::Disk {
                file,
                doing,
                source,
                ..
            } => write!(f, "{file}: could not {doing}: {source}"),
            Self::Poisoned => f.write_str("the log takes nothing more after a failure"),
            Self::Misuse(what) => write!(f, "expected a batch that follows the log, found {what}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for WalError<E> {}
