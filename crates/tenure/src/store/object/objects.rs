//! A store of registers that are each in an object of their own.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::ObjectMeta;
use object_store::path::Path;
use tokio::task::JoinSet;

use super::body::{self, BYTES_MAX, Draft, Object};
use super::bucket::{Bucket, Condition};
use super::calls::Calls;
use super::names::{Folder, Named};
use super::settings::Settings;
use crate::error::StoreError;
use crate::store::envelope;
use crate::store::{
    Backend, Expect, Key, PAGE_MAX, Page, Reading, Register, Version, Write, Written,
};

/// How many objects a listing reads at the same time.
const READS_MAX: usize = 32;
/// How much of what listings have read is kept.
const KEPT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What a kept object costs besides its value, about.
const KEPT_OVERHEAD: usize = 1_024;

/// The registers in one bucket, below one prefix. Clones are the same.
#[derive(Clone, Debug)]
pub(in crate::store) struct Objects {
    calls: Calls,
    folder: Folder,
    kept: Arc<Mutex<Kept>>,
}

/// What listings have read: an object with the same tag, of the same time, has the
/// same bytes, and a request is saved.
#[derive(Default, Debug)]
struct Kept {
    objects: BTreeMap<Path, (ObjectMeta, Object)>,
    bytes: usize,
}

impl Kept {
    fn find(&self, listed: &ObjectMeta) -> Option<Object> {
        let (known, object) = self.objects.get(&listed.location)?;
        (known == listed && listed.e_tag.is_some()).then(|| object.clone())
    }

    fn keep(&mut self, listed: ObjectMeta, object: Object) {
        let cost = |object: &Object| object.value.len() + KEPT_OVERHEAD;
        self.bytes += cost(&object);
        let replaced = self
            .objects
            .insert(listed.location.clone(), (listed, object));
        if let Some((_, old)) = replaced {
            self.bytes -= cost(&old);
        }
        if self.bytes > KEPT_BYTES_MAX {
            *self = Self::default();
        }
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.calls, f)
    }
}

impl Objects {
    pub(super) fn new(bucket: Arc<dyn Bucket>, settings: &Settings) -> Self {
        let folder = Folder::new(&settings.prefix);
        Self {
            calls: Calls::new(bucket, settings, folder.probe()),
            folder,
            kept: Arc::default(),
        }
    }

    /// What an object has, and its tag.
    async fn get(&self, object: &Path) -> Result<Option<(Object, String)>, StoreError> {
        let got = self.calls.get(object, BYTES_MAX).await?;
        Ok(got.map(|(bytes, tag)| (body::read(&bytes, tag.as_bytes()), tag)))
    }

    /// Writes the next state of a register: a value, or that it is deleted.
    async fn change(
        &self,
        key: &Key,
        expect: &Expect,
        value: Option<&[u8]>,
    ) -> Result<Version, StoreError> {
        let draft = Draft::new(key, expect, value)?;
        let condition = match expect {
            Expect::Absent => Condition::Absent,
            Expect::Version(version) => {
                let tag = envelope::tag(version).ok_or(StoreError::Conflict)?;
                Condition::Tag(std::str::from_utf8(tag).map_err(|_| StoreError::Conflict)?)
            }
        };
        let (object, payload) = (self.folder.object(key), draft.payload.clone());
        let tag = self.calls.put(&object, payload, condition).await?;
        Ok(draft.version(tag.as_bytes()))
    }

