//! Saying once what is wrong with a peer that connects, or is connected to.
//!
//! A server that is not let in comes again every half second, and so might a
//! stranger. What is wrong with it is said to the log when it is new, and
//! again only after it was not seen for a while: then it has changed, or had
//! been mended. How many are remembered is limited, and what is beyond that
//! is not said at all, so that a log cannot be filled from outside.
//!
//! A server that this one dials is at one of few addresses, known beforehand.
//! There what is wrong is said whenever it *changes*, so that a log tells how
//! it went on; but no fault twice in a minute, however they alternate.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;

/// How long something must not have been seen to be said again.
const SILENCE: Duration = Duration::from_secs(60);
/// How many of those who connect, and causes, are remembered.
const MOST: usize = 64;
/// How many of these may be of one of them: it chooses what it says, and must
/// not keep others out of the log.
const MOST_EACH: usize = 8;

/// How long a server is not reached until that is said.
pub(super) const UNREACHED: Duration = Duration::from_secs(30);

/// What was said of whom, and when it was last seen. They are told apart by
/// addresses, or by what else names them.
#[derive(Debug)]
pub(super) struct LogRateLimit<K = IpAddr>(Mutex<BTreeMap<(K, String), Instant>>);

impl<K> Default for LogRateLimit<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Copy + Debug> LogRateLimit<K> {
    /// Whether it is to be said now that `why` is wrong with `who`.
    pub(super) fn should_log(&self, who: K, why: &str, now: Instant) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, seen| now.since(*seen) < SILENCE);
        if let Some(seen) = told.get_mut(&(who, why.to_owned())) {
            *seen = now;
            return false;
        }
        let each = told.keys().filter(|(known, _)| *known == who).count();
        if told.len() >= MOST || each >= MOST_EACH {
            return false;
        }
        told.insert((who, why.to_owned()), now);
        let last = told.len() == MOST || each + 1 == MOST_EACH;
        drop(told);
        if last {
            tracing::warn!(
                ?who,
                "many different refusals within a minute: others are counted and not logged, until \
                 a minute has passed without those that were"
            );
        }
        true
    }
}

/// What was said of one server that is dialled.
#[derive(Debug, Default)]
pub(super) struct DialLogLimit {
    /// The last that was said of each of its addresses.
    last: BTreeMap<String, String>,
    /// When each was said.
    said: BTreeMap<(String, String), Instant>,
    /// Since when no connection could be made.
    unreached: Option<Instant>,
    unreached_said: bool,
}

impl DialLogLimit {
    /// Whether it is to be said now that `why` is wrong at `address`.
    pub(super) fn should_log(&mut self, address: &str, why: &str, now: Instant) -> bool {
        if self.last.get(address).is_some_and(|last| last == why) {
            return false;
        }
        self.said.retain(|_, at| now.since(*at) < SILENCE);
        let it = (address.to_owned(), why.to_owned());
        if self.said.contains_key(&it) || self.said.len() >= MOST {
            return false;
        }
        if self.last.len() >= MOST {
            self.last.clear();
        }
        self.last.insert(it.0.clone(), it.1.clone());
        self.said.insert(it, now);
        true
    }

    /// No connection could be made. Whether that is to be said now: once, when it
    /// has been so for [`UNREACHED`]. A server that restarts is no news.
    pub(super) fn should_log_unreached(&mut self, now: Instant) -> bool {
        let since = *self.unreached.get_or_insert(now);
        let said = self.unreached_said || now.since(since) < UNREACHED;
        self.unreached_said |= !said;
        !said
    }

    /// It was connected: whatever comes after that is a change.
    pub(super) fn reset(&mut self) {
        self.last.clear();
        self.unreached = None;
        self.unreached_said = false;
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
        let log_rate_limit = LogRateLimit::default();
        let [one, two] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        assert!(log_rate_limit.should_log(one, "expired", at(0)));
        assert!(log_rate_limit.should_log(two, "expired", at(0)));
        assert!(log_rate_limit.should_log(one, "foreign", at(1)));
        for second in 1..200 {
            assert!(!log_rate_limit.should_log(one, "expired", at(second)));
        }
        // The other one had been mended meanwhile.
        assert!(log_rate_limit.should_log(two, "expired", at(200)));
    }

    #[test]
    fn a_fault_is_said_when_it_changes_and_not_twice_in_a_minute() {
        let mut faults = DialLogLimit::default();
        let mut said = Vec::new();
        let mut happens = |address: &str, why: &'static str, second: u64| {
            if faults.should_log(address, why, at(second)) {
                said.push((second, why));
            }
        };
        for second in 0..300 {
            happens("a:1", "refused", second);
            // Another address, tried in turn.
            happens("b:1", "expired", second);
        }
        // It alternates from here on.
        for second in 300..420 {
            let why = if second % 2 == 0 { "other" } else { "refused" };
            happens("a:1", why, second);
        }
        let wanted = [
            (0, "refused"),
            (0, "expired"),
            (300, "other"),
            (301, "refused"),
            (360, "other"),
            (361, "refused"),
        ];
        assert_eq!(said, wanted);
    }

    #[test]
    fn that_a_server_is_not_reached_is_said_once_until_it_is() {
        let mut faults = DialLogLimit::default();
        for _ in 0..2 {
            let said = (0..600).filter(|second| faults.should_log_unreached(at(*second)));
            assert_eq!(said.collect::<Vec<_>>(), [30]);
            faults.reset();
        }
    }

    #[test]
    fn nobody_fills_the_log() {
        let log_rate_limit = LogRateLimit::default();
        let who = |n: u32| IpAddr::from(n.to_be_bytes());
        let said = (0..1_000).filter(|n| log_rate_limit.should_log(who(*n), "garbage", at(1)));
        assert_eq!(said.count(), MOST);
        // One that says something else each time leaves room for the others.
        let alone = LogRateLimit::default();
        let said = (0..1_000).filter(|n: &u32| alone.should_log(who(1), &n.to_string(), at(1)));
        assert_eq!(said.count(), MOST_EACH);
        assert!(alone.should_log(who(2), "expired", at(1)));
        assert!(log_rate_limit.should_log(who(5_000), "garbage", at(100)));
    }
}
