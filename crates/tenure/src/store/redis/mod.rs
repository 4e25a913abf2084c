//! Registers in Redis, or Valkey.
//!
//! A register is a hash behind a prefix. A write is a script, which compares the
//! version and writes, or does nothing; the server runs it whole before any other
//! call. With each read the server is asked whether it takes writes: one that has become
//! a replica may answer with what is old.
//!
//! All calls of a store go over one connection to one server: the one of the URL, or
//! the one that sentinels name. A call without an answer in time makes its
//! connection suspect: it is left, and the next call opens another, by the next
//! sentinel. A write is never sent again; a script that the server does not know is
//! sent whole, since the server has not run it.
//!
//! A script tells of what it wrote on a channel, which a second connection listens to
//! while something is watched. This is a hint: what is hinted at is read, and changes
//! are looked for all the same.
//!
//! The server's clock may step, so grants are judged by observed silence unless the
//! URL asks for it.
//!
//! Redis may lose what it has acknowledged, and no call can ask it not to. What its
//! configuration allows is looked at with each connection, and said
//! (`durability.rs`).
//!
//! Left out on purpose: keys that expire and locks of Redis (`SET NX PX`, Redlock),
//! which end by the server's clock without a word to their holder; clusters of
//! Redis, where the keys of a store would be on several servers; reads from
//! replicas.

mod backlog;
mod classify;
mod client;
mod connect;
mod durability;
mod frames;
mod listener;
mod opening;
mod registers;
mod sentinels;
mod settings;
mod tls;

use std::fmt;
use std::sync::Arc;

use self::client::RedisClient;
use self::listener::Listener;
use self::registers::{DELETE, FIELDS, KeySpace, NAMES_MAX, WRITE, version_text};
use self::settings::Settings;
use super::backend::Backend;
use super::{
    Clock, Durability, Expect, Features, Key, Page, PollTimes, Polled, Reading, Stamp, Version,
    Write, Written,
};
use crate::error::StoreError;

/// The schemes of URLs.
pub(super) const SCHEMES: [&str; 4] = ["redis", "rediss", "redis+sentinel", "rediss+sentinel"];

/// The calls of a server of Redis or Valkey.
#[derive(Debug)]
pub struct Redis {
    settings: Arc<Settings>,
    client: RedisClient,
    listener: Listener,
}

impl Redis {
    /// The store that `url` names. Connects at the first call.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if the URL is wrong, or a file that it names cannot be
    /// used.
    pub fn store(url: &str) -> Result<Polled<Self>, StoreError> {
        let settings = Arc::new(Settings::parse(url)?);
        let times = PollTimes {
            floor: settings.poll_every,
            ..PollTimes::default()
        };
        let backend = Self {
            client: RedisClient::new(&settings),
            listener: Listener::new(&settings),
            settings,
        };
        Ok(Polled::new(backend, times))
    }

    fn keyspace(&self) -> KeySpace<'_> {
        let prefix = self.settings.prefix.as_str();
        KeySpace { prefix }
    }
}

impl fmt::Display for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl Backend for Redis {
    fn durability(&self) -> Durability {
        self.client.durability()
    }

    fn features(&self) -> Features {
        Features {
            clock: Clock::MayStep,
            judge_by_store_clock: self.settings.judge_by_store_clock,
        }
    }

    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        let register = self.keyspace().register(key.as_str());
        let mut ask = ::redis::pipe();
        ask.cmd("TIME").cmd("EXISTS").arg(&register);
        ask.cmd("HMGET").arg(&register).arg(&FIELDS);
        match self.client.read(&ask).await?.as_slice() {
            [now, exists, fields] => registers::reading(exists, fields, now),
            _ => Err(StoreError::broken("expected three answers")),
        }
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let expected = match &write.expect {
            Expect::Absent => "",
            // One that the script cannot have given is of no register.
            Expect::Version(version) => version_text(version).ok_or(StoreError::Conflict)?,
        };
        let mark = getrandom::u64().map_err(StoreError::unavailable)?;
        let (mark, keyspace, name) = (format!("{mark:016x}"), self.keyspace(), write.key.as_str());
        let changes = keyspace.changes();
        let keys = [keyspace.register(name), keyspace.count(), keyspace.names()];
        let stamp: &[u8] = match write.stamp {
            Stamp::Now => b"1",
            Stamp::Keep => b"0",
        };
        let arguments = [
            expected.as_bytes(),
            name.as_bytes(),
            &write.value,
            stamp,
            mark.as_bytes(),
            changes.as_bytes(),
        ];
        let answer = self.client.run(&WRITE, &keys, &arguments).await?;
        // An answer that cannot be read says nothing of what was done.
        let written = registers::written(&answer).map_err(StoreError::unknown)?;
        let (version, now) = written.ok_or(StoreError::Conflict)?;
        Ok(Written {
            version,
            now: Some(now),
        })
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let expected = version_text(expected).ok_or(StoreError::Conflict)?;
        let (keyspace, name) = (self.keyspace(), key.as_str());
        let (keys, changes) = (
            [keyspace.register(name), keyspace.names()],
            keyspace.changes(),
        );
        let arguments = [expected.as_bytes(), name.as_bytes(), changes.as_bytes()];
        match self.client.run(&DELETE, &keys, &arguments).await? {
            ::redis::Value::Int(1) => Ok(()),
            ::redis::Value::Int(0) => Err(StoreError::Conflict),
            other => Err(StoreError::unknown(registers::unexpected("0 or 1", &other))),
        }
    }

    async fn hints(&self) -> Vec<(Key, Option<Version>)> {
        self.listener.hints().await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let keyspace = self.keyspace();
        let mut after = after.map(|key| key.as_str().to_owned());
        loop {
            let [from, to] = registers::range(prefix, after.as_deref());
            let mut ask = ::redis::pipe();
            ask.cmd("TIME");
            ask.cmd("ZRANGEBYLEX")
                .arg(keyspace.names())
                .arg(from)
                .arg(to);
            ask.arg("LIMIT").arg(0).arg(NAMES_MAX);
            let answers = self.client.read(&ask).await?;
            let [now, names] = answers.as_slice() else {
                return Err(StoreError::broken("expected two answers"));
            };
            let (keys, more) = registers::names(names)?;
            let mut page = Page {
                now: Some(registers::time(now)?),
                ..Page::default()
            };
            if !keys.is_empty() {
                page = self.registers(keys).await?;
            }
            match (more, page.registers.last()) {
                (None, _) => return Ok(page),
                // The page may be short: a name may have lost its register.
                (Some(last), Some(_)) => {
                    page.more_after = Some(Key::new(&last).map_err(StoreError::broken)?);
                    return Ok(page);
                }
                (Some(last), None) => after = Some(last),
            }
        }
    }
}

impl Redis {
    /// The registers of these keys that there are.
    async fn registers(&self, keys: Vec<Key>) -> Result<Page, StoreError> {
        let mut ask = ::redis::pipe();
        ask.cmd("TIME");
        for key in &keys {
            let register = self.keyspace().register(key.as_str());
            ask.cmd("HMGET").arg(register).arg(&FIELDS);
        }
        let answers = self.client.read(&ask).await?;
        let Some((now, fields)) = answers.split_first() else {
            return Err(StoreError::broken("expected an answer"));
        };
        let mut page = Page {
            now: Some(registers::time(now)?),
            ..Page::default()
        };
        for (key, fields) in keys.into_iter().zip(fields) {
            if let Some(register) = registers::register(fields)? {
                page.registers.push((key, register));
            }
        }
        Ok(page)
    }
}
