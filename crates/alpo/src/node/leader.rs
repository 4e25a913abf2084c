//! A leader: it appends, replicates, commits, and answers.
//!
//! Why what it commits stays: every later leader has an entry that a majority
//! has on disk and that is of the *own* term of the leader who counts it;
//! `voting.rs` has the proof. An entry of an *earlier* term is not committed by
//! being counted: a log with another entry in its place, of a term in between,
//! may still be better (Raft's figure 8; `docs/design/alpo.md`, H2). It is
//! committed along with the first entry of this term. The leader's no-op makes
//! sure that there is one.
//!
//! It sends a follower `AppendEntries` (`replicate`) or, if the log no longer
//! has what the follower lacks, `InstallSnapshot` in chunks (`sending.rs`).
//! It steps down when no majority answers for a timeout (check-quorum, `CheckQuorum` in
//! etcd: `leads_until`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use tenure_core::time::{Instant, nanos};

use super::super::bug::Bug;
use super::super::durable::Snapshot;
use super::super::entry::{ClusterVersion, Entry, LogTime, Payload, SessionId};
use super::super::ids::{LogId, Position, ServerId, StorageId};
use super::super::message::{Reply, Request};
use super::super::quorum;
use super::pending_proposals::PendingProposals;
use super::progress::{Mode, Progress};
use super::quorum_rounds::QuorumRounds;
use super::server::Server;
use super::types::{Answer, Discarded, Event, Refusal, StepDownReason};
use super::under_way::{ChecksumComparison, PendingChange, Transfer};

/// Entries in one request, at most.
const APPEND_ENTRIES: usize = 1_024;

#[derive(Clone, Debug)]
pub(super) struct Leader {
    pub(super) peers: BTreeMap<ServerId, Progress>,
    /// Snapshots that are not the newest any more and still on their way to
    /// peers.
    pub(super) sending: Vec<Snapshot>,
    pub(super) no_op: LogId,
    pub(super) quorum_rounds: QuorumRounds,
    pub(super) pending_proposals: PendingProposals,
    pub(super) transfer: Option<Transfer>,
    pub(super) changing: Option<PendingChange>,
    pub(super) heartbeat_at: Instant,
    /// No lease any more in this term: the leadership was offered to another.
    pub(super) lease_given_up: bool,
    /// The log's time when the leadership began, and this server's.
    began: (LogTime, Instant),
    /// The log's time when this leader became ready: until a session's time
    /// to live after that, nobody could have been expected to be heard.
    pub(super) ready_at: Option<LogTime>,
    /// Sessions whose end is proposed, since they have expired.
    pub(super) expiring: BTreeSet<SessionId>,
    pub(super) checksum_comparison: ChecksumComparison,
    /// The cluster's version as it was proposed last in this term.
    pub(super) raised: ClusterVersion,
}

impl Leader {
    /// Becomes the leader: a majority has voted for this server in this term.
    pub(super) fn become_leader(server: &mut Server) -> Self {
        server.hear(server.id(), server.identity.storage);
        server.give_up_incoming();
        let last = server.log.last().id;
        let time = server.log_time.max(server.log.last_time().unwrap_or(0));
        let mut leader = Self {
            peers: BTreeMap::new(),
            sending: Vec::new(),
            no_op: last + 1,
            quorum_rounds: QuorumRounds::new(server.now),
            pending_proposals: PendingProposals::default(),
            transfer: None,
            changing: None,
            heartbeat_at: server.now.after(server.config.heartbeat),
            lease_given_up: false,
            began: (time, server.now),
            ready_at: None,
            expiring: BTreeSet::new(),
            checksum_comparison: ChecksumComparison::default(),
            raised: ClusterVersion::FIRST,
        };
        leader.update_peers(server);
        leader.append(server, Payload::NoOp, None);
        leader.quorum_rounds.begin(server.now);
        leader
    }

    /// The log's time now.
    pub(super) fn log_time(&self, server: &Server) -> LogTime {
        let (mut time, at) = self.began;
        if server.planted(Bug::TimeCountedTwice) {
            time = server.log_time;
        }
        time.saturating_add(nanos(server.now.since(at)))
    }

    /// Whether everything that was committed before this term is applied.
    pub(super) fn is_ready(&self, server: &Server) -> bool {
        server.commit >= self.no_op || server.planted(Bug::ReadBeforeNoOp)
    }

    /// When the last round began that a majority has confirmed: then nobody
    /// of a higher term could have committed anything that is not here.
    /// `None` as long as entries of earlier terms may be missing.
    pub(super) fn fresh_at(&self, server: &Server) -> Option<Instant> {
        self.is_ready(server)
            .then(|| self.quorum_rounds.confirmed_at())
    }

