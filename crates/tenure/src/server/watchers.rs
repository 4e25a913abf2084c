//! Those who follow registers on this server.
//!
//! Each has a queue of a bounded length (`following`); one that does not read
//! what it is sent is cut off with TOO_SLOW and may come again from the last
//! revision it has seen. Every server tells what it has applied, so followers need not
//! burden the leader.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::alpo::{LogId, Node};
use tenure_core::cas::{Change, Register};
use tenure_core::ids::Key;

use super::account::Place;
use super::following::{Following, Full, Telling, queue};

/// What to follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Selector {
    Key(Key),
    Prefix(String),
}

impl Selector {
    fn selects(&self, key: &Key) -> bool {
        match self {
            Self::Key(wanted) => wanted == key,
            Self::Prefix(prefix) => key.as_str().starts_with(prefix.as_str()),
        }
    }
}

/// What a follower is told.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// Registers as they are when the watch begins, and whether that is all.
    Initial(Vec<(Key, Register)>, u64, bool),
    /// Changes in the order of effect, up to this revision.
    Changes(Arc<[Change]>, u64),
    /// Revisions are missing: it must begin again, at this one.
    Gap(u64),
}

/// After what to follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    /// So many changes. One from the future is waited for: this server lags
    /// behind the one that told it.
    Revision(u64),
    /// This entry of the log.
    Id(LogId),
}

/// Why nobody can follow from there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoWatch {
    /// There are too many followers.
    Full,
    /// Changes after that are not kept; here it begins now.
    TooOld(u64),
    /// This server has only come to this entry.
    Behind(LogId),
    /// It was told by a cluster that is lost and was restored from a backup;
    /// here it begins now.
    Restored(u64),
    /// It was told by another cluster.
    Foreign,
}

/// A follower's end: what it is told, except changes up to a revision.
pub(super) type Followed = (Following, u64);

#[derive(Debug)]
struct Follower {
    selector: Selector,
    /// Up to where it needs not be told: what it was told when it began, or
    /// came with. That may be later than what the others have been told, since
    /// entries are applied first and told after, and later than this server
    /// has come.
    since: u64,
    queue: Telling,
}

#[derive(Debug, Default)]
struct Inner {
    followers: BTreeMap<u64, Follower>,
    by_key: HashMap<Key, Vec<u64>>,
    by_prefix: Vec<u64>,
    next: u64,
    revision: u64,
}

/// All followers of one server.
#[derive(Debug)]
pub(super) struct Watchers {
    inner: Mutex<Inner>,
    most: usize,
}

/// How many registers go into one message at the beginning.
const INITIAL_MAX: usize = 500;

