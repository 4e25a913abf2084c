//! Rounds of confirmation: does a majority still follow?
//!
//! Every request of a leader carries the number of the latest round, and
//! every answer gives it back. When a majority has answered round `r` or
//! later, then at the moment round `r` *began* no other leader of a higher
//! term could have committed anything: a majority was still in this term
//! after that moment. Four things rest on it:
//!
//! * a read that arrived before round `r` began may be answered from the
//!   applied state (`docs/design/alpo.md`, H5, I12);
//! * a leader that asks and is confirmed by no majority for a timeout steps
//!   down, since another server may lead by now. One whose process did not run
//!   for that long has not asked, and asks first, unless it reads by lease;
//! * a change of members is judged by who has answered round `r`, if it was
//!   asked for before that began (`membership_change.rs`);
//! * with `lease_reads`, until the last confirmed round is a timeout old
//!   no other server can have been elected, since voters that heard this leader in
//!   that round refuse all votes for a timeout. It counts from the *start* of
//!   the round: the voters heard it no earlier than that.

use alloc::collections::VecDeque;
use core::time::Duration;

use tenure_core::time::Instant;

use super::types::Query;

/// The most rounds that can be unconfirmed; more are not begun.
const MAX_ROUNDS: usize = 1_024;

#[derive(Clone, Debug)]
pub(super) struct QuorumRounds {
    current: u64,
    confirmed: u64,
    /// When the last confirmed round began.
    confirmed_at: Instant,
    begun: VecDeque<(u64, Instant)>,
    /// Reads and the round that must be confirmed before they are answered.
    reads: VecDeque<(u64, u64, Query)>,
}

impl QuorumRounds {
    /// At the start of a leadership. No round is confirmed yet: `confirmed_at`
    /// says only since when rounds are waited for. Votes are no confirmation
    /// for a lease, since a voter that gives its vote refuses no others;
    /// `reads.rs` says why no read rests on that.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            current: 0,
            confirmed: 0,
            confirmed_at: now,
            begun: VecDeque::new(),
            reads: VecDeque::new(),
        }
    }

    pub(super) const fn current(&self) -> u64 {
        self.current
    }

    /// The first round that begins from now on.
    pub(super) const fn next(&self) -> u64 {
        self.current + 1
    }

    /// Whether a majority has answered this round, or a later one.
    pub(super) const fn is_confirmed(&self, round: u64) -> bool {
        self.confirmed >= round
    }

    pub(super) const fn confirmed_at(&self) -> Instant {
        self.confirmed_at
    }

    /// Since when no majority has confirmed a round; `None` if no round is
    /// unanswered. A pause of this process does not count as silence of the peers: then
    /// the time begins one `heartbeat` before the oldest unanswered round. `for_lease`:
    /// it always begins with the last confirmed round, as lease reads require.
    pub(super) fn unconfirmed_since(
        &self,
        heartbeat: Duration,
        for_lease: bool,
    ) -> Option<Instant> {
        if for_lease {
            return Some(self.confirmed_at);
        }
        let (_, asked) = self.begun.front()?;
        Some(self.confirmed_at.max(asked.before(heartbeat)))
    }

    /// Begins a round.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.begun.len() < MAX_ROUNDS {
            self.current += 1;
            self.begun.push_back((self.current, now));
        }
    }

    /// A read that came now is answered after the next round.
    pub(super) fn wait(&mut self, token: u64, query: Query) {
        self.reads.push_back((self.current + 1, token, query));
    }

    pub(super) fn waiting(&self) -> usize {
        self.reads.len()
    }

    /// Whether reads, or something `else_for`, wait for a round that has not
    /// begun, and none is under way that they would only overtake: reads that
    /// come in the meantime share the next one.
    pub(super) fn wants_another(&self, else_for: Option<u64>) -> bool {
        let reads = self.reads.back().map(|(round, ..)| *round);
        self.begun.is_empty() && reads.max(else_for) > Some(self.current)
    }

    /// A majority has answered round `round`. `from_end` is the moment of
    /// the answer, for those who count it from there by mistake.
    pub(super) fn confirm(&mut self, round: u64, from_end: Option<Instant>) {
        self.confirmed = self.confirmed.max(round);
        while let Some((_, began)) = self.begun.pop_front_if(|(r, _)| *r <= round) {
            self.confirmed_at = from_end.unwrap_or(began);
        }
    }

    /// The next read that may be answered.
    pub(super) fn next_read(&mut self) -> Option<(u64, Query)> {
        let confirmed = self.confirmed;
        let (_, token, query) = self.reads.pop_front_if(|(round, ..)| *round <= confirmed)?;
        Some((token, query))
    }

    /// Everybody who still waits.
    pub(super) fn abandon(self) -> impl Iterator<Item = u64> {
        self.reads.into_iter().map(|(_, token, _)| token)
    }
}
