//! One directory, for as long as the path leads to it.
//!
//! **The lock is that of the directory itself** (flock(2) of an open directory). A
//! file for the lock could be removed as a leftover by a person or by a program that
//! cleans up: its holder goes on, another process makes a new one, and both write.
//! A directory cannot be removed while registers are in it. flock, and not fcntl's
//! locks of records, for two reasons. It belongs to what was opened, so two stores
//! of one process exclude each other, and closing one of them does not drop the lock
//! of the other. And it can be had of a directory.
//!
//! **Whatever the path is, the directory is one.** Files are reached by the opened
//! directory and not by the path, so two paths to it (a symbolic link, a mount) are
//! one store. That the path leads to what was opened is looked up, by device and
//! inode, before each use, again when the lock was got, and again after the use and
//! before its answer: what was written into a directory that nobody finds any more
//! is no acknowledged write.
//!
//! **A directory that was in use is never made again by those who used it.** They
//! remember terms that a new one would begin below. It is for an operator to put it
//! back or to make one that begins above.

use std::fs::{self, DirBuilder, File, Metadata, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Access, Mode, OFlags, access};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use tenure_core::time::Instant;
use tenure_runtime::filesystem::{self, SharedFilesystem};

use super::files::{self, STORE};
use super::record;
use super::settings::Settings;
use crate::clock;
use crate::error::{StoreError, about};
use crate::store::{FileMode, REPAIR, no_store, symlinks};

/// How often a directory that changes while it is opened is tried.
const TRIES: usize = 3;
/// How long to wait for the lock when a directory is made.
const MAKE_WITHIN: Duration = Duration::from_secs(5);

/// What those who use one directory in this process have in common.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) settings: Settings,
    /// The directory was in use: should it be missing, somebody took it away.
    was_used: AtomicBool,
}

impl Place {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            was_used: AtomicBool::new(false),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.settings.path
    }

    /// There is no directory, or no store in it.
    fn missing(&self, found: &str) -> StoreError {
        let path = self.path().display();
        if self.was_used.load(Ordering::Acquire) {
            return StoreError::unavailable(format!(
                "expected {path} as it was in use here, found it deleted or replaced ({found}): \
                 put it back; if it is lost, `{REPAIR}` makes another"
            ));
        }
        StoreError::unavailable(no_store(format!("{path}: {found}")))
    }

    /// The path leads to another directory than the one that was opened.
    pub(super) fn replaced(&self) -> StoreError {
        StoreError::unavailable(format!(
            "expected {} to be the directory that was opened, found it deleted or replaced",
            self.path().display()
        ))
    }

    /// Refuses a file system whose locks may not reach all who use it, unless machines
    /// share it, its locks are for all of them, and it was said that this is meant.
    fn refuse_shared(&self, found: Option<SharedFilesystem>) -> Result<(), StoreError> {
        let Some(shared) = found else {
            return Ok(());
        };
        let (path, name) = (self.path().display(), &shared.name);
        if !shared.is_between_machines() {
            return Err(StoreError::broken(format!(
                "expected {path} on a local disk, found it on {}: without them two leaders would \
                 be possible; use a disk of this machine without FUSE, or PostgreSQL between \
                 machines",
                shared.found()
            )));
        }
        if !shared.is_fenced() {
            return Err(StoreError::broken(format!(
                "expected {path} on a local disk, found it on {name}, which machines share: a \
                 machine that is slow or cut off loses its locks there and goes on writing, so two \
                 leaders would be possible; use a local disk, or PostgreSQL between machines"
            )));
        }
        if self.settings.on_cluster {
            return Ok(());
        }
        Err(StoreError::broken(format!(
            "expected {path} on a local disk, found it on {name}, which machines share; if all of \
             them mount it so that locks are the same for all, and a machine is cut off before \
             its locks are given away, say ?filesystem=cluster"
        )))
    }
}

/// Device and inode. An inode number is not given to another while somebody has the
/// first one open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl From<&Metadata> for Identity {
    fn from(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
        }
    }
}

