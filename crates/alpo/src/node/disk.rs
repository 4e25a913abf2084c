//! Persist before reply: what was handed to the disk, what is durable, and which
//! messages wait for it.
//!
//! Why nothing leaves too early: every message goes through [`Disk::hold`],
//! which names the batch it depends on. That is at least the batch with the
//! last change of term or vote, so no message ever carries a term or a vote
//! that a crash could undo (`docs/design/alpo.md`, H1); and for messages that
//! promise entries it is the batch that is being filled. They come out when
//! that batch is acknowledged, or never.
//!
//! What waits is bounded: entries in bytes, by those who stage them (`stall`);
//! snapshots, of which none is begun while another waits for a disk that lags
//! too far behind, so that beside it wait at most the one that was being encoded
//! by then and the one that was being decoded; and messages, of which the oldest are lost when there are too many.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::time::Duration;

use tenure_core::ids::Term;

use tenure_core::time::Instant;

use super::super::durable::{Batch, HardState, Snapshot};
use super::super::entry::Entry;
use super::super::ids::{LogId, StorageId};
use super::super::message::Envelope;
use super::types::Output;

/// What is to be sent, and to which disk.
pub(super) type Message = (Envelope, Option<StorageId>);

impl From<Message> for Output {
    fn from((envelope, storage): Message) -> Self {
        Self::Send { envelope, storage }
    }
}

/// Room for so many entries is made in a batch before they come, at most.
const USUAL_MAX: usize = 256;

/// So many messages wait at most; any message may be lost.
const HELD_MAX: usize = 4_096;

/// A batch that is not known to be durable.
#[derive(Clone, Debug)]
struct UnderWay {
    number: u64,
    /// The last id of the log after it.
    last: LogId,
    /// Since when it waits.
    since: Instant,
    /// Of entries in it.
    bytes: usize,
    /// Whether there is a snapshot in it.
    snapshot: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    /// Batches that are complete and were not fetched yet.
    full: VecDeque<Batch>,
    /// What goes out with the batch after those.
    staged: Batch,
    /// The number of the last batch that is complete.
    sent: u64,
    /// The number of the last batch that is durable.
    durable: u64,
    /// The batch with the last change of term or vote.
    hard: u64,
    under_way: VecDeque<UnderWay>,
    /// Bytes of entries in them.
    waiting: usize,
    /// Up to here the log in memory is on disk.
    durable_id: LogId,
    held: VecDeque<(u64, Message)>,
    /// Entries in the batch before: the next may well have as many.
    usual: usize,
    /// How long the batch waited that became durable last.
    took: Duration,
    /// The same of the one that was reported before.
    before: Duration,
}

/// A sync has stalled that took so many times as long as the one before it.
const STALLED: u32 = 4;

impl Disk {
    /// After a restart: everything that was read back is durable.
    pub(super) fn after_recovery(last: LogId) -> Self {
        Self {
            durable_id: last,
            ..Self::default()
        }
    }

    /// Up to where the log is durable.
    pub(super) const fn durable_id(&self) -> LogId {
        self.durable_id
    }

    /// Since when the oldest batch waits that is not durable, if any does.
    pub(super) fn since(&self) -> Option<Instant> {
        self.under_way.front().map(|batch| batch.since)
    }

    /// How long the batch waited that became durable last, or how long the
    /// oldest has waited by `now` that is not: about what the next takes.
    pub(super) fn pace(&self, now: Instant) -> Duration {
        let waits = self.since().map(|since| now.since(since));
        self.took.max(waits.unwrap_or_default())
    }

    /// Whether all is durable, and the last sync took so much longer than the
    /// one before it that the next may well be quick again.
    pub(super) fn has_stalled(&self) -> bool {
        let before = self.before.saturating_mul(STALLED);
        self.since().is_none() && self.staged.is_empty() && self.took > before
    }

    /// Bytes of entries that are not known to be durable.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether a snapshot is not known to be durable.
    pub(super) fn has_snapshot(&self) -> bool {
        self.staged.snapshot.is_some() || self.under_way.iter().any(|batch| batch.snapshot)
    }

    /// The batch that holds everything staged so far.
    fn pending(&self) -> u64 {
        self.sent + u64::from(!self.staged.is_empty())
    }

    /// Whether the last change of term or vote is durable.
    pub(super) const fn hard_is_durable(&self) -> bool {
        self.hard <= self.durable
    }

    /// A new hard state. `binding` if term or vote changed: then everything
    /// said from now on waits for it.
    pub(super) fn stage_hard(&mut self, hard: HardState, binding: bool) {
        self.staged.hard = Some(hard);
        if binding {
            self.hard = self.sent + 1;
        }
    }

    /// One more entry.
    pub(super) fn stage_entry(&mut self, entry: Entry) {
        if self.staged.entries.is_empty() {
            self.staged.entries.reserve(self.usual);
        }
        self.staged.entries.push(entry);
    }

