//! The [guard](crate::sql) of MySQL and MariaDB, by `mysql_async`.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Transaction, TxOpts};

use crate::sql::{self, Guard, MYSQL};

/// What goes wrong, by what its caller does next.
pub type Error = sql::Error<mysql_async::Error>;

/// Makes the table, if it is missing.
///
/// # Errors
/// What the server says.
pub async fn create(session: &mut Conn) -> Result<(), mysql_async::Error> {
    session.query_drop(MYSQL.create).await
}

/// Bounds for how long this session keeps a successor waiting, if its process
/// is stopped ([`sql::limit_mysql`]).
///
/// # Errors
/// What the server says.
pub async fn limit(session: &mut Conn, idle: Duration) -> Result<(), mysql_async::Error> {
    for statement in sql::limit_mysql(idle) {
        session.query_drop(statement).await?;
    }
    Ok(())
}

/// Records the term of a new leader. Nothing may be read in this term before.
///
/// # Errors
/// [`Error::Deposed`](sql::Error::Deposed) if a higher term is there. After
/// `Failed` and `Unknown` the same may be called again.
pub async fn record(session: &mut Conn, guard: &Guard) -> Result<(), Error> {
    let begun = session.start_transaction(TxOpts::default()).await;
    let mut transaction = begun.map_err(Error::Failed)?;
    let name = guard.name().as_bytes();
    let recorded = async {
        let parameters = (name, guard.number());
        transaction.exec_drop(MYSQL.record, parameters).await?;
        transaction.exec_first(MYSQL.recorded, (name,)).await
    };
    let seen: Option<i64> = match recorded.await {
        Ok(seen) => seen,
        Err(error) => return Err(undo(transaction, Error::Failed(error)).await),
    };
    if seen != Some(guard.number()) {
        return Err(undo(transaction, guard.refused(seen).into()).await);
    }
    transaction.commit().await.map_err(Error::Unknown)
}

/// Commits a transaction of the leader, if no later one has recorded its term.
///
/// # Errors
/// [`Error::Deposed`](sql::Error::Deposed) and
/// [`Error::Failed`](sql::Error::Failed): nothing was committed.
/// [`Error::Unknown`](sql::Error::Unknown) if the commit was not answered.
pub async fn commit(mut transaction: Transaction<'_>, guard: &Guard) -> Result<(), Error> {
    let name = guard.name().as_bytes();
    let check = transaction.exec_first(MYSQL.check, (name, guard.number()));
    let passed: Option<i64> = match check.await {
        Ok(passed) => passed,
        // A wait for a lock that was too long undoes the statement alone.
        Err(error) => return Err(undo(transaction, Error::Failed(error)).await),
    };
    if passed.is_none() {
        return Err(refuse(transaction, guard).await);
    }
    transaction.commit().await.map_err(Error::Unknown)
}

/// The same in a cluster of Galera, where only writes are seen by the other
/// servers.
///
/// # Errors
/// Those of [`commit`]. A commit that another server has overtaken fails with
/// the error of a deadlock, 1213: it is `Failed`.
pub async fn commit_by_update(
    mut transaction: Transaction<'_>,
    guard: &Guard,
) -> Result<(), Error> {
    let parameters = (guard.name().as_bytes(), guard.number());
    let check = transaction.exec_drop(MYSQL.check_by_update, parameters);
    if let Err(error) = check.await {
        return Err(undo(transaction, Error::Failed(error)).await);
    }
    if transaction.affected_rows() != 1 {
        return Err(refuse(transaction, guard).await);
    }
    transaction.commit().await.map_err(|error| match error {
        mysql_async::Error::Server(ref it) if it.code == DEADLOCK => Error::Failed(error),
        error => Error::Unknown(error),
    })
}

/// The number of the error of a deadlock, after which all is undone.
const DEADLOCK: u16 = 1213;

async fn refuse(mut transaction: Transaction<'_>, guard: &Guard) -> Error {
    let row = transaction.exec_first(MYSQL.recorded, (guard.name().as_bytes(),));
    // For the message alone.
    let seen = row.await.ok().flatten();
    undo(transaction, guard.refused(seen).into()).await
}

/// Undoes the transaction. If that fails its session has ended, or ends when it
/// is dropped, and so does the transaction.
async fn undo(transaction: Transaction<'_>, why: Error) -> Error {
    let _ = transaction.rollback().await;
    why
}
