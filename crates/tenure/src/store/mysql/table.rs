//! The table of the registers: what is taken for one, and how it is made.
//!
//! It is made at first use, by the first process whose URL allows it. Processes that
//! make it at the same time need no lock: `IF NOT EXISTS` and `INSERT IGNORE` let all
//! but one find it made.

use std::sync::OnceLock;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error, Row};

use super::settings::Settings;
use super::{classify, sql};
use crate::error::StoreError;
use crate::store::no_store;

/// Set once this process has found the table. It makes none after that: if the table
/// is lost, it does not know which terms other processes have used.
pub(super) type FoundTable = OnceLock<()>;

/// Finds the table, or makes it. Where it was found before, on another server or on this
/// one, looks whether it is a table still that keeps what was acknowledged.
pub(super) async fn find(
    settings: &Settings,
    found: &FoundTable,
    connection: &mut Conn,
) -> Result<(), StoreError> {
    if !exists(settings, connection).await? {
        if found.get().is_some() {
            // The statements that name it say what to do.
            return Ok(());
        }
        if !settings.may_create {
            let why = format!("{settings}: no table {}", settings.table);
            return Err(StoreError::unavailable(no_store(why)));
        }
        make(settings, connection).await?;
    }
    if found.get().is_none() {
        find_floor(settings, connection).await?;
        tracing::info!("{settings}: registers are in the table {}", settings.table);
        let _ = found.set(());
    }
    Ok(())
}

/// Whether there is such a table; an error if it is none of ours.
async fn exists(settings: &Settings, connection: &mut Conn) -> Result<bool, StoreError> {
    let table = &settings.table;
    let described: Option<Row> = connection
        .query_first(sql::describe(table))
        .await
        .map_err(|error| classify::reading(&settings.to_string(), &error))?;
    let Some(row) = described else {
        return Ok(false);
    };
    let text = |at| sql::column::<String>(&row, at).map(Option::unwrap_or_default);
    let (kind, engine, columns) = (text(0)?, text(1)?, text(2)?);
    if columns != sql::COLUMNS {
        return Err(StoreError::broken(format!(
            "expected table {table} with columns {}, found {columns}; it belongs to something \
             else: name another with ?table=",
            sql::COLUMNS
        )));
    }
    if kind != "BASE TABLE" || engine != "InnoDB" {
        return Err(StoreError::broken(format!(
            "expected {table} to be an ordinary table of InnoDB, found {kind} {engine}: others \
             lose what was acknowledged, or let two writes pass; end all candidates and run: \
             ALTER TABLE {table} ENGINE=InnoDB"
        )));
    }
    if let Some(triggers) = sql::column::<String>(&row, 3)? {
        return Err(StoreError::broken(format!(
            "expected table {table} to keep rows as they are written, found triggers that may \
             change them first ({triggers}), their versions too, so that several would lead in \
             one term; make them AFTER triggers, or end all candidates and drop them"
        )));
    }
    Ok(true)
}

async fn make(settings: &Settings, connection: &mut Conn) -> Result<(), StoreError> {
    let migration = sql::migration(&settings.table);
    let made = connection.query_drop(migration.as_str()).await;
    made.map_err(|error| {
        let making = format!("{settings}: making the table {}", settings.table);
        match classify::reading(&making, &error) {
            StoreError::Broken(why) => StoreError::broken(format!(
                "expected table {}, found none, and could not create it: {why}; have a user who \
                 may run: {};",
                settings.table,
                // In one line, as all that is logged.
                migration.replace('\n', " ")
            )),
            other => other,
        }
    })
}

/// Makes the floor of versions, unless it is there.
async fn find_floor(settings: &Settings, connection: &mut Conn) -> Result<(), StoreError> {
    let failed = |error: Error| classify::reading(&settings.to_string(), &error);
    let floor = sql::find_floor(&settings.table);
    let found: Option<u64> = connection.query_first(floor).await.map_err(failed)?;
    if found.is_some() || !settings.may_create {
        return Ok(());
    }
    let made = connection.query_drop(sql::make_floor(&settings.table));
    made.await.map_err(failed)
}