/// A directory that follows its path.
#[derive(Debug)]
pub(super) struct Directory {
    place: Arc<Place>,
    open: Option<Opened>,
    times_opened: u64,
}

/// A directory that is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) identity: Identity,
    mode: u32,
}

impl Opened {
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        // A pipe would be waited for, and a device would do something.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let found = file.metadata()?;
        Ok(Self {
            file,
            identity: Identity::from(&found),
            mode: found.mode() & 0o7777,
        })
    }
}

/// The lock of a directory, until it is dropped.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    pub(super) opened: &'a Opened,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // What is closed is unlocked as well.
        let _ = self.opened.file.unlock();
    }
}

impl Directory {
    pub(super) fn new(place: &Arc<Place>) -> Self {
        Self {
            place: Arc::clone(place),
            open: None,
            times_opened: 0,
        }
    }

    /// Opens the directory to write, making what is missing of it: at the start of a
    /// process that was not using it.
    pub(super) fn open_or_make(place: &Arc<Place>) -> Result<Self, StoreError> {
        let mut directory = Self::new(place);
        directory.open(true)?;
        warn(place);
        Ok(directory)
    }

    /// The directory that the path leads to now.
    pub(super) fn current(&mut self) -> Result<&Opened, StoreError> {
        if !self.is_current() {
            self.open(false)?;
        }
        self.open.as_ref().ok_or_else(|| self.place.replaced())
    }

    /// The same, locked: no other process writes until the lock is dropped. It is
    /// waited for until then.
    pub(super) fn locked(&mut self, until: Instant) -> Result<Locked<'_>, StoreError> {
        for _ in 0..TRIES {
            let place = Arc::clone(&self.place);
            lock(self.current()?, &place, until)?;
            // It may have been moved away while the lock was waited for.
            if self.is_current() {
                let opened = self.open.as_ref();
                let opened = opened.ok_or_else(|| self.place.replaced())?;
                return Ok(Locked { opened });
            }
            self.close();
        }
        Err(self.place.replaced())
    }

    /// Whether the path leads to what was opened still.
    pub(super) fn is_current(&self) -> bool {
        let found = fs::metadata(self.place.path());
        let open = self.open.as_ref();
        open.is_some_and(|open| found.is_ok_and(|it| Identity::from(&it) == open.identity))
    }

    /// What was opened, if the path leads to it still. If not it is closed, and the
    /// next use opens what is there then.
    pub(super) fn still_current(&mut self) -> Option<&Opened> {
        if !self.is_current() {
            self.close();
        }
        self.open.as_ref()
    }

    /// The next use opens what is there then.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// How often it was opened.
    pub(super) fn times_opened(&self) -> u64 {
        self.times_opened
    }

    fn open(&mut self, make: bool) -> Result<(), StoreError> {
        self.open = None;
        let place = &self.place;
        place.refuse_shared(filesystem::shared_at(place.path()))?;
        symlinks::check(place.path())?;
        for _ in 0..TRIES {
            let opened = match Opened::at(place.path()) {
                Ok(opened) => opened,
                Err(error) if error.kind() == io::ErrorKind::NotFound && make => {
                    make_directory(place)?;
                    continue;
                }
                Err(error) => return Err(why_not(place, &error)),
            };
            refuse_open_to_all(place, &opened)?;
            match read_floor(place, &opened)? {
                Some(_) => {}
                None if make => make_store(place, &opened)?,
                None => return Err(place.missing("no file =store in it")),
            }
            if make {
                let writable = access(place.path(), Access::WRITE_OK | Access::EXEC_OK);
                writable.map_err(|error| files::unavailable(place.path(), &error.into()))?;
                sync_parent(place)?;
            }
            self.open = Some(opened);
            self.times_opened += 1;
            place.was_used.store(true, Ordering::Release);
            return Ok(());
        }
        Err(place.replaced())
    }
}

