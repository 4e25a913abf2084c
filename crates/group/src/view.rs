//! The view (§1): the one register that says which nodes a group has and which of
//! them is to run what.
//!
//! It is changed by compare-and-swap alone, so every node sees the same sequence
//! of views. What follows from a view does not depend on which node computes it.
//! It holds ids, places and digests. Configs and commands live in registers of
//! their own, because a register is at most 256 KiB.
//!
//! A workload has one [`Place`] at any time:
//!
//! ```text
//!              undeploy                      n has reaped it, or is dead
//!  assigned(n) ────────> releasing(n → nowhere) ────────> gone
//!      │  ^  move, drain                     the same
//!      │  └──────────── releasing(n → m) ───────────────> assigned(m)
//!      │ n dies                              no node fits       a node fits
//!      └──────────────> assigned(chosen)  or  waiting ──────> assigned(m)
//! ```
//!
//! Only `n` itself, after its processes are reaped, or `n`'s death may take a
//! workload away from `n`. All other nodes may only ask, by *releasing*.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use tenure_core::cas::Bytes;
use tenure_core::ids::Name;

use super::{Digest, NodeId};

/// The most nodes of a group.
pub const MEMBERS_MAX: usize = 256;
/// The most labels of a node, and the most that a workload may ask for.
pub const LABELS_MAX: usize = 16;
/// The most instances of a workload.
pub const INSTANCES_MAX: u32 = 10_000;
/// How many departures a view remembers.
pub const DEPARTURES_MAX: usize = 8;
/// The most digests that are marked at a time.
pub const MARKS_MAX: usize = 32;

/// Serials of attempts begin here. A node of an earlier release begins below, and keeps
/// the serials of others as they are: so a line of the view says whether its
/// node keeps the rules of `content.rs`.
pub(super) const SERIALS: u64 = 1 << 62;

/// Who is in a group and runs what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Which group.
    pub group: Name,
    /// Grows by one with every view. The fence that workloads are handed.
    pub epoch: u64,
    /// How many HA nodes the group needs before any HA workload runs; 0 and
    /// 1 are met by any node that looks.
    pub quorum: u32,
    /// Whether the load of a dead node is spread over all survivors, not on one.
    pub spread: bool,
    /// The nodes, in the order in which they joined.
    pub members: Vec<Member>,
    /// The latest nodes that went, oldest first.
    pub departures: Vec<Departure>,
    /// The workloads by name.
    pub workloads: BTreeMap<Name, Assignment>,
    /// Digests whose content is about to be deleted (§1.11). No workload has
    /// one of them.
    pub marks: BTreeSet<Digest>,
}

/// A node of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The incarnation.
    pub id: NodeId,
    /// Its name for people.
    pub name: Name,
    /// Whether it counts for the quorum and may take over.
    pub ha: bool,
    /// Whether it is on its way out: it gets nothing new, and hands on what
    /// it has.
    pub draining: bool,
    /// How long it may be silent before it can be judged dead.
    pub lease: Duration,
    /// The most workloads it takes over; `None` is any number.
    pub max: Option<u32>,
    /// How many of its commands have gone into the view, so that after an
    /// unknown outcome it can tell which of them did.
    pub serial: u64,
    /// Its labels, such as `zone=a`, sorted.
    pub labels: Vec<Name>,
}

impl Member {
    /// Whether it has all these labels.
    pub fn satisfies(&self, needs: &[Name]) -> bool {
        needs.iter().all(|need| self.labels.contains(need))
    }
}

/// A node that went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    /// Which.
    pub id: NodeId,
    /// Whether it died, rather than left.
    pub died: bool,
}

/// A workload in a view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Names its config and command.
    pub digest: Digest,
    /// How many of it to run, from 1 to [`INSTANCES_MAX`].
    pub instances: u32,
    /// Whether it outlives its node and needs the quorum.
    pub ha: bool,
    /// Its place in the order of starts on one node: lower ones first.
    pub order: u32,
    /// How many nodes in a row could not start it.
    pub fails: u32,
    /// The labels that a node must have to run it, sorted.
    pub needs: Vec<Name>,
    /// Where.
    pub place: Place,
}

/// Where a workload is to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On this node.
    Assigned(NodeId),
    /// On this node still, which is asked to end it.
    Releasing {
        /// Who has it.
        from: NodeId,
        /// Who gets it then.
        to: Target,
    },
    /// Nowhere, until a node fits.
    Waiting,
}

/// Where a released workload goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To this node.
    Node(NodeId),
    /// To any node that fits when it is released.
    Anyone,
    /// Nowhere: it is undeployed.
    Nowhere,
}

impl Place {
    /// Who may be running it: the one node that must be asked, or be dead,
    /// before another node does.
    pub const fn holder(&self) -> Option<NodeId> {
        match self {
            Self::Assigned(node) | Self::Releasing { from: node, .. } => Some(*node),
            Self::Waiting => None,
        }
    }

    /// Every node on which it takes up room.
    pub(crate) fn claims(&self) -> impl Iterator<Item = NodeId> + use<> {
        let next = match self {
            Self::Releasing {
                to: Target::Node(node),
                ..
            } => Some(*node),
            _ => None,
        };
        self.holder().into_iter().chain(next)
    }
}

/// What a user wants to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Its name, unique in the group.
    pub name: Name,
    /// Names its config and command.
    pub digest: Digest,
    /// How many of it.
    pub instances: u32,
    /// Whether it outlives its node and needs the quorum.
    pub ha: bool,
    /// Its place in the order of starts on one node.
    pub order: u32,
    /// The labels that a node must have to run it.
    pub needs: Vec<Name>,
    /// What the digest names. It is written before the view names it; `None`
    /// if something else takes care of that.
    pub content: Option<Bytes>,
}

impl Spec {
    /// One instance, HA, with no wishes.
    pub const fn new(name: Name, digest: Digest) -> Self {
        Self {
            name,
            digest,
            instances: 1,
            ha: true,
            order: 0,
            needs: Vec::new(),
            content: None,
        }
    }
}

impl View {
    /// The highest epoch that a node writes. What is read is twice as high
    /// (`codec`), so that no node writes what no node can read.
    pub const EPOCH_MAX: u64 = 1 << 62;

    /// No node and no workload; its epoch is one before the first.
    pub const fn empty(group: Name, quorum: u32, spread: bool) -> Self {
        Self {
            group,
            epoch: 0,
            quorum,
            spread,
            members: Vec::new(),
            departures: Vec::new(),
            workloads: BTreeMap::new(),
            marks: BTreeSet::new(),
        }
    }

    /// A node of the group.
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// How many nodes count for the quorum.
    pub fn voters(&self) -> usize {
        self.members.iter().filter(|member| member.ha).count()
    }

    /// Whether HA workloads may run.
    pub fn has_quorum(&self) -> bool {
        self.voters() as u64 >= u64::from(self.quorum)
    }

    /// What `node` may be running, by name.
    pub fn held_by(&self, node: NodeId) -> impl Iterator<Item = (&Name, &Assignment)> {
        let held =
            move |(_, assignment): &(&Name, &Assignment)| assignment.place.holder() == Some(node);
        self.workloads.iter().filter(held)
    }
}
