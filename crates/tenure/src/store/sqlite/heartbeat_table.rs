//! The two tables of the format `hpc` in a SQLite file, and what can be done to them.
//!
//! Times are text in UTC with milliseconds, as `strftime('%Y-%m-%d %H:%M:%f', 'now')`
//! writes it; what SQLite's own functions for dates read otherwise is read as well.
//!
//! A note has the `uuid` and the time of its row as they are stored there, whatever their
//! types. A write of a note deletes its row and inserts it again: `AUTOINCREMENT` promises
//! that no row number is used twice, and the row number is the version.

use std::path::Path;

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use tenure_core::ids::{Name, Term};

use crate::error::StoreError;
use crate::store::heartbeats::{Beat, Change, NEVER, Note, Options};
use crate::store::{PAGE_MAX, Version};

/// The columns of the heartbeat table, sorted.
const HEARTBEATS: [&str; 4] = ["timestamp", "uname", "utype", "uuid"];
const NOTES: [&str; 7] = [
    "origin",
    "record",
    "term",
    "timestamp",
    "utype",
    "uuid",
    "version",
];

/// What the two tables say of an election.
pub(super) struct Entry {
    /// The row of the heartbeat table, if there is one.
    pub(super) beat: Option<Beat>,
    pub(super) note: Option<(Version, Note)>,
    /// Whether the note was written with the row that is there.
    pub(super) is_noted: bool,
}

/// A time of the database, as it is written and as a number.
pub(super) struct HaTime {
    text: String,
    pub(super) millis: u64,
}

/// Finds the tables, or makes them.
pub(super) fn prepare(
    connection: &Connection,
    path: &Path,
    options: &Options,
    make: bool,
) -> Result<(), StoreError> {
    let (beats, notes) = (options.table(), options.notes());
    let broken =
        |error: rusqlite::Error| StoreError::unavailable(format!("{}: {error}", path.display()));
    for (table, expected, schema) in [
        (
            beats,
            &HEARTBEATS[..],
            format!(
                "CREATE TABLE IF NOT EXISTS {beats} (uuid TEXT, utype TEXT NOT NULL PRIMARY KEY, \
                 uname TEXT, timestamp TEXT)"
            ),
        ),
        (
            notes.as_str(),
            &NOTES[..],
            format!(
                "CREATE TABLE IF NOT EXISTS {notes} (version INTEGER PRIMARY KEY AUTOINCREMENT, \
                 utype TEXT NOT NULL UNIQUE, uuid, timestamp, term INTEGER NOT NULL, \
                 origin TEXT NOT NULL, record BLOB NOT NULL)"
            ),
        ),
    ] {
        let found = columns(connection, table).map_err(broken)?;
        if let Some(triggers) = super::table::triggers(connection, table).map_err(broken)? {
            return Err(StoreError::broken(format!(
                "expected table {table} without triggers, found {triggers} in {}: what changes \
                 heartbeats as they are written has several lead; end all candidates and drop them",
                path.display()
            )));
        }
        if found.is_empty() && !make {
            return Err(StoreError::unavailable(crate::store::no_store(format!(
                "{}: no table {table}",
                path.display()
            ))));
        }
        if found.is_empty() {
            connection.execute(&schema, []).map_err(broken)?;
            continue;
        }
        if found != expected {
            return Err(StoreError::broken(format!(
                "expected table {table} with columns {}, found {} in {}; name the table of the \
                 heartbeats with ?table=",
                expected.join(", "),
                found.join(", "),
                path.display()
            )));
        }
        let shape = Shape::of(connection, table).map_err(broken)?;
        shape.refuse_if_unfit(table == notes, table, path)?;
    }
    Ok(())
}

/// What a table is, beside its columns.
struct Shape {
    /// `table`, or `view`, `virtual` and others.
    kind: String,
    /// Whether `utype` alone is unique, in all rows.
    has_key: bool,
    /// Whether no number of a row is used twice.
    numbers_rise: bool,
}

