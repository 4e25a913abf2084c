//! One server of a cluster, as a machine.
//!
//! ```text
//!                    election timeout
//!        ┌──────────────────────────────────────┐
//!        │                                      ▼
//!   ┌─────────┐  a leader, a better rank,  ┌───────────┐ ◄─┐ no result:
//!   │Follower │ ◄───── a higher term ───── │ Candidate │ ──┘ another cycle
//!   └─────────┘                            └───────────┘
//!        ▲                                      │ a majority of votes
//!        │  a higher term, no majority heard    ▼
//!        └───────────────────────────────  ┌────────┐
//!                                          │ Leader │
//!                                          └────────┘
//! ```
//!
//! Each role is a type in a file of its own with what only it knows; what a
//! server has in every role is `server.rs`. This file takes inputs apart,
//! keeps the rules about terms that come before everything else, and moves
//! from role to role.
//!
//! Entries and requests that come in between two calls of
//! [`poll`](Machine::poll) leave together: one batch for the disk, one
//! request for each peer.

mod admission_window;
mod bounds;
mod candidate;
mod client_requests;
mod compare_checksums;
mod digest;
mod disk;
mod fair_queue;
mod follower;
mod installing;
mod leader;
mod members;
mod membership_change;
mod pacing;
mod pending_proposals;
mod progress;
mod query;
mod quorum_rounds;
mod reads;
mod self_check;
mod sending;
mod server;
mod session_ends;
mod snapshot_schedule;
mod stall;
mod status;
mod transfer;
mod types;
mod under_way;
mod upgrade;
mod voting;

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use tenure_core::Machine;
use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_core::time::{Instant, Now};

pub use bounds::MessageError;
pub use installing::MAX_SNAPSHOT_BYTES;
pub use session_ends::MAX_SESSION_ENDS;
pub use status::Status;
pub use types::{
    Answer, ClientRequest, Discarded, Event, Fault, Input, Output, Query, QueryResult,
    QuotaExceeded, Refusal, ServerList, StepDownReason,
};

use super::bug::Bug;
use super::config::Config;
use super::durable::{Identity, Recovered, Snapshot};
use super::ids::{ServerId, StorageId};
use super::log::Log;
use super::message::{Body, Envelope, Reply, Request, SenderRole};
use super::state::{DecodedSnapshot, SnapshotError, State};
use candidate::{CandidacyOutcome, Candidate, CandidatePhase};
use disk::Disk;
use follower::Follower;
use leader::Leader;
use members::Members;
use server::{RequestContext, Server};
use snapshot_schedule::SnapshotSchedule;

/// One server.
#[derive(Clone, Debug)]
pub struct Node {
    server: Server,
    role: Role,
}

#[derive(Clone, Debug)]
enum Role {
    Follower(Follower),
    Candidate(Candidate),
    Leader(Box<Leader>),
}

impl Node {
    /// A server that starts, for the first time or again, with what its disk
    /// gave back. `blank` is the state before the first entry, for a disk
    /// that has no snapshot; a founded cluster's disks all have one.
    ///
    /// # Errors
    /// If the snapshot cannot be read.
    pub fn start(
        config: Config,
        identity: Identity,
        recovered: Recovered,
        blank: State,
        rng: Rng,
        now: Instant,
    ) -> Result<Self, SnapshotError> {
        let Recovered {
            mut hard,
            snapshot,
            entries,
            committed,
            no_vote_time,
        } = recovered;
        let state = match &snapshot {
            Some(snapshot) => State::decode_with(config.checksum, &snapshot.bytes)?,
            None => blank,
        };
        let mut log = Log::after(state.applied());
        let mut members = Members::new(state.members().clone(), state.applied().id, &identity);
        for entry in entries {
            members.appended(&entry);
            log.append(entry);
        }
        // An entry's term was current when it was accepted; a hard state
        // that says less was lost (H1).
        if hard.term < log.last().term {
            hard.term = log.last().term;
            hard.vote = None;
        }
        let log_time = state.time().max(log.last_time().unwrap_or(0));
        let mut server = Server {
            disk: Disk::after_recovery(log.last().id),
            commit: state.applied().id,
            config,
            identity,
            rng,
            now,
            hard,
            log,
            members,
            state,
            snapshot,
            encoding: None,
            incoming: None,
            decoding: None,
            snapshot_wanted: false,
            schedule: SnapshotSchedule::default(),
            leader: None,
            leads_with: None,
            refuse_votes_until: Instant::ZERO,
            no_vote_until: Instant::ZERO,
            left_at: None,
            verified: 0,
            vetoed: false,
            stood: 0,
            announced_commit: None,
            fresh_at: None,
            log_time,
            outbox: VecDeque::new(),
            number: 0,
            fault: None,
            awaited_checksum: None,
        };
        server.commit_to(committed.min(server.log.last().id), |_, _| ());
        server.refuse_to_be_too_old();
        server.withhold_votes(no_vote_time);
        let mut follower = Follower::new(&mut server);
        if server.may_stand() && server.members.now().voters().count() == 1 {
            // There is nobody to wait for, and nobody who may be owed a
            // time without votes: a server that could lead beside it has had its vote, and
            // is not ready (and so answers no read) before this disk knows that
            // there is more than one voter.
            follower.stand_no_later_than(now);
            server.no_vote_until = now;
        }
        let role = Role::Follower(follower);
        Ok(Self { server, role })
    }

