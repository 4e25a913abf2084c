//! A store behind a network: what is the same for elections and for groups.
//!
//! Left out: what becomes of a call. Each simulator draws that in an order of
//! its own, and counts and excuses other things by it.

use tenure_core::cas::{Conflict, Register, Registers, Write};
use tenure_core::fnv::fnv1a;
use tenure_core::ids::Version;
use tenure_core::rng::Rng;
use tenure_core::time::StoreTime;

/// How long a message takes from one end of the network to the other, which is
/// at least and at most as long as `net` says.
pub(crate) fn hop(rng: &mut Rng, net: (u64, u64)) -> u64 {
    let (least, most) = net;
    // Mostly quick.
    let most = if rng.chance(90) {
        least + (most - least) / 4
    } else {
        most
    };
    rng.between(least, most)
}

/// Writes to a store whose versions are hashes of the content, or numbers.
pub(crate) fn swap(
    registers: &mut Registers,
    write: Write,
    stamp: Option<StoreTime>,
    hashed: bool,
) -> Result<Version, Conflict> {
    if hashed {
        let version = Version::from_u64(fnv1a(write.value.iter().copied()));
        registers.swap_as(write, stamp, version)
    } else {
        registers.compare_and_swap(write, stamp)
    }
}

/// The register as it is read where its bytes were damaged: cut short, or with
/// one bit flipped.
pub(crate) fn damaged(rng: &mut Rng, register: Register) -> Register {
    let mut bytes = register.value.to_vec();
    if rng.chance(30) {
        bytes.truncate(rng.below(bytes.len() as u64) as usize);
    } else if !bytes.is_empty() {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
    }
    Register {
        value: bytes.into(),
        ..register
    }
}
