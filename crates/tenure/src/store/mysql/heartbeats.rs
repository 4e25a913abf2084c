//! Elections in a heartbeat table of HPC Pack HA in a database of MySQL or MariaDB
//! ([`crate::store::heartbeats`]).
//!
//! Calls go over the same connections as those of registers do (`mod.rs`). Which
//! statements a write consists of is the matter of [`super::heartbeat_sql`].

use std::fmt;
use std::time::Duration;

use tenure_core::ids::Name;

use super::heartbeat_sql::{self as statements, Entry, Tables};
use super::pool::Kind;
use super::{MySql, classify, sql};
use crate::error::StoreError;
use crate::store::heartbeats::{self, Change, Note};
use crate::store::{
    Backend, Clock, Expect, Features, Key, PAGE_MAX, Page, Reading, Register, Version, Write,
    Written,
};

/// How often a row is read that changes while it is noted.
const TRIES: u32 = 8;

/// The calls on such tables.
#[derive(Debug)]
pub(in crate::store) struct Heartbeats {
    client: MySql,
    notes: String,
}

impl Heartbeats {
    pub(super) fn new(client: MySql) -> Self {
        let notes = client.settings.notes();
        Self { client, notes }
    }

    fn tables(&self) -> Tables<'_> {
        self.client.settings.tables(&self.notes)
    }

    fn timeout(&self) -> Duration {
        self.client.settings.heartbeats.timeout
    }

    async fn entry(&self, utype: &Name) -> Result<Entry, StoreError> {
        let statement = statements::read(self.tables(), utype);
        statements::entry(&self.client.query_primary(statement).await?)
    }

    /// Writes; how many rows were changed, and when.
    async fn change(&self, statement: String) -> Result<(u64, Option<u64>), StoreError> {
        let done = self
            .client
            .carry_out(Kind::Write, statement, classify::writing);
        let done = done.await?;
        Ok((done.changed, done.told))
    }

    /// Writes what means nothing by itself: whether it was written does not matter.
    async fn prepare(&self, statement: String) -> Result<u64, StoreError> {
        let changed = self.change(statement).await;
        Ok(changed.map_err(heartbeats::of_reading)?.0)
    }

    /// The election, with a new note if another program has written its row.
    async fn noted(&self, utype: &Name) -> Result<Entry, StoreError> {
        for _ in 0..TRIES {
            let seen = self.entry(utype).await?;
            if seen.is_plain() {
                return Ok(seen);
            }
            let note = Note::after(
                seen.note.as_ref(),
                utype,
                seen.beat.as_ref(),
                self.timeout(),
            )?;
            self.prepare(statements::note(self.tables(), utype, &seen, &note))
                .await?;
        }
        Err(StoreError::unavailable(format!(
            "the row of {utype} in {self} changes faster than it is read"
        )))
    }

    /// Has the row and the note there that a new election is written into; the version
    /// of the note.
    async fn made(&self, utype: &Name) -> Result<u64, StoreError> {
        self.prepare(statements::make_row(self.tables(), utype))
            .await?;
        self.prepare(statements::make_note(self.tables(), utype))
            .await?;
        let made = self.entry(utype).await?;
        if made.beat.is_none() {
            return Err(StoreError::broken(format!(
                "expected a row of its own for {utype} in {self}, found that the table takes its \
                 name for that of another row, which differs in capitals or accents alone; use \
                 another name, or give utype a binary collation"
            )));
        }
        match (made.version, made.note) {
            (Some(version), None) => Ok(version),
            _ => Err(StoreError::Conflict),
        }
    }

    /// Writes an election over what has this version; `None` if it was not written.
    async fn write(
        &self,
        change: &Change,
        version: u64,
        is_new: bool,
    ) -> Result<Option<Written>, StoreError> {
        let next = version.checked_add(1).ok_or(StoreError::Conflict)?;
        let statement = statements::write(self.tables(), change, version, is_new);
        let (changed, micros) = self.change(statement).await?;
        Ok((changed > 0).then(|| Written {
            version: Version::from_u64(next),
            now: micros.map(|micros| heartbeats::store_time(micros / 1_000)),
        }))
    }
}

fn reading(entry: Entry) -> Reading {
    let stamp = entry.beat.and_then(|beat| beat.millis);
    let register = entry.version.zip(entry.note);
    Reading {
        register: register.map(|(version, note)| Register {
            value: note.record,
            version: Version::from_u64(version),
            stamp: stamp.map(heartbeats::store_time),
        }),
        now: Some(heartbeats::store_time(entry.now)),
        bound: None,
    }
}

impl fmt::Display for Heartbeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.settings.fmt(f)
    }
}

impl Backend for Heartbeats {
    fn features(&self) -> Features {
        Features {
            clock: Clock::MayStep,
            judge_by_store_clock: self.client.settings.judge_by_store_clock,
        }
    }

    fn max_lease(&self) -> Option<Duration> {
        Some(self.timeout())
    }

    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        if heartbeats::is_probe(key) {
            self.client.query_primary(sql::state()).await?;
            return Ok(Reading::default());
        }
        Ok(reading(self.noted(&heartbeats::utype(key)?).await?))
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let change = Change::new(write, self.timeout())?;
        if change.row.is_none() {
            let entry = self.noted(&change.utype).await?;
            change.check(entry.note.as_ref())?;
        }
        let (version, is_new) = match &write.expect {
            Expect::Absent if change.row.is_none() => return Err(StoreError::Conflict),
            Expect::Absent => (self.made(&change.utype).await?, true),
            Expect::Version(version) => (version.to_u64().ok_or(StoreError::Conflict)?, false),
        };
        if let Some(written) = self.write(&change, version, is_new).await? {
            return Ok(written);
        }
        // Perhaps the row was deleted, and the note says so.
        if change.row.is_some() && !is_new {
            let seen = self.entry(&change.utype).await?;
            if seen.beat.is_none() && seen.version == Some(version) && seen.is_plain() {
                self.prepare(statements::make_row(self.tables(), &change.utype))
                    .await?;
                let again = self.write(&change, version, is_new).await?;
                return again.ok_or(StoreError::Conflict);
            }
        }
        Err(StoreError::Conflict)
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let utype = heartbeats::utype(key)?;
        let version = expected.to_u64().ok_or(StoreError::Conflict)?;
        let statement = statements::delete(self.tables(), &utype, version);
        if self.change(statement).await?.0 == 0 {
            return Err(StoreError::Conflict);
        }
        // It is deleted. What nobody holds may stay, if need be.
        drop(
            self.prepare(statements::delete_row(self.tables(), &utype))
                .await,
        );
        Ok(())
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let prefix = heartbeats::utypes(prefix)?;
        let after = after.map(heartbeats::after);
        let statement = statements::utypes(self.tables(), prefix, after);
        let names = statements::names(&self.client.query_primary(statement).await?)?;
        let mut page = Page::default();
        let mut last = None;
        for name in names.iter().take(PAGE_MAX) {
            // What is no name was written by hand; it is no election.
            let Some(key) = heartbeats::key(name) else {
                continue;
            };
            let read = self.read(&key).await?;
            page.now = read.now;
            if let Some(register) = read.register {
                page.registers.push((key.clone(), register));
            }
            last = Some(key);
        }
        page.more_after = last.filter(|_| names.len() > PAGE_MAX);
        Ok(page)
    }
}
