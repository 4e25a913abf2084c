//! A server's disk, and the log on it.
//!
//! The log is the one of production (`tenure_alpo::wal`): real bytes go into
//! files, and what a restarted server makes of them is decided by the same
//! code. Only the files are the simulator's (`files`). Batches wait until
//! the sync before is over, and then all of them go into one group, as the
//! thread that writes does it. A crash comes at any step of that and loses
//! or tears what was not synced; a sync fails, the disk fills up at any byte,
//! an opening is cut short, and a byte rots after it was acknowledged.
//!
//! What the founders agreed on stands in a file of its own, made before the
//! log is.

use std::collections::VecDeque;
use std::mem::take;
use std::time::Duration;

use tenure_alpo::wal::{self, Disk as _, DiskFile as _, Format, Options, Refused, Wal};
use tenure_alpo::{Batch, Entry, Position, Recovered, Snapshot};
use tenure_core::rng::Rng;

use super::files::{DiskFault, FileError, Files};

/// The state that the cluster was founded with.
const FOUNDING: &str = "founding";

/// Why a server cannot start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StartFailure {
    /// The disk failed; it may be tried again.
    Failed,
    /// What is there is refused (H14).
    Refused(Refused),
}

impl From<wal::WalError<FileError>> for StartFailure {
    fn from(error: wal::WalError<FileError>) -> Self {
        match error {
            wal::WalError::Refused(refused) => Self::Refused(refused),
            _ => Self::Failed,
        }
    }
}

impl From<FileError> for StartFailure {
    fn from(_: FileError) -> Self {
        Self::Failed
    }
}

/// What a server found when it started.
pub(super) struct Found {
    pub(super) recovered: Recovered,
    /// A write that never finished was cut.
    pub(super) torn: bool,
    /// The newest snapshot could not be read, and an older one was.
    pub(super) spare: bool,
}

/// A disk.
#[derive(Default)]
pub(super) struct Disk {
    files: Files,
    /// The log, while a process has it open.
    log: Option<Wal<Files>>,
    /// Handed out, not synced.
    waiting: VecDeque<Batch>,
    /// A sync of the batches up to this one is under way.
    begun: Option<u64>,
    /// What its directory owes; see `settings_rollout`.
    pub(super) no_vote_time: Duration,
    /// A byte changed that nobody wrote.
    pub(super) rotten: bool,
}

impl Disk {
    /// Whether there is a log: the server belongs to a cluster.
    pub(super) fn has_log(&self) -> bool {
        wal::list(&self.files).is_ok_and(|listing| listing.has_identity())
    }

    /// Writes down what the founders agreed on.
    pub(super) fn found(&self, state: &[u8]) -> Result<(), FileError> {
        let unfinished = "founding.tmp";
        let mut file = self.files.create(unfinished, 0)?;
        file.write_at(0, state)?;
        file.sync()?;
        self.files.rename(unfinished, FOUNDING)?;
        self.files.sync_names()
    }

    /// Opens the log, or makes it if there is none.
    pub(super) fn open(&mut self, format: Format, options: Options) -> Result<Found, StartFailure> {
        let files = Box::new(self.files.clone());
        let opened = if wal::list(&self.files)?.has_identity() {
            Wal::open(files, format, options)?
        } else {
            let log = Wal::create(files, format, options)?;
            self.log = Some(log);
            return Ok(Found {
                recovered: self.after_founding(Recovered::default())?,
                torn: false,
                spare: false,
            });
        };
        self.log = Some(opened.wal);
        Ok(Found {
            recovered: self.after_founding(opened.recovered)?,
            torn: opened.torn.is_some(),
            spare: opened.spare_used.is_some(),
        })
    }

    /// Before the first snapshot there is what was founded, if anything was.
    fn after_founding(&self, mut recovered: Recovered) -> Result<Recovered, StartFailure> {
        if recovered.snapshot.is_none() && self.files.has(FOUNDING) {
            let mut state = Vec::new();
            self.files.read(FOUNDING, &mut state)?;
            recovered.snapshot = Some(Snapshot {
                last: Position::ZERO,
                bytes: state.into(),
            });
        }
        Ok(recovered)
    }

