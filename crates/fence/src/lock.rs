//! The lock of a mark: what holds it may act in its term.
//!
//! The lock is a `flock` on a file of its own, `FILE.lock`, which is made once
//! and stays. It is held across the last look at the mark and all that is then
//! done, so a higher term that waits for it begins when nothing of a lower one
//! goes on.
//!
//! A `flock` belongs to the open file, not to a process. Every process that
//! inherits the descriptor holds the lock, and it is free when the last of them
//! has closed it or ended. So a command that outlives the process that took the
//! lock goes on holding it, and so does what that command leaves behind.
//!
//! The holder writes its term into the file, in one write of a fixed length, so
//! that the next one knows whose lock it waits for. That line is for this
//! alone. It says nothing about what was seen.
//!
//! Linux says in `/proc` which processes hold a lock. Those of other users and
//! of other containers or machines are not seen there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::Term;
use crate::mark::{Mark, MarkError, check_owner, is_in_place, open_beside, open_plain};

/// The least number of the descriptor that commands inherit.
const INHERITED_MIN: RawFd = 100;
/// How many bytes the line of the holder has.
const LINE_BYTES: usize = 26;

/// The lock of a mark, held until this is dropped and every process that has
/// inherited it has ended.
#[derive(Debug)]
pub struct MarkLock {
    file: File,
}

/// A request for the lock, which a thread waits for.
pub struct LockRequest {
    path: PathBuf,
    taken: Receiver<io::Result<File>>,
}

/// A process that holds a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its id.
    pub pid: Pid,
    /// The id of its process group.
    pub group: Pid,
    /// Its name, as the system has it. Its user chose it, so it may hold any
    /// character.
    pub name: String,
}

/// Why holders were not killed.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// None was found, and the lock is held all the same.
    #[error(
        "expected to find the processes that hold the lock in /proc, found none; they may be of \
         another user, in another container or on another machine: end them there"
    )]
    NotFound,
    /// To kill them is to kill this process.
    #[error(
        "expected the holder to be in another process group than this process, found process {0} \
         in this one; start each in a group of its own"
    )]
    OwnGroup(Pid),
    /// The system did not let this process do it.
    #[error("expected to kill the process group {group} of process {pid}: {error}")]
    Refused {
        /// The process that holds the lock.
        pid: Pid,
        /// Its group.
        group: Pid,
        /// What the system said.
        error: io::Error,
    },
}

impl MarkLock {
    /// The path of a mark's lock.
    pub fn path(mark: &Mark) -> PathBuf {
        mark.beside(".lock")
    }

    /// Asks for the lock. The lock is taken by a thread, which goes on waiting
    /// until it has it or this process ends.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn request(mark: &Mark) -> io::Result<LockRequest> {
        let path = Self::path(mark);
        let (send, taken) = channel();
        let of = path.clone();
        let wait = move || {
            // Without a receiver there is nothing to be told.
            let _ = send.send(lock(&of, FlockOperation::LockExclusive));
        };
        let thread = thread::Builder::new().name("tenure-fence-lock".into());
        thread.spawn(wait)?;
        Ok(LockRequest { path, taken })
    }

    /// Takes the lock if it is free; `None` if it is held.
    ///
    /// # Errors
    /// [`MarkError::Io`] if the file cannot be used.
    pub fn try_take(mark: &Mark) -> Result<Option<Self>, MarkError> {
        let path = Self::path(mark);
        match lock(&path, FlockOperation::NonBlockingLockExclusive) {
            Ok(file) => Ok(Some(Self { file })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(failed(&path, error)),
        }
    }

    /// Writes down in which term the lock is held.
    ///
    /// # Errors
    /// If the file cannot be written. Nothing may be done in the term then: the
    /// next one must know whom it waits for.
    pub fn note_term(&self, term: Term) -> io::Result<()> {
        self.file.write_all_at(line(term).as_bytes(), 0)
    }
}

