//! Stores that break their promise: what they may give out once more, and a
//! second copy of their registers under another name.

use std::collections::BTreeMap;

use tenure_core::cas::{Expect, Register, Registers, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::rng::Rng;

use crate::clock::TrueTime;

/// How many states of registers are kept, of which one may come back.
pub(crate) const HISTORY_MAX: usize = 64;
/// Where the versions of a second copy begin; those of the next one begin as far
/// above, since the first may be the store by then.
const COPY_FROM: u64 = 1 << 40;

/// What a store may give out once more, and its second copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreDamage<B> {
    pub(crate) history: Vec<(Key, Register)>,
    pub(crate) copy: Option<StoreCopy<B>>,
    /// Whether any promise was ever broken.
    pub(crate) ever: bool,
    /// Until when nothing of what rests on it is promised.
    pub(crate) until: TrueTime,
}

impl<B> StoreDamage<B> {
    /// Whether what rests on the store's promise is not promised at `now`.
    pub(crate) const fn excuses(&self, now: TrueTime) -> bool {
        self.copy.is_some() || (self.ever && now < self.until)
    }

    /// The copy that `p` sees, if it is the second one.
    pub(crate) fn copy(&self, p: usize) -> Option<&Registers> {
        let copy = self.copy.as_ref().filter(|copy| copy.who[p]);
        copy.map(|copy| &copy.registers)
    }

    pub(crate) fn copy_mut(&mut self, p: usize) -> Option<&mut Registers> {
        let copy = self.copy.as_mut().filter(|copy| copy.who[p]);
        copy.map(|copy| &mut copy.registers)
    }
}

/// A second copy of the store, who sees it, and what checkers know of it.
#[derive(Clone, Debug)]
pub(crate) struct StoreCopy<B> {
    pub(crate) registers: Registers,
    pub(crate) who: Vec<bool>,
    pub(crate) books: B,
}

impl<B> StoreCopy<B> {
    /// A copy of what is known after so many `forks`; some of so many processes
    /// see it.
    pub(crate) fn new(
        known: BTreeMap<Key, Register>,
        forks: u64,
        processes: usize,
        books: B,
        rng: &mut Rng,
    ) -> Self {
        Self {
            registers: Registers::restored(known, COPY_FROM * (1 + forks), 0),
            who: (0..processes).map(|_| rng.chance(50)).collect(),
            books,
        }
    }
}

/// A register holds what it held once, under its old version or a fresh one.
/// Versions that are hashes of the content are the old ones.
pub(crate) fn give_out_again(
    registers: &mut Registers,
    key: &Key,
    old: Register,
    hashed: bool,
    rng: &mut Rng,
) -> Option<Version> {
    let held = registers.read(key).map(|held| held.version.clone());
    let fresh = Version::from_u64(registers.revision() + 1);
    let keep = hashed || rng.chance(50);
    let write = Write {
        key: key.clone(),
        expect: held.map_or(Expect::Absent, Expect::Version),
        value: old.value,
        stamp: Stamp::Now,
    };
    let version = if keep { old.version } else { fresh };
    registers.swap_as(write, old.stamp, version).ok()
}
