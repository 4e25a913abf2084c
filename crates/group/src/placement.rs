//! Which node takes over, its placement (§5): a pure function of the view and of the
//! dead node's id. Labels select nodes, as a nodeSelector does; there is no
//! anti-affinity.
//!
//! Every node that reads the same view computes the same answer, so it does not
//! matter which of them writes it. A group has one of two rules:
//!
//! * **one node** (the default): the live HA nodes sorted by id, and of them the
//!   one at FNV-1a 64 of the dead node's id, *unsigned*, modulo their number.
//!   (The Java ancestor took a signed hash and could go negative.) A workload
//!   that does not fit there goes to the next node round the ring.
//! * **spread**: each workload goes where its name and the node's id hash
//!   highest (*rendezvous hashing*, Thaler and Ravishankar 1998). So a dead
//!   node's load is spread over all survivors, and a node that joins or leaves
//!   moves nothing but its own.

use alloc::vec::Vec;

use tenure_core::fnv::fnv1a;
use tenure_core::ids::Name;

use super::view::{Assignment, Member, View};
use super::{Bug, NodeId, Plant};

/// How high a node bids for a workload. FNV alone differs too little between
/// inputs that differ in their last bytes; a finaliser mixes that away.
fn bid(workload: &Name, node: NodeId) -> u64 {
    let mut x = fnv1a(
        workload
            .as_str()
            .bytes()
            .chain(node.to_u128().to_be_bytes()),
    );
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Chooses nodes in one view, keeping count of what it has given away.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// The candidates, sorted by id, with how many workloads each has.
    ring: Vec<(Member, u64)>,
    spread: bool,
}

impl Placement {
    /// Chooses among the HA nodes of `view` that are not leaving, except
    /// `not`.
    pub(crate) fn new(view: &View, not: Option<NodeId>, plant: Plant) -> Self {
        let eligible = |member: &&Member| {
            let ha = member.ha || plant.is(Bug::SuccessorWithoutHa);
            ha && !member.draining && Some(member.id) != not
        };
        let members = view.members.iter().filter(eligible);
        let mut ring: Vec<(Member, u64)> = members.map(|member| (member.clone(), 0)).collect();
        if !plant.is(Bug::UnsortedSuccessors) {
            ring.sort_by_key(|(member, _)| member.id);
        }
        let mut chooser = Self {
            ring,
            spread: view.spread,
        };
        for assignment in view.workloads.values() {
            for node in assignment.place.claims() {
                chooser.count(node);
            }
        }
        chooser
    }

    fn count(&mut self, node: NodeId) {
        if let Some((_, load)) = self.ring.iter_mut().find(|(member, _)| member.id == node) {
            *load += 1;
        }
    }

    /// Who takes over `workload` after `former`; `None` if no node may.
    pub(crate) fn placement(
        &mut self,
        former: NodeId,
        workload: &Name,
        assignment: &Assignment,
    ) -> Option<NodeId> {
        if self.ring.is_empty() {
            return None;
        }
        let hash = fnv1a(former.to_u128().to_be_bytes());
        let first = (hash % self.ring.len() as u64) as usize;
        self.choose(first, workload, assignment)
    }

    /// Who takes over after `former`, which is alive and could not start it:
    /// the next one round the ring.
    pub(crate) fn next_after(&mut self, former: NodeId, assignment: &Assignment) -> Option<NodeId> {
        let first = self.ring.partition_point(|(member, _)| member.id <= former);
        let chosen = self.walk(first, assignment)?;
        self.count(chosen);
        Some(chosen)
    }

    /// The same, for workloads that no node had: each by itself.
    pub(crate) const fn spreading(mut self) -> Self {
        self.spread = true;
        self
    }

    fn choose(&mut self, first: usize, workload: &Name, assignment: &Assignment) -> Option<NodeId> {
        let chosen = if self.spread {
            let fits = self.ring.iter().filter(|entry| fits(entry, assignment));
            let bids = fits.map(|(member, _)| (bid(workload, member.id), member.id));
            bids.max().map(|(_, id)| id)
        } else {
            self.walk(first, assignment)
        }?;
        self.count(chosen);
        Some(chosen)
    }

    /// The first that fits, round the ring from `first` on.
    fn walk(&self, first: usize, assignment: &Assignment) -> Option<NodeId> {
        let (before, after) = self.ring.split_at(first.min(self.ring.len()));
        let mut round = after.iter().chain(before);
        round
            .find(|entry| fits(entry, assignment))
            .map(|(member, _)| member.id)
    }
}

/// Whether a node has room and the labels that a workload needs.
fn fits((member, load): &(Member, u64), assignment: &Assignment) -> bool {
    let room = member.max.is_none_or(|max| *load < u64::from(max));
    room && member.satisfies(&assignment.needs)
}
