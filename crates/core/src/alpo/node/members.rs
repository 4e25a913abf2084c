//! The members as the log says, entry by entry.
//!
//! A change takes effect when it is appended, so it must be possible to take
//! it back when its entry is truncated. The history goes back to the last
//! membership that is known to be committed, and no further.

use alloc::vec::Vec;

use super::super::entry::{Entry, Payload};
use super::super::ids::LogId;
use super::super::membership::Membership;

#[derive(Clone, Debug)]
pub(super) struct Members {
    base: Membership,
    /// The entry that made it so, or a later one.
    since: LogId,
    changes: Vec<(LogId, Membership)>,
}

impl Members {
    /// The members as of entry `since`, which is committed.
    pub(super) const fn new(base: Membership, since: LogId) -> Self {
        Self {
            base,
            since,
            changes: Vec::new(),
        }
    }

    /// The members that count now.
    pub(super) fn now(&self) -> &Membership {
        self.changes
            .last()
            .map_or(&self.base, |(_, members)| members)
    }

    /// Where the last change stands, if it is not forgotten.
    pub(super) fn last_change(&self) -> Option<LogId> {
        self.changes.last().map(|(id, _)| *id)
    }

    /// Whoever has this entry knows the members as they are, unless a change
    /// is under way.
    pub(super) fn since(&self) -> LogId {
        self.last_change().unwrap_or(self.since)
    }

    pub(super) fn appended(&mut self, entry: &Entry) {
        if let Payload::Members(members) = &entry.payload {
            self.changes.push((entry.id, members.clone()));
        }
    }

    pub(super) fn truncated(&mut self, from: LogId) {
        self.changes.retain(|(id, _)| *id < from);
    }

    /// Changes up to `id` can never be taken back.
    pub(super) fn committed(&mut self, id: LogId) {
        while self.changes.first().is_some_and(|(at, _)| *at <= id) {
            (self.since, self.base) = self.changes.remove(0);
        }
    }
}
