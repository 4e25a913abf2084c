//! Versions for systems whose tags of what they hold have no order, or are the
//! same for the same bytes: object stores, and most of what speaks HTTP.
//!
//! What is stored is the value behind a header: a counter, which each write raises
//! by one, and eight random bytes, by which no two writes store the same bytes. A
//! register's version is the counter and the tag. The tag is what a write is
//! conditional on, so safety rests on it alone; the counter is for watches, which
//! tell old news from new by it. A register that is created begins with the wall
//! clock, so that it is newer than one of the same key that was deleted.
//!
//! Another program wrote what has no such header. It is read as a register whose
//! value is the whole object and whose counter is 0, so that a person can see it and
//! write over it.

use tenure_core::ids::Version;

use super::Expect;
use crate::clock;
use crate::error::StoreError;

/// What a stored value begins with. The last byte is the version of the format.
const MAGIC: [u8; 8] = *b"tenure\0\x01";
/// How many bytes are added to a value: magic, counter, random bytes.
pub const ENVELOPE_BYTES: usize = 24;

/// A register that is written less often than this ends below the counter of one
/// that is created after it.
const WRITES_A_MILLISECOND: u64 = 1_024;

/// A value as it is stored, and the counter in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sealed {
    /// What is to be stored.
    pub bytes: Vec<u8>,
    counter: u64,
}

impl Sealed {
    /// Puts a value, which is to be written if the register is as expected, behind
    /// a header.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the operating system gives no random bytes;
    /// [`StoreError::Conflict`] if no register can have the expected version.
    pub fn new(expect: &Expect, value: &[u8]) -> Result<Self, StoreError> {
        let counter = match expect {
            Expect::Absent => clock::wall()
                .as_millis()
                .saturating_mul(WRITES_A_MILLISECOND),
            Expect::Version(version) => split(version).ok_or(StoreError::Conflict)?.0,
        };
        // Of a stranger's number one above the highest is none.
        let counter = counter.checked_add(1).ok_or(StoreError::Conflict)?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(StoreError::unavailable)?;
        let mut bytes = Vec::with_capacity(ENVELOPE_BYTES + value.len());
        bytes.extend(MAGIC);
        bytes.extend(counter.to_be_bytes());
        bytes.extend(random);
        bytes.extend(value);
        Ok(Self { bytes, counter })
    }

    /// The version of the register, once it is stored under this tag.
    #[must_use]
    pub fn version(&self, tag: &[u8]) -> Version {
        join(self.counter, tag)
    }
}

/// The value in what was stored, and its version under this tag.
#[must_use]
pub fn unseal<'a>(bytes: &'a [u8], tag: &[u8]) -> (&'a [u8], Version) {
    let sealed = bytes.strip_prefix(&MAGIC);
    match sealed.and_then(|rest| rest.split_first_chunk::<8>()) {
        Some((counter, rest)) if rest.len() >= 8 => {
            let (_, value) = rest.split_at(8);
            (value, join(u64::from_be_bytes(*counter), tag))
        }
        _ => (bytes, join(0, tag)),
    }
}

/// The tag that a write with this expected version is conditional on; `None` if no
/// register can have it.
#[must_use]
pub fn tag(version: &Version) -> Option<&[u8]> {
    split(version).map(|(_, tag)| tag)
}

fn join(counter: u64, tag: &[u8]) -> Version {
    Version::from_bytes(&[&counter.to_be_bytes(), tag].concat())
}

fn split(version: &Version) -> Option<(u64, &[u8])> {
    let (counter, tag) = version.as_bytes().split_first_chunk::<8>()?;
    (!tag.is_empty()).then_some((u64::from_be_bytes(*counter), tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_comes_back_with_a_version_that_has_grown() {
        let first = Sealed::new(&Expect::Absent, b"one").expect("bytes");
        let (value, version) = unseal(&first.bytes, b"etag-z");
        assert_eq!((value, &version), (&b"one"[..], &first.version(b"etag-z")));
        assert_eq!(tag(&version), Some(&b"etag-z"[..]));
        let next = Expect::Version(version.clone());
        let second = Sealed::new(&next, b"one").expect("bytes");
        assert!(second.version(b"etag-a") > version, "whatever its tag is");
        assert_eq!(second.bytes.len(), ENVELOPE_BYTES + 3);
        // The same write once more stores other bytes.
        assert_ne!(
            Sealed::new(&next, b"one").expect("bytes").bytes,
            second.bytes
        );
    }

    #[test]
    fn what_others_wrote_is_a_value_that_can_be_written_over() {
        for bytes in [
            &b""[..],
            b"garbage",
            b"tenure\0\x01short",
            b"tenure\0\x02counter.random..",
        ] {
            let (value, version) = unseal(bytes, b"t");
            assert_eq!(value, bytes);
            assert_eq!(tag(&version), Some(&b"t"[..]));
            let over = Sealed::new(&Expect::Version(version.clone()), b"x").expect("bytes");
            assert!(over.version(b"t") > version);
        }
    }

    #[test]
    fn a_version_that_was_never_given_is_of_no_register() {
        for stranger in [
            Version::from_bytes(b""),
            Version::from_u64(7),
            Version::from_bytes(b"no"),
        ] {
            assert_eq!(tag(&stranger), None, "{stranger}");
            let refused = Sealed::new(&Expect::Version(stranger), b"x");
            assert!(matches!(refused, Err(StoreError::Conflict)), "{refused:?}");
        }
        let highest = join(u64::MAX, b"t");
        assert!(Sealed::new(&Expect::Version(highest), b"x").is_err());
    }
}
