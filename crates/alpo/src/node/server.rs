//! The part of a server that is the same for a leader, a follower and a
//! candidate.
//!
//! It has the Raft variables: the current term and vote ([`HardState`]), the
//! log, the commit index, and the state that the committed entries add up to.
//! It also has the rules that every role follows: which server may vote or
//! stand, when a vote is refused because a leader is taken to be alive, when a
//! snapshot is begun, and when a reply waits for the disk. Every effect leaves
//! through `outbox`.
//!
//! What one role does is in `leader.rs`, `follower.rs` and `candidate.rs`. The
//! rule for granting a vote is in `voting.rs`, and the order of writes and
//! messages is in `disk.rs`.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_core::time::Instant;

use super::super::bug::Bug;
use super::super::config::Config;
use super::super::durable::{HardState, Identity, Snapshot, Vote};
use super::super::entry::{ClusterVersion, Entry, LogTime, Outcome};
use super::super::ids::{LogId, Position, Rank, ServerId, StorageId};
use super::super::log::Log;
use super::super::message::{Body, Envelope, Reply, Request};
use super::super::state::{State, StateChecksum, StateCopy};
use super::disk::Disk;
use super::members::Members;
use super::snapshot_schedule::{SnapshotSchedule, place};
use super::types::{Answer, Discarded, Event, Fault, Output};

/// A candidate waits for a sync for at most this many election timeouts.
const LONGEST_SYNC: u32 = 16;

/// How much of the log behind the newest snapshot is kept for peers that are
/// brought up to date, in thresholds; `sending.rs` says why that is enough.
const KEPT_THRESHOLDS: usize = 2;

/// A snapshot of this server that is being encoded.
#[derive(Clone, Debug)]
pub(super) struct Encoding {
    /// Its last entry.
    last: Position,
}

/// A snapshot that is arriving.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    /// Its last entry.
    pub(super) last: Position,
    /// How many bytes it has.
    pub(super) total: u64,
    /// Those that are there, from the first on.
    pub(super) bytes: Vec<u8>,
}

/// A snapshot of another server that is being decoded.
#[derive(Clone, Debug)]
pub(super) struct Decoding {
    /// Its last entry.
    pub(super) last: Position,
    /// The request that carried its last byte, and the round of that request.
    pub(super) request: (RequestContext, u64),
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) config: Config,
    pub(super) identity: Identity,
    pub(super) rng: Rng,
    pub(super) now: Instant,
    pub(super) hard: HardState,
    pub(super) log: Log,
    pub(super) members: Members,
    pub(super) commit: LogId,
    pub(super) state: State,
    pub(super) disk: Disk,
    /// The newest snapshot. Peers that lack compacted entries get it.
    pub(super) snapshot: Option<Snapshot>,
    /// The own snapshot that is being encoded.
    pub(super) encoding: Option<Encoding>,
    /// The snapshot of another server that is arriving.
    pub(super) incoming: Option<Incoming>,
    /// The snapshot of another server that is being decoded.
    pub(super) decoding: Option<Decoding>,
    /// A snapshot was asked for. It is begun as soon as possible, whether one is
    /// due or not.
    pub(super) snapshot_wanted: bool,
    /// When the next snapshot is due.
    pub(super) schedule: SnapshotSchedule,
    /// The leader of this term, if it is known.
    pub(super) leader: Option<ServerId>,
    /// The disk with which it leads.
    pub(super) leads_with: Option<StorageId>,
    /// Until then this server takes the leader to be alive, and refuses its vote
    /// to every candidate.
    pub(super) refuse_votes_until: Instant,
    /// Until then this server votes for no server, itself included. Before it
    /// was started it may have answered a leader whose lease counts on that.
    pub(super) no_vote_until: Instant,
    /// When it last transferred the leadership because its disk stalled.
    pub(super) left_at: Option<Instant>,
    /// Up to this entry the log is known to match the log of this term's leader.
    pub(super) verified: LogId,
    /// A server with a better log vetoed this server's candidacy, and no leader
    /// has been heard since (H7).
    pub(super) vetoed: bool,
    /// How often this server has stood since it last heard a leader.
    pub(super) stood: u32,
    /// The commit index that this term's leader has announced. It may be ahead
    /// of this server's own, which `commit_verified` moves (`follower.rs`). `fresh_at`
    /// depends on it, and people are shown it.
    pub(super) announced_commit: Option<LogId>,
    /// The last time at which this server knew that its state was up to date,
    /// as a follower or as the leader of an earlier term. See
    /// [`Node::fresh_at`](super::Node::fresh_at).
    pub(super) fresh_at: Option<Instant>,
    /// The highest log time that this server has heard of.
    pub(super) log_time: LogTime,
    pub(super) outbox: VecDeque<Output>,
    /// The number of the last request that was sent.
    pub(super) number: u64,
    pub(super) fault: Option<Fault>,
    /// A checksum that a majority agrees on, of an entry that is not applied
    /// here yet.
    pub(super) awaited_checksum: Option<StateChecksum>,
}

