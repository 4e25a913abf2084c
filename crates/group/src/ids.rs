//! The names of things in a group: node ids, digests, and the keys of its
//! registers.
//!
//! A [`NodeId`] names one *incarnation* of a node, never a host. A node that
//! passed its own deadline comes back under another id, and nothing that it sent
//! under the old one can be taken for the new one's. A [`Digest`] names the
//! register with the config and the command of a workload. The machine never
//! looks inside.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use tenure_core::ids::{Key, Name};

/// One incarnation of a node: 128 random bits drawn when it joins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u128);

impl NodeId {
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
        let hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        hex.then(|| u128::from_str_radix(text, 16).ok().map(Self))
            .flatten()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The hash of a workload's config and command, which is the name of the
/// register that holds them: 1 to [`Digest::MAX_BYTES`] letters,
/// digits, `-` and `_`, such as 16 bytes in URL-safe base64.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(Arc<str>);

impl Digest {
    /// The longest, in bytes: 32 bytes in hexadecimal.
    pub const MAX_BYTES: usize = 64;

    /// Checks and takes `text`; `None` if it is empty, too long, or has other
    /// characters.
    pub fn new(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.len() <= Self::MAX_BYTES;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (fits && text.bytes().all(plain)).then(|| Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The registers of one group. The names of groups have no slash, so no
/// register of one group can be taken for one of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keys {
    group: Name,
}

impl Keys {
    /// What the keys of all groups begin with.
    pub const PREFIX: &'static str = "ha/";

    /// The registers of `group`.
    pub const fn of(group: Name) -> Self {
        Self { group }
    }

    /// The one register that says who is in the group and runs what.
    pub fn view(&self) -> Key {
        self.key("view")
    }

    /// What the keys of all heartbeats of the group begin with.
    pub fn heartbeats(&self) -> String {
        format!("{}{}/nodes/", Self::PREFIX, self.group)
    }

    /// The heartbeat of one node.
    pub fn heartbeat(&self, id: NodeId) -> Key {
        self.key(&format!("nodes/{id}"))
    }

    /// The register of a config and command.
    pub fn content(&self, digest: &Digest) -> Key {
        self.key(&format!("content/{digest}"))
    }

    /// The node whose heartbeat this is, if it is one of this group's.
    pub fn node(&self, key: &Key) -> Option<NodeId> {
        NodeId::parse(key.as_str().strip_prefix(&self.heartbeats())?)
    }

    /// What the keys of all contents of the group begin with.
    pub fn contents(&self) -> String {
        format!("{}{}/content/", Self::PREFIX, self.group)
    }

    /// The digest whose content this is, if it is one of this group's.
    pub fn digest(&self, key: &Key) -> Option<Digest> {
        Digest::new(key.as_str().strip_prefix(&self.contents())?)
    }

    fn key(&self, rest: &str) -> Key {
        let text = format!("{}{}/{rest}", Self::PREFIX, self.group);
        // A name of at most 255 bytes and a rest of at most 72 fit.
        Key::new(&text).unwrap_or_else(|error| unreachable!("{text}: {error}"))
    }
}
