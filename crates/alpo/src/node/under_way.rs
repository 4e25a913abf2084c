//! What a leader has under way: a change of members, a hand-over, a comparison of
//! checksums.

use tenure_core::time::Instant;

use super::super::ids::{LogId, ServerId, StorageId};
use super::super::membership::Change;
use super::super::message::CompareChecksums;
use super::super::state::StateChecksum;
use super::server::Server;

/// A change of members that waits for a fresh round, and for disks.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingChange {
    pub(super) token: u64,
    pub(super) change: Change,
    /// The disk that the member is to have, if the request names one.
    pub(super) expected_storage: Option<StorageId>,
    /// The round that began after it was asked for.
    pub(super) round: u64,
    /// Where the log ended when it was asked for: a disk that has an entry
    /// after that has synced since.
    pub(super) log_end: LogId,
    /// When it is refused if too few have answered that round, or synced.
    pub(super) deadline: Instant,
    /// Whether this leader was confirmed within a timeout before it was asked:
    /// then a server that it has not heard for a timeout was silent, and it was
    /// not this process that did not listen.
    pub(super) leader_was_confirmed: bool,
}

impl PendingChange {
    /// The parts that the digest of the state has: all that decides, without rounds and times.
    pub(super) const fn digested(self) -> (Change, Option<StorageId>, LogId) {
        (self.change, self.expected_storage, self.log_end)
    }
}

/// A hand-over under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) to: ServerId,
    pub(super) until: Instant,
    pub(super) timeout_now_sent: bool,
    pub(super) token: Option<u64>,
}

/// Heartbeats after which another checksum is asked for, although no majority
/// has answered for the one before: they may have started anew since, and not
/// know it any more.
const HEARTBEATS_PER_CHECKSUM: u32 = 10;

/// What a leader knows of the others' checksums.
#[derive(Clone, Debug, Default)]
pub(super) struct ChecksumComparison {
    /// Which checksum is asked for; 0 for none yet.
    pub(super) at: LogId,
    /// How often it was.
    pub(super) asked: u32,
    pub(super) agreed: Option<StateChecksum>,
    /// The last entry for which the event was sent that no server agrees.
    pub(super) reported: LogId,
}

impl ChecksumComparison {
    /// What the next heartbeat says of checksums.
    pub(super) fn next_request(&mut self, server: &Server) -> CompareChecksums {
        let settled = self.agreed.is_some_and(|agreed| agreed.id >= self.at);
        if (settled || self.at == 0 || self.asked >= HEARTBEATS_PER_CHECKSUM)
            && let Some(newest) = server.state.newest_state_checksum()
            && newest.id > self.at
        {
            (self.at, self.asked) = (newest.id, 0);
        }
        self.asked = self.asked.saturating_add(1);
        CompareChecksums {
            at: self.at,
            agreed: self.agreed,
        }
    }
}
