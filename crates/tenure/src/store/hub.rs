//! The followers of one store within one process, and what they know.
//!
//! Five hundred candidates in fifty elections follow fifty registers, not
//! five hundred: the hub keeps one copy of what is known of each followed
//! key, asks the backend only for what differs from it, and hands each change
//! to everybody concerned. A write of this process's own is published at
//! once, so that its neighbours need not wait for the backend's notice.
//!
//! Versions of one key only grow in the stores that use this, which is how
//! old news that arrives late is told from new.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::watch::Feed;
use super::{Key, Register, Selector, Sighting, Version, Watch};

/// The followers and their common knowledge.
#[derive(Debug, Default)]
pub(super) struct Hub {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    feeds: Vec<Feed>,
    known: BTreeMap<Key, Known>,
    /// Why the line is down; `None` if it is up or was never tried.
    line: Line,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Line {
    #[default]
    Untried,
    Up,
    Down,
}

/// The last state told of a key.
#[derive(Debug)]
struct Known {
    register: Option<Register>,
    /// The newest version ever seen, which outlives a deletion.
    newest: Option<Version>,
}

/// What the followers want to hear about, and what they know already.
#[derive(Debug, Default)]
pub(super) struct Interest {
    /// Followed keys.
    pub(super) keys: Vec<Followed>,
    /// Followed prefixes.
    pub(super) prefixes: Vec<String>,
}

/// A followed key and what is known of it.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) key: Key,
    /// The version that is known.
    pub(super) version: Option<Version>,
    /// Whether its followers have heard of it at all, be it that it does not
    /// exist.
    pub(super) told: bool,
}

impl Hub {
    /// A new follower. What is known is told at once; the backend fetches
    /// the rest when it is told that the interest has changed.
    pub(super) fn follow(&self, selector: Selector) -> Watch {
        let (feed, watch) = Watch::new(selector);
        let mut inner = self.lock();
        for (key, known) in &inner.known {
            if feed.selector().selects(key) && inner.line == Line::Up {
                feed.send(Sighting::State(key.clone(), known.register.clone()));
            }
        }
        if inner.line == Line::Up {
            feed.send(Sighting::Live);
        }
        inner.feeds.push(feed);
        watch
    }

    /// What to fetch; forgets followers that have gone.
    pub(super) fn interest(&self) -> Interest {
        let mut inner = self.lock();
        inner.feeds.retain(|feed| !feed.is_abandoned());
        let Inner { feeds, known, .. } = &mut *inner;
        let mut keys = BTreeMap::new();
        let mut prefixes = Vec::new();
        for feed in feeds.iter() {
            match feed.selector() {
                Selector::Key(key) => {
                    keys.insert(key.clone(), None);
                }
                Selector::Prefix(prefix) => prefixes.push(prefix.clone()),
            }
        }
        prefixes.sort_unstable();
        prefixes.dedup();
        known.retain(|key, _| {
            keys.contains_key(key)
                || prefixes
                    .iter()
                    .any(|prefix| key.as_str().starts_with(prefix))
        });
        for (key, known) in known.iter() {
            // Keys below a prefix count as followed once they are known, so
            // that their deletion is noticed.
            let version = known.register.as_ref().map(|held| held.version.clone());
            keys.insert(key.clone(), Some(version));
        }
        let followed = |(key, known): (Key, Option<Option<Version>>)| Followed {
            key,
            told: known.is_some(),
            version: known.flatten(),
        };
        Interest {
            keys: keys.into_iter().map(followed).collect(),
            prefixes,
        }
    }

    /// Whether anybody follows anything.
    pub(super) fn is_idle(&self) -> bool {
        let mut inner = self.lock();
        inner.feeds.retain(|feed| !feed.is_abandoned());
        inner.feeds.is_empty()
    }

    /// A state of a register, fetched or written by this process.
    pub(super) fn publish(&self, key: &Key, register: Option<Register>) {
        let mut inner = self.lock();
        let Inner { feeds, known, .. } = &mut *inner;
        let concerned = |feed: &&Feed| feed.selector().selects(key);
        if !feeds.iter().any(|feed| concerned(&feed)) {
            return;
        }
        let version = register.as_ref().map(|register| register.version.clone());
        if let Some(known) = known.get(key) {
            let same = known.register.as_ref().map(|held| &held.version) == version.as_ref();
            let old = version.is_some() && !same && version <= known.newest;
            if same || old {
                return;
            }
        }
        let newest = version.or_else(|| known.get(key).and_then(|known| known.newest.clone()));
        known.insert(
            key.clone(),
            Known {
                register: register.clone(),
                newest,
            },
        );
        for feed in feeds.iter().filter(concerned) {
            feed.send(Sighting::State(key.clone(), register.clone()));
        }
    }

    /// The line is up: what is known is current from here on.
    pub(super) fn up(&self) {
        let mut inner = self.lock();
        if inner.line != Line::Up {
            inner.line = Line::Up;
            inner
                .feeds
                .iter()
                .for_each(|feed| feed.send(Sighting::Live));
        }
    }

    /// The line is down, and why.
    pub(super) fn down(&self, why: &str) {
        let mut inner = self.lock();
        if inner.line != Line::Down {
            inner.line = Line::Down;
            inner
                .feeds
                .iter()
                .for_each(|feed| feed.send(Sighting::Down(why.to_owned())));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
