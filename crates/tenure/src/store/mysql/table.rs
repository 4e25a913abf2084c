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
        make(settings, &sql::migration(&settings.table), connection).await?;
    }
    if found.get().is_none() {
        find_floor(settings, connection).await?;
        tracing::info!("{settings}: registers are in the table {}", settings.table);
        let _ = found.set(());
    }
    Ok(())
}

/// What is called so in the database.
pub(super) struct Described {
    kind: String,
    engine: String,
    pub(super) columns: String,
    triggers: Option<String>,
}

/// What is called so in the database; `None` if there is nothing.
pub(super) async fn describe(
    settings: &Settings,
    table: &str,
    connection: &mut Conn,
) -> Result<Option<Described>, StoreError> {
    let described: Option<Row> = connection
        .query_first(sql::describe(table))
        .await
        .map_err(|error| classify::reading(&settings.to_string(), &error))?;
    let Some(row) = described else {
        return Ok(None);
    };
    let text = |at| sql::column::<String>(&row, at).map(Option::unwrap_or_default);
    Ok(Some(Described {
        kind: text(0)?,
        engine: text(1)?,
        columns: text(2)?,
        triggers: sql::column(&row, 3)?,
    }))
}

impl Described {
    /// Refuses a table that does not keep rows as they are written.
    pub(super) fn refuse(&self, table: &str) -> Result<(), StoreError> {
        let (kind, engine) = (&self.kind, &self.engine);
        if kind != "BASE TABLE" || engine != "InnoDB" {
            return Err(StoreError::broken(format!(
                "expected {table} to be an ordinary table of InnoDB, found {kind} {engine}: others \
                 lose what was acknowledged, or let two writes pass; end all candidates and run: \
                 ALTER TABLE {table} ENGINE=InnoDB"
            )));
        }
        if let Some(triggers) = &self.triggers {
            return Err(StoreError::broken(format!(
                "expected table {table} to keep rows as they are written, found triggers that may \
                 change them first ({triggers}), their versions too, so that several would lead in \
                 one term; make them AFTER triggers, or end all candidates and drop them"
            )));
        }
        Ok(())
    }
}

/// Whether there is such a table; an error if it is none of ours.
async fn exists(settings: &Settings, connection: &mut Conn) -> Result<bool, StoreError> {
    let table = &settings.table;
    let Some(described) = describe(settings, table, connection).await? else {
        return Ok(false);
    };
    let ours: Vec<_> = sql::COLUMNS.split(", ").collect();
    let is_part =
        described.columns.is_empty() || described.columns.split(", ").all(|it| ours.contains(&it));
    if is_part && described.columns != sql::COLUMNS {
        // The server shows a user the columns that it has rights on.
        return Err(StoreError::broken(format!(
            "expected table {table} with columns {}, found {} that this user may see; run: GRANT \
             SELECT, INSERT, UPDATE, DELETE ON {table} TO that user",
            sql::COLUMNS,
            match described.columns.as_str() {
                "" => "none",
                some => some,
            }
        )));
    }
    if described.columns != sql::COLUMNS {
        return Err(StoreError::broken(format!(
            "expected table {table} with columns {}, found {}; it belongs to something else: name \
             another with ?table=",
            sql::COLUMNS,
            described.columns
        )));
    }
    described.refuse(table)?;
    Ok(true)
}

/// Makes a table by this statement.
pub(super) async fn make(
    settings: &Settings,
    migration: &str,
    connection: &mut Conn,
) -> Result<(), StoreError> {
    let made = connection.query_drop(migration).await;
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
