//! Registers in a bucket of NATS JetStream.
//!
//! A bucket is a stream, and a register the last message of a subject there. Its
//! version is that message's number in the stream, which counts every message and is
//! never used twice. A write is one message that the stream takes if the last one of
//! its subject has the expected number. A deletion is such a message too, marked as
//! one (as the clients of NATS mark it); it stays, so numbers go on after it.
//!
//! Reads are asked of the stream's leader. Those that any replica may answer
//! (`DIRECT.GET`) are not used.
//!
//! All calls of a store go over one connection to one server, which forwards them to
//! the leader of the stream. Servers of one URL that have two streams are refused
//! (`streams.rs`). A call without an answer in time makes its connection
//! suspect: it is left, and the next call goes to the next server. A write is never
//! sent again.
//!
//! The stream tells of its new messages, without their values, while something is
//! watched. This is a hint: what is hinted at is read, and changes are looked for all
//! the same.
//!
//! JetStream stamps messages, and tells no time with a read, so there is no clock to
//! judge grants by: they are judged by observed silence.
//!
//! Left out on purpose: the client's own JetStream and buckets (they send some calls
//! again, and a write is sent once here); messages with a time to live, which end by
//! the servers' clocks without a word to their holder.

mod bucket;
mod classify;
mod client;
mod listener;
mod settings;
mod streams;

use std::fmt;
use std::sync::Arc;

use async_nats::HeaderMap;
use tokio::task::JoinSet;

use self::bucket::{Bucket, Entry};
use self::client::NatsClient;
use self::listener::Listener;
use self::settings::Settings;
use super::backend::Backend;
use super::{
    Expect, Key, PAGE_MAX, Page, PollTimes, Polled, Reading, Register, Version, Write, Written,
};
use crate::error::StoreError;

/// How many registers of a listing are read at the same time.
const READS_MAX: usize = 16;

/// The calls of a bucket.
#[derive(Debug)]
pub(super) struct Nats {
    settings: Arc<Settings>,
    client: NatsClient,
    listener: Listener,
}

/// The store that `url` names, whose bucket is made where it is missing if `create`
/// says so. Connects at the first call.
pub(super) fn open(url: &str, create: bool) -> Result<Polled<Nats>, StoreError> {
    let settings = Arc::new(Settings::parse(url)?);
    let times = PollTimes {
        floor: settings.poll_every,
        ..PollTimes::default()
    };
    let backend = Nats {
        client: NatsClient::new(&settings, create),
        listener: Listener::default(),
        settings,
    };
    Ok(Polled::new(backend, times))
}

impl fmt::Display for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

/// The number that a version stands for. 0 is none: it means that there is no message.
fn number(version: &Version) -> Option<u64> {
    version.to_u64().filter(|number| *number > 0)
}

impl Backend for Nats {
    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        let last = self.client.last(&self.bucket().subject(key)).await?;
        Ok(Reading {
            register: last.and_then(Entry::into_register),
            now: None,
            bound: None,
        })
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let subject = self.bucket().subject(&write.key);
        let expected = match &write.expect {
            Expect::Absent => 0,
            // One that no message can have is of no register.
            Expect::Version(version) => number(version).ok_or(StoreError::Conflict)?,
        };
        let put = async |expected| {
            let headers = HeaderMap::new();
            self.client
                .publish(&subject, expected, headers, &write.value)
                .await
        };
        let written = match put(expected).await {
            // The stream has refused it. What is there may be the mark of a deletion.
            Err(StoreError::Conflict) if expected == 0 => match self.client.last(&subject).await? {
                Some(last) if last.is_gone() => put(last.number()).await?,
                _ => return Err(StoreError::Conflict),
            },
            written => written?,
        };
        Ok(Written {
            version: Version::from_u64(written),
            now: None,
        })
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let subject = self.bucket().subject(key);
        let expected = number(expected).ok_or(StoreError::Conflict)?;
        let mark = bucket::deletion();
        self.client.publish(&subject, expected, mark, &[]).await?;
        Ok(())
    }

    async fn hints(&self) -> Vec<(Key, Option<Version>)> {
        self.listener.hints(&self.client, self.bucket()).await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let bucket = self.bucket();
        let subjects = self.client.subjects(&bucket.filter(prefix)).await?;
        let keys = subjects.iter().filter_map(|subject| bucket.key(subject));
        let is_next = |key: &Key| {
            key.as_str().starts_with(prefix)
                && after.is_none_or(|after| key.as_str() > after.as_str())
        };
        let mut keys: Vec<Key> = keys.filter(is_next).collect();
        keys.sort_unstable();
        let mut page = Page::default();
        let mut keys = keys.into_iter();
        while page.registers.len() < PAGE_MAX {
            // As many as there is room for: some may be deleted.
            let room = PAGE_MAX - page.registers.len();
            let batch: Vec<Key> = keys.by_ref().take(room).collect();
            let Some(last) = batch.last().cloned() else {
                page.more_after = None;
                return Ok(page);
            };
            page.registers.extend(self.read_all(batch).await?);
            page.more_after = Some(last);
        }
        if keys.next().is_none() {
            page.more_after = None;
        }
        Ok(page)
    }
}

impl Nats {
    fn bucket(&self) -> Bucket<'_> {
        self.settings.bucket()
    }

    /// The registers of these keys that there are, in their order.
    async fn read_all(&self, keys: Vec<Key>) -> Result<Vec<(Key, Register)>, StoreError> {
        let (mut keys, mut under_way) = (keys.into_iter().enumerate(), JoinSet::new());
        let mut found = Vec::new();
        loop {
            while under_way.len() < READS_MAX
                && let Some((at, key)) = keys.next()
            {
                let (client, subject) = (self.client.clone(), self.bucket().subject(&key));
                under_way.spawn(async move {
                    let last = client.last(&subject).await?;
                    let register = last.and_then(Entry::into_register);
                    Ok::<_, StoreError>((at, key, register))
                });
            }
            match under_way.join_next().await {
                None => break,
                Some(Ok(read)) => found.push(read?),
                Some(Err(panicked)) => return Err(StoreError::unavailable(panicked)),
            }
        }
        found.sort_unstable_by_key(|(at, ..)| *at);
        let there = found.into_iter();
        Ok(there
            .filter_map(|(_, key, register)| Some((key, register?)))
            .collect())
    }
}
