//! The task that sends watchers what has changed.
//!
//! It runs beside the event loop, on the same thread, and lets
//! others have their turn after each slice of its work: what a commit costs
//! the machine does not grow with the watchers. While it tells of some
//! changes others pile up, and it tells of these together: many watchers
//! are told in larger pieces, not ever later.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use tenure_core::cas::Change;
use tokio::task::yield_now;

use super::watch_queue::{ChangeBatch, HeldValues};
use super::watchers::{Selector, Watchers};

/// Changes that are told together, at most.
const TOGETHER_MAX: usize = 1_000;
/// After so much work, in watchers that are told and in changes that are
/// looked at, others have their turn.
const SLICE: usize = 128;

/// What is left of the slice.
struct Slice(usize);

impl Slice {
    async fn spend(&mut self, work: usize) {
        self.0 += work;
        if self.0 >= SLICE {
            self.0 = 0;
            yield_now().await;
        }
    }
}

impl Watchers {
    /// Tells all watchers of what changes, for as long as the server runs.
    /// Counts those that are cut off because they do not read.
    pub(super) async fn dispatch(self: Arc<Self>, cut_off: Counter) {
        let (mut slice, held) = (Slice(0), HeldValues::default());
        loop {
            self.more().await;
            while let Some(pending) = self.pending(TOGETHER_MAX) {
                if let Some(lost) = pending.lost {
                    self.send_gap(lost, &mut slice).await;
                }
                let Some(last) = pending.changes.last() else {
                    continue;
                };
                let revision = last.revision;
                for (selector, changes) in self.sorted(&pending.changes, &mut slice).await {
                    slice.spend(changes.len()).await;
                    let batch = Arc::new(ChangeBatch::new(changes, revision, &held));
                    for some in self.watchers(&selector).chunks(SLICE) {
                        cut_off.inc_by(self.send(some, &batch));
                        slice.spend(some.len()).await;
                    }
                }
            }
        }
    }

    async fn send_gap(&self, lost: u64, slice: &mut Slice) {
        let mut from = Some(0);
        while let Some(at) = from {
            from = self.forget_before(lost, at, SLICE);
            slice.spend(SLICE).await;
        }
    }

    /// Which of these changes each of those are about that are followed.
    async fn sorted(
        &self,
        changes: &[Arc<Change>],
        slice: &mut Slice,
    ) -> BTreeMap<Selector, Vec<Arc<Change>>> {
        let mut sorted: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for change in changes {
            let selecting = self.selecting(&change.key);
            slice.spend(1 + selecting.len()).await;
            for selector in selecting {
                sorted.entry(selector).or_default().push(Arc::clone(change));
            }
        }
        sorted
    }
}
