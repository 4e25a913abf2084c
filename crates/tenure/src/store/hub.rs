//! The watches of one store within one process, and what is known of the keys.
//!
//! Five hundred candidates in fifty elections watch fifty registers, not five
//! hundred: the hub keeps one copy of what is known of each watched key, asks
//! the backend only for what differs from it, and hands each change to every
//! watch that selects the key. A write of this process's own is published at
//! once, so that its neighbours need not wait for the backend's notice.
//!
//! News of one key comes on several ways (written here, notified, fetched) that
//! overtake each other. Its states have an order that tells old news from new:
//! versions of one key only grow, and the deletion of a version comes after it
//! and before the next. Unless a backup was restored or the table made anew; so
//! what was *fetched* is believed against that order if no state of the key was
//! published since the fetch began. If one was, it is not known which of them
//! is older, and the fetch is made again.
//!
//! One process may watch ten thousand keys, each by itself, and publishes what it
//! writes to each of them. So watches of one key are found by that key, and what
//! looks at all watches happens once for as many changes as there are watches.
//!
//! Limits: a watch that was dropped is forgotten with the next change of its key. All
//! that were dropped, and the keys that only they selected, are forgotten after as
//! many changes as there are watches and known keys, and when subscriptions have
//! doubled the watches. A key that is deleted below a watched prefix, and is not
//! watched by itself, leaves a tombstone, by which late news of it is known to be
//! old; of these the latest [`TOMBSTONES_MAX`] are kept. News that come after their
//! tombstone was dropped are published once more, until the next fetch finds the key
//! missing: a watch is a hint, and a caller that must be sure reads.

use std::collections::BTreeMap;
#[cfg(feature = "postgres")]
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::watch::Feed;
use super::{Key, Register, Selector, Sighting, Version, Watch};

/// How many deleted keys are remembered that are watched by a prefix alone.
const TOMBSTONES_MAX: usize = 1_024;

/// With fewer watches than this neither a subscription nor a change looks for those
/// that were dropped.
const SUBSCRIBERS_MIN: usize = 16;

/// The watches and what is known of their keys.
#[derive(Debug, Default)]
pub(super) struct Hub {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    feeds: Feeds,
    known: BTreeMap<Key, LastState>,
    /// The known keys that do not exist and are watched by a prefix alone, by when
    /// that was published.
    tombstones: BTreeMap<u64, Key>,
    /// With so many watches those that were dropped are looked for.
    sweep_at: usize,
    /// How many changes there were since they were looked for.
    changes: usize,
    /// How many states have been published: the time of this hub.
    hub_time: u64,
    /// Whether the backend reports changes.
    backend: BackendState,
}

/// The watches, those that were dropped among them until they are looked for.
#[derive(Debug, Default)]
struct Feeds {
    /// Those of one key, by it.
    by_key: BTreeMap<Key, Vec<Feed>>,
    by_prefix: Vec<Feed>,
    count: usize,
}

