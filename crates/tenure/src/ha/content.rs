//! Kinds and configs in registers of their own (`docs/design/groups.md` §1.3).
//!
//! The view names a workload's content by its digest: the first 16 bytes of
//! its SHA-256, in hexadecimal. What such a register holds never changes, so it
//! can be read as long as the view names it; what is read is held against the
//! name, and damage is told from content. The node writes it with the same
//! bytes before the view names it, and deletes what no view names
//! (`tenure_group`, `docs/design/groups.md` §1.11).
//!
//! ```text
//! tenure-content 1\n
//! kind report\n
//! \n
//! the config, to the end
//! ```

use std::time::Duration;

use sha2::Digest as _;
use tenure_core::ids::Name;
use tenure_group::{Digest, Keys};

use crate::error::StoreError;
use crate::store::{Bytes, Expect, Key, Stamp, Store, Write};

/// The longest config, in bytes.
pub const CONFIG_BYTES_MAX: usize = 240 * 1024;

const MAGIC: &str = "tenure-content 1\n";
/// How often it is tried when the outcome is unknown.
const TRIES_MAX: u32 = 5;

/// What a workload is made from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Content {
    pub(super) kind: Name,
    pub(super) config: Bytes,
}

impl Content {
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = format!("{MAGIC}kind {}\n\n", self.kind).into_bytes();
        bytes.extend_from_slice(&self.config);
        bytes.into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC.as_bytes())?;
        let end = rest.windows(2).position(|two| two == b"\n\n")?;
        let head = str::from_utf8(&rest[..end]).ok()?;
        let kind = Name::new(head.strip_prefix("kind ")?).ok()?;
        let config = rest[end + 2..].into();
        Some(Self { kind, config })
    }

    /// What the view calls it.
    pub(super) fn digest(&self) -> Digest {
        digest(&self.encode())
    }

    /// Sees to it that the store has it.
    pub(super) async fn publish(
        &self,
        store: &dyn Store,
        keys: &Keys,
        within: Duration,
    ) -> Result<(), StoreError> {
        let (key, value) = (keys.content(&self.digest()), self.encode());
        let mut last = StoreError::unknown("the store did not answer");
        let mut refusal = None;
        for _ in 0..TRIES_MAX {
            refusal = None;
            let write = Write {
                key: key.clone(),
                expect: Expect::Absent,
                value: value.clone(),
                stamp: Stamp::Now,
            };
            match store.compare_and_swap(write, within).await {
                Ok(_) => return Ok(()),
                // It may be there: by us, or by another process that deployed
                // the same.
                Err(error @ (StoreError::Conflict | StoreError::Unknown(_))) => last = error,
                Err(error) => return Err(error),
            }
            let reading = store.read(&key, within).await?;
            match &reading.register {
                Some(register) if register.value == value => return Ok(()),
                Some(_) => return Err(damaged(&key)),
                // Deleted since, or refused: the last try says.
                None if matches!(last, StoreError::Conflict) => {
                    refusal = Some(StoreError::broken(reading.refusal(&key)));
                }
                None => {}
            }
        }
        Err(refusal.unwrap_or(last))
    }

    /// Reads what the view calls `digest`.
    pub(super) async fn fetch(
        store: &dyn Store,
        keys: &Keys,
        name: &Digest,
        within: Duration,
    ) -> Result<Self, StoreError> {
        let key = keys.content(name);
        let register = store.read(&key, within).await?.register;
        let register = register.ok_or_else(|| {
            StoreError::broken(format!(
                "expected the workload's config in {key}, found nothing; undeploy it and deploy \
                 it again"
            ))
        })?;
        let content = Self::decode(&register.value);
        let content = content.filter(|_| digest(&register.value) == *name);
        content.ok_or_else(|| damaged(&key))
    }
}

fn damaged(key: &Key) -> StoreError {
    StoreError::broken(format!(
        "expected in {key} the very bytes that it is named by, found others; delete the register, \
         undeploy the workload and deploy it again"
    ))
}

fn digest(bytes: &[u8]) -> Digest {
    let hash = sha2::Sha256::digest(bytes);
    let text: String = hash[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Digest::new(&text).unwrap_or_else(|| unreachable!("{text} is a digest"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    const WITHIN: Duration = Duration::from_secs(5);

    fn content(config: &[u8]) -> Content {
        Content {
            kind: Name::new("report").expect("a name"),
            config: config.into(),
        }
    }

    #[tokio::test]
    async fn content_is_published_once_and_read_as_it_was() {
        let keys = Keys::of(Name::new("alpha").expect("a name"));
        let store = Memory::new();
        for config in [&b"{\"a\": 1}"[..], b"", b"\n\n\n", &[0xff, 0, 10, 10]] {
            let content = content(config);
            for _ in 0..2 {
                let published = content.publish(&store, &keys, WITHIN).await;
                assert!(published.is_ok(), "{published:?}");
            }
            let read = Content::fetch(&store, &keys, &content.digest(), WITHIN).await;
            assert_eq!(read.expect("it is there"), content);
        }
    }

    #[tokio::test]
    async fn what_is_not_there_or_damaged_is_not_taken_for_content() {
        let keys = Keys::of(Name::new("alpha").expect("a name"));
        let store = Memory::new();
        let content = content(b"{}");
        let absent = Content::fetch(&store, &keys, &content.digest(), WITHIN).await;
        let absent = absent.expect_err("nothing is there").to_string();
        assert!(absent.contains("found nothing"), "{absent}");
        let mut value = content.encode().to_vec();
        *value.last_mut().expect("bytes") ^= 1;
        let write = Write {
            key: keys.content(&content.digest()),
            expect: Expect::Absent,
            value: value.into(),
            stamp: Stamp::Now,
        };
        let written = store.compare_and_swap(write, WITHIN).await;
        assert!(written.is_ok());
        let found = Content::fetch(&store, &keys, &content.digest(), WITHIN).await;
        let found = found.expect_err("one bit is off").to_string();
        assert!(found.contains("found others"), "{found}");
        assert!(content.publish(&store, &keys, WITHIN).await.is_err());
    }
}