    /// A server that greeted as one of this cluster is heard, member or not:
    /// this server's own members may be old. Only what adds to a majority is
    /// counted by number and disk, where it is counted.
    fn receive(&mut self, envelope: Envelope, storage: StorageId) {
        if self.server.validate(&envelope).is_some() {
            return;
        }
        let Envelope {
            from,
            to,
            term,
            body,
        } = envelope;
        if to != self.server.id() || from == to {
            return;
        }
        let others = self.server.members.now().storage(from);
        let newer = others.is_some_and(|known| known != storage);
        if newer && self.server.planted(Bug::NewerRefused) {
            return;
        }
        match body {
            Body::Request { number, request } => {
                let context = RequestContext {
                    by: from,
                    storage,
                    number,
                    term,
                };
                self.requested(context, request);
            }
            Body::Reply {
                number,
                asked_in,
                reply,
            } => {
                if term > self.server.term() {
                    self.overtaken(term, &reply);
                } else {
                    let mine = self.server.term();
                    let stale = asked_in != mine;
                    if !stale || self.counts_stale(&reply) {
                        self.replied((from, storage), number, reply);
                    }
                }
            }
        }
    }

    /// An answer carries a higher term.
    fn overtaken(&mut self, term: Term, reply: &Reply) {
        let pre_voting = match (&self.role, reply) {
            (Role::Candidate(candidate), Reply::StaleTerm) => {
                (candidate.phase == CandidatePhase::PreVoting).then_some(candidate.cycles)
            }
            _ => None,
        };
        self.server.adopt_term(term);
        match pre_voting {
            // Nobody was disturbed by the question and nobody refused it: it
            // is asked again, in the term that it should have been asked in.
            Some(cycles) => self.campaign(cycles),
            None => self.become_follower(StepDownReason::HigherTerm),
        }
    }

    /// Answers to another term's questions say nothing about this one (H11).
    fn counts_stale(&self, reply: &Reply) -> bool {
        match reply {
            Reply::Granted => self.server.planted(Bug::StaleVotes),
            Reply::Appended { .. } => self.server.planted(Bug::StaleMatches),
            _ => false,
        }
    }

    /// The rules about terms, which come before everything else.
    fn requested(&mut self, context: RequestContext, request: Request) {
        let term = self.server.term();
        if context.term < term {
            return self.server.reply(&context, Reply::StaleTerm);
        }
        if request.sender_role() == SenderRole::Candidate
            && self.server.planted(Bug::AnyCandidateResetsTimer)
        {
            self.reset_election_timer();
        }
        if let Some(refusal) = self.answer_pre_vote_or_refuse(&context, &request) {
            return self.server.reply(&context, refusal);
        }
        if context.term > term {
            self.server.adopt_term(context.term);
            self.become_follower(StepDownReason::HigherTerm);
        }
        if request.sender_role() == SenderRole::Leader {
            // Any server that has heard the other leader notices, not these two alone.
            if let Some(one) = self.server.another_leads((context.by, context.storage)) {
                let (term, other) = (self.server.term(), context.by);
                return self.server.halt(Fault::TwoLeaders { term, one, other });
            }
            if let Role::Candidate(_) = self.role {
                self.become_follower(StepDownReason::LeaderKnown);
            }
            self.server.hear(context.by, context.storage);
        }
        match request {
            // Answered above.
            Request::PreVote { .. } => {}
            Request::Vote { last, .. } => self.vote(&context, last),
            Request::Defer { last } => self.defer(&context, last),
            Request::TimeoutNow => self.timeout_now(&context),
            request @ (Request::Append { .. }
            | Request::Heartbeat { .. }
            | Request::Install { .. }) => {
                if let Role::Follower(follower) = &mut self.role {
                    follower.handle_leader_request(&mut self.server, &context, request);
                }
            }
        }
    }

