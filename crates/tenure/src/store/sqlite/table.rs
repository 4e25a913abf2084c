//! The table, and what can be done to it.
//!
//! A write deletes the row and inserts it again, because `AUTOINCREMENT`
//! promises that an inserted row number was never used before, deletion
//! included: the row number *is* the version.

use std::path::Path;
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Row, params};
use tenure_core::cas::{Conflict, Expect, Stamp, Write};
use tenure_core::time::{ClockId, StoreTime};

use super::place;
use crate::clock;
use crate::error::StoreError;
use crate::store::{Key, PAGE_MAX, Page, Register, Version};

const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS tenure_register (
  version INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL UNIQUE,
  value BLOB NOT NULL,
  stamp_boot INTEGER,
  stamp_namespace INTEGER,
  stamp_ns INTEGER
)";

const COLUMNS: [&str; 6] = [
    "version",
    "key",
    "value",
    "stamp_boot",
    "stamp_namespace",
    "stamp_ns",
];

const SELECT: &str =
    "SELECT version, value, stamp_boot, stamp_namespace, stamp_ns, key FROM tenure_register";

/// How long a call waits for the locks of other processes.
const BUSY_WAIT: Duration = Duration::from_secs(5);
/// How soon a refused change of mode is tried again.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Opens the file for reading and writing, and makes or checks the table.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    place::check(path)?;
    let connection = connect(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
    )?;
    let broken = |error| at_open(path, &error);
    connection.busy_timeout(BUSY_WAIT).map_err(broken)?;
    // Asked to write, SQLite opens what it may only read all the same.
    if connection.is_readonly("main").map_err(broken)? {
        return Err(StoreError::broken(format!(
            "{}: expected a file and a directory that this user may write, found them read-only",
            path.display()
        )));
    }
    let mode = to_wal_mode(&connection).map_err(broken)?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(StoreError::broken(format!(
            "expected {} in WAL mode, found it in {mode:?} mode; it needs a local disk and \
             a directory that can be written",
            path.display()
        )));
    }
    connection
        .pragma_update(None, "synchronous", "FULL")
        .map_err(broken)?;
    check(path, &connection)?;
    Ok(connection)
}

/// Puts the file in WAL mode, and says which mode it is in then.
///
/// Processes that meet on a new file all change its mode at once. Each holds
/// a read lock that keeps the others from the exclusive one, so SQLite refuses
/// all but one at once, without the wait of `busy_timeout`, for fear of a
/// deadlock. Here it is none: whoever is refused has let go of its lock, and
/// finds the mode changed when it asks again.
fn to_wal_mode(connection: &Connection) -> rusqlite::Result<String> {
    let until = clock::boot().after(BUSY_WAIT);
    loop {
        let asked = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0));
        let busy = asked.as_ref().is_err_and(|error: &rusqlite::Error| {
            error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
        });
        if !busy || clock::boot() >= until {
            return asked;
        }
        std::thread::sleep(ASK_AGAIN);
    }
}

/// Opens the file to look for changes.
pub(super) fn open_to_watch(path: &Path) -> Result<Connection, StoreError> {
    // Read-write, because a reader of a WAL file writes its shared memory.
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection
        .busy_timeout(BUSY_WAIT)
        .map_err(|error| at_open(path, &error))?;
    Ok(connection)
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags).map_err(|error| at_open(path, &error))
}

fn check(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let broken = |error| at_open(path, &error);
    let found = columns(connection).map_err(broken)?;
    if found.is_empty() {
        connection.execute(SCHEMA, []).map_err(broken)?;
        return Ok(());
    }
    if found == COLUMNS {
        return Ok(());
    }
    Err(StoreError::broken(format!(
        "expected table tenure_register with columns {}, found {} in {}; it belongs to \
         something else or to another version of tenure: use another file",
        COLUMNS.join(", "),
        found.join(", "),
        path.display()
    )))
}

fn columns(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare("SELECT name FROM pragma_table_info('tenure_register')")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

/// What an error at opening means: mostly that a person must do something.
fn at_open(path: &Path, error: &rusqlite::Error) -> StoreError {
    let place = path.display();
    let advice = match error.sqlite_error_code() {
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
            return StoreError::unavailable(format!("{place}: the disk is full; free some space"));
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return StoreError::unavailable(format!("{place} is locked by another process"));
        }
        _ => "cannot be used",
    };
    StoreError::broken(format!("{place}: {advice} ({error})"))
}

pub(super) fn read(connection: &Connection, key: &Key) -> rusqlite::Result<Option<Register>> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} WHERE key = ?1"))?;
    statement.query_row([key.as_str()], register).optional()
}

