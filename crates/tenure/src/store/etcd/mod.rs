//! Registers in etcd.
//!
//! A register is a key behind a prefix; its version is the revision of its
//! last change, which counts the changes of the whole cluster and is never
//! used twice. A write is one round trip: a transaction that compares that
//! revision and puts or deletes. Reads are linearizable, which is what etcd
//! does unless asked otherwise.
//!
//! All calls of a store go over one connection to one server, together with
//! the stream of changes; the servers are tried in the order of the URL. A
//! call without an answer in time makes its connection suspect: it is left,
//! and the next call goes to the next server. A write is never sent again.
//!
//! etcd has no clock to judge grants by, so they are judged by observed
//! silence.
//!
//! Left out on purpose: elections by etcd's own leases and by its election
//! service (a lease there outlives its holder's connection in ways that
//! nothing here can see, and registers are all that an election needs), and
//! reads from one server's memory (they may be old).

mod bounded;
mod classify;
mod client;
mod clusters;
mod connection;
mod handshake;
mod kv;
mod settings;
mod watcher;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::client::EtcdClient;
use self::kv::KeySpace;
use self::settings::Settings;
use self::wire::{RANGE, RangeResponse, TXN, TxnRequest, TxnResponse};
use super::hub::Hub;
use super::watcher::Watcher;
use super::{
    BoxFuture, Clock, Features, Key, Page, Reading, Register, Selector, Store, Version, Watch,
    Write, Written, refuse_oversized,
};
use crate::clock;
use crate::error::StoreError;

/// Registers in etcd. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Etcd {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Arc<Settings>,
    client: Arc<EtcdClient>,
    hub: Arc<Hub>,
    watcher: Watcher,
}

impl Etcd {
    /// Prepares to use the servers that `url` names. Connects at the first
    /// call.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if the URL is wrong, or a file that it names
    /// cannot be used.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let settings = Arc::new(Settings::parse(url)?);
        let client = Arc::new(EtcdClient::new(Arc::clone(&settings)));
        let hub = Arc::new(Hub::default());
        let watcher = watcher::start(Arc::clone(&settings), Arc::clone(&client), Arc::clone(&hub));
        Ok(Self {
            shared: Arc::new(Shared {
                settings,
                client,
                hub,
                watcher,
            }),
        })
    }

    fn keyspace(&self) -> KeySpace<'_> {
        let prefix = self.shared.settings.prefix.as_str();
        KeySpace { prefix }
    }

    async fn read_one(&self, key: &Key, within: Duration) -> Result<Reading, StoreError> {
        let request = self.keyspace().read(key);
        let answer: RangeResponse = self.shared.client.read(RANGE, request, within).await?;
        let register = answer.kvs.first().map(kv::register).transpose()?;
        Ok(Reading {
            register,
            now: None,
            bound: None,
        })
    }

    async fn swap(&self, write: Write, within: Duration) -> Result<Written, StoreError> {
        refuse_oversized(&write)?;
        let request = self.keyspace().swap(&write);
        let version = self.change(request, within).await?;
        let register = Register {
            value: write.value,
            version: version.clone(),
            stamp: None,
        };
        self.shared.hub.publish(&write.key, register);
        Ok(Written { version, now: None })
    }

    async fn remove(
        &self,
        key: &Key,
        expected: &Version,
        within: Duration,
    ) -> Result<(), StoreError> {
        let request = self.keyspace().delete(key, expected);
        let version = self.change(request, within).await?;
        self.shared.hub.publish_gone(key, version);
        Ok(())
    }

    /// Carries out a conditional change; the version that its revision makes.
    async fn change(
        &self,
        request: Option<TxnRequest>,
        within: Duration,
    ) -> Result<Version, StoreError> {
        // A version that etcd cannot have given is of no register.
        let request = request.ok_or(StoreError::Conflict)?;
        let answer: TxnResponse = self.shared.client.write(TXN, request, within).await?;
        if !answer.succeeded {
            return Err(StoreError::Conflict);
        }
        kv::version_of(kv::revision(answer.header.as_ref())?)
    }

    async fn page(
        &self,
        prefix: &str,
        after: Option<&Key>,
        within: Duration,
    ) -> Result<Page, StoreError> {
        let until = clock::boot().after(within);
        let keyspace = self.keyspace();
        let mut after = after.map(|key| keyspace.after(key));
        loop {
            let request = keyspace.list(prefix, after.as_deref());
            let left = until.since(clock::boot());
            let answer: RangeResponse = self.shared.client.read(RANGE, request, left).await?;
            let mut page = Page::default();
            for kv in &answer.kvs {
                if let Some(key) = keyspace.key(&kv.key) {
                    page.registers.push((key, kv::register(kv)?));
                }
            }
            let last = answer.kvs.last().filter(|_| answer.more);
            match (last, page.registers.last()) {
                // A page of nobody's keys only: on to the next.
                (Some(last), None) => after = Some(last.key.clone()),
                (Some(_), Some((key, _))) => {
                    page.more_after = Some(key.clone());
                    return Ok(page);
                }
                (None, _) => return Ok(page),
            }
        }
    }
}

impl fmt::Display for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.settings.fmt(f)
    }
}

impl Store for Etcd {
    fn features(&self) -> Features {
        Features {
            clock: Clock::None,
            judge_by_store_clock: false,
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
        Box::pin(self.shared.client.round_trip(within))
    }

    fn watch(&self, selector: Selector) -> Watch {
        let watch = self.shared.hub.subscribe(selector);
        self.shared.watcher.wake();
        watch
    }
}
