//! How every file begins: magic, version, checksum, whose it is.
//!
//! All three kinds of file (identity, segment, snapshot) begin alike: eight
//! bytes that say what the file is, the version of the format, and the
//! checksum of the rest of the header. The first twelve bytes will be read
//! the same way by every version there will ever be, so that an old program
//! can say of a new file that it is new, and not that it is broken.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use tenure_core::ids::Term;

use crate::codec::{decode_hard_state, encode_hard_state};
use crate::{ClusterId, Identity, Position, ServerId, Snapshot, StorageId};

use super::Format;
use super::error::Refused;
use super::group::{SECTOR, SegmentPosition};
use super::record::Checksum;
use super::tail::{NUMBER_MAX, Tail};

/// The newest version this code writes, and reads. Whatever an earlier
/// release can read is still written as that release wrote it, which is
/// version 1; version 2 is a segment whose header names the disk that has
/// this server's vote.
pub const FORMAT_VERSION: u32 = 2;
/// What all headers but those are of.
const FIRST_VERSION: u32 = 1;

/// Magic, version, checksum.
const LEAD_BYTES: usize = 16;
/// Cluster, server, storage.
const OWNER_BYTES: usize = 40;

const IDENTITY_MAGIC: [u8; 8] = *b"TENUREID";
const SEGMENT_MAGIC: [u8; 8] = *b"TENUREWL";
const SNAPSHOT_MAGIC: [u8; 8] = *b"TENURESN";

/// The whole identity file, in bytes.
const IDENTITY_BYTES: usize = LEAD_BYTES + OWNER_BYTES;
/// A snapshot's header, in bytes.
pub(super) const SNAPSHOT_HEADER_BYTES: usize = LEAD_BYTES + OWNER_BYTES + 8 * 3 + 4;
/// Where the hard state stands in a segment's header.
const HARD_AT: usize = 136;

/// Half of the storage id, as group headers carry it.
pub(super) const fn salt(identity: &Identity) -> u64 {
    identity.storage.to_u128() as u64
}

fn begin(magic: [u8; 8], version: u32, identity: &Identity) -> Vec<u8> {
    let mut header = Vec::with_capacity(SECTOR);
    header.extend_from_slice(&magic);
    header.extend_from_slice(&version.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    header.extend_from_slice(&identity.cluster.to_u128().to_le_bytes());
    header.extend_from_slice(&identity.server.get().to_le_bytes());
    header.extend_from_slice(&identity.storage.to_u128().to_le_bytes());
    header
}

fn finish(sum: Checksum, mut header: Vec<u8>) -> Vec<u8> {
    let checksum = sum(0, &header[LEAD_BYTES..]);
    header[12..LEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
    header
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .rev()
        .fold(0, |n, b| n << 8 | u64::from(*b))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4]
        .iter()
        .rev()
        .fold(0, |n, b| n << 8 | u32::from(*b))
}

fn wide(bytes: &[u8], at: usize) -> u128 {
    bytes[at..at + 16]
        .iter()
        .rev()
        .fold(0, |n, b| n << 8 | u128::from(*b))
}

/// Checks how a file begins; the first `length` bytes are its header.
fn open<'a>(
    sum: Checksum,
    file: &str,
    bytes: &'a [u8],
    magic: [u8; 8],
    length: usize,
) -> Result<(&'a [u8], Identity), Refused> {
    let damaged = |at: usize, expected: String, found: String| {
        Refused::damaged(file, at as u64, expected, found)
    };
    if bytes.is_empty() {
        let expected = format!("a header of {length} bytes");
        return Err(damaged(0, expected, "an empty file".to_owned()));
    }
    let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
    if bytes.len() < 12 || bytes[..8] != magic {
        let found = shown(&bytes[..bytes.len().min(8)]);
        return Err(damaged(
            0,
            format!("the magic bytes {}", shown(&magic)),
            found,
        ));
    }
    let version = word(bytes, 8);
    if version > FORMAT_VERSION {
        return Err(Refused::Newer {
            file: file.to_owned(),
            found: version,
            known: FORMAT_VERSION,
        });
    }
    if version < FIRST_VERSION {
        let expected = format!("format version {FIRST_VERSION} to {FORMAT_VERSION}");
        return Err(damaged(8, expected, format!("version {version}")));
    }
    let Some(header) = bytes.get(..length) else {
        let expected = format!("a header of {length} bytes");
        let found = format!("the end of the file after {}", bytes.len());
        return Err(damaged(bytes.len(), expected, found));
    };
    let (wanted, found) = (word(header, 12), sum(0, &header[LEAD_BYTES..]));
    if wanted != found {
        let expected = format!("a header with the checksum {wanted:08x}");
        return Err(damaged(12, expected, format!("one with {found:08x}")));
    }
    let server = ServerId::new(number(header, 32));
    let server =
        server.ok_or_else(|| damaged(32, "the number of a server".to_owned(), "0".to_owned()))?;
    let identity = Identity {
        cluster: ClusterId::from_u128(wide(header, 16)),
        server,
        storage: StorageId::from_u128(wide(header, 40)),
    };
    Ok((header, identity))
}

