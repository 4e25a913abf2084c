//! What servers say to each other.
//!
//! Only candidates and leaders ask ([`Request`]); followers only answer
//! ([`Reply`]). Every message carries its sender's term, and every reply
//! carries the number of the request it answers and the term it was asked in,
//! so that an answer to an older cycle or an older term is known for what it is
//! (`docs/design/alpo.md`, H11).

use alloc::sync::Arc;

use tenure_core::ids::Term;

use super::entry::{ClusterVersion, Entries, LogTime};
use super::ids::{LogId, Position, Rank, ServerId};
use super::state::StateChecksum;

/// A message on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Who says it.
    pub from: ServerId,
    /// To whom.
    pub to: ServerId,
    /// The sender's current term when it was said.
    pub term: Term,
    /// What is said.
    pub body: Body,
}

/// Asked or answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// A question.
    Request {
        /// Its number, unique within the life of the asking process; from 1.
        number: u64,
        /// What is asked.
        request: Request,
    },
    /// An answer.
    Reply {
        /// The number of the request.
        number: u64,
        /// The term in which it was asked.
        asked_in: Term,
        /// What is answered.
        reply: Reply,
    },
}

/// Who sends a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SenderRole {
    /// By one that would lead.
    Candidate,
    /// By one that leads.
    Leader,
}

/// What candidates and leaders ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Pre-vote: would you vote for me in the next term? Changes nothing
    /// anywhere, so that a server that comes back cannot disturb a leadership.
    PreVote {
        /// The last entry of the candidate's log; zero if it has none.
        last: Position,
    },
    /// Vote for me in this term.
    Vote {
        /// The last entry of the candidate's log; zero if it has none.
        last: Position,
        /// The leader itself asked for this election: those that hear it
        /// need not object.
        transfer: bool,
    },
    /// I outrank you and you have a vote I wanted: step back.
    Defer {
        /// The last entry of the candidate's log.
        last: Position,
    },
    /// Take these entries.
    Append {
        /// The entry before the first of them; zero at the very beginning.
        prev: Position,
        /// The entries, in order, without gaps; none to ask whether `prev`
        /// is there.
        entries: Entries,
        /// All up to this id is committed.
        commit: LogId,
        /// The round of confirmation this counts for.
        round: u64,
    },
    /// I still lead, and this is where my log ends.
    Heartbeat {
        /// The last entry of the leader's log.
        last: Position,
        /// All up to this id is committed.
        commit: LogId,
        /// The round of confirmation this counts for.
        round: u64,
        /// The log's time at the leader.
        time: LogTime,
        /// Whether the states are still the same.
        compare_checksums: CompareChecksums,
    },
    /// Your log ends before mine begins: take my state instead.
    Install {
        /// The last entry the snapshot contains.
        last: Position,
        /// Where these bytes begin.
        offset: u64,
        /// Part of the snapshot.
        bytes: Arc<[u8]>,
        /// How long the whole of it is.
        total: u64,
        /// The round of confirmation this counts for.
        round: u64,
    },
    /// Stand for election at once; I stopped taking proposals for you.
    TimeoutNow,
}

/// How the leader has the servers compare their states; see
/// [`StateChecksum`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct CompareChecksums {
    /// What was the checksum of your state after this entry? 0 asks nothing.
    pub at: LogId,
    /// A majority has this checksum; a server that has another one has gone wrong.
    pub agreed: Option<StateChecksum>,
}

impl Request {
    /// Who sends such a thing.
    pub const fn sender_role(&self) -> SenderRole {
        match self {
            Self::PreVote { .. } | Self::Vote { .. } | Self::Defer { .. } => SenderRole::Candidate,
            Self::Append { .. }
            | Self::Heartbeat { .. }
            | Self::Install { .. }
            | Self::TimeoutNow => SenderRole::Leader,
        }
    }
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// To everything: your term is over. The current one is in the envelope.
    StaleTerm,
    /// To [`Request::PreVote`]: I would.
    PreVoteGranted,
    /// Refuses a pre-vote or a vote: this server hears a leader. It does not
    /// take over the candidate's term.
    LeaderKnown {
        /// Who leads, if that is known. It is not on a server that has only
        /// just started and must take it that somebody does.
        leader: Option<ServerId>,
    },
    /// To a pre-vote or a vote: my log is better than yours.
    LogIncomplete {
        /// Where it ends.
        last: Position,
    },
    /// To a pre-vote or a vote: I must not vote, since my log does not have
    /// me, with this disk, among the members.
    NotAMember,
    /// To [`Request::Vote`]: you have my vote. Durable before it is said.
    Granted,
    /// To [`Request::Vote`]: it is given already. To [`Request::PreVote`]: it is
    /// on its way to the disk.
    AlreadyVoted {
        /// The rank of the candidate who has it.
        voted_for: Rank,
    },
    /// To [`Request::Defer`]: I step back. My voters are yours to ask again.
    Deferred,
    /// To [`Request::Defer`]: too late, I lead.
    AlreadyLeader,
    /// To [`Request::Defer`]: you do not outrank me.
    NotOutranked {
        /// My rank.
        mine: Rank,
    },
    /// To [`Request::Append`]: my log is yours up to there, durably.
    Appended {
        /// `prev.id` plus the number of entries in *that* request; never the
        /// last id of the replier, whose tail may be another's (H15).
        matched: LogId,
        /// The round it counts for.
        round: u64,
    },
    /// To [`Request::Append`]: your `prev` is not in my log.
    Mismatch {
        /// Where my log ends.
        last: Position,
        /// My entry at `prev.id`, if I have one, but with the id of the
        /// *first* entry of its term: everything from there on is in doubt.
        conflict: Option<Position>,
        /// The round it counts for.
        round: u64,
    },
    /// To [`Request::Heartbeat`].
    Heard {
        /// Up to where my log is durably the leader's, as far as this
        /// heartbeat shows it: `None` unless our logs end in the same entry.
        matched: Option<LogId>,
        /// Where my log ends.
        last: Position,
        /// The round it counts for.
        round: u64,
        /// The newest kinds of entries I understand.
        version: ClusterVersion,
        /// The checksum of my state where it was asked for, if I know.
        state_checksum: Option<StateChecksum>,
    },
    /// To [`Request::Install`].
    Installed {
        /// The last entry of the snapshot spoken of.
        last: Position,
        /// The next byte I need; the length of the whole when it is durable.
        offset: u64,
        /// Whether all of it is durable and in use.
        done: bool,
        /// The round it counts for.
        round: u64,
    },
    /// To [`Request::TimeoutNow`]: I stand.
    Standing,
}

impl Reply {
    /// Whether a leader counts it: entries, or the round of a heartbeat.
    pub const fn acknowledges(&self) -> bool {
        match self {
            Self::Appended { .. } | Self::Heard { .. } | Self::Installed { .. } => true,
            Self::StaleTerm
            | Self::PreVoteGranted
            | Self::LeaderKnown { .. }
            | Self::LogIncomplete { .. }
            | Self::NotAMember
            | Self::Granted
            | Self::AlreadyVoted { .. }
            | Self::Deferred
            | Self::AlreadyLeader
            | Self::NotOutranked { .. }
            | Self::Mismatch { .. }
            | Self::Standing => false,
        }
    }
}
