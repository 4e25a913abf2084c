//! The tables of the format `hpc`: what is taken for them, and how they are made where
//! they are missing.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Row};

use super::heartbeat_sql::{self, NOTES};
use super::settings::Settings;
use super::{classify, sql, table};
use crate::error::StoreError;
use crate::store::no_store;

/// Finds the tables, or makes them. Those that this process has found once are not made
/// again: it does not know which terms other processes have used.
pub(super) async fn find(
    settings: &Settings,
    found: &table::FoundTable,
    connection: &mut Conn,
) -> Result<(), StoreError> {
    let (table, notes) = (&settings.table, settings.notes());
    let are_there = async |connection: &mut Conn| {
        let beats = are_heartbeats(settings, connection).await?;
        Ok::<_, StoreError>(beats && are_notes(settings, &notes, connection).await?)
    };
    if !are_there(connection).await? && found.get().is_none() {
        if !settings.may_create {
            let why = format!("{settings}: no table {table} with notes");
            return Err(StoreError::unavailable(no_store(why)));
        }
        for statement in heartbeat_sql::migration(settings.tables(&notes)) {
            table::make(settings, &statement, connection).await?;
        }
        // What was there before may be no table of heartbeats.
        are_there(connection).await?;
    }
    if found.set(()).is_ok() {
        tracing::info!("{settings}: heartbeats are in the table {table}");
    }
    Ok(())
}

async fn row(
    settings: &Settings,
    statement: String,
    connection: &mut Conn,
) -> Result<Option<Row>, StoreError> {
    let row = connection.query_first(statement).await;
    row.map_err(|error| classify::reading(&settings.to_string(), &error))
}

/// Whether there is a table of heartbeats; an error if it is another.
async fn are_heartbeats(settings: &Settings, connection: &mut Conn) -> Result<bool, StoreError> {
    let table = &settings.table;
    let Some(described) = table::describe(settings, table, connection).await? else {
        return Ok(false);
    };
    described.refuse(table)?;
    let columns = row(settings, heartbeat_sql::describe_beats(table), connection).await?;
    let columns = columns.ok_or_else(sql::unexpected_answer)?;
    let shape: String = sql::column(&columns, 0)?.unwrap_or_default();
    let precision: u64 = sql::column(&columns, 1)?.unwrap_or(0);
    let keys: u64 = sql::column(&columns, 2)?.unwrap_or(0);
    if is_shape(&shape) && precision >= 3 && keys > 0 {
        return Ok(true);
    }
    Err(StoreError::broken(format!(
        "expected {table} to have the columns uuid, utype and uname (char, varchar or text), and \
         timestamp (datetime of 3 digits or more), and utype to be its key or unique by itself, \
         found {shape} (times of {precision} digits, {keys} such keys); name the table of the \
         heartbeats with ?table="
    )))
}

/// Whether these are the columns of heartbeats.
fn is_shape(columns: &str) -> bool {
    let mut found: Vec<_> = columns
        .split(", ")
        .filter_map(|it| it.split_once(' '))
        .collect();
    found.sort_unstable();
    let is_text = |it: &str| it == "char" || it == "varchar" || it.ends_with("text");
    matches!(found.as_slice(),
        [("timestamp", "datetime"), ("uname", uname), ("utype", utype), ("uuid", uuid)]
            if is_text(uname) && is_text(utype) && is_text(uuid))
}

/// Whether there is a table of notes; an error if it is another.
async fn are_notes(
    settings: &Settings,
    notes: &str,
    connection: &mut Conn,
) -> Result<bool, StoreError> {
    let Some(described) = table::describe(settings, notes, connection).await? else {
        return Ok(false);
    };
    described.refuse(notes)?;
    let columns = row(settings, heartbeat_sql::describe_notes(notes), connection).await?;
    let columns = columns.ok_or_else(sql::unexpected_answer)?;
    let columns: String = sql::column(&columns, 0)?.unwrap_or_default();
    if columns != NOTES {
        return Err(StoreError::broken(format!(
            "expected {notes} to have the columns {NOTES}, found {columns}; it belongs to another \
             version of tenure, or was changed: end all candidates and see to it"
        )));
    }
    Ok(true)
}