impl Shape {
    fn of(connection: &Connection, table: &str) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare(
            "SELECT (SELECT type FROM pragma_table_list(?1) WHERE schema = 'main'), \
             EXISTS (SELECT 1 FROM pragma_index_list(?1) l WHERE l.\"unique\" AND NOT l.partial \
             AND (SELECT group_concat(lower(coalesce(i.name, '')), ',') FROM \
             pragma_index_info(l.name) i) = 'utype'), \
             EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND lower(name) = \
             lower(?1) AND sql LIKE '%AUTOINCREMENT%')",
        )?;
        statement.query_row([table], |row| {
            Ok(Self {
                kind: row.get::<_, Option<String>>(0)?.unwrap_or_default(),
                has_key: row.get(1)?,
                numbers_rise: row.get(2)?,
            })
        })
    }

    /// Refuses a table whose key `ON CONFLICT (utype)` does not take, for no write would
    /// ever succeed, and notes where a version comes again: two candidates that expect it
    /// would both lead.
    fn refuse_if_unfit(
        &self,
        is_of_notes: bool,
        table: &str,
        path: &Path,
    ) -> Result<(), StoreError> {
        let path = path.display();
        if self.kind != "table" {
            return Err(StoreError::broken(format!(
                "expected {table} to be an ordinary table, found one of the kind {} in {path}; \
                 name the table of the heartbeats with ?table=",
                self.kind
            )));
        }
        if is_of_notes && !self.numbers_rise {
            return Err(StoreError::broken(format!(
                "expected the column version of table {table} to be INTEGER PRIMARY KEY \
                 AUTOINCREMENT, found another in {path}: several candidates would lead in one \
                 term; end all candidates and put a table in its place where it is, with the \
                 same rows"
            )));
        }
        if self.has_key {
            return Ok(());
        }
        Err(StoreError::broken(format!(
            "expected table {table} to have a primary key or a unique index of utype alone, for \
             all rows, found none in {path}; run: CREATE UNIQUE INDEX {table}_utype ON {table} \
             (utype);"
        )))
    }
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare("SELECT lower(name) FROM pragma_table_info(?1) ORDER BY 1")?;
    statement.query_map([table], |row| row.get(0))?.collect()
}

/// The database's time.
pub(super) fn ha_time(connection: &Connection) -> rusqlite::Result<HaTime> {
    let mut statement = connection.prepare_cached(
        "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now'), \
         CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)",
    )?;
    statement.query_row([], |row| {
        Ok(HaTime {
            text: row.get(0)?,
            millis: row.get::<_, i64>(1)?.max(0).cast_unsigned(),
        })
    })
}

/// Both rows of an election. No row can make this fail, whatever was written into it
/// by hand: a column holds values of any type here.
pub(super) fn entry(
    connection: &Connection,
    options: &Options,
    utype: &Name,
) -> rusqlite::Result<Entry> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT n.version, n.term, n.origin, n.record, h.utype IS NOT NULL, h.uuid, h.uname, \
         CAST(round(unixepoch(h.timestamp, 'subsec') * 1000) AS INTEGER), \
         n.uuid IS h.uuid AND n.timestamp IS h.timestamp \
         FROM (SELECT ?1 AS utype) one LEFT JOIN {} h ON h.utype = one.utype \
         LEFT JOIN {} n ON n.utype = one.utype",
        options.table(),
        options.notes()
    ))?;
    statement.query_row([utype.as_str()], |row| {
        let version: Option<i64> = row.get(0)?;
        let note = match version {
            Some(version) => Some((Version::from_u64(version.cast_unsigned()), note(row)?)),
            None => None,
        };
        let is_there: bool = row.get(4)?;
        let beat = Beat {
            uuid: text(row.get_ref(5)?),
            uname: text(row.get_ref(6)?),
            millis: row
                .get::<_, Option<i64>>(7)?
                .and_then(|it| u64::try_from(it).ok()),
        };
        Ok(Entry {
            is_noted: note.is_some() && row.get(8)?,
            beat: is_there.then_some(beat),
            note,
        })
    })
}

fn note(row: &Row<'_>) -> rusqlite::Result<Note> {
    let term = row.get_ref(1)?.as_i64().unwrap_or_default();
    let origin = row.get_ref(2)?.as_str().unwrap_or_default() == FOREIGN;
    Ok(Note {
        term: u64::try_from(term)
            .ok()
            .and_then(Term::new)
            .unwrap_or(Term::ZERO),
        is_foreign: origin,
        record: bytes(row.get_ref(3)?).into(),
    })
}

/// Who wrote the row that a note is on.
const FOREIGN: &str = "hpc";
const OURS: &str = "tenure";

