//! The log in a directory: opening it, and making batches durable.
//!
//! Everything that is decided is decided in `tenure_alpo::wal`, the same for
//! every disk. What is added here is the directory, its lock, and what a
//! person is told.
//!
//! The first failure closes the log for good, and every later call says what
//! it was: who restarts a server should not have to search for the cause.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_alpo::wal::{self, Format, Opened};
use tenure_alpo::{Batch, Identity, Recovered};

use super::disk::{Directory, Disk};
use super::error::WalError;
use super::read;
use super::snapshot_files::SnapshotWriter;

/// How a log is kept.
pub use tenure_alpo::wal::Options;

/// A log on disk that this process writes.
pub struct Wal {
    log: wal::Wal<dyn Disk>,
    /// The first failure, in words.
    poisoned: Option<String>,
}

impl std::fmt::Debug for Wal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wal")
            .field("directory", &self.directory())
            .field("log", &self.log)
            .field("poisoned", &self.poisoned)
            .finish()
    }
}

/// How a log of `identity` is written here: with the processor's instruction
/// for the checksum, where it has one.
pub(super) fn format(identity: &Identity) -> Format {
    Format::new(*identity, crc32c::crc32c_append)
}

/// Whose log is in a directory; `None` if there is none, or no directory.
///
/// # Errors
/// [`WalError::Damaged`] or [`WalError::Newer`] if that cannot be said,
/// [`WalError::Disk`] if the directory cannot be read.
pub fn identity(dir: &Path) -> Result<Option<Identity>, WalError> {
    match dir.try_exists() {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) => {
            let doing = "look for the data directory";
            return Err(WalError::disk(dir.to_owned(), None, doing, error));
        }
    }
    let disk: &dyn Disk = &Directory::look(dir)?;
    let said = wal::list(disk).and_then(|listing| {
        let identity = || wal::identity(disk, crc32c::crc32c_append);
        listing.has_identity().then(identity).transpose()
    });
    said.map_err(|error| WalError::of(dir, error))
}

impl Wal {
    /// Makes a log in `dir`, which is made too if need be, and locks it.
    ///
    /// # Errors
    /// [`WalError::Misplaced`] if there is one already, [`WalError::InUse`]
    /// if another process uses the directory, [`WalError::Disk`].
    pub fn create(dir: &Path, identity: &Identity, options: Options) -> Result<Self, WalError> {
        let disk = Directory::lock(dir)?.with_spares_of(options.segment_bytes);
        Self::create_on(Box::new(disk), identity, options)
    }

    /// Opens the log in `dir`, locks it, and reads everything back. What is
    /// given back is durable.
    ///
    /// # Errors
    /// Every [`WalError`] but the last two.
    pub fn open(
        dir: &Path,
        identity: &Identity,
        options: Options,
    ) -> Result<(Self, Recovered), WalError> {
        let disk = Directory::lock(dir)?.with_spares_of(options.segment_bytes);
        Self::open_on(Box::new(disk), identity, options)
    }

    /// [`create`](Self::create) on any disk.
    ///
    /// # Errors
    /// As there.
    pub fn create_on(
        disk: Box<dyn Disk>,
        identity: &Identity,
        options: Options,
    ) -> Result<Self, WalError> {
        let dir = disk.path("");
        let log = wal::Wal::create(disk, format(identity), options);
        let log = log.map_err(|error| WalError::of(&dir, error))?;
        Ok(Self {
            log,
            poisoned: None,
        })
    }

    /// [`open`](Self::open) on any disk.
    ///
    /// # Errors
    /// As there.
    pub fn open_on(
        disk: Box<dyn Disk>,
        identity: &Identity,
        options: Options,
    ) -> Result<(Self, Recovered), WalError> {
        let dir = disk.path("");
        let failed = |error| WalError::of(&dir, error);
        let format = format(identity);
        let listing = wal::list(&*disk).map_err(failed)?;
        wal::check_identity(&*disk, crc32c::crc32c_append, &listing, Some(identity))
            .map_err(failed)?;
        let log = read::read(&*disk, &format, &listing, &mut |_| {})?;
        let opened = wal::Wal::resume(disk, format, options, &listing, log).map_err(failed)?;
        let Opened {
            wal: log,
            recovered,
            torn,
            spare_used,
        } = opened;
        if let Some(problem) = spare_used.map(failed) {
            tracing::warn!(
                "the newest snapshot cannot be read, so the one before it is used, with the log \
                 after it; nothing is lost, but the disk may fail ({})",
                problem.without_advice()
            );
        }
        if let Some(torn) = torn {
            tracing::info!("a write that never finished is cut: {torn}");
        }
        let poisoned = None;
        Ok((Self { log, poisoned }, recovered))
    }

    /// Where the log is.
    pub fn directory(&self) -> PathBuf {
        self.log.disk().path("")
    }

    /// Writes files of snapshots for this log, on other threads.
    pub(super) fn snapshot_writer(&self) -> Option<SnapshotWriter> {
        let files = Arc::clone(self.log.disk().snapshot_files()?);
        let format = *self.log.format();
        Some(SnapshotWriter { files, format })
    }

    /// Whose log this is.
    pub const fn identity(&self) -> &Identity {
        self.log.format().identity()
    }

    /// Makes batches durable, in this order, with one write and one sync for
    /// all of them (and more for snapshots, which get files of their own, and
    /// for a new segment now and then). When it returns they are durable.
    ///
    /// # Errors
    /// [`WalError::Misuse`] if a batch does not follow the log; then nothing
    /// was written and the log goes on. [`WalError::Disk`] if the disk
    /// failed; what was given may be durable or not, and every later call
    /// fails with [`WalError::Poisoned`].
    pub fn append(&mut self, batches: &[Batch]) -> Result<(), WalError> {
        if let Some(cause) = &self.poisoned {
            let cause = cause.clone();
            return Err(WalError::Poisoned { cause });
        }
        let written = self.log.append(batches);
        written.map_err(|error| {
            let error = WalError::of(&self.directory(), error);
            if !matches!(error, WalError::Misuse(_)) {
                self.poisoned = Some(error.to_string());
            }
            error
        })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_the_cores() {
        use tenure_alpo::codec::crc32c_append;

        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for end in 0..bytes.len() {
            let (one, other) = bytes[..end].split_at(end / 3);
            let ours = crc32c::crc32c_append(crc32c::crc32c(one), other);
            assert_eq!(crc32c_append(crc32c_append(0, one), other), ours);
        }
    }
}
