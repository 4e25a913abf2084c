//! The simulated store, and what is asked of it.

use std::collections::BTreeMap;

use tenure_core::cas::{Register, Registers, Write};
use tenure_core::ids::{Key, Name, Version};
use tenure_election::Call;
use tenure_group::{NodeId, View};

use super::checkers::HeartbeatRecord;
use crate::clock::TrueTime;
use crate::kernel::StoreDamage;

/// What is asked of the store.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Read(Key),
    List(String),
    Page(String, Option<Key>),
    Write(Write),
    Delete(Key, Version),
}

/// A question on its way.
#[derive(Clone, Debug)]
pub(super) struct GroupStoreCall {
    pub(super) p: usize,
    pub(super) life: u32,
    /// The id under which it was sent.
    pub(super) id: NodeId,
    pub(super) call: Call,
    pub(super) op: Op,
    pub(super) slow: bool,
    /// It is on its way past whatever cuts its sender off.
    pub(super) held: bool,
}

/// A line over which changes are told to one agent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupStoreWatch {
    pub(super) up: bool,
    /// News come in order.
    pub(super) last: TrueTime,
}

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) registers: Registers,
    pub(super) lines: Vec<GroupStoreWatch>,
    /// Until when it is down, and whether it says so.
    pub(super) outage: Option<(TrueTime, bool)>,
    /// The same for single agents.
    pub(super) cuts: Vec<Option<(TrueTime, bool)>>,
    /// What it has lost, and may give out once more.
    pub(super) store_damage: StoreDamage<Books>,
    /// All of it, as it was once.
    pub(super) backup: Option<BTreeMap<Key, Register>>,
}

/// What checkers know of a second copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    pub(super) views: BTreeMap<Name, View>,
    pub(super) heartbeats: BTreeMap<NodeId, HeartbeatRecord>,
}
