//! Which table holds the registers.
//!
//! `table=tenure_register` without a schema means what the search path of the
//! database user makes of it, and two users (or one, after somebody made a
//! schema of his name) may mean two tables by it: two leaders of one election.
//! So the name is resolved once, to the table *that exists* on the search
//! path, and every statement of this process names that one with its schema.
//! Where two can be reached the store is refused, because another candidate
//! may resolve the same name to the other one.
//!
//! What is not covered: a candidate whose search path reaches only one table
//! and another whose path reaches only another one. Neither sees the other's;
//! a `table=` with a schema, the same for all, is the way out.

use std::sync::OnceLock;
use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::connect::PgConnection;
use super::resolved_table::Table;
use super::settings::{Settings, TableName};
use super::{classify, sql};
use crate::error::StoreError;
use crate::store::no_store;

/// How long the server may take to make the table. A quarter of it may be
/// waited for a transaction that makes one of the same name.
const MAKE_WITHIN: Duration = Duration::from_secs(8);

/// The table that was found first, for as long as the process lives.
pub(super) type ResolvedTable = OnceLock<Table>;

/// Finds the table, or makes it; once. On each later connection looks whether
/// it is a permanent one still, and no view or parent of others that are not:
/// a crash of the server would have emptied it, and ended the connections.
pub(super) async fn find(
    found: &ResolvedTable,
    settings: &Settings,
    connected: &PgConnection,
) -> Result<(), StoreError> {
    if let Some(table) = found.get() {
        return still_ordinary(settings, connected, table).await;
    }
    let wanted = &settings.table;
    let name = match existing(settings, connected).await? {
        Some(name) => name,
        None if !settings.may_create => {
            let wanted = &wanted.name;
            let why = format!("{settings}: no table {wanted} where this user has USAGE");
            return Err(StoreError::unavailable(no_store(why)));
        }
        None => make(settings, connected).await?,
    };
    tracing::info!("{settings}: registers are in the table {name}");
    // If another connection was first, it has found the same table, or the
    // server refuses the next call as one for a table that is not there.
    let _ = found.set(Table {
        name,
        channel: wanted.channel(),
    });
    Ok(())
}

/// The only table of that name that can be reached.
async fn existing(
    settings: &Settings,
    connected: &PgConnection,
) -> Result<Option<String>, StoreError> {
    let wanted = &settings.table;
    let answer = connected.query(&sql::describe(wanted)).await;
    let answer = answer.map_err(|error| classify::reading(&settings.to_string(), &error))?;
    let rows = answer.last().map_or(&[][..], Vec::as_slice);
    let text = |row: usize, column| rows.get(row).and_then(|row| row.get(column));
    let names: Vec<_> = (0..rows.len()).filter_map(|row| text(row, 0)).collect();
    match (names.as_slice(), text(0, 1)) {
        ([], _) => Ok(None),
        ([name], Some(sql::COLUMNS)) => {
            expect_ordinary(name, text(0, 2))?;
            if let Some(triggers) = text(0, 3) {
                tracing::warn!(
                    "{settings}: table {name} has triggers that run within each write ({triggers}): \
                     one that is slow, or fails, costs leaders their leases"
                );
            }
            Ok(Some((*name).to_owned()))
        }
        ([name], columns) => Err(StoreError::broken(format!(
            "expected table {name} with columns {}, found {}; it belongs to something else: name \
             another with ?table=",
            sql::COLUMNS,
            columns.unwrap_or("none")
        ))),
        (several, _) => Err(StoreError::broken(format!(
            "expected one table {} on the search path, found {}: candidates that take different \
             ones would elect two leaders; name the one that is meant with its schema, as in \
             ?table={}, or drop the other",
            wanted.name,
            several.join(" and "),
            several.first().copied().unwrap_or_default()
        ))),
    }
}

/// Refuses a table that was made another one than it was. One that is gone is
/// refused by the statements that name it.
async fn still_ordinary(
    settings: &Settings,
    connected: &PgConnection,
    table: &Table,
) -> Result<(), StoreError> {
    let answer = connected.query(&sql::table_kind(&table.name)).await;
    let answer = answer.map_err(|error| classify::reading(&settings.to_string(), &error))?;
    let row = answer.last().and_then(|rows| rows.first());
    match row.and_then(|row| row.get(0)) {
        None => Ok(()),
        found => expect_ordinary(&table.name, found),
    }
}

