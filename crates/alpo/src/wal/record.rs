//! Records: what the log is made of.
//!
//! A record is `{length u32, crc32c u32, kind u8, payload}`, numbers with the
//! low byte first. `length` counts the payload; the checksum is of the bytes
//! of `length`, the kind and the payload, in this order. What a kind's
//! payload looks like is laid down in `docs/reference/formats.md`, with everything else
//! that is on disk. An unknown kind is refused and never skipped: skipping it
//! would be forgetting what some version promised.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tenure_core::ids::Term;

use crate::codec::{
    DecodeError, Reader, decode_entry, decode_hard_state, encode_entry, encode_hard_state, put_u64,
};
use crate::{Entry, HardState, LogId, Position};

/// The bytes before a payload.
pub(super) const FRAME_BYTES: usize = 9;

/// Heads a group; see the module `group`.
pub(super) const GROUP: u8 = 1;
/// An entry of the log.
const ENTRY: u8 = 2;
/// The hard state is this now.
const HARD: u8 = 3;
/// Entries from an id on are gone.
const TRUNCATE: u8 = 4;
/// A snapshot is complete and durable in a file of its own.
const SNAPSHOT: u8 = 5;
/// The log goes on in the next segment.
pub(super) const SEAL: u8 = 6;
/// The hard state is this now, and its vote names a disk. A kind of its own,
/// so that an earlier release says that it is too old, and not that the log
/// is damaged.
const HARD_WITH_DISK: u8 = 7;

pub use crate::codec::Checksum;

/// What a record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// An entry is appended.
    Entry(Entry),
    /// The hard state is replaced.
    Hard(HardState),
    /// Entries from this id on are gone.
    Truncate(LogId),
    /// There is a snapshot up to here.
    Snapshot {
        /// The last entry it contains.
        last: Position,
        /// The whole log before it goes.
        reset: bool,
    },
}

impl Record {
    /// Appends the record to `to`.
    pub(super) fn encode(&self, sum: Checksum, to: &mut Vec<u8>) {
        match self {
            Self::Entry(entry) => put_entry(sum, to, entry),
            Self::Hard(hard) => {
                let kind = if hard.names_disk() {
                    HARD_WITH_DISK
                } else {
                    HARD
                };
                put(sum, to, kind, |to| encode_hard_state(to, hard));
            }
            Self::Truncate(from) => put(sum, to, TRUNCATE, |to| put_u64(to, *from)),
            Self::Snapshot { last, reset } => put(sum, to, SNAPSHOT, |to| {
                put_u64(to, last.term.get());
                put_u64(to, last.id);
                to.push(u8::from(*reset));
            }),
        }
    }

    /// Reads the payload of a record of `kind`.
    pub(super) fn decode(kind: u8, payload: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(payload);
        let record = match kind {
            ENTRY => return decode_entry(payload).map(Self::Entry),
            HARD | HARD_WITH_DISK => {
                let hard = decode_hard_state(payload)?;
                if hard.names_disk() != (kind == HARD_WITH_DISK) {
                    return Err(DecodeError::Number);
                }
                return Ok(Self::Hard(hard));
            }
            TRUNCATE => Self::Truncate(from.u64()?),
            SNAPSHOT => Self::Snapshot {
                last: Position {
                    term: Term::new(from.u64()?).ok_or(DecodeError::Number)?,
                    id: from.u64()?,
                },
                reset: from.bool()?,
            },
            kind => return Err(DecodeError::Kind(kind)),
        };
        from.end()?;
        Ok(record)
    }
}

/// Appends the record of an entry, without taking the entry.
pub(super) fn put_entry(sum: Checksum, to: &mut Vec<u8>, entry: &Entry) {
    put(sum, to, ENTRY, |to| encode_entry(to, entry));
}

/// Appends a record with what `payload` writes.
pub(super) fn put(sum: Checksum, to: &mut Vec<u8>, kind: u8, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, kind]);
    payload(to);
    seal_frame(sum, &mut to[start..]);
}

/// Fills in length and checksum of the record that is all of `frame`.
fn seal_frame(sum: Checksum, frame: &mut [u8]) {
    // Entries are bounded far below this, and the log refuses groups above.
    let length = u32::try_from(frame.len() - FRAME_BYTES).unwrap_or(u32::MAX);
    frame[..4].copy_from_slice(&length.to_le_bytes());
    let checksum = frame_checksum(sum, length, &frame[8..]);
    frame[4..8].copy_from_slice(&checksum.to_le_bytes());
}

fn frame_checksum(sum: Checksum, length: u32, kind_and_payload: &[u8]) -> u32 {
    sum(sum(0, &length.to_le_bytes()), kind_and_payload)
}

/// Goes on with a checksum of checksums.
pub(super) fn chain(sum: Checksum, so_far: u32, checksum: u32) -> u32 {
    sum(so_far, &checksum.to_le_bytes())
}

/// A record's frame, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    pub(super) payload: &'a [u8],
    pub(super) checksum: u32,
    /// All of it, in bytes.
    pub(super) bytes: usize,
}

/// The record at the start of `bytes`, or what is wrong with it as
/// `(expected, found)`.
pub(super) fn frame(sum: Checksum, bytes: &[u8]) -> Result<Frame<'_>, (String, String)> {
    let Some((head, rest)) = bytes.split_first_chunk::<8>() else {
        return Err((
            format!("a record of at least {FRAME_BYTES} bytes"),
            format!("the end after {}", bytes.len()),
        ));
    };
    let [l0, l1, l2, l3, c0, c1, c2, c3] = *head;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    let checksum = u32::from_le_bytes([c0, c1, c2, c3]);
    let Some(body) = rest.get(..1 + length as usize) else {
        return Err((
            format!("a record of at most {} bytes", rest.len().saturating_sub(1)),
            format!("a length of {length}"),
        ));
    };
    let found = frame_checksum(sum, length, body);
    if found != checksum {
        return Err((
            format!("a record with the checksum {checksum:08x}"),
            format!("bytes with the checksum {found:08x}"),
        ));
    }
    Ok(Frame {
        kind: body[0],
        payload: &body[1..],
        checksum,
        bytes: FRAME_BYTES + length as usize,
    })
}

/// The record at the start of `bytes` that [`frame`] has checked before.
pub(super) fn frame_unchecked(bytes: &[u8]) -> Option<Frame<'_>> {
    let (head, body) = bytes.split_first_chunk::<FRAME_BYTES>()?;
    let [l0, l1, l2, l3, c0, c1, c2, c3, kind] = *head;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    Some(Frame {
        kind,
        payload: body.get(..length)?,
        checksum: u32::from_le_bytes([c0, c1, c2, c3]),
        bytes: FRAME_BYTES + length,
    })
}
