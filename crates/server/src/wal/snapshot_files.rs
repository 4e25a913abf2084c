//! Files of snapshots, written before the log is asked for them.
//!
//! A snapshot may have hundreds of megabytes, and the log's thread writes what
//! it is given in order: a small entry behind a large snapshot would wait for
//! seconds, and with it all clients, if two of three servers write theirs at
//! the same time. So the thread that has encoded or decoded a snapshot writes
//! and syncs its file too, under a name that recovery ignores. The log renames
//! the file before it writes the record that refers to it.
//!
//! A file that cannot be written here is left to the log, which says why it
//! fails. So is one whose disk does not go on for ten seconds: until a snapshot
//! is on the disk the log keeps all entries, and what the log's thread waits for
//! is bounded, by a change of leader too. What a process leaves behind the next
//! one removes.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tenure_alpo::wal::{Format, snapshot_header};
use tenure_alpo::{Position, Snapshot};

use super::claim::{Claim, Place};

/// How a file is called until it is a snapshot; a number follows. Not one of
/// the log's own names.
const NAME: &str = "prepared-";
/// How much is written and synced at a time: what a sync of the log may have
/// to wait for.
const PIECE: usize = 1024 * 1024;

/// If the disk takes no piece of a file for this long, the log writes the snapshot.
const STALLED_AFTER: Duration = Duration::from_secs(10);

/// If this many such files hang at a time, no other file is begun.
const GIVEN_UP_MAX: usize = 2;

/// The files of one directory.
#[derive(Debug)]
pub struct SnapshotFiles {
    path: PathBuf,
    claim: Option<Arc<Claim>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The files that are being written.
    names: Vec<String>,
    ended: bool,
    /// How many files were begun.
    begun: u64,
    /// How many pieces were written, of all files.
    pieces: u64,
    /// The files that are left to the log.
    given_up: Vec<String>,
    ready: Vec<(Prepared, Place)>,
}

/// A file that has all of a snapshot, and is synced.
#[derive(Debug)]
struct Prepared {
    last: Position,
    /// Tells whether the snapshot is needed still, without keeping it.
    bytes: Weak<Vec<u8>>,
    name: String,
}

impl Prepared {
    fn of(name: String, snapshot: &Snapshot) -> Self {
        Self {
            last: snapshot.last,
            bytes: Arc::downgrade(&snapshot.bytes),
            name,
        }
    }

    fn is_of(&self, snapshot: &Snapshot) -> bool {
        let bytes = Arc::downgrade(&snapshot.bytes);
        self.last == snapshot.last && self.bytes.ptr_eq(&bytes)
    }
}

/// Writes snapshots' files for one log.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotWriter {
    pub(super) files: Arc<SnapshotFiles>,
    pub(super) format: Format,
}

impl SnapshotWriter {
    /// Writes the file of a snapshot, which the log is going to be given, and
    /// syncs it. Takes as long as the disk does, if it goes on.
    pub(crate) fn prepare(&self, snapshot: &Snapshot) {
        let Some(name) = self.files.begin() else {
            return;
        };
        let (files, format) = (Arc::clone(&self.files), self.format);
        let (own, of) = (name.clone(), snapshot.clone());
        let thread = thread::Builder::new().name("tenure-snapshot-f".into());
        match thread.spawn(move || files.prepare(own, &format, of)) {
            Ok(_) => self.files.wait(&name, STALLED_AFTER),
            Err(error) => self.files.done(Prepared::of(name, snapshot), Err(error)),
        }
    }
}