impl Feeds {
    fn push(&mut self, feed: Feed) {
        self.count += 1;
        match feed.selector() {
            Selector::Key(key) => self.by_key.entry(key.clone()).or_default().push(feed),
            Selector::Prefix(_) => self.by_prefix.push(feed),
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Feed> {
        let by_key = self.by_key.values_mut().flatten();
        by_key.chain(&mut self.by_prefix)
    }

    /// Those that select this key.
    fn of<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Feed> {
        let below = self.by_prefix.iter();
        let below = below.filter(|feed| feed.selector().selects(key));
        self.by_key.get(key).into_iter().flatten().chain(below)
    }

    fn select(&self, key: &Key) -> bool {
        self.of(key).next().is_some()
    }

    /// Forgets those of this key, and of prefixes, that were dropped.
    fn forget_dropped_of(&mut self, key: &Key) {
        let there = |feed: &Feed| !feed.is_abandoned();
        let before = self.by_prefix.len();
        self.by_prefix.retain(there);
        self.count -= before - self.by_prefix.len();
        let Some(of_key) = self.by_key.get_mut(key) else {
            return;
        };
        let before = of_key.len();
        of_key.retain(there);
        let left = of_key.len();
        self.count -= before - left;
        if left == 0 {
            self.by_key.remove(key);
        }
    }

    /// Forgets all that were dropped.
    fn forget_dropped(&mut self) {
        let there = |feed: &Feed| !feed.is_abandoned();
        self.by_prefix.retain(there);
        self.by_key.retain(|_, of_key| {
            of_key.retain(there);
            !of_key.is_empty()
        });
        let by_key: usize = self.by_key.values().map(Vec::len).sum();
        self.count = by_key + self.by_prefix.len();
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
enum BackendState {
    #[default]
    Untried,
    Up,
    Down,
}

/// The last state of a key that was published.
#[derive(Debug)]
struct LastState {
    register: Option<Register>,
    /// How new that is, where it is known.
    age: Option<Age>,
    /// When it was published, by the hub's time.
    hub_time: u64,
}

/// How new a state of a key is: the version of what was written or deleted
/// last, and whether it was deleted.
type Age = (Version, bool);

/// What the watches select, and what is known of it.
#[derive(Debug, Default)]
pub(super) struct Interest {
    /// Watched keys.
    pub(super) keys: Vec<WatchedKey>,
    /// Watched prefixes.
    pub(super) prefixes: Vec<String>,
    /// When this was drawn up, by the hub's time.
    as_of: u64,
}

/// A watched key and what is known of it.
#[derive(Debug)]
pub(super) struct WatchedKey {
    pub(super) key: Key,
    /// The version that is known.
    pub(super) version: Option<Version>,
    /// Whether any state of it was published, also that it does not exist.
    pub(super) reported: bool,
}

impl WatchedKey {
    fn new(key: Key, known: Option<&LastState>) -> Self {
        let held = known.and_then(|known| known.register.as_ref());
        Self {
            key,
            reported: known.is_some(),
            version: held.map(|held| held.version.clone()),
        }
    }
}

impl Hub {
    /// A new watch. What is known is sent to it at once if the backend is up,
    /// and else when it is; the backend fetches the rest when it is woken
    /// because the interest has changed.
    pub(super) fn subscribe(&self, selector: Selector) -> Watch {
        let (mut feed, watch) = Watch::new(selector);
        let mut inner = self.lock();
        feed.replay_up_to = Some(inner.hub_time);
        if inner.backend == BackendState::Up {
            replay_known(&mut feed, &inner.known);
            feed.send(Sighting::Live);
        }
        inner.feeds.push(feed);
        if inner.feeds.count >= inner.sweep_at.max(SUBSCRIBERS_MIN) {
            inner.sweep();
            // Doubled, so that each subscription pays for one look on average.
            inner.sweep_at = inner.feeds.count * 2;
        }
        watch
    }

    /// What to fetch; forgets watches that were dropped.
    pub(super) fn interest(&self) -> Interest {
        let mut inner = self.lock();
        let prefixes = inner.sweep();
        let as_of = inner.hub_time;
        let exact = inner.feeds.by_key.keys().cloned();
        let mut keys: BTreeMap<_, _> = exact.map(|key| (key, None)).collect();
        for (key, known) in &inner.known {
            // Keys below a prefix count as watched once they are known, so that
            // their deletion is noticed; and once it is, no more: if they are
            // made again the prefix shows them.
            if known.register.is_some() || keys.contains_key(key) {
                keys.insert(key.clone(), Some(known));
            }
        }
        let followed = |(key, known)| WatchedKey::new(key, known);
        Interest {
            keys: keys.into_iter().map(followed).collect(),
            prefixes,
            as_of,
        }
    }

    /// The same without keys, for a caller that knows what to fetch: the hub's
    /// time alone.
    #[cfg(feature = "cluster")]
    pub(super) fn current_interest(&self) -> Interest {
        Interest {
            as_of: self.lock().hub_time,
            ..Interest::default()
        }
    }

    /// What to watch at the backend so that each watch hears of what it selects: the
    /// watched prefixes and the watched keys that none covers or, if these are more
    /// than `most`, what the names of all have in common.
    #[cfg(any(feature = "cluster", feature = "consul", feature = "kubernetes"))]
    pub(super) fn selectors(&self, most: usize) -> Vec<Selector> {
        let interest = self.interest();
        let keys = interest.keys.into_iter().map(|followed| followed.key);
        let covered = |key: &Key| {
            let mut prefixes = interest.prefixes.iter();
            prefixes.any(|prefix| key.as_str().starts_with(prefix.as_str()))
        };
        let mut wanted: Vec<Selector> = keys
            .filter(|key| !covered(key))
            .map(Selector::Key)
            .collect();
        wanted.extend(interest.prefixes.iter().cloned().map(Selector::Prefix));
        if wanted.len() <= most {
            return wanted;
        }
        let mut texts = wanted.iter().map(|selector| match selector {
            Selector::Key(key) => key.as_str(),
            Selector::Prefix(prefix) => prefix.as_str(),
        });
        let first = texts.next().unwrap_or_default();
        let common = texts.fold(first, |common, text| {
            let equal = common
                .char_indices()
                .zip(text.chars())
                .find(|((_, ours), theirs)| ours != theirs)
                .map(|((at, _), _)| at);
            &common[..equal.unwrap_or_else(|| common.len().min(text.len()))]
        });
        vec![Selector::Prefix(common.to_owned())]
    }

    /// Whether there is no watch.
    pub(super) fn is_idle(&self) -> bool {
        let mut inner = self.lock();
        let is_idle = inner.feeds.all().all(|feed| feed.is_abandoned());
        if is_idle {
            inner.feeds = Feeds::default();
        }
        is_idle
    }

    /// A state of a register that was notified of, or written by this process.
    /// Whether it was published, or known already; if not, it is older than
    /// what is known, and only a fetch can say which of them counts.
    pub(super) fn publish(&self, key: &Key, register: Register) -> bool {
        let age = (register.version.clone(), false);
        self.apply(key, Some(register), Some(age), None)
    }

    /// A register was deleted: the one with this version or, in stores whose
    /// deletions have a version, by the change with this one. Whether it was
    /// published, or known already.
    pub(super) fn publish_gone(&self, key: &Key, at: Version) -> bool {
        self.apply(key, None, Some((at, true)), None)
    }

    /// Whether a watch selects this register, of which another version than
    /// this is known, or none.
    pub(super) fn concerns(&self, key: &Key, version: &Version) -> bool {
        let inner = self.lock();
        let held = inner.known.get(key).and_then(|it| it.register.as_ref());
        held.is_none_or(|held| held.version != *version) && inner.feeds.select(key)
    }

    /// The same as [`interest`](Self::interest) for those of these keys that a
    /// watch selects.
    #[cfg(feature = "postgres")]
    pub(super) fn interest_in(&self, keys: &BTreeSet<Key>) -> Interest {
        let inner = self.lock();
        let is_followed = |key: &&Key| inner.feeds.select(key);
        let followed = |key: &Key| WatchedKey::new(key.clone(), inner.known.get(key));
        Interest {
            keys: keys.iter().filter(is_followed).map(followed).collect(),
            prefixes: Vec::new(),
            as_of: inner.hub_time,
        }
    }

    /// A state of a register that was read after `interest` was drawn up.
    /// Whether it was published, or known already; if not, another state was
    /// published meanwhile, and only another fetch can say which of them
    /// counts.
    #[must_use = "if it is false, another fetch is due"]
    pub(super) fn fetched(
        &self,
        interest: &Interest,
        key: &Key,
        register: Option<Register>,
    ) -> bool {
        let age = register.as_ref().map(|held| (held.version.clone(), false));
        self.apply(key, register, age, Some(interest))
    }

    /// There was no such register when, after `interest` was drawn up, all
    /// changes up to this version had been made.
    #[cfg(any(feature = "consul", feature = "etcd", feature = "kubernetes"))]
    pub(super) fn fetched_gone(&self, interest: &Interest, key: &Key, at: &Version) {
        // If it is older than what was published meanwhile, it is older in
        // truth.
        self.apply(key, None, Some((at.clone(), true)), Some(interest));
    }

    fn apply(
        &self,
        key: &Key,
        register: Option<Register>,
        age: Option<Age>,
        fetched: Option<&Interest>,
    ) -> bool {
        let mut inner = self.lock();
        inner.forget_dropped(key);
        let Inner {
            feeds,
            known,
            tombstones,
            hub_time,
            ..
        } = &mut *inner;
        if !feeds.select(key) {
            // A watch that begins later asks what it is then.
            if let Some(known) = known.remove(key) {
                tombstones.remove(&known.hub_time);
            }
            return true;
        }
        let version = register.as_ref().map(|register| &register.version);
        if let Some(known) = known.get_mut(key) {
            if known.register.as_ref().map(|held| &held.version) == version {
                known.age = age.max(known.age.take());
                return true;
            }
            let is_newer = match fetched {
                Some(interest) => age > known.age || known.hub_time <= interest.as_of,
                None => age > known.age,
            };
            if !is_newer {
                return false;
            }
        }
        *hub_time += 1;
        for feed in feeds.of(key) {
            feed.send(Sighting::State(key.clone(), register.clone()));
        }
        if register.is_none() && !feeds.by_key.contains_key(key) {
            tombstones.insert(*hub_time, key.clone());
        }
        let age = age.or_else(|| known.get(key).and_then(|known| known.age.clone()));
        let now = LastState {
            register,
            age,
            hub_time: *hub_time,
        };
        if let Some(before) = known.insert(key.clone(), now) {
            tombstones.remove(&before.hub_time);
        }
        inner.drop_oldest_tombstones();
        true
    }

    /// The backend reports changes: what is known is current from here on.
    pub(super) fn mark_up(&self) {
        let mut inner = self.lock();
        let Inner {
            feeds,
            known,
            backend,
            ..
        } = &mut *inner;
        if *backend != BackendState::Up {
            *backend = BackendState::Up;
            for feed in feeds.all() {
                replay_known(feed, known);
                feed.send(Sighting::Live);
            }
        }
    }

    /// The backend reports no changes, and why.
    pub(super) fn mark_down(&self, why: &str) {
        let mut inner = self.lock();
        if inner.backend != BackendState::Down {
            inner.backend = BackendState::Down;
            let all = inner.feeds.all();
            all.for_each(|feed| feed.send(Sighting::Down(why.to_owned())));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends to a watch what was known before it began.
fn replay_known(feed: &mut Feed, known: &BTreeMap<Key, LastState>) {
    let Some(began) = feed.replay_up_to.take() else {
        return;
    };
    let selector = feed.selector().clone();
    let first = match &selector {
        Selector::Key(key) => Bound::Included(key.as_str()),
        Selector::Prefix(prefix) => Bound::Included(prefix.as_str()),
    };
    let from = known.range::<str, _>((first, Bound::Unbounded));
    for (key, known) in from.take_while(|(key, _)| selector.selects(key)) {
        if known.hub_time <= began {
            feed.send(Sighting::State(key.clone(), known.register.clone()));
        }
    }
}

impl Inner {
    /// Forgets watches of this key that were dropped and, once for so many changes
    /// as there are watches and known keys, all that were dropped.
    fn forget_dropped(&mut self, changed: &Key) {
        self.changes += 1;
        if self.changes >= (self.feeds.count + self.known.len()).max(SUBSCRIBERS_MIN) {
            self.sweep();
        } else {
            self.feeds.forget_dropped_of(changed);
        }
    }

    /// Forgets watches that were dropped, and the keys that only they selected; the
    /// watched prefixes.
    fn sweep(&mut self) -> Vec<String> {
        self.changes = 0;
        self.feeds.forget_dropped();
        let Feeds {
            by_key, by_prefix, ..
        } = &self.feeds;
        let prefixes = by_prefix.iter().filter_map(|feed| match feed.selector() {
            Selector::Prefix(prefix) => Some(prefix.clone()),
            Selector::Key(_) => None,
        });
        let mut prefixes: Vec<_> = prefixes.collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        let below = |key: &Key| {
            let mut prefixes = prefixes.iter();
            prefixes.any(|prefix| key.as_str().starts_with(prefix))
        };
        self.known
            .retain(|key, _| by_key.contains_key(key) || below(key));
        // Keys that are watched by themselves are as many as their watches. Those
        // whose watches were dropped are watched by a prefix alone from now on.
        let gone = self
            .known
            .iter()
            .filter(|(key, known)| known.register.is_none() && !by_key.contains_key(*key));
        self.tombstones = gone
            .map(|(key, known)| (known.hub_time, key.clone()))
            .collect();
        self.drop_oldest_tombstones();
        prefixes
    }

    /// Forgets the oldest of too many tombstones.
    fn drop_oldest_tombstones(&mut self) {
        while self.tombstones.len() > TOMBSTONES_MAX {
            let Some((_, key)) = self.tombstones.pop_first() else {
                return;
            };
            // It may have come to be watched by itself since.
            if !self.feeds.by_key.contains_key(&key) {
                self.known.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn register(version: u64) -> Register {
        Register {
            value: b"value".as_slice().into(),
            version: at(version),
            stamp: None,
        }
    }

    fn at(version: u64) -> Version {
        Version::from_u64(version)
    }

    fn followed() -> (Hub, Key, Watch) {
        let hub = Hub::default();
        let key = Key::new("key").expect("a key");
        let watch = hub.subscribe(Selector::Key(key.clone()));
        (hub, key, watch)
    }

    fn known(hub: &Hub) -> Option<Version> {
        hub.interest().keys.pop().expect("a key").version
    }

    #[test]
    fn tombstones_below_a_prefix_have_a_limit() {
        let hub = Hub::default();
        let _watch = hub.subscribe(Selector::Prefix("beats/".into()));
        let named = |n: u64| Key::new(&format!("beats/{n}")).expect("a key");
        let own = named(0);
        let _own = hub.subscribe(Selector::Key(own.clone()));
        let keys = TOMBSTONES_MAX as u64 + 100;
        for n in 0..keys {
            assert!(hub.publish(&named(n), register(2 * n + 1)));
            assert!(hub.publish_gone(&named(n), at(2 * n + 1)));
            // Late news of what has just gone is known to be old.
            assert!(!hub.publish(&named(n), register(2 * n)));
        }
        let inner = hub.lock();
        assert_eq!(inner.known.len(), TOMBSTONES_MAX + 1);
        assert_eq!(inner.tombstones.len(), TOMBSTONES_MAX);
        assert!(inner.known.contains_key(&own), "it is followed by itself");
        assert!(!inner.known.contains_key(&named(1)), "the oldest");
        drop(inner);
        // Nobody looks for what is known to be gone, but for what is followed
        // by itself and for what is there.
        assert!(hub.publish(&named(1), register(9 * keys)));
        let interest = hub.interest();
        let followed: Vec<_> = interest.keys.iter().map(|it| it.key.clone()).collect();
        assert_eq!(followed, [own, named(1)]);
    }

    #[test]
    fn followers_that_have_gone_are_forgotten_though_nobody_fetches() {
        let hub = Hub::default();
        hub.mark_up();
        let named = |n: u64| Key::new(&format!("key-{n}")).expect("a key");
        let all = hub.subscribe(Selector::Prefix("key-".into()));
        for n in 0..1_000 {
            let watch = hub.subscribe(Selector::Key(named(n)));
            assert!(hub.publish(&named(n), register(n + 1)));
            drop(watch);
            let feeds = hub.lock().feeds.count;
            assert!(feeds <= 2 * SUBSCRIBERS_MIN, "{feeds} followers");
        }
        assert_eq!(hub.lock().known.len(), 1_000, "followed by their prefix");
        drop(all);
        // With as many changes, and with enough new ones.
        for _ in 0..2_000 {
            hub.publish(&named(0), register(2_000));
        }
        assert_eq!(hub.lock().feeds.count, 0);
        assert!(hub.lock().known.is_empty());
        let watches: Vec<_> = (0..64)
            .map(|_| hub.subscribe(Selector::Key(named(0))))
            .collect();
        assert!(hub.lock().known.len() <= 1, "what nobody follows");
        drop(watches);
    }

    #[tokio::test]
    async fn a_follower_that_comes_while_the_line_is_down_hears_of_what_is_known() {
        let (hub, key, _watch) = followed();
        assert!(hub.publish(&key, register(5)));
        let mut late = hub.subscribe(Selector::Key(key.clone()));
        // It is fetched, and nothing has changed.
        assert!(hub.fetched(&hub.interest(), &key, Some(register(5))));
        hub.mark_up();
        assert_eq!(late.next().await, Sighting::Live);
        let heard = tokio::time::timeout(Duration::from_secs(20), late.next()).await;
        assert_eq!(heard, Ok(Sighting::State(key, Some(register(5)))));
    }

    #[test]
    fn what_changed_while_nobody_watched_is_asked_for() {
        let (hub, key, watch) = followed();
        assert!(hub.publish(&key, register(5)));
        drop(watch);
        // The task that tells of changes may not have heard that the watch is gone.
        assert!(hub.publish(&key, register(6)));
        let _again = hub.subscribe(Selector::Key(key));
        let interest = hub.interest();
        assert!(!interest.keys.first().expect("a key").reported);
    }

    #[test]
    fn late_news_is_told_from_versions_that_went_back() {
        let (hub, key, _watch) = followed();
        assert!(hub.publish(&key, register(5)));
        let before = hub.interest();
        assert!(hub.publish(&key, register(6)));
        // Read before 6 was written, and told after.
        assert!(!hub.fetched(&before, &key, Some(register(5))));
        assert_eq!(known(&hub), Some(at(6)));
        // Read after 6 was known: it has gone back.
        assert!(hub.fetched(&hub.interest(), &key, Some(register(3))));
        assert_eq!(known(&hub), Some(at(3)));
        assert!(hub.publish(&key, register(4)));
        assert!(!hub.publish(&key, register(2)));
    }

    #[test]
    fn what_was_read_before_a_deletion_does_not_rise_again() {
        let (hub, key, _watch) = followed();
        assert!(hub.publish(&key, register(5)));
        let before = hub.interest();
        assert!(hub.publish_gone(&key, at(5)));
        // Read before it was deleted, and told after: another fetch is due.
        assert!(!hub.fetched(&before, &key, Some(register(5))));
        assert_eq!(known(&hub), None);
        assert!(hub.fetched(&hub.interest(), &key, None));
        assert!(hub.publish(&key, register(6)));
    }

    #[test]
    fn an_absence_that_was_read_earlier_does_not_hide_what_was_made_since() {
        let (hub, key, _watch) = followed();
        let before = hub.interest();
        assert!(hub.publish(&key, register(5)));
        assert!(!hub.fetched(&before, &key, None));
        assert_eq!(known(&hub), Some(at(5)));
        // Somebody else deleted it: read after it was known.
        assert!(hub.fetched(&hub.interest(), &key, None));
        assert_eq!(known(&hub), None);
    }

    #[test]
    fn a_late_deletion_does_not_hide_what_was_made_after_it() {
        let (hub, key, _watch) = followed();
        assert!(hub.publish(&key, register(5)));
        // Written by this process; the deletion before it is heard of later.
        assert!(hub.publish(&key, register(7)));
        assert!(!hub.publish_gone(&key, at(5)));
        assert!(!hub.publish_gone(&key, at(6)));
        assert_eq!(known(&hub), Some(at(7)));
        assert!(hub.publish_gone(&key, at(8)));
        assert_eq!(known(&hub), None);
        // An older state of what is gone.
        assert!(!hub.publish(&key, register(7)));
        assert!(hub.publish(&key, register(9)));
        assert_eq!(known(&hub), Some(at(9)));
    }

    #[cfg(any(feature = "consul", feature = "etcd", feature = "kubernetes"))]
    #[test]
    fn an_absence_with_a_version_is_judged_by_it() {
        let (hub, key, _watch) = followed();
        assert!(hub.publish(&key, register(5)));
        let before = hub.interest();
        assert!(hub.publish(&key, register(7)));
        hub.fetched_gone(&before, &key, &at(6));
        assert_eq!(known(&hub), Some(at(7)));
        hub.fetched_gone(&before, &key, &at(8));
        assert_eq!(known(&hub), None);
    }
}
