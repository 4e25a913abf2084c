//! Who led when, in one election.
//!
//! A referee looks every few milliseconds, and at each election, whether two
//! leaderships are valid. The later one is asked first: if the earlier one is valid
//! after that, both were. What is wrong is noted, and whatever a test waits for next
//! ends with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::core::time::Instant;
use tenure::{Leadership, LeadershipView, clock};
use tokio::time::{MissedTickBehavior, interval};

/// How often the referee looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One leadership.
struct Reign {
    who: &'static str,
    view: LeadershipView,
}

/// What has happened so far.
#[derive(Default)]
pub(crate) struct Past {
    reigns: Vec<Reign>,
    /// What candidates told of their store, with their names.
    told: Vec<(&'static str, String)>,
    /// The highest term that each candidate has seen.
    seen: BTreeMap<&'static str, u64>,
    harm: Option<String>,
}

/// See the [module](self).
pub(crate) struct Ledger {
    what: String,
    past: Mutex<Past>,
}

impl Past {
    /// The highest term so far; 0 before the first.
    pub(crate) fn term(&self) -> u64 {
        self.reigns.last().map_or(0, |it| it.view.term().get())
    }

    /// Who leads, if somebody does.
    pub(crate) fn leader(&self) -> Option<&'static str> {
        let last = self.reigns.last().filter(|it| it.view.is_valid());
        last.map(|it| it.who)
    }

    /// Whether two candidates have seen this term. One that has not may use it again
    /// if the store forgets it (`docs/design/election.md` §4.14).
    pub(crate) fn is_known(&self, term: u64) -> bool {
        self.seen.values().filter(|seen| **seen >= term).count() == 2
    }

    /// The term of a leadership that was confirmed by the store at a call that began
    /// after this, and is valid.
    pub(crate) fn confirmed_after(&self, since: Instant) -> Option<u64> {
        let last = self.reigns.last().filter(|it| it.view.is_valid())?;
        (last.view.grant().start > since).then(|| last.view.term().get())
    }

    /// What was told with any of these words in it, but for the first `before`.
    pub(crate) fn told(&self, before: usize, words: &[&str]) -> Option<String> {
        let new = self.told.iter().skip(before);
        let mut fitting = new.filter(|(_, text)| words.iter().any(|it| text.contains(it)));
        fitting.next().map(|(_, text)| text.clone())
    }

    /// What was told, and how often.
    fn told_each_once(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for (_, text) in &self.told {
            *counts.entry(text.as_str()).or_default() += 1;
        }
        counts
    }

    /// How much was told.
    pub(crate) fn told_so_far(&self) -> usize {
        self.told.len()
    }

    /// Notes it if two lead.
    fn judge(&mut self) {
        let mut later: Option<(&str, u64)> = None;
        for reign in self.reigns.iter().rev() {
            let (who, term) = (reign.who, reign.view.term().get());
            let is_valid = reign.view.is_valid();
            if let (true, Some((other, above))) = (is_valid, later) {
                let words = format!("{who} led in term {term}, {other} in term {above}");
                self.harm.get_or_insert(words);
            }
            if is_valid {
                later = Some((who, term));
            }
        }
    }
}

impl Ledger {
    /// An empty one, whose referee looks until it is dropped.
    pub(crate) fn begin(what: String) -> Arc<Self> {
        let past = Mutex::default();
        let ledger = Arc::new(Self { what, past });
        let watched = Arc::downgrade(&ledger);
        tokio::spawn(async move {
            let mut looks = interval(LOOK_EVERY);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                let Some(ledger) = watched.upgrade() else {
                    return;
                };
                ledger.past().judge();
            }
        });
        ledger
    }

    pub(crate) fn past(&self) -> MutexGuard<'_, Past> {
        // A test that has failed lets the others go on.
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for what no other test wants to see: what is wrong.
    pub(crate) async fn harm(&self, within: Duration) -> String {
        let until = clock::boot().after(within);
        let mut looks = interval(LOOK_EVERY);
        loop {
            looks.tick().await;
            if let Some(harm) = &self.past().harm {
                return harm.clone();
            }
            assert!(clock::boot() < until, "{}: nothing is wrong", self.what);
        }
    }

    pub(crate) fn elected(&self, who: &'static str, leadership: &Leadership) {
        let mut past = self.past();
        let (term, before) = (leadership.term().get(), past.term());
        if term <= before {
            let other = past.reigns.last().map_or("nobody", |it| it.who);
            let words = format!("{who} was elected in term {term}, {other} in {before} before");
            past.harm.get_or_insert(words);
        }
        let view = leadership.view();
        past.reigns.push(Reign { who, view });
        past.judge();
    }

    pub(crate) fn saw(&self, who: &'static str, term: u64) {
        let mut past = self.past();
        let seen = past.seen.entry(who).or_default();
        *seen = term.max(*seen);
    }

    pub(crate) fn heard(&self, who: &'static str, text: String) {
        self.past().told.push((who, text));
    }

    /// Waits until `look` finds something.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        within: Duration,
        look: impl Fn(&Past) -> Option<T>,
    ) -> T {
        let until = clock::boot().after(within);
        let mut looks = interval(LOOK_EVERY);
        loop {
            looks.tick().await;
            let past = self.past();
            if let Some(harm) = &past.harm {
                panic!("{}: {harm}", self.what);
            }
            if let Some(found) = look(&past) {
                return found;
            }
            assert!(
                clock::boot() < until,
                "{}: expected {what} within {within:?}; in term {}, told: {:?}",
                self.what,
                past.term(),
                past.told_each_once()
            );
        }
    }
}
