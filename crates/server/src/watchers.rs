//! The watchers of registers on this server.
//!
//! Every server tells what it has applied, so watchers need not burden the
//! leader. The event loop only leaves the changes here
//! ([`Watchers::applied`]), however many watch. A task of its own tells the
//! watchers (`watch_dispatch`), a few at a time, and each has a queue of a bounded
//! length (`watch_queue`); one that does not read what it is sent is cut off
//! with TOO_SLOW and may come again from the last revision it has seen.
//!
//! Who has to be told of a change is found by its key: the watchers of that
//! key, and those of each prefix of it that is watched. Others cost
//! nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tenure_core::cas::{Change, Registers};
use tenure_core::ids::Key;
use tokio::sync::Notify;

use super::account::CallerAccount;
use super::watch_queue::{ChangeBatch, SendError, WatchMessage, WatchReceiver, WatchSender, queue};

/// Changes that wait to be told, at most, and the bytes of their values: as
/// many as the machine remembers. Who was not told of what is dropped begins
/// again.
const BACKLOG_MAX: usize = 4_096;
const BACKLOG_BYTES: usize = 32 * 1024 * 1024;

/// What is watched.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Selector {
    Key(Key),
    Prefix(String),
}

impl Selector {
    pub(super) fn selects(&self, key: &Key) -> bool {
        match self {
            Self::Key(wanted) => wanted == key,
            Self::Prefix(prefix) => key.as_str().starts_with(prefix.as_str()),
        }
    }
}

#[derive(Debug)]
struct Watcher {
    selector: Selector,
    /// Up to where it needs not be told: what it was told when it began, or
    /// came with. That may be later than what the others have been told, since
    /// entries are applied first and told after, and later than this server
    /// has come.
    since: u64,
    queue: WatchSender,
}

#[derive(Debug, Default)]
struct Inner {
    watchers: BTreeMap<u64, Watcher>,
    by_key: HashMap<Key, BTreeSet<u64>>,
    by_prefix: BTreeMap<String, BTreeSet<u64>>,
    next: u64,
    /// Up to where changes were taken from the machine.
    revision: u64,
    backlog: Backlog,
}

/// Changes that nobody was told of yet.
#[derive(Debug, Default)]
struct Backlog {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// Changes up to this one were dropped, or never were here.
    lost: Option<u64>,
}

/// What is to be told next.
#[derive(Debug)]
pub(super) struct PendingChanges {
    /// Who has not been told up to this revision has missed changes.
    pub(super) lost: Option<u64>,
    pub(super) changes: Vec<Arc<Change>>,
}

/// All watchers of one server.
#[derive(Debug)]
pub(super) struct Watchers {
    inner: Mutex<Inner>,
    most: usize,
    more: Notify,
}

/// Removes a watcher when it is dropped.
#[derive(Debug)]
pub(super) struct WatcherGuard {
    watchers: Weak<Watchers>,
    id: u64,
}

impl Drop for WatcherGuard {
    fn drop(&mut self) {
        if let Some(watchers) = self.watchers.upgrade() {
            watchers.lock().remove(self.id);
        }
    }
}