    /// A copy of what is on it, while no process uses it.
    pub(super) fn copy(&self) -> Self {
        Self {
            files: self.files.copy(),
            ..Self::default()
        }
    }

    /// Makes a log that begins with what was restored.
    pub(super) fn restore(
        &mut self,
        format: Format,
        options: Options,
        batch: Batch,
    ) -> Result<(), StartFailure> {
        let mut log = Wal::create(Box::new(self.files.clone()), format, options)?;
        Ok(log.append(&[batch])?)
    }

    pub(super) fn write(&mut self, batch: Batch) {
        self.waiting.push_back(batch);
    }

    /// Begins a sync of everything that waits, if there is anything and none
    /// is under way. Gives the last batch of it.
    pub(super) fn begin(&mut self) -> Option<u64> {
        if self.begun.is_some() {
            return None;
        }
        self.begun = self.waiting.back().map(|batch| batch.number);
        self.begun
    }

    /// How many bytes wait, about.
    pub(super) fn bytes(&self) -> usize {
        let weigh = |batch: &Batch| {
            let snapshot = batch.snapshot.as_ref().map_or(0, |it| it.bytes.len());
            snapshot + batch.entries.iter().map(Entry::weight).sum::<usize>()
        };
        self.waiting.iter().map(weigh).sum()
    }

    /// The sync comes to its end.
    pub(super) fn sync(&mut self) -> Result<(), wal::WalError<FileError>> {
        let upto = take(&mut self.begun).unwrap_or(0);
        let count = self.waiting.partition_point(|batch| batch.number <= upto);
        let batches: Vec<_> = self.waiting.drain(..count).collect();
        match &mut self.log {
            Some(log) => log.append(&batches),
            None => Err(wal::WalError::Poisoned),
        }
    }

    /// The sync that is under way will fail in some way. Whether that is
    /// because the disk is full.
    pub(super) fn spoil(&self, rng: &mut Rng) -> bool {
        let full = rng.chance(50);
        if full {
            self.files.fill_up(rng.below(700) as usize);
        } else {
            let how = [DiskFault::Refused, DiskFault::Half, DiskFault::Forgotten];
            let how = how[rng.below(3) as usize];
            self.files.fail_after(rng.below(3), how);
        }
        full
    }

    /// The next opening will fail, if it takes some steps.
    pub(super) fn spoil_start(&self, rng: &mut Rng) {
        let how = [DiskFault::Refused, DiskFault::Half][rng.below(2) as usize];
        self.files.fail_after(rng.below(5), how);
    }

    /// Failures are over.
    pub(super) fn repair(&self) {
        self.files.repair();
    }

    /// The process is gone, and perhaps the machine's power. Whether anything
    /// that it wanted to write may be lost.
    pub(super) fn crash(&mut self, rng: &mut Rng) -> bool {
        let loses = !self.waiting.is_empty();
        if self.begun.is_some() {
            if rng.chance(30) {
                // In the middle of a sector, if the process alone dies.
                self.files.fill_up(rng.below(700) as usize);
            } else {
                // A group is a write and a sync; a snapshot and a new
                // segment are more.
                let steps = if rng.chance(70) { 3 } else { 16 };
                let how = [DiskFault::Refused, DiskFault::Half][rng.below(2) as usize];
                self.files.fail_after(rng.below(steps), how);
            }
            // Whether it failed matters to nobody who is left.
            let _ = self.sync();
        }
        self.log = None;
        self.waiting.clear();
        self.files.crash(rng);
        loses
    }

    /// A byte rots of what was acknowledged. Where, if one did.
    pub(super) fn rot(&mut self, rng: &mut Rng) -> Option<(String, usize)> {
        let rotten = self.files.rot(rng);
        self.rotten |= rotten.is_some();
        rotten
    }
}
