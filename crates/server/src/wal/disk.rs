//! The few things the log asks of a file system.
//!
//! All of them go through [`Disk`], so that tests can put a disk in its place
//! that fills, fails or loses power at the n-th step: those paths are the
//! reason for a log, and no real disk walks them when asked. [`Directory`] is
//! the real one.
//!
//! A sync is `fsync` or `fdatasync`. What is asked for is little: a new file reads as zeros; a name that was
//! synced stays; a write that was synced stays; a sector of 512 bytes is
//! written whole or not at all.

use std::fmt::Arguments;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;
use tenure_alpo::Snapshot;
use tenure_runtime::{filesystem, small};

use super::claim::{Claim, Place};
use super::error::WalError;
use super::snapshot_files::SnapshotFiles;
use super::spare::{Spare, SpareRoom};

/// The file whose lock says that the directory is in use.
pub(crate) const LOCK: &str = "lock";

/// A directory with files.
pub trait Disk: Send + Sync {
    /// Where a file is, for messages; of the directory itself for `""`.
    fn path(&self, name: &str) -> PathBuf;

    /// The names in the directory, in no particular order.
    ///
    /// # Errors
    /// What the system says.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Reads a whole file into `into`, replacing what was in it.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, name: &str, into: &mut Vec<u8>) -> io::Result<()>;

    /// A new file of `bytes` zeros, with room on the disk for them; one of
    /// the same name is replaced.
    ///
    /// # Errors
    /// What the system says: above all that there is no room.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn DiskFile>>;

    /// A file that is there, for writing.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Gives a file another name, replacing one that has it.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names durable as they are now.
    ///
    /// # Errors
    /// What the system says.
    fn sync_names(&self) -> io::Result<()>;

    /// Files of snapshots that are written elsewhere, if it has them.
    fn snapshot_files(&self) -> Option<&Arc<SnapshotFiles>> {
        None
    }
}

/// A file that is written.
pub trait DiskFile: Send {
    /// Writes all of `bytes` at a place.
    ///
    /// # Errors
    /// What the system says; any part of it may have been written.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// What the system says; after that, what is durable is unknown.
    fn sync(&mut self) -> io::Result<()>;
}

/// The log itself knows neither paths nor what an error of the system is.
impl tenure_alpo::wal::Disk for dyn Disk + '_ {
    type Error = io::Error;
    type File = Box<dyn DiskFile>;

    fn names(&self) -> io::Result<Vec<String>> {
        Disk::names(self)
    }

    fn read(&self, name: &str, into: &mut Vec<u8>) -> io::Result<()> {
        Disk::read(self, name, into)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        Disk::create(self, name, bytes)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Disk::open(self, name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Disk::rename(self, from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Disk::remove(self, name)
    }

    fn sync_names(&self) -> io::Result<()> {
        Disk::sync_names(self)
    }

    fn prepared(&self, snapshot: &Snapshot) -> Option<String> {
        Disk::snapshot_files(self)?.take(snapshot)
    }

    fn warn(&self, what: Arguments<'_>) {
        tracing::warn!("{}: {what}", self.path("").display());
    }
}

impl tenure_alpo::wal::DiskFile for Box<dyn DiskFile> {
    type Error = io::Error;

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        DiskFile::write_at(&mut **self, offset, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        DiskFile::sync(&mut **self)
    }
}

/// A directory of the operating system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: File,
    /// Locked for as long as this lives; none for those who only look.
    lock: Option<File>,
    /// The lock file's place and identity, for those who hold it.
    claim: Option<Arc<Claim>>,
    /// None for those who only look.
    snapshot_files: Option<Arc<SnapshotFiles>>,
    spare: Option<Spare>,
}

/// A file in a directory that belongs to this process.
struct Owned {
    file: File,
    place: Place,
    claim: Option<Arc<Claim>>,
    spare: Option<SpareRoom>,
}