    /// Entries from `from` on are gone.
    pub(super) fn stage_truncate(&mut self, from: LogId) {
        // What the disk was not given yet it need not remove.
        let kept = self.staged.entries.first().is_some_and(|e| e.id < from);
        self.staged.entries.retain(|entry| entry.id < from);
        if !kept {
            let earlier = self.staged.truncate.unwrap_or(from);
            self.staged.truncate = Some(earlier.min(from));
        }
        self.durable_id = self.durable_id.min(from - 1);
        for batch in &mut self.under_way {
            batch.last = batch.last.min(from - 1);
        }
    }

    /// A snapshot; with `reset` the log before it goes too. `last` is where
    /// the log in memory ends, or ended before the reset.
    pub(super) fn stage_snapshot(
        &mut self,
        snapshot: Snapshot,
        reset: bool,
        last: LogId,
        now: Instant,
    ) {
        // In a batch the snapshot comes before truncation and entries. What
        // was staged before it may be what it rests on, and goes ahead.
        let Batch {
            snapshot: earlier,
            truncate,
            entries,
            ..
        } = &self.staged;
        if earlier.is_some() || truncate.is_some() || !entries.is_empty() {
            self.complete(last, now);
        }
        if reset {
            self.durable_id = 0;
            self.under_way.iter_mut().for_each(|batch| batch.last = 0);
        }
        self.staged.reset |= reset;
        self.staged.snapshot = Some(snapshot);
    }

    /// What is to be made durable, if anything; `last` is where the log in
    /// memory ends.
    pub(super) fn take(&mut self, last: LogId, now: Instant) -> Option<Batch> {
        if self.full.is_empty() && !self.staged.is_empty() {
            self.complete(last, now);
        }
        self.full.pop_front()
    }

    /// Nothing more goes into the batch that is being filled.
    fn complete(&mut self, last: LogId, now: Instant) {
        self.sent += 1;
        let mut batch = core::mem::take(&mut self.staged);
        batch.number = self.sent;
        self.usual = batch.entries.len().clamp(1, USUAL_MAX);
        let bytes = batch.entries.iter().map(Entry::weight).sum();
        self.waiting += bytes;
        self.under_way.push_back(UnderWay {
            number: self.sent,
            last,
            since: now,
            bytes,
            snapshot: batch.snapshot.is_some(),
        });
        self.full.push_back(batch);
    }

    /// Whether `message` may go now; if not it is kept. `when_durable` if it says
    /// that what was staged so far is durable.
    pub(super) fn hold(&mut self, message: Message, when_durable: bool) -> Option<Message> {
        let wanted = if when_durable {
            self.pending()
        } else {
            self.hard
        };
        let wanted = wanted.max(self.hard);
        if wanted <= self.durable {
            return Some(message);
        }
        if self.held.len() >= HELD_MAX {
            self.held.pop_front();
        }
        self.held.push_back((wanted, message));
        None
    }

    /// Batches up to `number` are durable: what may go now. Messages of an
    /// earlier term promise nothing that still matters and are dropped.
    pub(super) fn persisted(&mut self, number: u64, term: Term, now: Instant) -> Vec<Message> {
        assert!(number <= self.sent, "a batch came back that never went out");
        self.durable = self.durable.max(number);
        let before = self.took;
        while let Some(batch) = self.under_way.pop_front_if(|it| it.number <= number) {
            self.durable_id = self.durable_id.max(batch.last);
            self.waiting -= batch.bytes;
            (self.before, self.took) = (before, now.since(batch.since));
        }
        let mut free = Vec::new();
        for (wanted, message) in core::mem::take(&mut self.held) {
            if wanted > self.durable {
                self.held.push_back((wanted, message));
            } else if message.0.term == term {
                free.push(message);
            }
        }
        free
    }

    /// What waits for the disk and would leave a server that is still in
    /// `term`: what was said in another never does.
    pub(super) fn held(&self, term: Term) -> impl Iterator<Item = (u64, &Envelope)> {
        let held = self.held.iter();
        let held = held.map(|(wanted, (envelope, _))| (*wanted, envelope));
        held.filter(move |(_, envelope)| envelope.term == term)
    }

    /// For [`Node::digest`](super::Node::digest); `term` is the server's.
    pub(super) fn digest(&self, term: Term, into: &mut impl Hasher) {
        let Self {
            // Empty between two polls.
            full: _,
            staged: _,
            sent,
            durable,
            hard,
            under_way,
            // How long and how much decide what a leader does after seconds.
            waiting: _,
            durable_id,
            held: _,
            // Memory, and nothing that decides.
            usual: _,
            // A wait, like those of the roles.
            took: _,
            before: _,
        } = self;
        // Only how far batches are ahead of the disk matters.
        let ahead = |number: u64| number.saturating_sub(*durable);
        (ahead(*sent), ahead(*hard), durable_id).hash(into);
        for batch in under_way {
            (ahead(batch.number), batch.last).hash(into);
        }
        for (wanted, envelope) in self.held(term) {
            ahead(wanted).hash(into);
            envelope.digest(into);
        }
    }
}
