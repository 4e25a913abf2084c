//! Elections in the format of vimeo's Go library `leaderelection`, so that a fleet moves
//! from it to Tenure one process at a time.
//!
//! The object of the election `payroll` is `PREFIX/payroll`, and holds a
//! [`RaceEntry`] alone. A version is a generation. Values are translated at each read and
//! write; the machine that stands is the same. What the format has no room for is
//! refused: requests to leaders, registers that are no elections, deletion.
//!
//! The library's candidates judge by their calendars. So do ours here, whatever they are
//! told otherwise, with the bound that the URL states (`max_clock_skew=`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::PutPayload;
use object_store::path::Path;
use tenure_election::Record;

use super::bucket::{Bucket, Condition};
use super::calls::Calls;
use super::race_entry::RaceEntry;
use super::settings::Settings;
use crate::error::StoreError;
use crate::store::{
    Backend, Expect, Key, MAX_VALUE_BYTES, PAGE_MAX, Page, Reading, Register, Version, Write,
    Written,
};

/// What the format is called in a URL.
pub(super) const FORMAT: &str = "leaderelection-go";

/// The elections below one prefix of a bucket.
#[derive(Debug)]
pub(super) struct RaceEntries {
    calls: Calls,
    /// With a slash at its end, or empty.
    folder: String,
    /// By how much clocks may differ.
    skew: Duration,
}

impl fmt::Display for RaceEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({FORMAT})", self.calls)
    }
}

impl RaceEntries {
    pub(super) fn new(bucket: Arc<dyn Bucket>, settings: &Settings, skew: Duration) -> Self {
        let folder = match settings.prefix.as_ref() {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let probe = Path::from(format!("{folder}=probe"));
        Self {
            calls: Calls::new(bucket, settings, probe),
            folder,
            skew,
        }
    }

    /// The object of a key; `None` of one that is no election's.
    fn object(&self, key: &Key) -> Result<Option<Path>, StoreError> {
        let Some(name) = key.election() else {
            return Ok(None);
        };
        let text = format!("{}{name}", self.folder);
        match Path::parse(&text) {
            Ok(path) if path.as_ref() == text => Ok(Some(path)),
            _ => Err(StoreError::broken(format!(
                "{self}: expected an election whose name is that of an object, without empty \
                 parts and dots between slashes, found {name}"
            ))),
        }
    }

    fn refused(&self, what: &str) -> StoreError {
        StoreError::broken(format!(
            "{self}: expected nothing but what leaders write, found {what}: the format has no \
             room for it; use a store without format={FORMAT}"
        ))
    }

    async fn register(&self, key: &Key, object: &Path) -> Result<Option<Register>, StoreError> {
        let Some((bytes, tag)) = self.calls.get(object, MAX_VALUE_BYTES).await? else {
            return Ok(None);
        };
        let entry = RaceEntry::decode(&bytes);
        let record = entry
            .zip(key.election())
            .and_then(|(entry, name)| entry.record(name));
        Ok(Some(Register {
            // What is no entry is shown as it is: nobody writes over it.
            value: record.map_or_else(|| bytes.into(), |record| record.encode()),
            version: version(&tag)?,
            stamp: None,
        }))
    }
}

/// Generations grow, and so do versions.
fn version(tag: &str) -> Result<Version, StoreError> {
    let generation = tag.parse().map(Version::from_u64);
    generation.map_err(|_| StoreError::unknown("expected a generation, found no number"))
}

impl Backend for RaceEntries {
    fn max_clock_skew(&self) -> Option<Duration> {
        Some(self.skew)
    }

    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        let register = match self.object(key)? {
            Some(object) => self.register(key, &object).await?,
            None => None,
        };
        Ok(Reading {
            register,
            ..Reading::default()
        })
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let object = self.object(&write.key)?;
        let object = object.ok_or_else(|| self.refused("a register that is no election's"))?;
        let record = Record::decode(&write.value);
        let record = record.map_err(|_| self.refused("a value that is no election's"))?;
        let entry = RaceEntry::of(&record, self.skew).map_err(|what| self.refused(what))?;
        let expected = match &write.expect {
            Expect::Absent => None,
            Expect::Version(version) => Some(version.to_u64().ok_or(StoreError::Conflict)?),
        };
        let expected = expected.map(|generation| generation.to_string());
        let condition = expected
            .as_deref()
            .map_or(Condition::Absent, Condition::Tag);
        let payload = PutPayload::from(entry.encode());
        let tag = self.calls.put(&object, payload, condition).await?;
        Ok(Written {
            version: version(&tag)?,
            now: None,
        })
    }

    async fn delete(&self, _: &Key, _: &Version) -> Result<(), StoreError> {
        Err(self.refused("a deletion"))
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let mut page = Page::default();
        let beginning = match prefix.strip_prefix(Key::ELECTIONS) {
            Some(name) => name,
            None if Key::ELECTIONS.starts_with(prefix) => "",
            None => return Ok(page),
        };
        let beginning = format!("{}{beginning}", self.folder);
        let mut keys = Vec::new();
        for listed in self.calls.listed(&beginning).await? {
            let name = listed.location.as_ref().strip_prefix(&self.folder);
            let key = name.and_then(|name| Key::new(&format!("{}{name}", Key::ELECTIONS)).ok());
            keys.extend(key.filter(|key| after.is_none_or(|after| key > after)));
        }
        keys.sort();
        for key in keys {
            let Some(object) = self.object(&key)? else {
                continue;
            };
            let Some(register) = self.register(&key, &object).await? else {
                continue;
            };
            // Others keep other things in the bucket, too.
            if Record::decode(&register.value).is_err() {
                continue;
            }
            if page.registers.len() == PAGE_MAX {
                page.more_after = page.registers.last().map(|(key, _)| key.clone());
                break;
            }
            page.registers.push((key, register));
        }
        Ok(page)
    }
}
