//! A follower, which ALPO calls *passive*: it answers, and never asks.
//!
//! It accepts what the leader sends, gives its vote, and waits. When it has
//! waited long enough without a word from a leader, or from a candidate that
//! is better than itself, it stands for election, if it may.
//!
//! `append` has the log matching rule (`AppendEntries`); `installing.rs` takes
//! snapshots (`InstallSnapshot`).

use alloc::vec::Vec;
use core::time::Duration;

use tenure_core::time::Instant;

use super::super::bug::Bug;
use super::super::entry::Entry;
use super::super::ids::{LogId, Position};
use super::super::message::{CompareChecksums, Reply, Request};
use super::installing::{Chunk, take_chunk};
use super::server::{RequestContext, Server};
use super::types::{Event, Fault};

#[derive(Clone, Debug)]
pub(super) struct Follower {
    /// When to stand for election.
    deadline: Wait,
    /// Not before then, no matter which server stands: it stepped back for
    /// another, and that holds beyond the term (H10).
    not_before: Wait,
    /// The disk was asked for a sync, to see how long one takes by now.
    probed: bool,
}

/// How long to wait, and then for a round of votes, as disks were when the wait
/// began.
#[derive(Clone, Copy, Debug)]
struct Wait {
    until: Instant,
    votes: Duration,
}

impl Wait {
    const fn until(until: Instant) -> Self {
        Self {
            until,
            votes: Duration::ZERO,
        }
    }

    fn end(self) -> Instant {
        self.until.after(self.votes)
    }
}

impl Follower {
    pub(super) fn new(server: &mut Server) -> Self {
        let mut follower = Self::until(server.now);
        follower.reset_election_timer(server);
        follower
    }

    /// A wait of one that has had a part in an election: beyond its
    /// election timeout it leaves time for the votes of others.
    pub(super) fn reset_election_timer(&mut self, server: &mut Server) {
        self.deadline = Wait {
            until: server.election_deadline(),
            votes: server.vote_sync_allowance(),
        };
        self.probed = false;
    }

    /// When to stand for election.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline.end()
    }

    /// Stands then, if it would stand later.
    pub(super) fn stand_no_later_than(&mut self, instant: Instant) {
        if instant < self.deadline() {
            self.deadline = Wait::until(instant);
        }
    }

    /// The same, but not before what it owes to another is over.
    pub(super) fn stand_soon(&mut self, instant: Instant) {
        self.stand_no_later_than(instant.max(self.not_before.end()));
    }

    /// A sync has ended. What is left for votes was a guess by this disk, as it
    /// was when the wait began. A stall that is over says nothing of the next
    /// sync: a server whose process was stopped, or whose disk hung once, would
    /// wait for as long again, and twice. So after one that took far longer
    /// than the one before it the disk is asked once for another, of what it
    /// has already.
    pub(super) fn guess_again(&mut self, server: &mut Server) {
        let votes = server.vote_sync_allowance();
        for wait in [&mut self.deadline, &mut self.not_before] {
            wait.votes = wait.votes.min(votes);
        }
        let long = self.deadline.votes.max(self.not_before.votes) > server.config.election_timeout;
        if long && server.disk.has_stalled() && !core::mem::replace(&mut self.probed, true) {
            server.stage_hard(false);
        }
    }

    /// One that has just stepped back for a better candidate, which needs the
    /// time of a round of votes.
    pub(super) fn deferring(server: &mut Server) -> Self {
        let least = server.config.drift.lengthen(server.config.election_timeout);
        let not_before = Wait {
            until: server.now.after(least),
            votes: server.vote_sync_allowance(),
        };
        Self {
            not_before,
            ..Self::new(server)
        }
    }

    pub(super) const fn until(deadline: Instant) -> Self {
        Self {
            deadline: Wait::until(deadline),
            not_before: Wait::until(Instant::ZERO),
            probed: false,
        }
    }

    /// A request of the leader of this term.
    pub(super) fn handle_leader_request(
        &mut self,
        server: &mut Server,
        context: &RequestContext,
        request: Request,
    ) {
        self.deadline = Wait::until(server.election_deadline());
        // It is sent again; by then the disk may have caught up.
        let refused = match &request {
            Request::Append { entries, .. } => !entries.is_empty() && server.is_full(),
            Request::Install { .. } => server.is_full() || server.is_stuck(),
            _ => false,
        };
        if refused {
            return;
        }
        match request {
            Request::Append {
                prev,
                entries,
                commit,
                round,
            } => {
                append(server, context, prev, entries, (commit, round));
                server.commit_announced(commit);
            }
            Request::Heartbeat {
                last,
                commit,
                round,
                time,
                compare_checksums,
            } => {
                server.log_time = server.log_time.max(time);
                heartbeat(server, context, last, (commit, round), compare_checksums);
                server.commit_announced(commit);
            }
            Request::Install {
                last,
                offset,
                bytes,
                total,
                round,
            } => {
                let chunk = Chunk {
                    last,
                    offset,
                    bytes: &bytes,
                    total,
                };
                let next = take_chunk(server, (context, round), &chunk);
                let reply = Reply::Installed {
                    last,
                    offset: next.unwrap_or(total),
                    done: next.is_none(),
                    round,
                };
                server.reply_when_durable(context, reply);
            }
            // The others are not a leader's, or are handled where roles
            // change.
            Request::PreVote { .. }
            | Request::Vote { .. }
            | Request::Defer { .. }
            | Request::TimeoutNow => {}
        }
    }
}

