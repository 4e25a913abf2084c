//! What was left out when a state was restored from a backup.
//!
//! Gaps that touch in the numbers of the user log are one, in ids and
//! revisions as well. Nothing was appended between the two restores, so no entry
//! lies between them; and servers of the release before read no two gaps that
//! touch behind an entry. Ids and revisions of the cluster between the two were
//! given out by one that is lost, so a reader that comes from there is told the
//! same as one that comes from either side.

use alloc::vec::Vec;

/// Above this no id may come: the largest whole number that all readers of
/// JSON keep.
pub(super) const LAST: u64 = 1 << 53;

/// Numbers that are left out, from the first to before the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The first.
    pub from: u64,
    /// The first after them.
    pub to: u64,
}

impl Gap {
    /// Whether this number is left out.
    pub const fn holds(&self, number: u64) -> bool {
        self.from <= number && number < self.to
    }

    pub(super) const fn width(&self) -> u64 {
        self.to - self.from
    }

    const fn up_to(self, later: Self) -> Self {
        Self {
            from: self.from,
            to: later.to,
        }
    }
}

/// What was left out when the state was restored; more than once, if nobody
/// appended to the user log between one time and the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gaps {
    /// Places in the log from which no reader can go on: the backup's last entry
    /// and the ids after it.
    pub ids: Gap,
    /// The same as revisions of the registers.
    pub revisions: Gap,
    /// Numbers of the user log that no entry of it has.
    pub numbers: Gap,
}

impl Gaps {
    pub(super) const fn is_after(&self, other: &Self) -> bool {
        other.ids.to <= self.ids.from
            && other.revisions.to <= self.revisions.from
            && other.numbers.to <= self.numbers.from
    }
}

/// Those that touch in the user log as one.
pub(super) fn joined(all: &[Gaps]) -> Vec<Gaps> {
    let mut joined: Vec<Gaps> = Vec::new();
    for gaps in all {
        match joined.last_mut() {
            Some(last) if last.numbers.to == gaps.numbers.from => {
                *last = Gaps {
                    ids: last.ids.up_to(gaps.ids),
                    revisions: last.revisions.up_to(gaps.revisions),
                    numbers: last.numbers.up_to(gaps.numbers),
                };
            }
            _ => joined.push(*gaps),
        }
    }
    joined
}
