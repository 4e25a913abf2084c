//! A candidate: a server that wants to lead.
//!
//! It asks for *pre-votes* first: would you vote for me? That changes nothing
//! anywhere, so a server that was cut off and comes back cannot disturb a
//! leadership (H9). With a majority of would-be votes it *stands*: raises the
//! term, votes for itself, and asks for votes, durably. When votes are split,
//! rank decides: the better candidate asks the others to defer, and as soon as
//! its own voters and those of the deferred are a majority, no other can win
//! this term, so it begins the next one at once instead of waiting for a timer.
//!
//! Deferring is a courtesy that saves time; no safety rests on it. Who wins
//! rests on one vote per server and term alone.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use tenure_core::time::Instant;

use super::super::bug::Bug;
use super::super::ids::{Rank, ServerId, StorageId};
use super::super::message::{Reply, Request};
use super::super::quorum;
use super::server::Server;
use super::types::{Event, StepDownReason};

/// How often a candidate doubles a quarter of the election timeout for voters
/// that are there and do not answer: up to 16 timeouts.
const DOUBLINGS: u32 = 6;

/// Who has answered: a number, and the disk that it has. What adds to a
/// majority counts only if the members have that number with that disk; see
/// [`majority`].
type VoterDisk = (ServerId, StorageId);

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) phase: CandidatePhase,
    /// Answers to requests up to this number are of an earlier cycle.
    of_earlier_cycles: u64,
    /// Who would vote, or has voted, for this server; itself not among them.
    granted: BTreeSet<VoterDisk>,
    /// Voters that gave their vote to another candidate, and that one's rank.
    votes_for_others: BTreeMap<VoterDisk, Rank>,
    /// Who stepped back for this server.
    deferred: BTreeSet<VoterDisk>,
    /// Who has answered and need not be asked again.
    answered: BTreeSet<VoterDisk>,
    /// When this cycle ends without a result (H6).
    pub(super) deadline: Instant,
    /// Since when others can have been asked: not before this server's own
    /// vote was durable.
    asked_since: Instant,
    /// When the silent are asked again.
    pub(super) retry_at: Instant,
    /// The leader asked for this election.
    transfer: bool,
    /// Cycles without a result, this one not among them.
    pub(super) cycles: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum CandidatePhase {
    PreVoting,
    Standing,
}

/// What becomes of the candidacy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CandidacyOutcome {
    /// It goes on.
    Wait,
    /// The pre-vote is won (or there is none): stand.
    Stand,
    /// Nobody else can win: the next cycle begins at once.
    Again,
    /// It is won.
    Lead,
    /// It is over.
    Follower(StepDownReason),
}

impl Candidate {
    /// Asks who would vote for this server.
    pub(super) fn pre_vote(server: &mut Server, cycles: u32) -> Self {
        server.emit(Event::PreVoting);
        Self::begin(server, CandidatePhase::PreVoting, false, cycles)
    }

    /// Raises the term and asks for votes.
    pub(super) fn stand(server: &mut Server, transfer: bool, cycles: u32) -> Option<Self> {
        let term = server.term().next()?;
        server.adopt_term(term);
        let rank = Rank {
            last: server.log.last(),
            server: server.id(),
        };
        let storage = server.identity.storage;
        server.vote_for(rank, storage);
        server.stood = server.stood.saturating_add(1);
        server.emit(Event::Standing { term });
        Some(Self::begin(
            server,
            CandidatePhase::Standing,
            transfer,
            cycles,
        ))
    }

    fn begin(server: &mut Server, phase: CandidatePhase, transfer: bool, cycles: u32) -> Self {
        let deadline = Self::cycle(server, cycles);
        let mut candidate = Self {
            phase,
            of_earlier_cycles: server.number,
            granted: BTreeSet::new(),
            votes_for_others: BTreeMap::new(),
            deferred: BTreeSet::new(),
            answered: BTreeSet::new(),
            deadline,
            asked_since: server.now,
            retry_at: Instant::ZERO,
            transfer,
            cycles,
        };
        candidate.send_requests(server);
        candidate
    }

    /// When a cycle that begins now ends. Longer from cycle to cycle, so that
    /// candidates that disturb each other get out of step; shorter than the
    /// election timeout of followers.
    fn cycle(server: &mut Server, cycles: u32) -> Instant {
        let base = (server.config.election_timeout / 4) * (1 << cycles.min(2));
        server.random_instant(base).after(base)
    }

