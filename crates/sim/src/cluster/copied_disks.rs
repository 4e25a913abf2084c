//! Disks that are set back, or shared by two processes: what is planned, and what is
//! remembered of it.

use tenure_alpo::{DiskProgress, StorageId};
use tenure_core::rng::Rng;

use super::disk::Disk;
use super::swarm::Swarm;

/// What is copied and put back in a run.
pub(super) struct SetBackDisks {
    /// Of its own, so that worlds without it stay as they were.
    pub(super) rng: Rng,
    /// Whether a disk is to be set back in this world.
    pub(super) wanted: bool,
    pub(super) disk_copy: Option<DiskCopy>,
    /// The server whose disk was put back and that has not met others since.
    pub(super) returned: Option<usize>,
}

/// A copy.
pub(super) struct DiskCopy {
    /// Of whose disk.
    pub(super) server: usize,
    pub(super) disk: Disk,
    /// How many starts it knows. One that is put back by a machine that keeps
    /// that count elsewhere knows all of them, and only lacks what was written.
    pub(super) starts: Option<u64>,
    /// How far it has come: what the server found on it when it was started
    /// again.
    pub(super) reached: Option<DiskProgress>,
}

impl SetBackDisks {
    pub(super) fn new(seed: u64, swarm: &Swarm) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0x5e7b_ac0c);
        let kinds = swarm.kinds;
        // Another disk may be lost for good in the others.
        let fits = swarm.founders >= 3 && !kinds.members && !kinds.rot && kinds.crashes;
        Self {
            wanted: fits && !swarm.blank && rng.chance(60),
            rng,
            disk_copy: None,
            returned: None,
        }
    }

    /// Whether this server starts on a disk that was just put back. It must
    /// meet the others before those that remember forget.
    pub(super) fn returns(&self, server: usize) -> bool {
        self.returned == Some(server)
    }
}

/// Who shares a disk in a run.
pub(super) struct ClonedProcesses {
    /// Of its own, so that worlds without it stay as they were.
    pub(super) rng: Rng,
    /// Whether a disk is to be copied in this world.
    pub(super) wanted: bool,
    /// The disk that was.
    pub(super) of: Option<StorageId>,
    /// The two, while both are there.
    pub(super) pair: Option<ProcessPair>,
}

/// Two processes.
#[derive(Clone, Copy)]
pub(super) struct ProcessPair {
    /// In the place of its number.
    pub(super) first: usize,
    /// Behind the others.
    pub(super) second: usize,
    /// When one of them goes at the latest.
    pub(super) until: u64,
    /// A bit for each number whose server has let in both.
    pub(super) both: u64,
}

impl ClonedProcesses {
    pub(super) fn new(seed: u64, swarm: &Swarm, set_back_disks: &SetBackDisks) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0xc10e_0002);
        let kinds = swarm.kinds;
        // Nothing else may happen to the two.
        let calm = !kinds.members && !kinds.rot && !kinds.disks && !kinds.stalls;
        let fits = swarm.founders >= 3 && calm && !kinds.settings && !swarm.blank;
        Self {
            wanted: fits && !set_back_disks.wanted && rng.chance(60),
            rng,
            of: None,
            pair: None,
        }
    }
}
