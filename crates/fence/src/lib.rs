//! Fencing for resources: they reject writes of deposed leaders.
//!
//! A leader attaches its [`Term`] to each effect outside its process. The
//! resource remembers the highest term that it has seen, and refuses lower
//! ones. This crate is the resource's side, for resources that cannot do this
//! by themselves. It runs no election and needs no store, so a service that is
//! only written to by leaders needs this crate alone.
//!
//! * [`mark`]: the highest term that was seen, in a file that survives a crash.
//! * [`lock`]: the lock beside it, which is held while something is done in a term.
//! * [`sql`]: the statements of a fence in a database, and what runs them.
//! * `gate` and `http` (feature `http`): a layer before a service of HTTP or gRPC,
//!   and the client's side.
//! * `objects` (feature `objects`): conditional writes to one object of an object store.
//!
//! Two rules make a fence of a comparison. The page
//! `docs/how-to/fences.md` argues them and says what no fence protects.
//!
//! 1. **A new leader records its term before it reads anything.** What it reads
//!    afterwards can then not be changed any more by an earlier leader.
//! 2. **The check and the effect are one step.** Between a check and its effect
//!    a process may be stopped for any time, so the resource holds a lock from
//!    the one to the other, and the record of a higher term waits for that lock.

#[cfg(feature = "http")]
pub mod gate;
#[cfg(feature = "http")]
pub mod http;
pub mod lock;
pub mod mark;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "objects")]
pub mod objects;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::fmt;

pub use tenure_core::ids::Term;

/// A resource has refused a leader: a higher term was recorded there.
///
/// The leader stops. To try again is of no use, since terms never fall.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Deposed {
    /// The term of the leader that was refused.
    pub term: Term,
    /// The highest term that the resource has seen, where it told.
    pub seen: Option<Term>,
}

impl fmt::Display for Deposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let term = self.term;
        match self.seen {
            Some(seen) => write!(
                f,
                "refused: this is of term {term}, and a leader of term {seen} has been here"
            ),
            None => write!(
                f,
                "refused: this is of term {term}, which is not the term that was recorded last"
            ),
        }
    }
}
