//! Between the types of the wire and those of the core.

use tenure_api::v1::{self, answer};
use tenure_core::cas::{self, Reading, Register, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::{ClockId, StoreTime};

use super::error::strange;
use super::{Error, Listing, Swapped};

pub(super) const fn time(time: v1::Time) -> StoreTime {
    StoreTime {
        clock: ClockId {
            boot: time.clock_high,
            namespace: time.clock_low,
        },
        nanos: time.nanos,
    }
}

pub(super) fn register(register: v1::Register) -> Register {
    Register {
        value: register.value.as_ref().into(),
        version: Version::from_u64(register.version),
        stamp: register.stamp.map(time),
    }
}

pub(super) fn reading(answer: v1::ReadResponse) -> Reading {
    Reading {
        register: answer.register.map(register),
        now: answer.now.map(time),
        bound: answer.bound.map(|bound| bound.session),
    }
}

pub(super) fn listing(answer: v1::ListResponse) -> Result<Listing, Error> {
    let named = |named: v1::Named| {
        let found = named.register.ok_or_else(garbled)?;
        Ok((key(&named.key)?, register(found)))
    };
    let registers: Result<Vec<_>, Error> = answer.registers.into_iter().map(named).collect();
    Ok(Listing {
        registers: registers?,
        more: answer.more,
        now: answer.now.map(time),
    })
}

pub(super) fn key(text: &str) -> Result<Key, Error> {
    Key::new(text).map_err(|error| Error::Unavailable(format!("a server sent a key: {error}")))
}

/// An answer to a read that makes no sense.
pub(super) fn garbled() -> Error {
    Error::Unavailable("a server's answer lacks what was asked for".into())
}

/// A write as it is sent; `None` if it expects a version that no cluster
/// gave.
pub(super) fn swap(write: Write) -> Option<v1::Swap> {
    let expect = match &write.expect {
        cas::Expect::Absent => None,
        cas::Expect::Version(version) => Some(version.to_u64()?),
    };
    Some(v1::Swap {
        key: write.key.as_str().to_owned(),
        expect,
        value: bytes::Bytes::from_owner(write.value),
        keep_stamp: write.stamp == Stamp::Keep,
        at_end: None,
    })
}

/// What became of a compare-and-swap.
pub(super) fn swapped(answer: answer::What) -> Result<Swapped, Error> {
    match answer {
        answer::What::Swapped(done) if done.swapped => Ok(Swapped {
            version: Version::from_u64(done.version),
            now: done.now.map(time),
        }),
        answer::What::Swapped(_) => Err(Error::Conflict),
        _ => Err(strange()),
    }
}
