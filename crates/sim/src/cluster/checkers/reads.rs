//! What is read is what was committed.
//!
//! The committed entries say what every register and the user log held after
//! each of them. A read that its leader answers has to show *one* of these
//! moments: no earlier than what was committed when it was asked, no later
//! than what was committed when it was answered. That is more than an order
//! of all calls (`clients`) asks for, since nobody need have been told of what
//! it must show; the protocol promises it all the same, for whatever was
//! committed before a round began is in the log of who leads that round. It
//! is seen at once, and of pages and of the user log too.
//!
//! A stale read shows the moment that its label says: exactly what was
//! committed up to the entry that it names, and as new as it claims. A watch
//! tells every change once, in order, from where its client was; or it says
//! that they are not kept any more, and then that is true.

use std::collections::BTreeMap;

use tenure_alpo::{Entry, LogId, Query, QueryResult, State};
use tenure_core::cas::{Change, Register};
use tenure_core::ids::Key;

/// What the committed entries have come to, one after another.
#[derive(Default)]
pub(in super::super) struct Past {
    /// What each register held after which entry.
    registers: BTreeMap<Key, Vec<(LogId, Option<Register>)>>,
    /// All changes, and by which entry each came.
    changes: Vec<(LogId, Change)>,
    /// After which entry the user log began and ended where.
    user_log: Vec<(LogId, u64, u64)>,
    /// When each entry was first seen to be committed, in true time.
    times: Vec<u64>,
    /// True time.
    pub(in super::super) now: u64,
}

impl Past {
    /// An entry was applied to `state`, in which there had been `before`
    /// changes of registers.
    pub(super) fn applied(&mut self, entry: &Entry, before: u64, state: &State) {
        self.times.push(self.now);
        for change in state
            .registers()
            .changes_after(before)
            .into_iter()
            .flatten()
        {
            let held = self.registers.entry(change.key.clone()).or_default();
            held.push((entry.id, change.register.clone()));
            self.changes.push((entry.id, change.clone()));
        }
        let user_log = state.user_log();
        let ends = (user_log.first(), user_log.next());
        let known = self.user_log.last().map(|(_, first, next)| (*first, *next));
        if known != Some(ends) {
            self.user_log.push((entry.id, ends.0, ends.1));
        }
    }

    /// How many entries were committed before a true time.
    pub(in super::super) fn committed_before(&self, time: u64) -> LogId {
        self.times.partition_point(|at| *at < time) as LogId
    }

    /// The changes after the first `seen`, and by which entries they came.
    pub(in super::super) fn changes_after(&self, seen: u64) -> &[(LogId, Change)] {
        let seen = usize::try_from(seen).unwrap_or(usize::MAX);
        self.changes.get(seen..).unwrap_or(&[])
    }

    /// How many changes there had been after entry `id`.
    pub(in super::super) fn revision_at(&self, id: LogId) -> u64 {
        self.changes.partition_point(|(by, _)| *by <= id) as u64
    }

    /// How many entries after `after` and up to `upto` changed a register.
    pub(in super::super) fn steps(&self, after: LogId, upto: LogId) -> u64 {
        let within = self.changes.iter().map(|(by, _)| *by);
        let mut ids: Vec<_> = within.filter(|by| after < *by && *by <= upto).collect();
        ids.dedup();
        ids.len() as u64
    }

    /// Whether there was a moment, with at least `from` and at most `to`
    /// entries, at which `query` found this.
    pub(in super::super) fn explains(
        &self,
        (from, to): (LogId, LogId),
        query: &Query,
        found: &QueryResult,
        everything: &State,
    ) -> bool {
        let moments = self.moments(from, to, query);
        match (query, found) {
            (Query::Register(key), QueryResult::Register(told, ..)) => {
                let told = told.as_ref().map(essence);
                let same = |id| self.register(key, id).map(essence) == told;
                moments.into_iter().any(same)
            }
            (
                Query::List {
                    prefix,
                    after,
                    count,
                },
                QueryResult::List {
                    registers, more, ..
                },
            ) => {
                let same = |id| {
                    let all = self.registers.keys().filter(|key| {
                        key.as_str().starts_with(prefix.as_str()) && after.as_ref() < Some(*key)
                    });
                    let mut held = all.filter_map(|key| Some((key, self.register(key, id)?)));
                    let page = held.by_ref().take(*count);
                    let told = registers.iter();
                    let page = page.map(|(key, register)| (key, essence(register)));
                    page.eq(told.map(|(key, register)| (key, essence(register))))
                        && held.next().is_some() == *more
                };
                moments.into_iter().any(same)
            }
            (Query::UserLog { from, count }, QueryResult::UserLog(told)) => moments
                .into_iter()
                .any(|id| self.is_page(id, (*from, *count), told, everything)),
            (Query::Barrier, QueryResult::Barrier(id)) => (from..=to).contains(id),
            _ => false,
        }
    }

    /// After which entries there may be something else to find: the first, and
    /// all after it that changed something of that kind.
    fn moments(&self, from: LogId, to: LogId, query: &Query) -> Vec<LogId> {
        let within = |id: &LogId| from < *id && *id <= to;
        let later: Vec<_> = match query {
            Query::Register(key) => {
                let held = self.registers.get(key).map_or(&[][..], |held| held);
                let begin = held.partition_point(|(id, _)| *id <= from);
                held[begin..].iter().map(|(id, _)| *id).collect()
            }
            Query::List { .. } => {
                let begin = self.changes.partition_point(|(id, _)| *id <= from);
                self.changes[begin..].iter().map(|(id, _)| *id).collect()
            }
            Query::UserLog { .. } => {
                let begin = self.user_log.partition_point(|(id, ..)| *id <= from);
                self.user_log[begin..].iter().map(|(id, ..)| *id).collect()
            }
            Query::Barrier => Vec::new(),
        };
        [from]
            .into_iter()
            .chain(later.into_iter().filter(within))
            .collect()
    }

    /// What a register held after entry `id`.
    fn register(&self, key: &Key, id: LogId) -> Option<&Register> {
        let held = self.registers.get(key)?;
        let until = held.partition_point(|(by, _)| *by <= id);
        held.get(until.checked_sub(1)?)?.1.as_ref()
    }

    /// Whether this is what the user log had from a number on, after entry
    /// `id`.
    fn is_page(
        &self,
        id: LogId,
        (from, count): (u64, usize),
        told: &Result<Vec<(u64, tenure_core::cas::Bytes)>, u64>,
        everything: &State,
    ) -> bool {
        let until = self.user_log.partition_point(|(by, ..)| *by <= id);
        let at = until.checked_sub(1).and_then(|at| self.user_log.get(at));
        let (first, next) = at.map_or((1, 1), |(_, first, next)| (*first, *next));
        match told {
            Err(kept) => from < first && *kept == first,
            Ok(told) => {
                let wanted = next.saturating_sub(from).min(count as u64);
                let all = everything.user_log().read(from).into_iter().flatten();
                from >= first
                    && told.len() as u64 == wanted
                    && told
                        .iter()
                        .map(|(number, bytes)| (*number, bytes))
                        .eq(all.take(told.len()))
            }
        }
    }
}

/// A bound register is as young as its session's last command, which changes
/// nothing else.
fn essence(register: &Register) -> (&tenure_core::ids::Version, &tenure_core::cas::Bytes) {
    (&register.version, &register.value)
}
