//! What must be true of a cluster, a file each.
//!
//! They see what no server can: all of them at once, in true time.

pub(super) mod accepted;
pub(super) mod bindings;
pub(super) mod clients;
pub(super) mod committed;
pub(super) mod deferral;
pub(super) mod leaders;
pub(super) mod majority_heard;
pub(super) mod members;
pub(super) mod reads;
pub(super) mod session_leases;

use crate::kernel::checks;

checks! {
    /// A rule that a server can break on its own (`core::alpo::invariants`).
    Invariant: "invariant",
    /// Two servers led in one term (I1).
    OneLeader: "one leader",
    /// A leader lacks what was committed before its term (I7).
    Completeness: "completeness",
    /// A leader counted a disk for entries that it does not have (H11, H15).
    Accepted: "accepted",
    /// A server goes by other members than its log has (H17).
    Members: "members",
    /// Two servers applied different entries at one place (I8), or a
    /// (session, serial) stands in the committed log twice (I9).
    Committed: "committed",
    /// Equal logs gave different states.
    State: "state",
    /// Same id and term, different entries (I4).
    Matching: "matching",
    /// No order of the clients' calls explains their answers (I12).
    Linearizable: "linearizable",
    /// A read showed what was committed at no moment from its asking to its
    /// answering, or a stale one not what its label says.
    Reads: "reads",
    /// A watch left out a change, or said that changes were gone that are not.
    Watches: "watches",
    /// An append is lost, doubled, out of order, or was never made.
    ExactlyOnce: "exactly once",
    /// A register that is bound to a session was written by another, a
    /// session ended too early, or what it left is not what was said.
    Bound: "bound",
    /// Somebody else's command was done under a client's session, or a client
    /// was refused its own.
    Owned: "owned",
    /// A client still counted on a register that was not bound to its
    /// session any more.
    Held: "held",
    /// A follower asked something (I11).
    PassiveAsks: "passive asks",
    /// A server stood again too soon after it had stepped back (H10).
    Patience: "patience",
    /// A worse candidate kept a server quiet (H8).
    Calm: "calm",
    /// One better log made a server drop out again and again (H7).
    Veto: "veto",
    /// A leader that no majority answers went on (H5).
    Followed: "followed",
    /// A log was refused on a disk that nothing had happened to but crashes,
    /// or did not take what the server wrote (H14).
    Disk: "disk",
    /// Two clusters were founded by servers that kept their disks, one without
    /// its disk takes part, or one is left out.
    Bootstrap: "founding",
    /// A restored cluster gave out what the lost one had given out, or
    /// something of the backup is not there.
    Restored: "restored",
    /// A server stopped because it found a broken rule, or panicked.
    Halted: "halted",
    /// After all was well again, nobody led in time.
    Election: "election",
    /// The network was broken in part, somebody could lead, and nobody did.
    Reaches: "who reaches leads",
    /// A healthy leader was deposed by a server that came back (H9).
    Disturbed: "disturbed",
    /// After all was well again, a client was not answered in time.
    Answers: "answers",
    /// After all was well again, the logs did not become equal.
    Agreement: "agreement",
}

/// A rule that was broken, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Broken {
    /// Which rule.
    pub(super) check: Check,
    /// What was seen.
    pub(super) detail: String,
}

impl Broken {
    pub(super) fn new(check: Check, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { check, detail }
    }
}

/// What a checker says.
pub(super) type Verdict = Result<(), Broken>;

pub(super) fn broken(check: Check, detail: impl Into<String>) -> Verdict {
    Err(Broken::new(check, detail))
}
