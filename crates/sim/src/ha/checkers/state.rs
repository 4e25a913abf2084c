//! What has been seen of the registers, and what each life of an agent was shown.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::ids::Name;
use tenure_group::{Event, NodeId, Order, View};

use super::check::Finding;
use crate::clock::TrueTime;

/// Who wrote, and under which id.
#[derive(Clone, Copy, Debug)]
pub(in crate::ha) struct Writer {
    pub(in crate::ha) p: usize,
    pub(in crate::ha) id: NodeId,
}

/// What has been seen of the registers.
#[derive(Debug, Default)]
pub(in crate::ha) struct CheckerState {
    pub(in crate::ha) views: BTreeMap<Name, View>,
    pub(in crate::ha) heartbeats: BTreeMap<NodeId, HeartbeatRecord>,
    /// Every node that has ever been a member.
    pub(in crate::ha) members: BTreeSet<NodeId>,
    /// Whose heartbeat was ever lost, or swapped to dead.
    pub(in crate::ha) gone: BTreeSet<NodeId>,
    /// When the last beat took effect that anybody may be granted a lease for,
    /// in whichever copy of the store.
    pub(in crate::ha) landed: BTreeMap<NodeId, TrueTime>,
}

/// What is known of one register.
#[derive(Clone, Debug)]
pub(in crate::ha) struct HeartbeatRecord {
    pub(in crate::ha) sequence: u64,
    /// When the last beat took effect.
    pub(in crate::ha) beat_at: TrueTime,
    pub(in crate::ha) dead: bool,
    pub(in crate::ha) exists: bool,
}

impl CheckerState {
    /// A node was granted its lease from `start` on.
    pub(in crate::ha) fn granted(&self, id: Option<NodeId>, start: TrueTime) -> Finding {
        let landed = id.and_then(|id| self.landed.get(&id));
        match landed {
            Some(landed) if start > *landed => Err(format!(
                "it counts from {start}, but its last beat took effect at {landed}"
            )),
            _ => Ok(()),
        }
    }
}

/// What one life of an agent was shown.
#[derive(Clone, Debug, Default)]
pub(in crate::ha) struct Floors {
    /// The highest epoch.
    pub(in crate::ha) floor: u64,
    /// The last view: its epoch and its workloads.
    pub(in crate::ha) last: Option<(u64, Vec<Name>)>,
    /// What it was told of a lost view since then.
    pub(in crate::ha) told: Option<Vec<Name>>,
}

impl Floors {
    /// The agent hears of an event.
    pub(in crate::ha) fn hear(&mut self, event: &Event) {
        if let Event::ViewLost { workloads, .. } = event {
            self.told = Some(workloads.clone());
        }
    }

    /// The node has a fence for a workload.
    pub(in crate::ha) fn fence(&self, order: &Order) -> Finding {
        if order.fence >= self.floor {
            return Ok(());
        }
        Err(format!(
            "{} gets fence {}, though epoch {} was seen",
            order.name, order.fence, self.floor
        ))
    }
}
