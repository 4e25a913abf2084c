//! The statements on the two tables of the format `hpc`, and how their answers are
//! read. As in `sql.rs`, all that the server looks up is named with its schema.
//!
//! Each write is one statement, and so one transaction: it locks the note, writes the
//! row if it is the one that the note is on, and writes the note if the row was
//! written. A statement of the other system that writes the row meanwhile waits for
//! it, or is waited for, and either sees what the other has written.

use std::time::Duration;

use tenure_core::ids::{Name, Term};
use tokio_postgres::SimpleQueryRow;

use super::sql::{
    self, Change as Statements, before_writing, bytes, is_key, text, unexpected_answer, unhex,
};
use crate::error::StoreError;
use crate::store::heartbeats::{Beat, Change, NEVER, Note};
use crate::store::{Expect, PAGE_MAX, Version};

/// What the two tables are called, with their schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tables {
    pub(super) beats: String,
    pub(super) notes: String,
}

/// The database's time, in the column of the heartbeats.
const HA_TIME: &str = "pg_catalog.date_trunc('milliseconds', pg_catalog.timezone('UTC', \
     pg_catalog.clock_timestamp()))";

const NOW: &str = "pg_catalog.floor(extract(epoch from pg_catalog.clock_timestamp()) \
     OPERATOR(pg_catalog.*) 1000)::bigint";

/// The milliseconds of a time; of one that has no such number, none.
fn millis(time: &str) -> String {
    format!(
        "CASE WHEN {time} OPERATOR(pg_catalog.>=) '1970-01-01 00:00:00'::timestamp \
         AND {time} OPERATOR(pg_catalog.<) '2500-01-01 00:00:00'::timestamp \
         THEN pg_catalog.floor(extract(epoch from {time}) OPERATOR(pg_catalog.*) 1000)::bigint END"
    )
}

/// Whether two are equal, or both nothing.
fn same(one: &str, other: &str) -> String {
    format!(
        "(({one} OPERATOR(pg_catalog.=) {other}) IS TRUE OR ({one} IS NULL AND {other} IS NULL))"
    )
}

/// Whether the row `h` is the one that `n` is on.
fn noted(h: &str, n: &str) -> String {
    format!(
        "{} AND {}",
        same(
            &format!("{h}.uuid::pg_catalog.text"),
            &format!("{n}.uuid::pg_catalog.text")
        ),
        same(&format!("{h}.timestamp"), &format!("{n}.timestamp"))
    )
}

fn of(alias: &str, utype: &Name) -> String {
    format!(
        "{alias}.utype::pg_catalog.text OPERATOR(pg_catalog.=) {}",
        text(utype.as_str())
    )
}

/// The columns of the heartbeats, for those whose database user may not make them.
pub(super) fn migration(beats: &str, notes: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {beats} (uuid pg_catalog.text, utype pg_catalog.text NOT NULL \
         PRIMARY KEY, uname pg_catalog.text, timestamp timestamp); CREATE TABLE {notes} (version \
         bigint GENERATED ALWAYS AS IDENTITY, utype pg_catalog.text COLLATE pg_catalog.\"C\" NOT \
         NULL PRIMARY KEY, uuid pg_catalog.text, timestamp timestamp, term bigint NOT NULL, origin \
         pg_catalog.text NOT NULL, record pg_catalog.bytea NOT NULL)"
    )
}

/// The columns of the notes, as the server describes them.
pub(super) const NOTES: &str = "version bigint, utype text, uuid text, timestamp timestamp \
     without time zone, term bigint, origin text, record bytea";

/// How many unique indexes `ON CONFLICT (utype)` can use on a table, the name of one for
/// which it is refused although there are others, and all unique indexes in words.
pub(super) fn keys(table: &str) -> String {
    const IS_KEY: &str = is_key!("utype");
    format!(
        "SELECT pg_catalog.count(*) FILTER (WHERE {IS_KEY}) AS keys, \
         pg_catalog.min(pg_catalog.format('%I', x.relname)) FILTER (WHERE {IS_KEY} AND NOT \
         i.indimmediate) AS deferrable, pg_catalog.string_agg(pg_catalog.concat(\
         pg_catalog.pg_get_indexdef(i.indexrelid), CASE WHEN NOT i.indimmediate THEN \
         ' DEFERRABLE' END, CASE WHEN NOT i.indisvalid OR NOT i.indisready THEN ' (not valid)' \
         END), ', ' ORDER BY x.relname) FILTER (WHERE i.indisunique) AS found \
         FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid OPERATOR(pg_catalog.=) \
         i.indexrelid WHERE i.indrelid OPERATOR(pg_catalog.=) \
         pg_catalog.to_regclass({})::pg_catalog.oid",
        text(table)
    )
}