impl Owned {
    /// Fails if the file was removed, moved, replaced, mounted over or cut off: the next start
    /// would not find what is written to it.
    fn check_name(&self) -> io::Result<()> {
        self.place.check().map_err(|found| {
            io::Error::other(format!(
                "expected the file to be in the data directory, found {found}: it was removed or \
                 replaced, or cut off, while this server ran, so acknowledged entries may be \
                 lost from the disk; stop the program that changes the directory, and if the \
                 cluster has other servers, start this one with an empty data directory"
            ))
        })
    }
}

impl DiskFile for Owned {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match DiskFile::write_at(&mut self.file, offset, bytes) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                let Some(spare) = &self.spare else {
                    return Err(error);
                };
                // What was made in advance must not be in the way.
                spare.give_up();
                DiskFile::write_at(&mut self.file, offset, bytes)
            }
            written => written,
        }
    }

    /// What was synced counts only if the directory is still the same: looked
    /// at afterwards, so that nothing that is acknowledged is lost with it.
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()?;
        self.claim.as_ref().map_or(Ok(()), |claim| claim.check())?;
        self.check_name()
    }
}

/// Makes the directory, for its owner alone, and those above it as any other
/// program would.
fn make_private(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
        std::fs::create_dir_all(above)?;
    }
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

/// Refuses a directory of FUSE whose locks may not keep a second server out. On a file
/// system that machines share, as NFS, one server has a directory to itself.
///
/// # Errors
/// [`WalError::Shared`].
pub fn refuse_fuse(path: &Path) -> Result<(), WalError> {
    match filesystem::shared_at(path) {
        Some(shared) if shared.is_fuse => Err(WalError::Shared {
            dir: path.into(),
            found: shared.found(),
        }),
        _ => Ok(()),
    }
}

/// Opens or makes the lock file. One that another user has put there may be a pipe,
/// and opening it would wait for its reader.
fn open_lock_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other(
        "expected a plain file, found another kind",
    ))
}

impl Directory {
    /// For reading only; takes no lock.
    ///
    /// # Errors
    /// [`WalError::Disk`] if it cannot be opened.
    pub fn look(path: &Path) -> Result<Self, WalError> {
        Self::at(path, None)
    }

