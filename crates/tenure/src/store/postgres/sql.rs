//! The statements, and how their answers are read.
//!
//! Keys and values are written as hexadecimal, which has no character that
//! could end a literal. Times are whole microseconds of the server's
//! `clock_timestamp()`: when the statement ran, not when its transaction
//! began.

use std::fmt::Write as _;
use std::time::Duration;

use tenure_core::cas::{Bytes, Expect, Stamp, Write};
use tenure_core::time::{ClockId, StoreTime};
use tokio_postgres::SimpleQueryRow;

use super::settings::{Settings, Table};
use crate::error::StoreError;
use crate::store::hub::Interest;
use crate::store::{Key, PAGE_MAX, Page, Reading, Register, Version};

/// The longest value that travels in a notification, in bytes: as
/// hexadecimal, with key and version, it must stay below PostgreSQL's 8,000.
const NOTIFY_MAX: usize = 3_000;

/// The name of the database server's clock. It is one clock as far as anybody
/// can tell; that it may step is why it is not trusted by default.
const CLOCK: ClockId = ClockId {
    boot: 0,
    namespace: 0,
};

const MICROS: &str = "(extract(epoch from clock_timestamp()) * 1000000)::bigint";
const FIELDS: &str = "r.version, encode(r.value, 'hex') AS value, \
     (extract(epoch from r.stamp) * 1000000)::bigint AS stamp";

/// The statement that makes the table, for those whose database user may not.
pub fn migration(table: &str) -> String {
    format!(
        "CREATE TABLE {table} (\n  key text COLLATE \"C\" PRIMARY KEY,\n  \
         version bigint GENERATED ALWAYS AS IDENTITY,\n  value bytea NOT NULL,\n  \
         stamp timestamptz\n)"
    )
}

/// The columns that [`migration`] makes, as the server describes them.
pub(super) const COLUMNS: &str =
    "key text, version bigint, value bytea, stamp timestamp with time zone";

/// Describes the table's columns; one row, null if there is no such table.
pub(super) fn describe(table: &Table) -> String {
    format!(
        "SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' \
         ORDER BY attnum) FROM pg_attribute \
         WHERE attrelid = to_regclass('{}') AND attnum > 0 AND NOT attisdropped",
        table.name
    )
}