impl Server {
    pub(super) const fn id(&self) -> ServerId {
        self.identity.server
    }

    pub(super) const fn term(&self) -> Term {
        self.hard.term
    }

    /// This server's rank as a candidate.
    pub(super) fn rank(&self) -> Rank {
        let mut last = self.log.last();
        if self.planted(Bug::LengthRanks) {
            last.term = Term::ZERO;
        }
        if self.planted(Bug::ReignRanks) {
            last.term = self.hard.last_reign;
        }
        Rank {
            last,
            server: self.id(),
        }
    }

    pub(super) fn planted(&self, bug: Bug) -> bool {
        self.config.planted(bug)
    }

    /// Whether this server is a member with this very disk. Only then may it
    /// vote: a wiped disk has forgotten its votes and the entries that it
    /// accepted.
    pub(super) fn may_vote(&self) -> bool {
        self.members.now().has(self.id(), self.identity.storage)
    }

    /// The disk that has replaced this server's, if one has. This server's log
    /// then says two things: it was a member with its own disk, and later its
    /// number was given to another disk.
    ///
    /// A replaced server acknowledges nothing. A leader of an earlier release
    /// looks at the number alone, and would count its disk for the member's.
    ///
    /// A server that has not been admitted yet is another case. It may read
    /// entries of a time when its number was another disk's. It must
    /// acknowledge them, or it would never catch up.
    pub(super) fn replaced_by(&self) -> Option<StorageId> {
        let by_number = self.planted(Bug::VotesByNumber) || self.counts_by_number();
        let known = self.members.now().storage(self.id())?;
        let was_member = self.members.was_own() && !by_number;
        (was_member && known != self.identity.storage).then_some(known)
    }

    /// Whether a planted bug counts answers by the server's number alone.
    pub(super) fn counts_by_number(&self) -> bool {
        self.planted(Bug::AppendsByNumber) || self.planted(Bug::RoundsByNumber)
    }

    /// Stops if a snapshot gives this server's number to another disk. A
    /// snapshot holds committed entries only, so that is final. The snapshot is
    /// not installed, so that this disk keeps the log that shows the
    /// replacement.
    pub(super) fn halt_if_replaced_in(&mut self, state: &State) -> bool {
        let (server, found) = (self.id(), self.identity.storage);
        let known = state.members().storage(server);
        let known = known.filter(|known| *known != found && self.members.was_own());
        if let Some(known) = known {
            self.halt(Fault::Replaced {
                server,
                known,
                found,
            });
        }
        known.is_some()
    }

    /// Stops if a committed entry gives this server's number to another disk:
    /// that can never be undone. An entry that is not committed may still be
    /// removed, and then this server is the member that it was.
    pub(super) fn refuse_to_be_replaced(&mut self) {
        let committed = self.members.last_change().is_none();
        if let Some(known) = self.replaced_by().filter(|_| committed) {
            let (server, found) = (self.id(), self.identity.storage);
            self.halt(Fault::Replaced {
                server,
                known,
                found,
            });
        }
    }

