//! Elections in a heartbeat table of HPC Pack HA in a SQLite file
//! ([`crate::store::heartbeats`]).
//!
//! Each call is a transaction under the file's lock for writers, but for the reading
//! of an election whose note is on the row that is there. The file is opened and
//! watched over as that of registers is (`file_connection.rs`).
//!
//! Calls come one after the other, each on a thread that may block. Limits: 64 calls
//! wait, more are refused as unavailable; one that has waited for longer than the lock
//! of another process is waited for is not begun.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tenure_core::cas::Conflict;
use tenure_core::ids::Name;

use super::file_connection::{self, DatabaseFile, FileConnection, Purpose};
use super::heartbeat_table::{self as table, Entry, HaTime};
use super::worker::{commit, error_at_commit, error_before_commit, file_replaced};
use crate::error::StoreError;
use crate::store::heartbeats::{self, Change, Note, Options};
use crate::store::{
    Backend, Clock, Expect, Features, FileMode, Key, PAGE_MAX, Page, PollTimes, Polled, Reading,
    Register, Version, Write, Written,
};
use crate::{clock, drive};

/// How many calls may wait.
const WAITING_MAX: usize = 64;
/// How long a call waits for the lock of another process, and before that for its turn.
const LOCK_WAIT: Duration = Duration::from_millis(1_250);

/// The calls on such a file.
pub(in crate::store) struct Heartbeats {
    shared: Arc<Shared>,
}

/// The file, for as long as it is this call's turn.
type File<'a> = MutexGuard<'a, FileConnection>;

struct Shared {
    path: PathBuf,
    options: Options,
    connection: Mutex<FileConnection>,
    waiting: AtomicUsize,
}

/// Counts a call that has not ended.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Opens the file, making it and its tables if `make`; else they are looked for by the
/// first call. Blocks for as long as the disk takes.
pub(in crate::store) fn open(
    path: PathBuf,
    mode: FileMode,
    options: Options,
    make: bool,
) -> Result<Polled<Heartbeats>, StoreError> {
    let path = std::path::absolute(path).map_err(StoreError::broken)?;
    let file = DatabaseFile::with_heartbeats(path.clone(), mode, options.clone());
    let connection = if make {
        FileConnection::open_or_create(&file)?
    } else {
        FileConnection::new(&file, Purpose::Write)
    };
    let times = PollTimes {
        floor: options.poll_every,
        ..PollTimes::default()
    };
    let shared = Arc::new(Shared {
        path,
        options,
        connection: Mutex::new(connection),
        waiting: AtomicUsize::new(0),
    });
    Ok(Polled::new(Heartbeats { shared }, times))
}

impl Heartbeats {
    /// Carries out a call where it may block.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Shared, &mut File<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        if shared.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
            drop(Waiting(&shared.waiting));
            let found = format!("{WAITING_MAX} calls are waiting already");
            return Err(StoreError::unavailable(found));
        }
        let asked = clock::boot();
        let done = drive::background().spawn_blocking(move || {
            let _counted = Waiting(&shared.waiting);
            let file = shared.connection.lock();
            let mut file = file.unwrap_or_else(PoisonError::into_inner);
            let now = clock::boot();
            if now.since(asked) > LOCK_WAIT {
                let found = "the calls before this one have taken too long";
                return Err(StoreError::unavailable(found));
            }
            file_connection::set_lock_deadline(now.after(LOCK_WAIT));
            call(&shared, &mut file)
        });
        done.await
            .map_err(|error| StoreError::unknown(format!("a call has failed: {error}")))?
    }
}

impl Shared {
    /// Carries out what is to be done in one transaction that may write.
    fn write<T>(
        &self,
        file: &mut File<'_>,
        work: impl FnOnce(&Connection, &HaTime) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let result = match Self::transact(file, work) {
            Ok(Some(done)) => Ok(done),
            Ok(None) => {
                let error = file.wal_mode_error();
                file.close();
                return Err(error);
            }
            Err(error) => Err(error),
        };
        if result.is_ok() && !file.is_current() {
            file.close();
            return Err(self.replaced(Purpose::Write));
        }
        result.map_err(|error| match error {
            StoreError::Unavailable(_) => file.why_not_current().unwrap_or(error),
            error => error,
        })
    }

    /// `None` if the file has a write-ahead log; then nothing was done.
    fn transact<T>(
        file: &mut FileConnection,
        work: impl FnOnce(&Connection, &HaTime) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let begun = file_connection::begin_to_write(file.current()?).map_err(|it| before(&it))?;
        let Some(begun) = begun else {
            return Ok(None);
        };
        // Under the lock: from here on no other process changes a row.
        let now = table::ha_time(&begun).map_err(|error| before(&error))?;
        let done = work(&begun, &now)?;
        commit(begun).map_err(|error| error_at_commit(&error))?;
        Ok(Some(done))
    }

    /// The election as it was read without the lock for writers, if its note is on the
    /// row that was there.
    fn glance(&self, file: &mut File<'_>, utype: &Name) -> Result<Option<Reading>, StoreError> {
        let before = |error| before(&error);
        let begun = file
            .current()?
            .transaction_with_behavior(TransactionBehavior::Deferred);
        let begun: Transaction<'_> = begun.map_err(before)?;
        // Before the rows: a pause between the two makes them look younger, never older.
        let now = table::ha_time(&begun).map_err(before)?;
        let entry = table::entry(&begun, &self.options, utype).map_err(before)?;
        drop(begun);
        if !file.is_current() {
            file.close();
            return Err(self.replaced(Purpose::Read));
        }
        Ok(entry.is_plain().then(|| reading(entry, &now)))
    }

    fn replaced(&self, purpose: Purpose) -> StoreError {
        file_replaced(purpose, &self.path.display().to_string())
    }