/// What the two tables say of an election.
pub(super) struct Entry {
    pub(super) beat: Option<Beat>,
    pub(super) note: Option<(Version, Note)>,
    /// Whether the note is on the row that is there.
    is_noted: bool,
    pub(super) now: u64,
}

impl Entry {
    /// Whether the note is on the row that is there, or there is neither.
    pub(super) fn is_plain(&self) -> bool {
        match (&self.note, &self.beat) {
            (None, None) => true,
            (Some(_), _) => self.is_noted,
            (None, Some(_)) => false,
        }
    }
}

pub(super) fn read(tables: &Tables, utype: &Name) -> String {
    let hex = |column: &str| {
        format!(
            "pg_catalog.encode(pg_catalog.convert_to({column}::pg_catalog.text, 'UTF8'), 'hex')"
        )
    };
    format!(
        "SELECT {NOW} AS now, n.version, n.term, n.origin, pg_catalog.encode(n.record, 'hex') AS \
         record, h.utype IS NOT NULL AS beats, {} AS uuid, {} AS uname, {} AS millis, {} AS noted \
         FROM (VALUES (1)) one(x) LEFT JOIN {} h ON {} LEFT JOIN {} n ON {}",
        hex("h.uuid"),
        hex("h.uname"),
        millis("h.timestamp"),
        noted("h", "n"),
        tables.beats,
        of("h", utype),
        tables.notes,
        of("n", utype),
    )
}