impl Watchers {
    pub(super) fn new(most: usize) -> Self {
        Self {
            inner: Mutex::default(),
            most,
            more: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine starts with this state.
    pub(super) fn begin(&self, registers: &Registers) {
        self.lock().revision = registers.revision();
    }

    /// The state was replaced as a whole: everybody begins again who has not
    /// heard of all that is in it.
    pub(super) fn restart(&self, registers: &Registers) {
        let mut inner = self.lock();
        let revision = registers.revision();
        let known = std::mem::replace(&mut inner.revision, revision);
        if known < revision {
            inner.backlog.lose(revision);
            self.more.notify_one();
        }
    }

    /// Entries were applied: what has changed is told from here, by
    /// [`dispatch`](Self::dispatch).
    pub(super) fn applied(&self, registers: &Registers) {
        let mut inner = self.lock();
        let known = std::mem::replace(&mut inner.revision, registers.revision());
        if known == registers.revision() || inner.watchers.is_empty() {
            return;
        }
        // A server that catches up applies more at once than is remembered.
        // Who needs none of what is forgotten goes on.
        let oldest = registers.remembered_from();
        if known < oldest {
            inner.backlog.lose(oldest);
        }
        let Ok(changes) = registers.changes_after(known.max(oldest)) else {
            unreachable!("all after {oldest} are remembered");
        };
        for change in changes {
            inner.backlog.push(change);
        }
        self.more.notify_one();
    }

    /// Waits until there is something to tell.
    pub(super) async fn more(&self) {
        self.more.notified().await;
    }

    /// So many of the changes that nobody was told of yet, the oldest first.
    pub(super) fn pending(&self, most: usize) -> Option<PendingChanges> {
        let mut inner = self.lock();
        let Backlog {
            changes,
            bytes,
            lost,
        } = &mut inner.backlog;
        let most = most.min(changes.len());
        let pending = PendingChanges {
            lost: lost.take(),
            changes: changes.drain(..most).collect(),
        };
        *bytes -= pending.changes.iter().map(|it| it.bytes()).sum::<usize>();
        (pending.lost.is_some() || !pending.changes.is_empty()).then_some(pending)
    }

    /// A new watcher, which knows all that has changed up to `since`; `None`
    /// if there are as many as there may be.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        selector: Selector,
        since: u64,
        counted: Arc<CallerAccount>,
    ) -> Option<(WatchReceiver, WatcherGuard)> {
        let mut inner = self.lock();
        if inner.watchers.len() >= self.most {
            return None;
        }
        let (queue, news) = queue(counted);
        let id = inner.add(Watcher {
            selector,
            since,
            queue,
        });
        let watchers = Arc::downgrade(self);
        Some((news, WatcherGuard { watchers, id }))
    }

    /// Which of all that is watched has this key.
    pub(super) fn selecting(&self, key: &Key) -> Vec<Selector> {
        let inner = self.lock();
        let exact = inner.by_key.contains_key(key);
        let exact = exact.then(|| Selector::Key(key.clone()));
        exact.into_iter().chain(inner.prefixes(key)).collect()
    }

    /// Those who watch this.
    pub(super) fn watchers(&self, selector: &Selector) -> Vec<u64> {
        let inner = self.lock();
        let ids = match selector {
            Selector::Key(key) => inner.by_key.get(key),
            Selector::Prefix(prefix) => inner.by_prefix.get(prefix),
        };
        ids.into_iter().flatten().copied().collect()
    }

    /// Tells these of what is new to them. How many were cut off because they
    /// do not read.
    pub(super) fn send(&self, watchers: &[u64], batch: &Arc<ChangeBatch>) -> u64 {
        let mut inner = self.lock();
        let mut cut_off = 0;
        for id in watchers {
            let Some(watcher) = inner.watchers.get(id) else {
                continue;
            };
            let Some(batch) = ChangeBatch::after(batch, watcher.since) else {
                continue;
            };
            if let Err(why) = watcher.queue.send(WatchMessage::Changes(batch)) {
                cut_off += u64::from(why == SendError::CutOff);
                inner.remove(*id);
            }
        }
        cut_off
    }

    /// Changes up to `lost` cannot be told any more. Looks at `most` watchers,
    /// from number `from` on, for those who were not told of them: they are to
    /// begin again. Where to go on, if there are more.
    pub(super) fn forget_before(&self, lost: u64, from: u64, most: usize) -> Option<u64> {
        let mut inner = self.lock();
        let revision = inner.revision;
        let some = inner.watchers.range(from..).take(most);
        let (ids, late): (Vec<_>, Vec<_>) = some.map(|(id, it)| (*id, it.since < lost)).unzip();
        for (id, _) in ids.iter().zip(&late).filter(|(_, late)| **late) {
            if let Some(watcher) = inner.watchers.get(id) {
                let _ = watcher.queue.send(WatchMessage::Gap(revision));
            }
            inner.remove(*id);
        }
        ids.last()
            .filter(|_| ids.len() == most)
            .map(|last| last + 1)
    }
}

impl Backlog {
    fn push(&mut self, change: &Change) {
        self.bytes += change.bytes();
        self.changes.push_back(Arc::new(change.clone()));
        while self.changes.len() > BACKLOG_MAX || self.bytes > BACKLOG_BYTES {
            let Some(dropped) = self.changes.pop_front() else {
                break;
            };
            self.bytes -= dropped.bytes();
            self.lost = Some(dropped.revision);
        }
    }

