//! The followers of one store within one process, and what they know.
//!
//! Five hundred candidates in fifty elections follow fifty registers, not
//! five hundred: the hub keeps one copy of what is known of each followed
//! key, asks the backend only for what differs from it, and hands each change
//! to everybody concerned. A write of this process's own is published at
//! once, so that its neighbours need not wait for the backend's notice.
//!
//! Versions of one key only grow in the stores that use this, which is how
//! old news that arrives late is told from new. Unless a backup was restored
//! or the table made anew: a version below the newest that was known *before*
//! it was asked for is no late news, it is what there is now.

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
    /// The newest version seen, which outlives a deletion.
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
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres")),
        allow(dead_code, reason = "what only stores without a stream ask by")
    )]
    pub(super) version: Option<Version>,
    /// Whether its followers have heard of it at all, be it that it does not
    /// exist.
    pub(super) told: bool,
    /// The newest version that had been seen when this was drawn up.
    newest: Option<Version>,
}

impl Interest {
    fn newest(&self, key: &Key) -> Option<&Version> {
        let found = self.keys.binary_search_by(|other| other.key.cmp(key));
        self.keys.get(found.ok()?)?.newest.as_ref()
    }
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
            keys.insert(key.clone(), Some(known));
        }
        let followed = |(key, known): (Key, Option<&Known>)| Followed {
            key,
            told: known.is_some(),
            version: known
                .and_then(|known| known.register.as_ref())
                .map(|held| held.version.clone()),
            newest: known.and_then(|known| known.newest.clone()),
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

    /// A state of a register that was notified of, or written by this
    /// process. Whether it was told, or known already; if not, it is older
    /// than what is known, and only a fetch can say which of them counts.
    pub(super) fn publish(&self, key: &Key, register: Option<Register>) -> bool {
        let at = register.as_ref().map(|held| held.version.clone());
        self.tell(key, register, at, None)
    }

    /// A register was deleted by the change with this version, for stores
    /// whose deletions have one. Whether it was told, or known already.
    #[cfg(feature = "etcd")]
    pub(super) fn publish_gone(&self, key: &Key, at: &Version) -> bool {
        self.tell(key, None, Some(at.clone()), None)
    }

    /// A state of a register that was read after `interest` was drawn up.
    pub(super) fn fetched(&self, interest: &Interest, key: &Key, register: Option<Register>) {
        let at = register.as_ref().map(|held| held.version.clone());
        self.tell(key, register, at, Some(interest));
    }

    /// There was no such register when, after `interest` was drawn up, all
    /// changes up to this version had been made.
    #[cfg(feature = "etcd")]
    pub(super) fn fetched_gone(&self, interest: &Interest, key: &Key, at: &Version) {
        self.tell(key, None, Some(at.clone()), Some(interest));
    }

    /// `at` is how new the state is, where that is known: of a register its
    /// version, of a deletion only in stores that count those too.
    fn tell(
        &self,
        key: &Key,
        register: Option<Register>,
        at: Option<Version>,
        fetched: Option<&Interest>,
    ) -> bool {
        let mut inner = self.lock();
        let Inner { feeds, known, .. } = &mut *inner;
        let concerned = |feed: &&Feed| feed.selector().selects(key);
        if !feeds.iter().any(|feed| concerned(&feed)) {
            return true;
        }
        let version = register.as_ref().map(|register| register.version.clone());
        if let Some(known) = known.get(key) {
            if known.register.as_ref().map(|held| &held.version) == version.as_ref() {
                return true;
            }
            // Otherwise something newer came while it was being fetched.
            let went_back =
                fetched.is_some_and(|interest| interest.newest(key) == known.newest.as_ref());
            if at.is_some() && at <= known.newest && !went_back {
                return false;
            }
        }
        let newest = at.or_else(|| known.get(key).and_then(|known| known.newest.clone()));
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
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    fn register(version: u64) -> Option<Register> {
        Some(Register {
            value: b"value".as_slice().into(),
            version: Version::from_u64(version),
            stamp: None,
        })
    }

    #[test]
    fn late_news_is_told_from_versions_that_went_back() {
        let hub = Hub::default();
        let key = Key::new("key").expect("a key");
        let _watch = hub.follow(Selector::Key(key.clone()));
        let known = || hub.interest().keys.pop().expect("a key").version;
        assert!(hub.publish(&key, register(5)));
        let before = hub.interest();
        assert!(hub.publish(&key, register(6)));
        // Read before 6 was written, and told after.
        hub.fetched(&before, &key, register(5));
        assert_eq!(known(), Some(Version::from_u64(6)));
        // Read after 6 was known: it has gone back.
        hub.fetched(&hub.interest(), &key, register(3));
        assert_eq!(known(), Some(Version::from_u64(3)));
        assert!(hub.publish(&key, register(4)));
        assert!(!hub.publish(&key, register(2)));
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn a_late_deletion_does_not_hide_what_was_made_after_it() {
        let hub = Hub::default();
        let key = Key::new("key").expect("a key");
        let _watch = hub.follow(Selector::Key(key.clone()));
        let known = || hub.interest().keys.pop().expect("a key").version;
        let at = Version::from_u64;
        assert!(hub.publish(&key, register(5)));
        let before = hub.interest();
        // Written by this process; the deletion before it is heard of later.
        assert!(hub.publish(&key, register(7)));
        assert!(!hub.publish_gone(&key, &at(6)));
        hub.fetched_gone(&before, &key, &at(6));
        assert_eq!(known(), Some(at(7)));
        assert!(hub.publish_gone(&key, &at(8)));
        assert_eq!(known(), None);
        assert!(!hub.publish(&key, register(7)));
        assert!(hub.publish(&key, register(9)));
        assert_eq!(known(), Some(at(9)));
    }
}