/// Makes the table if nobody else has meanwhile. Two processes that create at
/// once would otherwise fail on the catalogue.
pub(super) fn create(table: &Table) -> String {
    let create = migration(&table.name).replacen("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1);
    format!(
        "SELECT pg_advisory_xact_lock(hashtext('{}')); {create}",
        table.name
    )
}

pub(super) fn read(table: &Table, key: &Key) -> String {
    format!(
        "SELECT {MICROS} AS now, {FIELDS} FROM (VALUES (1)) one(x) \
         LEFT JOIN {} r ON r.key = {}",
        table.name,
        text(key.as_str())
    )
}

/// What stands before every write: bounds on its time, and the safe setting.
/// A stronger one than `on` is left as it is.
fn prelude(within: Duration) -> String {
    let millis = within.as_millis().max(1);
    // Whoever holds the row holds it for one commit; if it is longer, let
    // those who wait behind us in the pipeline go on.
    let lock = (millis / 4).max(1);
    format!(
        "SELECT set_config('statement_timeout', '{millis}', true), \
         set_config('lock_timeout', '{lock}', true), \
         set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') \
         IN ('on', 'remote_apply') THEN current_setting('synchronous_commit') \
         ELSE 'on' END, true); "
    )
}

/// The notification of a change, as an expression over the row `r`.
fn notification(table: &Table, state: &str) -> String {
    format!(
        "pg_notify('{}', encode(convert_to(r.key, 'UTF8'), 'hex') || {state})",
        table.channel()
    )
}

pub(super) fn write(settings: &Settings, write: &Write, within: Duration) -> String {
    let table = &settings.table;
    let key = text(write.key.as_str());
    let value = bytes(&write.value);
    let stamp = match (write.stamp, &write.expect) {
        (Stamp::Now, _) => "clock_timestamp()",
        (Stamp::Keep, Expect::Absent) => "NULL",
        (Stamp::Keep, Expect::Version(_)) => "t.stamp",
    };
    let change = match &write.expect {
        Expect::Absent => format!(
            "INSERT INTO {} AS t (key, value, stamp) VALUES ({key}, {value}, {stamp}) \
             ON CONFLICT (key) DO NOTHING",
            table.name
        ),
        Expect::Version(version) => format!(
            "UPDATE {} AS t SET value = {value}, version = DEFAULT, stamp = {stamp} \
             WHERE t.key = {key} AND t.version = {}",
            table.name,
            // No row has a negative version: not ours, so a conflict.
            version.to_u64().map_or(-1, u64::cast_signed)
        ),
    };
    let mut state = "' ' || r.version".to_owned();
    if write.value.len() <= NOTIFY_MAX {
        state.push_str(
            " || ' ' || coalesce((extract(epoch from r.stamp) * 1000000)::bigint::text, '-') \
             || ' ' || encode(r.value, 'hex')",
        );
    }
    format!(
        "{}WITH r AS ({change} RETURNING t.key, t.version, t.value, t.stamp) \
         SELECT {MICROS} AS now, r.version, \
         (extract(epoch from r.stamp) * 1000000)::bigint AS stamp, {} FROM r",
        prelude(within),
        notification(table, &state)
    )
}

/// `None` if the version is none of this store's.
pub(super) fn delete(
    settings: &Settings,
    key: &Key,
    expected: &Version,
    within: Duration,
) -> Option<String> {
    let table = &settings.table;
    Some(format!(
        "{}WITH r AS (DELETE FROM {} t WHERE t.key = {} AND t.version = {} RETURNING t.key, t.version) \
         SELECT {} FROM r",
        prelude(within),
        table.name,
        text(key.as_str()),
        expected.to_u64()?.cast_signed(),
        notification(table, "' gone ' || r.version")
    ))
}

pub(super) fn list(table: &Table, prefix: &str, after: Option<&Key>) -> String {
    let prefix = if prefix.is_empty() {
        "''".to_owned()
    } else {
        text(prefix)
    };
    let after = after.map_or(String::new(), |after| {
        format!("AND r.key > {}", text(after.as_str()))
    });
    format!(
        "SELECT {MICROS} AS now, r.key, {FIELDS} FROM {} r \
         WHERE r.key >= {prefix} AND starts_with(r.key, {prefix}) {after} \
         ORDER BY r.key LIMIT {}",
        table.name,
        PAGE_MAX + 1
    )
}

/// What has changed among the followed keys; `None` if none is followed. By
/// key and version: the order of versions is not the order of commits, so
/// "everything above the last one" would miss some.
pub(super) fn changed(table: &Table, interest: &Interest) -> Option<String> {
    let mut known = String::new();
    for followed in &interest.keys {
        let version = followed.version.as_ref().and_then(Version::to_u64);
        let version = version.map_or_else(|| "NULL".to_owned(), |version| version.to_string());
        let comma = if known.is_empty() { "" } else { ", " };
        let _ = write!(
            known,
            "{comma}({}, {version}::bigint)",
            text(followed.key.as_str())
        );
    }
    (!known.is_empty()).then(|| {
        format!(
            "SELECT w.key, {FIELDS} FROM (VALUES {known}) w(key, seen) \
             LEFT JOIN {} r ON r.key = w.key WHERE r.version IS DISTINCT FROM w.seen",
            table.name
        )
    })
}

fn text(text: &str) -> String {
    format!("convert_from({}, 'UTF8')", bytes(text.as_bytes()))
}

fn bytes(bytes: &[u8]) -> String {
    let mut literal = String::with_capacity(bytes.len() * 2 + 16);
    literal.push_str("'\\x");
    for byte in bytes {
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push_str("'::bytea");
    literal
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let whole = text.len().is_multiple_of(2);
    whole
        .then(|| text.as_bytes().chunks_exact(2).map(pair).collect())
        .flatten()
}

pub(super) fn store_time(micros: i64) -> StoreTime {
    StoreTime {
        clock: CLOCK,
        nanos: micros.max(0).cast_unsigned().saturating_mul(1_000),
    }
}

/// An answer that is not what was asked for: a retry may bring a sound one.
fn garbled() -> StoreError {
    StoreError::unknown("expected a row of the table, found something else in the answer")
}

fn number(row: &SimpleQueryRow, column: &str) -> Result<Option<i64>, StoreError> {
    let text = row.try_get(column).map_err(|_| garbled())?;
    text.map(|text| text.parse().map_err(|_| garbled()))
        .transpose()
}

fn now(row: &SimpleQueryRow) -> Result<Option<StoreTime>, StoreError> {
    Ok(number(row, "now")?.map(store_time))
}

/// The register in a row; `None` if the row has none.
pub(super) fn register(row: &SimpleQueryRow) -> Result<Option<Register>, StoreError> {
    let Some(version) = number(row, "version")? else {
        return Ok(None);
    };
    let value = row.try_get("value").map_err(|_| garbled())?.and_then(unhex);
    let value = Bytes::from(value.ok_or_else(garbled)?);
    let version = Version::from_u64(version.cast_unsigned());
    Ok(Some(Register {
        value,
        version,
        stamp: number(row, "stamp")?.map(store_time),
    }))
}

pub(super) fn key(row: &SimpleQueryRow) -> Result<Key, StoreError> {
    let text = row
        .try_get("key")
        .map_err(|_| garbled())?
        .ok_or_else(garbled)?;
    Key::new(text).map_err(|_| garbled())
}

pub(super) fn reading(rows: &[SimpleQueryRow]) -> Result<Reading, StoreError> {
    let row = rows.first().ok_or_else(garbled)?;
    Ok(Reading {
        register: register(row)?,
        now: now(row)?,
        bound: false,
    })
}

/// What a write made of the register; `None` if it did not happen.
pub(super) fn written(
    rows: &[SimpleQueryRow],
    value: &Bytes,
) -> Result<Option<(Register, Option<StoreTime>)>, StoreError> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let version = number(row, "version")?.ok_or_else(garbled)?;
    let version = Version::from_u64(version.cast_unsigned());
    let stamp = number(row, "stamp")?.map(store_time);
    Ok(Some((
        Register {
            value: value.clone(),
            version,
            stamp,
        },
        now(row)?,
    )))
}

pub(super) fn page(rows: &[SimpleQueryRow]) -> Result<Page, StoreError> {
    let mut page = Page::default();
    for row in rows.iter().take(PAGE_MAX) {
        page.now = now(row)?;
        // A key that is not one was written by hand; it is nobody's register.
        if let (Ok(key), Some(register)) = (key(row), register(row)?) {
            page.registers.push((key, register));
        }
    }
    if rows.len() > PAGE_MAX {
        page.more_after = page.registers.last().map(|(key, _)| key.clone());
    }
    Ok(page)
}
