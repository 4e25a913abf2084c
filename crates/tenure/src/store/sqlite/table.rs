//! The table, and what can be done to it.
//!
//! A write deletes the row and inserts it again, because `AUTOINCREMENT`
//! promises that an inserted row number was never used before, deletion
//! included: the row number *is* the version.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use tenure_core::cas::{Conflict, Expect, MAX_VALUE_BYTES, Stamp, Write};
use tenure_core::time::{ClockId, StoreTime};

use crate::error::{StoreError, quoted};
use crate::store::{Key, PAGE_MAX, Page, Register, Version};

/// Makes the table. Only a table that this statement made is used ([`check_shape`]).
pub(super) const SCHEMA: &str = "\
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

/// A value that is longer than any that is written is not read: it takes the memory of
/// each process that lists, whatever its election is. What is read of it is no record.
pub(super) const SELECT: &str = "SELECT version, CASE WHEN octet_length(value) <= 262144 THEN value ELSE \
                      'a value that is too long' END, stamp_boot, stamp_namespace, stamp_ns, key \
                      FROM tenure_register";

const _: () = assert!(MAX_VALUE_BYTES == 262_144, "as `SELECT` has it");

/// Refuses a table with other columns than those that [`SCHEMA`] makes.
pub(super) fn check(path: &Path, found: &[String]) -> Result<(), StoreError> {
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

/// Refuses what is called so and is not the table that [`SCHEMA`] makes, and a table with
/// triggers. Without `AUTOINCREMENT` a version comes again: a write deletes the row and
/// inserts it, so the only row always has the version 1, each compare-and-swap passes, and
/// several lead in one term. A trigger can set a version as well. A constraint with
/// `ON CONFLICT` or another collation drops what was acknowledged.
pub(super) fn check_shape(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let failed =
        |error: rusqlite::Error| StoreError::unavailable(format!("{}: {error}", path.display()));
    let asked = "SELECT coalesce(sql, '') FROM sqlite_master WHERE type IN ('table', 'view') AND \
                 lower(name) = 'tenure_register'";
    let sql: String = connection
        .query_row(asked, [], |row| row.get(0))
        .map_err(failed)?;
    if essence(&sql) != essence(SCHEMA) {
        return Err(StoreError::broken(format!(
            "expected the table that this makes in {}: {SCHEMA}; found: {}; with another one \
             versions may come again, so that several would lead in one term: end all \
             candidates and put that table in its place, with the same rows",
            path.display(),
            quoted(&sql)
        )));
    }
    match triggers(connection, "tenure_register").map_err(failed)? {
        None => Ok(()),
        Some(triggers) => Err(StoreError::broken(format!(
            "expected table tenure_register without triggers, which may change what is written, \
             found {} in {}; end all candidates and drop them",
            quoted(&triggers),
            path.display()
        ))),
    }
}

/// The triggers of a table, if it has any.
pub(super) fn triggers(connection: &Connection, table: &str) -> rusqlite::Result<Option<String>> {
    let named = "SELECT group_concat(name, ', ') FROM sqlite_master WHERE type = 'trigger' AND \
                 lower(tbl_name) = lower(?1)";
    connection.query_row(named, [table], |row| row.get(0))
}

/// What a statement says: without comments, quotes of names, the space between words, and
/// the difference between capitals and small letters.
fn essence(sql: &str) -> String {
    let mut rest = sql;
    let mut text = String::new();
    while let Some(first) = rest.chars().next() {
        let mut comments = [("--", "\n"), ("/*", "*/")].into_iter();
        let comment = comments.find(|(begin, _)| rest.starts_with(begin));
        if let Some((_, end)) = comment {
            rest = rest.split_once(end).map_or("", |(_, rest)| rest);
            text.push(' ');
            continue;
        }
        match first {
            '"' | '`' | '[' | ']' => {}
            '(' | ')' | ',' => {
                text.push(' ');
                text.push(first);
                text.push(' ');
            }
            other => text.push(other.to_ascii_lowercase()),
        }
        rest = &rest[first.len_utf8()..];
    }
    let words: Vec<_> = text.split_whitespace().collect();
    words
        .join(" ")
        .replacen("create table if not exists", "create table", 1)
}

/// The columns of the table; none if there is no table.
pub(super) fn columns(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare("SELECT name FROM pragma_table_info('tenure_register')")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

pub(super) fn read(connection: &Connection, key: &Key) -> rusqlite::Result<Option<Register>> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} WHERE key = ?1"))?;
    statement.query_row([key.as_str()], register).optional()
}

/// A register from a row of [`SELECT`]. No row can make this fail: a column
/// holds values of any type here, so a row that somebody edited by hand would
/// otherwise take down the transaction that it is read in, and with it calls
/// that concern its neighbours. The reader that decodes the value finds that it
/// is no record, if it is none, and says so of this one register.
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

/// Carries out a compare-and-swap inside the current transaction, which takes
/// place at `now`.
pub(super) fn write(
    connection: &Connection,
    write: &Write,
    now: Option<StoreTime>,
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
        Stamp::Now => now,
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

/// A page of the registers whose keys begin with `prefix`, read after `now`.
pub(super) fn list(
    connection: &Connection,
    prefix: &str,
    after: Option<&Key>,
    now: Option<StoreTime>,
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
        now,
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
