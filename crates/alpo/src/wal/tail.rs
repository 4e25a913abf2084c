//! What a log says in sum, without its entries, and what may follow.
//!
//! The same few numbers are kept while writing, carried over in the header of
//! each new segment, and worked out again while reading. A record that does
//! not follow is a bug when it is about to be written and damage when it is
//! read; either way it is found here, by one rule.

use alloc::format;
use alloc::string::String;

use crate::{HardState, LogId, Position};

use super::record::Record;

/// No log counts anything beyond this: at a million a second it takes 292,000
/// years. So one more can always be counted.
pub(super) const NUMBER_MAX: u64 = i64::MAX as u64;

/// A log in sum.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tail {
    /// The last hard state.
    pub hard: HardState,
    /// The id of the last entry; 0 if there was none ever.
    pub last: LogId,
    /// The newest snapshot; zero if there is none.
    pub newest: Position,
    /// The one before it, if the log still leads from it to the newest.
    pub previous: Position,
}

impl Tail {
    /// Takes a record in, or says what is wrong with it.
    pub(super) fn take(&mut self, record: &Record) -> Result<(), (String, String)> {
        match record {
            Record::Hard(hard) => self.hard = *hard,
            Record::Snapshot { last, reset } => self.snapshot(*last, *reset)?,
            Record::Truncate(from) => self.truncate(*from)?,
            Record::Entry(entry) => self.entry(entry.id)?,
        }
        Ok(())
    }

    pub(super) fn entry(&mut self, id: LogId) -> Result<(), (String, String)> {
        match self.last.checked_add(1) {
            Some(next) if next == id => {
                self.last = id;
                Ok(())
            }
            _ => Err((
                format!("the entry after {}", self.last),
                format!("entry {id}"),
            )),
        }
    }

    pub(super) fn truncate(&mut self, from: LogId) -> Result<(), (String, String)> {
        // Not beyond the end either: a writer for which the log is longer than
        // it is does not know it.
        let allowed = from > self.newest.id && from - 1 <= self.last;
        if !allowed {
            let expected = format!(
                "a truncation above the snapshot at {} and within the log up to {}",
                self.newest, self.last
            );
            return Err((expected, format!("one from {from} on")));
        }
        self.last = from - 1;
        Ok(())
    }

    pub(super) fn snapshot(&mut self, at: Position, reset: bool) -> Result<(), (String, String)> {
        let newer = at.id > self.newest.id || at == self.newest;
        if at.id == 0 || at.id > NUMBER_MAX || !newer || (!reset && at.id > self.last) {
            let expected = format!(
                "a snapshot newer than {} and within the log up to {}",
                self.newest, self.last
            );
            return Err((expected, format!("one at {at} (reset: {reset})")));
        }
        if reset {
            // Nothing leads from an older snapshot to this one any more.
            self.last = at.id;
            self.previous = Position::ZERO;
        } else if at != self.newest {
            self.previous = self.newest;
        }
        self.newest = at;
        Ok(())
    }
}
