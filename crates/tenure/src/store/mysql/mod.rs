//! Registers in a table of MySQL or MariaDB.
//!
//! A write is **one statement in one round trip**, which is a transaction of its own: a
//! conditional `UPDATE` or an `INSERT`. No lock is held while the client is waited
//! for. `sql.rs` assigns versions so that none is used twice.
//!
//! Statements go as text and not as prepared ones, which would take a round trip more;
//! values travel as hexadecimal literals, so there is nothing to escape.
//!
//! Calls go to the first of the URL's servers that finishes a handshake and takes
//! writes (`session.rs`), if no other of them is another database that does
//! (`writers.rs`), over some connections (`pool.rs`). Changes are looked for
//! (`store/polled.rs`), since these servers do not tell of them.
//!
//! Grants are judged by observed silence unless the user asks for
//! `?expiry=store-clock`: a database server's clock may step, and after a fail-over it
//! is another server's clock.
//!
//! Left out on purpose: reading from replicas, which lag behind, and `GET_LOCK`, which
//! a fail-over loses and any user can take.

mod classify;
mod heartbeat_sql;
mod heartbeat_tables;
mod heartbeats;
pub(super) mod opener;
mod pool;
mod rows;
mod session;
mod settings;
mod sql;
mod table;
mod writers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Error, Row};

use self::pool::{Kind, Lease, Pool};
use self::settings::Settings;
use self::table::FoundTable;
use super::dial::{ConnectFn, Dialer};
use super::{
    Backend, Clock, Expect, Features, Key, PAGE_MAX, Page, Reading, Stamp, Version, Write, Written,
};
use crate::clock;
use crate::error::StoreError;

/// How long a call waits for a connection. Its own time is over before that.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);

/// The calls of MySQL and MariaDB.
#[derive(Debug)]
pub(super) struct MySql {
    settings: Arc<Settings>,
    dialer: Arc<Dialer<Pool>>,
}

/// Leaves a server that has kept silent for too long, also when the caller does not
/// wait for the end of that.
struct Patience<'a> {
    dialer: &'a Dialer<Pool>,
    pool: &'a Pool,
}

