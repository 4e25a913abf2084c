//! What a state has come to, as one number, so that servers can compare.
//!
//! Equal logs must give equal states. If they ever do not (a bug, memory
//! that rots, a directory restored from something else), it would go unnoticed:
//! each server goes on answering from what it has. So each keeps a running
//! hash of its state and keeps it, as a *checksum*, at every so many entries.
//! The leader compares the checksums; the odd one stops (`node/compare_checksums.rs`).
//!
//! The hash has two parts, both cheap to keep:
//!
//! * a *chain* over everything that entries have done: their outcomes, the
//!   log's time, how many sessions, bound registers and entries of the plain
//!   log there are; from version 2 of the cluster on also what commands were
//!   about ([`digest_of`](super::digest_of)) and whose sessions are;
//! * a *sum* over the registers, each hashed by itself, so that one can be
//!   taken out and put in. The sum is made anew from a snapshot's registers,
//!   and a snapshot whose registers do not add up is refused.
//!
//! It is no signature: it finds accidents, not forgers.

use alloc::collections::VecDeque;

use tenure_core::cas::Register;
use tenure_core::ids::Key;

use super::super::entry::{Entry, Outcome};
use super::super::ids::LogId;

/// Checksums that are kept to be compared: of the last 262,144 entries, if one
/// is made at every 256th.
const KEPT: usize = 1_024;

/// The hash of the state after an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StateChecksum {
    /// After which entry.
    pub id: LogId,
    /// What the state hashed to.
    pub hash: u64,
}

/// The running hash and the last checksums.
#[derive(Clone, Debug, Default)]
pub(super) struct StateChecksums {
    pub(super) chain: u64,
    pub(super) registers: u64,
    kept: VecDeque<StateChecksum>,
    /// Nothing is due before this entry.
    due: LogId,
}

impl StateChecksums {
    /// As of a snapshot: no checksums are kept yet.
    pub(super) const fn restored(chain: u64, registers: u64) -> Self {
        Self {
            chain,
            registers,
            kept: VecDeque::new(),
            due: 0,
        }
    }

    /// A register was put in.
    pub(super) fn put(&mut self, key: &Key, register: &Register) {
        self.registers = self.registers.wrapping_add(of_register(key, register));
    }

    /// A register was taken out.
    pub(super) fn take(&mut self, key: &Key, register: &Register) {
        self.registers = self.registers.wrapping_sub(of_register(key, register));
    }

    /// An entry was applied, with this outcome; `sizes` are of what the state
    /// holds now, and `content` is what the entry was about (from version 2
    /// on; 0 before).
    pub(super) fn applied(
        &mut self,
        entry: &Entry,
        outcome: &Outcome,
        sizes: [u64; 3],
        content: u64,
    ) {
        // Two products an entry, and not one for each of the words.
        let (kind, number) = of_outcome(outcome);
        let [sessions, first, bound] = sizes;
        let what = number ^ kind.rotate_left(56) ^ sessions.rotate_left(40) ^ bound.rotate_left(24);
        let what = what ^ content;
        let when = entry.time ^ entry.id.rotate_left(32) ^ first.rotate_left(16);
        self.chain = mix(
            mix(self.chain, what),
            when ^ entry.term.get().rotate_left(48),
        );
    }

    /// Keeps the checksum after entry `id` if that is a multiple of `every`.
    pub(super) fn record_if_due(&mut self, id: LogId, every: u64) {
        // Comparing is quicker than dividing, and this is done for each entry.
        if id < self.due {
            return;
        }
        let every = every.max(1);
        if id.is_multiple_of(every) {
            self.state_checksum(id);
        }
        self.due = id - id % every + every;
    }

    fn state_checksum(&mut self, id: LogId) {
        if self.kept.len() >= KEPT {
            self.kept.pop_front();
        }
        let hash = mix(self.chain, self.registers);
        self.kept.push_back(StateChecksum { id, hash });
    }

    pub(super) fn at(&self, id: LogId) -> Option<StateChecksum> {
        let found = self
            .kept
            .binary_search_by_key(&id, |state_checksum| state_checksum.id);
        self.kept.get(found.ok()?).copied()
    }

    pub(super) fn newest(&self) -> Option<StateChecksum> {
        self.kept.back().copied()
    }
}

/// The sum of these registers.
pub(super) fn sum<'a>(registers: impl Iterator<Item = (&'a Key, &'a Register)>) -> u64 {
    let mut state_checksums = StateChecksums::default();
    registers.for_each(|(key, register)| state_checksums.put(key, register));
    state_checksums.registers
}

fn of_register(key: &Key, register: &Register) -> u64 {
    let stamp = register.stamp.map_or(u64::MAX, |stamp| stamp.nanos);
    let hash = bytes(mix(0, stamp), key.as_str().as_bytes());
    bytes(bytes(hash, register.version.as_bytes()), &register.value)
}

fn of_outcome(outcome: &Outcome) -> (u64, u64) {
    match outcome {
        Outcome::Opened(id) => (1, *id),
        Outcome::Appended(number) => (2, *number),
        Outcome::Swapped(version) => (3, version.to_u64().unwrap_or(0)),
        Outcome::Conflict => (4, 0),
        Outcome::Deleted => (5, 0),
        Outcome::Alive => (6, 0),
        Outcome::Closed => (7, 0),
        Outcome::TooManySessions => (8, 0),
        Outcome::SessionExpired => (9, 0),
        Outcome::TooOld => (10, 0),
        Outcome::OutOfOrder { expected } => (11, *expected),
        Outcome::Members => (12, 0),
        Outcome::Nothing => (13, 0),
        Outcome::TooManyBound => (14, 0),
        Outcome::OtherContent => (15, 0),
    }
}

/// Eight bytes at a time; the length counts, so that zeros do.
pub(super) fn bytes(hash: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words
        .iter()
        .fold(mix(hash, bytes.len() as u64), |hash, word| {
            mix(hash, u64::from_le_bytes(*word))
        });
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash, u64::from_le_bytes(last))
}

/// One word more: the halves of a product, folded, in which every bit of the
/// one factor meets every bit of the other.
pub(super) const fn mix(hash: u64, word: u64) -> u64 {
    const A: u64 = 0x9E37_79B9_7F4A_7C15;
    const B: u64 = 0xD1B5_4A32_D192_ED03;
    let product = (hash ^ A) as u128 * (word ^ B) as u128;
    (product as u64) ^ ((product >> 64) as u64)
}
