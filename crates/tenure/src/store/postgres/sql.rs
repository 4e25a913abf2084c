//! The statements, and how their answers are read.
//!
//! Keys and values are written as hexadecimal, which has no character that
//! could end a literal. Times are whole microseconds of the server's
//! `clock_timestamp()`: when the statement ran, not when its transaction
//! began.
//!
//! *Every function, operator and type is named with its schema*, `pg_catalog`.
//! One without is looked for on the search path, and a user who may create
//! something in a schema there could put one beside it that fits better: it
//! would run with all rights of the candidate.
//!
//! A `SET search_path` would not do, for behind a transaction-pooling proxy it
//! holds for no row or for others. So nothing is written that the server looks
//! up by itself, such as `IN`, `BETWEEN` or `IS DISTINCT FROM`. (`extract`,
//! `bigint` and `timestamp with time zone` are words of the grammar, and mean
//! the server's own.)

use std::fmt::Write as _;
use std::time::Duration;

use tenure_core::cas::{Bytes, Expect, Stamp, Write};
use tenure_core::time::{ClockId, StoreTime};
use tokio_postgres::SimpleQueryRow;

use super::resolved_table::Table;
use super::settings::TableName;
use crate::error::StoreError;
use crate::store::hub::Interest;
use crate::store::{Key, PAGE_MAX, Page, Reading, Register, Version};

/// The longest value, in bytes, that is sent a second time, to be compared
/// with the one in the table.
const COMPARED_MAX: usize = 3_000;

/// The name of the database server's clock. It is one clock as far as anybody
/// can tell; that it may step is why it is not trusted by default.
const CLOCK: ClockId = ClockId {
    boot: 0,
    namespace: 0,
};

const MICROS: &str = "(extract(epoch from pg_catalog.clock_timestamp()) \
     OPERATOR(pg_catalog.*) 1000000)::bigint";

/// The microseconds of a stamp. One that was written by hand may be none that
/// has such a number (`infinity`, the year 294276), and one statement reads
/// many rows: such a stamp counts as none, so silence is judged, and the row
/// costs no other row its answer. The next renewal writes another.
macro_rules! stamp {
    () => {
        "CASE WHEN r.stamp OPERATOR(pg_catalog.>=) '1970-01-01 00:00:00+00' \
         AND r.stamp OPERATOR(pg_catalog.<) '2500-01-01 00:00:00+00' \
         THEN (extract(epoch from r.stamp) OPERATOR(pg_catalog.*) 1000000)::bigint END"
    };
}

const FIELDS: &str = concat!(
    "r.version, pg_catalog.encode(r.value, 'hex') AS value, ",
    stamp!(),
    " AS stamp"
);

/// The statement that makes the table, for those whose database user may not.
pub fn migration(table: &str) -> String {
    format!(
        "CREATE TABLE {table} (\n  \
         key pg_catalog.text COLLATE pg_catalog.\"C\" PRIMARY KEY,\n  \
         version bigint GENERATED ALWAYS AS IDENTITY,\n  \
         value pg_catalog.bytea NOT NULL,\n  \
         stamp timestamp with time zone\n)"
    )
}

/// The columns that [`migration`] makes, as the server describes them.
pub(super) const COLUMNS: &str =
    "key text, version bigint, value bytea, stamp timestamp with time zone";