/// Says whose a file is, if it is not `wanted`'s.
pub(super) fn check_owner(file: &str, wanted: &Identity, found: &Identity) -> Result<(), Refused> {
    if wanted == found {
        return Ok(());
    }
    let (a, b) = if wanted.cluster != found.cluster {
        (
            format!("a file of cluster {}", wanted.cluster),
            format!("one of {}", found.cluster),
        )
    } else if wanted.server != found.server {
        (
            format!("a file of server {}", wanted.server.get()),
            format!("one of server {}", found.server.get()),
        )
    } else {
        (
            format!("a file of storage {}", wanted.storage),
            format!("one of {}", found.storage),
        )
    };
    Err(Refused::misplaced(file, a, b))
}

/// The identity file.
pub(super) fn encode_identity(format: &Format) -> Vec<u8> {
    finish(
        format.sum,
        begin(IDENTITY_MAGIC, FIRST_VERSION, &format.identity),
    )
}

/// Reads the identity file.
pub(super) fn decode_identity(
    sum: Checksum,
    file: &str,
    bytes: &[u8],
) -> Result<Identity, Refused> {
    let (_, identity) = open(sum, file, bytes, IDENTITY_MAGIC, IDENTITY_BYTES)?;
    if bytes.len() > IDENTITY_BYTES {
        let expected = format!("a file of {IDENTITY_BYTES} bytes");
        let found = format!("{}", bytes.len());
        return Err(Refused::damaged(
            file,
            IDENTITY_BYTES as u64,
            expected,
            found,
        ));
    }
    Ok(identity)
}

/// The header of a segment: where it stands in the log, and everything that
/// was said before it and still matters. So the segments before it can go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentStart {
    /// Its number; they follow one another.
    pub segment: u64,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The number of its first group.
    pub group: u64,
    /// Where the groups of the segment before end, in bytes; 0 if there was
    /// none.
    pub previous_end: u64,
    /// The chain value of the last group before it.
    pub chain: u32,
    /// What was said before.
    pub tail: Tail,
}

impl SegmentStart {
    /// The place of its first group.
    pub(super) const fn segment_position(&self, identity: &Identity) -> SegmentPosition {
        SegmentPosition {
            segment: self.segment,
            salt: salt(identity),
            offset: SECTOR as u64,
            group: self.group,
            chain: self.chain,
        }
    }

