//! How long calls take, one after the other over one connection that is up.

use std::time::Duration;

use super::connection::{Connection, Stop};
use crate::clock;
use crate::store::Key;

/// How many calls of each kind are measured.
const CALLS: u8 = 40;

/// What half of the calls, and all but one in a hundred, took at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Percentiles {
    /// Half of them.
    pub p50: Duration,
    /// All but one in a hundred: of fewer calls, the slowest.
    pub p99: Duration,
}

impl Percentiles {
    /// Of these; zero of none.
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |percent: usize| {
            // The nearest rank.
            let rank = (times.len() * percent).div_ceil(100);
            let found = times.get(rank.saturating_sub(1));
            found.copied().unwrap_or_default()
        };
        Self {
            p50: at(50),
            p99: at(99),
        }
    }
}

/// How long reads and writes took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latencies {
    /// Reads.
    pub read: Percentiles,
    /// Compare-and-swaps.
    pub write: Percentiles,
}

impl Latencies {
    /// What a leader has to reckon with for one call.
    pub fn slowest(&self) -> Duration {
        self.read.p99.max(self.write.p99)
    }
}

/// Measures.
pub(super) async fn measure(store: &Connection, key: &Key) -> Result<Latencies, Stop> {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let mut version = store.create(key, &[0]).await?;
    for number in 0..CALLS {
        let began = clock::boot();
        store.read(key).await?;
        let between = clock::boot();
        version = store.update(key, &version, &[number]).await?;
        reads.push(between.since(began));
        writes.push(clock::boot().since(between));
    }
    Ok(Latencies {
        read: Percentiles::of(reads),
        write: Percentiles::of(writes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_nearest_rank() {
        let ms = Duration::from_millis;
        let found = Percentiles::of((1..=200).rev().map(ms).collect());
        assert_eq!((found.p50, found.p99), (ms(100), ms(198)));
        let few = Percentiles::of(vec![ms(3), ms(1), ms(2)]);
        assert_eq!((few.p50, few.p99), (ms(2), ms(3)));
        assert_eq!(Percentiles::of(Vec::new()).p99, Duration::ZERO);
    }
}