fn origin(note: &Note) -> &'static str {
    if note.is_foreign { FOREIGN } else { OURS }
}

fn bytes(value: ValueRef<'_>) -> Vec<u8> {
    match value {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes.to_vec(),
        ValueRef::Integer(number) => number.to_string().into_bytes(),
        ValueRef::Real(number) => number.to_string().into_bytes(),
        ValueRef::Null => Vec::new(),
    }
}

fn text(value: ValueRef<'_>) -> String {
    String::from_utf8_lossy(&bytes(value)).into_owned()
}

/// Writes a note on the row that is there now; its version.
pub(super) fn put_note(
    connection: &Connection,
    options: &Options,
    utype: &Name,
    note: &Note,
) -> rusqlite::Result<Version> {
    let (beats, notes) = (options.table(), options.notes());
    drop_note(connection, options, utype)?;
    let find = format!("SELECT uuid, timestamp FROM {beats} WHERE utype = ?1");
    let seen = connection
        .prepare_cached(&find)?
        .query_row([utype.as_str()], |row| {
            Ok((row.get::<_, Value>(0)?, row.get::<_, Value>(1)?))
        })
        .optional()?;
    let (uuid, timestamp) = seen.unwrap_or((Value::Null, Value::Null));
    let mut insert = connection.prepare_cached(&format!(
        "INSERT INTO {notes} (utype, uuid, timestamp, term, origin, record) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
    ))?;
    let version = insert.insert(params![
        utype.as_str(),
        uuid,
        timestamp,
        note.term.get().cast_signed(),
        origin(note),
        &*note.record,
    ])?;
    Ok(Version::from_u64(version.cast_unsigned()))
}

/// Writes what a change makes of the row, if it changes it.
pub(super) fn put_row(
    connection: &Connection,
    options: &Options,
    change: &Change,
    now: &HaTime,
) -> rusqlite::Result<()> {
    let Some(row) = &change.row else {
        return Ok(());
    };
    let timestamp = if row.uuid.is_empty() {
        NEVER
    } else {
        &now.text
    };
    let mut statement = connection.prepare_cached(&format!(
        "INSERT INTO {} (uuid, utype, uname, timestamp) VALUES (?1, ?2, ?3, ?4) \
         ON CONFLICT (utype) DO UPDATE SET uuid = ?1, uname = ?3, timestamp = ?4",
        options.table()
    ))?;
    statement
        .execute(params![
            row.uuid,
            change.utype.as_str(),
            row.uname,
            timestamp
        ])
        .map(drop)
}

/// Deletes both rows.
pub(super) fn remove(
    connection: &Connection,
    options: &Options,
    utype: &Name,
) -> rusqlite::Result<()> {
    drop_note(connection, options, utype)?;
    let delete = format!("DELETE FROM {} WHERE utype = ?1", options.table());
    let mut statement = connection.prepare_cached(&delete)?;
    statement.execute([utype.as_str()]).map(drop)
}

fn drop_note(connection: &Connection, options: &Options, utype: &Name) -> rusqlite::Result<()> {
    let delete = format!("DELETE FROM {} WHERE utype = ?1", options.notes());
    let mut statement = connection.prepare_cached(&delete)?;
    statement.execute([utype.as_str()]).map(drop)
}

/// The elections whose names begin so, from the first after `after` on, in the order
/// of their bytes; one more than a page has, if there are more.
pub(super) fn utypes(
    connection: &Connection,
    options: &Options,
    prefix: &str,
    after: Option<&str>,
) -> rusqlite::Result<Vec<Vec<u8>>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT CAST(utype AS BLOB) AS name FROM {} UNION SELECT CAST(utype AS BLOB) FROM {} \
         WHERE true ORDER BY 1",
        options.table(),
        options.notes()
    ))?;
    let rows = statement.query_map([], |row| row.get::<_, Option<Vec<u8>>>(0))?;
    let fits = |name: &Vec<u8>| {
        name.starts_with(prefix.as_bytes())
            && after.is_none_or(|after| name.as_slice() > after.as_bytes())
    };
    let mut names = Vec::new();
    for row in rows {
        if let Some(name) = row?.filter(fits) {
            names.push(name);
        }
        if names.len() > PAGE_MAX {
            break;
        }
    }
    Ok(names)
}