    /// The header: one sector.
    pub(super) fn encode(&self, format: &Format) -> Vec<u8> {
        let version = if self.tail.hard.names_disk() {
            FORMAT_VERSION
        } else {
            FIRST_VERSION
        };
        let mut header = begin(SEGMENT_MAGIC, version, &format.identity);
        for number in [self.segment, self.bytes, self.group, self.previous_end] {
            header.extend_from_slice(&number.to_le_bytes());
        }
        header.extend_from_slice(&self.chain.to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        let Tail {
            newest, previous, ..
        } = self.tail;
        for number in [
            self.tail.last,
            newest.term.get(),
            newest.id,
            previous.term.get(),
            previous.id,
        ] {
            header.extend_from_slice(&number.to_le_bytes());
        }
        let mut hard = Vec::new();
        encode_hard_state(&mut hard, &self.tail.hard);
        // Seven numbers of at most ten bytes, and a disk of sixteen: it always
        // fits.
        header.push(u8::try_from(hard.len()).unwrap_or(u8::MAX));
        header.extend_from_slice(&hard);
        header.resize(SECTOR, 0);
        finish(format.sum, header)
    }

    /// Reads the header of a segment, and checks that the file is the one
    /// that its name says and has its full length.
    pub(super) fn decode(
        format: &Format,
        file: &str,
        bytes: &[u8],
        segment: u64,
    ) -> Result<Self, Refused> {
        let (header, identity) = open(format.sum, file, bytes, SEGMENT_MAGIC, SECTOR)?;
        check_owner(file, &format.identity, &identity)?;
        let damaged = |at: usize, expected: String, found: String| {
            Refused::damaged(file, at as u64, expected, found)
        };
        let position = |at: usize| {
            let term = Term::new(number(header, at))?;
            Some(Position::new(term, number(header, at + 8)))
        };
        let length = usize::from(header[HARD_AT]);
        let hard = header.get(HARD_AT + 1..HARD_AT + 1 + length);
        let hard = hard.and_then(|bytes| decode_hard_state(bytes).ok());
        let (Some(newest), Some(previous), Some(hard)) = (position(104), position(120), hard)
        else {
            let expected = "terms and a hard state".to_owned();
            return Err(damaged(104, expected, "something else".to_owned()));
        };
        let start = Self {
            segment: number(header, 56),
            bytes: number(header, 64),
            group: number(header, 72),
            previous_end: number(header, 80),
            chain: word(header, 88),
            tail: Tail {
                hard,
                last: number(header, 96),
                newest,
                previous,
            },
        };
        let Tail {
            last,
            newest,
            previous,
            ..
        } = start.tail;
        let numbers = [
            start.segment,
            start.group,
            start.previous_end,
            last,
            newest.id,
            previous.id,
        ];
        if let Some(absurd) = numbers.into_iter().find(|number| *number > NUMBER_MAX) {
            let expected = format!("numbers up to {NUMBER_MAX}");
            return Err(damaged(56, expected, format!("{absurd}")));
        }
        if start.segment != segment {
            let found = format!("segment {} under this name", start.segment);
            return Err(damaged(56, format!("segment {segment}"), found));
        }
        if start.bytes != bytes.len() as u64 || !bytes.len().is_multiple_of(SECTOR) {
            let expected = format!("a file of {} bytes", start.bytes);
            return Err(damaged(
                bytes.len(),
                expected,
                format!("one of {}", bytes.len()),
            ));
        }
        // Or it could not be closed.
        if bytes.len() < 2 * SECTOR {
            let expected = format!("room for a seal: a file of at least {} bytes", 2 * SECTOR);
            return Err(damaged(64, expected, format!("one of {}", bytes.len())));
        }
        Ok(start)
    }
}

/// The header of a snapshot file.
pub fn snapshot_header(format: &Format, snapshot: &Snapshot) -> Vec<u8> {
    let Snapshot { last, bytes } = snapshot;
    let mut header = begin(SNAPSHOT_MAGIC, FIRST_VERSION, &format.identity);
    for number in [last.term.get(), last.id, bytes.len() as u64] {
        header.extend_from_slice(&number.to_le_bytes());
    }
    header.extend_from_slice(&(format.sum)(0, bytes).to_le_bytes());
    finish(format.sum, header)
}

/// Checks a snapshot file, which must be of `last`; the length of its header.
pub(super) fn decode_snapshot(
    format: &Format,
    file: &str,
    bytes: &[u8],
    last: Position,
) -> Result<usize, Refused> {
    let (header, identity) = open(
        format.sum,
        file,
        bytes,
        SNAPSHOT_MAGIC,
        SNAPSHOT_HEADER_BYTES,
    )?;
    check_owner(file, &format.identity, &identity)?;
    let damaged = |at: usize, expected: String, found: String| {
        Refused::damaged(file, at as u64, expected, found)
    };
    let (term, id, length) = (number(header, 56), number(header, 64), number(header, 72));
    if (term, id) != (last.term.get(), last.id) {
        let found = format!("one up to {id}@{term}");
        return Err(damaged(56, format!("a snapshot up to {last}"), found));
    }
    let content = &bytes[SNAPSHOT_HEADER_BYTES..];
    if length != content.len() as u64 {
        let expected = format!("{length} bytes after the header");
        return Err(damaged(bytes.len(), expected, format!("{}", content.len())));
    }
    let (wanted, found) = (word(header, 80), (format.sum)(0, content));
    if wanted != found {
        let expected = format!("content with the checksum {wanted:08x}");
        return Err(damaged(
            SNAPSHOT_HEADER_BYTES,
            expected,
            format!("{found:08x}"),
        ));
    }
    Ok(SNAPSHOT_HEADER_BYTES)
}