/// A register from a row of [`SELECT`]. No row can make this fail: a column
/// holds values of any type here, so a row that somebody edited by hand would
/// otherwise take down the transaction that it is read in, and with it calls
/// that concern its neighbours. Whoever decodes the value finds that it is no
/// record, if it is none, and says so of this one register.
pub(super) fn register(row: &Row<'_>) -> rusqlite::Result<Register> {
    let version: i64 = row.get(0)?;
    let value = bytes(row.get_ref(1)?);
    let number = |at| row.get_ref(at).map(|value| value.as_i64().ok());
    let stamp = match (number(2)?, number(3)?, number(4)?) {
        (Some(boot), Some(namespace), Some(nanos)) => Some(StoreTime {
            clock: ClockId {
                boot: boot.cast_unsigned(),
                namespace: namespace.cast_unsigned(),
            },
            nanos: nanos.cast_unsigned(),
        }),
        _ => None,
    };
    let version = Version::from_u64(version.cast_unsigned());
    Ok(Register {
        value: value.into(),
        version,
        stamp,
    })
}

/// A value as it would be printed, whatever its type.
fn bytes(value: ValueRef<'_>) -> Vec<u8> {
    match value {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes.to_vec(),
        ValueRef::Integer(number) => number.to_string().into_bytes(),
        ValueRef::Real(number) => number.to_string().into_bytes(),
        ValueRef::Null => Vec::new(),
    }
}

/// Carries out a compare-and-swap inside the current transaction.
pub(super) fn write(
    connection: &Connection,
    write: &Write,
) -> rusqlite::Result<Result<Register, Conflict>> {
    let held = read(connection, &write.key)?;
    let fits = match (&write.expect, &held) {
        (Expect::Absent, None) => true,
        (Expect::Version(expected), Some(held)) => *expected == held.version,
        (Expect::Absent, Some(_)) | (Expect::Version(_), None) => false,
    };
    if !fits {
        return Ok(Err(Conflict));
    }
    let stamp = match write.stamp {
        Stamp::Now => clock::shared(),
        Stamp::Keep => held.as_ref().and_then(|held| held.stamp),
    };
    if held.is_some() {
        remove(connection, &write.key)?;
    }
    let mut insert = connection.prepare_cached(
        "INSERT INTO tenure_register (key, value, stamp_boot, stamp_namespace, stamp_ns) \
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let version = insert.insert(params![
        write.key.as_str(),
        &*write.value,
        stamp.map(|stamp| stamp.clock.boot.cast_signed()),
        stamp.map(|stamp| stamp.clock.namespace.cast_signed()),
        stamp.map(|stamp| stamp.nanos.cast_signed()),
    ])?;
    let version = Version::from_u64(version.cast_unsigned());
    Ok(Ok(Register {
        value: write.value.clone(),
        version,
        stamp,
    }))
}

/// Deletes by version inside the current transaction.
pub(super) fn delete(
    connection: &Connection,
    key: &Key,
    expected: &Version,
) -> rusqlite::Result<Result<(), Conflict>> {
    match read(connection, key)? {
        Some(held) if held.version == *expected => remove(connection, key).map(Ok),
        _ => Ok(Err(Conflict)),
    }
}

fn remove(connection: &Connection, key: &Key) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached("DELETE FROM tenure_register WHERE key = ?1")?;
    statement.execute([key.as_str()]).map(|_| ())
}

/// A page of the registers whose keys begin with `prefix`.
pub(super) fn list(
    connection: &Connection,
    prefix: &str,
    after: Option<&Key>,
) -> rusqlite::Result<Page> {
    // Compared as bytes: LIKE would fold case and knows wildcards.
    let mut statement = connection.prepare_cached(&format!(
        "{SELECT} WHERE key >= ?1 AND substr(CAST(key AS BLOB), 1, ?2) = CAST(?1 AS BLOB) \
         AND (?3 IS NULL OR key > ?3) ORDER BY key LIMIT ?4"
    ))?;
    let length = i64::try_from(prefix.len()).unwrap_or(i64::MAX);
    let limit = i64::try_from(PAGE_MAX + 1).unwrap_or(i64::MAX);
    let after = after.map(Key::as_str);
    let rows = statement.query_map(params![prefix, length, after, limit], |row| {
        // A key that is not one was written by hand; it is nobody's register.
        let key = row.get_ref(5)?.as_str().ok();
        Ok((key.and_then(|key| Key::new(key).ok()), register(row)?))
    })?;
    let mut page = Page {
        now: clock::shared(),
        ..Page::default()
    };
    for (number, row) in rows.enumerate() {
        if number == PAGE_MAX {
            page.more_after = page.registers.last().map(|(key, _)| key.clone());
            break;
        }
        if let (Some(key), register) = row? {
            page.registers.push((key, register));
        }
    }
    Ok(page)
}
