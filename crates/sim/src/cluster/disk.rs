//! A server's disk: what was synced stays, what was not may be lost or torn.
//!
//! Batches wait in order until their sync is over. A crash in between keeps
//! some prefix of them, and of the first one that was not kept whole perhaps
//! a part, in the order in which its parts are written. Now and then a disk
//! is full, a sync fails, or a record rots after it was acknowledged; then
//! the server stops, and what its log promised decides whether it may start
//! again.

use std::collections::VecDeque;

use tenure_core::alpo::{Batch, LogId, Recovered};
use tenure_core::rng::Rng;

/// What a disk holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    synced: Recovered,
    /// Handed out, not synced.
    waiting: VecDeque<Batch>,
    /// A record that was acknowledged can be read no more.
    pub(super) rotten: Option<LogId>,
}

impl Disk {
    pub(super) fn founded(recovered: Recovered) -> Self {
        Self {
            synced: recovered,
            ..Self::default()
        }
    }

    pub(super) fn write(&mut self, batch: Batch) {
        self.waiting.push_back(batch);
    }

    /// The last batch that waits.
    pub(super) fn last_waiting(&self) -> Option<u64> {
        self.waiting.back().map(|batch| batch.number)
    }

    /// Batches up to `number` are on disk.
    pub(super) fn sync(&mut self, number: u64) {
        while let Some(batch) = self.waiting.pop_front_if(|batch| batch.number <= number) {
            apply(&mut self.synced, batch);
        }
    }

    /// The process is gone. Returns whether anything unsynced was lost.
    pub(super) fn crash(&mut self, rng: &mut Rng) -> bool {
        let kept = rng.between(0, self.waiting.len() as u64);
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        for batch in waiting.by_ref().take(kept as usize) {
            apply(&mut self.synced, batch);
        }
        match waiting.next() {
            Some(batch) => {
                apply(&mut self.synced, torn(batch, rng));
                true
            }
            None => false,
        }
    }

    /// An acknowledged entry rots, if there is one. It must not be the last:
    /// damage there cannot be told from a write that was torn.
    pub(super) fn rot(&mut self, rng: &mut Rng) -> bool {
        let entries = &self.synced.entries;
        if entries.len() < 2 {
            return false;
        }
        let index = rng.below(entries.len() as u64 - 1) as usize;
        self.rotten = Some(entries[index].id);
        true
    }

    /// What a restarted server reads. `None` if the damage is such that it
    /// must not start (H14); with `cut` it makes the best of what is left.
    pub(super) fn read(&mut self, cut: bool) -> Option<Recovered> {
        if let Some(rotten) = self.rotten {
            if !cut {
                return None;
            }
            self.synced.entries.retain(|entry| entry.id < rotten);
            self.rotten = None;
        }
        Some(self.synced.clone())
    }
}

/// A batch of which only the first parts reached the disk.
fn torn(mut batch: Batch, rng: &mut Rng) -> Batch {
    match rng.below(4) {
        0 => Batch::default(),
        1 => {
            batch.snapshot = None;
            batch.reset = false;
            batch.truncate = None;
            batch.entries.clear();
            batch
        }
        2 => {
            batch.entries.clear();
            batch
        }
        _ => {
            let kept = rng.below(batch.entries.len() as u64 + 1);
            batch.entries.truncate(kept as usize);
            batch
        }
    }
}

/// What a batch does to what is on disk, in the order of its parts.
fn apply(disk: &mut Recovered, batch: Batch) {
    let Batch {
        hard,
        snapshot,
        reset,
        truncate,
        entries,
        ..
    } = batch;
    if let Some(hard) = hard {
        disk.hard = hard;
    }
    if let Some(snapshot) = snapshot {
        let upto = snapshot.last.id;
        disk.entries.retain(|entry| !reset && entry.id > upto);
        disk.snapshot = Some(snapshot);
    }
    if let Some(from) = truncate {
        disk.entries.retain(|entry| entry.id < from);
    }
    let covered = disk.snapshot.as_ref().map_or(0, |s| s.last.id);
    for entry in entries {
        if entry.id > covered {
            disk.entries.push(entry);
        }
    }
}