/// The tables of this name on the search path, in its order, or the one in
/// the schema that is named: what each is called, its columns, what it is, and
/// the triggers that it has beside those for which it is refused.
pub(super) fn describe(wanted: &TableName) -> String {
    let (schema, name) = wanted.parts();
    let schemas = schema.map_or_else(
        || "pg_catalog.current_schemas(false)".to_owned(),
        |schema| format!("ARRAY['{schema}']::pg_catalog.name[]"),
    );
    format!(
        "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), \
         (SELECT pg_catalog.string_agg(pg_catalog.concat(a.attname, ' ', \
         pg_catalog.format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid \
         AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped), {TABLE_KIND}, \
         (SELECT pg_catalog.string_agg(g.tgname::pg_catalog.text, ', ' ORDER BY g.tgname) \
         FROM {TRIGGERS}) \
         FROM pg_catalog.unnest({schemas}) WITH ORDINALITY s(name, at) \
         JOIN pg_catalog.pg_namespace n ON n.nspname OPERATOR(pg_catalog.=) s.name \
         JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid \
         AND c.relname OPERATOR(pg_catalog.=) '{name}' \
         AND c.relkind OPERATOR(pg_catalog.=) \
         ANY ('{{r,p,v,m,f}}'::pg_catalog.\"char\"[]) ORDER BY s.at"
    )
}

/// An ordinary table that the server keeps, in the words of [`TABLE_KIND`].
pub(super) const ORDINARY: &str = "an ordinary table";
/// One that the server empties after a crash, or at the end of a session.
pub(super) const UNLOGGED: &str = "one that the server empties";
/// One of which row level security may hide rows from this user.
pub(super) const HIDES_ROWS: &str = "one that hides rows";
/// One whose versions somebody else gives out, or nobody.
pub(super) const NO_IDENTITY: &str = "one without an identity";
/// One whose versions may go back, or come again.
pub(super) const IDENTITY_NOT_RISING: &str = "one with an identity that does not rise";
/// One whose key `ON CONFLICT` does not take, so that no write ever succeeds.
pub(super) const NO_KEY: &str = "one without a key";
/// One whose key takes two names for one, or cannot be looked at by its beginning.
pub(super) const ALIKE_KEYS: &str = "one whose keys are alike";
/// What stands before the name of a trigger that may change rows.
pub(super) const CHANGING_TRIGGER: &str = "trigger ";

/// The triggers that somebody made for a table and that are not disabled.
macro_rules! triggers {
    () => {
        "pg_catalog.pg_trigger g WHERE g.tgrelid OPERATOR(pg_catalog.=) c.oid \
         AND NOT g.tgisinternal AND g.tgenabled OPERATOR(pg_catalog.<>) 'D'"
    };
}
const TRIGGERS: &str = triggers!();

/// The first of those that run before a row is written, or instead of it: bit
/// 1 of `tgtype` is "for each row", 2 "before", 64 "instead of".
macro_rules! changed_by {
    () => {
        concat!(
            "(SELECT pg_catalog.min(g.tgname::pg_catalog.text) FROM ",
            triggers!(),
            " AND (g.tgtype OPERATOR(pg_catalog.&) 1) OPERATOR(pg_catalog.<>) 0 \
             AND (g.tgtype OPERATOR(pg_catalog.&) 66) OPERATOR(pg_catalog.<>) 0)"
        )
    };
}

/// Whether the index `i` is a unique one of this column alone, for all rows.
macro_rules! is_key {
    ($column:literal) => {
        concat!(
            "i.indisunique AND i.indisvalid AND i.indisready AND i.indpred IS NULL \
             AND i.indnkeyatts OPERATOR(pg_catalog.=) 1 AND EXISTS (SELECT FROM \
             pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) i.indrelid AND \
             a.attnum OPERATOR(pg_catalog.=) i.indkey[0] AND a.attname OPERATOR(pg_catalog.=) '",
            $column,
            "')"
        )
    };
}
pub(super) use is_key;

