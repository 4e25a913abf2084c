//! Registers in a table of MySQL or MariaDB.
//!
//! A write is **one statement in one round trip**, which is a transaction of its own: a
//! conditional `UPDATE` or an `INSERT`. No lock is held while the client is waited
//! for. How versions are given out without one ever being used twice is told in
//! `sql.rs`.
//!
//! Statements go as text and not as prepared ones, which would take a round trip more;
//! values travel as hexadecimal literals, so there is nothing to escape.
//!
//! Calls go to the first of the URL's servers that finishes a handshake and takes
//! writes (`session.rs`), over some connections (`pool.rs`). Changes are looked for
//! ([`Polled`]), since these servers do not tell of them.
//!
//! Grants are judged by observed silence unless the user asks for
//! `?expiry=store-clock`: a database server's clock may step, and after a fail-over it
//! is another server's clock.
//!
//! Left out on purpose: reading from replicas, which lag behind, and `GET_LOCK`, which
//! a fail-over loses and any user can take.

mod classify;
mod pool;
mod session;
mod settings;
mod sql;
mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Error, Row};

use self::pool::{Kind, Lease, Pool};
use self::settings::Settings;
use self::table::FoundTable;
use super::dial::{ConnectFn, Dialer};
use super::{
    Backend, Clock, Expect, Features, Key, PAGE_MAX, Page, PollTimes, Polled, Reading, Stamp,
    Version, Write, Written,
};
use crate::clock;
use crate::error::StoreError;

/// How long a call waits for a connection. Its own time is over before that.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);

/// Prepares to use the servers that `url` names; connects at the first call, and then
/// makes the table if it is missing and `may_create`.
pub(super) fn open(url: &str, may_create: bool) -> Result<Polled<MySql>, StoreError> {
    let mut settings = Settings::parse(url)?;
    settings.may_create = may_create;
    let times = PollTimes {
        floor: settings.poll_every,
        ..PollTimes::default()
    };
    Ok(Polled::new(MySql::new(settings), times))
}

/// The calls of MySQL and MariaDB.
#[derive(Debug)]
pub(super) struct MySql {
    settings: Arc<Settings>,
    dialer: Dialer<Pool>,
}

/// Leaves a server that has kept silent for too long, also when the caller does not
/// wait for the end of that.
struct Patience<'a> {
    dialer: &'a Dialer<Pool>,
    pool: &'a Pool,
}

impl<'a> Patience<'a> {
    fn begin(dialer: &'a Dialer<Pool>, pool: &'a Pool) -> Self {
        pool.is_due();
        Self { dialer, pool }
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if self.pool.is_mute() {
            self.dialer.abandon(self.pool);
            self.pool.close("the server kept silent");
        }
    }
}

/// What a statement has changed.
struct Changed {
    rows: u64,
    /// What it has told by `LAST_INSERT_ID`.
    told: Option<u64>,
}

impl MySql {
    fn new(settings: Settings) -> Self {
        let settings = Arc::new(settings);
        let (all, table) = (Arc::clone(&settings), Arc::<FoundTable>::default());
        let connect_to: ConnectFn<Pool> = Arc::new(move |at| {
            let (settings, table) = (Arc::clone(&all), Arc::clone(&table));
            Box::pin(async move {
                let server = settings.servers.get(at).cloned();
                let server =
                    server.ok_or_else(|| StoreError::broken("expected a server of this number"))?;
                Pool::open(settings, server, &table).await
            })
        });
        let labels = settings.servers.iter().map(ToString::to_string);
        let dialer = Dialer::new(settings.to_string(), labels.collect(), 0, connect_to);
        Self { settings, dialer }
    }

    async fn pool(&self) -> Result<Pool, StoreError> {
        self.dialer
            .connected(clock::boot().after(CONNECT_WITHIN))
            .await
    }

    /// Gives a connection back after an answer, or makes an error of what came
    /// instead.
    fn settle<T>(
        &self,
        pool: &Pool,
        lease: Lease<'_>,
        answer: Result<T, Error>,
        class: fn(&str, &Error) -> StoreError,
    ) -> Result<T, StoreError> {
        match answer {
            Ok(answer) => {
                pool.has_come();
                lease.give_back();
                Ok(answer)
            }
            Err(error) => {
                let why = class(&self.settings.to_string(), &error);
                if classify::is_of_another_server(&error) {
                    self.dialer.abandon(pool);
                    pool.close("the server takes no writes");
                } else if classify::is_of_the_statement(&error) {
                    pool.has_come();
                    lease.give_back();
                } else {
                    pool.close(&classify::text(&self.settings.to_string(), &error));
                }
                Err(why)
            }
        }
    }

    /// Carries out a statement that changes nothing.
    async fn query(&self, statement: String) -> Result<Vec<Row>, StoreError> {
        let pool = self.pool().await?;
        let _patience = Patience::begin(&self.dialer, &pool);
        let mut lease = pool.lease(Kind::Read).await?;
        let rows = lease.connection()?.query::<Row, _>(statement).await;
        self.settle(&pool, lease, rows, classify::reading)
    }