    pub(super) fn append(&mut self, server: &mut Server, payload: Payload, token: Option<u64>) {
        if !server.has_next_entry() {
            return server.exhausted();
        }
        let time = self
            .log_time(server)
            .max(server.log.last_time().unwrap_or(0));
        let entry = Entry {
            id: server.log.last().id + 1,
            term: server.term(),
            time,
            payload,
        };
        server.log_time = server.log_time.max(time);
        self.pending_proposals.appended(server, &entry, token);
        server.append(entry);
    }

    /// An answer of `from` to request `number` of this term.
    pub(super) fn replied(
        &mut self,
        server: &mut Server,
        (from, storage): (ServerId, StorageId),
        number: u64,
        reply: Reply,
    ) {
        if self.discard_if_set_back(server, (from, storage), number, &reply) {
            return;
        }
        let newest = server.number;
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        // All that an answer may add to is about the disk that the members
        // have under this number: entries, rounds (and with them reads and
        // leases), versions, checksums, "heard of lately", whom to promote and to
        // whom to hand over. What another disk has says nothing about it.
        let is_member = peer.storage == storage;
        let counts = is_member || server.counts_by_number();
        let was_asked = peer.was_asked(number) || server.planted(Bug::StaleMatches);
        if !counts || !was_asked {
            return;
        }
        let is_paced_anew = peer
            .pacing
            .on_reply(number, &reply, server.now, &server.config);
        let matches = is_member || server.planted(Bug::AppendsByNumber);
        let Some(round) = peer.replied(number, newest, reply, &server.log, matches) else {
            return;
        };
        if is_member || server.planted(Bug::RoundsByNumber) {
            peer.heard_at = Some(server.now);
            peer.round = peer.round.max(round.min(self.quorum_rounds.current()));
        }
        if is_paced_anew {
            self.bound_window_by_links(server);
        }
        self.confirm(server);
        self.advance(server);
        self.judge_change(server);
        self.compare_checksums(server);
    }

    /// Whether a member has lost what it has acknowledged, as an answer to request
    /// `number` has shown, this one or an earlier one. Discards what is known of it.
    fn discard_if_set_back(
        &mut self,
        server: &mut Server,
        (from, storage): (ServerId, StorageId),
        number: u64,
        reply: &Reply,
    ) -> bool {
        let peer = self.peers.get_mut(&from);
        let Some(peer) = peer.filter(|peer| peer.storage == storage) else {
            return false;
        };
        let (Reply::Mismatch { last, .. } | Reply::Heard { last, .. }) = reply else {
            return peer.set_back;
        };
        let has_lost = peer.was_asked(number) && peer.has_lost(number, *last);
        if peer.set_back || !has_lost || server.planted(Bug::SetBackCounted) {
            return peer.set_back;
        }
        let acknowledged = peer.matched;
        peer.mark_set_back();
        server.emit(Event::SetBack {
            server: from,
            acknowledged,
            found: last.id,
        });
        true
    }

    /// Counts who has answered which round, and answers the reads that may
    /// be answered now.
    pub(super) fn confirm(&mut self, server: &mut Server) {
        let answered = self.tally(server, self.quorum_rounds.current(), |peer| peer.round);
        if let Some(round) = quorum::reached_by_majority(answered) {
            let from_end = server.planted(Bug::LeaseFromEnd).then_some(server.now);
            self.quorum_rounds.confirm(round, from_end);
        }
        while self.is_ready(server)
            && let Some((token, query)) = self.quorum_rounds.next_read()
        {
            let found = server.find(query, self.log_time(server));
            server.answer(token, Answer::Read(found));
        }
    }

    /// Lets the log take in no more than the links to a majority carry soon.
    pub(super) fn bound_window_by_links(&mut self, server: &Server) {
        let windows = self.tally(server, u64::MAX, |peer| peer.pacing.window() as u64);
        let on_the_way =
            quorum::reached_by_majority(windows).and_then(|it| usize::try_from(it).ok());
        let on_the_way = on_the_way.filter(|it| *it != usize::MAX);
        self.pending_proposals.window.bound_by_links(on_the_way);
    }

    /// `own` for this server and `of` each other voter.
    fn tally(&self, server: &Server, own: u64, of: impl Fn(&Progress) -> u64) -> Vec<u64> {
        let members = server.members.now();
        let counted = members.iter().map(|(id, _)| id);
        let counted =
            counted.filter(|id| members.is_voter(*id) || server.planted(Bug::LearnerCounted));
        let number = |id| {
            if id == server.id() {
                own
            } else {
                self.peers.get(&id).map_or(0, &of)
            }
        };
        counted.map(number).collect()
    }