impl MarkLock {
    /// The lock as a descriptor that commands inherit. Its number is 100 or
    /// more where so many may be open: scripts name theirs by one digit, often
    /// 9, and one that opens its own under the same number would let the lock go.
    ///
    /// # Errors
    /// If there is no descriptor to be had.
    pub fn inherited(&self) -> io::Result<OwnedFd> {
        let high = fcntl_dupfd_cloexec(&self.file, INHERITED_MIN);
        let inherited = high.or_else(|_| fcntl_dupfd_cloexec(&self.file, 3))?;
        fcntl_setfd(&inherited, FdFlags::empty())?;
        Ok(inherited)
    }
}

impl LockRequest {
    /// The lock, or `None` if it is not free in time.
    ///
    /// # Errors
    /// [`MarkError::Io`] if the file cannot be used.
    pub fn within(&self, time: Duration) -> Result<Option<MarkLock>, MarkError> {
        match self.taken.recv_timeout(time) {
            Ok(Ok(file)) => Ok(Some(MarkLock { file })),
            Ok(Err(error)) => Err(failed(&self.path, error)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            // The thread has panicked, or was asked twice.
            Err(RecvTimeoutError::Disconnected) => Err(failed(
                &self.path,
                io::Error::other("the thread that waited for it has ended"),
            )),
        }
    }
}

/// The term in which a lock is held; `None` if no holder has written it yet.
/// One that has only just taken the lock has the line of the one before.
///
/// # Errors
/// If the file cannot be read.
pub fn held_in(mark: &Mark) -> io::Result<Option<Term>> {
    let file = open_plain(&MarkLock::path(mark), OpenOptions::new().read(true))?;
    let mut bytes = [0; LINE_BYTES];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let text = String::from_utf8_lossy(&bytes);
    let number = text.strip_prefix("term ").map(str::trim);
    Ok(number.and_then(|it| it.parse().ok()).and_then(Term::new))
}

/// The processes that hold the lock of a mark, as far as this process may see.
///
/// # Errors
/// If `/proc` or the lock cannot be read.
pub fn holders(mark: &Mark) -> io::Result<Vec<Holder>> {
    holders_of(&MarkLock::path(mark))
}

/// The processes that raise a mark, as far as this process may see.
///
/// # Errors
/// If `/proc` or the file that is to be the next mark cannot be read.
pub fn raising(mark: &Mark) -> io::Result<Vec<Holder>> {
    holders_of(&mark.beside(".new"))
}

fn holders_of(path: &Path) -> io::Result<Vec<Holder>> {
    let lock = fs::metadata(path)?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|it| it.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        // Processes end while they are looked at.
        if holds(&entry.path(), (lock.dev(), lock.ino()))
            && let Some(group) = process_group(&entry.path())
        {
            let name = fs::read_to_string(entry.path().join("comm"));
            let name = name.unwrap_or_default().trim_end().to_owned();
            found.push(Holder { pid, group, name });
        }
    }
    Ok(found)
}

/// The process group of the process of this directory in `/proc`, if it can be seen from
/// here. The group of a process whose parent is in another pid namespace may not be: the
/// system calls say 0 then, which is no number of a group.
#[must_use]
pub fn process_group(of: &Path) -> Option<Pid> {
    let stat = fs::read_to_string(of.join("stat")).ok()?;
    // Behind the name, which may have anything in it: state, parent, group.
    let (_, fields) = stat.rsplit_once(')')?;
    Pid::from_raw(fields.split_whitespace().nth(2)?.parse().ok()?)
}

/// Kills the process groups of all that hold the lock of a mark.
///
/// It kills a group only if one of its members holds the lock at this instant. So it
/// does not use the number of a group that has ended, unless the system gives that
/// number to another group between the look and the signal.
///
/// # Errors
/// If one of them was not killed.
pub fn kill(holders: &[Holder]) -> Result<(), KillError> {
    if holders.is_empty() {
        return Err(KillError::NotFound);
    }
    let own = process_group(Path::new("/proc/self"));
    if let Some(holder) = holders.iter().find(|holder| Some(holder.group) == own) {
        return Err(KillError::OwnGroup(holder.pid));
    }
    for holder in holders {
        match kill_process_group(holder.group, Signal::KILL) {
            // It has ended meanwhile.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                return Err(KillError::Refused {
                    pid: holder.pid,
                    group: holder.group,
                    error: error.into(),
                });
            }
        }
    }
    Ok(())
}

