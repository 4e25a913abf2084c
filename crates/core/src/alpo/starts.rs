//! Which start of a server speaks, and how far its disk has come.
//!
//! A directory that was set back to an earlier copy of itself, or of which
//! there are two, has the number and the storage of the one that it was
//! copied from. What gives it away is what others remember of that one.

use crate::ids::Term;

use super::ids::{LogId, Position};

/// Which start of a server speaks.
///
/// A data directory counts the starts of servers on it; the count is raised,
/// and on the disk, before the first greeting. Each start draws a random
/// number too, so that two processes with copies of one directory differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Start {
    /// How many starts this data directory has seen, this one among them.
    pub counter: u64,
    /// Drawn at this start.
    pub random: u128,
}

/// How far the disk of a server has come. All of it is durable there, so no
/// crash takes it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Reached {
    /// The term of the hard state.
    pub term: Term,
    /// The last entry of the log.
    pub last: Position,
    /// Up to here the log can lose nothing as long as the term stays the same:
    /// it is committed, or known to be that of the term's leader. Beyond it
    /// that leader may still replace entries, even by fewer.
    pub settled: LogId,
}

impl Reached {
    /// Takes over how far the disk is known to have come `now`. While a
    /// snapshot replaces the log, `now` may know less to be durable than
    /// before; what was durable still is, one way or the other.
    pub fn advance(&mut self, now: Self) {
        if now.term > self.term || now.last.id >= self.settled {
            *self = now;
        }
    }
}
