//! Which checker objects, and in which words.

use std::fmt;

/// What a checker found wrong, in a sentence.
pub(in crate::ha) type Finding = Result<(), String>;

/// Which checker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Check {
    /// At most one instance of a workload at any instant of true time.
    Once,
    /// A grant counts from before the beat that gave it took effect.
    Grants,
    /// A heartbeat register is swapped to dead only after the lease has
    /// passed in true time since the last beat, and is never created again.
    Verdicts,
    /// A node goes from the view by leaving, or by the two steps of a death.
    Members,
    /// The successor is the one that everybody would choose.
    Heirs,
    /// Nothing is lost, nothing appears twice, nothing is changed.
    Fate,
    /// The epoch grows by one with every view.
    Views,
    /// No register of one group speaks of another.
    Groups,
    /// A node starts only what is assigned to it, and HA workloads only with
    /// the quorum.
    Placed,
    /// What runs was started under the id that the node has.
    Identity,
    /// A node that runs at a deadline acts on it.
    Told,
    /// A node, and the guardian that it tells times to, read one clock.
    Clocks,
    /// No workload begins at or after the end of the last grant that was
    /// confirmed, however long the agent stood still.
    Guard,
    /// No epoch is written and no fence is handed out below what was seen;
    /// none is raised for nothing; what a view that fell has lost is told.
    Floors,
    /// A command is answered, and truly.
    Commands,
    /// No machine asks again and again to be woken in the past.
    Spin,
    /// What a view names is there; what no workload needs is gone in the end.
    Content,
    /// A healed world is as it should be within the bound.
    Liveness,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Once => "once",
            Self::Grants => "grants",
            Self::Verdicts => "verdicts",
            Self::Members => "members",
            Self::Heirs => "heirs",
            Self::Fate => "fate",
            Self::Views => "views",
            Self::Groups => "groups",
            Self::Placed => "placed",
            Self::Identity => "identity",
            Self::Told => "told in time",
            Self::Clocks => "clocks",
            Self::Guard => "guard",
            Self::Floors => "floors",
            Self::Commands => "commands",
            Self::Spin => "spin",
            Self::Content => "content",
            Self::Liveness => "liveness",
        })
    }
}

impl Check {
    /// Whether it rests on a store that loses nothing, in all that it says. Of
    /// *fate* one rule does, which looks for itself.
    pub(in crate::ha) const fn rests_on_store(self) -> bool {
        matches!(self, Self::Once | Self::Verdicts | Self::Members)
    }
}
