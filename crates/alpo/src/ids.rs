//! Who a server is, and how far its log goes.
//!
//! A [`ServerId`] is configured and stays; a [`StorageId`] is drawn at random
//! when a data directory is made. The two together tell a server that came
//! back from a server whose disk was wiped and that only looks the same:
//! such a one has forgotten its votes and its log, and must never count.
//!
//! A [`Position`] orders logs by how complete they are, first by the term of
//! the last entry and only then by its id. Length alone says nothing: a long
//! stale tail that no majority accepted is longer than the log that was committed
//! without it (`docs/design/alpo.md`, H3).

use core::fmt;

use tenure_core::ids::Term;

/// The log's own time, in nanoseconds since the log began. It runs only
/// while a leader appends entries.
pub type LogTime = u64;

/// A server's configured number, unique in its cluster; from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(u64);

impl ServerId {
    /// From a number; `None` for 0, which no server has.
    pub const fn new(number: u64) -> Option<Self> {
        if number == 0 {
            None
        } else {
            Some(Self(number))
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// From its bits.
            pub const fn from_u128(bits: u128) -> Self {
                Self(bits)
            }

            /// Its bits.
            pub const fn to_u128(self) -> u128 {
                self.0
            }

            /// Reads 32 hexadecimal digits.
            pub fn parse(text: &str) -> Option<Self> {
                tenure_core::ids::LeaderId::parse(text).map(|id| Self(id.to_u128()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

random_id! {
    /// Which data directory: 128 random bits, drawn when it was made.
    StorageId
}

random_id! {
    /// Which cluster: a digest of the servers and data directories it was
    /// founded with.
    ClusterId
}

/// The place of an entry in the log; the first is 1, and 0 stands before it.
pub type LogId = u64;

/// The largest number that is taken from anybody else: terms, ids of entries,
/// times of the log, rounds, numbers of requests, editions of addresses. No
/// cluster gets there by itself (at a million a second it takes 146,000
/// years), and what is added to such a number still fits, so that nothing
/// which others say makes a server wrap around, give a number out twice or
/// panic. What comes from elsewhere is held against it where it is decoded
/// ([`Reader::foreign`](super::codec::Reader::foreign)).
pub const MAX_NUMBER: u64 = 1 << 62;

/// How far the term of a message may be above the receiver's own. An election
/// raises a term by one, and a newcomer begins at 0; but no single message may
/// take the terms away that are left below [`MAX_NUMBER`].
pub const MAX_TERM_LEAP: u64 = 1 << 48;

/// How far a log goes: the term and id of its last entry (or of the entry
/// that is spoken of). Ordered by term first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The term in which the entry was created; zero before the first entry.
    pub term: Term,
    /// Its id; 0 before the first entry.
    pub id: LogId,
}

impl Position {
    /// Before the first entry.
    pub const ZERO: Self = Self {
        term: Term::ZERO,
        id: 0,
    };

    /// Of entry `id`, created in `term`.
    pub const fn new(term: Term, id: LogId) -> Self {
        Self { term, id }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.term)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A candidate's rank: the better log first, the higher server id between
/// equals. A total order, so two candidates never defer to each other, and
/// constant during a candidacy, so no circle of them can.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// The last entry of its log.
    pub last: Position,
    /// Who it is.
    pub server: ServerId,
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.last)
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
