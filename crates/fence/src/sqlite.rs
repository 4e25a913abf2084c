//! The [guard](crate::sql) of SQLite, by `rusqlite`.
//!
//! No time bounds how long a process that is stopped in mid transaction keeps
//! others from writing: they wait for as long as their own `busy_timeout`, and
//! fail.

use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Transaction, TransactionBehavior};

use crate::sql::{self, Guard, SQLITE};

/// What goes wrong, by what its caller does next.
pub type Error = sql::Error<rusqlite::Error>;

/// Makes the table, if it is missing.
///
/// # Errors
/// What SQLite says.
pub fn create(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.execute_batch(SQLITE.create)
}

/// Records the term of a new leader. Nothing may be read in this term before.
///
/// # Errors
/// [`Error::Deposed`](sql::Error::Deposed) if a higher term is there. After
/// `Failed` and `Unknown` the same may be called again.
pub fn record(connection: &mut Connection, guard: &Guard) -> Result<(), Error> {
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = begun.map_err(Error::Failed)?;
    let recorded = || {
        transaction.execute(SQLITE.record, (guard.name(), guard.number()))?;
        seen(&transaction, guard)
    };
    let seen = recorded().map_err(Error::Failed)?;
    if seen != Some(guard.number()) {
        return Err(guard.refused(seen).into());
    }
    end(transaction)
}

/// Commits a transaction of the leader, if no later one has recorded its term.
///
/// # Errors
/// [`Error::Deposed`](sql::Error::Deposed) and
/// [`Error::Failed`](sql::Error::Failed): nothing was committed.
/// [`Error::Unknown`](sql::Error::Unknown) if the disk failed at the commit.
pub fn commit(transaction: Transaction<'_>, guard: &Guard) -> Result<(), Error> {
    let check = transaction.execute(SQLITE.check, (guard.name(), guard.number()));
    if check.map_err(Error::Failed)? != 1 {
        // For the message alone.
        let seen = seen(&transaction, guard).ok().flatten();
        return Err(guard.refused(seen).into());
    }
    end(transaction)
}

fn seen(transaction: &Transaction<'_>, guard: &Guard) -> Result<Option<i64>, rusqlite::Error> {
    let row = transaction.query_row(SQLITE.recorded, (guard.name(),), |row| row.get(0));
    row.optional()
}

/// Commits. A transaction that others keep from it is undone when it is dropped.
fn end(transaction: Transaction<'_>) -> Result<(), Error> {
    transaction
        .commit()
        .map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Failed(error),
            _ => Error::Unknown(error),
        })
}