    /// Commits what a majority has on disk.
    pub(super) fn advance(&mut self, server: &mut Server) {
        // The leader's own log counts up to where its own disk has it, like
        // anybody's (H12).
        let mut own = server.disk.durable_id();
        if server.planted(Bug::CountedUnsynced) {
            own = server.log.last().id;
        }
        let waits = server.disk.since().map(|since| server.now.since(since));
        if waits > Some(server.config.election_timeout) && server.planted(Bug::StalledCounted) {
            own = server.log.last().id;
        }
        let mut matched = self.tally(server, own, |peer| peer.matched);
        let reached = if server.planted(Bug::HalfIsMajority) {
            matched.sort_unstable();
            matched.get(matched.len() / 2).copied()
        } else {
            quorum::reached_by_majority(matched)
        };
        let Some(reached) = reached.filter(|id| *id > server.commit) else {
            return;
        };
        let own_term = server.log.term_at(reached) == Some(server.term());
        if !own_term && !server.planted(Bug::EarlierTermCounted) {
            return;
        }
        self.commit(server, reached);
    }

    fn commit(&mut self, server: &mut Server, reached: LogId) {
        let most = usize::try_from(reached - server.commit).unwrap_or(usize::MAX);
        let mut answers = Vec::with_capacity(most.min(APPEND_ENTRIES));
        let pending_proposals = &mut self.pending_proposals;
        let expiring = &mut self.expiring;
        let mut newest = None;
        server.commit_to(reached, |entry, outcome| {
            newest = Some((entry.id, entry.time));
            if let Payload::Expire { session } = &entry.payload {
                expiring.remove(session);
            }
            pending_proposals.applied(entry, |token| {
                let opened = matches!(entry.payload, Payload::Open { .. });
                answers.push((token, opened, outcome.clone()));
            });
        });
        for (token, opened, outcome) in answers {
            let answer = Self::answer_told(server, opened, outcome);
            server.answer(token, answer);
        }
        if let Some((id, appended_at)) = newest.filter(|(id, _)| *id >= self.no_op) {
            let delay = self.log_time(server).saturating_sub(appended_at);
            let (last, window) = (server.log.last().id, &mut self.pending_proposals.window);
            window.committed(id, delay, last, &server.config);
        }
        if self.ready_at.is_none() && reached >= self.no_op {
            self.ready_at = Some(self.log_time(server));
            self.admit_backlog(server);
        }
        if self.pending_proposals.session_ends.next_may_come() {
            self.expire(server);
        }
        self.admit_in_turn(server);
    }

    /// Proposes what waits in the backlog.
    pub(super) fn admit_backlog(&mut self, server: &mut Server) {
        for (token, request) in self.pending_proposals.take_backlog() {
            self.client_request(server, token, request);
        }
    }

    /// Sends what there is to send, as far as the windows allow, and begins
    /// a round if reads wait for one.
    pub(super) fn flush(&mut self, server: &mut Server) {
        let changing = self.changing.map(|it| it.round);
        if self.quorum_rounds.wants_another(changing) {
            self.quorum_rounds.begin(server.now);
            self.confirm(server);
            self.judge_change(server);
            self.heartbeats(server);
        }
        self.release_snapshots(server);
        let round = self.quorum_rounds.current();
        let more_waits = self.pending_proposals.queue_len() > 0;
        for (id, peer) in &mut self.peers {
            replicate(server, *id, peer, &self.sending, round);
            if more_waits {
                // It would be sent what waits for its turn, too.
                peer.pacing.room(&server.config);
            }
        }
        self.send_timeout_now(server);
    }

    /// Time has passed. `false` when this server must lead no more.
    pub(super) fn tick(&mut self, server: &mut Server) -> bool {
        // Nobody can know whether it still leads if no majority answers; it
        // is likely that it does not (H5).
        if server.now >= self.leads_until(server) {
            return false;
        }
        if server.now >= self.heartbeat_at {
            self.heartbeat_at = server.now.after(server.config.heartbeat);
            self.quorum_rounds.begin(server.now);
            self.confirm(server);
            self.peers.values_mut().for_each(Progress::retry);
            self.heartbeats(server);
            self.expire(server);
            self.raise(server);
            self.transfer_if_disk_stalls(server);
        }
        self.give_up_transfer(server);
        self.judge_change(server);
        true
    }

