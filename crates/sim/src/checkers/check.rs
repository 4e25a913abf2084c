//! Which checker objects, and in which words.

use std::fmt;

/// What a checker found wrong, in a sentence.
pub(crate) type Finding = Result<(), String>;

/// Which checker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Check {
    /// At most one leadership is valid at any instant of true time.
    Exclusivity,
    /// A grant counts from before the write that gave it took effect.
    Grants,
    /// The term grows by exactly one whenever the leader changes, and every
    /// leadership has its own id.
    Terms,
    /// A process that runs at a deadline has been told by then.
    Told,
    /// Never two works at once, and none after its deadline.
    Work,
    /// No step of guarded work begins after the end of its grant.
    Guard,
    /// A leadership is renewed only for work that has confirmed the last grant.
    Confirms,
    /// A process is never elected at or below a term that it knows, and asks
    /// for a higher one at most once a lease.
    Floors,
    /// No leadership is lost without a cause.
    Causes,
    /// A candidate that watches is not the holder it sees.
    OwnId,
    /// Nobody races for an election whose judged holder is still valid.
    Races,
    /// What is said to be proven is true.
    Observers,
    /// A healed world has a leader in time, and keeps it.
    Liveness,
    /// What was asked through the register is obeyed.
    Requests,
    /// A machine never asks to be woken at a time that has passed, again and
    /// again, and does not repeat what the store refuses as fast as it answers.
    Spin,
}

impl Check {
    /// Whether it rests on what a store promises, and so objects to nothing
    /// for a while after the store has broken its promise.
    pub(crate) const fn rests_on_store(self) -> bool {
        matches!(
            self,
            Self::Exclusivity | Self::Work | Self::Guard | Self::Causes
        )
    }

    /// Whether it takes terms for unique: after a store has broken its promise
    /// once, a term may be had twice.
    pub(crate) const fn rests_on_terms(self) -> bool {
        matches!(self, Self::Races | Self::Observers | Self::Requests)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusivity => "exclusivity",
            Self::Grants => "grants",
            Self::Terms => "terms",
            Self::Told => "told in time",
            Self::Work => "work",
            Self::Guard => "guard",
            Self::Confirms => "confirms",
            Self::Floors => "floors",
            Self::Causes => "causes",
            Self::OwnId => "own id",
            Self::Races => "races",
            Self::Observers => "observers",
            Self::Liveness => "liveness",
            Self::Requests => "requests",
            Self::Spin => "spin",
        })
    }
}
