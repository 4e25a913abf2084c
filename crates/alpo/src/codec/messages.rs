//! Messages as bytes, and the frames they travel in.
//!
//! A frame is a version byte, three bytes that must be zero, the length of
//! the body and its CRC-32C (both 32 bits, little-endian), and the body. A
//! frame that is too long, of another version or damaged means that the
//! connection cannot be trusted any more: the caller closes and counts it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use tenure_core::crc::{Checksum, crc32c_append};

use super::super::entry::Entry;
use super::super::ids::ServerId;
use super::super::message::{Body, CompareChecksums, Envelope, Reply, Request};
use super::super::state::StateChecksum;
use super::entries::{
    encode_entry, read_entry, read_position, read_rank, read_server, read_term, read_version,
    write_position, write_rank,
};
use super::{DecodeError, Reader, put_bytes, put_u64};

/// The version of the frames this code writes, and the only one it reads.
pub const FRAME_VERSION: u8 = 2;

/// The bytes before the body.
pub const FRAME_HEADER_BYTES: usize = 12;

/// The longest body, in bytes. Appends and snapshot chunks are cut to stay
/// far below it.
pub const MAX_FRAME_BYTES: usize = 8 * 1024 * 1024;

/// Why a frame was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// It was written by another version.
    Version(u8),
    /// Its header is not one.
    Header,
    /// It is longer than allowed.
    TooLong(u32),
    /// Its checksum is wrong.
    Checksum,
    /// Its body makes no sense.
    Body(DecodeError),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(found) => write!(
                f,
                "expected a frame of version {FRAME_VERSION}, found version {found} \
                 (another program on this port, or servers of different releases?)"
            ),
            Self::Header => f.write_str("expected a frame, found something else"),
            Self::TooLong(bytes) => write!(
                f,
                "expected a frame of at most {MAX_FRAME_BYTES} bytes, found one of {bytes}"
            ),
            Self::Checksum => f.write_str("a frame was damaged on its way"),
            Self::Body(error) => write!(f, "a frame makes no sense: {error}"),
        }
    }
}

impl core::error::Error for FrameError {}

impl From<DecodeError> for FrameError {
    fn from(error: DecodeError) -> Self {
        Self::Body(error)
    }
}

/// Appends a frame with `envelope` to `to`.
pub fn encode_frame(to: &mut Vec<u8>, envelope: &Envelope) {
    encode_frame_with(crc32c_append, to, envelope);
}

/// The same with a checksum that is faster here, and gives the same numbers.
pub fn encode_frame_with(sum: Checksum, to: &mut Vec<u8>, envelope: &Envelope) {
    let start = to.len();
    to.extend_from_slice(&[FRAME_VERSION, 0, 0, 0]);
    to.extend_from_slice(&[0; 8]);
    encode_envelope(to, envelope);
    let body = &to[start + FRAME_HEADER_BYTES..];
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let checksum = sum(0, body);
    to[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    to[start + 8..start + 12].copy_from_slice(&checksum.to_le_bytes());
}

/// The first frame in `bytes` and how many bytes it took; `None` if more
/// bytes are needed to tell.
///
/// # Errors
/// If no further byte could make it a frame.
pub fn decode_frame(bytes: &[u8]) -> Result<Option<(Envelope, usize)>, FrameError> {
    decode_frame_with(crc32c_append, bytes)
}

/// The same with a checksum that is faster here, and gives the same numbers.
///
/// # Errors
/// As there.
pub fn decode_frame_with(
    sum: Checksum,
    bytes: &[u8],
) -> Result<Option<(Envelope, usize)>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return Ok(None);
    };
    let [version, a, b, c, l0, l1, l2, l3, c0, c1, c2, c3] = *header;
    if version != FRAME_VERSION {
        return Err(FrameError::Version(version));
    }
    if [a, b, c] != [0; 3] {
        return Err(FrameError::Header);
    }
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    let checksum = u32::from_le_bytes([c0, c1, c2, c3]);
    let wanted = usize::try_from(length).unwrap_or(usize::MAX);
    if wanted > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong(length));
    }
    let Some(body) = rest.get(..wanted) else {
        return Ok(None);
    };
    if sum(0, body) != checksum {
        return Err(FrameError::Checksum);
    }
    let envelope = decode_envelope(body)?;
    Ok(Some((envelope, FRAME_HEADER_BYTES + wanted)))
}

