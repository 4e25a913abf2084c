//! Compare-and-swap registers: what a store *means*, as a pure state machine.
//!
//! A store is a map from [`Key`] to a register with a value and a
//! [`Version`]. A write names the version it expects and succeeds only if
//! nothing else was written in between. This one value is used four times:
//! behind a lock it is the memory store, replicated it is the state machine
//! of our own log, delayed and broken it is the simulator's store, and
//! stepped it is the model that linearizability is checked against.
//!
//! Invariants:
//! * a version is never used twice, not even for a name that was deleted and
//!   created again, so a compare-and-swap can never hit a later register that
//!   happens to look the same;
//! * an operation that fails changes nothing;
//! * every change is in the change log in the order it took effect, until
//!   the log's limit pushes it out, and a reader that comes too late is told
//!   so ([`TooOld`]) rather than given a gap.
//!
//! Left out on purpose: transactions over several registers (nothing above
//! needs them), expiry (a lease is judged by its readers, see
//! `tenure-election`), and history of values.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::ops::Bound;

use crate::ids::{Key, Version};
use crate::shared_map::SharedMap;
use crate::time::StoreTime;

/// The value of a register: bytes that the store does not look into.
pub type Bytes = Arc<[u8]>;

/// The largest value a store takes, in bytes. Above it a write is refused
/// before anything is sent. It fits every backend's own limit.
pub const MAX_VALUE_BYTES: usize = 256 * 1024;

/// One state of a register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Register {
    /// What was written.
    pub value: Bytes,
    /// The token to expect in the next compare-and-swap.
    pub version: Version,
    /// The store's time of the last write that asked for a stamp, for stores
    /// with a clock.
    pub stamp: Option<StoreTime>,
}

impl Register {
    /// How many bytes it has with its key.
    pub fn weight(&self, key: &Key) -> usize {
        key.as_str().len() + self.value.len()
    }
}

/// The answer to a read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// The register, `None` if there is none by that name.
    pub register: Option<Register>,
    /// The store's time when the read took effect, for stores with a clock.
    pub now: Option<StoreTime>,
    /// The number of the session that the register is bound to, if it is bound
    /// to one that lives: the store lets nobody else write it, and writes its
    /// on-expiry value when the session ends.
    pub bound: Option<u64>,
}

impl Reading {
    /// Why a write of `key` was refused that expected what this reading, asked after
    /// it, still shows. No other write came between: a version is never used
    /// twice. So to write again at once is to be refused again.
    pub fn refusal(&self, key: &Key) -> String {
        match self.bound {
            Some(session) => format!(
                "expected the store to take a write of {key} over the version that it shows, \
                 found it refused: the register is bound to session {session}, which lives, and only that \
                 session writes it; wait until it ends; if its process has ended, so may the \
                 session (`tenure session close {session} --holder-is-gone`)"
            ),
            None => format!(
                "expected the store to take a write of {key} over the version that it shows, \
                 found it refused and the register as it was: the store does not let this client write it; \
                 look at its rights, and at a table's triggers, rules and row level security",
            ),
        }
    }
}

/// What a write expects to find.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Expect {
    /// No register by that name.
    Absent,
    /// Exactly this version.
    Version(Version),
}

impl Expect {
    /// Whether that is what is held.
    pub fn is_met_by(&self, held: Option<&Register>) -> bool {
        match (self, held) {
            (Self::Absent, None) => true,
            (Self::Version(expected), Some(held)) => *expected == held.version,
            (Self::Absent, Some(_)) | (Self::Version(_), None) => false,
        }
    }
}

/// Whether a write moves the register's stamp.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stamp {
    /// Stamp it with the store's time: the writer renews or takes an election.
    Now,
    /// Leave the stamp as it is: the writer only adds a request, which must
    /// not make an election look younger than its last renewal.
    Keep,
}