    /// Nothing up to this revision can be told any more.
    fn lose(&mut self, revision: u64) {
        *self = Self {
            lost: Some(revision),
            ..Self::default()
        };
    }
}

impl Inner {
    fn add(&mut self, watcher: Watcher) -> u64 {
        let id = self.next;
        self.next += 1;
        let ids = match &watcher.selector {
            Selector::Key(key) => self.by_key.entry(key.clone()).or_default(),
            Selector::Prefix(prefix) => self.by_prefix.entry(prefix.clone()).or_default(),
        };
        ids.insert(id);
        self.watchers.insert(id, watcher);
        id
    }

    fn remove(&mut self, id: u64) {
        let Some(watcher) = self.watchers.remove(&id) else {
            return;
        };
        match &watcher.selector {
            Selector::Key(key) => {
                if let Some(ids) = self.by_key.get_mut(key)
                    && ids.remove(&id)
                    && ids.is_empty()
                {
                    self.by_key.remove(key);
                }
            }
            Selector::Prefix(prefix) => {
                if let Some(ids) = self.by_prefix.get_mut(prefix)
                    && ids.remove(&id)
                    && ids.is_empty()
                {
                    self.by_prefix.remove(prefix);
                }
            }
        }
    }

    /// The beginnings of this key that are followed, the longest first.
    ///
    /// They are among those that are not after it in order. The last of these
    /// is one, or it has no more in common with the key than those that are
    /// left can have: so what it has in common is the next to look for.
    fn prefixes(&self, key: &Key) -> impl Iterator<Item = Selector> {
        let key = key.as_str();
        let mut upto = Bound::Included(key);
        std::iter::from_fn(move || {
            loop {
                let before = (Bound::Unbounded, upto);
                let (last, _) = self.by_prefix.range::<str, _>(before).next_back()?;
                let common = common(last, key);
                if common == last.len() {
                    upto = Bound::Excluded(&key[..common]);
                    return Some(Selector::Prefix(last.clone()));
                }
                upto = Bound::Included(&key[..common]);
            }
        })
    }
}

/// How many bytes two texts have in common at the beginning, in whole
/// characters.
fn common(one: &str, other: &str) -> usize {
    let pairs = one.chars().zip(other.chars());
    let same = pairs.take_while(|(one, other)| one == other);
    same.map(|(it, _)| it.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use super::super::watch_queue::tests::counted;
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).expect("a key")
    }

    #[test]
    fn a_change_finds_those_who_follow_its_key_and_each_beginning_of_it() {
        let watchers = Arc::new(Watchers::new(100));
        let prefixes = [
            "", "a", "a/", "a/b", "a/b/c", "a/b/ca", "a/a", "a0", "b", "é", "a/é", "a/è/x", "a/b/d",
        ];
        let mut seats = Vec::new();
        for prefix in prefixes {
            let prefix = Selector::Prefix(prefix.into());
            seats.extend(watchers.subscribe(prefix, 0, counted()));
        }
        for text in [
            "a", "a/b", "a/b/c", "a/b/cb", "a/é/1", "a/è", "é", "c", "b/a",
        ] {
            let selector = Selector::Key(key(text));
            seats.extend(watchers.subscribe(selector, 0, counted()));
            for text in [text.to_owned(), format!("{text}/more"), format!("{text}é")] {
                let mut found = watchers.selecting(&key(&text));
                found.sort();
                let exact = Selector::Key(key(&text));
                let exact = (!watchers.watchers(&exact).is_empty()).then_some(exact);
                let begins = prefixes.iter().filter(|it| text.starts_with(**it));
                let begins = begins.map(|it| Selector::Prefix((*it).into()));
                let mut wanted: Vec<_> = exact.into_iter().chain(begins).collect();
                wanted.sort();
                assert_eq!(found, wanted, "{text}");
            }
        }
        drop(seats);
        assert_eq!(watchers.selecting(&key("a/b/c")), []);
        let inner = watchers.lock();
        assert!(inner.by_key.is_empty() && inner.by_prefix.is_empty());
    }
}
