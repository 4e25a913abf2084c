//! Which tables are those of the format `hpc`: found as that of the registers is
//! (`table.rs`), and made where they are missing.

use std::sync::OnceLock;
use std::time::Duration;

use super::connect::PgConnection;
use super::heartbeat_sql::{self, Tables};
use super::settings::{Settings, TableName};
use super::{classify, sql};
use crate::error::StoreError;
use crate::store::no_store;

const MAKE_WITHIN: Duration = Duration::from_secs(8);

/// The tables that were found first, for as long as the process lives.
pub(super) type ResolvedTables = OnceLock<Tables>;

/// Finds the tables, or makes them; once.
pub(super) async fn find(
    found: &ResolvedTables,
    settings: &Settings,
    connected: &PgConnection,
) -> Result<(), StoreError> {
    if found.get().is_some() {
        // They may have been made others meanwhile.
        return existing(settings, connected).await.map(drop);
    }
    let mut tables = existing(settings, connected).await?;
    if tables.is_none() && settings.may_create {
        let made = make(settings, connected).await?;
        tables = existing(settings, connected).await?;
        if let (None, Err(error)) = (&tables, made) {
            return Err(error);
        }
    }
    let tables = tables.ok_or_else(|| {
        let why = format!("{settings}: no table {} with notes", settings.table.name);
        StoreError::unavailable(no_store(why))
    })?;
    tracing::info!("{settings}: heartbeats are in the table {}", tables.beats);
    let _ = found.set(tables);
    Ok(())
}

/// Makes what is missing: the notes beside the heartbeats, where these are there. Of
/// processes that make them at once all but one fail, and find them.
async fn make(
    settings: &Settings,
    connected: &PgConnection,
) -> Result<Result<(), StoreError>, StoreError> {
    let found = described(settings, connected, &settings.table).await?;
    let beats = match found {
        // Before anything is made beside a table that cannot be used.
        Some((beats, ..)) => {
            expect_keys(settings, connected, &[&beats]).await?;
            beats
        }
        None => settings.table.name.clone(),
    };
    let notes = notes(&beats, &settings.table);
    let make = heartbeat_sql::migration(&beats, &notes);
    let statements = sql::before_writing(MAKE_WITHIN) + &make;
    let Err(error) = connected.query(&statements).await else {
        return Ok(Ok(()));
    };
    let server = format!("{settings}: making {beats} and {notes}");
    Ok(Err(match classify::writing(&server, &error) {
        StoreError::Broken(why) => StoreError::broken(format!(
            "expected tables {beats} and {notes}, could not make them: {why}; have a user who may \
             run: {make};"
        )),
        other => other,
    }))
}

/// The table of notes of the heartbeats that were found under this name.
fn notes(beats: &str, wanted: &TableName) -> String {
    let (_, name) = wanted.parts();
    match beats.rsplit_once('.') {
        Some((schema, _)) => format!("{schema}.{name}_tenure"),
        None => format!("{name}_tenure"),
    }
}

/// Both tables, if both are there.
async fn existing(
    settings: &Settings,
    connected: &PgConnection,
) -> Result<Option<Tables>, StoreError> {
    let Some((beats, columns, kind)) = described(settings, connected, &settings.table).await?
    else {
        return Ok(None);
    };
    // It has no column `version`, which is told of an ordinary one without children.
    if kind != sql::NO_IDENTITY || !are_heartbeats(&columns) {
        return Err(StoreError::broken(format!(
            "expected {beats} to be an ordinary table with columns uuid, utype and uname (text or \
             varchar) and timestamp (timestamp without time zone), found {kind} with {columns}; \
             name that of the heartbeats with ?table="
        )));
    }
    expect_milliseconds(&beats, &columns)?;
    let wanted = TableName {
        name: notes(&beats, &settings.table),
    };
    if wanted.name.contains(['"', '\'']) {
        return Err(StoreError::broken(format!(
            "expected {beats} in a schema whose name needs no quotes; move it"
        )));
    }
    let Some((notes, columns, kind)) = described(settings, connected, &wanted).await? else {
        return Ok(None);
    };
    if kind != sql::ORDINARY || columns != heartbeat_sql::NOTES {
        return Err(StoreError::broken(format!(
            "expected {notes} to be an ordinary table with columns {}, found {kind} with {columns}; \
             it belongs to another version of tenure, or was changed: end all candidates and see to \
             it",
            heartbeat_sql::NOTES
        )));
    }
    expect_keys(settings, connected, &[&beats, &notes]).await?;
    Ok(Some(Tables { beats, notes }))
}

