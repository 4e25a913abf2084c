//! What is in an object: a register in its envelope, and before that, only where
//! it is needed, that the register was deleted, or its key.
//!
//! A deleted register leaves an object that says so. Object stores delete without
//! a condition, or only some do: a deletion that was decided on one state would
//! take away a newer one. That object is overwritten by the write that makes the register
//! again, so versions of a key grow for ever.

use object_store::PutPayload;

use crate::error::StoreError;
use crate::store::envelope::{self, Sealed};
use crate::store::{Bytes, Expect, Key, MAX_VALUE_BYTES, Version};

use super::names;

/// What the rare kinds begin with. The last byte is the version of the format.
const MAGIC: [u8; 8] = *b"tenobj\0\x01";
/// Magic, whether it is deleted, the length of the key.
const HEADER: usize = 11;
/// The largest object that can be a register.
pub(super) const BYTES_MAX: usize =
    HEADER + Key::MAX_BYTES + envelope::ENVELOPE_BYTES + MAX_VALUE_BYTES;

/// An object that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Object {
    /// The register's key, if the object says it.
    pub(super) key: Option<Key>,
    /// Whether the register was deleted.
    pub(super) is_deleted: bool,
    pub(super) value: Bytes,
    pub(super) version: Version,
}

/// An object that is to be written.
#[derive(Debug)]
pub(super) struct Draft {
    sealed: Sealed,
    pub(super) payload: PutPayload,
}

impl Draft {
    /// The next state of a register that is as expected: a value, or deleted.
    pub(super) fn new(
        key: &Key,
        expect: &Expect,
        value: Option<&[u8]>,
    ) -> Result<Self, StoreError> {
        let sealed = Sealed::new(expect, value.unwrap_or_default())?;
        let key = if names::is_hashed(key) {
            key.as_str()
        } else {
            ""
        };
        let bytes = if value.is_some() && key.is_empty() {
            sealed.bytes.clone()
        } else {
            let length = u16::try_from(key.len()).map_err(StoreError::broken)?;
            let deleted = u8::from(value.is_none());
            [
                &MAGIC[..],
                &[deleted],
                &length.to_be_bytes(),
                key.as_bytes(),
                &sealed.bytes,
            ]
            .concat()
        };
        Ok(Self {
            sealed,
            payload: PutPayload::from(bytes),
        })
    }

    /// The version, once it is stored under this tag.
    pub(super) fn version(&self, tag: &[u8]) -> Version {
        self.sealed.version(tag)
    }
}

/// Reads what is stored under this tag. What is none of ours is a value that
/// nobody understands.
pub(super) fn read(bytes: &[u8], tag: &[u8]) -> Object {
    let (is_deleted, key, sealed) = header(bytes).unwrap_or((false, None, bytes));
    let (value, version) = envelope::unseal(sealed, tag);
    Object {
        key,
        is_deleted,
        value: value.into(),
        version,
    }
}

/// What stands before the envelope.
fn header(bytes: &[u8]) -> Option<(bool, Option<Key>, &[u8])> {
    let (fixed, rest) = bytes.split_first_chunk::<HEADER>()?;
    let [deleted @ (0 | 1), high, low] = *fixed.strip_prefix(&MAGIC)? else {
        return None;
    };
    let (key, sealed) = rest.split_at_checked(u16::from_be_bytes([high, low]).into())?;
    let key = match std::str::from_utf8(key).ok()? {
        "" => None,
        key => Some(Key::new(key).ok()?),
    };
    Some((deleted == 1, key, sealed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(draft: &Draft) -> Vec<u8> {
        draft
            .payload
            .iter()
            .flat_map(|part| part.to_vec())
            .collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let long = Key::new(&"/".repeat(512)).expect("a key");
        for key in [Key::new("short").expect("a key"), long] {
            let draft = Draft::new(&key, &Expect::Absent, Some(b"value")).expect("a draft");
            let found = read(&bytes(&draft), b"tag");
            assert_eq!((found.is_deleted, &*found.value), (false, &b"value"[..]));
            assert_eq!(found.version, draft.version(b"tag"));
            assert_eq!(found.key.is_some(), names::is_hashed(&key));
            // Deleted, and made again: versions grow.
            let expect = Expect::Version(found.version.clone());
            let gone = Draft::new(&key, &expect, None).expect("a draft");
            let gone = read(&bytes(&gone), b"a");
            assert!(gone.is_deleted && gone.version > found.version);
            let again = Expect::Version(gone.version.clone());
            let again = Draft::new(&key, &again, Some(b"value")).expect("a draft");
            assert!(read(&bytes(&again), b"0").version > gone.version);
        }
    }

    #[test]
    fn the_largest_register_is_no_larger_than_is_read() {
        let key = Key::new(&"/".repeat(Key::MAX_BYTES)).expect("a key");
        let value = vec![7; MAX_VALUE_BYTES];
        let draft = Draft::new(&key, &Expect::Absent, Some(&value)).expect("a draft");
        assert_eq!(draft.payload.content_length(), BYTES_MAX);
    }

    #[test]
    fn what_is_none_of_ours_is_a_value() {
        for garbage in [
            &b""[..],
            b"garbage",
            b"tenobj\0\x01",
            b"tenobj\0\x01\x02\0\0",
            b"tenobj\0\x01\x01\0\x09short",
            b"tenobj\0\x01\x01\0\x01\n",
        ] {
            let found = read(garbage, b"tag");
            assert_eq!((found.is_deleted, &*found.value), (false, garbage));
        }
    }
}
