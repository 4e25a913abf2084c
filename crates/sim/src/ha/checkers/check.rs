//! Which checker objects, and in which words.

use crate::kernel::checks;

/// What a checker found wrong, in a sentence.
pub(in crate::ha) type Finding = Result<(), String>;

checks! {
    /// At most one instance of a workload at any instant of true time.
    Once: "once",
    /// A grant counts from before the beat that gave it took effect.
    Grants: "grants",
    /// A heartbeat register is swapped to dead only after the lease has
    /// passed in true time since the last beat, and is never created again.
    Verdicts: "verdicts",
    /// A node goes from the view by leaving, or by the two steps of a death.
    Members: "members",
    /// The successor is the one that everybody would choose.
    Heirs: "heirs",
    /// Nothing is lost, nothing appears twice, nothing is changed.
    Fate: "fate",
    /// The epoch grows by one with every view.
    Views: "views",
    /// No register of one group speaks of another.
    Groups: "groups",
    /// A node starts only what is assigned to it, and HA workloads only with
    /// the quorum.
    Placed: "placed",
    /// What runs was started under the id that the node has.
    Identity: "identity",
    /// A node that runs at a deadline acts on it.
    Told: "told in time",
    /// A node, and the guardian that it tells times to, read one clock.
    Clocks: "clocks",
    /// No workload begins at or after the end of the last grant that was
    /// confirmed, however long the agent stood still.
    Guard: "guard",
    /// No epoch is written and no fence is handed out below what was seen;
    /// none is raised for nothing; what a view that fell has lost is told.
    Floors: "floors",
    /// A command is answered, and truly.
    Commands: "commands",
    /// No machine asks again and again to be woken in the past.
    Spin: "spin",
    /// What a view names is there; what no workload needs is gone in the end.
    Content: "content",
    /// A healed world is as it should be within the bound.
    Liveness: "liveness",
}

impl Check {
    /// Whether it rests on a store that loses nothing, in all that it says. Of
    /// *fate* one rule does, which looks for itself.
    pub(in crate::ha) const fn rests_on_store(self) -> bool {
        matches!(self, Self::Once | Self::Verdicts | Self::Members)
    }
}
