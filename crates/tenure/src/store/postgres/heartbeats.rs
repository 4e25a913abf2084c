//! Elections in a heartbeat table of HPC Pack HA in a PostgreSQL database
//! ([`crate::store::heartbeats`]).
//!
//! Calls go over the same connections as those of registers do (`client.rs`). Nothing
//! tells of what the other system writes, so changes are looked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::Name;

use super::client::PgClient;
use super::heartbeat_sql::{self as sql, Entry};
use super::settings::Settings;
use crate::error::StoreError;
use crate::store::heartbeats::{self, Change, Note};
use crate::store::{
    Backend, Clock, Features, Key, PAGE_MAX, Page, PollTimes, Polled, Reading, Register, Version,
    Write, Written,
};

/// How long a server may take for a statement; callers leave when their time is up.
const WITHIN: Duration = Duration::from_secs(5);
/// How often a row is read that changes while it is noted.
const TRIES: u32 = 8;

/// The calls on such a table.
pub(in crate::store) struct Heartbeats {
    settings: Arc<Settings>,
    client: PgClient,
}

/// Prepares to use the tables.
pub(super) fn open(settings: Arc<Settings>) -> Polled<Heartbeats> {
    let times = PollTimes {
        floor: settings.poll_every,
        ..PollTimes::default()
    };
    let client = PgClient::new(Arc::clone(&settings));
    Polled::new(Heartbeats { settings, client }, times)
}

impl Heartbeats {
    async fn entry(&self, utype: &Name) -> Result<Entry, StoreError> {
        let client = &self.client;
        let rows = client.read_heartbeats(|tables| sql::read(tables, utype), WITHIN);
        sql::entry(&rows.await?)
    }

    /// The election, with a new note if another program has written its row.
    async fn noted(&self, utype: &Name) -> Result<Entry, StoreError> {
        for _ in 0..TRIES {
            let seen = self.entry(utype).await?;
            if seen.is_plain() {
                return Ok(seen);
            }
            let known = seen.note.as_ref().map(|(_, note)| note);
            let timeout = self.settings.heartbeats.timeout;
            let note = Note::after(known, utype, seen.beat.as_ref(), timeout)?;
            let written = self.client.write_heartbeats(
                |tables| sql::note(tables, utype, &seen, &note, WITHIN),
                |_| Ok(()),
                WITHIN,
            );
            written.await.map_err(heartbeats::of_reading)?;
        }
        Err(StoreError::unavailable(format!(
            "the row of {utype} in {self} changes faster than it is read"
        )))
    }
}

fn reading(entry: Entry) -> Reading {
    let stamp = entry.beat.and_then(|beat| beat.millis);
    Reading {
        register: entry.note.map(|(version, note)| Register {
            value: note.record,
            version,
            stamp: stamp.map(heartbeats::store_time),
        }),
        now: Some(heartbeats::store_time(entry.now)),
        bound: None,
    }
}

impl fmt::Display for Heartbeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}?format=hpc&table={}",
            self.settings, self.settings.table.name
        )
    }
}

impl fmt::Debug for Heartbeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Backend for Heartbeats {
    fn features(&self) -> Features {
        Features {
            clock: Clock::MayStep,
            judge_by_store_clock: self.settings.judge_by_store_clock,
        }
    }

    fn max_lease(&self) -> Option<Duration> {
        Some(self.settings.heartbeats.timeout)
    }

    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        if heartbeats::is_probe(key) {
            let probe = self.client.read_heartbeats(|_| "SELECT 1".into(), WITHIN);
            return probe.await.map(|_| Reading::default());
        }
        Ok(reading(self.noted(&heartbeats::utype(key)?).await?))
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let change = Change::new(write, self.settings.heartbeats.timeout)?;
        if change.row.is_none() {
            let entry = self.noted(&change.utype).await?;
            change.check(entry.note.as_ref().map(|(_, note)| note))?;
        }
        let written = self.client.write_heartbeats(
            |tables| sql::write(tables, &change, &write.expect, WITHIN),
            sql::written,
            WITHIN,
        );
        let (version, now) = written.await?.ok_or(StoreError::Conflict)?;
        Ok(Written {
            version,
            now: Some(heartbeats::store_time(now)),
        })
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let utype = heartbeats::utype(key)?;
        let deleted = self.client.write_heartbeats(
            |tables| sql::delete(tables, &utype, expected, WITHIN),
            |rows| Ok(!rows.is_empty()),
            WITHIN,
        );
        if deleted.await? {
            return Ok(());
        }
        Err(StoreError::Conflict)
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let prefix = heartbeats::utypes(prefix)?;
        let after = after.map(heartbeats::after);
        let client = &self.client;
        let rows = client.read_heartbeats(|tables| sql::utypes(tables, prefix, after), WITHIN);
        let names = sql::names(&rows.await?);
        let more = names.len() > PAGE_MAX;
        let mut page = Page::default();
        for name in names.iter().take(PAGE_MAX) {
            // What is no name was written by hand; it is no election.
            let Some(key) = heartbeats::key(name) else {
                continue;
            };
            let read = self.read(&key).await?;
            page.now = read.now;
            if let Some(register) = read.register {
                page.registers.push((key, register));
            }
        }
        let last = page.registers.last().filter(|_| more);
        page.more_after = last.map(|(key, _)| key.clone());
        Ok(page)
    }
}