/// `AppendEntries` of Raft: accepts entries that follow `prev`
/// (`prevLogIndex`, `prevLogTerm`) if this log has `prev`, and removes its own
/// tail from the first entry that conflicts. The answer of a log that does not
/// match names the first entry of the conflicting term.
fn append(
    server: &mut Server,
    context: &RequestContext,
    prev: Position,
    entries: Vec<Entry>,
    (commit, round): (LogId, u64),
) {
    if !follows(prev, &entries, context) {
        return;
    }
    // At or below the base everything is committed, and a leader has all
    // that is committed, so there is nothing to compare.
    if prev.id > server.log.base().id && !server.log.has(prev) {
        let conflict = server.log.first_of_term(prev.id);
        let last = server.log.last();
        let reply = Reply::Mismatch {
            last,
            conflict,
            round,
        };
        return server.reply(context, reply);
    }
    let matched = prev.id + entries.len() as u64;
    for entry in entries {
        if entry.id <= server.log.base().id {
            continue;
        }
        match server.log.term_at(entry.id) {
            // A duplicate says nothing about what came after it: entries
            // behind it may have been sent later and promised already.
            Some(term) if term == entry.term => continue,
            Some(_) if entry.id <= server.commit => {
                let (id, leader) = (entry.id, context.by);
                return server.halt(Fault::CommittedConflict { id, leader });
            }
            Some(_) => {
                server.truncate(entry.id);
                server.emit(Event::Truncated { from: entry.id });
            }
            None => {}
        }
        if !server.log.fits(&entry) {
            // No leader's log goes on so from what this server has.
            return;
        }
        if server.halt_if_too_old_for(&entry) {
            return;
        }
        server.log_time = server.log_time.max(entry.time);
        server.append(entry);
    }
    if server.planted(Bug::DuplicateTruncates) && matched < server.log.last().id {
        server.truncate(matched + 1);
    }
    server.verified = server.verified.max(matched);
    commit_verified(server, commit);
    server.reply_when_durable(context, Reply::Appended { matched, round });
}

/// Whether the entries could have been sent by the leader of that term.
fn follows(prev: Position, entries: &[Entry], context: &RequestContext) -> bool {
    let mut last = prev;
    entries.iter().all(|entry| {
        let fits = Some(entry.id) == last.id.checked_add(1)
            && entry.term >= last.term
            && entry.term <= context.term;
        last = entry.position();
        fits
    })
}

fn heartbeat(
    server: &mut Server,
    context: &RequestContext,
    last: Position,
    (commit, round): (LogId, u64),
    compare_checksums: CompareChecksums,
) {
    // The same entry there means the same log up to there.
    let met = server.log.has(last);
    if met {
        server.verified = server.verified.max(last.id);
    }
    commit_verified(server, commit);
    let mut matched = met.then(|| last.id.min(server.disk.durable_id()));
    let last = server.log.last();
    if server.planted(Bug::LastIdMatches) {
        matched = Some(last.id);
    }
    server.agreed(compare_checksums.agreed);
    let reply = Reply::Heard {
        matched,
        last,
        round,
        version: server.config.version,
        state_checksum: server.state.state_checksum(compare_checksums.at),
    };
    server.reply(context, reply);
}

/// What the leader has committed is committed here too, as far as this log
/// is known to be the leader's (Raft: `commitIndex = min(leaderCommit, index of last new
/// entry)`): a stale tail of an earlier leader must not be
/// taken for committed just because it is long enough (H13).
fn commit_verified(server: &mut Server, commit: LogId) {
    let mut upto = commit.min(server.verified);
    if server.planted(Bug::CommitUnverified) {
        upto = commit.min(server.log.last().id);
    }
    if server.planted(Bug::AppliedEarly) {
        upto = server.log.last().id;
    }
    server.commit_to(upto, |_, _| {});
}
