//! What the log holds.
//!
//! An entry carries the term it was created in and keeps it for ever, also
//! when a later leader copies it to others: that is what makes equal (id,
//! term) mean equal entries and equal prefixes. It also carries the log's
//! own time, stamped by the leader from its monotonic clock and never going
//! back, so that whatever is decided by time is decided at the same entry on
//! every server.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use tenure_core::cas::{Bytes, Write};
use tenure_core::ids::{Key, Term, Version};

pub use super::ids::LogTime;
use super::ids::{LogId, Position};
use super::membership::Membership;
use super::session_owner::SessionOwner;

/// Which session: the id of the entry that opened it.
pub type SessionId = LogId;

/// The number a client gives a request; the first of a session is 1.
pub type Serial = u64;

/// Which kinds of entries may be in the log, as one number: the least that all
/// members of the cluster speak. It rises by an entry of its own
/// ([`Payload::Version`]) once the last server of an earlier release is gone,
/// and never falls: what is in the log must be understood by every server that
/// reads it later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterVersion(u64);

impl ClusterVersion {
    /// What every release speaks.
    pub const FIRST: Self = Self(1);

    /// The version that knows which disk is meant: votes name the disk of the
    /// candidate, sessions have owners, and restored logs say so.
    pub const SECOND: Self = Self(2);

    /// What this release speaks: this version and all before.
    #[cfg(not(feature = "next-version"))]
    pub const NEWEST: Self = Self::SECOND;

    /// What this release speaks: this version and all before.
    #[cfg(feature = "next-version")]
    pub const NEWEST: Self = Self(3);

    /// The version with this number, which is at least 1.
    pub const fn new(number: u64) -> Option<Self> {
        if number == 0 {
            None
        } else {
            Some(Self(number))
        }
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ClusterVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The largest payload of one entry, in bytes; a proposal above it is
/// refused before anything is written.
pub const MAX_ENTRY_BYTES: usize = 1024 * 1024;

/// About how many bytes an entry takes beside its payload: its id, its times,
/// and whose command it is.
const OVERHEAD: usize = 72;

/// One entry of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place; ids have no gaps.
    pub id: LogId,
    /// The term of the leader that created it.
    pub term: Term,
    /// The log's time when it was created; never less than the one before.
    pub time: LogTime,
    /// What it says.
    pub payload: Payload,
}

impl Entry {
    /// Where it stands.
    pub const fn position(&self) -> Position {
        Position::new(self.term, self.id)
    }

    /// Whether its payload is larger than an entry's may be.
    pub fn is_too_large(&self) -> bool {
        self.weight() > MAX_ENTRY_BYTES + OVERHEAD
    }

    /// About how many bytes it takes in memory, on the wire and on disk.
    /// Windows, batches and the bound on the log are counted in these.
    #[inline]
    pub fn weight(&self) -> usize {
        OVERHEAD
            + match &self.payload {
                Payload::NoOp
                | Payload::Open { .. }
                | Payload::OpenOwned { .. }
                | Payload::Expire { .. }
                | Payload::Version(_) => 0,
                #[cfg(feature = "next-version")]
                Payload::Note(_) => 0,
                Payload::Members(members) => 64 * members.len(),
                Payload::Command(command) => command.operation.weight(),
            }
    }
}

/// What an entry says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Payload {
    /// Nothing: a leader's first entry, by which everything before it
    /// commits (`docs/design/alpo.md`, H2).
    NoOp,
    /// The members from here on; effective when appended.
    Members(Membership),
    /// A client opens a session, whose id is this entry's. Nobody can open
    /// one twice by retrying: a session that nobody uses expires.
    Open {
        /// How long it lives without being heard of, in nanoseconds of the
        /// log's time.
        ttl: LogTime,
    },
    /// The same of a session that has an owner; since version 2.
    OpenOwned {
        /// As above.
        ttl: LogTime,
        /// Whose it is.
        owner: SessionOwner,
    },
    /// A client's request.
    Command(Command),
    /// The session ends, if it has in fact not been heard of for its time to
    /// live when this entry was stamped.
    Expire {
        /// Which.
        session: SessionId,
    },
    /// All members speak this version: from here on there may be entries of
    /// it.
    Version(ClusterVersion),
    /// A kind of entry that only the release after this one knows; it stands
    /// for all that are to come, so that upgrades can be tried before there is
    /// anything to upgrade to. A leader notes its term with it.
    #[cfg(feature = "next-version")]
    Note(u64),
}