impl Watchers {
    pub(super) fn new(most: usize) -> Self {
        Self {
            inner: Mutex::default(),
            most,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine starts with this state.
    pub(super) fn begin(&self, node: &Node) {
        self.lock().revision = node.state().registers().revision();
    }

    /// The state was replaced as a whole: everybody begins again who has not
    /// heard of all that is in it.
    pub(super) fn restart(&self, node: &Node) {
        let mut inner = self.lock();
        let revision = node.state().registers().revision();
        let known = std::mem::replace(&mut inner.revision, revision);
        if known < revision {
            inner.forget_before(revision);
        }
    }

    /// A new follower, after `after` or with the state as it is now. A
    /// `foreign` place was told by another cluster.
    pub(super) fn follow(
        &self,
        node: &Node,
        selector: Selector,
        after: Option<After>,
        foreign: bool,
        counted: Arc<Place>,
    ) -> Result<Followed, NoWatch> {
        let registers = node.state().registers();
        let mut inner = self.lock();
        if inner.followers.len() >= self.most {
            inner.sweep();
        }
        if inner.followers.len() >= self.most {
            return Err(NoWatch::Full);
        }
        let revision = registers.revision();
        let after = after.map(|after| place(node, after, foreign)).transpose()?;
        let first = match after {
            Some(after) => {
                let changes = registers.changes_after(after);
                let changes = changes.map_err(|_| NoWatch::TooOld(revision))?;
                let changes = changes.filter(|change| selector.selects(&change.key));
                vec![News::Changes(changes.cloned().collect(), revision)]
            }
            None => initial(node, &selector, revision),
        };
        let (queue, news) = queue(first, counted);
        let since = revision.max(after.unwrap_or(0));
        inner.add(Follower {
            selector,
            since,
            queue,
        });
        Ok((news, after.unwrap_or(0)))
    }

    /// Entries were applied: tells everybody concerned. How many were cut off
    /// because they do not read.
    pub(super) fn applied(&self, node: &Node) -> u64 {
        let registers = node.state().registers();
        let mut inner = self.lock();
        let known = std::mem::replace(&mut inner.revision, registers.revision());
        if known == registers.revision() || inner.followers.is_empty() {
            return 0;
        }
        // A server that catches up applies more at once than is remembered.
        // Who needs none of what is forgotten goes on.
        let oldest = registers.remembered_from();
        if known < oldest {
            inner.forget_before(oldest);
        }
        let Ok(changes) = registers.changes_after(known.max(oldest)) else {
            unreachable!("all after {oldest} are remembered");
        };
        let mut news: BTreeMap<u64, Vec<Change>> = BTreeMap::new();
        for change in changes {
            for follower in inner.concerned(change) {
                news.entry(follower).or_default().push(change.clone());
            }
        }
        let revision = inner.revision;
        let mut cut_off = 0;
        for (id, changes) in news {
            let message = News::Changes(changes.into(), revision);
            let follower = inner.followers.get(&id);
            let told = follower.map_or(Ok(()), |it| it.queue.tell(message));
            if let Err(why) = told {
                cut_off += u64::from(why == Full::CutOff);
                inner.remove(id);
            }
        }
        cut_off
    }
}

/// The revision after which to follow.
fn place(node: &Node, after: After, foreign: bool) -> Result<u64, NoWatch> {
    let state = node.state();
    let revision = state.registers().revision();
    let gap = match after {
        After::Revision(after) => state.gap_of_revision(after),
        After::Id(id) => state.gap_of_id(id),
    };
    // A cluster that was restored from a backup counts on far above it: so
    // these were told by the one that is lost.
    if gap.is_some() {
        return Err(NoWatch::Restored(revision));
    }
    // Another cluster counts its own changes: what is equal is an accident.
    if foreign {
        return Err(NoWatch::Foreign);
    }
    match after {
        After::Revision(after) => Ok(after),
        After::Id(id) => {
            let applied = state.applied().id;
            if id > applied {
                return Err(NoWatch::Behind(applied));
            }
            let after = state.revision_at(id);
            after.map_err(|_| NoWatch::TooOld(revision))
        }
    }
}

fn initial(node: &Node, selector: &Selector, revision: u64) -> Vec<News> {
    let registers = node.state().registers();
    let pair = |(key, register): (&Key, &Register)| (key.clone(), register.clone());
    let all: Vec<_> = match selector {
        Selector::Key(key) => {
            let register = registers.read(key);
            register.map(|it| pair((key, it))).into_iter().collect()
        }
        Selector::Prefix(prefix) => registers.list(prefix).map(pair).collect(),
    };
    let mut pages: Vec<News> = Vec::new();
    let mut rest = &all[..];
    loop {
        let (page, more) = rest.split_at(rest.len().min(INITIAL_MAX));
        pages.push(News::Initial(page.to_vec(), revision, more.is_empty()));
        if more.is_empty() {
            return pages;
        }
        rest = more;
    }
}

impl Inner {
    fn add(&mut self, follower: Follower) {
        let id = self.next;
        self.next += 1;
        match &follower.selector {
            Selector::Key(key) => self.by_key.entry(key.clone()).or_default().push(id),
            Selector::Prefix(_) => self.by_prefix.push(id),
        }
        self.followers.insert(id, follower);
    }

    fn remove(&mut self, id: u64) {
        let Some(follower) = self.followers.remove(&id) else {
            return;
        };
        match &follower.selector {
            Selector::Key(key) => {
                if let Some(ids) = self.by_key.get_mut(key) {
                    ids.retain(|other| *other != id);
                    if ids.is_empty() {
                        self.by_key.remove(key);
                    }
                }
            }
            Selector::Prefix(_) => self.by_prefix.retain(|other| *other != id),
        }
    }

    /// Changes up to this revision are not remembered: who has not been told
    /// of them begins again.
    fn forget_before(&mut self, oldest: u64) {
        let late = self.followers.iter().filter(|(_, it)| it.since < oldest);
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(follower) = self.followers.get(&id) {
                let _ = follower.queue.tell(News::Gap(self.revision));
            }
            self.remove(id);
        }
    }

    /// Forgets those that have gone without anything happening to what they
    /// followed.
    fn sweep(&mut self) {
        let gone = self.followers.iter().filter(|(_, it)| it.queue.is_over());
        for id in gone.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    /// Those who follow it and were not told of it when they began.
    fn concerned(&self, change: &Change) -> Vec<u64> {
        let exact = self.by_key.get(&change.key).into_iter().flatten().copied();
        let prefixed = self.by_prefix.iter().copied();
        let new = |id: &u64| {
            let follower = self.followers.get(id);
            follower
                .is_some_and(|it| it.since < change.revision && it.selector.selects(&change.key))
        };
        exact.chain(prefixed).filter(new).collect()
    }
}
