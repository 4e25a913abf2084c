//! A server as its own machine sees it, for a caller that asks how it stands.
//!
//! None of this is agreed on with others: it is what this server knows, which
//! may be old. So what it does not know is left out, or said to be of any
//! age, and never taken for the best case: a server that was cut off must not
//! look like one that has nothing to catch up with.

use tenure_alpo::{LogId, Node, Rank, ServerId, Status};
use tenure_api::v1;
use tenure_core::time::Instant;
use tenure_runtime::clock;

/// How new that is which a server has applied.
pub(super) struct Applied {
    /// Its last entry.
    pub(super) id: LogId,
    fresh_at: Option<Instant>,
}

impl Applied {
    pub(super) fn of(node: &Node) -> Self {
        Self {
            id: node.state().applied().id,
            fresh_at: node.fresh_at(),
        }
    }

    /// How old it is in milliseconds. What was never known to be new may be
    /// of any age: the greatest number.
    pub(super) fn age_millis(&self) -> u64 {
        let age = self.fresh_at.map(|at| clock::boot().since(at).as_millis());
        age.map_or(u64::MAX, |age| u64::try_from(age).unwrap_or(u64::MAX))
    }
}

/// What only the machine knows.
pub(super) fn status(node: &Node) -> v1::StatusResponse {
    let role = match node.status() {
        Status::Leader => v1::Role::Leader,
        Status::Candidate | Status::PreVoting => v1::Role::Candidate,
        Status::Follower => v1::Role::Passive,
        Status::Learner => v1::Role::Learner,
        Status::Halted => v1::Role::Halted,
    };
    let (hard, log, state) = (node.hard_state(), node.log(), node.state());
    v1::StatusResponse {
        role: role.into(),
        term: hard.term.get(),
        last_reign: hard.last_reign.get(),
        leader: node.leader().map(ServerId::get),
        vote: hard.vote.map(|vote| vote.rank.server.get()),
        last_log_term: log.last().term.get(),
        last_log_id: log.last().id,
        durable: node.durable(),
        commit: node.commit(),
        applied: state.applied().id,
        snapshot: node.snapshot().map_or(0, |it| it.last.id),
        sessions: state.sessions().len() as u64,
        registers: state.registers().len() as u64,
        register_bytes: state.register_bytes(),
        bound: state.bound_len() as u64,
        revision: state.registers().revision(),
        log_first: state.user_log().first(),
        log_next: state.user_log().next(),
        cluster_version: state.version().get(),
        speaks: node.newest_version().get(),
        rank: Some(rank(node.rank())),
        lag: node.lag(),
        confirmed_age_millis: confirmed_age(node),
        ..v1::StatusResponse::default()
    }
}

/// How long ago a leader that is ready last asked a majority that has
/// confirmed it since.
fn confirmed_age(node: &Node) -> Option<u64> {
    node.is_ready().then(|| Applied::of(node).age_millis())
}

const fn rank(rank: Rank) -> v1::Rank {
    v1::Rank {
        last_log_term: rank.last.term.get(),
        last_log_id: rank.last.id,
        server: rank.server.get(),
    }
}
