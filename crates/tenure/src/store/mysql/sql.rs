//! The statements, and how their answers are read.
//!
//! Keys and values are written as hexadecimal literals, which are bytes and have no
//! character that could end them. Each statement is a transaction of its own.
//!
//! # Versions
//!
//! An update counts the version of its row up by one. What a deleted row leaves is in
//! the *floor*, the row with the empty key, which no register has: its version is at
//! least that of every row that was ever deleted, and a new row gets the one above it.
//! So no version is used twice for a key, and rows that are gone take no room.
//!
//! A deletion raises the floor to the version of the row, and then deletes the row if
//! the floor is as high as that. These are two statements, because the first does no
//! harm alone. A creation reads the floor with a lock that it keeps until it is
//! committed. If it finds the row gone, the floor was raised before it had that lock,
//! since raising waits for it; so it has read the raised floor.
//!
//! On a cluster of Galera such a lock holds on one server only. There a creation that
//! read the floor too early is undone: the change of the floor that arrives from
//! another server aborts the statement that has locked the row, and so does the
//! deletion of a row that the creation writes.

use std::fmt::Write as _;

use mysql_async::Row;
use mysql_async::prelude::FromValue;
use tenure_core::cas::{Bytes, Stamp, Write};
use tenure_core::time::{ClockId, StoreTime};

use crate::error::StoreError;
use crate::store::{Key, PAGE_MAX, Reading, Register, Version};

/// The name of the server's clock. It is one clock as far as can be told; that it may
/// step is why it is not trusted by default.
const CLOCK: ClockId = ClockId {
    boot: 0,
    namespace: 0,
};

/// The server's time when the statement began, in microseconds, whatever the time
/// zone of the session. A holder counts from before it sent the statement.
pub(super) const MICROS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The statement that makes the table, for those whose database user may not.
pub(super) fn migration(table: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS `{table}` (\n  \
         `key` VARBINARY(512) NOT NULL PRIMARY KEY,\n  \
         version BIGINT UNSIGNED NOT NULL,\n  \
         value MEDIUMBLOB NOT NULL,\n  \
         stamp BIGINT UNSIGNED\n) ENGINE=InnoDB"
    )
}

/// The columns that [`migration`] makes, in the words of [`describe`].
pub(super) const COLUMNS: &str =
    "key varbinary primary, version bigint, value mediumblob, stamp bigint";

/// What is called so in the database: its type, its engine, its columns, and the
/// triggers that may change a row first. No row if there is nothing.
///
/// The schema and the name are constants in each part. Where they are not, the server
/// opens all tables of all databases to find these, which takes long.
pub(super) fn describe(table: &str) -> String {
    format!(
        "SELECT TABLE_TYPE, ENGINE, (SELECT GROUP_CONCAT(CONCAT(COLUMN_NAME, ' ', DATA_TYPE, \
         IF(COLUMN_KEY = 'PRI', IF((SELECT SUM(SUB_PART) FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}' AND INDEX_NAME = 'PRIMARY') \
         IS NULL, ' primary', ' primary by its first bytes'), ''), \
         IF(EXTRA = '', '', CONCAT(' ', EXTRA))) \
         ORDER BY ORDINAL_POSITION SEPARATOR ', ') FROM information_schema.COLUMNS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'), \
         (SELECT GROUP_CONCAT(TRIGGER_NAME) FROM information_schema.TRIGGERS \
         WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = '{table}' \
         AND ACTION_TIMING = 'BEFORE') FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'"
    )
}

/// Makes the floor if there is none. It begins at the time, so that a table that was
/// made anew, or emptied by hand, uses other versions than before.
pub(super) fn make_floor(table: &str) -> String {
    format!(
        "INSERT IGNORE INTO `{table}` (`key`, version, value) \
         SELECT x'', GREATEST({MICROS}, COALESCE(MAX(version), 0)), x'' FROM `{table}`"
    )
}

/// Whether there is a floor.
pub(super) fn find_floor(table: &str) -> String {
    format!("SELECT version FROM `{table}` WHERE `key` = x''")
}

/// What stands first in the answer to each reading: the time, and whether the server
/// has stopped to take writes. One that has may lag behind another.
pub(super) fn state() -> String {
    format!("SELECT {MICROS}, @@global.read_only")
}

pub(super) fn read(table: &str, key: &Key) -> String {
    format!(
        "{}, r.version, r.value, r.stamp \
         FROM (SELECT 1) AS one LEFT JOIN `{table}` AS r ON r.`key` = {}",
        state(),
        bytes(key.as_str().as_bytes())
    )
}

/// Rows whose keys have this prefix and come after `after`, one more than a page has.
pub(super) fn list(table: &str, prefix: &str, after: &[u8]) -> String {
    let mut range = format!(
        "r.`key` > {} AND r.`key` >= {}",
        bytes(after),
        bytes(prefix.as_bytes())
    );
    // No byte of UTF-8 is the highest one.
    if let Some((last, rest)) = prefix.as_bytes().split_last() {
        let above = [rest, &[last.saturating_add(1)]].concat();
        let _ = write!(range, " AND r.`key` < {}", bytes(&above));
    }
    format!(
        "{}, r.version, r.value, r.stamp, r.`key` FROM `{table}` AS r \
         WHERE {range} ORDER BY r.`key` LIMIT {}",
        state(),
        PAGE_MAX + 1
    )
}

