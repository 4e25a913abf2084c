//! What a server has in every role: its term and vote, its log, its state,
//! and the ways things leave it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
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

/// A disk whose sync takes longer than so many timeouts is not waited for.
const LONGEST_SYNC: u32 = 16;

/// A snapshot whose bytes are not there yet.
#[derive(Clone, Debug)]
pub(super) struct Encoding {
    /// Its last entry.
    last: Position,
}

/// A snapshot of another server whose state is not there yet.
#[derive(Clone, Debug)]
pub(super) struct Decoding {
    /// Its last entry.
    pub(super) last: Position,
    /// The request that brought the last byte of it, and its round.
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
    /// The newest snapshot, for peers that need it.
    pub(super) snapshot: Option<Snapshot>,
    /// The one that is being made.
    pub(super) encoding: Option<Encoding>,
    /// The one of another server whose state is being made.
    pub(super) decoding: Option<Decoding>,
    /// One is to be made as soon as it may be begun, whether it is due or not.
    pub(super) snapshot_wanted: bool,
    /// When the next is due.
    pub(super) schedule: SnapshotSchedule,
    /// Who leads in this term, if that is known.
    pub(super) leader: Option<ServerId>,
    /// With which disk.
    pub(super) leads_with: Option<StorageId>,
    /// Until then a leader is taken to be alive, no matter which server asks
    /// for votes.
    pub(super) refuse_votes_until: Instant,
    /// Until then this server elects nobody, itself included: before it was
    /// started it may have heard a leader whose lease counts on that.
    pub(super) silent_until: Instant,
    /// When it last handed the leadership over because its disk stalled.
    pub(super) left_at: Option<Instant>,
    /// In this term, the log is known to be the leader's up to here.
    pub(super) verified: LogId,
    /// A better log vetoed this server's candidacy, and nobody has led since
    /// (H7).
    pub(super) vetoed: bool,
    /// How often it has stood, and nobody has led since.
    pub(super) stood: u32,
    /// In this term, up to where its leader has said that the log is
    /// committed, which may be further than this server has come. Told to
    /// people only; nothing that is decided rests on it.
    pub(super) leader_commit: Option<LogId>,
    /// As of when this server has known its state to be up to date, as a
    /// follower or in earlier terms of its own; see
    /// [`Node::fresh_at`](super::Node::fresh_at).
    pub(super) fresh_at: Option<Instant>,
    /// The highest log time heard of.
    pub(super) time: LogTime,
    pub(super) outbox: VecDeque<Output>,
    /// Numbers of requests that were sent; the last one used.
    pub(super) number: u64,
    pub(super) fault: Option<Fault>,
    /// What a majority's state was marked with at an entry that is not
    /// applied here yet.
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

    /// Whether this server was ever admitted, with this very disk: only then
    /// may it vote. A wiped disk has forgotten what it voted and what it
    /// accepted.
    pub(super) fn may_vote(&self) -> bool {
        self.members.now().has(self.id(), self.identity.storage)
    }

    /// The disk that has taken this server's place: its own log knows that it
    /// was a member with its own disk, and that after that its number went to
    /// another. Such a server acknowledges nothing: a leader that takes its
    /// word for that of the member (a leader of an earlier release does) would
    /// count a disk that is none. It is not to be mistaken for one that reads
    /// the log of a time before it was admitted, in which its number may have
    /// been another's; that one must acknowledge, or it never gets further.
    pub(super) fn replaced_by(&self) -> Option<StorageId> {
        let by_number = self.planted(Bug::VotesByNumber) || self.counts_by_number();
        let known = self.members.now().storage(self.id())?;
        let was_member = self.members.was_own() && !by_number;
        (was_member && known != self.identity.storage).then_some(known)
    }

    /// Whether a mistake is to be made about whose answers count.
    pub(super) fn counts_by_number(&self) -> bool {
        self.planted(Bug::AppendsByNumber) || self.planted(Bug::RoundsByNumber)
    }

