//! A machine with a server on it: its disk, its clock, its process.

use tenure_alpo::{
    Bootstrap, ClusterId, Identity, KnownStarts, MemberDisks, Node, ServerId, Start, StorageId,
};
use tenure_core::time::{Instant, Now, WallTime};

use super::disk::Disk;

/// One machine.
pub(super) struct Host {
    pub(super) id: ServerId,
    pub(super) storage: StorageId,
    pub(super) disk: Disk,
    /// Its cluster, once it has one.
    pub(super) cluster: ClusterId,
    /// It was told to found a cluster with others.
    pub(super) founder: bool,
    /// The process, if one runs and looks for its cluster.
    pub(super) bootstrap: Option<Bootstrap>,
    /// With whom it has promised to found a cluster; on its disk.
    pub(super) promised: Option<MemberDisks>,
    /// The process, if one runs and has a cluster.
    pub(super) node: Option<Node>,
    /// Counts processes; what was meant for an earlier one is dropped.
    pub(super) epoch: u64,
    /// How far its clock is ahead, in nanoseconds.
    offset: u64,
    /// How fast it is, in parts per million off.
    rate: i64,
    /// It is started under the settings of before; see `settings_rollout`.
    pub(super) old: bool,
    /// A sync is under way that takes until then.
    pub(super) stalled_until: u64,
    /// Until when a thread makes a state of a snapshot, and of which process.
    pub(super) decodes_until: (u64, u64),
    /// The process does nothing until then.
    pub(super) paused_until: u64,
    /// The next time it is woken, in true time.
    pub(super) wake_at: u64,
    /// How many starts its disk has seen.
    pub(super) starts: u64,
    /// Which start the process is.
    pub(super) start: Start,
    /// What the process remembers of the disks of others.
    pub(super) memory: KnownStarts,
    /// Its disk is new, and it is not known to be a member with it.
    pub(super) fresh: bool,
    /// It must not start again: its disk is damaged.
    pub(super) dead: bool,
    /// It never starts again: its machine is gone, or it has found that its
    /// number went to another disk.
    pub(super) lost: bool,
    /// Of a removed disk: a bit for each number whose connections end at it.
    pub(super) connected: u64,
}

impl Host {
    pub(super) fn new(id: ServerId, offset: u64, rate: i64) -> Self {
        Self {
            id,
            storage: StorageId::from_u128(u128::from(id.get())),
            disk: Disk::default(),
            cluster: ClusterId::from_u128(1),
            founder: false,
            bootstrap: None,
            promised: None,
            node: None,
            epoch: 0,
            offset,
            rate,
            old: false,
            stalled_until: 0,
            decodes_until: (0, 0),
            paused_until: 0,
            wake_at: u64::MAX,
            starts: 0,
            start: Start::default(),
            memory: KnownStarts::default(),
            fresh: false,
            dead: false,
            lost: false,
            connected: 0,
        }
    }

    /// Another machine under the same number, whose disk is still to be made.
    pub(super) fn after(old: &Self) -> Self {
        Self {
            cluster: old.cluster,
            epoch: old.epoch + 1,
            old: old.old,
            ..Self::new(old.id, old.offset, old.rate)
        }
    }

    /// Until when a thread of this process makes a state of a snapshot.
    pub(super) fn decodes_until(&self) -> Option<u64> {
        let (epoch, until) = self.decodes_until;
        (self.node.is_some() && epoch == self.epoch).then_some(until)
    }

    pub(super) fn identity(&self) -> Identity {
        Identity {
            cluster: self.cluster,
            server: self.id,
            storage: self.storage,
        }
    }

    /// Its clock at a true time.
    pub(super) fn now(&self, true_time: u64) -> Now {
        let skew = i128::from(true_time) * i128::from(self.rate) / 1_000_000;
        let local = i128::from(true_time) + skew + i128::from(self.offset);
        Now {
            boot: Instant::from_nanos(local as u64),
            wall: WallTime::default(),
        }
    }

    /// The first true time at which its clock has reached `local`.
    pub(super) fn true_time(&self, local: Instant) -> u64 {
        if local == Instant::MAX {
            return u64::MAX;
        }
        let past = i128::from(local.as_nanos()) - i128::from(self.offset);
        let time = past * 1_000_000 / (1_000_000 + i128::from(self.rate));
        // Rounding may come out a nanosecond or two early.
        (time.max(0) as u64).saturating_add(2)
    }
}