/// A compare-and-swap.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Write {
    /// Which register.
    pub key: Key,
    /// What it must hold for the write to happen.
    pub expect: Expect,
    /// The new value, at most [`MAX_VALUE_BYTES`].
    pub value: Bytes,
    /// Whether to move the stamp.
    pub stamp: Stamp,
}

/// A write was refused because the register is not what was expected.
/// Re-read, then decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict;

/// One change, in the order of effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Its place in the order, from 1.
    pub revision: u64,
    /// Which register.
    pub key: Key,
    /// Its state after the change, `None` if it was deleted.
    pub register: Option<Register>,
    /// By how many bytes it takes more room than before: of its key and value,
    /// and of what is kept beside them.
    pub grown: i64,
    /// Whether there was none before.
    pub created: bool,
}

/// A change log was asked for changes it no longer has: list again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooOld;

/// The registers and their recent changes. A copy shares the registers that
/// neither has changed ([`SharedMap`]).
#[derive(Clone, Debug)]
pub struct Registers {
    registers: SharedMap<Key, Register>,
    revision: u64,
    changes: VecDeque<Change>,
    changes_max: usize,
    /// Bytes of the values in the change log.
    changes_bytes: usize,
    /// Bytes of all keys and values.
    bytes: u64,
}

/// Bytes of values that a change log keeps alive, at most: registers that are
/// written often are in it once for every write.
const CHANGES_BYTES_MAX: usize = 32 * 1024 * 1024;

impl Change {
    /// Bytes of its value; 0 if it deletes.
    pub fn bytes(&self) -> usize {
        self.register.as_ref().map_or(0, |it| it.value.len())
    }
}

impl Registers {
    /// No registers, and a change log of at most `changes_max` entries and
    /// 32 MiB of values, the oldest of which are forgotten when others come.
    pub fn new(changes_max: usize) -> Self {
        Self {
            registers: SharedMap::new(),
            revision: 0,
            changes: VecDeque::new(),
            changes_max,
            changes_bytes: 0,
            bytes: 0,
        }
    }

    /// Registers as they were at `revision`, with a change log that begins
    /// there: earlier changes are [`TooOld`].
    pub fn restored(registers: BTreeMap<Key, Register>, revision: u64, changes_max: usize) -> Self {
        let weight = |(key, register): (&Key, &Register)| register.weight(key) as u64;
        let registers: SharedMap<_, _> = registers.into_iter().collect();
        Self {
            bytes: registers.iter().map(weight).sum(),
            registers,
            revision,
            changes: VecDeque::new(),
            changes_max,
            changes_bytes: 0,
        }
    }

    /// The place of the last change; 0 before the first.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// How many registers there are.
    pub fn len(&self) -> usize {
        self.registers.len()
    }

