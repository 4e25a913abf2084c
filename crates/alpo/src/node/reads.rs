//! Reads by a leader: a read index (`ReadIndex` of etcd), which waits for a quorum
//! round, or its lease.
//!
//! `read` queues a read, and `Leader::confirm` answers it. Rounds, and why they are
//! enough, are in `quorum_rounds`; `query` has what is read.

use super::super::bug::Bug;
use super::leader::Leader;
use super::server::Server;
use super::types::{Answer, Query, Refusal};

impl Leader {
    /// Answers from the applied state as soon as it is certain that no
    /// other leader has committed since the question came.
    pub(super) fn read(&mut self, server: &mut Server, token: u64, query: Query) {
        if server.planted(Bug::ReadUnconfirmed) || self.has_lease(server) {
            let found = server.find(query, self.log_time(server));
            return server.answer(token, Answer::Read(found));
        }
        if self.quorum_rounds.waiting() >= server.config.max_pending_reads {
            return server.answer(token, Answer::Refused(Refusal::Busy));
        }
        self.quorum_rounds.wait(token, query);
    }

    /// Whether no other leader can have been elected: voters that answered the
    /// last confirmed round refuse votes for a timeout from when they heard
    /// of it, which was not before it began, on clocks that are at most
    /// `drift` off.
    ///
    /// Before any round is confirmed the lease counts from the start of the
    /// leadership. The votes for this leader do not justify that, since a vote
    /// makes no voter refuse others. The no-op does: this is asked only when it
    /// is committed, so a majority has accepted it, and each of them heard this
    /// leader after the leadership began.
    fn has_lease(&self, server: &Server) -> bool {
        debug_assert!(self.is_ready(server), "the no-op is committed");
        let span = server.config.drift.shorten(server.config.election_timeout);
        server.config.lease_reads
            && !self.lease_given_up
            && server.now < self.quorum_rounds.confirmed_at().after(span)
    }
}
