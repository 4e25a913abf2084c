//! Saying once what is wrong with whoever connects.
//!
//! A server that is not let in comes again every half second, and so might a
//! stranger. What is wrong with it is said to the log when it is new, and
//! again only after it was not seen for a while: then it has changed, or had
//! been mended. How many are remembered is limited, and what is beyond that
//! is not said at all, so that nobody can fill a log from outside.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;

/// How long something must not have been seen to be said again.
const SILENCE: Duration = Duration::from_secs(60);
/// How many addresses and causes are remembered.
const MOST: usize = 64;

/// What was said of whom, and when it was last seen.
#[derive(Debug, Default)]
pub(super) struct Complaints(Mutex<BTreeMap<(IpAddr, String), Instant>>);

impl Complaints {
    /// Whether it is to be said now that `why` is wrong with `who`.
    pub(super) fn is_news(&self, who: IpAddr, why: &str, now: Instant) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, seen| now.since(*seen) < SILENCE);
        if let Some(seen) = told.get_mut(&(who, why.to_owned())) {
            *seen = now;
            return false;
        }
        let room = told.len() < MOST;
        if room {
            told.insert((who, why.to_owned()), now);
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn it_is_said_once_and_again_after_a_silence() {
        let complaints = Complaints::default();
        let [one, two] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        assert!(complaints.is_news(one, "expired", at(0)));
        assert!(complaints.is_news(two, "expired", at(0)));
        assert!(complaints.is_news(one, "foreign", at(1)));
        for second in 1..200 {
            assert!(!complaints.is_news(one, "expired", at(second)));
        }
        // The other one had been mended meanwhile.
        assert!(complaints.is_news(two, "expired", at(200)));
    }

    #[test]
    fn nobody_fills_the_log() {
        let complaints = Complaints::default();
        let who = |n: u32| IpAddr::from(n.to_be_bytes());
        let said = (0..1_000).filter(|n| complaints.is_news(who(*n), "garbage", at(1)));
        assert_eq!(said.count(), MOST);
        assert!(complaints.is_news(who(5_000), "garbage", at(100)));
    }
}