/// What a relation is: one of registers, or of heartbeats, which has no column `key`.
///
/// The versions of its rows must rise with each write, or
/// several candidates would each find the version that they expect: so they
/// come from an identity that rises (whose sequence keeps no numbers for single
/// sessions), and no trigger comes before a row.
///
/// Behind all but an ordinary table another may stand that the server empties,
/// or that is somewhere else. The catalogues that are read are open to every
/// user. (`relhassubclass` and `relhasrules` may be set where there is nothing
/// any more.)
const TABLE_KIND: &str = concat!(
    "CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'v' THEN 'a view' \
     WHEN c.relkind OPERATOR(pg_catalog.=) 'm' THEN 'a materialized view' \
     WHEN c.relkind OPERATOR(pg_catalog.=) 'f' THEN 'a foreign table' \
     WHEN c.relkind OPERATOR(pg_catalog.=) 'p' THEN 'a partitioned table' \
     WHEN c.relkind OPERATOR(pg_catalog.<>) 'r' THEN 'no table' \
     WHEN EXISTS (SELECT FROM pg_catalog.pg_inherits i \
     WHERE i.inhparent OPERATOR(pg_catalog.=) c.oid) \
     THEN 'a table with others that inherit from it' \
     WHEN EXISTS (SELECT FROM pg_catalog.pg_rewrite w \
     WHERE w.ev_class OPERATOR(pg_catalog.=) c.oid) \
     THEN 'a table with rules' \
     WHEN c.relpersistence OPERATOR(pg_catalog.<>) 'p' THEN 'one that the server empties' \
     WHEN pg_catalog.row_security_active(c.oid) THEN 'one that hides rows' \
     WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a \
     WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid \
     AND a.attname OPERATOR(pg_catalog.=) 'version' \
     AND a.attidentity OPERATOR(pg_catalog.<>) '') THEN 'one without an identity' \
     WHEN EXISTS (SELECT FROM pg_catalog.pg_depend d \
     JOIN pg_catalog.pg_sequence q ON q.seqrelid OPERATOR(pg_catalog.=) d.objid \
     WHERE d.classid OPERATOR(pg_catalog.=) c.tableoid \
     AND d.refclassid OPERATOR(pg_catalog.=) c.tableoid \
     AND d.refobjid OPERATOR(pg_catalog.=) c.oid AND d.deptype OPERATOR(pg_catalog.=) 'i' \
     AND (q.seqcycle OR q.seqincrement OPERATOR(pg_catalog.<) 1 \
     OR q.seqcache OPERATOR(pg_catalog.<>) 1 OR EXISTS (SELECT FROM pg_catalog.pg_class s \
     WHERE s.oid OPERATOR(pg_catalog.=) q.seqrelid \
     AND s.relpersistence OPERATOR(pg_catalog.<>) 'p'))) \
     THEN 'one with an identity that does not rise' \
     WHEN EXISTS (SELECT FROM pg_catalog.pg_attribute a \
     WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid \
     AND a.attname OPERATOR(pg_catalog.=) 'key' AND NOT a.attisdropped) \
     AND (NOT EXISTS (SELECT FROM pg_catalog.pg_index i \
     WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indimmediate AND ",
    is_key!("key"),
    ") OR EXISTS (SELECT FROM pg_catalog.pg_index i \
     WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND NOT i.indimmediate AND ",
    is_key!("key"),
    ")) THEN 'one without a key' \
     WHEN EXISTS (SELECT FROM pg_catalog.pg_collation l \
     WHERE (EXISTS (SELECT FROM pg_catalog.pg_attribute a \
     WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid \
     AND a.attname OPERATOR(pg_catalog.=) 'key' \
     AND a.attcollation OPERATOR(pg_catalog.=) l.oid) \
     OR EXISTS (SELECT FROM pg_catalog.pg_index i \
     WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisunique \
     AND i.indcollation[0] OPERATOR(pg_catalog.=) l.oid)) \
     AND (pg_catalog.to_jsonb(l) OPERATOR(pg_catalog.->>) 'collisdeterministic') \
     OPERATOR(pg_catalog.=) 'false') \
     THEN 'one whose keys are alike' WHEN ",
    changed_by!(),
    " IS NOT NULL THEN pg_catalog.concat('trigger ', ",
    changed_by!(),
    ") ELSE 'an ordinary table' END"
);