    /// For use: makes the directory if there is none, and locks it against
    /// every other process until this is dropped.
    ///
    /// # Errors
    /// [`WalError::InUse`] if another process has it, [`WalError::Shared`] if
    /// its locks may not keep others out, [`WalError::Disk`] if it cannot be
    /// made or opened.
    pub fn lock(path: &Path) -> Result<Self, WalError> {
        refuse_fuse(path)?;
        let not_made = |error| WalError::disk(path.into(), None, "make the directory", error);
        if !path.try_exists().map_err(not_made)? {
            make_private(path).map_err(not_made)?;
            // Its own name must be durable too.
            if let Some(parent) = path.canonicalize().map_err(not_made)?.parent() {
                File::open(parent)
                    .and_then(|dir| dir.sync_all())
                    .map_err(not_made)?;
            }
        }
        let file = path.join(LOCK);
        let lock = open_lock_file(&file)
            .map_err(|error| WalError::disk(file.clone(), None, "open the lock file", error))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Self::at(path, Some(lock))?.claimed(),
            Err(Errno::WOULDBLOCK) => Err(WalError::InUse {
                dir: path.into(),
                holder: holder(path),
            }),
            Err(error) => Err(WalError::disk(file, None, "lock", error.into())),
        }
    }

    fn at(path: &Path, lock: Option<File>) -> Result<Self, WalError> {
        let not_opened =
            |error| WalError::disk(path.to_owned(), None, "open the data directory", error);
        // Without `NONBLOCK` the opening of a pipe waits for a writer.
        let handle = File::options()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .map_err(not_opened)?;
        if !handle.metadata().map_err(not_opened)?.is_dir() {
            return Err(not_opened(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self {
            path: path.to_owned(),
            handle,
            lock,
            claim: None,
            snapshot_files: None,
            spare: None,
        })
    }

    /// The same, with the directory itself locked too: the lock file may have
    /// been removed under a process that still runs.
    fn claimed(mut self) -> Result<Self, WalError> {
        let locked = rustix::fs::flock(&self.handle, FlockOperation::NonBlockingLockExclusive);
        // Some file systems lock no directories; the lock file remains.
        if locked == Err(Errno::WOULDBLOCK) {
            return Err(WalError::InUse {
                dir: self.path.clone(),
                holder: None,
            });
        }
        let file = self.path.join(LOCK);
        let claim = self.lock.as_ref().map(|lock| Claim::of(file.clone(), lock));
        let claim = claim.transpose();
        let claim = claim.map_err(|error| WalError::disk(file, None, "look at", error))?;
        self.claim = claim.map(Arc::new);
        let files = SnapshotFiles::new(&self.path, self.claim.clone());
        self.snapshot_files = Some(Arc::new(files));
        Ok(self)
    }

    fn owned(&self, file: File, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(Owned {
            place: Place::of(self.path(name), &file)?,
            file,
            claim: self.claim.clone(),
            spare: self.spare.as_ref().map(Spare::room),
        }))
    }

    /// The same, with files of so many zeros made in advance.
    #[must_use]
    pub fn with_spares_of(mut self, bytes: u64) -> Self {
        // Without a thread for it all goes on as without spares.
        self.spare = Spare::start(&self.path, bytes).ok();
        self
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(self.spare.take());
        if let Some(files) = &self.snapshot_files {
            files.end();
        }
        // Closing the file is not enough if another thread is just starting
        // a process, which holds everything open until it is another program.
        if let Some(lock) = &self.lock {
            let _ = rustix::fs::flock(&self.handle, FlockOperation::Unlock);
            let _ = rustix::fs::flock(lock, FlockOperation::Unlock);
        }
    }
}

/// Which process has the directory locked, as far as the system tells. Asking
/// takes no lock, so it never gets in the way of a server that starts.
pub fn holder(dir: &Path) -> Option<u32> {
    let inode = std::fs::metadata(dir.join(LOCK)).ok()?.ino();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        // "1: FLOCK  ADVISORY  WRITE 4321 fe:00:1234 0 EOF"
        let mut fields = line.split_whitespace().skip(1);
        let kind = fields.next()?;
        let pid = fields.nth(2)?.parse().ok()?;
        let found = fields.next()?.rsplit(':').next()?.parse::<u64>().ok()?;
        (kind == "FLOCK" && found == inode).then_some(pid)
    })
}

impl Disk for Directory {
    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() {
            self.path.clone()
        } else {
            self.path.join(name)
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        // A name that is not text is none of the log's.
        std::fs::read_dir(&self.path)?
            .filter_map(|entry| entry.map(|e| e.file_name().into_string().ok()).transpose())
            .collect()
    }

    fn read(&self, name: &str, into: &mut Vec<u8>) -> io::Result<()> {
        let file = small::open(&self.path(name))?;
        let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        into.resize(length, 0);
        file.read_exact_at(into, 0)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        if let Some(spare) = &self.spare
            && let Some(file) = spare.take(bytes, &self.path(name))?
        {
            return self.owned(file, name);
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.path(name))?;
        if bytes > 0 {
            let reserve = || rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes);
            let mut reserved = reserve();
            if let (Err(Errno::NOSPC), Some(spare)) = (reserved, &self.spare) {
                // What was made in advance must not be in the way.
                spare.room().give_up();
                reserved = reserve();
            }
            match reserved {
                Ok(()) => {}
                // A file system that cannot reserve room finds out later
                // that there is none; that is an error like any other.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(bytes)?,
                Err(error) => return Err(error.into()),
            }
        }
        self.owned(file, name)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).open(self.path(name))?;
        self.owned(file, name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn snapshot_files(&self) -> Option<&Arc<SnapshotFiles>> {
        self.snapshot_files.as_ref()
    }
}