/// Makes a row above the floor. The answer's last id is its version. No row is made
/// where there is no floor.
pub(super) fn create(table: &str, write: &Write) -> String {
    let stamp = match write.stamp {
        Stamp::Now => MICROS,
        Stamp::Keep => "NULL",
    };
    format!(
        "INSERT INTO `{table}` (`key`, version, value, stamp) \
         SELECT {}, LAST_INSERT_ID(f.version + 1), {}, {stamp} \
         FROM `{table}` AS f WHERE f.`key` = x'' LOCK IN SHARE MODE",
        bytes(write.key.as_str().as_bytes()),
        bytes(&write.value)
    )
}

/// The stamp that a row was made with.
pub(super) fn created(table: &str, key: &Key, version: u64) -> String {
    format!(
        "SELECT stamp FROM `{table}` WHERE `key` = {} AND version = {version}",
        bytes(key.as_str().as_bytes())
    )
}

/// Writes a row that has this version, and counts it up. The answer's last id is the
/// time, which is the stamp unless that is kept.
pub(super) fn update(table: &str, write: &Write, version: u64) -> String {
    let stamp = match write.stamp {
        Stamp::Now => format!("LAST_INSERT_ID({MICROS})"),
        Stamp::Keep => format!("IF(LAST_INSERT_ID({MICROS}) IS NULL, NULL, stamp)"),
    };
    format!(
        "UPDATE `{table}` SET value = {}, version = version + 1, stamp = {stamp} \
         WHERE `key` = {} AND version = {version}",
        bytes(&write.value),
        bytes(write.key.as_str().as_bytes())
    )
}

/// Raises the floor to the version of a row, if the row has this one.
pub(super) fn raise_floor(table: &str, key: &Key, version: u64) -> String {
    format!(
        "UPDATE `{table}` AS f INNER JOIN `{table}` AS r ON r.`key` = {} \
         AND r.version = {version} SET f.version = r.version \
         WHERE f.`key` = x'' AND f.version < r.version",
        bytes(key.as_str().as_bytes())
    )
}

/// Deletes a row that has this version, if the floor is as high.
pub(super) fn delete(table: &str, key: &Key, version: u64) -> String {
    format!(
        "DELETE r FROM `{table}` AS r INNER JOIN `{table}` AS f ON f.`key` = x'' \
         AND f.version >= r.version WHERE r.`key` = {} AND r.version = {version}",
        bytes(key.as_str().as_bytes())
    )
}

pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut literal = String::with_capacity(bytes.len() * 2 + 3);
    literal.push_str("x'");
    for byte in bytes {
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push('\'');
    literal
}

pub(super) fn store_time(micros: u64) -> StoreTime {
    StoreTime {
        clock: CLOCK,
        nanos: micros.saturating_mul(1_000),
    }
}

/// An answer that is not what was asked for: another reading may bring a sound one.
pub(super) fn unexpected_answer() -> StoreError {
    StoreError::unavailable("expected a row of the table, found something else in the answer")
}

/// A column of a row; `None` if it is NULL.
pub(super) fn column<T: FromValue>(row: &Row, at: usize) -> Result<Option<T>, StoreError> {
    let found = row.get_opt::<Option<T>, _>(at);
    let found = found.ok_or_else(unexpected_answer)?;
    found.map_err(|_| unexpected_answer())
}

/// The server's time in the answer to a reading, and whether it takes writes.
pub(super) fn time(row: &Row) -> Result<(StoreTime, bool), StoreError> {
    let micros = column(row, 0)?.ok_or_else(unexpected_answer)?;
    let read_only: String = column(row, 1)?.unwrap_or_default();
    let takes_writes = ["0", "OFF"].contains(&read_only.as_str());
    Ok((store_time(micros), takes_writes))
}

/// The register in the answer to a reading; `None` if there is none.
pub(super) fn register(row: &Row) -> Result<Option<Register>, StoreError> {
    let Some(version) = column(row, 2)? else {
        return Ok(None);
    };
    let value: Vec<u8> = column(row, 3)?.ok_or_else(unexpected_answer)?;
    Ok(Some(Register {
        value: Bytes::from(value),
        version: Version::from_u64(version),
        stamp: column(row, 4)?.map(store_time),
    }))
}

/// The key in a row of a listing, which may be none of a register if it was written
/// by hand.
pub(super) fn key(row: &Row) -> Result<Vec<u8>, StoreError> {
    column(row, 5)?.ok_or_else(unexpected_answer)
}

pub(super) fn reading(rows: &[Row]) -> Result<Reading, StoreError> {
    let row = rows.first().ok_or_else(unexpected_answer)?;
    Ok(Reading {
        register: register(row)?,
        now: Some(time(row)?.0),
        bound: None,
    })
}
