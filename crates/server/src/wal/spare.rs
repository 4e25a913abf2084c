//! The next segment, written full of zeros before it is needed.
//!
//! A file system can give a file room without writing to it (`fallocate`),
//! but then the first write to each part of it changes what the file system
//! itself has to remember, and a sync waits for its journal: about twice the
//! work, and under several logs on one disk much more. Over zeros that were
//! really written a sync is nothing but the bytes.
//!
//! Writing them takes a while, so a thread does it in advance, a piece at a
//! time. If a segment is needed before that is done, or there is no room for
//! a spare one, it is made the other way; nothing depends on it but speed.
//!
//! A finished spare file stays when the process ends, and the next process
//! goes on with it: to remove a file of many megabytes keeps the journal of
//! the file system busy, and the syncs of the servers beside it wait.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the file is called until it is a segment. Not one of the log's own
/// names.
const NAME: &str = "spare";
/// How much is written and synced at a time: what a sync of the log may have
/// to wait for.
const PIECE: usize = 512 * 1024;
/// A server that starts has better things to do with its disk.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// A handle to the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Spare {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    /// One is to be made.
    Wanted,
    /// It is there.
    Ready(File),
    /// There is no room for one, or something else is wrong. A caller that
    /// takes one will want to know whether that is still so.
    Failed,
    Ended,
}

impl Spare {
    /// Starts the thread: it keeps a file of `bytes` zeros in `directory`.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub(super) fn start(directory: &Path, bytes: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            path: directory.join(NAME),
            bytes,
            state: Mutex::new(State::Wanted),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tenure-spare".into())
            .spawn(move || own.serve())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The file, under its new name, if there is one of this length. Another
    /// is made.
    ///
    /// # Errors
    /// If it cannot be given its name.
    pub(super) fn take(&self, bytes: u64, name: &Path) -> io::Result<Option<File>> {
        if bytes != self.shared.bytes {
            return Ok(None);
        }
        let mut state = self.shared.lock();
        let found = std::mem::replace(&mut *state, State::Wanted);
        let given = match found {
            // Under the lock, since the next one begins with the same name.
            State::Ready(file) => std::fs::rename(&self.shared.path, name).map(|()| Some(file)),
            State::Wanted | State::Failed | State::Ended => Ok(None),
        };
        drop(state);
        self.shared.changed.notify_all();
        given
    }

    /// The room that it takes.
    pub(super) fn room(&self) -> SpareRoom {
        SpareRoom(Arc::clone(&self.shared))
    }
}

/// The room on the disk that a spare file takes.
#[derive(Clone, Debug)]
pub(super) struct SpareRoom(Arc<Shared>);

impl SpareRoom {
    /// Gives it back to the disk, which has none left for what is needed now.
    /// Another file is made when one is asked for in vain.
    pub(super) fn give_up(&self) {
        let mut state = self.0.lock();
        *state = State::Failed;
        // While it is written, removing its name would free nothing.
        let file = OpenOptions::new().write(true).open(&self.0.path);
        let _ = file.and_then(|file| file.set_len(0));
        let _ = std::fs::remove_file(&self.0.path);
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        *self.shared.lock() = State::Ended;
        self.shared.changed.notify_all();
        // The directory must not change once its lock is given back.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let ended = |state: &mut State| matches!(state, State::Ended);
        let begin = self
            .changed
            .wait_timeout_while(self.lock(), WAIT_MAX, |state| !ended(state));
        drop(begin.unwrap_or_else(PoisonError::into_inner));
        loop {
            let idle = |state: &mut State| matches!(state, State::Ready(_) | State::Failed);
            let state = self.changed.wait_while(self.lock(), idle);
            if ended(&mut state.unwrap_or_else(PoisonError::into_inner)) {
                return;
            }
            let made = self.found().map_or_else(|| self.make(), Ok);
            let mut state = self.lock();
            if ended(&mut state) {
                return;
            }
            *state = made.map_or_else(
                |error| {
                    let path = self.path.display();
                    tracing::debug!("{path}: no segment is made in advance: {error}");
                    let _ = std::fs::remove_file(&self.path);
                    State::Failed
                },
                State::Ready,
            );
            self.changed.notify_all();
        }
    }