pub(super) fn entry(rows: &[SimpleQueryRow]) -> Result<Entry, StoreError> {
    let row = rows.first().ok_or_else(unexpected_answer)?;
    let number = |column| sql::number(row, column);
    let words = |column: &str| {
        let found = row.try_get(column).map_err(|_| unexpected_answer())?;
        let bytes = found.map(|hex| unhex(hex).ok_or_else(unexpected_answer));
        let bytes = bytes.transpose()?.unwrap_or_default();
        Ok::<_, StoreError>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let note = match number("version")? {
        None => None,
        Some(version) => {
            let record = row.get("record").and_then(unhex);
            let term = number("term")?.and_then(|it| Term::new(u64::try_from(it).ok()?));
            let note = Note {
                term: term.unwrap_or(Term::ZERO),
                is_foreign: row.get("origin") == Some(FOREIGN),
                record: record.ok_or_else(unexpected_answer)?.into(),
            };
            Some((Version::from_u64(version.cast_unsigned()), note))
        }
    };
    let beat = Beat {
        uuid: words("uuid")?,
        uname: words("uname")?,
        millis: number("millis")?.and_then(|it| u64::try_from(it).ok()),
    };
    Ok(Entry {
        beat: (row.get("beats") == Some("t")).then_some(beat),
        note,
        is_noted: row.get("noted") == Some("t"),
        now: number("now")?
            .and_then(|now| u64::try_from(now).ok())
            .ok_or_else(unexpected_answer)?,
    })
}

/// Who wrote the row that a note is on.
const FOREIGN: &str = "hpc";
const OURS: &str = "tenure";

/// What a note's row gets, but for the row that it is on.
fn fields(note: &Note) -> [String; 3] {
    let origin = if note.is_foreign { FOREIGN } else { OURS };
    [
        format!("'{}'::bigint", note.term.get()),
        format!("'{origin}'"),
        bytes(&note.record),
    ]
}

fn set(note: &Note) -> String {
    let [term, origin, record] = fields(note);
    format!("version = DEFAULT, term = {term}, origin = {origin}, record = {record}")
}

fn number(version: &Version) -> String {
    // No note has a negative version: not ours, so a conflict.
    let version = version.to_u64().map_or(-1, u64::cast_signed);
    format!("'{version}'::bigint")
}

fn statements(change: &str, within: Duration) -> Statements {
    Statements {
        statement: format!("{}{change}", before_writing(within)),
        // Others look.
        notification: String::new(),
    }
}

/// Writes a new note where `seen` was found, if that is there still.
pub(super) fn note(
    tables: &Tables,
    utype: &Name,
    seen: &Entry,
    note: &Note,
    within: Duration,
) -> Statements {
    let Tables { beats, notes } = tables;
    let (of_h, of_n, name) = (of("h", utype), of("n", utype), text(utype.as_str()));
    let is_seen = |beat: &Beat| {
        // A word of the grammar, as `CASE` is.
        let uuid = "coalesce(h.uuid::pg_catalog.text, '')";
        let seen = if beat.uuid.is_empty() {
            "''".to_owned()
        } else {
            text(&beat.uuid)
        };
        format!("{uuid} OPERATOR(pg_catalog.=) {seen}")
    };
    let change = match (&seen.note, &seen.beat) {
        (Some((version, _)), Some(beat)) => format!(
            "UPDATE {notes} AS n SET {}, uuid = h.uuid, timestamp = h.timestamp FROM {beats} h \
             WHERE {of_h} AND {} AND {of_n} AND n.version OPERATOR(pg_catalog.=) {} \
             RETURNING n.version",
            set(note),
            is_seen(beat),
            number(version)
        ),
        (Some((version, _)), None) => format!(
            "UPDATE {notes} AS n SET {}, uuid = NULL, timestamp = NULL WHERE {of_n} \
             AND n.version OPERATOR(pg_catalog.=) {} AND NOT EXISTS (SELECT FROM {beats} h WHERE \
             {of_h}) RETURNING n.version",
            set(note),
            number(version)
        ),
        (None, beat) => {
            let [term, origin, record] = fields(note);
            let is_seen = beat.as_ref().map_or_else(|| "true".to_owned(), is_seen);
            format!(
                "INSERT INTO {notes} AS n (utype, uuid, timestamp, term, origin, record) \
                 SELECT {name}, h.uuid, h.timestamp, {term}, {origin}, {record} FROM {beats} h \
                 WHERE {of_h} AND {is_seen} ON CONFLICT (utype) DO NOTHING RETURNING n.version"
            )
        }
    };
    statements(&change, within)
}

/// A compare-and-swap.
pub(super) fn write(
    tables: &Tables,
    change: &Change,
    expect: &Expect,
    within: Duration,
) -> Statements {
    let Tables { beats, notes } = tables;
    let utype = &change.utype;
    let (of_n, name) = (of("n", utype), text(utype.as_str()));
    let of_e = of("e", utype);
    let row = change.row.as_ref().map(|row| {
        let time = if row.uuid.is_empty() {
            format!("'{NEVER}'::timestamp")
        } else {
            HA_TIME.to_owned()
        };
        let uname = if row.uname.is_empty() {
            "''".to_owned()
        } else {
            text(&row.uname)
        };
        format!("'{}', {name}, {uname}, {time}", row.uuid)
    });
    // Of a row that is written, its own time: one read later may be a
    // millisecond after it. A vacant row has none.
    let now = match &row {
        Some(_) => format!("coalesce({}, {NOW})", millis("r.timestamp")),
        None => NOW.to_owned(),
    };
    let written = format!("SELECT {now} AS now, r.version FROM r");
    let [term, origin, record] = fields(&change.note);
    let change = match (row, expect) {
        (Some(row), Expect::Absent) => format!(
            "WITH h AS (INSERT INTO {beats} AS t (uuid, utype, uname, timestamp) SELECT {row} \
             WHERE NOT EXISTS (SELECT FROM {notes} n WHERE {of_n}) ON CONFLICT (utype) DO NOTHING \
             RETURNING t.uuid, t.timestamp), r AS (INSERT INTO {notes} AS n (utype, uuid, \
             timestamp, term, origin, record) SELECT {name}, h.uuid, h.timestamp, {term}, \
             {origin}, {record} FROM h RETURNING n.version, n.timestamp) {written}"
        ),
        (Some(row), Expect::Version(version)) => {
            let at = format!(
                "{of_n} AND n.version OPERATOR(pg_catalog.=) {}",
                number(version)
            );
            format!(
                "WITH s AS (SELECT n.uuid, n.timestamp FROM {notes} n WHERE {at} FOR UPDATE), \
                 h AS (INSERT INTO {beats} AS t (uuid, utype, uname, timestamp) SELECT {row} \
                 FROM s WHERE (s.uuid IS NULL AND s.timestamp IS NULL) OR EXISTS (SELECT FROM \
                 {beats} e WHERE {of_e}) ON CONFLICT (utype) DO UPDATE SET uuid = EXCLUDED.uuid, \
                 uname = EXCLUDED.uname, timestamp = EXCLUDED.timestamp WHERE EXISTS (SELECT FROM \
                 s WHERE {}) RETURNING t.uuid, t.timestamp), r AS (UPDATE {notes} AS n SET {}, \
                 uuid = h.uuid, timestamp = h.timestamp FROM h WHERE {at} RETURNING n.version, \
                 n.timestamp) {written}",
                noted("t", "s"),
                set(&change.note)
            )
        }
        (None, expect) => {
            let version = match expect {
                Expect::Absent => "'-1'::bigint".to_owned(),
                Expect::Version(version) => number(version),
            };
            format!(
                "WITH r AS (UPDATE {notes} AS n SET {} FROM {beats} e WHERE {of_e} AND {} AND \
                 {of_n} AND n.origin OPERATOR(pg_catalog.=) '{OURS}' AND n.version \
                 OPERATOR(pg_catalog.=) {version} RETURNING n.version, n.timestamp) {written}",
                set(&change.note),
                noted("e", "n")
            )
        }
    };
    statements(&change, within)
}

/// The version of what was written, and when; `None` if it was not.
pub(super) fn written(rows: &[SimpleQueryRow]) -> Result<Option<(Version, u64)>, StoreError> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let version = sql::number(row, "version")?.ok_or_else(unexpected_answer)?;
    let now = sql::number(row, "now")?.and_then(|now| u64::try_from(now).ok());
    Ok(Some((
        Version::from_u64(version.cast_unsigned()),
        now.ok_or_else(unexpected_answer)?,
    )))
}