/// Waits for the lock of a directory. That of another process cannot be awaited, so
/// it is tried more and more rarely.
fn lock(opened: &Opened, place: &Place, until: Instant) -> Result<(), StoreError> {
    let began = clock::boot();
    for tries in 0_u32.. {
        match opened.file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if clock::boot() < until => {}
            Err(TryLockError::WouldBlock) => break,
            Err(TryLockError::Error(error)) => return Err(unlockable(place, &error)),
        }
        std::thread::sleep(Duration::from_micros(match tries {
            0..20 => 500,
            20..100 => 2_000,
            _ => 10_000,
        }));
    }
    Err(StoreError::unavailable(format!(
        "{} was locked by another process for {}; one that is stopped or hangs keeps the lock \
         (`lslocks` says which)",
        place.path().display(),
        about(clock::boot().since(began))
    )))
}

/// Why there is no lock to be had.
fn unlockable(place: &Place, error: &io::Error) -> StoreError {
    let path = place.path().display();
    match Errno::from_io_error(error) {
        Some(Errno::BADF | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            StoreError::broken(format!(
                "expected {path} on a file system with locks of directories (flock), found one \
                 that refuses them ({error}); use a local disk"
            ))
        }
        _ => StoreError::unavailable(format!("{path} cannot be locked: {error}")),
    }
}

/// Makes an empty directory, for its owner alone; the store in it comes later.
fn make_directory(place: &Place) -> Result<(), StoreError> {
    let made = DirBuilder::new().mode(0o700).create(place.path());
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoreError::broken(format!(
            "expected {} in a directory in which others can be made, found none above it, or one \
             of the system's own ({error}); make that one first",
            place.path().display()
        ))),
        Err(error) => Err(why_not(place, &error)),
        Ok(()) if place.settings.mode == FileMode::Owner => Ok(()),
        Ok(()) => {
            let mode = Permissions::from_mode(place.settings.mode.directory_bits());
            fs::set_permissions(place.path(), mode).map_err(|error| why_not(place, &error))
        }
    }
}

/// Makes a store of an empty directory. Of several who meet one does it.
fn make_store(place: &Place, opened: &Opened) -> Result<(), StoreError> {
    lock(opened, place, clock::boot().after(MAKE_WITHIN))?;
    let _locked = Locked { opened };
    if read_floor(place, opened)?.is_some() {
        return Ok(());
    }
    let names = files::names(&opened.file).map_err(StoreError::unavailable)?;
    if let Some(name) = names.iter().find(|name| *name != files::NEW) {
        return Err(StoreError::broken(format!(
            "expected {} to be an empty directory, or one that tenure made, found {name:?} and no \
             =store in it; name another directory. If =store was removed from a store, put it \
             back, or move the directory away and make another with `{REPAIR}`",
            place.path().display()
        )));
    }
    let floor = record::encode_floor(0);
    let made = files::put(&opened.file, STORE, &floor, place.settings.mode);
    let made = made.map_err(files::Failed::into_error);
    let synced = made.and_then(|()| opened.file.sync_all());
    synced.map_err(|error| files::unavailable(place.path(), &error))
}

/// A new directory is there after a crash of the machine when the one above it is
/// on disk.
fn sync_parent(place: &Place) -> Result<(), StoreError> {
    let real = fs::canonicalize(place.path()).map_err(|error| why_not(place, &error))?;
    let above = File::open(real.parent().unwrap_or(&real));
    match above.and_then(|above| above.sync_all()) {
        // One that this user may not read was there before.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(files::unavailable(place.path(), &error)),
        Ok(()) => Ok(()),
    }
}

/// The highest count of what was deleted; `None` where there is no store.
pub(super) fn read_floor(place: &Place, directory: &Opened) -> Result<Option<u64>, StoreError> {
    let broken = |found: &str| {
        let wanted = "say that this is a directory of registers (format 1)";
        let mend = format!(
            "stop all processes that use it and put a copy back, or move the directory away and \
             make another with `{REPAIR}`"
        );
        files::broken(&place.path().join(STORE), wanted, found, &mend)
    };
    match files::read(&directory.file, STORE) {
        Ok(files::Read::Absent) => Ok(None),
        Ok(files::Read::Odd(what)) => Err(broken(what)),
        Ok(files::Read::Bytes(bytes)) => match record::decode_floor(&bytes) {
            Ok(floor) => Ok(Some(floor)),
            Err(found) => Err(broken(&found)),
        },
        Err(error) => Err(why_not(place, &error)),
    }
}

