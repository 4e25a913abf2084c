//! What can happen, and how much of it may yet.

use super::host::id_of;
use super::model::World;

/// What can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// A message arrives.
    Deliver(usize),
    /// A message arrives, and will arrive again.
    Duplicate(usize),
    /// A server's wait is over: it stands, or ceases to lead.
    TimeOut(usize),
    /// A leader is heard of.
    Beat(usize),
    /// A client wants something of a leader.
    Propose(usize),
    /// A leader is asked to hand over.
    HandOver(usize, usize),
    /// A disk has the oldest batch on its way.
    Sync(usize),
    /// More than a timeout passes, for everybody; only with leases.
    Pass,
    /// A server dies, with so many batches on its disk and so many parts of
    /// the next, and comes back.
    Crash(usize, usize, usize),
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Left {
    pub(crate) stands: u8,
    pub(crate) proposals: u8,
    pub(crate) beats: u8,
    pub(crate) transfers: u8,
    pub(crate) passes: u8,
    pub(crate) crashes: u8,
    pub(crate) duplicates: u8,
}

impl Action {
    /// What happens, for people.
    pub(crate) fn describe(self, world: &World) -> String {
        match self {
            Self::Deliver(message) => format!("{:?}", world.wire.get(message).envelope),
            Self::Duplicate(message) => {
                format!("(to come again) {:?}", world.wire.get(message).envelope)
            }
            Self::TimeOut(index) => format!("{} times out", id_of(index)),
            Self::Beat(index) => format!("{} beats", id_of(index)),
            Self::Propose(index) => format!("{} proposes", id_of(index)),
            Self::HandOver(index, to) => {
                format!("{} is asked to hand over to {}", id_of(index), id_of(to))
            }
            Self::Pass => "a timeout passes".to_string(),
            Self::Sync(index) => format!("{} has a batch on disk", id_of(index)),
            Self::Crash(index, whole, part) => {
                format!(
                    "{} crashes with {whole} batches and {part} parts synced",
                    id_of(index)
                )
            }
        }
    }
}