pub(super) fn delete(
    tables: &Tables,
    utype: &Name,
    expected: &Version,
    within: Duration,
) -> Statements {
    let Tables { beats, notes } = tables;
    let at = format!(
        "{} AND n.version OPERATOR(pg_catalog.=) {}",
        of("n", utype),
        number(expected)
    );
    let change = format!(
        "WITH s AS (SELECT n.uuid, n.timestamp FROM {notes} n WHERE {at} FOR UPDATE), h AS (DELETE \
         FROM {beats} t USING s WHERE {} AND {} RETURNING t.utype) DELETE FROM {notes} n WHERE \
         {at} AND (EXISTS (SELECT FROM h) OR NOT EXISTS (SELECT FROM {beats} e WHERE {})) \
         RETURNING n.version",
        of("t", utype),
        noted("t", "s"),
        of("e", utype)
    );
    statements(&change, within)
}

/// The names of elections in their order, one more than a page has.
pub(super) fn utypes(tables: &Tables, prefix: &str, after: Option<&str>) -> String {
    let begins = if prefix.is_empty() {
        "true".to_owned()
    } else {
        format!("pg_catalog.starts_with(u.name, {})", text(prefix))
    };
    let after = after.filter(|after| !after.is_empty());
    let after = after.map_or_else(String::new, |after| {
        format!("AND u.name OPERATOR(pg_catalog.>) {}", text(after))
    });
    format!(
        "SELECT pg_catalog.encode(pg_catalog.convert_to(u.name, 'UTF8'), 'hex') AS name FROM \
         (SELECT h.utype::pg_catalog.text COLLATE pg_catalog.\"C\" AS name FROM {} h UNION SELECT \
         n.utype::pg_catalog.text COLLATE pg_catalog.\"C\" FROM {} n) u WHERE {begins} {after} \
         ORDER BY u.name LIMIT {}",
        tables.beats,
        tables.notes,
        PAGE_MAX + 1
    )
}

pub(super) fn names(rows: &[SimpleQueryRow]) -> Vec<String> {
    let name = |row: &SimpleQueryRow| String::from_utf8(unhex(row.get("name")?)?).ok();
    rows.iter().filter_map(name).collect()
}