/// Refuses a directory in which any account makes files.
fn refuse_open_to_all(place: &Place, opened: &Opened) -> Result<(), StoreError> {
    let mode = opened.mode;
    if mode & 0o002 == 0 {
        return Ok(());
    }
    let path = place.path().display();
    Err(StoreError::broken(format!(
        "expected {path} with mode {:04o}, found {mode:04o}: any account of this machine could \
         put registers there, and so say who leads; chmod o-w {path}, or name a directory of its \
         own below it",
        place.settings.mode.directory_bits()
    )))
}

/// Warns of others who may do there what the mode does not say.
fn warn(place: &Place) {
    let path = place.path();
    place.settings.mode.warn_if_wider(path);
    let Ok(found) = fs::metadata(path) else {
        return;
    };
    let (owner, me) = (found.uid(), geteuid().as_raw());
    let mode = found.mode() & 0o7777;
    // A group of this user's own is on many systems the user alone.
    let meant = place.settings.mode == FileMode::GroupWrites || found.gid() == getegid().as_raw();
    let who = if ![me, 0].contains(&owner) && (me == 0 || mode & 0o020 == 0) {
        format!("user {owner}")
    } else if mode & 0o020 != 0 && !meant {
        format!("group {}", found.gid())
    } else {
        return;
    };
    tracing::warn!(
        "{}: expected a directory of user {me}, found one with mode {mode:04o} of user {owner}: \
         {who} can change at any time who leads, and which terms were used; use a directory of \
         your own (mode 0700), or say that its group may write (?mode=0660)",
        path.display()
    );
}

/// What an error at opening means: mostly that a person must do something.
fn why_not(place: &Place, error: &io::Error) -> StoreError {
    let path = place.path().display();
    match error.kind() {
        io::ErrorKind::NotFound => place.missing("no such directory"),
        io::ErrorKind::NotADirectory => StoreError::broken(format!(
            "expected {path} to be a directory, or nothing yet, found a file, there or on the way \
             to it ({error}); name another path, or open a file of SQLite with sqlite://{path}"
        )),
        io::ErrorKind::PermissionDenied => StoreError::broken(format!(
            "expected {path} to be a directory that this user may use, found no permission \
             ({error}); chown it, or let the group with ?mode=0660 when it is made"
        )),
        _ => files::unavailable(place.path(), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_file_systems_that_machines_share_only_those_with_fences_can_be_allowed() {
        let place = |options| {
            let url = format!("file:///var/lib/tenure{options}");
            Place::new(Settings::parse(&url).expect("settings"))
        };
        let (local, cluster) = (place(""), place("?filesystem=cluster"));
        let judged = |place: &Place, name: &str| {
            let shared = SharedFilesystem {
                name: name.to_owned(),
                is_fuse: name.starts_with("fuse") || name == "virtiofs",
            };
            let refused = place.refuse_shared(Some(shared));
            refused.map_err(|error| error.to_string())
        };
        for name in ["NFS", "SMB", "9p", "virtiofs", "Lustre"] {
            for place in [&local, &cluster] {
                let why = judged(place, name).expect_err(name);
                assert!(
                    why.contains("loses its locks") && why.contains(name),
                    "{why}"
                );
            }
        }
        for place in [&local, &cluster] {
            let why = judged(place, "fuse.bindfs").expect_err("it is not known");
            let words = "fuse.bindfs, of which it is not known that all who use its files share";
            assert!(why.contains(words), "{why}");
        }
        for name in ["GFS2", "OCFS2", "Ceph", "GPFS"] {
            let why = judged(&local, name).expect_err(name);
            assert!(why.contains("?filesystem=cluster"), "{why}");
            assert_eq!(judged(&cluster, name), Ok(()));
        }
        assert!(local.refuse_shared(None).is_ok() && cluster.refuse_shared(None).is_ok());
    }
}