    fn heartbeats(&mut self, server: &mut Server) {
        let last = server.log.last();
        let (commit, round) = (server.commit, self.quorum_rounds.current());
        let time = self.log_time(server);
        server.log_time = server.log_time.max(time);
        let compare_checksums = self.checksum_comparison.next_request(server);
        for (id, peer) in &mut self.peers {
            let request = Request::Heartbeat {
                last,
                commit,
                round,
                time,
                compare_checksums,
            };
            let number = server.send_request(*id, request);
            peer.pacing.on_sent(number, 0, server.now);
        }
    }

    /// Steps down: tells everybody who waits that it is not known what became
    /// of their requests.
    pub(super) fn leave(self, server: &mut Server, why: StepDownReason) {
        server.fresh_at = self.fresh_at(server).or(server.fresh_at);
        for snapshot in self.sending {
            server.discard(Discarded::Snapshot(snapshot));
        }
        let leader = server.leader.filter(|leader| *leader != server.id());
        let (waiting, backlog) = self.pending_proposals.abandon();
        for token in waiting {
            server.answer(token, Answer::Interrupted);
        }
        let refused = Answer::Refused(Refusal::NotLeader { leader });
        let changing = self.changing.map(|it| it.token);
        for token in backlog.chain(self.quorum_rounds.abandon()).chain(changing) {
            server.answer(token, refused.clone());
        }
        if let Some(transfer) = self.transfer
            && let Some(token) = transfer.token
        {
            let answer = match why {
                // Another election raised the term: the transferee was not told.
                _ if !transfer.timeout_now_sent => Answer::Refused(Refusal::NotHandedOver),
                StepDownReason::HigherTerm | StepDownReason::LeaderKnown => Answer::HandedOver,
                // A leader that hears no voter does not know whether its
                // transferee got the timeout-now, or is a candidate. The rest
                // are no reasons of a leader.
                StepDownReason::NoMajority
                | StepDownReason::VoteGiven
                | StepDownReason::BetterLog
                | StepDownReason::NoVoteAfterRestart => Answer::Interrupted,
            };
            server.answer(token, answer);
        }
    }

    /// When this server steps down unless a majority answers before (H5).
    pub(super) fn leads_until(&self, server: &Server) -> Instant {
        let config = &server.config;
        let silent = self
            .quorum_rounds
            .unconfirmed_since(config.heartbeat, config.lease_reads);
        match silent {
            Some(since) if !server.planted(Bug::NeverStepsDown) => {
                since.after(config.election_timeout)
            }
            _ => Instant::MAX,
        }
    }

    /// When something is to be done at the latest.
    pub(super) fn deadline(&self, server: &Server) -> Instant {
        let transfer = self.transfer.map_or(Instant::MAX, |t| t.until);
        let changing = self.changing.map_or(Instant::MAX, |it| it.deadline);
        let silent = self.leads_until(server);
        let first = self.heartbeat_at.min(silent);
        first.min(transfer).min(changing)
    }
}

/// Sends `peer` what it lacks, as far as its window allows.
fn replicate(
    server: &mut Server,
    id: ServerId,
    peer: &mut Progress,
    sending: &[Snapshot],
    round: u64,
) {
    // It must come back with another disk; until then its heartbeats keep it
    // from standing.
    if peer.set_back {
        return;
    }
    loop {
        if let Mode::Installing { .. } = peer.mode {
            return peer.send_chunk(server, id, sending, round);
        }
        let may = match &peer.mode {
            Mode::Probing { asked } => !asked,
            Mode::Streaming { window } => window.len() < server.config.max_inflight,
            Mode::Installing { .. } => false,
        };
        let last = server.log.last().id;
        if !may || peer.next > last {
            return;
        }
        let Some(bytes) = peer.pacing.room(&server.config) else {
            return;
        };
        let before = peer.next - 1;
        let Some(term) = server.log.term_at(before) else {
            // What it needs next is compacted.
            let Some(Snapshot { last, .. }) = server.snapshot else {
                return;
            };
            peer.install(last);
            continue;
        };
        let entries = server.log.slice(peer.next, APPEND_ENTRIES, bytes);
        let bytes = entries.iter().map(Entry::weight).sum();
        let end = before + entries.len() as u64;
        let commit = server.commit;
        let request = Request::Append {
            prev: Position::new(term, before),
            entries,
            commit,
            round,
        };
        let number = server.send_request(id, request);
        peer.pacing.on_sent(number, bytes, server.now);
        match &mut peer.mode {
            Mode::Probing { asked } => *asked = true,
            Mode::Streaming { window } => {
                window.push_back((number, end));
                peer.next = end + 1;
            }
            Mode::Installing { .. } => {}
        }
    }
}
