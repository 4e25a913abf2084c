//! The heartbeat register. Each node has one, and alone writes it. A node that
//! judges it dead writes it once more (§3).
//!
//! ```text
//! tenure-ha-node 1
//! node 00c0ffee00c0ffee00c0ffee00c0ffee
//! sequence 93
//! lease_ns 10000000000
//! status 7b7d
//! dead 00c1ffee00c1ffee00c1ffee00c1ffee
//! crc32c 1a2b3c4d
//! ```
//!
//! The last line but one is only in the register of a dead node, and names the
//! node that judged. Such a register is never written again, only deleted: every
//! heartbeat meets a conflict, and heartbeats never create.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::str::Lines;
use core::time::Duration;

use tenure_core::cas::Bytes;
use tenure_core::time::nanos;

use super::NodeId;
use super::codec::{CodecError, field, number, seal, unseal};

const MAGIC: &str = "tenure-ha-node";

/// The most bytes of a status.
pub const STATUS_BYTES_MAX: usize = 16 * 1024;

/// What a heartbeat register says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Whose it is.
    pub node: NodeId,
    /// Grows with every write, so that no two have equal bytes.
    pub sequence: u64,
    /// How long the node may be silent.
    pub lease: Duration,
    /// What the node tells people of itself; opaque here, at most
    /// [`STATUS_BYTES_MAX`].
    pub status: Bytes,
    /// The node that judged it dead, if one did.
    pub dead: Option<NodeId>,
}

impl Heartbeat {
    /// The bytes to store.
    pub fn encode(&self) -> Bytes {
        let mut text = String::with_capacity(160 + 2 * self.status.len());
        let lease = nanos(self.lease);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{MAGIC} 1\nnode {}", self.node);
        let _ = writeln!(text, "sequence {}\nlease_ns {lease}", self.sequence);
        if !self.status.is_empty() {
            text.push_str("status ");
            for byte in self.status.iter() {
                let _ = write!(text, "{byte:02x}");
            }
            text.push('\n');
        }
        if let Some(by) = self.dead {
            let _ = writeln!(text, "dead {by}");
        }
        seal(text)
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If the bytes are anything else, with what was expected where.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut lines = unseal(bytes, MAGIC)?;
        let node = cell(&mut lines, "node")?;
        let node = NodeId::parse(node).ok_or_else(|| field("the id of a node", node))?;
        let sequence = number(cell(&mut lines, "sequence")?)?;
        let lease = Duration::from_nanos(number(cell(&mut lines, "lease_ns")?)?);
        let mut beat = Self {
            node,
            sequence,
            lease,
            status: Bytes::from([]),
            dead: None,
        };
        for line in lines {
            match line.split_once(' ') {
                Some(("status", hex)) if beat.status.is_empty() && beat.dead.is_none() => {
                    let bytes = unhex(hex).ok_or_else(|| field("a status", line))?;
                    beat.status = bytes.into();
                }
                Some(("dead", by)) if beat.dead.is_none() => {
                    let by = NodeId::parse(by);
                    beat.dead = Some(by.ok_or_else(|| field("the id of a node", line))?);
                }
                _ => return Err(field("a line of a heartbeat", line)),
            }
        }
        Ok(beat)
    }
}

fn cell<'a>(lines: &mut Lines<'a>, key: &'static str) -> Result<&'a str, CodecError> {
    let line = lines.next().unwrap_or_default();
    line.strip_prefix(key)
        .and_then(|rest| rest.strip_prefix(' '))
        .ok_or_else(|| field(key, line))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
    bytes.filter(|bytes| !bytes.is_empty() && bytes.len() <= STATUS_BYTES_MAX)
}
