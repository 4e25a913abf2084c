//! Bounds the work that the ends of sessions cost which a leader has proposed and which
//! are not applied yet.
//!
//! An entry that ends a session is a few bytes, and every server that applies
//! it writes all registers that the session holds, up to 1,024. What commits at
//! once is applied at once, and a server that applies does nothing else: a
//! million registers, whose sessions some few kilobytes of log can end, would
//! keep all servers from hearing each other for seconds, and cost the leader
//! its election. So a leader counts what ends that it has proposed will write,
//! and has no more of that in its log, unapplied, than [`MAX_SESSION_ENDS`].
//!
//! A client is told to come again. The leader's own ends of sessions that have
//! expired wait for those before them to be applied, and go first then: clients
//! cannot keep them out. Nor can they keep clients out for long, for each
//! register that a session holds was bound by an entry of its own.
//!
//! Values count as well, since each is looked at for the checksum of the state: a
//! thousand of a quarter of a megabyte take a server a sixteenth of a second. An end
//! that is more than all ends together may be is proposed alone.
//!
//! The count is what may be written at most: registers that are bound when the
//! end is proposed, and bindings that stand before it in the session's tail.
//! What a session binds whose own beginning is not applied yet is not counted,
//! and need not be: an entry for each such register is not applied yet either.
//!
//! A new leader proposes no end before its first entry is applied, and so are
//! then all entries of earlier leaders: it begins at zero.

use alloc::collections::VecDeque;

use super::super::ids::LogId;
use super::super::state::MAX_BOUND;

/// The most that ends of sessions may write that are proposed and not applied
/// yet: each counts 1, and 1 for each register that the session holds and for each 16 KiB
/// of their values, so all together about 64 MiB of these.
pub const MAX_SESSION_ENDS: u64 = 4_096;
/// So many bytes of values count as one write.
pub(super) const BYTES_OF_A_WRITE: u64 = 16 * 1024;

// The end of any session with small values fits where no other is under way.
const _: () = assert!((MAX_BOUND as u64) < MAX_SESSION_ENDS);

/// The ends of sessions in the log that are not applied yet.
#[derive(Clone, Default, Debug)]
pub(super) struct SessionEnds {
    /// Their entries and what each may write, in the order of the log.
    under_way: VecDeque<(LogId, u64)>,
    /// What all of them may write.
    sum: u64,
    /// Sessions have expired whose ends found no room.
    pub(super) held_back: bool,
}

impl SessionEnds {
    /// Whether another one that may write so much can be proposed.
    pub(super) const fn has_room(&self, writes: u64) -> bool {
        self.sum == 0 || self.sum + writes <= MAX_SESSION_ENDS
    }

    /// Whether the turn has come of those that were held back.
    pub(super) const fn next_may_come(&self) -> bool {
        self.held_back && self.sum == 0
    }

    /// Entry `id`, which was appended, may write so much.
    pub(super) fn appended(&mut self, id: LogId, writes: u64) {
        self.under_way.push_back((id, writes));
        self.sum += writes;
    }

    /// All entries up to `id` are applied.
    pub(super) fn applied(&mut self, id: LogId) {
        while let Some((_, writes)) = self.under_way.pop_front_if(|(end, _)| *end <= id) {
            self.sum -= writes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_applied_makes_room_for_as_much() {
        let mut session_ends = SessionEnds::default();
        session_ends.appended(5, MAX_SESSION_ENDS - 10);
        session_ends.appended(7, 8);
        assert!(session_ends.has_room(2));
        assert!(!session_ends.has_room(3));
        session_ends.applied(4);
        assert!(!session_ends.has_room(3));
        session_ends.applied(6);
        assert!(session_ends.has_room(MAX_SESSION_ENDS - 8));
        assert!(!session_ends.has_room(MAX_SESSION_ENDS - 7));
        session_ends.applied(7);
        assert!(session_ends.has_room(MAX_SESSION_ENDS));
        assert!(session_ends.has_room(MAX_SESSION_ENDS * 5), "alone");
    }
}
