//! The [guard](crate::sql) of PostgreSQL, by `tokio-postgres`.

use std::time::Duration;

use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::sql::{self, Guard, POSTGRES};

/// What goes wrong, by what its caller does next.
pub type Error = sql::Error<tokio_postgres::Error>;

/// Makes the table, if it is missing.
///
/// # Errors
/// What the server says.
pub async fn create(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(POSTGRES.create).await
}

/// Bounds for how long this session keeps a successor waiting, if its process
/// is stopped ([`sql::limit_postgres`]).
///
/// # Errors
/// What the server says.
pub async fn limit(client: &Client, idle: Duration) -> Result<(), tokio_postgres::Error> {
    for statement in sql::limit_postgres(idle) {
        client.batch_execute(&statement).await?;
    }
    Ok(())
}

/// Records the term of a new leader. Nothing may be read in this term before.
///
/// # Errors
/// [`Error::Deposed`](sql::Error::Deposed) if a higher term is there. After
/// `Failed` and `Unknown` the same may be called again.
pub async fn record(client: &mut Client, guard: &Guard) -> Result<(), Error> {
    // At a higher level, what another leader records meanwhile is an error.
    let begin = client.build_transaction();
    let begin = begin.isolation_level(IsolationLevel::ReadCommitted);
    let transaction = begin.start().await.map_err(Error::Failed)?;
    let recorded = async {
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
            [&guard.name(), &guard.number()];
        transaction.execute(POSTGRES.record, &parameters).await?;
        let row = transaction.query_one(POSTGRES.recorded, &parameters[..1]);
        row.await?.try_get::<_, i64>(0)
    };
    let seen = recorded.await.map_err(Error::Failed)?;
    if seen != guard.number() {
        // What it holds is released when it is dropped, too.
        let _ = transaction.rollback().await;
        return Err(guard.refused(Some(seen)).into());
    }
    transaction.commit().await.map_err(Error::Unknown)
}

/// Commits a transaction of the leader, if no later one has recorded its term.
///
/// # Errors
/// [`Error::Deposed`](sql::Error::Deposed) and
/// [`Error::Failed`](sql::Error::Failed): nothing was committed.
/// [`Error::Unknown`](sql::Error::Unknown) if the connection was lost at the
/// commit.
pub async fn commit(transaction: Transaction<'_>, guard: &Guard) -> Result<(), Error> {
    let passed = transaction
        .query_opt(POSTGRES.check, &[&guard.name(), &guard.number()])
        .await
        .map_err(Error::Failed)?;
    if passed.is_none() {
        // For the message alone.
        let row = transaction
            .query_opt(POSTGRES.recorded, &[&guard.name()])
            .await;
        let seen = row.ok().flatten();
        let seen = seen.and_then(|row| row.try_get(0).ok());
        let _ = transaction.rollback().await;
        return Err(guard.refused(seen).into());
    }
    transaction.commit().await.map_err(Error::Unknown)
}
