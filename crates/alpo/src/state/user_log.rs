//! The user log: what users append and read, each entry once, in order.
//!
//! Its entries have numbers of their own, from 1 without gaps, since most
//! entries of the replicated log are not theirs. The newest are kept, up to
//! a number of bytes; a reader who comes too late is told so ([`TooOld`])
//! rather than given a gap.
//!
//! There is one kind of gap: a log that was restored from a backup goes on a
//! good way above it, since the cluster that is lost may have given out the
//! numbers that follow ([`Gap`]). No answer spans it: a reader that has read up
//! to it asks from a number in it next, and is told.

use alloc::vec::Vec;

use tenure_core::cas::Bytes;
use tenure_core::shared_queue::SharedQueue;

use super::gaps::Gap;

/// Entries were asked for that are kept no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooOld {
    /// The oldest that is still there.
    pub first: u64,
}

/// The user log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserLog {
    bytes_max: u64,
    bytes: u64,
    /// The number of the oldest entry that is kept.
    first: u64,
    entries: SharedQueue<Bytes>,
    /// The number that the next entry will get.
    next: u64,
    /// Numbers that no entry of this log has, ascending. No two of them touch.
    gaps: Vec<Gap>,
}

impl UserLog {
    /// Before the first entry.
    pub(super) const fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            first: 1,
            next: 1,
            entries: SharedQueue::new(),
            gaps: Vec::new(),
        }
    }

    /// As it was, with entries from `first` on. No entry has a number in a
    /// gap, and gaps ascend; two may touch, as an earlier release wrote those
    /// of a log that was restored twice with nothing between. `None` if the numbers do not reach so far.
    pub(super) fn restored(
        bytes_max: u64,
        first: u64,
        entries: SharedQueue<Bytes>,
        gaps: impl IntoIterator<Item = Gap>,
    ) -> Option<Self> {
        let mut apart = Vec::new();
        for gap in gaps {
            put(&mut apart, gap);
        }
        let mut user_log = Self {
            bytes_max,
            bytes: entries.iter().map(weight).sum(),
            first,
            next: first,
            entries,
            gaps: apart,
        };
        if user_log.gap(first).is_some() {
            return None;
        }
        let mut left = user_log.entries.len() as u64;
        // A run between two gaps at a time.
        loop {
            let run = user_log.run_after(user_log.next);
            let step = run.map_or(left, |gap| left.min(gap.from - user_log.next));
            left -= step;
            let end = user_log.next.checked_add(step)?;
            user_log.next = user_log.skip(end);
            if left == 0 {
                // What is left out is behind what comes next.
                let last = user_log.gaps.last();
                return last
                    .is_none_or(|gap| gap.to <= user_log.next)
                    .then_some(user_log);
            }
        }
    }

    /// Leaves out the numbers of `gap`, which begins where the log ends.
    pub(super) fn leave_out(&mut self, gap: Gap) {
        debug_assert_eq!(gap.from, self.next, "a gap begins at the end");
        put(&mut self.gaps, gap);
        self.next = gap.to;
        if self.entries.is_empty() {
            self.first = gap.to;
        }
    }

    /// The number, or the first after the gap that it is in.
    fn skip(&self, number: u64) -> u64 {
        self.gap(number).map_or(number, |gap| gap.to)
    }

    /// The first gap that begins after this number.
    fn run_after(&self, number: u64) -> Option<Gap> {
        self.gaps.iter().copied().find(|gap| gap.from > number)
    }

    /// The gap that this number is in: an entry of this number may have been
    /// given to a cluster that is lost, and none of this one has it.
    pub fn gap(&self, number: u64) -> Option<Gap> {
        self.gaps.iter().copied().find(|gap| gap.holds(number))
    }

    /// The number of the oldest entry that is kept, or that would be.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// The number that the next entry will get.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Entries from number `from` on, with their numbers, up to the next gap.
    ///
    /// # Errors
    /// If some of them are kept no more. Of a number in a [`gap`](Self::gap)
    /// that is said, too: here it goes on.
    pub fn read(&self, from: u64) -> Result<impl Iterator<Item = (u64, &Bytes)>, TooOld> {
        if let Some(gap) = self.gap(from) {
            return Err(TooOld { first: gap.to });
        }
        let first = self.first;
        let skip = from.checked_sub(first).ok_or(TooOld { first })?;
        let between = self
            .gaps
            .iter()
            .filter(|gap| gap.from >= first && gap.to <= from);
        let skip = skip - between.map(Gap::width).sum::<u64>();
        let run = self.run_after(from).map_or(u64::MAX, |gap| gap.from - from);
        let size = |count| usize::try_from(count).unwrap_or(usize::MAX);
        let skip = size(skip).min(self.entries.len());
        // Counted with the entries, not before them: `from` is any number that a
        // client has named.
        let entries = self.entries.iter_from(skip).take(size(run)).enumerate();
        Ok(entries.map(move |(index, entry)| (from.saturating_add(index as u64), entry)))
    }

    /// About how many bytes it is.
    pub(super) fn weight(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    pub(super) const fn entries(&self) -> &SharedQueue<Bytes> {
        &self.entries
    }

    pub(super) fn append(&mut self, bytes: Bytes) -> u64 {
        let number = self.next;
        self.next += 1;
        self.bytes += weight(&bytes);
        self.entries.push_back(bytes);
        while self.bytes > self.bytes_max && self.entries.len() > 1 {
            if let Some(oldest) = self.entries.pop_front() {
                self.bytes -= weight(&oldest);
                self.first = self.skip(self.first + 1);
            }
        }
        number
    }
}

/// The next gap. One that begins where the last one ends makes that longer: no
/// number lies between them.
fn put(gaps: &mut Vec<Gap>, gap: Gap) {
    match gaps.last_mut() {
        Some(last) if last.to == gap.from => last.to = gap.to,
        _ => gaps.push(gap),
    }
}

/// What an entry counts for; something even if it is empty.
fn weight(entry: &Bytes) -> u64 {
    entry.len() as u64 + 32
}
