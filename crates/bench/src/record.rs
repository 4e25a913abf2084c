//! What is written down of a run: every operation, none of them dropped.
//!
//! Latencies go into histograms of three significant digits (HDR), one for
//! each kind of operation and one for those that failed, whose time is no
//! measure of the store's speed and yet somebody's. Failures are counted by
//! what the caller would have to do next. A run consists of slices, of which
//! each has its own sum, so that two stores that take turns can be compared
//! round by round.

use std::time::Duration;

use hdrhistogram::Histogram;
use tenure::StoreError;
use tenure::core::time::Instant;

use super::work::{Done, Kind};

/// The classes of failures, in the order of [`Record::failures`].
pub(super) const CLASSES: [&str; 4] = ["conflict", "unavailable", "unknown", "broken"];

/// The longest latency that is told from longer ones: an hour, in
/// nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;
/// The finest step between latencies, in nanoseconds.
const FINEST: u64 = 1_000;

/// How it was during one interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Point {
    /// When it began, in seconds of measured time.
    pub(super) at: f64,
    /// Successful operations a second.
    pub(super) rate: f64,
    /// Latencies in nanoseconds; 0 if nothing succeeded.
    pub(super) p50: u64,
    pub(super) p99: u64,
}

/// A slice in sum.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Sum {
    pub(super) rate: f64,
    pub(super) p50: u64,
    pub(super) p99: u64,
}

/// All that is known of one store's slices.
#[derive(Debug)]
pub(super) struct Record {
    latencies: [Histogram<u64>; Kind::ALL.len()],
    /// How long failures took.
    pub(super) failed: Histogram<u64>,
    pub(super) failures: [u64; CLASSES.len()],
    /// Operations that were due and never begun.
    pub(super) missed: u64,
    /// The longest time without a success.
    pub(super) longest_gap: Duration,
    pub(super) points: Vec<Point>,
    pub(super) slices: Vec<Sum>,
    /// How long was measured.
    pub(super) measured: Duration,
    counts: [u64; Kind::ALL.len()],
    interval: Duration,
    slice: Slice,
}

/// The slice that is being measured.
#[derive(Debug)]
struct Slice {
    began: Instant,
    last_success: Instant,
    count: u64,
    latencies: Histogram<u64>,
    /// The interval within it.
    interval: u64,
    interval_count: u64,
    interval_latencies: Histogram<u64>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(FINEST, LONGEST, 3).expect("bounds that fit")
}