impl SnapshotFiles {
    /// Those of a directory that this process has locked. What an earlier
    /// process has left is removed.
    pub(super) fn new(path: &Path, claim: Option<Arc<Claim>>) -> Self {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(NAME.as_bytes())
            {
                remove(&entry.path());
            }
        }
        Self {
            path: path.to_owned(),
            claim,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The name of the file that has this snapshot. It is the caller's now. `None` also if
    /// the file was removed or replaced since: the log forgets what the snapshot covers, so
    /// it has to be that file.
    pub(super) fn take(&self, snapshot: &Snapshot) -> Option<String> {
        let mut state = self.lock();
        let is_it = |(it, _): &(Prepared, Place)| it.is_of(snapshot);
        let at = state.ready.iter().position(is_it)?;
        let (file, place) = state.ready.swap_remove(at);
        match place.check() {
            Ok(()) => Some(file.name),
            Err(found) => {
                let path = self.path.join(&file.name);
                tracing::warn!(
                    "{}: expected the snapshot that this server has prepared, found {found}; the \
                     log writes another; end what changes the data directory",
                    path.display()
                );
                None
            }
        }
    }

    fn prepare(&self, name: String, format: &Format, snapshot: Snapshot) {
        let path = self.path.join(&name);
        let written = self.write(&path, &snapshot_header(format, &snapshot), &snapshot.bytes);
        let file = Prepared::of(name, &snapshot);
        // Once the file is done, only others tell whether its snapshot is needed.
        drop(snapshot);
        self.done(file, written);
    }

    /// Waits until a file is written, or the disk takes nothing more of any for
    /// this long. Then it is the log's to write it.
    fn wait(&self, name: &str, stalled_after: Duration) {
        let mut state = self.lock();
        loop {
            let pieces = state.pieces;
            let goes_on = |state: &mut State| {
                state.names.iter().any(|it| it == name) && state.pieces == pieces
            };
            let waited = self
                .changed
                .wait_timeout_while(state, stalled_after, goes_on);
            let (found, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = found;
            if !state.names.iter().any(|it| it == name) {
                return;
            }
            if timeout.timed_out() {
                state.given_up.push(name.to_owned());
                let path = self.path.join(name);
                tracing::warn!(
                    "{}: the disk has taken nothing of this snapshot for {} s; the log writes it",
                    path.display(),
                    stalled_after.as_secs()
                );
                return;
            }
        }
    }

    /// A file was written, or not.
    fn done(&self, file: Prepared, written: io::Result<Place>) {
        let path = self.path.join(&file.name);
        let mut state = self.lock();
        state.names.retain(|it| *it != file.name);
        let given_up = state.given_up.len();
        state.given_up.retain(|it| *it != file.name);
        match written {
            // Its asker has gone.
            Ok(_) if state.given_up.len() < given_up => remove(&path),
            Ok(place) => state.ready.push((file, place)),
            Err(error) => {
                tracing::debug!("{}: the log writes it: {error}", path.display());
                remove(&path);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The name of a new file; `None` if the directory is given back, or the
    /// disk has taken others that it does not give back. Files
    /// whose snapshots are not needed any more are removed.
    fn begin(&self) -> Option<String> {
        let mut state = self.lock();
        if state.ended || state.given_up.len() >= GIVEN_UP_MAX {
            return None;
        }
        state.begun += 1;
        let name = format!("{NAME}{}", state.begun);
        state.names.push(name.clone());
        let unneeded = |(it, _): &mut (Prepared, Place)| it.bytes.strong_count() == 0;
        let unneeded: Vec<_> = state.ready.extract_if(.., unneeded).collect();
        drop(state);
        for (it, _) in unneeded {
            remove(&self.path.join(it.name));
        }
        Some(name)
    }

    fn write(&self, path: &Path, header: &[u8], bytes: &[u8]) -> io::Result<Place> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all_at(header, 0)?;
        let mut offset = header.len() as u64;
        for piece in bytes.chunks(PIECE) {
            if self.lock().ended {
                return Err(io::ErrorKind::Interrupted.into());
            }
            file.write_all_at(piece, offset)?;
            file.sync_data()?;
            offset += piece.len() as u64;
            self.lock().pieces += 1;
            self.changed.notify_all();
        }
        file.sync_data()?;
        self.claim.as_ref().map_or(Ok(()), |claim| claim.check())?;
        Place::of(path.to_owned(), &file)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory is given back, and must not change after that. Waits for
    /// those who write, at most as long as the disk takes for a piece.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let writes = |state: &mut State| !state.names.is_empty();
        let ended = self.changed.wait_while(state, writes);
        let mut state = ended.unwrap_or_else(PoisonError::into_inner);
        for (it, _) in state.ready.drain(..) {
            remove(&self.path.join(it.name));
        }
    }
}

/// Costs only room if it fails, until the next start.
fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        let path = path.display();
        tracing::warn!("{path} is not needed, but could not be removed: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use tenure_alpo::{Batch, ClusterId, Identity, ServerId, StorageId};
    use tenure_core::ids::Term;

    use super::super::log::{Options, Wal};
    use super::*;

    fn identity() -> Identity {
        Identity {
            cluster: ClusterId::from_u128(7),
            server: ServerId::new(1).expect("a number"),
            storage: StorageId::from_u128(3),
        }
    }

    fn writer(path: &Path) -> SnapshotWriter {
        let files = Arc::new(SnapshotFiles::new(path, None));
        let format = Format::new(identity(), crc32c::crc32c_append);
        SnapshotWriter { files, format }
    }

    fn snapshot(id: u64, bytes: usize) -> Snapshot {
        Snapshot {
            last: Position::new(Term::new(1).expect("a term"), id),
            bytes: Arc::new(vec![5; bytes]),
        }
    }

    /// A batch that puts a snapshot in the place of everything.
    fn batch(number: u64, snapshot: &Snapshot) -> Batch {
        Batch {
            number,
            snapshot: Some(snapshot.clone()),
            reset: true,
            ..Batch::default()
        }
    }

    fn prepared(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).expect("a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let is_prepared = |path: &PathBuf| path.to_string_lossy().contains(NAME);
        paths.filter(is_prepared).collect()
    }

    #[test]
    fn the_log_gives_a_prepared_snapshot_its_name_and_reads_it_back() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = place.path().join("data");
        let mut log = Wal::create(&directory, &identity(), Options::default()).expect("a log");
        let files = log.snapshot_writer().expect("files");
        let snapshot = snapshot(9, 3 * PIECE + 5);
        files.prepare(&snapshot);
        let written = prepared(&directory);
        assert_eq!(written.len(), 1, "{written:?}");
        let inode = std::fs::metadata(&written[0]).expect("written").ino();

        log.append(&[batch(1, &snapshot)]).expect("appended");
        assert_eq!(prepared(&directory), Vec::<PathBuf>::new());
        let named = std::fs::read_dir(&directory).expect("a directory");
        let named = named.map(|entry| entry.expect("an entry").metadata().expect("known").ino());
        assert!(
            named.into_iter().any(|it| it == inode),
            "it was written again"
        );
        drop(log);
        let (_, recovered) =
            Wal::open(&directory, &identity(), Options::default()).expect("opened");
        assert_eq!(recovered.snapshot, Some(snapshot));
    }

    #[test]
    fn another_snapshot_of_the_same_entry_is_not_taken_for_it() {
        let place = tempfile::tempdir().expect("a directory");
        let mut log = Wal::create(&place.path().join("data"), &identity(), Options::default())
            .expect("a log");
        let files = log.snapshot_writer().expect("files");
        files.prepare(&snapshot(9, 100));
        let other = snapshot(9, 200);
        assert_eq!(files.files.take(&other), None);
        log.append(&[batch(1, &other)]).expect("appended");
        drop(log);
        let (_, recovered) =
            Wal::open(&place.path().join("data"), &identity(), Options::default()).expect("opened");
        assert_eq!(recovered.snapshot, Some(other));
    }

    #[test]
    fn what_is_not_needed_any_more_is_removed() {
        let place = tempfile::tempdir().expect("a directory");
        let files = writer(place.path());
        let first = snapshot(9, 100);
        files.prepare(&first);
        drop(first);
        let second = snapshot(10, 100);
        files.prepare(&second);
        assert_eq!(prepared(place.path()).len(), 1);

        // A process that is killed removes nothing; the next one does.
        let after = writer(place.path());
        assert_eq!(prepared(place.path()).len(), 0);
        after.prepare(&second);
        assert_eq!(prepared(place.path()).len(), 1);
        after.files.end();
        assert_eq!(prepared(place.path()).len(), 0);
        after.prepare(&second);
        assert_eq!(
            prepared(place.path()).len(),
            0,
            "the directory was given back"
        );
    }

    #[test]
    fn a_file_that_was_replaced_or_removed_is_left_to_the_log() {
        let place = tempfile::tempdir().expect("a directory");
        let files = writer(place.path());
        let snapshot = snapshot(9, 100);
        for junk in [Some("junk"), None] {
            files.prepare(&snapshot);
            let path = prepared(place.path()).remove(0);
            std::fs::remove_file(&path).expect("removed");
            if let Some(junk) = junk {
                std::fs::write(&path, junk).expect("written");
            }
            assert_eq!(files.files.take(&snapshot), None);
            let _ = std::fs::remove_file(&path);
        }
        files.prepare(&snapshot);
        assert!(files.files.take(&snapshot).is_some(), "whole");
        files.files.end();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_left_to_the_log() {
        let place = tempfile::tempdir().expect("a directory");
        let files = writer(&place.path().join("missing"));
        let snapshot = snapshot(9, 100);
        files.prepare(&snapshot);
        assert_eq!(files.files.take(&snapshot), None);
        files.files.end();
    }

    #[test]
    fn a_file_whose_disk_does_not_go_on_is_left_to_the_log_and_removed_later() {
        let place = tempfile::tempdir().expect("a directory");
        let files = writer(place.path()).files;
        let snapshot = snapshot(9, 100);
        let name = files.begin().expect("in use");
        files.wait(&name, Duration::from_millis(10));
        assert_eq!(files.take(&snapshot), None);
        // The disk goes on after all.
        let format = Format::new(identity(), crc32c::crc32c_append);
        files.prepare(name, &format, snapshot.clone());
        assert_eq!(files.take(&snapshot), None);
        assert_eq!(prepared(place.path()).len(), 0);
        files.end();
    }
}
