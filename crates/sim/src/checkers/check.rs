//! Which checker objects, and in which words.

use crate::kernel::checks;

/// What a checker found wrong, in a sentence.
pub(crate) type Finding = Result<(), String>;

checks! {
    /// At most one leadership is valid at any instant of true time.
    Exclusivity: "exclusivity",
    /// A grant counts from before the write that gave it took effect.
    Grants: "grants",
    /// The term grows by exactly one whenever the leader changes, and every
    /// leadership has its own id.
    Terms: "terms",
    /// A process that runs at a deadline has been told by then.
    Told: "told in time",
    /// Never two works at once, and none after its deadline.
    Work: "work",
    /// No step of guarded work begins after the end of its grant.
    Guard: "guard",
    /// A leadership is renewed only for work that has confirmed the last grant.
    Confirms: "confirms",
    /// A process is never elected at or below a term that it knows, and asks
    /// for a higher one at most once a lease.
    Floors: "floors",
    /// No leadership is lost without a cause.
    Causes: "causes",
    /// A candidate that watches is not the holder it sees.
    OwnId: "own id",
    /// Nobody races for an election whose judged holder is still valid.
    Races: "races",
    /// What is said to be proven is true.
    Observers: "observers",
    /// A healed world has a leader in time, and keeps it.
    Liveness: "liveness",
    /// What was asked through the register is obeyed.
    Requests: "requests",
    /// A machine never asks to be woken at a time that has passed, again and
    /// again, and does not repeat what the store refuses as fast as it answers.
    Spin: "spin",
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
