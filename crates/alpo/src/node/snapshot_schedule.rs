//! When the next snapshot is due.
//!
//! All servers apply the same entries, and would all be busy with a snapshot at
//! the same time. So that no majority is, each of them takes its own where
//! others do not, although no server knows what the others do.
//!
//! What they share is the log. From one snapshot to the next go as many entries
//! as about the *threshold* in bytes has: more than half of it, and a power of
//! two, *N*. A server takes a snapshot behind entries whose ids leave its own
//! remainder when they are divided by *N*. That needs no memory: a restart, a
//! snapshot of the leader, and one that an operator wanted move no later one.
//!
//! Servers that measure at different places may find different *N*, where states
//! or entries become larger, say. Remainders must be apart for each *N*, and for
//! two of them. Server *r* of *n* has the remainder of *r* / *n*, where the
//! division is one of numbers modulo 2^64 (*n* is made odd, so that there is
//! one). Why these are apart: modulo *N*, a power of two, *r* / *n* is the whole
//! number *x* below *N* with *n* × *x* = *r* + *m* × *N* for some *m* below *n*. So
//! *x* is about *m* / *n* of *N*, and two servers with the same *m* differ by less
//! than one. They have not the same *m* where *N* is larger than *n*, because *m* is
//! -*r* / *N* modulo *n*. And a number with the remainder *x* modulo 2 × *N* has the
//! remainder *x* modulo *N* too, if that is taken again: a server with 2 × *N* is
//! where it would be, every second time.
//!
//! Left out: where entries become much larger from one to the next, a snapshot
//! may be due by their size alone, at half as much again as the threshold.

use super::super::ids::{LogId, ServerId};
use super::super::membership::Membership;

/// What was applied since the last snapshot was begun.
#[derive(Clone, Default, Debug)]
pub(super) struct SnapshotSchedule {
    bytes: usize,
    entries: u64,
    /// Up to here it was asked whether one is due.
    asked: LogId,
    is_due: bool,
}

impl SnapshotSchedule {
    /// An entry of so many bytes was applied.
    pub(super) const fn applied(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.entries += 1;
    }

    /// A snapshot of everything that was applied is begun, or has taken the
    /// place of the state.
    pub(super) const fn begun(&mut self) {
        (self.bytes, self.entries, self.is_due) = (0, 0, false);
    }

    /// Whether a snapshot is due for a server with this place, which has
    /// applied everything up to `applied`. It stays due until it is begun.
    pub(super) fn is_due(
        &mut self,
        threshold: usize,
        applied: LogId,
        place: impl FnOnce() -> u64,
    ) -> bool {
        let from = core::mem::replace(&mut self.asked, applied);
        let half = threshold / 2;
        if self.bytes > threshold.saturating_add(half) {
            self.is_due = true;
        } else if self.bytes > half && !self.is_due {
            let (bytes, entries) = (self.bytes as u128, u128::from(self.entries.max(1)));
            // As many entries as the threshold has, if they are like the last.
            let round = u64::try_from(entries * threshold as u128 / bytes).unwrap_or(u64::MAX);
            let round = 1 << round.max(1).ilog2();
            // The last one with the remainder of this place counts, if it has
            // just come, and when half of the threshold was applied.
            let since = applied.wrapping_sub(place()) % round;
            let is_new = applied.saturating_sub(from) > since;
            self.is_due = is_new && bytes > half as u128 + u128::from(since) * bytes / entries;
        }
        self.is_due
    }
}

/// The place of a server among these members: a number whose remainders modulo
/// powers of two are those of its snapshots.
pub(super) fn place(server: ServerId, members: &Membership) -> u64 {
    let count = members.len() as u64 | 1;
    let rank = members.iter().take_while(|(id, _)| *id < server).count();
    // By Newton's method: each step doubles the bits that are right.
    let mut inverse = count;
    for _ in 0..6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(count.wrapping_mul(inverse)));
    }
    inverse.wrapping_mul(rank as u64)
}

#[cfg(test)]
mod tests {
    use super::super::super::ids::StorageId;
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    const LOG_BYTES: usize = 64_000;

    fn id(number: u64) -> ServerId {
        ServerId::new(number).expect("not zero")
    }

    fn members(numbers: &[u64]) -> Membership {
        let all = numbers
            .iter()
            .map(|number| (id(*number), StorageId::from_u128(1)));
        Membership::bootstrapped(all)
    }

    #[test]
    fn places_are_apart_in_rounds_of_every_length() {
        for numbers in [&[1, 2, 3][..], &[1, 4, 7, 9], &[2, 3, 5, 8, 13]] {
            let members = members(numbers);
            for bits in 4..40 {
                let round = 1 << bits;
                let places = numbers.iter().map(|it| place(id(*it), &members) % round);
                let mut places: Vec<u64> = places.collect();
                places.sort_unstable();
                let next = places.iter().skip(1).copied().chain([places[0] + round]);
                let least = places.iter().zip(next).map(|(a, b)| b - a).min();
                assert!(least > Some(round / 6), "{places:?} of {round}");
            }
        }
    }

    /// Where servers take their snapshots, in bytes that were applied, and how
    /// long a round is there. `state` says how large the state is then, and
    /// `entry` how large the next entry is. All take one behind entry `forced`.
    fn taken(
        numbers: &[u64],
        forced: LogId,
        state: fn(usize) -> usize,
        entry: fn(LogId) -> usize,
    ) -> Vec<(usize, u64, usize)> {
        let members = members(numbers);
        let mut taken = Vec::new();
        for number in numbers {
            let place = place(id(*number), &members);
            let mut schedule = SnapshotSchedule::default();
            let (mut last, mut all, mut before) = (0, 0, 0);
            for applied in 1..60_000 {
                schedule.applied(entry(applied));
                all += entry(applied);
                let threshold = LOG_BYTES.max(last);
                let due = schedule.is_due(threshold, applied, || place);
                if due || applied == forced {
                    assert!(all - before <= threshold * 3 / 2 + entry(applied));
                    if applied != forced {
                        assert!(all - before > threshold / 2);
                        taken.push((all, *number, threshold));
                    }
                    schedule.begun();
                    (last, before) = (state(all), all);
                }
            }
        }
        taken.sort_unstable();
        taken
    }

    #[test]
    fn no_majority_is_busy_at_once_however_large_the_state_is_or_becomes() {
        let states: [fn(usize) -> usize; 6] = [
            |_| 10,
            |_| 700_000,
            |all| all / 50,
            |all| all / 10,
            |all| all / 2,
            |all| all.abs_diff(3_000_000),
        ];
        let entries: [fn(LogId) -> usize; 3] = [
            |_| 100,
            |id| 60 + (id % 7) as usize * 20,
            |id| 50 + id as usize / 500,
        ];
        for numbers in [&[1, 2, 3][..], &[1, 4, 9], &[1, 2, 3, 4, 5]] {
            let majority = numbers.len() / 2 + 1;
            for (state, entry) in states
                .iter()
                .flat_map(|it| entries.map(|entry| (it, entry)))
            {
                for forced in [0, 20_001] {
                    let taken = taken(numbers, forced, *state, entry);
                    assert!(taken.len() > 3 * numbers.len(), "{}", taken.len());
                    for some in taken.windows(majority) {
                        let servers: BTreeSet<u64> = some.iter().map(|it| it.1).collect();
                        let span = some[majority - 1].0 - some[0].0;
                        let round = some.iter().map(|it| it.2).min();
                        let close = servers.len() == majority && Some(span * 12) < round;
                        assert!(!close, "{some:?}");
                    }
                }
            }
        }
    }
}
