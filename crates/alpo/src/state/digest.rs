//! What a command was about, as one number.
//!
//! A session keeps it beside each answer, so that a serial which comes again
//! with other content is noticed (`docs/design/identity.md`, Sessions and their
//! owners). It is taken over the operation as it was decoded: not over bytes
//! on the wire, nor over what may differ when a command is sent again (the
//! lowest serial still waited for, deadlines, the leader's stamps). So a
//! repetition agrees, whichever way it comes.
//!
//! It is part of snapshots and of the running hash of the state, so every
//! server of a cluster must compute the same: another function needs another
//! version of the cluster. It is no signature. Two commands of an honest
//! client agree by accident once in 2^64 times; who forges two that agree
//! deceives its own session alone.

use core::num::NonZeroU64;

use tenure_core::cas::{Expect, Stamp, Write};

use super::super::entry::Operation;
use super::state_checksums::{bytes, mix};

/// The digest of an operation; never 0, which stands for none.
pub fn digest_of(operation: &Operation) -> NonZeroU64 {
    let hash = match operation {
        Operation::Append(data) => bytes(mix(0, 1), data),
        Operation::Swap(write) => of_write(mix(0, 2), write),
        Operation::Delete(delete) => {
            let key = bytes(mix(0, 3), delete.key.as_str().as_bytes());
            bytes(key, delete.expect.as_bytes())
        }
        Operation::Bind(bind) => bytes(of_write(mix(0, 4), &bind.write), &bind.last),
        Operation::KeepAlive => mix(0, 5),
        Operation::Close => mix(0, 6),
    };
    NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN)
}

fn of_write(hash: u64, write: &Write) -> u64 {
    let hash = bytes(hash, write.key.as_str().as_bytes());
    let hash = match &write.expect {
        Expect::Absent => mix(hash, 0),
        Expect::Version(version) => bytes(mix(hash, 1), version.as_bytes()),
    };
    let stamp = match write.stamp {
        Stamp::Now => 0,
        Stamp::Keep => 1,
    };
    mix(bytes(hash, &write.value), stamp)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use tenure_core::ids::{Key, Version};

    #[test]
    fn whatever_differs_in_an_operation_gives_another_digest() {
        let key = |name| Key::new(name).expect("a plain key");
        let write = |name, expect, value: &[u8], stamp| Write {
            key: key(name),
            expect,
            value: value.into(),
            stamp,
        };
        let at = |number| Expect::Version(Version::from_u64(number));
        let plain = write("k", Expect::Absent, b"v", Stamp::Now);
        let writes = [
            plain.clone(),
            write("l", Expect::Absent, b"v", Stamp::Now),
            write("k", at(1), b"v", Stamp::Now),
            write("k", at(2), b"v", Stamp::Now),
            write("k", Expect::Absent, b"w", Stamp::Now),
            write("k", Expect::Absent, b"v\0", Stamp::Now),
            write("k", Expect::Absent, b"v", Stamp::Keep),
        ];
        let mut all: Vec<Operation> = writes.into_iter().map(Operation::swap).collect();
        all.extend([
            Operation::bind(plain.clone(), (*b"v").into()),
            Operation::bind(plain, (*b"").into()),
            Operation::Append((*b"v").into()),
            Operation::Append((*b"").into()),
            Operation::Append((*b"\0").into()),
            Operation::delete(key("k"), Version::from_u64(1)),
            Operation::delete(key("k"), Version::from_u64(2)),
            Operation::delete(key("l"), Version::from_u64(1)),
            Operation::KeepAlive,
            Operation::Close,
        ]);
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                let same = digest_of(one) == digest_of(other);
                assert_eq!(same, at == other_at, "{one:?} and {other:?}");
            }
        }
    }

    /// Servers of different releases compare states that hold digests.
    #[test]
    fn the_digest_of_an_append_stays_what_it_is() {
        let digest = digest_of(&Operation::Append((*b"hello").into()));
        assert_eq!(digest.get(), 11_076_190_776_637_000_221);
    }
}
