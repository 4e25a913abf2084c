//! How the log fails, by what the caller does next.
//!
//! Five things can be done about a log that fails: end the other process,
//! point the program at the right directory, run a newer program, take the
//! server out of the cluster and let it come back empty, or mend the disk and
//! restart. Each is a variant. What is never right is to carry on, so there
//! is no variant for that.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tenure_alpo::wal::{self, DamageReport, Refused};

/// Why the log could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// Another process uses the directory. End it, or use another directory.
    #[error(
        "{}: expected a directory that no other process uses, found it locked{}; stop that \
         process or give this one a directory of its own", .dir.display(), by(*.holder)
    )]
    InUse {
        /// The data directory.
        dir: PathBuf,
        /// The process that holds the lock, where the system tells.
        holder: Option<u32>,
    },
    /// A directory of another server, or one that should be empty or should
    /// not. Check the configuration; nothing is wrong with the disk.
    #[error("{0}")]
    Misplaced(Fault),
    /// On a file system whose locks may not reach all who use it. Use another directory.
    #[error(
        "{}: expected a data directory on a local disk, found it on {found}: two servers could \
         write one log; use a directory on a disk of this machine without FUSE", .dir.display()
    )]
    Shared {
        /// The data directory.
        dir: PathBuf,
        /// The file system, and what is wrong with it.
        found: String,
    },
    /// Written by a newer version. Run that one.
    #[error(
        "{}: expected format version {known} or older, found version {found}; run the newer \
         release that wrote it", .file.display()
    )]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: u32,
        /// The newest this code reads.
        known: u32,
    },
    /// A record of a kind that only a later release knows. Run that one.
    #[error("{0}")]
    Later(Fault),
    /// What was acknowledged is damaged or gone. Nothing was changed. Restore
    /// the files, or replace this server by an empty one.
    #[error("{0}")]
    Damaged(Fault),
    /// The operating system failed. Do what it says (free space, give
    /// permission, replace the disk), then restart.
    #[error("{}: could not {doing}{}: {why}; {}", .file.display(), at(*.offset), advice(.why))]
    Disk {
        /// The file or directory.
        file: PathBuf,
        /// Where in it, in bytes, if it was at a place.
        offset: Option<u64>,
        /// What failed.
        doing: &'static str,
        /// What the system said. Not called `source`: the message says it
        /// already, and a program that prints the chain would print it twice.
        why: io::Error,
    },
    /// An earlier write or sync failed, so what is on disk is unknown until
    /// it is read again. Reopen.
    #[error(
        "the log takes nothing more after a failure; restart this server, so that it reads \
         back what is on disk (the failure was: {cause})"
    )]
    Poisoned {
        /// The failure, in words.
        cause: String,
    },
    /// A batch that no correct machine hands out. Nothing was written.
    #[error("expected a batch that follows the log, found {0}; this is a bug, please report it")]
    Misuse(String),
}

/// What is wrong with a file, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The file.
    pub file: PathBuf,
    /// Where in it, in bytes from its start.
    pub offset: u64,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// What a person can do.
    pub advice: &'static str,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.without_advice(), self.advice)
    }
}

impl Fault {
    fn without_advice(&self) -> String {
        format!(
            "{} at byte {}: expected {}, found {}",
            self.file.display(),
            self.offset,
            self.expected,
            self.found
        )
    }
}

/// What to do about damage.
const REPLACE: &str = "nothing was changed; restore the file, or remove this server \
                                  from the cluster and add it again with an empty directory";

/// What to do about a log that is ahead of its reader.
const UPGRADE: &str = "nothing was changed; a later release wrote it: start that one";

/// What to do about a wrong directory.
const CONFIGURE: &str = "check which directory this server was given";

impl WalError {
    /// What is wrong, without what to do about it.
    pub(crate) fn without_advice(&self) -> String {
        match self {
            Self::Damaged(fault) => fault.without_advice(),
            other => other.to_string(),
        }
    }

    pub(crate) fn disk(
        file: PathBuf,
        offset: impl Into<Option<u64>>,
        doing: &'static str,
        why: io::Error,
    ) -> Self {
        Self::Disk {
            file,
            offset: offset.into(),
            doing,
            why,
        }
    }

    /// A directory in which a restore has begun and not ended.
    pub(crate) fn half_restored(file: PathBuf) -> Self {
        Self::Misplaced(Fault {
            file,
            offset: 0,
            expected: "a data directory whose restore has ended".to_owned(),
            found: "one whose restore was cut short".to_owned(),
            advice: "empty the directory, and run `tenure restore` again",
        })
    }

    pub(crate) fn damaged(
        file: PathBuf,
        offset: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::Damaged(Fault {
            file,
            offset,
            expected: expected.into(),
            found: found.into(),
            advice: REPLACE,
        })
    }

    /// What the log in `dir` says of its files.
    pub(super) fn of(dir: &Path, error: wal::WalError<io::Error>) -> Self {
        match error {
            wal::WalError::Refused(refused) => Self::refused(dir, refused),
            wal::WalError::Disk {
                file,
                offset,
                doing,
                source,
            } => Self::disk(within(dir, &file), offset, doing, source),
            wal::WalError::Poisoned => Self::Poisoned {
                cause: "not known".to_owned(),
            },
            wal::WalError::Misuse(what) => Self::Misuse(what),
        }
    }

    /// Why bytes in `dir` are not taken for the log.
    pub(super) fn refused(dir: &Path, refused: Refused) -> Self {
        let fault = |flaw: DamageReport, advice| Fault {
            file: within(dir, &flaw.file),
            offset: flaw.offset,
            expected: flaw.expected,
            found: flaw.found,
            advice,
        };
        match refused {
            Refused::Misplaced(flaw) => Self::Misplaced(fault(flaw, CONFIGURE)),
            Refused::Later(flaw) => Self::Later(fault(flaw, UPGRADE)),
            Refused::Damaged(flaw) => Self::Damaged(fault(flaw, REPLACE)),
            Refused::Newer { file, found, known } => Self::Newer {
                file: within(dir, &file),
                found,
                known,
            },
        }
    }
}

/// A file, or the directory itself if it has no name.
fn within(dir: &Path, file: &str) -> PathBuf {
    if file.is_empty() {
        dir.to_owned()
    } else {
        dir.join(file)
    }
}

fn by(holder: Option<u32>) -> String {
    holder.map_or_else(String::new, |pid| format!(" by process {pid}"))
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the disk is full: free some space, then restart this server"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "let the user of this process read and write there"
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            "check that the directory is the right one and mounted"
        }
        _ => "check the disk, then restart this server",
    }
}