/// What this relation is now, which is named with its schema.
pub(super) fn table_kind(table: &str) -> String {
    let name = text(table);
    format!(
        "SELECT {TABLE_KIND} FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) \
         pg_catalog.to_regclass({name})::pg_catalog.oid"
    )
}

/// Makes the table, in one transaction that ends with the last statement.
pub(super) fn create(wanted: &TableName, within: Duration) -> String {
    before_writing(within) + &migration(&wanted.name)
}

/// What stands before every read: whether the server takes no writes, which
/// one that may lag behind does not. With `waits_for_standby`, the reading waits as well
/// until all that was committed before it is replicated, as a write would: it
/// writes a message to the log of the database that says nothing.
pub(super) fn before_reading(waits_for_standby: bool) -> String {
    let wait = format!(
        ", {}, pg_catalog.pg_logical_emit_message(true, 'tenure', '')",
        replicated()
    );
    format!(
        "SELECT pg_catalog.current_setting('transaction_read_only') AS read_only{}; ",
        if waits_for_standby { wait.as_str() } else { "" }
    )
}

pub(super) fn read(table: &Table, key: &Key) -> String {
    format!(
        "SELECT {MICROS} AS now, {FIELDS} FROM (VALUES (1)) one(x) \
         LEFT JOIN {} r ON r.key OPERATOR(pg_catalog.=) {}",
        table.name,
        text(key.as_str())
    )
}

/// The safe setting for a commit. A stronger one than `on` is left as it is.
const SAFE: &str = "CASE WHEN pg_catalog.current_setting('synchronous_commit') \
     OPERATOR(pg_catalog.=) ANY ('{on,remote_apply}'::pg_catalog.text[]) \
     THEN pg_catalog.current_setting('synchronous_commit') ELSE 'on' END";

/// A commit waits for the standbys, and a warning tells if that wait was
/// cancelled. Both are set for the one transaction, by its first statement: a
/// setting of the user, the database, the URL or a proxy counts only between
/// transactions. Both hold until the commit is over, the wait included.
fn replicated() -> String {
    format!(
        "pg_catalog.set_config('synchronous_commit', {SAFE}, true), \
         pg_catalog.set_config('client_min_messages', 'warning', true)"
    )
}

/// What stands before every write: bounds on its time, and the safe settings.
pub(super) fn before_writing(within: Duration) -> String {
    format!("{}, {}; ", bounds(within), replicated())
}

/// How long a notification may wait for the lock under which a server takes
/// them. It is one for all its databases: a user who may connect to any of them
/// can hold it for seconds, and calls wait behind the notification.
const NOTIFY_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// What stands before a notification, which is a hint that may be lost.
fn before_notification(within: Duration) -> String {
    bounds_with(within, (within / 4).min(NOTIFY_LOCK_TIMEOUT))
}

/// A notification on a channel of our own, which probes a listener.
pub(super) fn probe(channel: &str, payload: &str) -> String {
    let millis = NOTIFY_LOCK_TIMEOUT.as_millis();
    format!(
        "SELECT pg_catalog.set_config('lock_timeout', '{millis}', true); \
         NOTIFY {channel}, '{payload}'"
    )
}

/// Bounds on the time of a transaction.
fn bounds(within: Duration) -> String {
    // A transaction that holds the row holds it for one commit; if it is
    // longer, let those who wait behind us in the pipeline go on.
    bounds_with(within, within / 4)
}

fn bounds_with(within: Duration, lock: Duration) -> String {
    let millis = within.as_millis().max(1);
    let lock = lock.as_millis().max(1);
    format!(
        "SELECT pg_catalog.set_config('statement_timeout', '{millis}', true), \
         pg_catalog.set_config('lock_timeout', '{lock}', true)"
    )
}

/// A write, and the notification that goes out right behind it: the key and
/// the version, never the value, since anybody may listen (`hints.rs`).
#[derive(Debug)]
pub(super) struct Change {
    pub(super) statement: String,
    pub(super) notification: String,
}