    /// Stops if a snapshot, which holds what is committed, gives this
    /// server's number to another disk. Nothing of it is taken over, so that
    /// the disk goes on telling whose the number was.
    pub(super) fn is_replaced_in(&mut self, state: &State) -> bool {
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

    /// Stops if another disk has this server's number and that is committed:
    /// then it can never be taken back. Until then the change may still go,
    /// and this server is the member that it was.
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

    /// Whether a leader is taken to be alive (H9), or may be.
    pub(super) fn is_led(&self) -> bool {
        let reign = self.config.lease_reads || self.hard.last_reign == self.hard.term;
        let heard = reign && self.now < self.refuse_votes_until;
        (heard || self.is_silent()) && !self.planted(Bug::NotSticky)
    }

    /// At its start: `silence` is the longest that its directory may owe.
    ///
    /// Why that is enough: a leader reads by its lease for less than a timeout
    /// after the start of its last confirmed round, and this server can have
    /// answered that round only before it was started, under a setting whose
    /// silence was durable before it answered anything. Its directory keeps
    /// the longest, so a setting that has become shorter since, or lease reads
    /// that have been switched off, take nothing from what is owed. Counted
    /// from its start it is over no earlier than counted from that answer.
    pub(super) fn begin_silence(&mut self, silence: Duration) {
        let own = self.config.silence();
        let owed = if self.planted(Bug::SilenceForgotten) {
            own
        } else {
            own.max(silence)
        };
        self.silent_until = self.now.after(owed);
    }

    /// Whether a leader of before this server's start may still read by a
    /// lease that counts on its silence.
    pub(super) fn is_silent(&self) -> bool {
        self.now < self.silent_until
    }

    /// A wait before standing, drawn anew: one to two timeouts.
    pub(super) fn election_deadline(&mut self) -> Instant {
        let least = self.config.drift.lengthen(self.config.timeout);
        let more = self.rng.span(self.config.timeout);
        self.now.after(least).after(more)
    }

    /// How long a round of votes may take because of disks: the candidate's own
    /// vote is a sync, and after that the others' are. A server that would
    /// stand sooner takes from another the term in which it would have won.
    ///
    /// This server's own disk is its best guess at all of them. Where that is
    /// wrong, candidacies are in vain, and from the third one on it guesses
    /// more: a timeout, then twice as long each time.
    pub(super) fn round_of_votes(&self) -> Duration {
        let timeout = self.config.timeout;
        let own = 2 * self.disk.pace(self.now).min(timeout * LONGEST_SYNC);
        let more = self.stood.checked_sub(3);
        let more = more.map_or(0, |more| 2u32.saturating_pow(more).min(LONGEST_SYNC));
        own.max(timeout * more)
    }

    /// A short wait, up to `most`.
    pub(super) fn random_instant(&mut self, most: Duration) -> Instant {
        let wait = self.rng.span(most);
        self.now.after(wait)
    }

    /// Takes over a higher term; the vote is free again.
    pub(super) fn adopt(&mut self, term: Term) {
        debug_assert!(term > self.hard.term, "terms never fall");
        self.hard.term = term;
        self.hard.vote = None;
        self.leader = None;
        self.leads_with = None;
        self.verified = 0;
        self.leader_commit = None;
        self.stage_hard(true);
    }

    /// Gives this server's vote, to itself or another, and to this disk.
    pub(super) fn vote_for(&mut self, rank: Rank, storage: StorageId) {
        let storage = Some(storage);
        self.hard.vote = Some(Vote { rank, storage });
        self.stage_hard(true);
    }

    /// Its leader says up to where the log is committed, and what came with
    /// it is done: with nothing missing here, the state is as new as can be
    /// known. A new leader does not know of all that was committed before it
    /// until the first entry of its own term is: before that is applied here,
    /// what it says is not all that was acknowledged.
    pub(super) fn heard_leader_commit(&mut self, committed: LogId) {
        let committed = committed.max(self.leader_commit.unwrap_or(0));
        self.leader_commit = Some(committed);
        let applied = self.state.applied();
        if applied.id >= committed && applied.term == self.term() {
            self.fresh_at = Some(self.now);
        }
    }

    /// A leader of the current term was heard.
    pub(super) fn hear(&mut self, leader: ServerId, storage: StorageId) {
        if self.hard.last_reign != self.hard.term {
            self.hard.last_reign = self.hard.term;
            // Kept for people, and for nothing that safety needs: no message
            // waits for it.
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
        let sticky = self.config.drift.lengthen(self.config.timeout);
        self.refuse_votes_until = self.now.after(sticky);
    }

    pub(super) fn stage_hard(&mut self, binding: bool) {
        let mut hard = self.hard;
        if self.state.version() < ClusterVersion::SECOND {
            // An earlier release that is started here again must be able to
            // read it.
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

    /// Appends to the log, in memory and towards the disk.
    pub(super) fn append(&mut self, entry: Entry) {
        self.members.appended(&entry);
        self.disk.stage_entry(entry.clone());
        self.log.append(entry);
    }

    /// Removes entries that another leader never committed.
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

    /// Entries up to `to` are committed: applies them, telling `each`.
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

    /// Begins a snapshot if one is due or wanted. None is begun while another
    /// is made, or waits for a disk that stalls.
    pub(super) fn compact(&mut self) {
        let is_due = self.is_snapshot_due();
        if (self.snapshot_wanted || is_due) && self.encoding.is_none() && !self.is_stuck() {
            self.begin_snapshot();
        }
    }

    /// Begins a snapshot, whether one is due or not, as soon as one may be
    /// begun.
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

    /// How much is applied from one snapshot to the next, about.
    fn snapshot_threshold(&self) -> usize {
        let last = self.snapshot.as_ref().map_or(0, |it| it.bytes.len());
        self.config.log_bytes.max(last)
    }

    /// Hands out a copy of the state to be encoded, unless the last snapshot
    /// covers all that is applied. Of a server that has not applied anything
    /// yet there is none to take: it has only just started, and what it was
    /// founded with is on its disk.
    ///
    /// Encoding takes longer than an election timeout where there are a
    /// million registers, so it is done elsewhere, while this server goes on.
    /// Until the bytes are there the log keeps all entries, and the disk and
    /// the peers have the snapshot of before.
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

    /// A snapshot is encoded: the disk and peers that need one get it, and old
    /// entries go.
    ///
    /// What was applied by then stays committed and in the state, so the
    /// snapshot is as good as on the day it was begun. If one from the leader
    /// has overtaken it, it is of no use any more.
    pub(super) fn snapshot_encoded(&mut self, snapshot: Snapshot) {
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
            self.log
                .compact_behind(last.id, self.config.kept_entries, threshold / 2);
        } else {
            self.discard(Discarded::Snapshot(snapshot));
        }
        self.compact();
    }

    pub(super) fn send_request(&mut self, to: ServerId, request: Request) -> u64 {
        self.number += 1;
        let number = self.number;
        // The disk that has that number now, and not one that had it before.
        let storage = self.members.now().storage(to);
        let by_number = self.planted(Bug::VotesByNumber) || self.counts_by_number();
        let to = (to, storage.filter(|_| !by_number));
        self.send(to, Body::Request { number, request }, false);
        number
    }

    /// Answers at once (as far as the term allows).
    pub(super) fn reply(&mut self, to: &RequestContext, reply: Reply) {
        if reply.acknowledges() && self.replaced_by().is_some() {
            return;
        }
        self.send(to.whom(), to.body(reply), false);
    }

    /// Answers when everything staged so far is durable.
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

    /// A rule of the protocol is broken, by this server or another: says so
    /// once, and does nothing any more.
    pub(super) fn halt(&mut self, fault: Fault) {
        if self.fault.is_none() {
            self.fault = Some(fault.clone());
            self.outbox.push_back(Output::Halt(fault));
        }
    }

    /// Whether `last` is at least as good as this log: the condition for
    /// having this server's vote. Server ids play no part in it.
    pub(super) fn eligible(&self, last: Position) -> bool {
        let mine = self.rank().last;
        if self.planted(Bug::EitherRefuses) {
            return last.id >= mine.id && last.term >= mine.term;
        }
        last >= mine
    }
}

/// A request that is to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestContext {
    pub(super) by: ServerId,
    /// The disk it has.
    pub(super) storage: StorageId,
    pub(super) number: u64,
    pub(super) term: Term,
}

impl RequestContext {
    /// The one that asked, and no other disk of its number: a vote given to
    /// one of them must never be counted by the other.
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