/// Writes a message.
pub fn encode_envelope(to: &mut Vec<u8>, envelope: &Envelope) {
    put_u64(to, envelope.from.get());
    put_u64(to, envelope.to.get());
    put_u64(to, envelope.term.get());
    match &envelope.body {
        Body::Request { number, request } => {
            put_u64(to, *number);
            write_request(to, request);
        }
        Body::Reply {
            number,
            asked_in,
            reply,
        } => {
            put_u64(to, *number);
            write_reply(to, reply);
            put_u64(to, asked_in.get());
        }
    }
}

/// Reads a message that fills `bytes`.
///
/// # Errors
/// If it was not written by [`encode_envelope`].
pub fn decode_envelope(bytes: &[u8]) -> Result<Envelope, DecodeError> {
    let from = &mut Reader::foreign(bytes);
    let sender = read_server(from)?;
    let to = read_server(from)?;
    let term = read_term(from)?;
    let number = from.number()?;
    let kind = from.u8()?;
    let body = if kind < REPLIES {
        let request = read_request(kind, from)?;
        Body::Request { number, request }
    } else {
        let reply = read_reply(kind, from)?;
        let asked_in = read_term(from)?;
        Body::Reply {
            number,
            asked_in,
            reply,
        }
    };
    from.end()?;
    Ok(Envelope {
        from: sender,
        to,
        term,
        body,
    })
}

/// Kinds from here on are replies.
const REPLIES: u8 = 64;

fn write_request(to: &mut Vec<u8>, request: &Request) {
    match request {
        Request::PreVote { last } => {
            to.push(0);
            write_position(to, *last);
        }
        Request::Vote { last, transfer } => {
            to.push(1);
            write_position(to, *last);
            to.push(u8::from(*transfer));
        }
        Request::Defer { last } => {
            to.push(2);
            write_position(to, *last);
        }
        Request::Append {
            prev,
            entries,
            commit,
            round,
        } => {
            to.push(3);
            write_position(to, *prev);
            put_u64(to, *commit);
            put_u64(to, *round);
            write_entries(to, entries);
        }
        Request::Heartbeat {
            last,
            commit,
            round,
            time,
            compare_checksums,
        } => {
            to.push(4);
            write_position(to, *last);
            put_u64(to, *commit);
            put_u64(to, *round);
            put_u64(to, *time);
            put_u64(to, compare_checksums.at);
            write_state_checksum(to, compare_checksums.agreed);
        }
        Request::Install {
            last,
            offset,
            bytes,
            total,
            round,
        } => {
            to.push(5);
            write_position(to, *last);
            put_u64(to, *offset);
            put_u64(to, *total);
            put_u64(to, *round);
            put_bytes(to, bytes);
        }
        Request::TimeoutNow => to.push(6),
    }
}

fn read_request(kind: u8, from: &mut Reader<'_>) -> Result<Request, DecodeError> {
    Ok(match kind {
        0 => Request::PreVote {
            last: read_position(from)?,
        },
        1 => Request::Vote {
            last: read_position(from)?,
            transfer: from.bool()?,
        },
        2 => Request::Defer {
            last: read_position(from)?,
        },
        3 => Request::Append {
            prev: read_position(from)?,
            commit: from.number()?,
            round: from.number()?,
            entries: read_entries(from)?,
        },
        4 => Request::Heartbeat {
            last: read_position(from)?,
            commit: from.number()?,
            round: from.number()?,
            time: from.number()?,
            compare_checksums: CompareChecksums {
                at: from.number()?,
                agreed: read_state_checksum(from)?,
            },
        },
        5 => Request::Install {
            last: read_position(from)?,
            offset: from.number()?,
            total: from.number()?,
            round: from.number()?,
            bytes: Arc::from(from.bytes()?),
        },
        6 => Request::TimeoutNow,
        kind => return Err(DecodeError::Kind(kind)),
    })
}

fn write_matched(to: &mut Vec<u8>, matched: Option<u64>) {
    to.push(u8::from(matched.is_some()));
    if let Some(matched) = matched {
        put_u64(to, matched);
    }
}

fn read_matched(from: &mut Reader<'_>) -> Result<Option<u64>, DecodeError> {
    Ok(if from.bool()? {
        Some(from.number()?)
    } else {
        None
    })
}

fn write_state_checksum(to: &mut Vec<u8>, state_checksum: Option<StateChecksum>) {
    to.push(u8::from(state_checksum.is_some()));
    if let Some(StateChecksum { id, hash }) = state_checksum {
        put_u64(to, id);
        to.extend_from_slice(&hash.to_le_bytes());
    }
}

fn read_state_checksum(from: &mut Reader<'_>) -> Result<Option<StateChecksum>, DecodeError> {
    if !from.bool()? {
        return Ok(None);
    }
    let id = from.number()?;
    let hash = u64::from_le_bytes(from.array()?);
    Ok(Some(StateChecksum { id, hash }))
}

