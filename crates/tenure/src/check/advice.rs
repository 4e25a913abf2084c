//! Which lease would do, and what an election then costs.
//!
//! A lease has to be [`LEASE_TRIPS`](crate::store::LEASE_TRIPS) calls long; what is
//! advised has room for what differs from one moment to the next ([`lease_for`]), and
//! reckons with the slowest calls that were measured, not with the median.

use std::time::Duration;

use crate::round_trip::lease_for;

use super::latency::Latencies;

/// The lease of `tenure run`, if none is given.
const LEASE_DEFAULT: Duration = Duration::from_secs(10);
/// How many intervals a lease has, if none is given.
const INTERVALS: u32 = 5;
/// How many readings each process makes within a lease where changes are found by
/// looking: twice as many as the leader writes.
const LOOKS: u32 = 2 * INTERVALS;

/// Which lease would do, and what an election then costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Advice {
    /// The shortest sensible lease from here.
    pub lease: Duration,
    /// Its interval.
    pub interval: Duration,
    /// What one election costs a day, with the default lease, or the shortest
    /// sensible one if that is longer.
    pub per_day: PerDay,
}

/// What one election costs a day: a leader, and one candidate that waits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PerDay {
    /// With this lease.
    pub lease: Duration,
    /// Writes of the leader.
    pub writes: u64,
    /// The most readings of both, where changes are found by looking. Where the
    /// system tells of them there are few.
    pub reads_max: u64,
    /// In US dollars by Amazon's list price, of an object store of Amazon.
    pub dollars: Option<f64>,
}

impl Advice {
    pub(super) fn new(url: &str, latencies: &Latencies) -> Self {
        // Shorter than a microsecond is not measured.
        let slowest = latencies.slowest().max(Duration::from_micros(1));
        let lease = lease_for(slowest);
        Self {
            lease,
            interval: lease / INTERVALS,
            per_day: PerDay::new(url, lease.max(LEASE_DEFAULT)),
        }
    }
}

impl PerDay {
    fn new(url: &str, lease: Duration) -> Self {
        let leases = 86_400.0 / lease.as_secs_f64();
        let writes = (leases * f64::from(INTERVALS)).round() as u64;
        let reads = (2.0 * leases * f64::from(LOOKS)).round() as u64;
        Self {
            lease,
            writes,
            reads_max: reads,
            dollars: dollars(url, writes, reads),
        }
    }
}

/// What so many requests cost by Amazon's list price, $0.005 for 1,000 PUT and
/// $0.0004 for 1,000 GET; `None` of a store that Amazon does not run.
pub(super) fn dollars(url: &str, writes: u64, reads: u64) -> Option<f64> {
    let amazons = url.starts_with("s3:") && !url.contains("endpoint=");
    amazons.then(|| writes as f64 / 1_000.0 * 0.005 + reads as f64 / 1_000.0 * 0.0004)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::latency::Percentiles;

    fn latencies(millis: u64) -> Latencies {
        let [p50, p99] = [Duration::from_millis(1), Duration::from_millis(millis)];
        Latencies {
            read: Percentiles { p50, p99: p50 },
            write: Percentiles { p50, p99 },
        }
    }

    #[test]
    fn a_lease_follows_from_the_slowest_calls() {
        for (millis, seconds) in [(1, 1), (100, 1), (101, 2), (450, 5)] {
            let advice = Advice::new("postgres://h/db", &latencies(millis));
            assert_eq!(advice.lease, Duration::from_secs(seconds), "{millis} ms");
            assert_eq!(advice.interval * 5, advice.lease);
            // The rule of `tenure run`.
            assert!(advice.lease >= Duration::from_millis(millis) * crate::store::LEASE_TRIPS);
        }
    }

    #[test]
    fn an_election_costs_what_the_reference_says() {
        let day = Advice::new("s3://bucket", &latencies(50)).per_day;
        assert_eq!((day.writes, day.reads_max), (43_200, 172_800));
        // docs/reference/stores.md: about $9 in thirty days.
        let month = 30.0 * day.dollars.expect("a price");
        assert!((8.0..9.5).contains(&month), "{month}");
        assert_eq!(dollars("s3://b?endpoint=https://h", 1, 1), None);
        let slow = Advice::new("redis://h", &latencies(2_000)).per_day;
        assert_eq!((slow.lease, slow.writes), (Duration::from_secs(20), 21_600));
    }
}
