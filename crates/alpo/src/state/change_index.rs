//! Which changes of registers came by which entries.
//!
//! Changes are counted (their *revision*); registers carry the id of the entry
//! that wrote them. A client that knows only the latter, from a read or from a
//! write of its own, can watch from there all the same: this index says how
//! many changes there were after an entry. Like the changes themselves it goes
//! back a while and is no part of a snapshot.

use alloc::collections::VecDeque;

use tenure_core::cas::TooOld;

use super::super::ids::LogId;

/// After which entries the registers were changed how often.
#[derive(Clone, Debug)]
pub(super) struct ChangeIndex {
    /// Entries that changed something, and the revision after each.
    steps: VecDeque<(LogId, u64)>,
    most: usize,
}

impl ChangeIndex {
    /// Begins after entry `id`, when there had been `revision` changes, and
    /// goes back at most `most` entries that changed something.
    pub(super) fn begin(id: LogId, revision: u64, most: usize) -> Self {
        Self {
            steps: VecDeque::from([(id, revision)]),
            most: most.max(1),
        }
    }

    /// Entry `id` was applied; there are `revision` changes by now.
    pub(super) fn applied(&mut self, id: LogId, revision: u64) {
        if self.steps.back().is_some_and(|(_, last)| *last == revision) {
            return;
        }
        if self.steps.len() >= self.most {
            self.steps.pop_front();
        }
        self.steps.push_back((id, revision));
    }

    /// How many changes there were after entry `id`.
    pub(super) fn revision_at(&self, id: LogId) -> Result<u64, TooOld> {
        let later = self.steps.partition_point(|(at, _)| *at <= id);
        let last = later.checked_sub(1).and_then(|at| self.steps.get(at));
        last.map(|(_, revision)| *revision).ok_or(TooOld)
    }
}
