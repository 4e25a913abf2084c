//! The names of things: terms, versions, leader ids, fences, keys.
//!
//! [`Term`] and [`Version`] are different types on purpose. The term grows
//! when the *leader* changes and is what people and fences compare; the
//! version changes with every *write* and is what stores compare. Systems
//! that used one number for both had either a fence that moved at every
//! renewal or a compare-and-swap that missed one.

use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use core::fmt;

/// Counts leaders of one election. Grows by one whenever the leader changes
/// and never resets, not even by resigning. 0 means nobody has led yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Term(u64);

impl Term {
    /// Before the first leader.
    pub const ZERO: Self = Self(0);
    /// The largest term a register may hold. It fits a signed 64-bit column,
    /// and at a thousand leaders a second it lasts 292 million years.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// From a number; `None` above [`Term::MAX`].
    pub const fn new(term: u64) -> Option<Self> {
        if term <= Self::MAX.0 {
            Some(Self(term))
        } else {
            None
        }
    }

    /// As a number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The term of the next leader; `None` after [`Term::MAX`].
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A store's token for one state of one register: a row version, an `ETag`, a
/// generation, a revision. Elections and groups ask only whether two are equal.
/// Until a register is deleted, each later state of it has a greater version, by the
/// order of the bytes. Watches use the order to drop a report that arrives after a
/// newer one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(Arc<[u8]>);

impl Version {
    /// From the store's bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// From a store that counts.
    pub fn from_u64(number: u64) -> Self {
        Self(Arc::from(number.to_be_bytes().as_slice()))
    }

    /// The store's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The number it was made from, if it was made by
    /// [`from_u64`](Self::from_u64).
    pub fn to_u64(&self) -> Option<u64> {
        Some(u64::from_be_bytes(self.0.as_ref().try_into().ok()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(number) = self.to_u64() {
            return write!(f, "v{number}");
        }
        match core::str::from_utf8(&self.0) {
            Ok(text) => f.write_str(text),
            Err(_) => self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Who leads: the unique id of one *incarnation* of a candidate, 128 random
/// bits drawn anew for every stand. Never a host name: two
/// processes with one name must never be taken for one leader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaderId(u128);

impl LeaderId {
    /// From 128 random bits.
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn to_u128(self) -> u128 {
        self.0
    }

    /// Reads 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        hex.then(|| u128::from_str_radix(text, 16).ok().map(Self))
            .flatten()
    }
}

impl fmt::Display for LeaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for LeaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a leader attaches to every effect outside itself, and what outside
/// resources compare: refuse a lower term, and an equal term of another id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fence {
    /// The term of the leadership.
    pub term: Term,
    /// The incarnation that holds it.
    pub leader: LeaderId,
}

impl Fence {
    /// Whether an effect under `self` may follow one under `last`.
    pub fn may_follow(&self, last: &Self) -> bool {
        self.term > last.term || (self.term == last.term && self.leader == last.leader)
    }
}

/// Why a name or key was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    Empty,
    /// It is longer than allowed.
    TooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The most that is allowed.
        most: usize,
    },
    /// It has a control character (a newline, a tab, a NUL, …).
    Control {
        /// Where it stands, in bytes from the start.
        at: usize,
    },
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("expected a name, found an empty one"),
            Self::TooLong { bytes, most } => {
                write!(f, "expected a name of at most {most} bytes, found {bytes}")
            }
            Self::Control { at } => write!(
                f,
                "expected a name without control characters, found one at byte {at} \
                 (a newline or tab that slipped in from a script?)"
            ),
        }
    }
}

impl core::error::Error for NameError {}

fn check(text: &str, most: usize) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > most {
        return Err(NameError::TooLong {
            bytes: text.len(),
            most,
        });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(NameError::Control { at }),
        None => Ok(()),
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $most:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The longest allowed, in bytes.
            pub const MAX_BYTES: usize = $most;

            /// Checks and takes `text`.
            ///
            /// # Errors
            /// If it is empty, too long, or has control characters.
            pub fn new(text: &str) -> Result<Self, NameError> {
                check(text, Self::MAX_BYTES)?;
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        // Equal, ordered and hashed like its text.
        impl core::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// What a person calls something: an election (`payroll`), a candidate
    /// (`web-1`). 1 to 255 bytes, no control characters.
    Name, 255
}

text_id! {
    /// The name of a register in a store: 1 to 512 bytes, no control
    /// characters. By convention a kind, a slash and a [`Name`]:
    /// `elections/payroll`.
    Key, 512
}

impl Key {
    /// What the keys of all elections begin with.
    pub const ELECTIONS: &'static str = "elections/";

    /// The key of an election's register.
    pub fn of_election(name: &Name) -> Self {
        let text = Self::ELECTIONS.to_string() + name.as_str();
        Self(text.into())
    }

    /// The election whose register this is, if it is one.
    pub fn election(&self) -> Option<Name> {
        self.0
            .strip_prefix(Self::ELECTIONS)
            .and_then(|name| Name::new(name).ok())
    }
}

impl From<&Name> for String {
    fn from(name: &Name) -> Self {
        name.as_str().to_string()
    }
}
