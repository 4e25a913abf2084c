//! What a watch sends before it sends changes, a page at a time.
//!
//! To make it all at once would hold up the machine for as long as the
//! registers are many, for each watch. So each page is a read of the state of its own
//! ([`ServerHandle::inspect_in_turn`](super::handle::ServerHandle::inspect_in_turn)).
//! The stream asks for it when it has sent the page before; nothing is held meanwhile.
//!
//! Registers change between two reads. So a page begins with what has changed
//! since the one before among the registers that were told already: after
//! each page these are as they were at its revision. After the last one all
//! are, and the watcher is added in the same read. A client that reads so
//! slowly that the machine forgets changes between two reads begins again.
//!
//! A place that is too old to go on from (compacted) is refused with
//! `COMPACTED`, and the client lists again. A watch from a place is the same where everything was told already.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_alpo::{LogId, Node};
use tenure_core::cas::{Register, Registers};
use tenure_core::ids::Key;

use super::account::CallerAccount;
use super::watch_queue::WatchReceiver;
use super::watchers::{Selector, WatcherGuard, Watchers};

/// Registers of one page, at most.
const REGISTERS_MAX: usize = 250;
/// Changes that one read goes through, at most.
const CHANGES_MAX: usize = 500;
/// After how many bytes of values a page takes nothing more; the first always
/// fits.
const PAGE_BYTES: usize = 64 * 1024;
/// Registers that were told, and deleted before the last page, at most.
const DELETED_MAX: usize = 4_096;

/// After what a watch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StartAfter {
    /// So many changes. One from the future is waited for: this server lags
    /// behind the one that told it.
    Revision(u64),
    /// This entry of the log.
    Id(LogId),
}

/// Why no watch can begin there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WatchError {
    /// There are too many watchers.
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

/// Some of what a watch tells before it follows.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct InitialPage {
    /// In the order in which they are to be taken; a register may be there
    /// twice. `None`: it was deleted.
    pub(super) registers: Vec<(Key, Option<Register>)>,
    /// Up to which revision everything has been told.
    pub(super) revision: u64,
    /// Whether it is about how the registers are, and not about changes after
    /// a place.
    pub(super) initial: bool,
    /// Whether it is the last of these.
    pub(super) began: bool,
}

/// What comes of a read.
#[derive(Debug)]
pub(super) struct PageRead {
    pub(super) page: InitialPage,
    /// What is to be told after it.
    pub(super) then: Option<InitialPage>,
    /// Where it goes on, when that was all.
    pub(super) watch_queue: Option<(WatchReceiver, WatcherGuard)>,
}

/// How far a watch has come that does not get changes yet.
#[derive(Debug)]
pub(super) struct WatchStart {
    selector: Selector,
    /// The revision of the first read; `None` if everything was told already.
    first: Option<u64>,
    /// Up to which key the registers were told.
    upto: Option<Key>,
    /// At which revision these were as they were told; `None` before the
    /// first read.
    told: Option<u64>,
    /// Those that were told and are not there any more.
    deleted: BTreeSet<Key>,
}

/// What is left of a page.
struct PageRoom {
    registers: usize,
    changes: usize,
    bytes: usize,
}

impl PageRoom {
    const fn new() -> Self {
        Self {
            registers: REGISTERS_MAX,
            changes: CHANGES_MAX,
            bytes: PAGE_BYTES,
        }
    }

    const fn is_nothing(&self) -> bool {
        self.registers == 0 || self.changes == 0 || self.bytes == 0
    }

