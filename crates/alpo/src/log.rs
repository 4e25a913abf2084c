//! The log in memory: everything after the last compaction.
//!
//! Invariants:
//! * ids have no gaps: the first entry follows `base`, each the one before;
//! * terms and times never go back along the log;
//! * `base` is a position that is known to be committed; what lies at or
//!   below it is equal on all servers and is never looked at again.

use alloc::vec::Vec;

use tenure_core::ids::Term;

use super::chunks::Chunks;
use super::entry::{Entry, LogTime};
use super::ids::{LogId, Position};

/// The entries that are still needed one by one.
#[derive(Clone, Default, Debug)]
pub struct Log {
    base: Position,
    /// Those at or below the base first, then those that are still there.
    entries: Chunks<Entry>,
    /// How many are at or below the base: less than a chunk has.
    forgotten: usize,
    bytes: usize,
    /// The last entry's position, or the base, and its time: each new entry
    /// is held against them.
    last: Position,
    last_time: Option<LogTime>,
}

/// Entries that a log needs no more. To free the memory of some hundred thousand
/// takes tens of milliseconds, in which a server would answer nobody. So another
/// thread drops them.
#[derive(Clone, Default, Debug)]
pub struct Forgotten(Chunks<Entry>);

impl Forgotten {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

impl PartialEq for Log {
    fn eq(&self, other: &Self) -> bool {
        self.base == other.base && self.iter().eq(other.iter())
    }
}

impl Eq for Log {}

impl Log {
    /// A log that begins after `base`.
    pub fn after(base: Position) -> Self {
        Self {
            base,
            last: base,
            ..Self::default()
        }
    }

    /// The position before the first entry.
    pub const fn base(&self) -> Position {
        self.base
    }

    /// The position of the last entry, or the base.
    pub const fn last(&self) -> Position {
        self.last
    }

    /// How much memory the entries take, about.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len() - self.forgotten
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.from(self.forgotten)
    }

    /// The time of the last entry, if it is still here.
    pub const fn last_time(&self) -> Option<LogTime> {
        self.last_time
    }

    /// Entry `id`, if it is still (or already) here.
    pub fn get(&self, id: LogId) -> Option<&Entry> {
        let index = id.checked_sub(self.base.id)?.checked_sub(1)?;
        let index = usize::try_from(index).ok()?;
        self.entries.get(self.forgotten.checked_add(index)?)
    }

    /// The term of entry `id`; also of the base. `None` outside.
    pub fn term_at(&self, id: LogId) -> Option<Term> {
        if id == self.base.id {
            return Some(self.base.term);
        }
        self.get(id).map(|entry| entry.term)
    }

    /// Whether the log has this very entry, by id and term.
    pub fn has(&self, position: Position) -> bool {
        self.term_at(position.id) == Some(position.term)
    }

    /// The first entry of the term of entry `id`, as far as it is here.
    pub fn first_of_term(&self, id: LogId) -> Option<Position> {
        let term = self.term_at(id)?;
        let before = self.entries.partition_point(|entry| entry.term < term);
        let first = self
            .entries
            .get(before.max(self.forgotten))
            .map_or(self.base, Entry::position);
        Some(if self.base.term == term {
            self.base
        } else {
            first
        })
    }

    /// The last id whose term is at most `term`, at or above the base.
    pub fn last_up_to_term(&self, term: Term) -> LogId {
        let count = self.entries.partition_point(|entry| entry.term <= term);
        self.base.id + count.saturating_sub(self.forgotten) as u64
    }

    /// Whether an entry could be the next one.
    pub fn fits(&self, entry: &Entry) -> bool {
        self.last.id.checked_add(1) == Some(entry.id)
            && entry.term >= self.last.term
            && self.last_time.is_none_or(|time| entry.time >= time)
    }

    /// Appends an entry.
    ///
    /// # Panics
    /// If it does not fit: an invariant is broken.
    pub fn append(&mut self, entry: Entry) {
        let (last, next) = (self.last, entry.position());
        assert!(self.fits(&entry), "{next} does not follow {last}");
        (self.last, self.last_time) = (next, Some(entry.time));
        self.bytes += entry.weight();
        self.entries.push(entry);
    }

    /// Removes entry `from` and everything after it.
    pub fn truncate(&mut self, from: LogId) {
        assert!(from > self.base.id, "truncation below the base");
        let keep = usize::try_from(from - self.base.id - 1).unwrap_or(usize::MAX);
        let keep = self.forgotten.saturating_add(keep);
        let bytes = &mut self.bytes;
        self.entries
            .truncate(keep, |entry| *bytes -= entry.weight());
        self.look_at_the_last();
    }

    /// Forgets entries up to and including `id`, which becomes the base.
    pub fn compact(&mut self, id: LogId) -> Forgotten {
        let ids = id.min(self.last().id).saturating_sub(self.base.id);
        let count = usize::try_from(ids).unwrap_or(usize::MAX);
        if count == 0 {
            return Forgotten::default();
        }
        self.bytes = self.bytes_after(self.base.id + ids).unwrap_or(0);
        self.forgotten += count;
        let last = self.entries.get(self.forgotten - 1);
        self.base = last.map_or(self.base, Entry::position);
        let front = self.entries.take_front(self.forgotten);
        self.forgotten -= front.len();
        self.look_at_the_last();
        Forgotten(front)
    }

    /// Something was removed.
    fn look_at_the_last(&mut self) {
        let last = self.entries.back().filter(|_| !self.is_empty());
        self.last_time = last.map(|entry| entry.time);
        self.last = last.map_or(self.base, Entry::position);
    }

    /// The entry before the last that go up to and including `id`: at most
    /// `count`, and at most `bytes` of them.
    pub fn behind(&self, id: LogId, count: u64, bytes: usize) -> LogId {
        let mut weight = 0;
        let mut upto = id;
        while id - upto < count
            && let Some(entry) = self.get(upto)
        {
            weight += entry.weight();
            if weight > bytes {
                break;
            }
            upto -= 1;
        }
        upto
    }

    /// How much memory the entries after `id` take, about; `None` if some of
    /// them are gone.
    pub fn bytes_after(&self, id: LogId) -> Option<usize> {
        let skip = usize::try_from(id.checked_sub(self.base.id)?).ok()?;
        // The fewer are counted: where the log is long, most of it stays.
        Some(if skip < self.len() / 2 {
            let before = self.iter().take(skip).map(Entry::weight);
            self.bytes - before.sum::<usize>()
        } else {
            let after = self.entries.from(self.forgotten.saturating_add(skip));
            after.map(Entry::weight).sum()
        })
    }

    /// Entries from `from` on: at most `count`, and at most `bytes` of them
    /// but at least one.
    pub fn slice(&self, from: LogId, count: usize, bytes: usize) -> Vec<Entry> {
        let Some(skip) = from.checked_sub(self.base.id + 1) else {
            return Vec::new();
        };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        if skip >= self.len() {
            return Vec::new();
        }
        let count = count.min(self.len() - skip);
        let mut slice = Vec::with_capacity(count);
        let mut weight = 0;
        for entry in self.entries.from(self.forgotten + skip).take(count) {
            weight += entry.weight();
            if weight > bytes && !slice.is_empty() {
                break;
            }
            slice.push(entry.clone());
        }
        slice
    }
}