    fn replied(&mut self, from: (ServerId, StorageId), number: u64, reply: Reply) {
        match &mut self.role {
            // It asked when it was something else.
            Role::Follower(_) => {}
            Role::Candidate(candidate) => {
                let next = candidate.replied(&mut self.server, from, number, &reply);
                self.change_role(next);
            }
            Role::Leader(leader) => leader.replied(&mut self.server, from, number, reply),
        }
    }

    fn change_role(&mut self, next: CandidacyOutcome) {
        match next {
            CandidacyOutcome::Wait => {}
            CandidacyOutcome::Follower(why) => self.become_follower(why),
            CandidacyOutcome::Stand | CandidacyOutcome::Again => {
                let cycles = match &self.role {
                    Role::Candidate(candidate) => candidate.cycles,
                    Role::Follower(_) | Role::Leader(_) => 0,
                };
                self.stand(false, cycles);
            }
            CandidacyOutcome::Lead => {
                let leader = Leader::become_leader(&mut self.server);
                self.role = Role::Leader(Box::new(leader));
                self.settle();
            }
        }
    }

    /// Asks for votes, or for pre-votes first.
    fn campaign(&mut self, cycles: u32) {
        if self.server.withholds_votes() {
            return self.become_follower(StepDownReason::NoVoteAfterRestart);
        }
        if self.server.planted(Bug::NoPreVote) {
            return self.stand(false, cycles);
        }
        let candidate = Candidate::pre_vote(&mut self.server, cycles);
        let next = candidate.outcome(&self.server);
        self.role = Role::Candidate(candidate);
        self.change_role(next);
    }

    fn stand(&mut self, transfer: bool, cycles: u32) {
        // Its own vote is one too. What its leader asks for ends no lease:
        // that leader gave it up before it asked.
        if self.server.withholds_votes() && !transfer {
            return self.become_follower(StepDownReason::NoVoteAfterRestart);
        }
        self.server.leader = None;
        // After the last term there is none to stand in, and after the last
        // entry none for its no-op.
        if !self.server.has_next_term() || !self.server.has_next_entry() {
            return self.server.exhausted();
        }
        if let Some(candidate) = Candidate::stand(&mut self.server, transfer, cycles) {
            self.role = Role::Candidate(candidate);
        }
    }

    /// Becomes a follower with a full election timeout.
    fn become_follower(&mut self, why: StepDownReason) {
        let follower = Follower::new(&mut self.server);
        match core::mem::replace(&mut self.role, Role::Follower(follower)) {
            // It was a follower and stays one, and waits no longer for it:
            // anybody can name a higher term (H8).
            Role::Follower(before) => self.role = Role::Follower(before),
            Role::Candidate(_) => self.server.emit(Event::SteppedDown(why)),
            Role::Leader(leader) => {
                self.server.leader = self.server.leader.filter(|id| *id != self.server.id());
                self.server.emit(Event::SteppedDown(why));
                leader.leave(&mut self.server, why);
            }
        }
    }

    /// Resets the election timer of a follower.
    fn reset_election_timer(&mut self) {
        if let Role::Follower(follower) = &mut self.role {
            follower.reset_election_timer(&mut self.server);
        }
    }

    fn snapshot_encoded(&mut self, snapshot: Snapshot) {
        match &mut self.role {
            Role::Leader(leader) => leader.snapshot_encoded(&mut self.server, snapshot),
            Role::Follower(_) | Role::Candidate(_) => self.server.snapshot_encoded(snapshot, &[]),
        }
    }

    fn snapshot_decoded(&mut self, decoded: DecodedSnapshot) {
        let follows = matches!(self.role, Role::Follower(_));
        self.server.snapshot_decoded(decoded, follows);
    }

    fn persisted(&mut self, number: u64) {
        let (term, now) = (self.server.term(), self.server.now);
        for message in self.server.disk.persisted(number, term, now) {
            // Who has stepped back in the meantime asks nothing any more.
            if self.may_say(&message.0.body) {
                self.server.outbox.push_back(message.into());
            }
        }
        if let Role::Follower(follower) = &mut self.role {
            follower.guess_again(&mut self.server);
        }
        self.settle();
        // One that is wanted may have waited for this.
        self.server.compact();
    }

    /// Followers only answer; candidates ask for votes, leaders for the rest.
    const fn may_say(&self, body: &Body) -> bool {
        match (body, &self.role) {
            (Body::Reply { .. }, _) => true,
            (Body::Request { request, .. }, Role::Candidate(_)) => {
                matches!(request.sender_role(), SenderRole::Candidate)
            }
            (Body::Request { request, .. }, Role::Leader(_)) => {
                matches!(request.sender_role(), SenderRole::Leader)
            }
            (Body::Request { .. }, Role::Follower(_)) => false,
        }
    }