    /// Whether a cycle that got no result goes on, because disks are slow and
    /// nothing else is wrong.
    ///
    /// A vote is a sync. Where that takes as long as a cycle, the next cycle
    /// would ask for another vote and another sync, and nobody would be
    /// elected for as long as disks are slow. So a candidate waits for its own
    /// disk; and from cycle to cycle twice as long for voters that have not
    /// answered, as long as they could make a majority. They are there: a
    /// majority has answered the pre-vote. One that died meanwhile costs little,
    /// for it answers no further pre-vote.
    fn waits_for_disks(&mut self, server: &Server) -> bool {
        if self.phase == CandidatePhase::PreVoting {
            return false;
        }
        if !server.disk.hard_is_durable() {
            self.asked_since = server.now;
            return true;
        }
        let longest = (server.config.election_timeout / 4) * (1 << self.cycles.min(DOUBLINGS));
        // Those disks are hardly quicker than its own.
        let longest = longest.max(server.vote_sync_allowance());
        let voters = server.members.now().iter();
        let voters = voters.map(|(id, member)| (id, member.storage));
        let silent = voters.filter(|voter| !self.answered.contains(voter));
        let all = silent.chain(self.granted.iter().copied());
        server.now.since(self.asked_since) < longest && majority(server, all)
    }

    /// Sends requests for votes to the voters that have not answered, and
    /// [`Request::Defer`] to the candidates that this one outranks.
    pub(super) fn send_requests(&mut self, server: &mut Server) {
        self.retry_at = server.now.after(server.config.heartbeat);
        let last = server.rank().last;
        let me = server.id();
        let voters = server.members.now().iter();
        let voters = voters.map(|(id, member)| (id, member.storage));
        let silent = voters.filter(|voter| !self.answered.contains(voter));
        let silent: Vec<_> = silent.map(|(id, _)| id).collect();
        for voter in silent {
            if voter == me || !server.members.now().is_voter(voter) {
                continue;
            }
            let transfer = self.transfer;
            let request = match self.phase {
                CandidatePhase::PreVoting => Request::PreVote { last },
                CandidatePhase::Standing => Request::Vote { last, transfer },
            };
            server.send_request(voter, request);
        }
        for candidate in self.outranked(server) {
            server.send_request(candidate, Request::Defer { last });
        }
    }

    /// The candidates of lower rank that have votes which this server wants, and that
    /// have not deferred.
    fn outranked(&self, server: &Server) -> BTreeSet<ServerId> {
        let mine = server.rank();
        let lower = self
            .votes_for_others
            .values()
            .filter(|candidate| mine > **candidate);
        lower
            .map(|candidate| candidate.server)
            .filter(|candidate| *candidate != server.id() && !self.has_deferred(*candidate))
            .collect()
    }

    /// Whether it has deferred, with any disk. Which of two disks of one number
    /// a vote was given to is not said; whether this server asks once more
    /// or begins its next cycle early is a matter of time alone.
    fn has_deferred(&self, candidate: ServerId) -> bool {
        self.deferred.iter().any(|(id, _)| *id == candidate)
    }

    /// Whether the votes are enough. A server's own counts when it is on its
    /// own disk.
    pub(super) fn outcome(&self, server: &Server) -> CandidacyOutcome {
        let own = self.phase == CandidatePhase::PreVoting || server.disk.hard_is_durable();
        let me = own.then(|| (server.id(), server.identity.storage));
        if majority(server, self.granted.iter().copied().chain(me)) {
            return match self.phase {
                CandidatePhase::PreVoting => CandidacyOutcome::Stand,
                CandidatePhase::Standing => CandidacyOutcome::Lead,
            };
        }
        CandidacyOutcome::Wait
    }

    /// An answer of `from` to request `number` of this term.
    pub(super) fn replied(
        &mut self,
        server: &mut Server,
        from: VoterDisk,
        number: u64,
        reply: &Reply,
    ) -> CandidacyOutcome {
        if number <= self.of_earlier_cycles && !server.planted(Bug::StaleVotes) {
            return CandidacyOutcome::Wait;
        }
        self.answered.insert(from);
        match reply {
            Reply::PreVoteGranted if self.phase == CandidatePhase::PreVoting => {
                self.granted.insert(from);
            }
            Reply::Granted if self.phase == CandidatePhase::Standing => {
                self.granted.insert(from);
            }
            Reply::AlreadyVoted { voted_for } if self.phase == CandidatePhase::Standing => {
                self.votes_for_others.insert(from, *voted_for);
                if server.rank() > *voted_for && !self.has_deferred(voted_for.server) {
                    let last = server.rank().last;
                    server.send_request(voted_for.server, Request::Defer { last });
                }
                return self.early(server);
            }
            Reply::Deferred if self.phase == CandidatePhase::Standing => {
                self.deferred.insert(from);
                return self.early(server);
            }
            Reply::AlreadyLeader => {
                server.hear(from.0, from.1);
                return CandidacyOutcome::Follower(StepDownReason::LeaderKnown);
            }
            Reply::LogIncomplete { .. } if self.phase == CandidatePhase::Standing => {
                return Self::vetoed(server);
            }
            // Refusals of a pre-vote, or answers that change nothing.
            _ => {}
        }
        self.outcome(server)
    }

