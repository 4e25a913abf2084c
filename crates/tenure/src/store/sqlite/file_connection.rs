//! One connection to the file, for as long as the path leads to that file.
//!
//! Why do two never lead through one path? Because of three things that
//! are kept here.
//!
//! **What is acknowledged is in the main file, under locks on the main file.**
//! The journal is a rollback journal: a commit writes the main file, syncs it,
//! and then ends the journal.
//!
//! With a write-ahead log, which earlier releases used, the newest writes and
//! even the locks are in two more files; a process that finds those removed
//! makes new ones, shares neither writes nor locks with those who have the old
//! ones open, and elects a second leader of the same term.
//!
//! A file in that mode is converted when it is opened for writing. That takes a
//! lock which an older process keeps from us as long as it has the file open;
//! then the store is refused. If an older process comes later and changes the
//! mode under us, the first transaction that finds it so writes nothing, and
//! the store is refused until the older one is gone.
//!
//! **The connection is used only while the path leads to the file that it has
//! open**, by device and inode. That is looked up before each transaction, so
//! that nothing is written into a file that was replaced; and again after it
//! and before its answer, because what was committed to a file that nobody
//! finds any more is no acknowledged write. Then the outcome is unknown, the
//! connection is closed, and the next call opens what the path leads to. (If
//! it is put back in between the two, it is the same file.)
//!
//! **A file that was in use is never made again by those who used it.** They
//! remember terms that a new file would begin below. It is for an operator to
//! put the file back or to make one that begins above.
//!
//! Not covered: a file that is removed under a leader while a process that
//! was not running before is started. It makes a new file, and may lead until
//! the old leader's next call. And a directory that is reached through a
//! layered file system by one and past it by another: the kernel keeps their
//! locks apart.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use rustix::fs::{Access, access};
use tenure_core::time::Instant;
use tenure_runtime::filesystem;

use super::identity::{self, FileInfo, Identity};
use super::{heartbeat_table, journal_files, open_files, table};
use crate::clock;
use crate::error::StoreError;
use crate::store::heartbeats::Options;
use crate::store::{FileMode, REPAIR, no_store, symlinks};

/// How long to wait for the locks of other processes, where nobody waits for
/// an answer.
pub(super) const BUSY_WAIT: Duration = Duration::from_secs(5);
/// How often a file that changes while it is opened is tried.
const TRIES: usize = 3;
/// To this size the journal is cut after a larger transaction.
const JOURNAL_BYTES: u64 = 1 << 20;

/// Refuses a file on a file system whose locks may not reach all who use it: SQLite
/// coordinates by locks of one machine.
fn refuse_shared(path: &Path) -> Result<(), StoreError> {
    match filesystem::shared_at(path) {
        Some(shared) => Err(StoreError::broken(format!(
            "expected {} on a local disk, found it on {}: SQLite coordinates by locks, and \
             two leaders would be possible; use a disk of this machine without FUSE, or \
             PostgreSQL between machines",
            path.display(),
            shared.found()
        ))),
        None => Ok(()),
    }
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// To write: the file is converted if it has a write-ahead log.
    Write,
    /// To read: a file that this user may only read will do, in any mode.
    Read,
}

/// What the connections of one store have in common.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    path: PathBuf,
    /// What a file that is made here may be used for by others.
    mode: FileMode,
    /// It has no registers but heartbeats, in a table of this name.
    heartbeats: Option<Options>,
    /// The file was in use: should it be missing, somebody took it away.
    was_used: AtomicBool,
    /// It has been told that the file has got a second name.
    has_second_name: AtomicBool,
}

impl DatabaseFile {
    pub(super) fn new(path: PathBuf, mode: FileMode) -> Arc<Self> {
        Self::make(path, mode, None)
    }

    /// One that has heartbeats.
    pub(super) fn with_heartbeats(path: PathBuf, mode: FileMode, options: Options) -> Arc<Self> {
        Self::make(path, mode, Some(options))
    }

