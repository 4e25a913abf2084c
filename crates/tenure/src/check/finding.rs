//! How a store can break the contract, and what was seen of it.

use std::fmt;

/// How a store breaks the contract.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A write was carried out although the register was not as expected.
    IgnoresPreconditions,
    /// A write that was acknowledged is not there, or two were in place of one.
    LosesUpdates,
    /// A version was given twice for one key.
    ReusesVersions,
    /// A read does not show a write that was acknowledged before it began.
    StaleReads,
    /// A write was refused that fitted, or was carried out although the store said
    /// that it was not.
    WrongAnswers,
    /// The clock by which grants are judged has jumped.
    ClockJumps,
    /// What was acknowledged was gone after a restart.
    Forgets,
    /// The system is set up so that it may lose what it has acknowledged.
    MayLose,
    /// The store itself found its system unfit, and refuses to be used.
    Refused,
}

impl Fault {
    /// A word for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IgnoresPreconditions => "ignores_preconditions",
            Self::LosesUpdates => "loses_updates",
            Self::ReusesVersions => "reuses_versions",
            Self::StaleReads => "stale_reads",
            Self::WrongAnswers => "wrong_answers",
            Self::ClockJumps => "clock_jumps",
            Self::Forgets => "forgets",
            Self::MayLose => "may_lose",
            Self::Refused => "refused",
        }
    }

    /// What the store does, and what comes of it.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::IgnoresPreconditions => {
                "it ignores preconditions: two candidates that race would both be elected"
            }
            Self::LosesUpdates => {
                "it loses updates that it acknowledged: two candidates could lead at a time"
            }
            Self::ReusesVersions => {
                "it gives a version twice: a candidate could take over a register that it never \
                 judged"
            }
            Self::StaleReads => {
                "it answers reads from a stale replica: a candidate could judge a grant over \
                 that was renewed"
            }
            Self::WrongAnswers => {
                "it says of a write what is not so: a leader could believe in a term that it \
                 does not have"
            }
            Self::ClockJumps => "its clock jumps: a grant that is not over could be judged over",
            Self::Forgets => {
                "it forgets what it acknowledged when it is restarted: two candidates could lead \
                 at a time"
            }
            Self::MayLose => {
                "it may lose what it has acknowledged, as it is set up: then two candidates could \
                 lead at a time"
            }
            Self::Refused => "it breaks the contract, and refuses to be used",
        }
    }
}

/// A breach that was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How the contract is broken.
    pub fault: Fault,
    /// What was done, what was expected and what was found.
    pub text: String,
}

impl Finding {
    /// A breach, and what was seen of it.
    pub(super) fn new(fault: Fault, text: impl fmt::Display) -> Self {
        Self {
            fault,
            text: text.to_string(),
        }
    }
}