    fn take(&mut self, register: Option<&Register>) {
        self.registers = self.registers.saturating_sub(1);
        let bytes = register.map_or(0, |it| it.value.len());
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl WatchStart {
    /// Of a watch of all changes after `after`, or of one that first tells the
    /// state as it is. A `foreign` place was told by another cluster.
    pub(super) fn new(
        node: &Node,
        selector: Selector,
        after: Option<StartAfter>,
        foreign: bool,
    ) -> Result<Self, WatchError> {
        let told = after.map(|after| place(node, after, foreign)).transpose()?;
        let now = node.state().registers().revision();
        Ok(Self {
            selector,
            first: told.is_none().then_some(now),
            upto: None,
            told,
            deleted: BTreeSet::new(),
        })
    }

    /// Takes what comes next, and adds the watcher if that is all.
    ///
    /// # Errors
    /// [`WatchError::TooOld`] or [`WatchError::Full`].
    pub(super) fn inspect(
        &mut self,
        registers: &Registers,
        (watchers, counted): (&Arc<Watchers>, Arc<CallerAccount>),
    ) -> Result<PageRead, WatchError> {
        let now = registers.revision();
        let mut left = PageRoom::new();
        let mut page = InitialPage {
            initial: self.first.is_some(),
            ..InitialPage::default()
        };
        let told = self.changed(registers, (&mut page, &mut left))?;
        self.told = Some(told);
        page.revision = self.first.unwrap_or(told);
        let complete = told >= now && self.more(registers, (&mut page, &mut left));
        let (mut then, mut watch_queue) = (None, None);
        if complete {
            let seat = watchers.subscribe(self.selector.clone(), told, counted);
            watch_queue = Some(seat.ok_or(WatchError::Full)?);
            if page.initial {
                page.began = true;
                page.revision = now;
                then = self.gone(&mut page);
            }
        }
        Ok(PageRead {
            page,
            then,
            watch_queue,
        })
    }

    /// Tells of changes to what was told already; up to which revision that
    /// is all.
    fn changed(
        &mut self,
        registers: &Registers,
        (page, left): (&mut InitialPage, &mut PageRoom),
    ) -> Result<u64, WatchError> {
        let now = registers.revision();
        let Some(mut told) = self.told else {
            return Ok(now);
        };
        let changes = registers.changes_after(told);
        for change in changes.map_err(|_| WatchError::TooOld(now))? {
            if left.is_nothing() {
                return Ok(told);
            }
            told = change.revision;
            left.changes -= 1;
            let (key, register) = (&change.key, &change.register);
            if !self.selector.selects(key) || !self.has_told(key) {
                continue;
            }
            left.take(register.as_ref());
            page.registers.push((key.clone(), register.clone()));
            if self.first.is_some() {
                self.note(key, register.is_none());
                if self.deleted.len() > DELETED_MAX {
                    return Err(WatchError::TooOld(now));
                }
            }
        }
        Ok(told.max(now))
    }

    /// Whether this register, or that there is none, was told.
    fn has_told(&self, key: &Key) -> bool {
        self.first.is_none() || self.upto.as_ref().is_some_and(|upto| key <= upto)
    }

    fn note(&mut self, key: &Key, deleted: bool) {
        if deleted {
            self.deleted.insert(key.clone());
        } else {
            self.deleted.remove(key);
        }
    }

    /// Tells more of the registers; whether that was the rest.
    fn more(
        &mut self,
        registers: &Registers,
        (page, left): (&mut InitialPage, &mut PageRoom),
    ) -> bool {
        if self.first.is_none() {
            return true;
        }
        let prefix = match &self.selector {
            Selector::Key(key) => {
                // The first look has room for it.
                let register = registers.read(key);
                let register = register.map(|it| (key.clone(), Some(it.clone())));
                page.registers.extend(register);
                return true;
            }
            Selector::Prefix(prefix) => prefix,
        };
        let upto = self.upto.clone();
        let mut rest = registers.list_after(prefix, upto.as_ref()).peekable();
        while !left.is_nothing()
            && let Some((key, register)) = rest.next()
        {
            left.take(Some(register));
            page.registers.push((key.clone(), Some(register.clone())));
            self.upto = Some(key.clone());
        }
        rest.peek().is_none()
    }

    /// Releases before this one take no deletion from the pages: it is told
    /// once more, as a change after the last of them.
    fn gone(&mut self, last: &mut InitialPage) -> Option<InitialPage> {
        if self.deleted.is_empty() {
            return None;
        }
        let gone = std::mem::take(&mut self.deleted).into_iter();
        let then = InitialPage {
            registers: gone.map(|key| (key, None)).collect(),
            revision: last.revision,
            ..InitialPage::default()
        };
        // They were there at the first look: this is not before it.
        last.revision -= 1;
        Some(then)
    }
}

/// The revision after which the watch begins.
fn place(node: &Node, after: StartAfter, foreign: bool) -> Result<u64, WatchError> {
    let state = node.state();
    let revision = state.registers().revision();
    let gap = match after {
        StartAfter::Revision(after) => state.gap_of_revision(after),
        StartAfter::Id(id) => state.gap_of_id(id),
    };
    // A cluster that was restored from a backup counts on far above it: so
    // these were told by the one that is lost.
    if gap.is_some() {
        return Err(WatchError::Restored(revision));
    }
    // Another cluster counts its own changes: what is equal is an accident.
    if foreign {
        return Err(WatchError::Foreign);
    }
    match after {
        StartAfter::Revision(after) => Ok(after),
        StartAfter::Id(id) => {
            let applied = state.applied().id;
            if id > applied {
                return Err(WatchError::Behind(applied));
            }
            let after = state.revision_at(id);
            after.map_err(|_| WatchError::TooOld(revision))
        }
    }
}

#[cfg(test)]
mod tests;