    fn make(path: PathBuf, mode: FileMode, heartbeats: Option<Options>) -> Arc<Self> {
        Arc::new(Self {
            path,
            mode,
            heartbeats,
            was_used: AtomicBool::new(false),
            has_second_name: AtomicBool::new(false),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an empty file, which is an empty database. SQLite gives its
    /// journal the same mode.
    fn create(&self) -> bool {
        // Not through a link: SQLite would make what it leads to, as wide as
        // the umask lets it.
        self.mode.create(&symlinks::target(&self.path)).is_ok()
    }

    fn stat(&self) -> Result<FileInfo, StoreError> {
        identity::stat(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => self.missing("no such file"),
            _ => StoreError::unavailable(format!("{}: {error}", self.path.display())),
        })
    }

    /// There is no file, or no table in it.
    fn missing(&self, found: &str) -> StoreError {
        let file = self.path.display();
        if self.was_used.load(Ordering::Acquire) {
            return StoreError::unavailable(format!(
                "expected {file} as it was in use here, found it deleted or replaced ({found}): \
                 put it back; if it is lost, `{REPAIR}` makes another"
            ));
        }
        StoreError::unavailable(no_store(format!("{file}: {found}")))
    }

    /// Whether the path leads to this file still. One that got another name
    /// meanwhile is the same: backups do that, and nobody may open it by that
    /// name.
    fn is_still(&self, open: &Identity) -> bool {
        let Ok(found) = identity::stat(&self.path) else {
            return false;
        };
        let has_second_name = found.hard_links > 1;
        if self.has_second_name.swap(has_second_name, Ordering::AcqRel) != has_second_name
            && has_second_name
        {
            tracing::warn!(
                "{} has got {} hard links: no process may open it by another name, and it is refused \
                 at the next start; copy it instead, or remove the other names",
                self.path.display(),
                found.hard_links
            );
        }
        found.identity == *open
    }
}

/// A connection that follows its path.
pub(super) struct FileConnection {
    file: Arc<DatabaseFile>,
    purpose: Purpose,
    open: Option<OpenFile>,
    times_opened: u64,
}

struct OpenFile {
    connection: Connection,
    identity: Identity,
}

impl FileConnection {
    pub(super) fn new(file: &Arc<DatabaseFile>, purpose: Purpose) -> Self {
        Self {
            file: Arc::clone(file),
            purpose,
            open: None,
            times_opened: 0,
        }
    }

    /// Opens the file to write it, making what is missing of it: at the start
    /// of a process that was not using it. Waits for older processes that are
    /// about to end.
    pub(super) fn open_or_create(file: &Arc<DatabaseFile>) -> Result<Self, StoreError> {
        refuse_shared(&file.path)?;
        symlinks::check(&file.path)?;
        let until = clock::boot().after(BUSY_WAIT);
        let mut file_connection = Self::new(file, Purpose::Write);
        loop {
            set_lock_deadline(until);
            journal_files::check(&file.path, file.mode, true)?;
            if identity::stat(&file.path).is_err() && !file.create() {
                // SQLite says why.
                drop(file_connection.connect(OpenFlags::SQLITE_OPEN_CREATE)?);
            }
            match file_connection.open_file(true) {
                Err(StoreError::Unavailable(_)) if clock::boot() < until => {}
                result => {
                    result?;
                    journal_files::share_journal(&file.path, file.mode);
                    file.mode.warn_if_wider(&file.path);
                    journal_files::warn(&file.path, file.mode);
                    return Ok(file_connection);
                }
            }
            // With nothing open: two who both keep the file from the other
            // while they wait would wait in vain. Not in step, either.
            let odd = clock::boot().as_nanos() % 16;
            std::thread::sleep(Duration::from_millis(5 + odd));
        }
    }

    /// The connection, to the file that the path leads to now.
    pub(super) fn current(&mut self) -> Result<&mut Connection, StoreError> {
        if self.is_current() {
            // SQLite looks for a write-ahead log at each transaction.
            journal_files::check(&self.file.path, self.file.mode, false)?;
        } else {
            self.open_file(false)?;
        }
        let open = self.open.as_mut();
        Ok(&mut open.expect("it was just opened").connection)
    }

    /// Whether the connection that was used last is to the file that the path
    /// leads to still.
    pub(super) fn is_current(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| self.file.is_still(&open.identity))
    }

    /// What has become of the file, if a connection is open and the path does
    /// not lead to its file; then it is closed.
    pub(super) fn why_not_current(&mut self) -> Option<StoreError> {
        if self.open.is_none() || self.is_current() {
            return None;
        }
        self.open = None;
        let gone = self.file.stat().err();
        Some(gone.unwrap_or_else(|| self.file.missing("another file")))
    }

    /// Whether there is no connection, since there was no file to open.
    pub(super) fn is_closed(&self) -> bool {
        self.open.is_none()
    }

    /// How often a connection was opened.
    pub(super) fn times_opened(&self) -> u64 {
        self.times_opened
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// Closes the connection; the next call opens another.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Closes the connection if the file has a write-ahead log. As long as
    /// anybody has such a file open, nobody can convert it.
    pub(super) fn close_if_wal(&mut self) {
        let open = self.open.as_ref();
        if open.is_some_and(|open| mode(&open.connection).is_ok_and(|mode| is_wal(&mode))) {
            self.open = None;
        }
    }

    /// What to say of a file that has a write-ahead log.
    pub(super) fn wal_mode_error(&self) -> StoreError {
        StoreError::unavailable(format!(
            "expected {} to be used by this release alone, found it in WAL mode and open in \
             another process, an older release of tenure perhaps: what is written then is not in \
             the file itself; end that process, and this one goes on",
            self.file.path.display()
        ))
    }

    fn open_file(&mut self, make: bool) -> Result<(), StoreError> {
        self.open = None;
        for _ in 0..TRIES {
            let found = self.file.stat()?;
            refuse_shared(&self.file.path)?;
            if self.purpose == Purpose::Write {
                symlinks::check(&self.file.path)?;
            }
            identity::refuse_second_name(&self.file.path, &found)?;
            let beside = || journal_files::check(&self.file.path, self.file.mode, true);
            beside()?;
            let connection = self.connect(OpenFlags::empty())?;
            // The same before and after: so it is what was opened in between.
            if self.file.stat()?.identity != found.identity {
                continue;
            }
            self.prepare(&connection, make)?;
            beside()?;
            self.open = Some(OpenFile {
                connection,
                identity: found.identity,
            });
            self.times_opened += 1;
            self.file.was_used.store(true, Ordering::Release);
            return Ok(());
        }
        Err(StoreError::unavailable(format!(
            "{} is being replaced",
            self.file.path.display()
        )))
    }

    fn prepare(&self, connection: &Connection, make: bool) -> Result<(), StoreError> {
        let path = &self.file.path;
        let broken = |error| self.open_error(&error);
        connection.busy_handler(Some(on_busy)).map_err(broken)?;
        if self.purpose == Purpose::Write {
            // Asked to write, SQLite opens what it may only read all the same.
            let sealed = connection.is_readonly("main").map_err(broken)?;
            // Symbolic links are followed: the journal lies beside the file.
            let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let directory = real.parent().unwrap_or(&real);
            if sealed || access(directory, Access::WRITE_OK).is_err() {
                return Err(StoreError::broken(format!(
                    "{}: expected a file and a directory that this user may write, found them \
                     read-only",
                    path.display()
                )));
            }
            if !to_rollback_journal(connection).map_err(broken)? {
                return Err(self.wal_mode_error());
            }
            connection
                .pragma_update(None, "synchronous", "FULL")
                .map_err(broken)?;
            connection
                .pragma_update(None, "journal_size_limit", JOURNAL_BYTES)
                .map_err(broken)?;
        }
        self.check_table(connection, make)
    }

    fn check_table(&self, connection: &Connection, make: bool) -> Result<(), StoreError> {
        if let Some(options) = &self.file.heartbeats {
            return heartbeat_table::prepare(connection, &self.file.path, options, make);
        }
        let broken = |error| self.open_error(&error);
        let found = table::columns(connection).map_err(broken)?;
        if found.is_empty() && !make {
            return Err(self.file.missing("no table tenure_register in it"));
        }
        if found.is_empty() {
            return connection
                .execute(table::SCHEMA, [])
                .map(drop)
                .map_err(broken);
        }
        table::check(&self.file.path, &found)?;
        table::check_shape(&self.file.path, connection)
    }

    fn connect(&self, create: OpenFlags) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
        let connected = Connection::open_with_flags(&self.file.path, flags);
        connected.map_err(|error| self.open_error(&error))
    }

    /// What an error at opening means: mostly that a person must do something.
    fn open_error(&self, error: &rusqlite::Error) -> StoreError {
        let file = self.file.path.display();
        let code = error.sqlite_error_code();
        if let Some(exhausted) = open_files::exhausted(&self.file.path, error) {
            return exhausted;
        }
        let readable = access(&self.file.path, Access::READ_OK).is_ok();
        let advice = match code {
            Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly)
                if self.purpose == Purpose::Read && readable =>
            {
                return unreadable(&self.file.path, error);
            }
            Some(ErrorCode::CannotOpen) if self.purpose == Purpose::Read => {
                "expected a file that this user may read"
            }
            Some(ErrorCode::CannotOpen) => {
                "expected a file in an existing directory that this user may write"
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                "expected a file and a directory that this user may write, found them read-only"
            }
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                "expected a SQLite database, found something else or a damaged one; move it away"
            }
            Some(ErrorCode::DiskFull) => {
                return StoreError::unavailable(format!(
                    "{file}: the disk is full; free some space"
                ));
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                return StoreError::unavailable(format!("{file} is locked by another process"));
            }
            _ => "cannot be used",
        };
        StoreError::broken(format!("{file}: {advice} ({error})"))
    }
}

