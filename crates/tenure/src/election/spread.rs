//! When the elections of a process begin, so that they are not renewed all at the
//! same moment.
//!
//! A program that stands in ten thousand elections does so in a loop. Without this
//! all of them are won within a second and, from then on, each is renewed an interval
//! after its last renewal: ten thousand writes reach the store within a second, once
//! an interval, and the last of them waits for all others. So each election beyond
//! the first few begins at a random moment of an interval. To begin later is safe: a
//! candidate that has not begun has asked for nothing.
//!
//! Left out on purpose: spreading them again after an outage of the store. There
//! they race after a jitter of their own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::rng::Rng;

use super::environment::Mailbox;

/// So many elections of a process begin at once.
const AT_ONCE: usize = 64;

/// How many there are.
static STANDING: AtomicUsize = AtomicUsize::new(0);

/// One election of this process, until it is dropped.
#[derive(Debug)]
pub(super) struct Standing {
    wait: Duration,
}

impl Standing {
    pub(super) fn new(interval: Duration, rng: &mut Rng) -> Self {
        let others = STANDING.fetch_add(1, Ordering::Relaxed);
        let wait = wait(others, interval, rng);
        Self { wait }
    }

    /// Waits for the moment to begin; less long if the application has something to
    /// say to the election, which is left where it is.
    pub(super) async fn turn(&self, mailbox: &Mailbox) {
        if !self.wait.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(self.wait) => {}
                () = mailbox.changed() => {}
            }
        }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        STANDING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn wait(others: usize, interval: Duration, rng: &mut Rng) -> Duration {
    if others < AT_ONCE {
        return Duration::ZERO;
    }
    rng.span(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_begin_at_once_and_many_all_over_an_interval() {
        let (interval, mut rng) = (Duration::from_secs(6), Rng::from_seed(7));
        let mut waits = |others| wait(others, interval, &mut rng);
        assert!((0..AT_ONCE).all(|others| waits(others).is_zero()));
        let mut tenths = [0; 10];
        for others in AT_ONCE..10_000 {
            let wait = waits(others);
            assert!(wait <= interval);
            let tenth = wait.as_nanos() * 10 / (interval.as_nanos() + 1);
            tenths[usize::try_from(tenth).expect("below ten")] += 1;
        }
        assert!(
            tenths.iter().all(|count| (800..1_200).contains(count)),
            "{tenths:?}"
        );
    }
}
