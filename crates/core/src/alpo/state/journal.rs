//! The plain log: what users append and read, each entry once, in order.
//!
//! Its entries have numbers of their own, from 1 without gaps, since most
//! entries of the replicated log are not theirs. The newest are kept, up to
//! a number of bytes; a reader who comes too late is told so ([`TooOld`])
//! rather than given a gap.

use alloc::collections::VecDeque;

use crate::cas::Bytes;

/// Entries were asked for that are kept no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooOld {
    /// The oldest that is still there.
    pub first: u64,
}

/// The plain log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Journal {
    bytes_max: u64,
    bytes: u64,
    /// The number of the oldest entry that is kept.
    first: u64,
    entries: VecDeque<Bytes>,
}

impl Journal {
    pub(super) fn restored(bytes_max: u64, first: u64, entries: VecDeque<Bytes>) -> Self {
        Self {
            bytes_max,
            bytes: entries.iter().map(weight).sum(),
            first,
            entries,
        }
    }

    /// The number of the oldest entry that is kept, or that would be.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// The number that the next entry will get.
    pub fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Entries from number `from` on, with their numbers.
    ///
    /// # Errors
    /// If some of them are kept no more.
    pub fn read(&self, from: u64) -> Result<impl Iterator<Item = (u64, &Bytes)>, TooOld> {
        let first = self.first;
        let skip = from.checked_sub(first).ok_or(TooOld { first })?;
        let skip = usize::try_from(skip)
            .unwrap_or(usize::MAX)
            .min(self.entries.len());
        // Counted with the entries, not before them: `from` is any number that a
        // client has named.
        let entries = self.entries.range(skip..).enumerate();
        Ok(entries.map(move |(index, entry)| (from.saturating_add(index as u64), entry)))
    }

    /// About how many bytes it is.
    pub(super) fn weight(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    pub(super) fn entries(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.entries.iter()
    }

    pub(super) fn append(&mut self, bytes: Bytes) -> u64 {
        let number = self.next();
        self.bytes += weight(&bytes);
        self.entries.push_back(bytes);
        while self.bytes > self.bytes_max && self.entries.len() > 1 {
            if let Some(oldest) = self.entries.pop_front() {
                self.bytes -= weight(&oldest);
                self.first += 1;
            }
        }
        number
    }
}

/// What an entry counts for; something even if it is empty.
fn weight(entry: &Bytes) -> u64 {
    entry.len() as u64 + 32
}
