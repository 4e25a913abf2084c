//! Registers in a cluster of our own: `tenure://h1:7400,h2:7400,h3:7400`.
//!
//! This is the [`tenure_client::Client`] under the waist's names. A
//! write takes effect once, however often its leader changes on the way; that
//! is no retry in the contract's sense, since the command keeps its number
//! and the cluster does it once.
//!
//! The clock is the log's time: stamped by the leader, carried on by the next
//! one, and never faster than the clocks of the leaders. Stamps never go back;
//! the time of an answer may, when another leads, and then a grant looks
//! younger than it is. So a grant is judged over by that clock alone, and a
//! fresh candidate takes a long-dead election at once.
//!
//! Versions are the ids of the log entries that wrote.
//!
//! With `?hold=session` the elections of a process are not renewed one by one:
//! [`session_hold`] binds their registers to sessions, up to 1,024 to each, and has
//! these confirmed.

mod session_hold;
mod watcher;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Client, Error};

use self::session_hold::{SessionHold, SessionPool};
use super::hub::Hub;
use super::watcher::Watcher;
use super::{
    BoxFuture, Clock, Features, Hold, Key, PAGE_MAX, Page, Reading, Register, Selector, Stamp,
    Store, Version, Watch, Write, Written, refuse_oversized,
};
use crate::error::StoreError;

/// Registers in a cluster of `tenure serve`. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Tenure {
    client: Client,
    hub: Arc<Hub>,
    watcher: Arc<Watcher>,
    /// The sessions that hold elections, if they are to.
    pool: Option<Arc<SessionPool>>,
}

impl Tenure {
    /// Prepares to use the cluster that `url` names. Connects at the first
    /// call.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if the URL is wrong.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        Ok(Self::with(Client::open(url)?))
    }

    /// The registers of the cluster that `client` speaks to.
    pub fn with(client: Client) -> Self {
        let hub = Arc::new(Hub::default());
        let watcher = watcher::start(client.clone(), Arc::clone(&hub));
        let by_session = client.holds_by_session();
        let pool = by_session.then(|| Arc::new(SessionPool::new(client.clone(), Arc::clone(&hub))));
        Self {
            client,
            hub,
            watcher: Arc::new(watcher),
            pool,
        }
    }

    /// Says with a call that had no answer in time if it could not have one.
    fn store_error(&self, error: Error, within: Duration) -> StoreError {
        let far = |why: String| match self.client.explain_timeout(within) {
            Some(far) => format!("{why}; {far}"),
            None => why,
        };
        match error {
            Error::Unavailable(why) => Error::Unavailable(far(why)).into(),
            Error::Unknown(why) => Error::Unknown(far(why)).into(),
            error => error.into(),
        }
    }

    async fn swap(&self, write: Write, within: Duration) -> Result<Written, StoreError> {
        refuse_oversized(&write)?;
        let (key, value, stamp) = (write.key.clone(), Arc::clone(&write.value), write.stamp);
        let written = self
            .client
            .on_next_connection(within)
            .compare_and_swap(write)
            .await;
        let written = written.map_err(|error| self.store_error(error, within))?;
        // What the stamp is after a write that leaves it, only a read tells.
        if stamp == Stamp::Now && written.now.is_some() {
            let register = Register {
                value,
                version: written.version.clone(),
                stamp: written.now,
            };
            self.hub.publish(&key, register);
        }
        Ok(Written {
            version: written.version,
            now: written.now,
        })
    }

    async fn remove(
        &self,
        key: &Key,
        expected: &Version,
        within: Duration,
    ) -> Result<(), StoreError> {
        Ok(self
            .client
            .on_next_connection(within)
            .delete(key, expected)
            .await?)
    }

    async fn page(
        &self,
        prefix: &str,
        after: Option<&Key>,
        within: Duration,
    ) -> Result<Page, StoreError> {
        let most = u32::try_from(PAGE_MAX).unwrap_or(u32::MAX);
        let listing = self
            .client
            .on_next_connection(within)
            .list(prefix, after, most)
            .await?;
        let last = listing.registers.last().map(|(key, _)| key.clone());
        Ok(Page {
            registers: listing.registers,
            more_after: last.filter(|_| listing.more),
            now: listing.now,
        })
    }
}

impl fmt::Display for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenure://{}", self.client.servers().join(","))
    }
}

impl Store for Tenure {
    fn features(&self) -> Features {
        Features {
            clock: Clock::CannotStep,
            judge_by_store_clock: false,
        }
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Reading, StoreError>> {
        Box::pin(async move {
            let read = self.client.on_next_connection(within).read(key).await;
            read.map_err(|error| self.store_error(error, within))
        })
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
        Box::pin(async move {
            let client = self.client.with_timeout(within);
            client.prepare().await;
            client.round_trip().await
        })
    }

    fn watch(&self, selector: Selector) -> Watch {
        let watch = self.hub.subscribe(selector);
        self.watcher.wake();
        watch
    }

    fn hold(&self, key: &Key, lease: Duration) -> Option<Arc<dyn Hold>> {
        let pool = self
            .pool
            .as_ref()
            .filter(|_| lease <= session_hold::LEASE_MAX)?;
        Some(Arc::new(SessionHold::new(Arc::clone(pool), key.clone())))
    }
}
