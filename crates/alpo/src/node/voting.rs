//! How a server judges candidates: `RequestVote` of Raft, and the pre-vote.
//!
//! Why no two servers are elected in one term: a vote is given to one
//! candidate in a term, is on disk before the candidate hears of it, and two
//! majorities share a voter.
//!
//! Why an elected leader has every committed entry (Raft 5.4.3). Let `c` be an
//! entry that a leader of term `T` committed by counting it in its own term.
//! The claim is that every leader of a later term `U` has `c`, by induction
//! over `U`: suppose that the leaders of the terms between `T` and `U` have it.
//! (Members change one at a time, so majorities before and after a change
//! share a voter too.)
//!
//! * A majority had `c` on disk, and a majority voted in `U`. They share a
//!   voter `V`. It had accepted `c` before it voted, since afterwards it
//!   refuses requests of term `T`. It still had `c` then: only a leader of a
//!   term in between can make it remove entries, and such a leader has `c`.
//!   (If `V` is the candidate, this is all.)
//! * So the last term of `V`'s log was at least `T`. `V` found the candidate's
//!   log at least as good as its own: later last term, or the same last term
//!   and no shorter.
//! * If the candidate's last term is `T`, so is that of `V`'s log, and the
//!   candidate's log reaches `c` at least. One leader made all entries of term
//!   `T`, in one order, and equal entries have equal predecessors (G4). So the
//!   candidate has `c`.
//! * If its last term is later than `T`, the leader of that term made its last
//!   entry. That leader had `c` by the induction, and the two logs are equal
//!   up to that entry (G4). So the candidate has `c`.
//!
//! The last step is why a leader counts only entries of its own term
//! (`leader.rs`): for `c` of an earlier term than that of the leader who counts
//! it, leaders in between need not have it.
//!
//! A learner answers too: it may have been promoted by an entry that it does
//! not have yet. Candidates count the votes of voters alone.

use super::super::bug::Bug;
use super::super::ids::{Position, Rank};
use super::super::message::{Reply, Request};
use super::follower::Follower;
use super::server::RequestContext;
use super::types::{Event, StepDownReason};
use super::{Node, Role};

impl Node {
    /// Answers a pre-vote, and refuses a vote while a leader is heard (leader stickiness;
    /// in etcd the voters' part of `CheckQuorum`). This is checked before the candidate's
    /// term is adopted, so that a server that comes back from a partition cannot depose a
    /// leader that a majority hears. Pre-votes are always judged here, votes if
    /// a leader is heard. An election that the leader itself asked for is no
    /// disturbance.
    pub(super) fn answer_pre_vote_or_refuse(
        &self,
        context: &RequestContext,
        request: &Request,
    ) -> Option<Reply> {
        let leads = matches!(self.role, Role::Leader(_)) && !self.server.planted(Bug::NotSticky);
        let led = (leads || self.server.is_sticky()).then_some(Reply::LeaderKnown {
            leader: self.server.leader,
        });
        match request {
            Request::PreVote { last } => Some(if let Some(led) = led {
                led
            } else if !self.server.may_vote() {
                Reply::NotAMember
            } else if !self.server.is_up_to_date(*last) {
                let last = self.server.log.last();
                Reply::LogIncomplete { last }
            } else if let Some(voted_for) = self.syncs_vote_for_another(context) {
                Reply::AlreadyVoted { voted_for }
            } else {
                Reply::PreVoteGranted
            }),
            Request::Vote { transfer, .. } if !transfer => led,
            _ => None,
        }
    }

    /// Whose candidacy waits for this disk, if not that of the asker. The
    /// answer leaves when the vote does: a candidate that took it for a promise
    /// would stand in the next term while the other becomes the leader in this
    /// one.
    fn syncs_vote_for_another(&self, context: &RequestContext) -> Option<Rank> {
        let vote = self.server.hard.vote?;
        let syncs = !self.server.disk.hard_is_durable() && context.term == self.server.term();
        (syncs && !vote.is_of(context.by, context.storage)).then_some(vote.rank)
    }

    pub(super) fn vote(&mut self, context: &RequestContext, last: Position) {
        let candidate = Rank {
            last,
            server: context.by,
        };
        let server = &mut self.server;
        if !server.may_vote() {
            return server.reply(context, Reply::NotAMember);
        }
        if !server.is_up_to_date(last) {
            let last = server.log.last();
            server.reply(context, Reply::LogIncomplete { last });
            return self.stand_soon();
        }
        match server.hard.vote {
            Some(vote) if !vote.is_of(context.by, context.storage) => {
                let voted_for = vote.rank;
                server.reply(context, Reply::AlreadyVoted { voted_for });
                self.reset_election_timer_for(candidate);
            }
            given => {
                if given.is_none() {
                    // A server that gives its vote away does not stand in this term.
                    if let Role::Candidate(_) = self.role {
                        self.become_follower(StepDownReason::VoteGiven);
                    }
                    self.server.vote_for(candidate, context.storage);
                }
                self.server.reply_when_durable(context, Reply::Granted);
                self.reset_election_timer();
            }
        }
    }

    /// A candidate with a worse log stands: this server stands soon instead. Not if it
    /// has a part in this term's election already: who gave its vote away, or
    /// stood and stepped back, would undo the progress of another (H10).
    fn stand_soon(&mut self) {
        let involved = self.server.hard.vote.is_some();
        if involved || !self.server.may_stand() || self.server.is_sticky() {
            return;
        }
        let stand_at = self
            .server
            .random_instant(self.server.config.election_timeout / 4);
        if let Role::Follower(follower) = &mut self.role {
            follower.stand_soon(stand_at);
        }
    }

    /// A candidate's message keeps a follower waiting only if that
    /// candidate is better than itself; else one that cannot win could keep
    /// everybody quiet (H8).
    fn reset_election_timer_for(&mut self, candidate: Rank) {
        if candidate > self.server.rank() {
            self.reset_election_timer();
        }
    }

    /// A candidate of this term asks this server to step back.
    pub(super) fn defer(&mut self, context: &RequestContext, last: Position) {
        let theirs = Rank {
            last,
            server: context.by,
        };
        match &self.role {
            Role::Leader(_) => self.server.reply(context, Reply::AlreadyLeader),
            Role::Candidate(_) => {
                let mine = self.server.rank();
                if theirs < mine {
                    return self.server.reply(context, Reply::NotOutranked { mine });
                }
                self.server.emit(Event::Deferred { to: context.by });
                // A full wait: standing again too early would undo the
                // progress of the one deferred to (H10).
                let follower = if self.server.planted(Bug::DeferImpatient) {
                    let stand_at = self.server.random_instant(self.server.config.heartbeat);
                    Follower::until(stand_at)
                } else {
                    Follower::deferring(&mut self.server)
                };
                self.role = Role::Follower(follower);
                self.server.reply(context, Reply::Deferred);
            }
            Role::Follower(_) => {
                self.server.reply(context, Reply::Deferred);
                self.reset_election_timer_for(theirs);
            }
        }
    }

    /// The leader asks this server to lead instead.
    pub(super) fn timeout_now(&mut self, context: &RequestContext) {
        if !self.server.may_stand() {
            return;
        }
        self.server.reply(context, Reply::Standing);
        self.stand(true, 0);
    }
}
