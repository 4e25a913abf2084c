//! The members as the log says, entry by entry.
//!
//! A change takes effect when it is appended, so it must be possible to take
//! it back when its entry is truncated. The history goes back to the last
//! membership that is known to be committed, and no further.

use alloc::vec::Vec;

use super::super::durable::Identity;
use super::super::entry::{Entry, Payload};
use super::super::ids::{LogId, ServerId, StorageId};
use super::super::membership::Membership;

#[derive(Clone, Debug)]
pub(super) struct Members {
    base: Membership,
    /// The entry that made it so, or a later one.
    since: LogId,
    changes: Vec<(LogId, Membership)>,
    /// Whose log this is.
    own: (ServerId, StorageId),
    /// Whether the owner was a member, with its disk, at `since` or before,
    /// as far as this log tells.
    was_own: bool,
}

impl Members {
    /// The members as of entry `since`, which is committed.
    pub(super) fn new(base: Membership, since: LogId, own: &Identity) -> Self {
        let own = (own.server, own.storage);
        Self {
            was_own: base.has(own.0, own.1),
            base,
            since,
            changes: Vec::new(),
            own,
        }
    }

    /// The same with other members, which a snapshot names as of `since`.
    pub(super) fn restart(&mut self, base: Membership, since: LogId) {
        self.was_own |= base.has(self.own.0, self.own.1);
        (self.base, self.since) = (base, since);
        self.changes.clear();
    }

    /// Whether the owner is a member or was one, with its own disk.
    pub(super) fn was_own(&self) -> bool {
        let has = |members: &Membership| members.has(self.own.0, self.own.1);
        self.was_own || self.changes.iter().any(|(_, members)| has(members))
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

    /// A server that has this entry knows the members as they are, unless a
    /// change is under way.
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
            self.was_own |= self.base.has(self.own.0, self.own.1);
        }
    }
}