/// Why a user who may only read a file cannot.
pub(super) fn unreadable(path: &Path, error: &rusqlite::Error) -> StoreError {
    journal_files::unreadable(path).unwrap_or_else(|| {
        StoreError::unavailable(format!(
            "{}: expected a file that can be read without writing it, found a write that was cut \
             off, or a file in WAL mode (as older releases leave it) that no writer has open; a \
             process that may write it mends either ({error})",
            path.display()
        ))
    })
}

/// Puts the connection in the mode in which the journal is kept and
/// overwritten; whether it could be done. Of the modes of a rollback journal
/// it is the one whose commits change no directory and no length of a file,
/// and which are durable with `synchronous = FULL` (the end of the journal is
/// synced before the locks are dropped).
fn to_rollback_journal(connection: &Connection) -> rusqlite::Result<bool> {
    let asked = connection.query_row("PRAGMA journal_mode = PERSIST", [], |row| {
        row.get::<_, String>(0)
    });
    match asked {
        Ok(mode) => Ok(mode.eq_ignore_ascii_case("persist")),
        // Readers of a write-ahead log are not held up by writers.
        Err(error) if is_busy(&error) && mode(connection).is_ok_and(|it| is_wal(&it)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The mode of the file, as the last transaction found it.
fn mode(connection: &Connection) -> rusqlite::Result<String> {
    connection
        .prepare_cached("PRAGMA journal_mode")?
        .query_row([], |row| row.get(0))
}

fn is_wal(mode: &str) -> bool {
    mode.eq_ignore_ascii_case("wal")
}

/// A transaction that holds the file's lock for writers, under which the file
/// is found to have no write-ahead log; `None` if it has one.
pub(super) fn begin_to_write(
    connection: &mut Connection,
) -> rusqlite::Result<Option<rusqlite::Transaction<'_>>> {
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // While the lock is held nobody changes the mode.
    let has_wal = is_wal(&mode(&begun)?);
    Ok((!has_wal).then_some(begun))
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

thread_local! {
    /// Until when this thread waits for the locks of others.
    static LOCK_DEADLINE: Cell<Instant> = const { Cell::new(Instant::from_nanos(0)) };
}

/// From now on this thread waits for locks of others until then.
pub(super) fn set_lock_deadline(until: Instant) {
    LOCK_DEADLINE.set(until);
}

/// What SQLite calls when it meets a lock: whether to try again. The lock of
/// another process cannot be awaited, so it is tried more and more rarely.
fn on_busy(tries: i32) -> bool {
    if clock::boot() >= LOCK_DEADLINE.get() {
        return false;
    }
    std::thread::sleep(Duration::from_micros(match tries {
        0..20 => 500,
        20..100 => 2_000,
        _ => 10_000,
    }));
    true
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// How many descriptors of this process are of files in this directory.
    fn open_below(directory: &Path) -> usize {
        let descriptors = fs::read_dir("/proc/self/fd").expect("what the kernel tells");
        let files = descriptors.filter_map(|it| fs::read_link(it.ok()?.path()).ok());
        files.filter(|file| file.starts_with(directory)).count()
    }

    #[test]
    fn a_file_that_is_made_is_closed_with_its_connection() {
        for mode in [FileMode::Owner, FileMode::GroupReads, FileMode::GroupWrites] {
            let directory = tempfile::tempdir().expect("a directory");
            let file = DatabaseFile::new(directory.path().join("a.db"), mode);
            let connection = FileConnection::open_or_create(&file).expect("a new file");
            assert!(open_below(directory.path()) > 0, "{mode:?}");
            drop(connection);
            assert_eq!(open_below(directory.path()), 0, "{mode:?}");
        }
    }
}