impl<'a> Patience<'a> {
    fn begin(dialer: &'a Dialer<Pool>, pool: &'a Pool, kind: Kind) -> Self {
        pool.is_due(kind);
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

/// What came of a statement.
#[derive(Default)]
struct Outcome {
    rows: Vec<Row>,
    /// How many rows it has changed.
    changed: u64,
    /// What it has told by `LAST_INSERT_ID`.
    told: Option<u64>,
}

/// A statement on its way. It goes on when its caller has left.
struct Statement {
    kind: Kind,
    text: String,
    /// What an error means.
    class: fn(&str, &Error) -> StoreError,
    /// The error for want of an answer.
    late: fn(String) -> StoreError,
    server: String,
    dialer: Arc<Dialer<Pool>>,
    pool: Pool,
}

/// How often a reading is asked that the server rolls back for a deadlock, as it may
/// where another process makes or changes a table.
const READ_TRIES: usize = 3;

impl Statement {
    /// Asks it once; `None` if the connection was closed before the answer.
    async fn ask(&self, lease: &mut Lease) -> Option<Result<Outcome, Error>> {
        let text = self.text.as_str();
        let answer = lease.ask(async |connection| {
            let rows = rows::rows(connection, text).await;
            rows.map(|rows| Outcome {
                rows,
                changed: connection.affected_rows(),
                told: connection.last_insert_id(),
            })
        });
        answer.await
    }

    /// Whether to ask again. A write never is: its caller decides.
    fn is_rolled_back(&self, answer: Option<&Result<Outcome, Error>>) -> bool {
        let error = answer.and_then(|answer| answer.as_ref().err());
        self.kind == Kind::Read && error.is_some_and(classify::is_deadlock)
    }

    /// Carries it out, and gives the connection back or makes an error of what came.
    async fn run(self, mut lease: Lease) -> Result<Outcome, StoreError> {
        let mut answer = self.ask(&mut lease).await;
        for _ in 1..READ_TRIES {
            if self.is_rolled_back(answer.as_ref()) {
                answer = self.ask(&mut lease).await;
            }
        }
        let Some(answer) = answer else {
            let why = format!(
                "{}: the connection was closed before the answer",
                self.server
            );
            return Err((self.late)(why));
        };
        let error = match answer {
            Ok(outcome) => {
                self.pool.has_come(self.kind);
                lease.give_back();
                return Ok(outcome);
            }
            Err(error) => error,
        };
        if classify::is_of_another_server(&error) {
            self.dialer.abandon(&self.pool);
            self.pool.close("the server takes no writes");
        } else if classify::waited_for_a_lock(&error) {
            // The server lives. Its writes may all hang.
            self.pool.has_come(Kind::Read);
            lease.give_back();
        } else if classify::is_of_the_statement(&error) {
            self.pool.has_come(self.kind);
            lease.give_back();
        } else {
            self.pool.close(&classify::text(&self.server, &error));
        }
        if classify::is_duplicate(&error) {
            return Err(StoreError::Conflict);
        }
        Err((self.class)(&self.server, &error))
    }
}

impl MySql {
    fn new(settings: Settings) -> Self {
        let settings = Arc::new(settings);
        let (all, table) = (Arc::clone(&settings), Arc::<FoundTable>::default());
        let connect_to: ConnectFn<Pool> = Arc::new(move |at| {
            let (settings, table) = (Arc::clone(&all), Arc::clone(&table));
            Box::pin(async move { Pool::open(settings, at, &table).await })
        });
        let labels = settings.servers.iter().map(ToString::to_string);
        let dialer = Dialer::new(settings.to_string(), labels.collect(), 0, connect_to);
        Self {
            settings,
            dialer: Arc::new(dialer),
        }
    }

    async fn pool(&self) -> Result<Pool, StoreError> {
        self.dialer
            .connected(clock::boot().after(CONNECT_WITHIN))
            .await
    }

    /// Carries out a statement in its turn.
    async fn carry_out(
        &self,
        kind: Kind,
        text: String,
        class: fn(&str, &Error) -> StoreError,
    ) -> Result<Outcome, StoreError> {
        let pool = self.pool().await?;
        let _patience = Patience::begin(&self.dialer, &pool, kind);
        let _turn = pool.turn(kind).await?;
        let lease = pool.lease().await?;
        let late = match kind {
            Kind::Read => StoreError::unavailable,
            Kind::Write => StoreError::unknown,
        };
        let statement = Statement {
            kind,
            text,
            class,
            late,
            server: self.settings.to_string(),
            dialer: Arc::clone(&self.dialer),
            pool: pool.clone(),
        };
        let answer = tokio::spawn(statement.run(lease)).await;
        answer.unwrap_or_else(|panicked| Err(late(panicked.to_string())))
    }

    /// Carries out a statement that changes nothing.
    async fn query(&self, statement: String) -> Result<Vec<Row>, StoreError> {
        let answer = self.carry_out(Kind::Read, statement, classify::reading);
        Ok(answer.await?.rows)
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

    /// Makes a register.
    async fn create(&self, write: &Write) -> Result<Written, StoreError> {
        let table = &self.settings.table;
        let statement = sql::create(table, write);
        let made = self.carry_out(Kind::Write, statement, classify::writing);
        let made = made.await?;
        let (1, Some(version)) = (made.changed, made.told) else {
            return Err(StoreError::broken(format!(
                "expected a row with an empty key in table {table}, above whose version those of \
                 new registers are, found none: somebody has deleted it; start a process anew, \
                 which makes it"
            )));
        };
        // The row is written. If this read fails, only the stamp is unknown.
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
        let written = self.carry_out(Kind::Write, statement, classify::writing);
        let written = written.await?;
        if written.changed == 0 {
            return Err(StoreError::Conflict);
        }
        Ok(Written {
            version: Version::from_u64(next),
            now: written.told.map(sql::store_time),
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
        // The first statement deletes nothing, so its failure is that of a read.
        let raise = sql::raise_floor(table, key, version);
        let raised = self.carry_out(Kind::Write, raise, classify::reading);
        raised.await?;
        let delete = sql::delete(table, key, version);
        let deleted = self.carry_out(Kind::Write, delete, classify::writing);
        if deleted.await?.changed == 0 {
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
                // Rows with invalid keys were written by hand, and are skipped.
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
