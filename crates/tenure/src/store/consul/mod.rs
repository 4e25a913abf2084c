//! Registers in the keys and values of Consul.
//!
//! A register is a key behind a prefix; its version is the index of its last change
//! (`ModifyIndex`), which counts the changes of the whole datacenter and is never used
//! twice. A write is a transaction of one step, which sets the key if it has that
//! index, or if there is none, and answers with the new one. A deletion checks the
//! index and deletes, in one transaction: Consul's own deletion on a condition takes a
//! key that is not there for deleted. Reads are `consistent`: the leading server asks
//! a majority whether it still leads.
//!
//! Consul does not count a write that changes nothing. So each write sets the flags of
//! its key, which mean nothing to Consul, to a random number: two writes of one value
//! are two versions, and the value can be read by hand.
//!
//! Calls go to one agent or server at a time, which forwards them to the leader. A
//! call without an answer in time makes it suspect, and the next call goes to the next
//! one of the URL. A write is never sent again. Changes are waited for by blocking
//! queries (`watcher.rs`).
//!
//! There is no clock to judge grants by, so they are judged by observed silence.
//!
//! Left out on purpose: sessions and locks of Consul (a session ends by the servers'
//! clocks and by health checks, without a word to its holder), and stale reads.

mod classify;
mod client;
mod datacenters;
mod kv;
mod settings;
mod watcher;

use std::fmt;
use std::sync::Arc;

use self::client::{ConsulClient, Query};
use self::kv::KeySpace;
use self::settings::Settings;
use super::backend::Backend;
use super::{Expect, Key, PAGE_MAX, Page, Polled, Reading, Version, Write, Written};
use crate::error::StoreError;

/// The calls of Consul.
#[derive(Debug)]
pub(super) struct Consul {
    settings: Arc<Settings>,
    client: Arc<ConsulClient>,
}

/// The store that `url` names. Connects at the first call.
pub(super) fn open(url: &str) -> Result<Polled<Consul>, StoreError> {
    let settings = Arc::new(Settings::parse(url)?);
    let client = Arc::new(ConsulClient::new(&settings)?);
    let backend = Consul { settings, client };
    Ok(Polled::watched_by(backend, |backend, hub| {
        watcher::start(Arc::clone(&backend.client), hub)
    }))
}

impl fmt::Display for Consul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl Consul {
    fn keyspace(&self) -> KeySpace<'_> {
        self.settings.keyspace()
    }
}

impl Backend for Consul {
    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        let query = Query::key(&self.keyspace().name(key));
        let answer = self.client.read(&query).await?;
        Ok(Reading {
            register: answer
                .entries
                .into_iter()
                .next()
                .map(kv::Entry::into_register),
            now: None,
            bound: None,
        })
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let index = match &write.expect {
            Expect::Absent => 0,
            // One that Consul cannot have given is of no register.
            Expect::Version(version) => kv::index(version).ok_or(StoreError::Conflict)?,
        };
        let flags = getrandom::u64().map_err(StoreError::unavailable)?;
        let name = self.keyspace().name(&write.key);
        let steps = kv::swap(&name, index, flags, &write.value);
        let answer = self.client.transact(&steps).await?;
        let written = kv::written(&answer).filter(|written| *written > index);
        // An answer that cannot be read says nothing of what was done.
        let written = written.ok_or_else(|| StoreError::unknown(kv::NO_INDEX))?;
        Ok(Written {
            version: Version::from_u64(written),
            now: None,
        })
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let index = kv::index(expected).ok_or(StoreError::Conflict)?;
        let steps = kv::delete(&self.keyspace().name(key), index);
        self.client.transact(&steps).await?;
        Ok(())
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let keyspace = self.keyspace();
        let query = Query::below(&keyspace.beginning(prefix));
        let answer = self.client.read(&query).await?;
        let mut registers = keyspace.registers(answer.entries);
        if let Some(after) = after {
            registers.retain(|(key, _)| key.as_str() > after.as_str());
        }
        registers.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut page = Page::default();
        if registers.len() > PAGE_MAX {
            registers.truncate(PAGE_MAX);
            page.more_after = registers.last().map(|(key, _)| key.clone());
        }
        page.registers = registers;
        Ok(page)
    }
}