fn line(term: Term) -> String {
    format!("term {:>20}\n", term.get())
}

fn lock(path: &Path, operation: FlockOperation) -> io::Result<File> {
    loop {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = open_beside(path, options.mode(0o600))?;
        check_owner(&file.metadata()?)?;
        flock(&file, operation)?;
        // A process that comes later does not see the lock of a file that was removed.
        if is_in_place(path, &file)? {
            return Ok(file);
        }
    }
}

fn failed(path: &Path, error: io::Error) -> MarkError {
    MarkError::Io {
        path: path.to_owned(),
        what: "lock",
        error,
    }
}

/// Whether a process has this file open and locked. Its descriptors are looked
/// at through what `/proc` says of each: other files of it may be on a file
/// system that hangs.
fn holds(process: &Path, (dev, ino): (u64, u64)) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fdinfo")) else {
        return false;
    };
    let names = descriptors.flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| {
        let told = fs::read_to_string(process.join("fdinfo").join(&name));
        told.is_ok_and(|told| told.lines().any(|line| is_lock_of(line, ino)))
            && fs::metadata(process.join("fd").join(&name))
                .is_ok_and(|found| (found.dev(), found.ino()) == (dev, ino))
    })
}

/// `lock: 1: FLOCK  ADVISORY  WRITE 4711 00:2f:1234 0 EOF` of the file 1234.
fn is_lock_of(line: &str, ino: u64) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(words[..], ["lock:", _, "FLOCK", _, "WRITE", _, file, ..]
        if file.rsplit(':').next().and_then(|it| it.parse().ok()) == Some(ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Duration = Duration::ZERO;
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn the_next_one_waits_for_the_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = Mark::at(directory.path().join("mark"));
        let held = MarkLock::try_take(&mark).expect("a lock").expect("free");
        assert_eq!(held_in(&mark).expect("read"), None);
        held.note_term(Term::new(7).expect("a term"))
            .expect("written");
        assert_eq!(held_in(&mark).expect("read"), Term::new(7));
        let next = MarkLock::request(&mark).expect("a thread");
        assert!(next.within(NONE).expect("it waits").is_none());
        assert!(MarkLock::try_take(&mark).expect("a look").is_none());
        let holders = holders(&mark).expect("/proc");
        let own = rustix::process::getpid();
        assert!(holders.iter().all(|it| it.pid == own), "{holders:?}");
        assert_eq!(holders.len(), 1);
        let refused = kill(&holders).expect_err("this process");
        assert!(matches!(refused, KillError::OwnGroup(pid) if pid == own));
        drop(held);
        assert!(next.within(SOON).expect("it comes").is_some());
    }

    #[test]
    fn a_lock_that_was_removed_is_taken_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = Mark::at(directory.path().join("mark"));
        let held = MarkLock::try_take(&mark).expect("a lock").expect("free");
        let next = MarkLock::request(&mark).expect("a thread");
        assert!(next.within(NONE).expect("it waits").is_none());
        fs::remove_file(MarkLock::path(&mark)).expect("removed");
        drop(held);
        let taken = next.within(SOON).expect("it comes").expect("free");
        // It is the one that the next one waits for.
        assert!(MarkLock::try_take(&mark).expect("a look").is_none());
        drop(taken);
        assert!(MarkLock::try_take(&mark).expect("a look").is_some());
    }

    #[test]
    fn locks_are_read_as_the_kernel_writes_them() {
        let line = "lock:\t1: FLOCK  ADVISORY  WRITE 4711 00:2f:1234 0 EOF";
        assert!(is_lock_of(line, 1234));
        assert!(!is_lock_of(line, 234));
        assert!(!is_lock_of(&line.replace("FLOCK", "POSIX"), 1234));
        assert!(!is_lock_of(&line.replace("WRITE", "READ"), 1234));
        assert!(!is_lock_of("pos:\t0", 0));
    }
}