    /// The election, with a new note if another program has written its row.
    fn noted(&self, connection: &Connection, utype: &Name) -> Result<Entry, StoreError> {
        let before = |error| before(&error);
        let mut entry = table::entry(connection, &self.options, utype).map_err(before)?;
        if entry.is_plain() {
            return Ok(entry);
        }
        let known = entry.note.as_ref().map(|(_, note)| note);
        let timeout = self.options.timeout;
        let note = Note::after(known, utype, entry.beat.as_ref(), timeout)?;
        let version = table::put_note(connection, &self.options, utype, &note).map_err(before)?;
        entry.note = Some((version, note));
        entry.is_noted = true;
        Ok(entry)
    }

    fn swap(&self, file: &mut File<'_>, write: &Write) -> Result<Written, StoreError> {
        let change = Change::new(write, self.options.timeout)?;
        // A conflict is committed: the note that a foreign row was given stays.
        let swapped = self.write(file, |connection, now| {
            let before = |error| before(&error);
            let entry = self.noted(connection, &change.utype)?;
            let held = entry.note.as_ref();
            let fits = match (&write.expect, held) {
                (Expect::Absent, None) => true,
                (Expect::Version(expected), Some((held, _))) => expected == held,
                (Expect::Absent, Some(_)) | (Expect::Version(_), None) => false,
            };
            if !fits {
                return Ok(Err(Conflict));
            }
            change.check(held.map(|(_, note)| note))?;
            let options = &self.options;
            table::put_row(connection, options, &change, now).map_err(before)?;
            let version = table::put_note(connection, options, &change.utype, &change.note);
            let version = version.map_err(before)?;
            let now = Some(heartbeats::store_time(now.millis));
            Ok(Ok(Written { version, now }))
        })?;
        swapped.map_err(|Conflict| StoreError::Conflict)
    }

    fn remove(
        &self,
        file: &mut File<'_>,
        utype: &Name,
        expected: &Version,
    ) -> Result<(), StoreError> {
        let removed = self.write(file, |connection, _| {
            let entry = self.noted(connection, utype)?;
            if entry.note.is_none_or(|(held, _)| held != *expected) {
                return Ok(Err(Conflict));
            }
            let removed = table::remove(connection, &self.options, utype);
            removed.map(Ok).map_err(|error| before(&error))
        })?;
        removed.map_err(|Conflict| StoreError::Conflict)
    }

    fn page(
        &self,
        file: &mut File<'_>,
        prefix: &str,
        after: Option<&Key>,
    ) -> Result<Page, StoreError> {
        let prefix = heartbeats::utypes(prefix)?;
        let after = after.map(heartbeats::after);
        self.write(file, |connection, now| {
            let names = table::utypes(connection, &self.options, prefix, after);
            let names = names.map_err(|error| before(&error))?;
            let mut page = Page {
                now: Some(heartbeats::store_time(now.millis)),
                ..Page::default()
            };
            let more = names.len() > PAGE_MAX;
            for name in names.into_iter().take(PAGE_MAX) {
                // What is no name was written by hand; it is no election.
                let key = String::from_utf8(name)
                    .ok()
                    .and_then(|it| heartbeats::key(&it));
                let Some(key) = key else { continue };
                let entry = self.noted(connection, &heartbeats::utype(&key)?)?;
                if let Some(register) = reading(entry, now).register {
                    page.registers.push((key, register));
                }
            }
            page.more_after = page
                .registers
                .last()
                .filter(|_| more)
                .map(|(key, _)| key.clone());
            Ok(page)
        })
    }
}

impl Entry {
    /// Whether the note is on the row that is there, or there is neither.
    fn is_plain(&self) -> bool {
        match (&self.note, &self.beat) {
            (None, None) => true,
            _ => self.is_noted,
        }
    }
}

fn reading(entry: Entry, now: &HaTime) -> Reading {
    let stamp = entry.beat.and_then(|beat| beat.millis);
    Reading {
        register: entry.note.map(|(version, note)| Register {
            value: note.record,
            version,
            stamp: stamp.map(heartbeats::store_time),
        }),
        now: Some(heartbeats::store_time(now.millis)),
        bound: None,
    }
}

fn before(error: &rusqlite::Error) -> StoreError {
    error_before_commit(error)
}

impl fmt::Display for Heartbeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, table) = (self.shared.path.display(), self.shared.options.table());
        write!(f, "sqlite://{path}?format=hpc&table={table}")
    }
}

impl fmt::Debug for Heartbeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Backend for Heartbeats {
    fn features(&self) -> Features {
        Features {
            clock: Clock::MayStep,
            judge_by_store_clock: self.shared.options.judge_by_store_clock,
        }
    }

    fn max_lease(&self) -> Option<Duration> {
        Some(self.shared.options.timeout)
    }

    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        if heartbeats::is_probe(key) {
            let probe = |shared: &Shared, file: &mut File<'_>| {
                shared.write(file, |_, _| Ok(Reading::default()))
            };
            return self.call(probe).await;
        }
        let utype = heartbeats::utype(key)?;
        self.call(move |shared, file| {
            if let Some(reading) = shared.glance(file, &utype)? {
                return Ok(reading);
            }
            shared.write(file, |connection, now| {
                Ok(reading(shared.noted(connection, &utype)?, now))
            })
        })
        .await
        .map_err(heartbeats::of_reading)
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let write = write.clone();
        self.call(move |shared, file| shared.swap(file, &write))
            .await
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let (utype, expected) = (heartbeats::utype(key)?, expected.clone());
        self.call(move |shared, file| shared.remove(file, &utype, &expected))
            .await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.call(move |shared, file| shared.page(file, &prefix, after.as_ref()))
            .await
            .map_err(heartbeats::of_reading)
    }
}
