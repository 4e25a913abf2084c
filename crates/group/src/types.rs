//! The inputs and outputs of a node of a group.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use tenure_core::call::{Call, Failure};
use tenure_core::cas::{Bytes, Reading, Register, Write};
use tenure_core::ids::{Key, Name, Version};
use tenure_core::time::Instant;
use tenure_election::Grant;

use super::edit::{Refusal, Request};
use super::{Digest, NodeId};

/// Ties the news of a workload to the order it was begun by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run(pub u64);

/// What the user of a node may ask of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Change the group; answered by [`Event::Done`] or [`Event::Refused`]
    /// with the same ticket.
    Ask {
        /// To be named in the answer.
        ticket: u64,
        /// What is asked.
        request: Request,
    },
    /// Tell people this of the node, with the next heartbeats; at most
    /// [`STATUS_BYTES_MAX`](super::STATUS_BYTES_MAX), the rest is cut.
    Status(Bytes),
    /// Move all HA workloads to others, then leave.
    Drain,
    /// End everything and leave, taking it all along: nothing fails over.
    Leave,
}

/// Some registers of a store, without their values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyPage {
    /// Keys and versions, sorted by key.
    pub registers: Vec<(Key, Version)>,
    /// Whether there are more after them.
    pub more: bool,
}

/// What the world tells a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A read has ended.
    Read {
        /// Which.
        call: Call,
        /// How.
        result: Result<Reading, Failure>,
    },
    /// A list has ended: every register whose key begins so.
    Listed {
        /// Which.
        call: Call,
        /// How.
        result: Result<Vec<(Key, Register)>, Failure>,
    },
    /// A page has been read.
    Paged {
        /// Which.
        call: Call,
        /// How.
        result: Result<KeyPage, Failure>,
    },
    /// A compare-and-swap has ended.
    Wrote {
        /// Which.
        call: Call,
        /// How: the new version, or the failure.
        result: Result<Version, Failure>,
    },
    /// A deletion has ended.
    Deleted {
        /// Which.
        call: Call,
        /// How.
        result: Result<(), Failure>,
    },
    /// A watch has seen this state of a register, at some time past.
    Seen {
        /// Which register.
        key: Key,
        /// Its state, `None` if it did not exist.
        register: Option<Register>,
    },
    /// The watch reports changes (`true`), or must be made up for by polling.
    WatchUp(bool),
    /// The workload runs.
    Started {
        /// By which order.
        run: Run,
    },
    /// The workload has ended and everything of it is reaped: because it was
    /// told to, or by itself, or because it could not be started (`failed`).
    Ended {
        /// By which order.
        run: Run,
        /// Why, if it did not end because it was told to.
        failed: Option<Arc<str>>,
    },
    /// The user wants something.
    Command(Command),
}

/// An order to run a workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// To be named in its news.
    pub run: Run,
    /// Which workload.
    pub name: Name,
    /// Names its config and command.
    pub digest: Digest,
    /// How many instances.
    pub instances: u32,
    /// What to attach to every effect: grows whenever the workload moves.
    pub fence: u64,
    /// Until when it may run, whatever happens; moved by every
    /// [`Event::Beat`].
    pub kill_at: Instant,
}

/// What a node asks of the world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Read this register; answer by [`Input::Read`].
    Read {
        /// To be named in the answer.
        call: Call,
        /// Which register.
        key: Key,
        /// After this the answer is not wanted any more.
        within: Duration,
    },
    /// List these registers; answer by [`Input::Listed`].
    List {
        /// To be named in the answer.
        call: Call,
        /// What their keys begin with.
        prefix: String,
        /// After this the answer is not wanted any more.
        within: Duration,
    },
    /// List some of these registers, in the order of their keys, as many as
    /// fit into one page; answer by [`Input::Paged`].
    Page {
        /// To be named in the answer.
        call: Call,
        /// What their keys begin with.
        prefix: String,
        /// The last key that is not wanted.
        after: Option<Key>,
        /// After this the answer is not wanted any more.
        within: Duration,
    },
    /// Carry out this compare-and-swap, once; answer by [`Input::Wrote`].
    Write {
        /// To be named in the answer.
        call: Call,
        /// The compare-and-swap.
        write: Write,
        /// After this the answer is not wanted any more.
        within: Duration,
    },
    /// Delete this register if it has this version; answer by
    /// [`Input::Deleted`].
    Delete {
        /// To be named in the answer.
        call: Call,
        /// Which register.
        key: Key,
        /// What it must hold.
        version: Version,
        /// After this the answer is not wanted any more.
        within: Duration,
    },
    /// Start a workload; say [`Input::Started`] when it runs.
    Deploy(Order),
    /// Stop a workload; say [`Input::Ended`] when it is reaped.
    Undeploy {
        /// By which order it was begun.
        run: Run,
    },
    /// Kill a workload, now; say [`Input::Ended`] when it is reaped.
    Kill {
        /// By which order it was begun.
        run: Run,
    },
    /// Tell the user.
    Event(Event),
}