impl Record {
    /// Nothing yet; points will stand for `interval` each.
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            latencies: Kind::ALL.map(|_| histogram()),
            failed: histogram(),
            failures: [0; CLASSES.len()],
            missed: 0,
            longest_gap: Duration::ZERO,
            points: Vec::new(),
            slices: Vec::new(),
            measured: Duration::ZERO,
            counts: [0; Kind::ALL.len()],
            interval,
            slice: Slice {
                began: Instant::ZERO,
                last_success: Instant::ZERO,
                count: 0,
                latencies: histogram(),
                interval: 0,
                interval_count: 0,
                interval_latencies: histogram(),
            },
        }
    }

    /// A slice begins.
    pub(super) fn begin(&mut self, now: Instant) {
        let slice = &mut self.slice;
        (slice.began, slice.last_success) = (now, now);
        (slice.count, slice.interval, slice.interval_count) = (0, 0, 0);
        slice.latencies.reset();
        slice.interval_latencies.reset();
    }

    /// A step that was due at `due` has ended.
    pub(super) fn add(&mut self, due: Instant, now: Instant, done: &Done) {
        let took = now.since(due);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Err(error) = &done.result {
            self.failed.saturating_record(nanos);
            if let Some(count) = self.failures.get_mut(class(error)) {
                *count += done.count;
            }
            return;
        }
        self.turn(now);
        let kind = done.kind as usize;
        if let (Some(latencies), Some(count)) =
            (self.latencies.get_mut(kind), self.counts.get_mut(kind))
        {
            latencies.saturating_record(nanos);
            *count += done.count;
        }
        let gap = now.since(self.slice.last_success);
        self.longest_gap = self.longest_gap.max(gap);
        let slice = &mut self.slice;
        slice.last_success = now;
        slice.count += done.count;
        slice.interval_count += done.count;
        slice.latencies.saturating_record(nanos);
        slice.interval_latencies.saturating_record(nanos);
    }

    /// A slice ends.
    pub(super) fn end(&mut self, now: Instant) {
        self.turn(now);
        let slice = &self.slice;
        let lasted = now.since(slice.began);
        self.longest_gap = self.longest_gap.max(now.since(slice.last_success));
        self.slices.push(Sum {
            rate: per_second(slice.count, lasted),
            p50: slice.latencies.value_at_quantile(0.5),
            p99: slice.latencies.value_at_quantile(0.99),
        });
        self.measured += lasted;
    }

    /// Closes the intervals that are over.
    fn turn(&mut self, now: Instant) {
        let nanos = self.interval.as_nanos().max(1);
        let current = now.since(self.slice.began).as_nanos() / nanos;
        while u128::from(self.slice.interval) < current {
            let slice = &mut self.slice;
            let interval = self.interval.as_secs_f64();
            self.points.push(Point {
                at: self.measured.as_secs_f64() + slice.interval as f64 * interval,
                rate: per_second(slice.interval_count, self.interval),
                p50: slice.interval_latencies.value_at_quantile(0.5),
                p99: slice.interval_latencies.value_at_quantile(0.99),
            });
            slice.interval += 1;
            slice.interval_count = 0;
            slice.interval_latencies.reset();
        }
    }

    /// What a point stands for.
    pub(super) const fn interval(&self) -> Duration {
        self.interval
    }

    /// The latencies of one kind, in nanoseconds.
    pub(super) fn latencies(&self, kind: Kind) -> Option<&Histogram<u64>> {
        self.latencies.get(kind as usize)
    }

    /// How many operations of one kind have succeeded.
    pub(super) fn count(&self, kind: Kind) -> u64 {
        self.counts.get(kind as usize).copied().unwrap_or(0)
    }

    /// How many operations have succeeded.
    pub(super) fn succeeded(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Successful operations of one kind a second.
    pub(super) fn rate(&self, kind: Kind) -> f64 {
        per_second(self.count(kind), self.measured)
    }
}

fn per_second(count: u64, lasted: Duration) -> f64 {
    count as f64 / lasted.as_secs_f64().max(f64::EPSILON)
}

/// Which of [`CLASSES`] an error is of.
fn class(error: &StoreError) -> usize {
    match error {
        StoreError::Conflict => 0,
        StoreError::Unavailable(_) => 1,
        StoreError::Unknown(_) => 2,
        StoreError::Broken(_) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_written_down_once() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut record = Record::new(Duration::from_millis(100));
        let done = |kind, result| Done {
            kind,
            count: 1,
            result,
        };
        for round in 0..2u64 {
            let from = round * 10_000;
            record.begin(at(from));
            record.add(at(from), at(from + 10), &done(Kind::Write, Ok(())));
            record.add(at(from), at(from + 250), &done(Kind::Read, Ok(())));
            let failures = [
                StoreError::Conflict,
                StoreError::unavailable(""),
                StoreError::unknown(""),
                StoreError::unknown(""),
            ];
            for error in failures {
                record.add(at(from), at(from + 300), &done(Kind::Write, Err(error)));
            }
            record.end(at(from + 500));
        }
        assert_eq!(record.measured, Duration::from_secs(1));
        assert_eq!(
            (record.count(Kind::Write), record.count(Kind::Read)),
            (2, 2)
        );
        assert_eq!(record.failures, [2, 2, 4, 0]);
        assert_eq!(record.failed.len(), 8);
        // From the read at 250 ms to the end of the slice.
        assert_eq!(record.longest_gap, Duration::from_millis(250));
        let rates: Vec<_> = record.points.iter().map(|point| point.rate).collect();
        assert_eq!(rates, [10.0, 0.0, 10.0, 0.0, 0.0].repeat(2));
        let times: Vec<_> = record.points.iter().map(|point| point.at).collect();
        assert!(
            times.is_sorted() && times.first() == Some(&0.0),
            "{times:?}"
        );
        assert_eq!(record.slices.len(), 2);
    }
}