/// What stands in an error of the server for a version that did not rise.
pub(super) const NOT_ABOVE: &str = "tenure: version ";

/// The version of the row that was written. If it is not above the one before,
/// the statement fails and its transaction is rolled back: the next candidate
/// would find the version that it expects, and lead beside this one. The
/// server has no plain way to fail within an expression but a cast.
fn above(version: i64) -> String {
    format!(
        "CASE WHEN r.version OPERATOR(pg_catalog.>) '{version}'::bigint THEN r.version \
         ELSE pg_catalog.concat('{NOT_ABOVE}', r.version, ' after {version}')::bigint END"
    )
}

/// How many results [`write`]'s statements have: those of what stands before it, and its
/// own.
pub(super) const RESULTS_OF_WRITE: usize = 2;

pub(super) fn write(table: &Table, write: &Write, within: Duration) -> Change {
    let key = text(write.key.as_str());
    let value = bytes(&write.value);
    let stamp = match (write.stamp, &write.expect) {
        (Stamp::Now, _) => "pg_catalog.clock_timestamp()",
        (Stamp::Keep, Expect::Absent) => "NULL",
        (Stamp::Keep, Expect::Version(_)) => "t.stamp",
    };
    let (change, version) = match &write.expect {
        Expect::Absent => (
            format!(
                "INSERT INTO {} AS t (key, value, stamp) VALUES ({key}, {value}, {stamp}) \
             ON CONFLICT (key) DO NOTHING",
                table.name
            ),
            "r.version".to_owned(),
        ),
        Expect::Version(version) => {
            // No row has a negative version: not ours, so a conflict.
            let version = version.to_u64().map_or(-1, u64::cast_signed);
            let update = format!(
                "UPDATE {} AS t SET value = {value}, version = DEFAULT, stamp = {stamp} \
                 WHERE t.key OPERATOR(pg_catalog.=) {key} \
                 AND t.version OPERATOR(pg_catalog.=) '{version}'::bigint",
                table.name
            );
            (update, above(version))
        }
    };
    let statement = format!(
        "{}WITH r AS ({change} RETURNING t.version, t.stamp) \
         SELECT {MICROS} AS now, {version} AS version, {} AS stamp FROM r",
        before_writing(within),
        stamp!()
    );
    // Only if it was written: nobody has to read for a write that was refused.
    // Of a long value any will do.
    let written = if write.value.len() <= COMPARED_MAX {
        format!(" AND r.value OPERATOR(pg_catalog.=) {value}")
    } else {
        String::new()
    };
    let told = format!(
        "pg_catalog.concat({}, ' ', r.version)",
        hexadecimal(&write.key)
    );
    let notification = format!(
        "{}; SELECT pg_catalog.pg_notify('{}', {told}), pg_catalog.pg_notify('{}', {told}) FROM {} r \
         WHERE r.key OPERATOR(pg_catalog.=) {key}{written}",
        before_notification(within),
        table.channel_of(&write.key),
        table.channel,
        table.name
    );
    Change {
        statement,
        notification,
    }
}

/// `None` if the version is none of this store's.
pub(super) fn delete(
    table: &Table,
    key: &Key,
    expected: &Version,
    within: Duration,
) -> Option<Change> {
    let version = expected.to_u64()?.cast_signed();
    let name = &table.name;
    let statement = format!(
        "{}DELETE FROM {name} t WHERE t.key OPERATOR(pg_catalog.=) {} \
         AND t.version OPERATOR(pg_catalog.=) '{version}'::bigint RETURNING t.version",
        before_writing(within),
        text(key.as_str()),
    );
    // A version that no register has, and so nobody knows.
    let told = format!("pg_catalog.concat({}, ' 0')", hexadecimal(key));
    let notification = format!(
        "{}; SELECT pg_catalog.pg_notify('{}', {told}), pg_catalog.pg_notify('{}', {told}) \
         WHERE NOT EXISTS (SELECT FROM {name} r WHERE r.key OPERATOR(pg_catalog.=) {})",
        before_notification(within),
        table.channel_of(key),
        table.channel,
        text(key.as_str()),
    );
    Some(Change {
        statement,
        notification,
    })
}