    /// What the listed objects have, in their order; `None` for one that has gone.
    async fn fetched(&self, listed: Vec<ObjectMeta>) -> Result<Vec<Option<Object>>, StoreError> {
        let mut found = vec![None; listed.len()];
        let mut waiting = VecDeque::new();
        {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            for (slot, listed) in found.iter_mut().zip(listed).enumerate() {
                let (place, meta) = listed;
                *place = kept.find(&meta);
                if place.is_none() {
                    waiting.push_back((slot, meta));
                }
            }
        }
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < READS_MAX
                && let Some((slot, meta)) = waiting.pop_front()
            {
                let objects = self.clone();
                under_way.spawn(async move {
                    let got = objects.get(&meta.location).await?;
                    Ok::<_, StoreError>((slot, meta, got))
                });
            }
            let Some(read) = under_way.join_next().await else {
                return Ok(found);
            };
            let (slot, meta, got) = read.map_err(StoreError::unavailable)??;
            let Some((object, tag)) = got else { continue };
            // One that was written since it was listed is not what was listed.
            if meta
                .e_tag
                .as_deref()
                .is_some_and(|listed| is_same(&tag, listed))
            {
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.keep(meta, object.clone());
            }
            if let Some(place) = found.get_mut(slot) {
                *place = Some(object);
            }
        }
    }

    /// The keys that a listing finds, with their objects, sorted. Those of long keys
    /// are read, to learn which they are.
    async fn keys(
        &self,
        prefix: &str,
        after: Option<&Key>,
    ) -> Result<BTreeMap<Key, ObjectMeta>, StoreError> {
        let (mut keys, mut hashed) = (BTreeMap::new(), Vec::new());
        for meta in self.calls.listed(&self.folder.beginning(prefix)).await? {
            match self.folder.named(&meta.location) {
                Named::Register(key) => drop(keys.insert(key, meta)),
                Named::Hashed => hashed.push(meta),
                Named::Foreign => {}
            }
        }
        for (meta, object) in hashed.iter().zip(self.fetched(hashed.clone()).await?) {
            let key = object.and_then(|object| object.key);
            // A copy under another name is no register.
            if let Some(key) = key
                && self.folder.object(&key) == meta.location
            {
                keys.insert(key, meta.clone());
            }
        }
        keys.retain(|key, _| key.as_str().starts_with(prefix) && after.is_none_or(|it| key > it));
        Ok(keys)
    }
}

/// Whether two tags are one. Azure lists them without their quotes.
fn is_same(tag: &str, listed: &str) -> bool {
    tag.trim_matches('"') == listed.trim_matches('"')
}

/// The register that an object is, if it was not deleted.
fn register(object: Object) -> Option<Register> {
    (!object.is_deleted).then_some(Register {
        value: object.value,
        version: object.version,
        stamp: None,
    })
}

impl Backend for Objects {
    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        let found = self.get(&self.folder.object(key)).await?;
        Ok(Reading {
            register: found.and_then(|(object, _)| register(object)),
            ..Reading::default()
        })
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let (key, value) = (&write.key, Some(&*write.value));
        let written = match self.change(key, &write.expect, value).await {
            // Nothing was written. What is there may be one that was deleted.
            Err(StoreError::Conflict) if write.expect == Expect::Absent => {
                match self.get(&self.folder.object(key)).await? {
                    Some((object, _)) if object.is_deleted => {
                        let expect = Expect::Version(object.version);
                        self.change(key, &expect, value).await
                    }
                    _ => Err(StoreError::Conflict),
                }
            }
            written => written,
        };
        Ok(Written {
            version: written?,
            now: None,
        })
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let expect = Expect::Version(expected.clone());
        self.change(key, &expect, None).await.map(drop)
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let mut keys: VecDeque<_> = self.keys(prefix, after).await?.into_iter().collect();
        let mut page = Page::default();
        // One more than a page, to know whether there is more.
        while page.registers.len() <= PAGE_MAX && !keys.is_empty() {
            let wanted = (PAGE_MAX + 1 - page.registers.len()).min(keys.len());
            let (keys, metas): (Vec<_>, Vec<_>) = keys.drain(..wanted).unzip();
            let found = self.fetched(metas).await?;
            let found = keys.into_iter().zip(found);
            page.registers
                .extend(found.filter_map(|(key, object)| Some((key, register(object?)?))));
        }
        if page.registers.len() > PAGE_MAX {
            page.registers.truncate(PAGE_MAX);
            page.more_after = page.registers.last().map(|(key, _)| key.clone());
        }
        Ok(page)
    }
}
