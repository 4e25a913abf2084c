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
    /// A leader is asked for the next change that gives a server's number to
    /// another disk: to remove it, to admit the new one, to promote it.
    Change(usize),
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
    pub(crate) changes: u8,
    pub(crate) crashes: u8,
    pub(crate) duplicates: u8,
}

impl Action {
    /// What happens, for people.
    pub(crate) fn describe(self, world: &World) -> String {
        let name = |index: usize| world.hosts[index].name();
        match self {
            Self::Deliver(message) => {
                let sent = world.wire.get(message);
                let (from, to) = (name(sent.from), name(sent.to));
                format!("{from} to {to}: {:?}", sent.envelope)
            }
            Self::Duplicate(message) => {
                format!("(to come again) {}", Self::Deliver(message).describe(world))
            }
            Self::Change(index) => format!("{} is asked for the next change", name(index)),
            Self::TimeOut(index) => format!("{} times out", name(index)),
            Self::Beat(index) => format!("{} beats", name(index)),
            Self::Propose(index) => format!("{} proposes", name(index)),
            Self::HandOver(index, to) => {
                format!("{} is asked to hand over to {}", name(index), id_of(to))
            }
            Self::Pass => "a timeout passes".to_string(),
            Self::Sync(index) => format!("{} has a batch on disk", name(index)),
            Self::Crash(index, whole, part) => {
                format!(
                    "{} crashes with {whole} batches and {part} parts synced",
                    name(index)
                )
            }
        }
    }
}
