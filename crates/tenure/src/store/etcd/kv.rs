//! What the operations of a store are in etcd's terms.
//!
//! A register is a key, its version the revision of its last change
//! (`mod_revision`), which counts every change of the whole cluster and is
//! never used twice. A write is a transaction with one comparison and one
//! step. Keys stand behind the prefix of the store's URL. Other keys below the
//! prefix are ignored.

use prost::bytes::Bytes;

use super::wire::{
    Compare, DeleteRangeRequest, Header, KeyValue, PutRequest, RangeRequest, RequestOp, Step,
    TxnRequest,
};
use crate::error::StoreError;
use crate::store::{Expect, Key, PAGE_MAX, Register, Selector, Version, Write};

/// Where keys stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeySpace<'a> {
    /// What they are behind.
    pub(super) prefix: &'a str,
}

impl KeySpace<'_> {
    fn full(self, name: &str) -> Bytes {
        Bytes::from([self.prefix, name].concat())
    }

    /// The key of a store, if it is one.
    pub(super) fn key(self, full: &[u8]) -> Option<Key> {
        let name = full.strip_prefix(self.prefix.as_bytes())?;
        Key::new(std::str::from_utf8(name).ok()?).ok()
    }

    /// The first and the end of what a selector selects, as etcd wants them.
    pub(super) fn range(self, selector: &Selector) -> (Bytes, Bytes) {
        match selector {
            Selector::Key(key) => (self.full(key.as_str()), Bytes::new()),
            Selector::Prefix(prefix) => {
                let first = self.full(prefix);
                let end = end(&first);
                // An empty key is none; a zero byte is before all.
                let zero = Bytes::from_static(b"\0");
                (if first.is_empty() { zero } else { first }, end)
            }
        }
    }

    pub(super) fn read(self, key: &Key) -> RangeRequest {
        RangeRequest {
            key: self.full(key.as_str()),
            ..RangeRequest::default()
        }
    }

    /// A page of what has `prefix`, from the first key after `after`, which
    /// is as etcd has it.
    pub(super) fn list(self, prefix: &str, after: Option<&[u8]>) -> RangeRequest {
        let (first, range_end) = self.range(&Selector::Prefix(prefix.to_owned()));
        let mut key = first;
        if let Some(after) = after {
            // It may stand before the prefix.
            key = key.max(Bytes::from([after, b"\0"].concat()));
        }
        RangeRequest {
            key,
            range_end,
            limit: i64::try_from(PAGE_MAX).unwrap_or(i64::MAX),
            serializable: false,
            keys_only: false,
        }
    }

    /// The key to go on after, as etcd has it.
    pub(super) fn after(self, key: &Key) -> Bytes {
        self.full(key.as_str())
    }

    /// `None` if nothing can have the expected version.
    pub(super) fn swap(self, write: &Write) -> Option<TxnRequest> {
        let key = self.full(write.key.as_str());
        let revision = match &write.expect {
            Expect::Absent => 0,
            Expect::Version(version) => revision_of(version)?,
        };
        let put = PutRequest {
            key: key.clone(),
            value: Bytes::from_owner(write.value.clone()),
        };
        Some(conditional(key, revision, Step::Put(put)))
    }

    /// `None` if nothing can have the expected version.
    pub(super) fn delete(self, key: &Key, expected: &Version) -> Option<TxnRequest> {
        let key = self.full(key.as_str());
        let delete = DeleteRangeRequest { key: key.clone() };
        Some(conditional(
            key,
            revision_of(expected)?,
            Step::Delete(delete),
        ))
    }

    /// Reads several keys at one revision.
    pub(super) fn read_all<'k>(self, keys: impl Iterator<Item = &'k Key>) -> TxnRequest {
        let read = |key: &Key| RequestOp {
            step: Some(Step::Range(self.read(key))),
        };
        TxnRequest {
            compare: Vec::new(),
            success: keys.map(read).collect(),
        }
    }
}

fn conditional(key: Bytes, revision: i64, step: Step) -> TxnRequest {
    TxnRequest {
        compare: vec![Compare::last_change(key, revision)],
        success: vec![RequestOp { step: Some(step) }],
    }
}

/// The first key that does not begin with `first`, as etcd wants it.
fn end(first: &[u8]) -> Bytes {
    let mut end = first.to_vec();
    while let Some(last) = end.pop() {
        // No byte of UTF-8 is the last of all, but nothing rests on it.
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end.into();
        }
    }
    // To the end of everything.
    Bytes::from_static(b"\0")
}

/// The revision that a version stands for. 0 is none: it means that a key
/// does not exist.
fn revision_of(version: &Version) -> Option<i64> {
    let revision = i64::try_from(version.to_u64()?).ok()?;
    (revision > 0).then_some(revision)
}

/// The version that a revision makes.
pub(super) fn version_of(revision: i64) -> Result<Version, StoreError> {
    match u64::try_from(revision) {
        Ok(revision) if revision > 0 => Ok(Version::from_u64(revision)),
        _ => Err(StoreError::broken(format!(
            "expected a revision above 0 from etcd, found {revision}: is this an etcd server?"
        ))),
    }
}

/// The register that a key holds.
pub(super) fn register(kv: &KeyValue) -> Result<Register, StoreError> {
    Ok(Register {
        value: kv.value.as_ref().into(),
        version: version_of(kv.mod_revision)?,
        stamp: None,
    })
}

/// The revision at which a request was carried out.
pub(super) fn revision(header: Option<&Header>) -> Result<i64, StoreError> {
    let revision = header.map_or(0, |header| header.revision);
    version_of(revision).map(|_| revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_exactly_a_prefix() {
        let keyspace = KeySpace { prefix: "t/" };
        let prefix = |text: &str| keyspace.range(&Selector::Prefix(text.into()));
        assert_eq!(prefix("a"), ("t/a".into(), "t/b".into()));
        assert_eq!(prefix(""), ("t/".into(), "t0".into()));
        let whole = KeySpace { prefix: "" }.range(&Selector::Prefix(String::new()));
        assert_eq!(whole, ("\0".into(), "\0".into()));
        assert_eq!(end(b"a\xff"), Bytes::from_static(b"b"));
    }

    #[test]
    fn a_listing_goes_on_after_a_key_and_never_before_its_prefix() {
        let keyspace = KeySpace { prefix: "t/" };
        assert_eq!(keyspace.list("b/", Some(b"t/b/1")).key, "t/b/1\0");
        assert_eq!(keyspace.list("b/", Some(b"t/a")).key, "t/b/");
    }

    #[test]
    fn a_version_that_etcd_never_gave_is_no_revision() {
        let keyspace = KeySpace { prefix: "" };
        let key = Key::new("k").expect("a key");
        for version in [
            Version::from_bytes(b"a stranger"),
            Version::from_u64(0),
            Version::from_u64(u64::MAX),
        ] {
            assert_eq!(keyspace.delete(&key, &version), None, "{version}");
        }
        assert!(keyspace.delete(&key, &Version::from_u64(1)).is_some());
    }

    #[test]
    fn what_is_no_key_of_a_store_is_nobodys() {
        let keyspace = KeySpace { prefix: "t/" };
        assert_eq!(keyspace.key(b"t/a").as_ref().map(Key::as_str), Some("a"));
        for full in [&b"t/"[..], b"x/a", b"t/\xff", b"t/a\nb"] {
            assert_eq!(keyspace.key(full), None);
        }
    }
}