/// What was acknowledged must be in the table after a crash of the server, and
/// no version may be seen twice.
fn expect_ordinary(name: &str, found: Option<&str>) -> Result<(), StoreError> {
    let trigger = found.and_then(|found| found.strip_prefix(sql::CHANGING_TRIGGER));
    if let Some(trigger) = trigger {
        return Err(StoreError::broken(format!(
            "expected table {name} to keep rows as they are written, found trigger {trigger} that \
             may change them first, their versions too, so that several would lead in one term; \
             make it an AFTER trigger, or end all candidates and drop it"
        )));
    }
    match found {
        Some(sql::ORDINARY) => Ok(()),
        Some(sql::NO_IDENTITY) => Err(StoreError::broken(format!(
            "expected the column version of table {name} to be an identity, found that it is none: \
             several writes would have one version, and several candidates lead in one term; end \
             all candidates and run: ALTER TABLE {name} ALTER COLUMN version DROP DEFAULT, ALTER \
             COLUMN version SET NOT NULL, ALTER COLUMN version ADD GENERATED ALWAYS AS IDENTITY; \
             SELECT setval(pg_get_serial_sequence('{}', 'version'), max(version)) FROM {name};",
            name.replace('\'', "''")
        ))),
        Some(sql::IDENTITY_NOT_RISING) => Err(StoreError::broken(format!(
            "expected the identity of the column version of table {name} to rise with each write, \
             found that it falls, cycles, keeps numbers for sessions or begins anew after a crash; \
             end all candidates and run: ALTER TABLE {name} ALTER COLUMN version SET INCREMENT BY 1 \
             SET NO CYCLE SET CACHE 1; and where pg_get_serial_sequence('{}', 'version') is \
             UNLOGGED: ALTER SEQUENCE … SET LOGGED;",
            name.replace('\'', "''")
        ))),
        Some(sql::NO_KEY) => Err(StoreError::broken(format!(
            "expected table {name} to have a primary key or a unique index of key alone, for all \
             rows, and no deferrable one, found another: the server refuses every write; end all \
             candidates and run: ALTER TABLE {name} ADD PRIMARY KEY (key); (drop another first)"
        ))),
        Some(sql::ALIKE_KEYS) => Err(StoreError::broken(format!(
            "expected the column key of table {name}, and its unique indexes, to have a \
             deterministic collation, found another, which takes several names for one; end all \
             candidates and run: ALTER TABLE {name} ALTER COLUMN key TYPE text COLLATE \"C\"; and \
             drop unique indexes with a collation of their own"
        ))),
        Some(sql::UNLOGGED) => Err(StoreError::broken(format!(
            "expected table {name} to be a permanent one, found one that the server empties after \
             a crash; end all candidates and run: ALTER TABLE {name} SET LOGGED;"
        ))),
        // A row that is there and hidden would be told as one that is not: nobody leads.
        Some(sql::HIDES_ROWS) => Err(StoreError::broken(format!(
            "expected table {name} to show this user all of its rows, found row level security in \
             force, which hides those that no policy shows; run: ALTER TABLE {name} DISABLE ROW \
             LEVEL SECURITY, or ALTER ROLE … BYPASSRLS"
        ))),
        other => Err(StoreError::broken(format!(
            "expected {name} to be an ordinary table without children or rules, found {}: what \
             stands behind it may be emptied by a crash of the server, or be elsewhere; name an \
             ordinary table with ?table=, or end all candidates and put one in its place",
            other.unwrap_or("none")
        ))),
    }
}

/// Makes the table if nobody else has meanwhile; its name. Of processes that
/// create at once all but one fail on the catalogue, and take the one that is
/// there then. No advisory lock is held for it: anybody who may connect can
/// take any of those, and keep it. Two with different search paths may make two
/// tables at once; a process that can reach both finds that when it looks
/// again, and is refused.
async fn make(settings: &Settings, connected: &PgConnection) -> Result<String, StoreError> {
    let wanted = &settings.table;
    if let Err(error) = connected.query(&sql::create(wanted, MAKE_WITHIN)).await {
        let taken = [
            SqlState::UNIQUE_VIOLATION,
            SqlState::DUPLICATE_TABLE,
            SqlState::DUPLICATE_OBJECT,
        ];
        let is_taken = error.code().is_some_and(|code| taken.contains(code));
        let meanwhile = if is_taken {
            existing(settings, connected).await?
        } else {
            None
        };
        let server = format!("{settings}: making the table {}", wanted.name);
        return meanwhile.ok_or_else(|| match classify::writing(&server, &error) {
            StoreError::Broken(why) => refused(wanted, &why.to_string()),
            other => other,
        });
    }
    existing(settings, connected).await?.ok_or_else(|| {
        StoreError::unavailable(format!("table {} was made and is not there", wanted.name))
    })
}

fn refused(wanted: &TableName, why: &str) -> StoreError {
    StoreError::broken(format!(
        "expected table {}, found none, and could not create it: {why}; have a user who may \
         run: {};",
        wanted.name,
        // In one line, as all that is logged.
        sql::migration(&wanted.name).replace('\n', " ")
    ))
}