/// A key as it stands in notifications.
fn hexadecimal(key: &Key) -> String {
    format!(
        "pg_catalog.encode({}, 'hex')",
        bytes(key.as_str().as_bytes())
    )
}

pub(super) fn list(table: &Table, prefix: &str, after: Option<&Key>) -> String {
    let prefix = if prefix.is_empty() {
        "''".to_owned()
    } else {
        text(prefix)
    };
    let after = after.map_or(String::new(), |after| {
        format!("AND r.key OPERATOR(pg_catalog.>) {}", text(after.as_str()))
    });
    format!(
        "SELECT {MICROS} AS now, r.key, {FIELDS} FROM {} r \
         WHERE r.key OPERATOR(pg_catalog.>=) {prefix} \
         AND pg_catalog.starts_with(r.key, {prefix}) {after} \
         ORDER BY r.key LIMIT {}",
        table.name,
        PAGE_MAX + 1
    )
}

/// What has changed among these keys, of which there is one at least.
/// By key and version: the order of versions is not the order of commits, so
/// "everything above the last one" would miss some.
pub(super) fn changed(table: &Table, interest: &Interest) -> String {
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
    format!(
        "SELECT w.key, {FIELDS} FROM (VALUES {known}) w(key, seen) \
         LEFT JOIN {} r ON r.key OPERATOR(pg_catalog.=) w.key \
         WHERE (r.version OPERATOR(pg_catalog.=) w.seen) IS NOT TRUE \
         AND (r.version IS NOT NULL OR w.seen IS NOT NULL)",
        table.name
    )
}

pub(super) fn text(text: &str) -> String {
    format!(
        "pg_catalog.convert_from({}, 'UTF8')",
        bytes(text.as_bytes())
    )
}

/// A literal that means the same whatever `standard_conforming_strings` says
/// on this connection: without the `E` a user or a database for which it is
/// off would have other keys than the rest.
pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut literal = String::with_capacity(bytes.len() * 2 + 16);
    literal.push_str("E'\\\\x");
    for byte in bytes {
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push_str("'::pg_catalog.bytea");
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
pub(super) fn unexpected_answer() -> StoreError {
    StoreError::unknown("expected a row of the table, found something else in the answer")
}

pub(super) fn number(row: &SimpleQueryRow, column: &str) -> Result<Option<i64>, StoreError> {
    let text = row.try_get(column).map_err(|_| unexpected_answer())?;
    text.map(|text| text.parse().map_err(|_| unexpected_answer()))
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
    let value = row
        .try_get("value")
        .map_err(|_| unexpected_answer())?
        .and_then(unhex);
    let value = Bytes::from(value.ok_or_else(unexpected_answer)?);
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
        .map_err(|_| unexpected_answer())?
        .ok_or_else(unexpected_answer)?;
    Key::new(text).map_err(|_| unexpected_answer())
}

pub(super) fn reading(rows: &[SimpleQueryRow]) -> Result<Reading, StoreError> {
    let row = rows.first().ok_or_else(unexpected_answer)?;
    Ok(Reading {
        register: register(row)?,
        now: now(row)?,
        bound: None,
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
    let version = number(row, "version")?.ok_or_else(unexpected_answer)?;
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
        // A key that is not one was written by hand; it is no register.
        if let (Ok(key), Some(register)) = (key(row), register(row)?) {
            page.registers.push((key, register));
        }
    }
    if rows.len() > PAGE_MAX {
        page.more_after = page.registers.last().map(|(key, _)| key.clone());
    }
    Ok(page)
}