    /// Whether this server may stand for election.
    pub(super) fn may_stand(&self) -> bool {
        self.may_vote() && self.members.now().is_voter(self.id())
    }

    /// Whether this server takes a leader to be alive, and so refuses its vote:
    /// leader stickiness (H9). For a while after a restart it refuses all votes: a leader
    /// that it no longer remembers may hold a read lease that counts on this.
    pub(super) fn is_sticky(&self) -> bool {
        let knows_leader = self.config.lease_reads || self.hard.last_reign == self.hard.term;
        let heard = knows_leader && self.now < self.refuse_votes_until;
        (heard || self.withholds_votes()) && !self.planted(Bug::NotSticky)
    }

    /// Begins the time without votes at the start of this server. `recovered` is the
    /// longest such time that settings of its directory have ever asked for.
    ///
    /// Why that is long enough:
    ///
    /// * A leader reads by its lease for less than an election timeout after
    ///   the start of its last confirmed round.
    /// * This server can have answered that round only before it was started.
    ///   The time that its settings ask for was durable before it answered anything.
    /// * The directory keeps the longest such time. Settings that were made
    ///   shorter since then, or lease reads that were switched off, shorten
    ///   nothing.
    /// * Counted from the start of this server, the time ends no earlier
    ///   than counted from that answer.
    pub(super) fn withhold_votes(&mut self, recovered: Duration) {
        let own = self.config.no_vote_time();
        let span = if self.planted(Bug::NoVoteTimeForgotten) {
            own
        } else {
            own.max(recovered)
        };
        self.no_vote_until = self.now.after(span);
    }

    /// Whether a leader that this server answered before its start may still
    /// read by a lease that counts on this server giving no vote.
    pub(super) fn withholds_votes(&self) -> bool {
        self.now < self.no_vote_until
    }

    /// The time until which this server waits for a leader before it stands:
    /// one to two election timeouts, drawn anew each time (the randomized election
    /// timeout).
    pub(super) fn election_deadline(&mut self) -> Instant {
        let least = self.config.drift.lengthen(self.config.election_timeout);
        let more = self.rng.span(self.config.election_timeout);
        self.now.after(least).after(more)
    }

    /// How long the disks may make a round of votes take. The candidate syncs
    /// its own vote, and then the voters sync theirs. A server that stands
    /// sooner raises the term, and so takes the election from a candidate that
    /// would have won.
    ///
    /// A server knows only the pace of its own disk, and takes the others to
    /// be as fast. If they are slower, its candidacies fail. From the third one
    /// on it allows an election timeout, and then twice as long each time.
    pub(super) fn vote_sync_allowance(&self) -> Duration {
        let timeout = self.config.election_timeout;
        let own = 2 * self.disk.pace(self.now).min(timeout * LONGEST_SYNC);
        let more = self.stood.checked_sub(3);
        let more = more.map_or(0, |more| 2u32.saturating_pow(more).min(LONGEST_SYNC));
        own.max(timeout * more)
    }

    /// A random time from now to `most` later.
    pub(super) fn random_instant(&mut self, most: Duration) -> Instant {
        let wait = self.rng.span(most);
        self.now.after(wait)
    }

    /// Adopts a higher term, in which this server has not voted yet.
    pub(super) fn adopt_term(&mut self, term: Term) {
        debug_assert!(term > self.hard.term, "terms never fall");
        self.hard.term = term;
        self.hard.vote = None;
        self.leader = None;
        self.leads_with = None;
        self.verified = 0;
        self.announced_commit = None;
        self.stage_hard(true);
    }

    /// Gives this server's vote to a candidate and its disk. The candidate may
    /// be this server itself.
    pub(super) fn vote_for(&mut self, rank: Rank, storage: StorageId) {
        let storage = Some(storage);
        self.hard.vote = Some(Vote { rank, storage });
        self.stage_hard(true);
    }