impl Payload {
    /// The first version that has such entries. A leader proposes none that
    /// is above the cluster's.
    pub const fn since(&self) -> ClusterVersion {
        match self {
            Self::NoOp
            | Self::Members(_)
            | Self::Open { .. }
            | Self::Command(_)
            | Self::Expire { .. }
            | Self::Version(_) => ClusterVersion::FIRST,
            Self::OpenOwned { .. } => ClusterVersion::SECOND,
            #[cfg(feature = "next-version")]
            Self::Note(_) => ClusterVersion(3),
        }
    }
}

/// A client's request, as it stands in the log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Command {
    /// Whose.
    pub session: SessionId,
    /// The client's number for it; takes effect once.
    pub serial: Serial,
    /// The lowest serial whose answer the client still waits for: answers
    /// below it are forgotten. At least 1, at most `serial`.
    pub outstanding: Serial,
    /// What to do.
    pub operation: Operation,
}

/// What a client can ask for.
///
/// Shared and not copied where it is more than bytes: a leader has an entry
/// in its log, in a batch for its disk and in a request for each peer, and a
/// server has some hundred thousand of them in its log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Append to the user log.
    Append(Bytes),
    /// Compare and swap a register.
    Swap(Arc<Write>),
    /// Delete a register that has a certain version.
    Delete(Arc<Deletion>),
    /// Compare and swap a register, and bind it to the command's session.
    Bind(Arc<Binding>),
    /// Nothing but a keep-alive.
    KeepAlive,
    /// End the session now.
    Close,
}

/// Which register to delete.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Deletion {
    /// Its name.
    pub key: Key,
    /// What it must hold.
    pub expect: Version,
}

/// A compare-and-swap of a register that is to be a session's.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Binding {
    /// What to write.
    pub write: Write,
    /// What the register is to hold when the session ends.
    pub last: Bytes,
}

impl Operation {
    /// A compare-and-swap.
    pub fn swap(write: Write) -> Self {
        Self::Swap(Arc::new(write))
    }

    /// The end of a register that has this version.
    pub fn delete(key: Key, expect: Version) -> Self {
        Self::Delete(Arc::new(Deletion { key, expect }))
    }

    /// A compare-and-swap of a register that is to be the session's, and to
    /// hold `last` when that ends.
    pub fn bind(write: Write, last: Bytes) -> Self {
        Self::Bind(Arc::new(Binding { write, last }))
    }

    #[inline]
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Append(bytes) => bytes.len(),
            Self::Swap(write) => of_write(write),
            Self::Bind(bind) => of_write(&bind.write) + bind.last.len(),
            Self::Delete(delete) => delete.key.as_str().len() + 16,
            Self::KeepAlive | Self::Close => 0,
        }
    }
}

fn of_write(write: &Write) -> usize {
    write.key.as_str().len() + write.value.len() + 16
}

/// What became of an entry when it was applied. Saved with the session until
/// the client no longer waits for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The session is open; its id is the entry's.
    Opened(SessionId),
    /// The user log holds it, as its entry number this.
    Appended(u64),
    /// The register was written and has this version now.
    Swapped(Version),
    /// The register was not as expected.
    Conflict,
    /// The session holds as many registers as it may; nothing was done.
    TooManyBound,
    /// The register was deleted.
    Deleted,
    /// The session lives on.
    Alive,
    /// The session is closed.
    Closed,
    /// There are as many sessions as there may be; nothing was done.
    TooManySessions,
    /// No such session (any more); nothing was done by this entry. A request
    /// that was sent before may have been done while the session lived: who
    /// repeats one and is told this does not know what became of it.
    SessionExpired,
    /// The serial was done long ago and its answer is forgotten: the client
    /// itself said that it no longer waits for it.
    TooOld,
    /// The serial was used for another command; nothing was done by this one.
    /// Two clients use one session, or one has lost count.
    OtherContent,
    /// A serial that does not follow the one before; nothing was done. A
    /// leader never writes such an entry.
    OutOfOrder {
        /// The serial that would have followed.
        expected: Serial,
    },
    /// The members are as the entry says.
    Members,
    /// Nothing to tell.
    Nothing,
}

/// A list of entries that follow one another.
pub type Entries = Vec<Entry>;
