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

use std::fmt;

/// Which rule was broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Check {
    /// A rule that a server can break on its own (`core::alpo::invariants`).
    Invariant,
    /// Two servers led in one term (I1).
    OneLeader,
    /// A leader lacks what was committed before its term (I7).
    Completeness,
    /// A leader counted a disk for entries that it does not have (H11, H15).
    Accepted,
    /// A server goes by other members than its log has (H17).
    Members,
    /// Two servers applied different entries at one place (I8), or a
    /// (session, serial) stands in the committed log twice (I9).
    Committed,
    /// Equal logs gave different states.
    State,
    /// Same id and term, different entries (I4).
    Matching,
    /// No order of the clients' calls explains their answers (I12).
    Linearizable,
    /// A read showed what was committed at no moment from its asking to its
    /// answering, or a stale one not what its label says.
    Reads,
    /// A watch left out a change, or said that changes were gone that are not.
    Watches,
    /// An append is lost, doubled, out of order, or was never made.
    ExactlyOnce,
    /// A register that is bound to a session was written by another, a
    /// session ended too early, or what it left is not what was said.
    Bound,
    /// Somebody else's command was done under a client's session, or a client
    /// was refused its own.
    Owned,
    /// A client still counted on a register that was not bound to its
    /// session any more.
    Held,
    /// A follower asked something (I11).
    PassiveAsks,
    /// A server stood again too soon after it had stepped back (H10).
    Patience,
    /// A worse candidate kept a server quiet (H8).
    Calm,
    /// One better log made a server drop out again and again (H7).
    Veto,
    /// A leader that no majority answers went on (H5).
    Followed,
    /// A log was refused on a disk that nothing had happened to but crashes,
    /// or did not take what the server wrote (H14).
    Disk,
    /// Two clusters were founded by servers that kept their disks, one without
    /// its disk takes part, or one is left out.
    Bootstrap,
    /// A restored cluster gave out what the lost one had given out, or
    /// something of the backup is not there.
    Restored,
    /// A server stopped because it found a broken rule, or panicked.
    Halted,
    /// After all was well again, nobody led in time.
    Election,
    /// The network was broken in part, somebody could lead, and nobody did.
    Reaches,
    /// A healthy leader was deposed by a server that came back (H9).
    Disturbed,
    /// After all was well again, a client was not answered in time.
    Answers,
    /// After all was well again, the logs did not become equal.
    Agreement,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invariant => "invariant",
            Self::OneLeader => "one leader",
            Self::Completeness => "completeness",
            Self::Accepted => "accepted",
            Self::Members => "members",
            Self::Committed => "committed",
            Self::State => "state",
            Self::Matching => "matching",
            Self::Linearizable => "linearizable",
            Self::Reads => "reads",
            Self::Watches => "watches",
            Self::ExactlyOnce => "exactly once",
            Self::Bound => "bound",
            Self::Owned => "owned",
            Self::Held => "held",
            Self::PassiveAsks => "passive asks",
            Self::Patience => "patience",
            Self::Calm => "calm",
            Self::Veto => "veto",
            Self::Followed => "followed",
            Self::Disk => "disk",
            Self::Bootstrap => "founding",
            Self::Restored => "restored",
            Self::Halted => "halted",
            Self::Election => "election",
            Self::Reaches => "who reaches leads",
            Self::Disturbed => "disturbed",
            Self::Answers => "answers",
            Self::Agreement => "agreement",
        })
    }
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