    /// The leader has announced its commit index, and the entries of the same
    /// message are in the log. If this server has applied all of them, its
    /// state is as new as it can know.
    ///
    /// An entry of the leader's own term must be among the applied ones. Until
    /// such an entry is committed, a new leader does not know all entries that
    /// were committed, and acknowledged, before its term.
    pub(super) fn commit_announced(&mut self, committed: LogId) {
        let committed = committed.max(self.announced_commit.unwrap_or(0));
        self.announced_commit = Some(committed);
        let applied = self.state.applied();
        if applied.id >= committed && applied.term == self.term() {
            self.fresh_at = Some(self.now);
        }
    }

    /// A message of the current term's leader has come.
    pub(super) fn hear(&mut self, leader: ServerId, storage: StorageId) {
        if self.hard.last_reign != self.hard.term {
            self.hard.last_reign = self.hard.term;
            // People read it, and safety does not need it. So no message waits
            // until it is durable.
            self.stage_hard(false);
        }
        self.leads_with = Some(storage);
        if self.leader != Some(leader) {
            self.leader = Some(leader);
            let term = self.term();
            self.emit(Event::LeaderKnown { leader, term });
        }
        self.vetoed = false;
        self.stood = 0;
        let sticky = self.config.drift.lengthen(self.config.election_timeout);
        self.refuse_votes_until = self.now.after(sticky);
    }

    pub(super) fn stage_hard(&mut self, binding: bool) {
        let mut hard = self.hard;
        if self.state.version() < ClusterVersion::SECOND {
            // If the earlier release is started here again, it must be able to
            // read this.
            hard = hard.without_disk();
        }
        if self.planted(Bug::VoteForgotten) {
            hard.vote = None;
        }
        if self.planted(Bug::TermForgotten) {
            hard = HardState::default();
        }
        self.disk.stage_hard(hard, binding);
    }

    /// Appends an entry to the log in memory, and stages it for the disk.
    pub(super) fn append(&mut self, entry: Entry) {
        self.members.appended(&entry);
        self.disk.stage_entry(entry.clone());
        self.log.append(entry);
    }

    /// Removes the entries from `from` on, which an earlier leader appended and
    /// never committed.
    pub(super) fn truncate(&mut self, from: LogId) {
        if from <= self.commit {
            let leader = self.leader.unwrap_or_else(|| self.id());
            return self.halt(Fault::CommittedConflict { id: from, leader });
        }
        self.log.truncate(from);
        if !self.planted(Bug::MembersKept) {
            self.members.truncated(from);
        }
        self.disk.stage_truncate(from);
    }

    /// Entries up to `to` are committed: applies them, and gives each one with
    /// its outcome to `each`.
    pub(super) fn commit_to(&mut self, to: LogId, mut each: impl FnMut(&Entry, Outcome)) {
        if to <= self.commit {
            return;
        }
        self.commit = to;
        self.members.committed(to);
        let from = self.state.applied().id + 1;
        let local_expiry = self.planted(Bug::LocalExpiry);
        #[cfg(feature = "planted-bugs")]
        self.state.plant(self.config.planted);
        while self.state.applied().id < to {
            let next = self.state.applied().id + 1;
            let Some(entry) = self.log.get(next) else {
                self.halt(Fault::MissingEntry { id: next });
                return;
            };
            let outcome = if local_expiry {
                let time = self.now.as_nanos();
                self.state.apply(&Entry {
                    time,
                    ..entry.clone()
                })
            } else {
                self.state.apply(entry)
            };
            self.schedule.applied(entry.weight());
            each(entry, outcome);
        }
        self.outbox.push_back(Output::Applied { from, to });
        self.refuse_to_be_replaced();
        let awaited_checksum = self.awaited_checksum.take();
        self.agreed(awaited_checksum);
    }

