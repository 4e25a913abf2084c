//! A transaction of a leader: it records its term, reads, writes, and commits by
//! the guard.

use std::time::Duration;

use anyhow::{Result, bail};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, TxOpts};
use rusqlite::Connection;
use tenure_fence::sql::{Error, Guard};
use tenure_fence::{Term, mysql, postgres, sqlite};
use tokio_postgres::NoTls;

use crate::{pause, say};

const READ: &str = "SELECT paid_in FROM ledger WHERE id = 1";

/// Writes the term into the row of the ledger. If it is stopped meanwhile, its
/// session keeps a successor waiting for `idle`.
pub(crate) async fn write(url: &str, term: Term, idle: Duration, is_paused: bool) -> Result<()> {
    let guard = Guard::new("payroll", term);
    match url.split_once("://") {
        Some(("postgres", _)) => on_postgres(url, &guard, idle, is_paused).await,
        Some(("mysql", _)) => on_mysql(url, &guard, idle, is_paused).await,
        Some(("sqlite", path)) => on_sqlite(path, &guard, idle, is_paused),
        _ => bail!("expected postgres://, mysql:// or sqlite://, found {url:?}"),
    }
}

async fn on_postgres(url: &str, guard: &Guard, idle: Duration, is_paused: bool) -> Result<()> {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    postgres::create(&client).await?;
    postgres::limit(&client, idle).await?;
    refusal(postgres::record(&mut client, guard).await)?;
    recorded(guard)?;
    let transaction = client.transaction().await?;
    let found: i64 = transaction.query_one(READ, &[]).await?.get(0);
    let pay = "UPDATE ledger SET paid_in = $1 WHERE id = 1";
    transaction.execute(pay, &[&guard.number()]).await?;
    written(found)?;
    pause(is_paused)?;
    let ended = refusal(postgres::commit(transaction, guard).await);
    ended.and_then(|()| say("committed"))
}

async fn on_mysql(url: &str, guard: &Guard, idle: Duration, is_paused: bool) -> Result<()> {
    let mut session = Conn::new(Opts::from_url(url)?).await?;
    mysql::create(&mut session).await?;
    mysql::limit(&mut session, idle).await?;
    refusal(mysql::record(&mut session, guard).await)?;
    recorded(guard)?;
    let mut transaction = session.start_transaction(TxOpts::default()).await?;
    let found: Option<i64> = transaction.query_first(READ).await?;
    let pay = "UPDATE ledger SET paid_in = ? WHERE id = 1";
    transaction.exec_drop(pay, (guard.number(),)).await?;
    written(found.unwrap_or(0))?;
    pause(is_paused)?;
    let ended = refusal(mysql::commit(transaction, guard).await);
    ended.and_then(|()| say("committed"))
}

fn on_sqlite(path: &str, guard: &Guard, idle: Duration, is_paused: bool) -> Result<()> {
    let mut connection = Connection::open(path)?;
    // How long it waits itself: nothing ends the transaction that it waits for.
    connection.busy_timeout(idle)?;
    sqlite::create(&connection)?;
    refusal(sqlite::record(&mut connection, guard))?;
    recorded(guard)?;
    let transaction = connection.transaction()?;
    let found: i64 = transaction.query_row(READ, (), |row| row.get(0))?;
    let pay = "UPDATE ledger SET paid_in = ?1 WHERE id = 1";
    transaction.execute(pay, (guard.number(),))?;
    written(found)?;
    pause(is_paused)?;
    let ended = refusal(sqlite::commit(transaction, guard));
    ended.and_then(|()| say("committed"))
}

fn recorded(guard: &Guard) -> Result<()> {
    say(&format!("term {} recorded", guard.term()))
}

fn written(found: i64) -> Result<()> {
    say(&format!("found {found}, written, not committed"))
}

/// Keeps apart what a fence has refused from what has failed.
fn refusal<E>(done: Result<(), Error<E>>) -> Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match done {
        Ok(()) => Ok(()),
        Err(Error::Deposed(deposed)) => Err(deposed.into()),
        Err(error) => bail!("{error}"),
    }
}
