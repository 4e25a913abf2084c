//! Looking at a node from outside.

use tenure_core::ids::Term;
use tenure_core::time::Instant;

use super::super::durable::{HardState, Identity, Snapshot};
use super::super::entry::ClusterVersion;
use super::super::ids::{LogId, Position, Rank, ServerId, StorageId};
use super::super::known_starts::DiskProgress;
use super::super::log::Log;
use super::super::membership::{Membership, VotingStatus};
use super::super::state::State;
use super::candidate::CandidatePhase;
use super::types::Fault;
use super::{Node, Role};

/// What a server is, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It leads.
    Leader,
    /// It stands for election.
    Candidate,
    /// It asks whether it would be elected.
    PreVoting,
    /// It follows, and votes.
    Follower,
    /// It follows, and does not count (yet, or any more).
    Learner,
    /// It found a broken rule and does nothing any more.
    Halted,
}

impl Node {
    /// What it is.
    pub fn status(&self) -> Status {
        if self.server.fault.is_some() {
            return Status::Halted;
        }
        match &self.role {
            Role::Leader(_) => Status::Leader,
            Role::Candidate(candidate) => match candidate.phase {
                CandidatePhase::PreVoting => Status::PreVoting,
                CandidatePhase::Standing => Status::Candidate,
            },
            Role::Follower(_) => match self.members().get(self.id()).map(|m| m.voting_status) {
                Some(VotingStatus::Voter) => Status::Follower,
                Some(VotingStatus::Learner) | None => Status::Learner,
            },
        }
    }

    /// Whether it is a member or was one, with its own disk, as far as its own
    /// log tells.
    pub fn was_member(&self) -> bool {
        self.server.members.was_own()
    }

    /// Its number.
    pub const fn id(&self) -> ServerId {
        self.server.identity.server
    }

    /// Who it is.
    pub const fn identity(&self) -> Identity {
        self.server.identity
    }

    /// Its term, last reign and vote, as in memory.
    pub const fn hard_state(&self) -> HardState {
        self.server.hard
    }

    /// The rank that it would have as a candidate now: the position of its last log
    /// entry, then its server number. Of two servers the one that is ranked higher wins.
    pub fn rank(&self) -> Rank {
        self.server.rank()
    }

    /// Its current term.
    pub const fn term(&self) -> Term {
        self.server.hard.term
    }

    /// The newest kinds of entries that it understands.
    pub const fn newest_version(&self) -> ClusterVersion {
        self.server.config.version
    }

    /// The leader of the current term, if it is known. `None` of a candidate or
    /// pre-candidate. A server that may not stand (a learner, say) says `None` once it
    /// has not heard the leader for an election timeout.
    pub fn leader(&self) -> Option<ServerId> {
        let heard = self.server.now < self.server.refuse_votes_until;
        match self.role {
            Role::Candidate(_) => None,
            Role::Follower(_) if !heard && !self.server.may_stand() => None,
            Role::Follower(_) | Role::Leader(_) => self.server.leader,
        }
    }

    /// Its log after the last compaction.
    pub const fn log(&self) -> &Log {
        &self.server.log
    }

    /// Up to where it knows the log to be committed.
    pub const fn commit(&self) -> LogId {
        self.server.commit
    }

    /// Up to where its log is on its disk.
    pub const fn durable(&self) -> LogId {
        self.server.disk.durable_id()
    }

    /// How far its disk has come; `None` while its term or vote is on the way
    /// there, or nothing of a log that replaces another is there yet.
    pub fn disk_progress(&self) -> Option<DiskProgress> {
        let server = &self.server;
        let durable = server.disk.durable_id();
        if !server.disk.hard_is_durable() {
            return None;
        }
        let settled = match &self.role {
            Role::Leader(_) => durable,
            Role::Follower(_) | Role::Candidate(_) => server.verified.max(server.commit),
        };
        Some(DiskProgress {
            term: server.hard.term,
            last: Position::new(server.log.term_at(durable)?, durable),
            settled: settled.min(durable),
        })
    }

    /// Its applied state.
    pub const fn state(&self) -> &State {
        &self.server.state
    }

