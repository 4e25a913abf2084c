//! A disk that stalls.
//!
//! Where the other voters are a majority by themselves, nothing that a leader
//! does needs its own disk: it commits by theirs, and it is heard and answers
//! while a sync of its own takes seconds. Its own log still counts only up to
//! where its disk has it (H12), so nothing is lost that was acknowledged.
//!
//! That cannot go on for ever: what waits for the disk is in memory, and the
//! more of it there is the less a crash of one of the others may cost. So the
//! lag has bounds, in time and in bytes ([`Config`]). Beyond them the leader
//! hands over to a voter whose disk has kept up, at most once a minute, so
//! that slow disks do not throw the leadership to and fro. If no disk has kept
//! up it takes nothing new in; if it handed over lately, it takes things in
//! until the bound in bytes.
//!
//! A follower whose disk stalls goes on answering what promises
//! nothing, heartbeats above all. What it is sent beyond the bound in bytes
//! it leaves unanswered, and is sent again. A term or a vote that is not on
//! disk keeps everything back, in every role: see `disk`.
//!
//! [`Config`]: super::super::config::Config

use core::time::Duration;

use super::super::ids::ServerId;
use super::super::quorum;
use super::leader::Leader;
use super::server::Server;
use super::types::Event;

/// How often a leader hands over at most because its disk stalls.
const PAUSE: Duration = Duration::from_secs(60);

impl Server {
    /// Whether as many bytes wait for the disk as may.
    pub(super) fn is_full(&self) -> bool {
        self.disk.waiting() > self.config.disk_bytes
    }

    /// Whether a snapshot waits for a disk that stalls: another one would
    /// only wait behind it.
    pub(super) fn is_stuck(&self) -> bool {
        self.disk.has_snapshot() && self.stalls()
    }

    /// Whether the disk lags further behind than a leader's may.
    fn stalls(&self) -> bool {
        let limit = self.config.disk_lag;
        let late = |since: tenure_core::time::Instant| self.now.since(since) >= limit;
        self.is_full() || self.disk.since().is_some_and(late)
    }

    /// Whether the other voters are a majority by themselves.
    fn is_dispensable(&self) -> bool {
        let members = self.members.now();
        quorum::is_majority(members, members.voters().filter(|id| *id != self.id()))
    }
}

impl Leader {
    /// Hands over if this server's disk lags too far behind, and another's
    /// does not.
    pub(super) fn transfer_if_disk_stalls(&mut self, server: &mut Server) {
        let lately = |server: &Server| {
            server
                .left_at
                .is_some_and(|at| server.now < at.after(PAUSE))
        };
        if self.transfer.is_some() || !server.stalls() || lately(server) {
            return;
        }
        let Some(to) = self.best_transferee(server) else {
            return;
        };
        server.left_at = Some(server.now);
        server.emit(Event::DiskStalls { transferee: to });
        self.begin_transfer(server, None, Some(to));
    }

    /// The best of the voters that have on their disks what is committed and
    /// what this server's disk has not. None unless they are a majority by
    /// themselves: without one nothing is won by handing over.
    fn best_transferee(&self, server: &Server) -> Option<ServerId> {
        let least = server.commit.max(server.disk.durable_id() + 1);
        let members = server.members.now();
        let able = self.peers.iter().filter(|(id, peer)| {
            let heard = peer
                .heard_at
                .is_some_and(|at| server.now.since(at) < server.config.election_timeout);
            heard && members.is_voter(**id) && peer.matched >= least
        });
        if !quorum::is_majority(members, able.clone().map(|(id, _)| *id)) {
            return None;
        }
        let best = able.max_by_key(|(_, peer)| (peer.matched, peer.round));
        best.map(|(id, _)| *id)
    }

    /// Whether nothing new may be taken in, because this server's disk lags
    /// too far behind and no other server can lead in its stead.
    pub(super) fn is_held_up(&self, server: &Server) -> bool {
        if !server.stalls() || !server.is_dispensable() {
            return false;
        }
        server.is_full() || self.best_transferee(server).is_none()
    }
}
