//! How to run.

#[cfg(feature = "planted-bugs")]
use tenure_group::Bug;
use tenure_group::Plant;

use super::checkers::Check;

/// How to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long faults last, in leases.
    pub leases: u64,
    /// Whether there are any.
    pub faults: bool,
    /// Whether users ask for things at random.
    pub users: bool,
    /// Whether the world is healed and examined in the end.
    pub judged: bool,
    /// How many agents a group has; drawn from the seed if `None`.
    pub agents: Option<usize>,
    /// How many groups; drawn from the seed if `None`.
    pub groups: Option<usize>,
    /// The quorum; drawn from the seed if `None`.
    pub quorum: Option<u32>,
    /// Whether loads are spread; drawn from the seed if `None`.
    pub spread: Option<bool>,
    /// The one checker to heed; all of them if `None`.
    pub only: Option<Check>,
    /// How many lines of the trace a violation shows.
    pub trace: usize,
    /// A mistake that every node makes.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<Bug>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            leases: 12,
            faults: true,
            users: true,
            judged: true,
            agents: None,
            groups: None,
            quorum: None,
            spread: None,
            only: None,
            trace: 200,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

impl Options {
    #[cfg(feature = "planted-bugs")]
    pub(super) fn plant(&self) -> Plant {
        self.planted.map_or(Plant::NONE, Plant::bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    #[expect(clippy::unused_self, reason = "the other one needs it")]
    pub(super) const fn plant(&self) -> Plant {
        Plant::NONE
    }
}
