//! Deliberate mistakes, so that the checkers can prove themselves.
//!
//! Each is a one-line switch at the place in production code where the
//! mistake would really be made; the feature `planted-bugs` compiles them in.

use tenure_core::bugs;

bugs! {
    /// A silent node is taken out of the view without its heartbeat register
    /// being swapped first.
    DeathInOneStep,
    /// A verdict stands although a fresh read shows another beat.
    StaleVerdict,
    /// The successor starts a workload that its holder has only been asked to
    /// release.
    SuccessorBeforeRelease,
    /// A node that passed its own deadline takes a late success for a grant.
    Revival,
    /// A beat that finds no register creates it.
    HeartbeatCreates,
    /// A node that joins under a new id keeps what ran under the old one.
    AdoptAcross,
    /// Successors are chosen from the nodes in the order of joining.
    UnsortedSuccessors,
    /// The grant is counted from the answer to a beat, not from before it
    /// was sent.
    DeadlineFromEnd,
    /// Neither node nor judge allow for clocks that run at other rates.
    DriftForgotten,
    /// A workload is released before its processes are reaped.
    ReleaseUnreaped,
    /// A node leaves the view before its processes are reaped.
    LeaveUnreaped,
    /// A node that leaves cleanly is treated like one that died.
    LeaveFailsOver,
    /// Nodes that are not HA count for the quorum.
    QuorumOfAll,
    /// A node that is not HA may be successor.
    SuccessorWithoutHa,
    /// A workload that fails over runs in one instance.
    InstancesForgotten,
    /// What was being moved when its node died is forgotten.
    MovesForgotten,
    /// A judge that is told by its watch that its own verdict has landed
    /// waits for others a second time.
    WaitsTwice,
    /// All groups share a view.
    GroupsMixed,
    /// A view does not raise the epoch.
    EpochKept,
    /// A command whose outcome is unknown is carried out again.
    UnknownIsNo,
    /// HA workloads go on running without a quorum.
    QuorumIgnored,
    /// A node that goes on from an earlier incarnation numbers its heartbeats and
    /// its attempts as that one did.
    IncarnationsShareNumbers,
    /// A node that goes on from an earlier incarnation starts work although a swap
    /// of that one, which lets go of it, may still land.
    StartsUnsettled,
    /// Whichever attempt at the view landed, the outcomes of the latest are
    /// told.
    AttemptsAlike,
    /// A refusal is final though an earlier attempt may still land.
    AttemptForgotten,
    /// A view that does not list the node settles its attempts.
    RemovalSettles,
    /// A node that was restarted goes on from an incarnation that another clock was
    /// shown to, or whose clock cannot be told.
    BootTrusted,
    /// A view is written above the one that was found, and not above the
    /// highest that was seen.
    FloorForgotten,
    /// A node writes another view whenever it sees one, as if each had fallen.
    FloorRepeated,
    /// Fences of a view that has fallen are handed out before one above is
    /// written.
    FenceBelow,
    /// An older copy of the view that came back is not reported.
    LossNotReported,
    /// A heartbeat that an older copy of the store shows is taken for old news.
    FallenHeartbeatIgnored,
    /// Only a timer tells a node the time: what comes first after a stall is
    /// handled as of before it.
    GuardByTimer,
    /// Content is deleted by its age alone: without a mark in the view, and
    /// although it was touched.
    CollectedByAge,
    /// A deploy takes content that is there as it is, and does not touch it.
    ContentUntouched,
    /// A deploy does not touch its content again when a mark appears.
    MarkOverlooked,
    /// Content is deleted by a mark that another node has set.
    MarkOfAnother,
}

/// Which bug is planted in a node, if any.
pub type Plant = tenure_core::bug::Plant<Bug>;