    /// Begins a snapshot if one is due or was asked for. It begins none while
    /// another one is being encoded, or waits for a disk that stalls.
    pub(super) fn compact(&mut self) {
        let is_due = self.is_snapshot_due();
        if (self.snapshot_wanted || is_due) && self.encoding.is_none() && !self.is_stuck() {
            self.begin_snapshot();
        }
    }

    /// Begins a snapshot as soon as possible, whether one is due or not.
    pub(super) fn compact_now(&mut self) {
        let applied = self.state.applied();
        let encodes_it = self.encoding.as_ref().is_some_and(|it| it.last == applied);
        self.snapshot_wanted |= !encodes_it;
        self.compact();
    }

    fn is_snapshot_due(&mut self) -> bool {
        let (threshold, applied) = (self.snapshot_threshold(), self.state.applied().id);
        let (own, members) = (self.id(), self.members.now());
        let place = || place(own, members);
        self.schedule.is_due(threshold, applied, place)
    }

    /// About how many bytes of entries are applied from one snapshot to the
    /// next.
    fn snapshot_threshold(&self) -> usize {
        let last = self.snapshot.as_ref().map_or(0, |it| it.bytes.len());
        self.config.snapshot_threshold_bytes.max(last)
    }

    /// Hands out a copy of the state to be encoded. It does nothing if the last
    /// snapshot covers every applied entry. Nor does it if no entry has been
    /// applied: then the server has only just started, and the state of its
    /// bootstrap is on its disk.
    ///
    /// To encode a million registers takes longer than an election timeout. So
    /// that is done elsewhere, while this server goes on. Until the bytes
    /// are there, the log keeps all entries, and the disk and the peers keep
    /// the previous snapshot.
    fn begin_snapshot(&mut self) {
        let applied = self.state.applied();
        let covered = |it: &Snapshot| it.last == applied;
        self.snapshot_wanted = false;
        if applied == Position::ZERO || self.snapshot.as_ref().is_some_and(covered) {
            return;
        }
        self.schedule.begun();
        self.encoding = Some(Encoding { last: applied });
        let state = if self.planted(Bug::SnapshotForgets) {
            self.state.without_sessions()
        } else {
            self.state.clone()
        };
        let copy = StateCopy::new(state, self.config.checksum);
        self.outbox
            .push_back(Output::EncodeSnapshot(Box::new(copy)));
    }

    /// A snapshot is encoded. It goes to the disk and to the peers that need
    /// one, and the log removes old entries, but not those after `needed`, of a
    /// leader (`sending.rs`).
    ///
    /// What it holds stays committed while it is encoded, so the snapshot is
    /// still right. Meanwhile a newer one may have come from the leader; then
    /// this one is discarded.
    pub(super) fn snapshot_encoded(&mut self, snapshot: Snapshot, needed: &[LogId]) {
        let Some(Encoding { last }) = self.encoding.take_if(|it| it.last == snapshot.last) else {
            return self.discard(Discarded::Snapshot(snapshot));
        };
        let overtaken = self.snapshot.as_ref().is_some_and(|it| it.last >= last);
        if !overtaken || self.planted(Bug::SnapshotOvertaken) {
            let threshold = self.snapshot_threshold();
            self.replace_snapshot(snapshot.clone());
            let end = self.log.last().id;
            self.disk.stage_snapshot(snapshot, false, end, self.now);
            self.emit(Event::Compacted { upto: last });
            self.compact_log(last.id, threshold, needed);
        } else {
            self.discard(Discarded::Snapshot(snapshot));
        }
        self.compact();
    }

    /// Entries up to `last` go, which the newest snapshot covers. Some stay for
    /// servers that are a little late, and what peers need that are brought up
    /// to date stays.
    fn compact_log(&mut self, last: LogId, threshold: usize, needed: &[LogId]) {
        let log = &self.log;
        let usual = log.behind(last, self.config.kept_entries, threshold / 2);
        let tail = log.bytes_after(last).unwrap_or(0);
        let most = threshold.saturating_mul(KEPT_THRESHOLDS);
        let fits = |after: &LogId| {
            let bytes = log.bytes_after(*after);
            bytes.is_some_and(|bytes| bytes - tail <= most)
        };
        let needed = needed.iter().copied().filter(|after| *after < usual);
        let upto = needed.filter(fits).min();
        self.compact_upto(upto.unwrap_or(usual));
    }

