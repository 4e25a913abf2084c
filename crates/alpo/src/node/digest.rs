//! A hash of a server's state without its clocks. The model checker uses it to
//! recognise states that it has seen.
//!
//! Two servers with the same digest do the same in every schedule, up to
//! *when*. Left out is what the explorer decides in the clock's stead (when
//! election timeout is over, whether a leader still counts as heard), what
//! chance draws, the times stamped on entries, the rounds by which reads are
//! confirmed, and who waits for which answer.
//!
//! Request numbers are left out too, since only their order matters, and that
//! only among those of one candidacy or leadership to one peer: the explorer,
//! who knows which are still under way, puts them in order
//! ([`Node::numbered_from`], [`Node::numbers_to`]). Meant for a server whose
//! outputs were all taken, without snapshots or changes of members under way.

use core::hash::{Hash, Hasher};

use super::super::entry::Entry;
use super::super::ids::ServerId;
use super::super::message::{Body, Envelope, Reply, Request};
use super::leader::Leader;
use super::progress::Progress;
use super::server::Server;
use super::under_way::PendingChange;
use super::{Node, Role};

impl Node {
    /// Hashes what decides this server's future; see the head of this file.
    pub fn digest(&self, into: &mut impl Hasher) {
        self.server.digest(into);
        core::mem::discriminant(&self.role).hash(into);
        match &self.role {
            Role::Follower(_) => {}
            Role::Candidate(candidate) => candidate.digest(into),
            Role::Leader(leader) => leader.digest(into),
        }
    }

    /// The number of its last request, in this life of its process.
    pub const fn last_number(&self) -> u64 {
        self.server.number
    }

    /// The numbers of requests to `peer` that answers will be compared with,
    /// always in the same order; those up to
    /// [`numbered_from`](Self::numbered_from) are all alike.
    pub fn numbers_to(&self, peer: ServerId) -> impl Iterator<Item = u64> {
        let progress = match &self.role {
            Role::Leader(leader) => leader.peers.get(&peer),
            Role::Follower(_) | Role::Candidate(_) => None,
        };
        progress.into_iter().flat_map(Progress::numbers)
    }

    /// What it will say when its disk is done.
    pub fn held(&self) -> impl Iterator<Item = &Envelope> {
        let held = self.server.disk.held(self.server.term());
        held.map(|(_, envelope)| envelope)
    }

    /// Requests up to this number are of an earlier candidacy or leadership:
    /// what is answered to them is not heard any more.
    pub fn numbered_from(&self) -> u64 {
        match &self.role {
            Role::Follower(_) => self.server.number,
            Role::Candidate(candidate) => candidate.of_earlier_cycles(),
            Role::Leader(leader) => {
                let oldest = leader.peers.values().map(Progress::requests_before);
                oldest.min().unwrap_or(self.server.number)
            }
        }
    }
}

impl Server {
    fn digest(&self, into: &mut impl Hasher) {
        (self.hard, self.commit, self.leader, self.verified).hash(into);
        (self.vetoed, self.fault.is_some()).hash(into);
        (self.log.base(), self.log.len()).hash(into);
        self.log.iter().for_each(|entry| entry.digest(into));
        self.disk.digest(self.term(), into);
    }
}

impl Leader {
    fn digest(&self, into: &mut impl Hasher) {
        (self.no_op, self.pending_proposals.backlog_len()).hash(into);
        self.pending_proposals.queue_len().hash(into);
        let transfer = self
            .transfer
            .map(|transfer| (transfer.to, transfer.timeout_now_sent));
        transfer.hash(into);
        self.changing.map(PendingChange::digested).hash(into);
        for snapshot in &self.sending {
            snapshot.last.hash(into);
        }
        for (id, peer) in &self.peers {
            id.hash(into);
            peer.digest(into);
        }
    }
}

impl Entry {
    /// Hashes everything but the time.
    pub fn digest(&self, into: &mut impl Hasher) {
        (self.id, self.term, &self.payload).hash(into);
    }
}

impl Envelope {
    /// Hashes everything but the number, the round and times. What a number
    /// means depends on who asked ([`Node::numbered_from`]).
    pub fn digest(&self, into: &mut impl Hasher) {
        (self.from, self.to, self.term).hash(into);
        match &self.body {
            Body::Request { request, .. } => {
                true.hash(into);
                request.digest(into);
            }
            Body::Reply {
                asked_in, reply, ..
            } => {
                (false, asked_in).hash(into);
                reply.digest(into);
            }
        }
    }
}

impl Request {
    fn digest(&self, into: &mut impl Hasher) {
        core::mem::discriminant(self).hash(into);
        match self {
            Self::PreVote { last } | Self::Defer { last } => last.hash(into),
            Self::Vote { last, transfer } => (last, transfer).hash(into),
            Self::Append {
                prev,
                entries,
                commit,
                round: _,
            } => {
                (prev, entries.len(), commit).hash(into);
                entries.iter().for_each(|entry| entry.digest(into));
            }
            Self::Heartbeat {
                last,
                commit,
                round: _,
                time: _,
                compare_checksums: _,
            } => (last, commit).hash(into),
            Self::Install {
                last,
                offset,
                bytes,
                total,
                round: _,
            } => (last, offset, bytes, total).hash(into),
            Self::TimeoutNow => {}
        }
    }
}

impl Reply {
    fn digest(&self, into: &mut impl Hasher) {
        core::mem::discriminant(self).hash(into);
        match self {
            Self::StaleTerm
            | Self::PreVoteGranted
            | Self::NotAMember
            | Self::Granted
            | Self::Deferred
            | Self::AlreadyLeader
            | Self::Standing => {}
            Self::LeaderKnown { leader } => leader.hash(into),
            Self::LogIncomplete { last } => last.hash(into),
            Self::AlreadyVoted { voted_for } => voted_for.hash(into),
            Self::NotOutranked { mine } => mine.hash(into),
            Self::Appended { matched, round: _ } => matched.hash(into),
            Self::Mismatch {
                last,
                conflict,
                round: _,
            } => (last, conflict).hash(into),
            Self::Heard {
                matched,
                last,
                round: _,
                version: _,
                state_checksum: _,
            } => (matched, last).hash(into),
            Self::Installed {
                last,
                offset,
                done,
                round: _,
            } => (last, offset, done).hash(into),
        }
    }
}
