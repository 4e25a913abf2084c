//! What a node that was restarted may go on from (§7).
//!
//! The grant of an earlier incarnation is a time of the clock that it read. On
//! another boot, or in another time namespace, that time means nothing: a grant
//! that is over would look as if it had hours left. The same holds for the times
//! that are sent to a guardian which that incarnation has started and which reads
//! its clock. So a node goes on, and a guardian is kept, only on one clock.

use alloc::collections::BTreeMap;

use tenure_core::ids::Name;
use tenure_core::time::{ClockId, Instant};
use tenure_election::Grant;

use super::reconcile::Job;
use super::{Bug, NodeId, Plant};

/// What a restarted node may go on from: its old incarnation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResumeState {
    /// Its id.
    pub id: NodeId,
    /// The grant of its last heartbeat, on the clock of this boot.
    pub grant: Grant,
    /// What its guardian kept running.
    pub jobs: BTreeMap<Name, Job>,
}

/// Whether the clock that a former incarnation has noted is the one that is read now.
/// A boot id that is foreign or cannot be read proves nothing: two processes
/// that cannot read theirs need not be shown one clock.
pub fn is_one_clock(noted: Option<ClockId>, read: Option<ClockId>, plant: Plant) -> bool {
    let reported = noted.is_some() && noted == read;
    reported || plant.is(Bug::BootTrusted)
}

/// Whether a node may go on from an incarnation that has noted this clock and whose
/// last grant was this one, `now` on the clock that is read.
pub fn may_resume(
    noted: Option<ClockId>,
    read: Option<ClockId>,
    now: Instant,
    grant: &Grant,
    plant: Plant,
) -> bool {
    is_one_clock(noted, read, plant) && now < grant.kill_at
}
