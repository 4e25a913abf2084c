//! A server with its disk: what was synced stays, what was not is lost.

use std::collections::VecDeque;

use tenure_alpo::{
    Batch, ClusterId, Config, HardState, Identity, LogId, Node, Recovered, ServerId, State,
    StorageId,
};
use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_core::time::Instant;

use crate::args::Outcome;

pub(crate) struct Host {
    pub(crate) id: ServerId,
    pub(crate) config: Config,
    pub(crate) storage: StorageId,
    /// The disk that its connections greet with.
    pub(crate) greets: StorageId,
    /// The state before the first entry.
    pub(crate) blank: State,
    pub(crate) disk: Disk,
    /// The process, if one runs.
    pub(crate) node: Option<Node>,
    /// The process does nothing, and nothing reaches it.
    pub(crate) paused: bool,
    /// Its disk waits for the script to sync it.
    pub(crate) slow: bool,
    /// How often it was started.
    pub(crate) lives: u64,
}

/// What a disk holds, and what it was only told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) synced: Recovered,
    pub(crate) waiting: VecDeque<Batch>,
}

impl Host {
    pub(crate) fn start(&mut self, now: Instant) -> Outcome<()> {
        let identity = Identity {
            cluster: ClusterId::from_u128(1),
            server: self.id,
            storage: self.storage,
        };
        self.lives += 1;
        let owed = &mut self.disk.synced.no_vote_time;
        *owed = (*owed).max(self.config.no_vote_time());
        let rng = Rng::from_seed(self.id.get() * 1_000 + self.lives);
        let node = Node::start(
            self.config.clone(),
            identity,
            self.disk.synced.clone(),
            self.blank.clone(),
            rng,
            now,
        )?;
        self.node = Some(node);
        self.paused = false;
        Ok(())
    }

    /// What servers must agree on, or they do not talk.
    pub(crate) fn settings(&self) -> (std::time::Duration, bool, bool) {
        let config = &self.config;
        (
            config.election_timeout,
            config.lease_reads,
            config.fast_detection,
        )
    }
}

impl Disk {
    /// Batches up to `number` are on disk.
    pub(crate) fn sync(&mut self, number: u64) {
        while let Some(batch) = self.waiting.pop_front_if(|batch| batch.number <= number) {
            self.apply(batch);
        }
    }

    /// What it held when its log ended with entry `upto`.
    pub(crate) fn restore(&mut self, upto: LogId) {
        let disk = &mut self.synced;
        disk.entries.retain(|entry| entry.id <= upto);
        let term = disk.entries.last().map_or(Term::ZERO, |entry| entry.term);
        disk.hard = HardState {
            term,
            last_reign: term,
            vote: None,
        };
    }

    /// What a batch does to what is on disk, in the order of its parts.
    fn apply(&mut self, batch: Batch) {
        let disk = &mut self.synced;
        disk.hard = batch.hard.unwrap_or(disk.hard);
        if let Some(snapshot) = batch.snapshot {
            let upto = snapshot.last.id;
            disk.entries.retain(|entry| !batch.reset && entry.id > upto);
            disk.snapshot = Some(snapshot);
        }
        if let Some(from) = batch.truncate {
            disk.entries.retain(|entry| entry.id < from);
        }
        let covered = disk.snapshot.as_ref().map_or(0, |s| s.last.id);
        let new = batch.entries.into_iter();
        disk.entries.extend(new.filter(|entry| entry.id > covered));
    }
}