impl DiskFile for File {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) {
        let second = Directory::lock(path).map(drop);
        assert!(matches!(second, Err(WalError::InUse { .. })), "{second:?}");
    }

    #[test]
    fn nothing_is_synced_to_a_file_that_is_no_longer_there() {
        let place = tempfile::tempdir().expect("a directory");
        let held = Directory::lock(place.path()).expect("locked");
        let path = |name: &str| place.path().join(name);
        // The last but one has another name left, as in a backup by hard links.
        for how in ["replaced", "removed", "replaced, linked", "moved"] {
            let mut file = held.create("x.wal", 0).expect("made");
            file.write_at(0, b"here").expect("written");
            file.sync().expect("it is there");
            if how.contains("linked") {
                std::fs::hard_link(path("x.wal"), path("backup")).expect("linked");
                file.sync().expect("it is there");
            }
            if how.contains("replaced") {
                std::fs::write(path("copy"), b"old").expect("written");
                std::fs::rename(path("copy"), path("x.wal")).expect("put in its place");
            } else if how == "moved" {
                std::fs::rename(path("x.wal"), path("away")).expect("moved");
            } else {
                std::fs::remove_file(path("x.wal")).expect("removed");
            }
            file.write_at(4, b"gone").expect("written");
            let why = file.sync().expect_err("nobody finds it").to_string();
            assert!(why.contains("removed or replaced"), "{why}");
            let _ = std::fs::remove_file(path("x.wal"));
        }
    }

    #[test]
    fn a_directory_in_use_stays_so_when_its_lock_file_is_removed() {
        let place = tempfile::tempdir().expect("a directory");
        let first = Directory::lock(place.path()).expect("locked");
        refused(place.path());
        std::fs::remove_file(place.path().join(LOCK)).expect("removed");
        refused(place.path());
        drop(first);
        Directory::lock(place.path()).expect("locked by the next one");
    }

    /// Another user who may write there has put it.
    #[test]
    fn a_pipe_in_place_of_a_file_is_refused_at_once() {
        use rustix::fs::{CWD, Mode, mkfifoat};
        let place = tempfile::tempdir().expect("a directory");
        let lock = place.path().join(LOCK);
        mkfifoat(CWD, &lock, Mode::RWXU).expect("a pipe");
        let locked = Directory::lock(place.path()).map(drop);
        assert!(matches!(locked, Err(WalError::Disk { .. })), "{locked:?}");
        // One that is read opens.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&lock);
        let _reader = reader.expect("a reader");
        let locked = Directory::lock(place.path()).map(drop);
        assert!(matches!(locked, Err(WalError::Disk { .. })), "{locked:?}");
        std::fs::remove_file(&lock).expect("removed");
        let held = Directory::lock(place.path()).expect("locked");
        mkfifoat(CWD, place.path().join("group"), Mode::RWXU).expect("a pipe");
        assert!(held.read("group", &mut Vec::new()).is_err());
    }

    #[test]
    fn nothing_is_durable_in_a_directory_that_was_replaced_or_lost_its_lock() {
        for replaced in [true, false] {
            let place = tempfile::tempdir().expect("a directory");
            let path = place.path().join("data");
            let held = Directory::lock(&path).expect("locked");
            let mut file = held.create("group", 0).expect("a file");
            file.write_at(0, b"one").expect("written");
            file.sync().expect("it is this process's directory");
            if replaced {
                std::fs::rename(&path, place.path().join("away")).expect("moved");
                std::fs::create_dir(&path).expect("another one");
                std::fs::write(path.join(LOCK), "").expect("a copy of the lock file");
            } else {
                std::fs::remove_file(path.join(LOCK)).expect("removed");
            }
            file.write_at(3, b"two").expect("written");
            let error = file.sync().expect_err("nothing counts there");
            assert!(
                error.to_string().contains("put the directory back"),
                "{error}"
            );
        }
    }
}