    /// What the disk may have decided: a server's own vote, its own log.
    fn settle(&mut self) {
        match &mut self.role {
            Role::Follower(_) => {}
            Role::Candidate(candidate) => {
                if candidate.phase == CandidatePhase::Standing {
                    let next = candidate.outcome(&self.server);
                    self.change_role(next);
                }
            }
            Role::Leader(leader) => {
                leader.confirm(&mut self.server);
                leader.advance(&mut self.server);
                leader.judge_change(&mut self.server);
            }
        }
    }

    fn closed(&mut self, peer: ServerId, storage: StorageId) {
        if self.server.planted(Bug::NoVoteTimeShortened) {
            self.server.no_vote_until = self.server.now;
        }
        let leads = self.server.leader == Some(peer) && self.server.leads_with == Some(storage);
        if !self.server.config.fast_detection || !leads {
            return;
        }
        // The leader's process is gone, or a middlebox says so: asking costs
        // nothing, and a majority that still hears the leader will refuse.
        // `no_vote_until` stays: a leader that this server answered before it was
        // restarted may still hold a read lease, which counts on the settings of then.
        self.server.refuse_votes_until = self.server.now;
        let stand_at = self.server.random_instant(self.server.config.heartbeat);
        if let Role::Follower(follower) = &mut self.role {
            follower.stand_no_later_than(stand_at);
        }
    }

    fn client_request(&mut self, token: u64, request: ClientRequest) {
        match &mut self.role {
            Role::Leader(leader) => leader.client_request(&mut self.server, token, request),
            Role::Follower(_) | Role::Candidate(_) => {
                let leader = self.leader();
                let refusal = Refusal::NotLeader { leader };
                self.server.answer(token, Answer::Refused(refusal));
            }
        }
    }

    /// Advances the time, and compacts the log if that is due. `false` if the server has
    /// met a fault, and ends.
    fn advance_clock(&mut self, now: Instant) -> bool {
        self.server.now = self.server.now.max(now);
        self.server.compact();
        self.server.fault.is_none()
    }

    fn pass_time(&mut self) {
        let now = self.server.now;
        match &mut self.role {
            Role::Follower(follower) => {
                if now >= follower.deadline().max(self.server.no_vote_until) {
                    // It may have voted for another, whose turn it is until
                    // that vote is on this disk, and the answer has gone.
                    if self.server.may_stand() && self.server.disk.hard_is_durable() {
                        self.campaign(0);
                    } else {
                        self.reset_election_timer();
                    }
                }
            }
            Role::Candidate(candidate) => {
                if candidate.tick(&mut self.server) {
                    let cycles = candidate.cycles.saturating_add(1);
                    self.campaign(cycles);
                }
            }
            Role::Leader(leader) => {
                if !leader.tick(&mut self.server) {
                    self.become_follower(StepDownReason::NoMajority);
                }
            }
        }
    }
}

impl Machine for Node {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        if !self.advance_clock(now.boot) {
            return;
        }
        let before = self.view();
        match input {
            Input::Received { envelope, storage } => self.receive(envelope, storage),
            Input::Persisted(number) => self.persisted(number),
            Input::ClientRequest { token, request } => self.client_request(token, request),
            Input::Closed(peer, storage) => self.closed(peer, storage),
            Input::Compact => self.server.compact_now(),
            Input::SnapshotEncoded(snapshot) => self.snapshot_encoded(snapshot),
            Input::SnapshotDecoded(decoded) => self.snapshot_decoded(*decoded),
        }
        self.self_check(before);
    }

    fn tick(&mut self, now: Now) {
        if self.advance_clock(now.boot) {
            let before = self.view();
            self.pass_time();
            self.self_check(before);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        if let Some(output) = self.server.outbox.pop_front() {
            return Some(output);
        }
        if self.server.fault.is_some() {
            return None;
        }
        if let Role::Leader(leader) = &mut self.role {
            leader.flush(&mut self.server);
        }
        let last = self.server.log.last().id;
        if let Some(batch) = self.server.disk.take(last, self.server.now) {
            self.server.outbox.push_back(Output::Persist(batch));
        }
        self.server.outbox.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        if self.server.fault.is_some() {
            return None;
        }
        Some(match &self.role {
            Role::Follower(follower) => follower.deadline().max(self.server.no_vote_until),
            Role::Candidate(candidate) if self.server.planted(Bug::CandidateWaits) => {
                candidate.retry_at
            }
            Role::Candidate(candidate) => candidate.deadline.min(candidate.retry_at),
            Role::Leader(leader) => leader.deadline(&self.server),
        })
    }
}