/// For how many entries room is made before they have been read.
const ROOM_MAX: usize = 1024;

fn write_entries(to: &mut Vec<u8>, entries: &[Entry]) {
    put_u64(to, entries.len() as u64);
    for entry in entries {
        encode_entry(to, entry);
    }
}

/// Entries of a request follow one another; that they also follow its `prev`
/// is for the receiver to judge.
fn read_entries(from: &mut Reader<'_>) -> Result<Vec<Entry>, DecodeError> {
    let count = from.count()?;
    // Room for what was really sent, not for what was announced: an entry
    // takes many times more memory than the four bytes it may have in a frame.
    let mut entries = Vec::with_capacity(count.min(ROOM_MAX));
    let mut last: Option<(u64, _)> = None;
    for _ in 0..count {
        let entry = read_entry(from)?;
        let follows =
            last.is_none_or(|(id, term)| id.checked_add(1) == Some(entry.id) && term <= entry.term);
        if !follows {
            return Err(DecodeError::Number);
        }
        last = Some((entry.id, entry.term));
        entries.push(entry);
    }
    Ok(entries)
}

fn write_reply(to: &mut Vec<u8>, reply: &Reply) {
    let kind = |number: u8| REPLIES + number;
    match reply {
        Reply::StaleTerm => to.push(kind(0)),
        Reply::PreVoteGranted => to.push(kind(1)),
        Reply::LeaderKnown { leader } => {
            to.push(kind(2));
            put_u64(to, leader.map_or(0, ServerId::get));
        }
        Reply::LogIncomplete { last } => {
            to.push(kind(3));
            write_position(to, *last);
        }
        Reply::NotAMember => to.push(kind(4)),
        Reply::Granted => to.push(kind(5)),
        Reply::AlreadyVoted { voted_for } => {
            to.push(kind(6));
            write_rank(to, voted_for);
        }
        Reply::Deferred => to.push(kind(7)),
        Reply::AlreadyLeader => to.push(kind(8)),
        Reply::NotOutranked { mine } => {
            to.push(kind(9));
            write_rank(to, mine);
        }
        Reply::Appended { matched, round } => {
            to.push(kind(10));
            put_u64(to, *matched);
            put_u64(to, *round);
        }
        Reply::Mismatch {
            last,
            conflict,
            round,
        } => {
            to.push(kind(11));
            write_position(to, *last);
            put_u64(to, *round);
            to.push(u8::from(conflict.is_some()));
            if let Some(conflict) = conflict {
                write_position(to, *conflict);
            }
        }
        Reply::Heard {
            matched,
            last,
            round,
            version,
            state_checksum,
        } => {
            to.push(kind(12));
            write_position(to, *last);
            put_u64(to, *round);
            write_matched(to, *matched);
            put_u64(to, version.get());
            write_state_checksum(to, *state_checksum);
        }
        Reply::Installed {
            last,
            offset,
            done,
            round,
        } => {
            to.push(kind(13));
            write_position(to, *last);
            put_u64(to, *offset);
            to.push(u8::from(*done));
            put_u64(to, *round);
        }
        Reply::Standing => to.push(kind(14)),
    }
}

fn read_reply(kind: u8, from: &mut Reader<'_>) -> Result<Reply, DecodeError> {
    Ok(match kind - REPLIES {
        0 => Reply::StaleTerm,
        1 => Reply::PreVoteGranted,
        2 => Reply::LeaderKnown {
            leader: ServerId::new(from.u64()?),
        },
        3 => Reply::LogIncomplete {
            last: read_position(from)?,
        },
        4 => Reply::NotAMember,
        5 => Reply::Granted,
        6 => Reply::AlreadyVoted {
            voted_for: read_rank(from)?,
        },
        7 => Reply::Deferred,
        8 => Reply::AlreadyLeader,
        9 => Reply::NotOutranked {
            mine: read_rank(from)?,
        },
        10 => Reply::Appended {
            matched: from.number()?,
            round: from.number()?,
        },
        11 => Reply::Mismatch {
            last: read_position(from)?,
            round: from.number()?,
            conflict: if from.bool()? {
                Some(read_position(from)?)
            } else {
                None
            },
        },
        12 => Reply::Heard {
            last: read_position(from)?,
            round: from.number()?,
            matched: read_matched(from)?,
            version: read_version(from)?,
            state_checksum: read_state_checksum(from)?,
        },
        13 => Reply::Installed {
            last: read_position(from)?,
            offset: from.number()?,
            done: from.bool()?,
            round: from.number()?,
        },
        14 => Reply::Standing,
        _ => return Err(DecodeError::Kind(kind)),
    })
}