    /// A voter has refused, because its log is better. The first time this
    /// server becomes a follower, so that the voter can stand. If no server
    /// leads when this one stands again, it ignores such a refusal: the voter
    /// may be able to answer and not to ask. A majority of the others is enough
    /// for safety (H7).
    fn vetoed(server: &mut Server) -> CandidacyOutcome {
        if server.vetoed && !server.planted(Bug::SingleVeto) {
            return CandidacyOutcome::Wait;
        }
        server.vetoed = true;
        server.emit(Event::Vetoed);
        CandidacyOutcome::Follower(StepDownReason::BetterLog)
    }

    /// Whether this server's voters, those who deferred to it and *their*
    /// voters are a majority. Then no other candidate can win this term (the
    /// deferred ignore votes, the rest are too few), and waiting is idle.
    /// Voters are counted once each, no matter whose they are.
    fn early(&self, server: &mut Server) -> CandidacyOutcome {
        let theirs = self
            .votes_for_others
            .iter()
            .filter(|(_, candidate)| self.has_deferred(candidate.server))
            .map(|(voter, _)| *voter);
        let all: BTreeSet<_> = theirs
            .chain(self.granted.iter().copied())
            .chain(self.deferred.iter().copied())
            .chain([(server.id(), server.identity.storage)])
            .collect();
        if majority(server, all) && !self.deferred.is_empty() {
            server.emit(Event::EarlyCycle);
            return CandidacyOutcome::Again;
        }
        CandidacyOutcome::Wait
    }

    /// Requests up to this number are of an earlier cycle.
    pub(super) const fn of_earlier_cycles(&self) -> u64 {
        self.of_earlier_cycles
    }

    /// For [`Node::digest`](super::Node::digest).
    pub(super) fn digest(&self, into: &mut impl Hasher) {
        let Self {
            phase,
            granted,
            votes_for_others,
            deferred,
            answered,
            transfer,
            // Clocks, and how far to wind them; numbers are judged by
            // `of_earlier_cycles`.
            of_earlier_cycles: _,
            deadline: _,
            asked_since: _,
            retry_at: _,
            cycles: _,
        } = self;
        (
            phase,
            granted,
            votes_for_others,
            deferred,
            answered,
            transfer,
        )
            .hash(into);
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, server: &mut Server) -> bool {
        if server.now >= self.deadline && !server.planted(Bug::CandidateWaits) {
            if !self.waits_for_disks(server) {
                return true;
            }
            self.deadline = Self::cycle(server, self.cycles);
        }
        if server.now >= self.retry_at {
            if self.phase == CandidatePhase::PreVoting || server.disk.hard_is_durable() {
                self.send_requests(server);
            } else {
                // What was asked for has not left yet.
                self.retry_at = server.now.after(server.config.heartbeat);
            }
        }
        false
    }
}

/// Whether those among `those` who count are a majority: voters of the
/// members as of now, each with the disk that it was admitted with. So two
/// candidates of one term would have to share a voter's *disk*, and a disk
/// votes once. A server that was removed, or whose place another disk has
/// taken, adds nothing, though it may answer.
fn majority(server: &Server, those: impl IntoIterator<Item = VoterDisk>) -> bool {
    let members = server.members.now();
    let by_number = server.planted(Bug::VotesByNumber);
    let counts = |(id, storage): &VoterDisk| {
        members.is_voter_with(*id, *storage) || (by_number && members.is_voter(*id))
    };
    // A number once, whichever of its disks have answered.
    let those = those.into_iter().filter(counts).map(|(id, _)| id);
    let those: BTreeSet<_> = those.collect();
    if server.planted(Bug::HalfIsMajority) {
        return those.len() >= members.voters().count().div_ceil(2);
    }
    quorum::is_majority(members, those)
}