    /// How many bytes their keys and values have.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.registers.is_empty()
    }

    /// One register.
    pub fn read(&self, key: &Key) -> Option<&Register> {
        self.registers.get(key)
    }

    /// Writes if the register is as expected, and says its new version.
    ///
    /// # Errors
    /// [`Conflict`] if it is not; then nothing has changed.
    pub fn compare_and_swap(
        &mut self,
        write: Write,
        now: Option<StoreTime>,
    ) -> Result<Version, Conflict> {
        let version = Version::from_u64(self.revision + 1);
        self.swap_as(write, now, version)
    }

    /// Like [`compare_and_swap`](Self::compare_and_swap) with a version of
    /// the caller's choosing: for stores whose versions are hashes of the
    /// content, where never using one twice is the *writer's* care.
    ///
    /// # Errors
    /// [`Conflict`] as there.
    pub fn swap_as(
        &mut self,
        write: Write,
        now: Option<StoreTime>,
        version: Version,
    ) -> Result<Version, Conflict> {
        self.swap_with(&write, now, version, |_, _| ())
    }

    /// The same; `changed` sees what the register was and what it is now.
    ///
    /// # Errors
    /// [`Conflict`] as there; then `changed` is not called.
    pub fn swap_with(
        &mut self,
        write: &Write,
        now: Option<StoreTime>,
        version: Version,
        changed: impl FnOnce(Option<&Register>, &Register),
    ) -> Result<Version, Conflict> {
        let key = &write.key;
        let entry = self.registers.entry(key);
        let held = entry.value();
        if !write.expect.is_met_by(held) {
            return Err(Conflict);
        }
        let stamp = match write.stamp {
            Stamp::Now => now,
            Stamp::Keep => held.and_then(|held| held.stamp),
        };
        let register = Register {
            value: write.value.clone(),
            version: version.clone(),
            stamp,
        };
        changed(held, &register);
        let before = entry.put(key, register.clone());
        self.log(key.clone(), before, Some(register));
        Ok(version)
    }

    /// Deletes the register if it has exactly this version.
    ///
    /// # Errors
    /// [`Conflict`] if it has not or there is none; then nothing has changed.
    pub fn delete(&mut self, key: &Key, expected: &Version) -> Result<(), Conflict> {
        self.delete_with(key, expected, |_| ())
    }

    /// The same; `gone` sees what the register was.
    ///
    /// # Errors
    /// [`Conflict`] as there; then `gone` is not called.
    pub fn delete_with(
        &mut self,
        key: &Key,
        expected: &Version,
        gone: impl FnOnce(&Register),
    ) -> Result<(), Conflict> {
        let entry = self.registers.entry(key);
        match entry.value() {
            Some(held) if held.version == *expected => gone(held),
            Some(_) | None => return Err(Conflict),
        }
        let before = entry.remove();
        self.log(key.clone(), before, None);
        Ok(())
    }

    /// All registers whose key begins with `prefix`, sorted by key.
    pub fn list<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a Key, &'a Register)> {
        self.list_after(prefix, None)
    }

    /// The same, from the first key after `after` on.
    pub fn list_after<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&Key>,
    ) -> impl Iterator<Item = (&'a Key, &'a Register)> {
        let from = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            Some(_) | None => Bound::Included(prefix),
        };
        self.registers
            .range_from::<str>(from)
            .take_while(move |(key, _)| key.as_str().starts_with(prefix))
    }

    /// The changes after `revision`, in order.
    ///
    /// # Errors
    /// [`TooOld`] if some of them have been forgotten.
    pub fn changes_after(&self, revision: u64) -> Result<impl Iterator<Item = &Change>, TooOld> {
        let missed = self.revision.saturating_sub(revision);
        let kept = self.changes.len() as u64;
        let skip = kept.checked_sub(missed).ok_or(TooOld)?;
        Ok(self
            .changes
            .iter()
            .skip(usize::try_from(skip).unwrap_or(usize::MAX)))
    }

    /// The lowest revision after which all changes are remembered.
    pub fn remembered_from(&self) -> u64 {
        self.revision - self.changes.len() as u64
    }

    /// What is kept beside the register that was changed last has grown by so
    /// many bytes with the change.
    pub fn grown_beside(&mut self, bytes: i64) {
        if let Some(last) = self.changes.back_mut() {
            last.grown += bytes;
        }
    }

    fn log(&mut self, key: Key, before: Option<Register>, register: Option<Register>) {
        self.revision += 1;
        let weight = |it: &Option<Register>| it.as_ref().map_or(0, |it| it.weight(&key) as i64);
        let grown = weight(&register) - weight(&before);
        self.bytes = self.bytes.saturating_add_signed(grown);
        let change = Change {
            revision: self.revision,
            key,
            register,
            grown,
            created: before.is_none(),
        };
        self.changes_bytes += change.bytes();
        self.changes.push_back(change);
        while self.changes.len() > self.changes_max || self.changes_bytes > CHANGES_BYTES_MAX {
            let Some(forgotten) = self.changes.pop_front() else {
                break;
            };
            self.changes_bytes -= forgotten.bytes();
        }
    }
}
