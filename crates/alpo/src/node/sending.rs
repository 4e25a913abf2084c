//! A snapshot on its way to a peer (`InstallSnapshot` of Raft), as the leader
//! sees it; `installing.rs` is the other side.
//!
//! The leader takes newer snapshots meanwhile. If each of them began the
//! transfer anew, none would end that takes longer than it is from one snapshot
//! to the next: with a large state, a slow link and many writes a server would
//! never be brought up to date. So the peer is sent the snapshot that was the
//! newest when its transfer began, to the end, and after that the log behind it
//! (etcd: `SnapshotCatchUpEntries`). The leader does not compact that log
//! ([`Progress::needs_after`]) until the peer has all that a newest snapshot
//! covers.
//!
//! *Why that ends.* Let the state have *s* bytes, let clients write *w* bytes a
//! second, and let the link carry *r*, which is more than *w*: a link that
//! carries less can keep no follower up to date. The log from one snapshot
//! to the next has, as a rule, at most the threshold *t* in bytes, and
//! *t* is at least *s* (`snapshot_schedule.rs`). A transfer begins with the newest
//! snapshot, so it begins less than one such log before the next. It takes *s* / *r*,
//! and in this time less than *s* bytes are written. When it ends the newest
//! snapshot is therefore less than *t* + *s*, and so 2 *t*, ahead of what the peer
//! needs next; from then on the distance becomes smaller. So it is enough to keep
//! 2 *t* behind the newest snapshot, and each transfer that begins is the last.
//!
//! *Where more than that is written meanwhile* the log goes, and the transfer
//! begins anew with the newest snapshot. A chunk waits for the answer to the
//! one before, so *r* is not more than a chunk in each round trip, although
//! entries may go faster. Such a peer is up to date when clients write less for
//! the time of one transfer.
//!
//! *What it costs.* Memory alone: the disk keeps no entry longer. At most 2 *t*
//! of log behind the newest snapshot, in the place of half of *t*, and for each
//! peer at most one snapshot that is not the newest; peers that were sent the
//! same one share it. Both are given up
//!
//! * when the peer does not need them any more, or is removed, or has another
//!   disk, since what is known of it begins anew then;
//! * when it has said nothing for [`SILENT_TIMEOUTS`] election timeouts;
//! * when the log behind the snapshot is longer than 2 *t*;
//! * when nothing of the snapshot is there: a peer that was started again, or got
//!   it damaged, begins with the newest;
//! * when the leadership ends. The next leader has other snapshots, and sends its
//!   newest.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::super::durable::Snapshot;
use super::super::ids::{LogId, ServerId};
use super::super::message::Request;
use super::leader::Leader;
use super::progress::{Mode, Progress};
use super::server::Server;
use super::types::Discarded;

/// A peer that has said nothing for so many election timeouts is not waited for.
const SILENT_TIMEOUTS: u32 = 8;

impl Leader {
    /// A snapshot is encoded, and becomes the newest. The one before stays if a
    /// peer is sent it, and so does the log that such peers need.
    pub(super) fn snapshot_encoded(&mut self, server: &mut Server, snapshot: Snapshot) {
        for peer in self.peers.values_mut() {
            peer.catches_up &= peer.matched < snapshot.last.id;
        }
        let needing = self.peers.values().filter(|peer| peer.catches_up);
        let needing = needing.filter(|peer| is_waited_for(server, peer));
        let needed: Vec<LogId> = needing.map(Progress::needs_after).collect();
        let before = server.snapshot.clone();
        server.snapshot_encoded(snapshot, &needed);
        let newest = server.snapshot.as_ref().map(|it| it.last);
        let replaced = before.filter(|it| Some(it.last) != newest);
        let replaced = replaced.filter(|it| is_of_use(&self.peers, server, it));
        self.sending.extend(replaced);
    }

    /// Gives up the snapshots that no peer is sent any more, or in vain.
    pub(super) fn release_snapshots(&mut self, server: &mut Server) {
        let unused = |it: &mut Snapshot| !is_of_use(&self.peers, server, it);
        let unused: Vec<Snapshot> = self.sending.extract_if(.., unused).collect();
        for snapshot in unused {
            server.discard(Discarded::Snapshot(snapshot));
        }
    }
}

/// Whether a peer is sent this snapshot, and can go on behind it.
fn is_of_use(peers: &BTreeMap<ServerId, Progress>, server: &Server, it: &Snapshot) -> bool {
    let is_sent = |peer: &Progress| peer.is_sent(it.last) && is_waited_for(server, peer);
    server.log.has(it.last) && peers.values().any(is_sent)
}

fn is_waited_for(server: &Server, peer: &Progress) -> bool {
    let since = server
        .now
        .before(SILENT_TIMEOUTS * server.config.election_timeout);
    peer.heard_at.is_some_and(|at| at >= since)
}

impl Progress {
    /// Sends the next chunk of a snapshot to `id`, which is this peer: one at a
    /// time, and of the size that the pace allows. Heartbeats go on beside it,
    /// and are not to wait behind it. `sending` are those that are not the
    /// newest any more.
    pub(super) fn send_chunk(
        &mut self,
        server: &mut Server,
        id: ServerId,
        sending: &[Snapshot],
        round: u64,
    ) {
        let begun = sending.iter().find(|it| self.is_sent(it.last));
        let Mode::Installing {
            last,
            offset,
            first,
            asked,
        } = &mut self.mode
        else {
            return;
        };
        let Some(snapshot) = begun.or(server.snapshot.as_ref()).cloned() else {
            return;
        };
        if snapshot.last != *last {
            (*last, *offset, *first, *asked) = (snapshot.last, 0, None, None);
        }
        let total = snapshot.bytes.len();
        let from = usize::try_from(*offset).unwrap_or(usize::MAX).min(total);
        // Where nothing is missing it only asks whether the peer is done.
        let room = if from < total {
            // Also asked while a chunk is on its way: the pace is to know that
            // more would be sent.
            self.pacing.room_alone()
        } else {
            Some(0)
        };
        let Some(room) = room.filter(|_| asked.is_none()) else {
            return;
        };
        // The smallest window may be less than a chunk is ever to be.
        let whole = server.config.chunk_bytes;
        let most = room.clamp(whole.div_ceil(8), whole);
        let to = from.saturating_add(most).min(total);
        let request = Request::Install {
            last: snapshot.last,
            offset: from as u64,
            bytes: snapshot.bytes[from..to].into(),
            total: total as u64,
            round,
        };
        let number = server.send_request(id, request);
        self.pacing.on_sent(number, to - from, server.now);
        first.get_or_insert(number);
        *asked = Some(number);
    }
}