    /// The log forgets entries up to this one. Their memory is given back
    /// elsewhere.
    pub(super) fn compact_upto(&mut self, upto: LogId) {
        let forgotten = self.log.compact(upto);
        if !forgotten.is_empty() {
            self.discard(Discarded::Entries(forgotten));
        }
    }

    /// Sends a request to a peer. Returns its number.
    pub(super) fn send_request(&mut self, to: ServerId, request: Request) -> u64 {
        self.number += 1;
        let number = self.number;
        // It is meant for the disk that has this number now, and for no disk
        // that had it before.
        let storage = self.members.now().storage(to);
        let by_number = self.planted(Bug::VotesByNumber) || self.counts_by_number();
        let to = (to, storage.filter(|_| !by_number));
        self.send(to, Body::Request { number, request }, false);
        number
    }

    /// Sends a reply at once. It waits for the disk only if this server's term
    /// or vote is not durable yet.
    pub(super) fn reply(&mut self, to: &RequestContext, reply: Reply) {
        if reply.acknowledges() && self.replaced_by().is_some() {
            return;
        }
        self.send(to.whom(), to.body(reply), false);
    }

    /// Sends a reply when everything that is staged now is durable.
    pub(super) fn reply_when_durable(&mut self, to: &RequestContext, reply: Reply) {
        let replaced = reply.acknowledges() && self.replaced_by().is_some();
        if replaced || self.fault.is_some() {
            return;
        }
        let hasty = self.planted(Bug::AckUnsynced) && matches!(reply, Reply::Appended { .. });
        self.send(to.whom(), to.body(reply), !hasty);
    }

    fn send(
        &mut self,
        (to, storage): (ServerId, Option<StorageId>),
        body: Body,
        reply_when_durable: bool,
    ) {
        let envelope = Envelope {
            from: self.id(),
            to,
            term: self.term(),
            body,
        };
        if let Some(message) = self.disk.hold((envelope, storage), reply_when_durable) {
            self.outbox.push_back(message.into());
        }
    }

    pub(super) fn answer(&mut self, token: u64, answer: Answer) {
        self.outbox.push_back(Output::Answer { token, answer });
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.outbox.push_back(Output::Event(event));
    }

    /// This server or another one has broken a rule of the protocol. Reports
    /// the first such fault, after which this server stops.
    pub(super) fn halt(&mut self, fault: Fault) {
        if self.fault.is_none() {
            self.fault = Some(fault.clone());
            self.outbox.push_back(Output::Halt(fault));
        }
    }

    /// Whether a log that ends with `last` is at least as up-to-date as this
    /// one. Only a candidate with such a log gets this server's vote. Server ids
    /// play no part in it.
    pub(super) fn is_up_to_date(&self, last: Position) -> bool {
        let mine = self.rank().last;
        if self.planted(Bug::EitherRefuses) {
            return last.id >= mine.id && last.term >= mine.term;
        }
        last >= mine
    }
}

/// Where a request came from, and so where its reply goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestContext {
    pub(super) by: ServerId,
    /// The disk of that server.
    pub(super) storage: StorageId,
    pub(super) number: u64,
    pub(super) term: Term,
}

impl RequestContext {
    /// The server and the disk that sent the request. A reply goes to no other
    /// disk of that number: a vote that was given to one of them must never be
    /// counted by the other.
    const fn whom(&self) -> (ServerId, Option<StorageId>) {
        (self.by, Some(self.storage))
    }

    const fn body(&self, reply: Reply) -> Body {
        Body::Reply {
            number: self.number,
            asked_in: self.term,
            reply,
        }
    }
}