    /// What an earlier process has left, if it is whole. Only the thread
    /// reads it, so that a server does not wait for that when it starts.
    fn found(&self) -> Option<File> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path);
        let mut file = file.ok()?;
        let known = file.metadata().ok()?;
        // A second name is another directory's, after `cp -al`.
        if !known.is_file() || known.len() != self.bytes || known.nlink() != 1 {
            return None;
        }
        let mut piece = vec![0; PIECE];
        loop {
            if !matches!(*self.lock(), State::Wanted) {
                return None;
            }
            match file.read(&mut piece).ok()? {
                0 => break,
                read if piece[..read].iter().any(|byte| *byte != 0) => return None,
                _ => {}
            }
        }
        // It may have been cut off between its last write and its last sync.
        file.sync_data().ok()?;
        Some(file)
    }

    /// All of it, unless it is given up before.
    fn make(&self) -> io::Result<File> {
        if !matches!(*self.lock(), State::Wanted) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        // Never into a file that is there: it may have a second name.
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.path)?;
        let piece = vec![0; PIECE];
        let mut offset = 0;
        while offset < self.bytes {
            if !matches!(*self.lock(), State::Wanted) {
                // Of no use to the next process: it is not whole.
                let _ = std::fs::remove_file(&self.path);
                return Err(io::ErrorKind::Interrupted.into());
            }
            let length = piece
                .len()
                .min(usize::try_from(self.bytes - offset).unwrap_or(PIECE));
            file.write_all_at(&piece[..length], offset)?;
            file.sync_data()?;
            offset += length as u64;
        }
        Ok(file)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(spare: &Spare) {
        let state = spare.shared.lock();
        let wanted = |state: &mut State| matches!(state, State::Wanted);
        let waited = spare.shared.changed.wait_while(state, wanted);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    #[test]
    fn a_spare_file_is_zeros_and_another_is_made_when_it_is_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        let bytes = 3 * PIECE as u64 + 512;
        let spare = Spare::start(directory.path(), bytes).expect("a thread");
        for number in 0..2 {
            wait(&spare);
            let name = directory.path().join(number.to_string());
            let other = spare.take(bytes + 1, &name).expect("a sound disk");
            assert!(other.is_none(), "of another length");
            assert!(spare.take(bytes, &name).expect("a sound disk").is_some());
            let found = std::fs::read(&name).expect("it has its name");
            assert_eq!(found.len() as u64, bytes);
            assert!(found.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn the_spare_file_of_an_earlier_process_is_used_if_it_is_whole_and_all_zeros() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, bytes) = (directory.path().join(NAME), 2 * PIECE as u64);
        let inode = || std::fs::metadata(&path).expect("it is there").ino();
        let start = || {
            let spare = Spare::start(directory.path(), bytes).expect("a thread");
            wait(&spare);
            spare
        };
        drop(start());
        let first = inode();
        // A file that is removed may leave its number to the next one.
        let holder = File::open(&path).expect("it stays");
        drop(start());
        assert_eq!(inode(), first, "the same file");
        for spoil in [PIECE as u64, bytes - 1, bytes + 1] {
            let file = OpenOptions::new()
                .write(true)
                .open(&path)
                .expect("it stays");
            file.set_len(spoil).expect("a sound disk");
            if spoil == bytes - 1 {
                file.write_all_at(&[0, 1], bytes - 2).expect("a sound disk");
            }
            let spare = start();
            let name = directory.path().join("name");
            assert!(spare.take(bytes, &name).expect("a sound disk").is_some());
            let found = std::fs::read(&name).expect("it has its name");
            assert_eq!(found, vec![0; found.len()]);
            assert_eq!(found.len() as u64, bytes);
            wait(&spare);
        }
        drop(holder);
    }

    #[test]
    fn a_spare_file_with_a_second_name_is_left_to_the_other_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, bytes) = (directory.path().join(NAME), PIECE as u64);
        let other = directory.path().join("other");
        let spare = Spare::start(directory.path(), bytes).expect("a thread");
        wait(&spare);
        drop(spare);
        std::fs::hard_link(&path, &other).expect("a second name");
        let spare = Spare::start(directory.path(), bytes).expect("a thread");
        wait(&spare);
        let inode = |path: &Path| std::fs::metadata(path).expect("it is there").ino();
        assert_ne!(inode(&path), inode(&other));
    }

    #[test]
    fn one_that_is_given_up_takes_no_room_and_comes_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let bytes = 2 * PIECE as u64;
        let spare = Spare::start(directory.path(), bytes).expect("a thread");
        wait(&spare);
        spare.room().give_up();
        assert!(!directory.path().join(NAME).exists());
        let name = directory.path().join("name");
        assert!(spare.take(bytes, &name).expect("a sound disk").is_none());
        wait(&spare);
        assert!(spare.take(bytes, &name).expect("a sound disk").is_some());
    }

    #[test]
    fn where_none_can_be_made_nothing_is_given() {
        let directory = tempfile::tempdir().expect("a directory");
        let gone = directory.path().join("gone");
        let spare = Spare::start(&gone, 512).expect("a thread");
        wait(&spare);
        let given = spare
            .take(512, &gone.join("name"))
            .expect("nothing is done");
        assert!(given.is_none());
    }
}