/// Why a node ends everything and comes back under another id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Why {
    /// No heartbeat was confirmed in time.
    Unconfirmed,
    /// Its heartbeat register says that it is dead.
    JudgedDead,
    /// Its heartbeat register is not there any more.
    Forgotten,
    /// The view does not have it any more.
    Removed,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unconfirmed => "no beat was confirmed in time",
            Self::JudgedDead => "its heartbeat register says that it is dead",
            Self::Forgotten => "its heartbeat register is gone",
            Self::Removed => "the view does not have it any more",
        })
    }
}

/// What the user of a node is told, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The node is in the view.
    Joined {
        /// Under this id.
        id: NodeId,
        /// Whether another node has the same name (a duplicate node name). Earlier ids of
        /// this node are not counted.
        namesake: bool,
    },
    /// A heartbeat was confirmed: what runs may run for longer.
    Beat {
        /// The deadlines of the work: to stop, to be killed, and the end of the lease.
        grant: Grant,
    },
    /// The node ends everything and joins again under another id.
    Fenced {
        /// The id it gives up.
        id: NodeId,
        /// Why.
        why: Why,
    },
    /// The view is gone from the store, or an older copy of it is back. What
    /// a group is to run stands there alone, so it has to be restored or
    /// deployed again.
    ViewLost {
        /// The epoch that was known before.
        epoch: u64,
        /// The epoch of the older copy; `None` if there is no view.
        found: Option<u64>,
        /// The workloads that were in it and are not any more.
        workloads: Vec<Name>,
    },
    /// The group has its quorum: HA workloads run.
    QuorumAttained {
        /// How many nodes count.
        nodes: usize,
        /// How many are needed.
        quorum: u32,
    },
    /// The group has lost its quorum: HA workloads are stopped, and keep their places.
    QuorumLost {
        /// How many nodes count.
        nodes: usize,
        /// How many are needed.
        quorum: u32,
    },
    /// Another node has joined.
    NodeJoined {
        /// Which.
        id: NodeId,
        /// Its name.
        name: Name,
    },
    /// Another node has left cleanly.
    NodeLeft {
        /// Which.
        id: NodeId,
        /// Its name.
        name: Name,
    },
    /// Another node has died, and its HA workloads were handed over.
    NodeDied {
        /// Which.
        id: NodeId,
        /// Its name.
        name: Name,
    },
    /// This node has begun to take over what a dead one ran.
    FailoverBegun {
        /// The dead one.
        from: NodeId,
        /// How many workloads.
        workloads: usize,
    },
    /// All that this node took over from a dead one runs.
    FailoverCompleted {
        /// The dead one.
        from: NodeId,
    },
    /// A workload that was taken over would not start; it is tried again.
    FailoverFailed {
        /// The dead one.
        from: NodeId,
        /// Which workload.
        name: Name,
    },
    /// A workload runs on this node.
    Deployed {
        /// Which.
        name: Name,
        /// Its fence.
        fence: u64,
    },
    /// A workload does not run on this node any more.
    Undeployed {
        /// Which.
        name: Name,
    },
    /// A workload would not start, or ended by itself; it is tried again.
    StartFailed {
        /// Which.
        name: Name,
        /// How many times in a row.
        in_a_row: u32,
        /// Why.
        why: Arc<str>,
    },
    /// A request is in the view.
    Done {
        /// Its ticket.
        ticket: u64,
    },
    /// A request was refused.
    Refused {
        /// Its ticket.
        ticket: u64,
        /// Why.
        why: Refusal,
    },
    /// The node cannot be part of this group, and has ended.
    Excluded {
        /// Why.
        why: Refusal,
    },
    /// The store failed, or a register cannot be read. The node goes on.
    Trouble {
        /// How.
        failure: Failure,
        /// How many times in a row.
        in_a_row: u32,
    },
    /// The store answers again, whatever it is asked.
    Recovered,
    /// The node has left.
    Stopped,
}