/// Refuses times with less than milliseconds. The server rounds them: a heartbeat would
/// be written with a time up to half a second before it was sent, and another candidate
/// lead while its leader does.
fn expect_milliseconds(beats: &str, columns: &str) -> Result<(), StoreError> {
    let mut columns = columns.split(", ");
    let time = columns.find_map(|column| column.strip_prefix("timestamp timestamp("));
    // Without a number it has microseconds.
    let digits = time.and_then(|rest| rest.split_once(')')?.0.parse::<u8>().ok());
    match digits {
        Some(digits @ 0..3) => Err(StoreError::broken(format!(
            "expected the column timestamp of {beats} to have 3 digits of a second or more, found \
             {digits}: the server rounds heartbeats, some to before they were sent, and several \
             would lead; end all that use the table and run: ALTER TABLE {beats} ALTER COLUMN \
             timestamp TYPE timestamp;"
        ))),
        _ => Ok(()),
    }
}

/// Refuses tables where an election can have two rows, and those whose key `ON CONFLICT`
/// does not take, so that no write ever succeeds.
async fn expect_keys(
    settings: &Settings,
    connected: &PgConnection,
    tables: &[&str],
) -> Result<(), StoreError> {
    let statements: Vec<_> = tables.iter().map(|it| heartbeat_sql::keys(it)).collect();
    let answers = connected.query(&statements.join("; ")).await;
    let answers = answers.map_err(|error| classify::reading(&settings.to_string(), &error))?;
    for (at, table) in tables.iter().enumerate() {
        let row = answers.get(at).and_then(|rows| rows.first());
        let row = row.ok_or_else(sql::unexpected_answer)?;
        let deferrable = row.get("deferrable");
        if deferrable.is_none() && sql::number(row, "keys")?.unwrap_or(0) > 0 {
            continue;
        }
        let drop = deferrable.map_or_else(String::new, |name| format!("DROP CONSTRAINT {name}, "));
        return Err(StoreError::broken(format!(
            "expected {table} to have a primary key or a unique index of utype alone, for all rows \
             and not deferrable, found {}; run: ALTER TABLE {table} {drop}ADD UNIQUE (utype);",
            row.get("found").unwrap_or("no unique index")
        )));
    }
    Ok(())
}

/// Whether these are the columns of heartbeats, in any order.
fn are_heartbeats(columns: &str) -> bool {
    let mut found: Vec<_> = columns
        .split(", ")
        .filter_map(|column| column.split_once(' '))
        .collect();
    found.sort_unstable();
    let is_text = |it: &str| it == "text" || it.starts_with("character varying");
    let is_time = |it: &str| it.starts_with("timestamp") && it.ends_with("without time zone");
    matches!(found.as_slice(),
        [("timestamp", time), ("uname", uname), ("utype", utype), ("uuid", uuid)]
            if is_time(time) && is_text(uname) && is_text(utype) && is_text(uuid))
}

/// The only table of this name that can be reached: what it is called, its columns,
/// what it is. None has triggers: one that changes the time of a heartbeat, or the row
/// after it was written, has a living leader look dead.
async fn described(
    settings: &Settings,
    connected: &PgConnection,
    wanted: &TableName,
) -> Result<Option<(String, String, String)>, StoreError> {
    let answer = connected.query(&sql::describe(wanted)).await;
    let answer = answer.map_err(|error| classify::reading(&settings.to_string(), &error))?;
    let rows = answer.last().map_or(&[][..], Vec::as_slice);
    let text = |row: usize, column| {
        let found = rows.get(row).and_then(|row| row.get(column));
        found.unwrap_or("none").to_owned()
    };
    match rows.len() {
        0 => Ok(None),
        1 => match rows.first().and_then(|row| row.get(3)) {
            None => Ok(Some((text(0, 0), text(0, 1), text(0, 2)))),
            Some(triggers) => Err(StoreError::broken(format!(
                "expected table {} without triggers, found {triggers}: what changes heartbeats as \
                 they are written has several lead; end all candidates and drop them",
                text(0, 0)
            ))),
        },
        _ => Err(StoreError::broken(format!(
            "expected one table {} on the search path, found {} and {}: name the one that is meant \
             with its schema, by ?table=",
            wanted.name,
            text(0, 0),
            text(1, 0)
        ))),
    }
}