    /// The newest snapshot.
    pub const fn snapshot(&self) -> Option<&Snapshot> {
        self.server.snapshot.as_ref()
    }

    /// Whether a snapshot is being made, or is to be made as soon as the disk
    /// takes one.
    pub const fn encodes_snapshot(&self) -> bool {
        self.server.encoding.is_some() || self.server.snapshot_wanted
    }

    /// The members as of the end of its log.
    pub fn members(&self) -> &Membership {
        self.server.members.now()
    }

    /// Up to where a leader knows its log to be on the disk of each other
    /// member that has acknowledged something in this term: such a disk has the
    /// leader's term, too. Nothing on others.
    pub fn acknowledged(&self) -> impl Iterator<Item = ((ServerId, StorageId), LogId)> {
        let peers = match &self.role {
            Role::Leader(leader) => Some(&leader.peers),
            Role::Follower(_) | Role::Candidate(_) => None,
        };
        let peers = peers.into_iter().flatten();
        peers.filter_map(|(server, peer)| {
            let member = self.members().get(*server)?;
            (peer.matched > 0).then_some(((*server, member.storage), peer.matched))
        })
    }

    /// Up to where it takes its log to be on the disk of each other member;
    /// nothing on others than the leader.
    pub fn accepted(&self) -> impl Iterator<Item = (ServerId, LogId)> {
        let leader = match &self.role {
            Role::Leader(leader) => Some(leader),
            Role::Follower(_) | Role::Candidate(_) => None,
        };
        let peers = leader.into_iter().flat_map(|leader| &leader.peers);
        peers.map(|(id, peer)| (*id, peer.matched))
    }

    /// Whether it leads and everything before its term is applied.
    pub fn is_ready(&self) -> bool {
        match &self.role {
            Role::Leader(leader) => leader.is_ready(&self.server) && self.fault().is_none(),
            Role::Follower(_) | Role::Candidate(_) => false,
        }
    }

    /// How many entries that are committed it has not applied yet, as far as it
    /// knows: those that its leader has told it of in this term, or, when it
    /// leads, its own. `None` if it cannot know: it has heard no leader in this
    /// term, stands for election, has stopped, or leads and has yet to commit
    /// what was there before its term.
    pub fn lag(&self) -> Option<u64> {
        if self.fault().is_some() {
            return None;
        }
        let committed = match &self.role {
            Role::Leader(_) => self.is_ready().then_some(self.commit()),
            Role::Follower(_) => self.leader().and(self.server.announced_commit),
            Role::Candidate(_) => None,
        };
        committed.map(|id| id.saturating_sub(self.server.state.applied().id))
    }

    /// As of when its applied state is known to hold everything that was
    /// acknowledged, on this machine's boot-time clock; `None` if that was
    /// never known since it started.
    ///
    /// For a leader, and for one that has led, that is certain: when the last
    /// round *began* that a majority confirmed, so it is older than a
    /// heartbeat's interval on a leader that is followed, and stands still on
    /// one that is cut off. A follower can only tell when it last heard
    /// its leader and had applied all that this one said to be committed:
    /// how long the words were under way, and whether somebody else led by
    /// then, it cannot know.
    pub fn fresh_at(&self) -> Option<Instant> {
        match &self.role {
            Role::Leader(leader) => leader.fresh_at(&self.server).max(self.server.fresh_at),
            Role::Follower(_) | Role::Candidate(_) => self.server.fresh_at,
        }
    }

    /// Whether its state has all that it had before this process started, and
    /// all that was committed before its leader's term.
    ///
    /// It forgets at its end how much of its log it had applied. An entry of
    /// the term that it is in is applied only when everything that was ever
    /// committed before that term is; and what was committed in that term up
    /// to the last time that its leader was heard is applied when it has all
    /// that this one has told since.
    pub fn has_caught_up(&self) -> bool {
        let of_this_term = self.server.state.applied().term == self.server.term();
        of_this_term && self.fresh_at().is_some()
    }

    /// The broken rule it found, if any.
    pub const fn fault(&self) -> Option<&Fault> {
        self.server.fault.as_ref()
    }
}
