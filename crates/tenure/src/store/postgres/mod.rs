//! Registers in a PostgreSQL table.
//!
//! A write is **one round trip**: a conditional `UPDATE` or `INSERT` whose
//! `RETURNING` says whether it happened, in an implicit transaction that also
//! asks for the safe setting (`synchronous_commit`, raised to `on` if it is
//! lower) and bounds its own time. Writes that come while others of their
//! connection are under way go in one transaction (`batches.rs`).
//!
//! The notification of other processes goes out right behind it, in a
//! transaction of its own. Both go in the simple query protocol, so there is no
//! prepared statement that a transaction-pooling proxy could misplace; values
//! travel as hexadecimal literals, so there is nothing to escape.
//!
//! All calls of a process are pipelined over one connection (`client.rs`); a
//! second one listens for changes (`watcher.rs`). Each goes to the first of
//! the URL's hosts that finishes a whole handshake and takes writes
//! (`connect.rs`), and is no old primary by what the others say (`histories.rs`).
//!
//! Grants are judged by observed silence unless the user asks for
//! `?expiry=store-clock`: a database server's clock may step, and after a
//! fail-over it is another server's clock.
//!
//! Left out on purpose: reading from standbys (a read must see every
//! acknowledged write; connections insist on a server that takes writes), and
//! advisory locks (they do not survive a pooling proxy, and anybody can take
//! them).

mod answers;
mod batches;
mod classify;
mod client;
mod connect;
mod error_text;
mod frames;
mod heartbeat_sql;
mod heartbeat_tables;
mod heartbeats;
mod hints;
mod histories;
mod notices;
mod passfile;
mod pool;
mod resolved_table;
mod settings;
mod socket;
mod sql;
mod table;
mod tls;
mod unsent_notifications;
mod watcher;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::client::PgClient;
use self::pool::Pool;
use self::settings::Settings;
use super::hub::Hub;
use super::watcher::Watcher;
use super::{
    BoxFuture, Clock, Features, Key, Page, Reading, Selector, Store, Version, Watch, Write,
    Written, refuse_oversized,
};
use crate::error::StoreError;

pub use self::sql::migration;

/// Registers in a PostgreSQL table. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Postgres {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Arc<Settings>,
    pool: Pool,
    hub: Arc<Hub>,
    watcher: Watcher,
}

impl Postgres {
    /// Prepares to use the server that `url` names. Connects at the first
    /// call, and then creates the table if it is missing.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if the URL is wrong.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        Self::start(Self::of_registers(url)?)
    }

    /// What a URL says that asks for no other format.
    fn of_registers(url: &str) -> Result<Settings, StoreError> {
        let settings = Settings::parse(url)?;
        if settings.heartbeats.is_asked {
            return Err(StoreError::broken(
                "expected a URL without format=, found one with it: `tenure::store::open` opens \
                 such a store",
            ));
        }
        Ok(settings)
    }

    /// The same to look at what there is: calls fail as unavailable while
    /// there is no table.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if the URL is wrong.
    pub fn existing(url: &str) -> Result<Self, StoreError> {
        let mut settings = Self::of_registers(url)?;
        settings.may_create = false;
        Self::start(settings)
    }

    /// Prepares to use the server that `url` names, in the format that it asks for.
    pub(super) fn open(url: &str, make: bool) -> Result<Arc<dyn Store>, StoreError> {
        let mut settings = Settings::parse(url)?;
        settings.may_create = make;
        if settings.heartbeats.is_asked {
            return Ok(Arc::new(heartbeats::open(Arc::new(settings))));
        }
        Ok(Arc::new(Self::start(settings)?))
    }

    fn start(settings: Settings) -> Result<Self, StoreError> {
        let settings = Arc::new(settings);
        let client = Arc::new(PgClient::new(Arc::clone(&settings)));
        let hub = Arc::new(Hub::default());
        let watcher = watcher::start(Arc::clone(&settings), Arc::clone(&client), Arc::clone(&hub));
        Ok(Self {
            shared: Arc::new(Shared {
                settings,
                pool: Pool::new(client),
                hub,
                watcher,
            }),
        })
    }

    async fn read_one(&self, key: &Key, within: Duration) -> Result<Reading, StoreError> {
        let client = self.shared.pool.of(key);
        let rows = client.read(|table| sql::read(table, key), within).await?;
        sql::reading(&rows)
    }

    async fn swap(&self, write: Write, within: Duration) -> Result<Written, StoreError> {
        refuse_oversized(&write)?;
        let Shared { pool, hub, .. } = &*self.shared;
        let client = pool.of(&write.key);
        let change = |table: &_| sql::write(table, &write, within);
        let on_rows = |rows: &[_]| {
            let Some((register, now)) = sql::written(rows, &write.value)? else {
                return Err(StoreError::Conflict);
            };
            let version = register.version.clone();
            hub.publish(&write.key, register);
            Ok(Written { version, now })
        };
        client.swap(&write.key, change, on_rows, within).await
    }

    async fn remove(
        &self,
        key: &Key,
        expected: &Version,
        within: Duration,
    ) -> Result<(), StoreError> {
        let Shared { pool, hub, .. } = &*self.shared;
        let client = pool.of(key);
        // A version that is not a number is none of this store's: a conflict.
        let change = |table: &_| sql::delete(table, key, expected, within);
        let on_rows = |rows: &[_]| {
            if rows.is_empty() {
                return Err(StoreError::Conflict);
            }
            hub.publish_gone(key, expected.clone());
            Ok(())
        };
        client.write(change, on_rows, within).await
    }

    async fn page(
        &self,
        prefix: &str,
        after: Option<&Key>,
        within: Duration,
    ) -> Result<Page, StoreError> {
        let list = |table: &_| sql::list(table, prefix, after);
        let rows = self.shared.pool.first().read(list, within).await?;
        sql::page(&rows)
    }
}

impl fmt::Display for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.settings.fmt(f)
    }
}

impl Store for Postgres {
    fn features(&self) -> Features {
        let judge_by_store_clock = self.shared.settings.judge_by_store_clock;
        Features {
            clock: Clock::MayStep,
            judge_by_store_clock,
        }
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Reading, StoreError>> {
        Box::pin(self.read_one(key, within))
    }

    fn compare_and_swap(
        &self,
        write: Write,
        within: Duration,
    ) -> BoxFuture<'_, Result<Written, StoreError>> {
        Box::pin(self.swap(write, within))
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.remove(key, expected, within))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(self.page(prefix, after, within))
    }

    fn round_trip(&self, within: Duration) -> BoxFuture<'_, Option<Duration>> {
        Box::pin(self.shared.pool.first().round_trip(within))
    }

    fn watch(&self, selector: Selector) -> Watch {
        let watch = self.shared.hub.subscribe(selector);
        self.shared.watcher.wake();
        watch
    }
}