    /// The same, of a server that takes writes.
    async fn query_primary(&self, statement: String) -> Result<Vec<Row>, StoreError> {
        let rows = self.query(statement).await?;
        if let Some(row) = rows.first()
            && !sql::time(row)?.1
        {
            self.leave().await?;
        }
        Ok(rows)
    }

    /// Leaves the server that is in use, for it takes no writes and may lag behind.
    async fn leave(&self) -> Result<(), StoreError> {
        let pool = self.pool().await?;
        self.dialer.abandon(&pool);
        pool.close("the server takes no writes");
        Err(StoreError::unavailable(format!(
            "expected {} to take writes, found that it does so no longer; looking for another",
            self.settings
        )))
    }

    /// Carries out a change.
    async fn change(
        &self,
        statement: String,
        class: fn(&str, &Error) -> StoreError,
    ) -> Result<Changed, StoreError> {
        let pool = self.pool().await?;
        let _patience = Patience::begin(&self.dialer, &pool);
        let mut lease = pool.lease(Kind::Write).await?;
        let connection = lease.connection()?;
        let answer = connection.query_drop(statement).await;
        let changed = Changed {
            rows: connection.affected_rows(),
            told: connection.last_insert_id(),
        };
        if answer.as_ref().is_err_and(classify::is_duplicate) {
            pool.has_come();
            lease.give_back();
            return Err(StoreError::Conflict);
        }
        self.settle(&pool, lease, answer.map(|()| changed), class)
    }

    /// Makes a register.
    async fn create(&self, write: &Write) -> Result<Written, StoreError> {
        let table = &self.settings.table;
        let made = self
            .change(sql::create(table, write), classify::writing)
            .await?;
        let (1, Some(version)) = (made.rows, made.told) else {
            return Err(StoreError::broken(format!(
                "expected a row with an empty key in table {table}, above whose version those of \
                 new registers are, found none: somebody has deleted it; start a process anew, \
                 which makes it"
            )));
        };
        // The write has happened, whatever comes of this.
        let stamp = match write.stamp {
            Stamp::Now => {
                let rows = self.query(sql::created(table, &write.key, version)).await;
                let rows = rows.unwrap_or_default();
                rows.first().and_then(|row| sql::column(row, 0).ok()?)
            }
            Stamp::Keep => None,
        };
        Ok(Written {
            version: Version::from_u64(version),
            now: stamp.map(sql::store_time),
        })
    }

    /// Writes a register that has this version.
    async fn update(&self, write: &Write, version: u64) -> Result<Written, StoreError> {
        let next = version.checked_add(1).ok_or(StoreError::Conflict)?;
        let statement = sql::update(&self.settings.table, write, version);
        let changed = self.change(statement, classify::writing).await?;
        if changed.rows == 0 {
            return Err(StoreError::Conflict);
        }
        Ok(Written {
            version: Version::from_u64(next),
            now: changed.told.map(sql::store_time),
        })
    }
}

impl fmt::Display for MySql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl Backend for MySql {
    fn features(&self) -> Features {
        Features {
            clock: Clock::MayStep,
            judge_by_store_clock: self.settings.judge_by_store_clock,
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        let statement = sql::read(&self.settings.table, key);
        sql::reading(&self.query_primary(statement).await?)
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        match &write.expect {
            Expect::Absent => self.create(write).await,
            // A version that is not a number is none of this store's.
            Expect::Version(version) => {
                let version = version.to_u64().ok_or(StoreError::Conflict)?;
                self.update(write, version).await
            }
        }
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let version = expected.to_u64().ok_or(StoreError::Conflict)?;
        let table = &self.settings.table;
        // Whatever comes of the first, nothing was deleted by it.
        let raise = sql::raise_floor(table, key, version);
        self.change(raise, classify::reading).await?;
        let delete = sql::delete(table, key, version);
        let deleted = self.change(delete, classify::writing).await?;
        if deleted.rows == 0 {
            return Err(StoreError::Conflict);
        }
        Ok(())
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let table = &self.settings.table;
        let mut after = after.map_or(Vec::new(), |key| key.as_str().as_bytes().to_vec());
        let mut page = Page::default();
        loop {
            let statement = sql::list(table, prefix, &after);
            let rows = self.query_primary(statement).await?;
            let is_last = rows.len() <= PAGE_MAX;
            for row in &rows {
                page.now = Some(sql::time(row)?.0);
                after = sql::key(row)?;
                // A key that is not one was written by hand; it is nobody's register.
                let Some(key) = std::str::from_utf8(&after)
                    .ok()
                    .and_then(|it| Key::new(it).ok())
                else {
                    continue;
                };
                if page.registers.len() == PAGE_MAX {
                    page.more_after = page.registers.last().map(|(key, _)| key.clone());
                    return Ok(page);
                }
                if let Some(register) = sql::register(row)? {
                    page.registers.push((key, register));
                }
            }
            if is_last {
                break;
            }
        }
        if page.now.is_none() {
            let rows = self.query_primary(sql::state()).await?;
            page.now = rows.first().map(sql::time).transpose()?.map(|it| it.0);
        }
        Ok(page)
    }
}
