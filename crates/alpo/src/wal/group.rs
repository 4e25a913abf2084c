//! Groups, and how a torn write is told from damage, the corruption of what was
//! durable (`docs/design/alpo.md`, H14).
//!
//! A *group* is what one write of the group commit puts on disk: a header, the
//! records of all batches that were waiting, a last byte that is never zero, and
//! zeros up to the next multiple of 512 bytes, so that no sector holds bytes of
//! two groups.
//! The log writes a group only after the sync of the one before succeeded, and
//! only over zeros.
//!
//! After a crash the newest group may be there, or not, or be torn; nothing
//! else can be wrong. To lose a torn group is right: no one was told that it
//! was durable. To lose anything else breaks a promise. So the question at a
//! damaged place is which of the two it is, and the argument goes like this.
//!
//! 1. *Any byte behind the damaged group proves that it was synced*, because
//!    the next group was written only then. So damage with anything but zeros
//!    behind it (or a later segment) is refused. If the header itself is
//!    unreadable, the length of the group is unknown, and what proves it is
//!    the header of a later group, found by looking at every sector. A later
//!    header carries its own offset, its segment and half of the storage id,
//!    so bytes of a user that look like one are not taken for it.
//! 2. *A tear leaves zeros.* A write that power cut short has put some of its
//!    sectors on disk and not others, in any order: holes, and the holes hold
//!    the zeros that were there before. A write that the system cut short (a
//!    full disk) has put down its first bytes, and zeros follow. So a group
//!    is torn if it has more sectors that are all zeros than it should (its
//!    header says how many it has by itself), or if its last byte, which is
//!    never zero, is zero. Its header is in one sector and so is there whole
//!    or not at all, unless the system cut the write inside of it; then its
//!    last byte is zero and so is everything after.
//! 3. *Everything else is damage*, also in the newest group: a flipped bit
//!    makes no sector disappear. It is refused, though the group may not have
//!    been acknowledged, since it may have been.
//!
//! What remains: a sector of the newest group that reads as zeros although it
//! was synced, or a newest group that vanished as a whole, looks exactly like
//! a write that never came, and is cut. No log without a second sync for each
//! write can tell; a disk that loses whole synced writes loses the newest.
//!
//! A file that has become shorter is always damage: its full length is on
//! disk before its first group is.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::DecodeError;

use super::record::{
    Checksum, FRAME_BYTES, Frame, GROUP, Record, SEAL, chain, frame, frame_unchecked, put,
};

/// What a disk writes whole or not at all, in bytes.
pub(super) const SECTOR: usize = 512;
/// The last byte of a header and of a group. More than one bit is set, so
/// that no single flipped one makes it zero.
const END_MARK: u8 = 0xa5;
/// A group's header with its frame.
const HEADER_BYTES: usize = FRAME_BYTES + 8 * 5 + 4 + 4 + 1;

/// Where a group stands: what its header must say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentPosition {
    /// The number of the segment.
    pub(super) segment: u64,
    /// Half of the storage id.
    pub(super) salt: u64,
    /// The offset in the segment, in bytes.
    pub(super) offset: u64,
    /// The number of the group, counted over all segments.
    pub(super) group: u64,
    /// A checksum of the checksums of all records of the group before, its
    /// header among them, which holds that of the one before it: so the groups
    /// are a chain, and none can be missing or from elsewhere.
    pub(super) chain: u32,
}

impl SegmentPosition {
    /// The place of the group after one of `bytes` at this place.
    pub(super) const fn after(self, bytes: usize, chain: u32) -> Self {
        Self {
            offset: self.offset.saturating_add(bytes as u64),
            group: self.group.saturating_add(1),
            chain,
            ..self
        }
    }
}

/// `bytes` rounded up to whole sectors.
pub(super) const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(SECTOR)
}

/// Makes room for a header at the start of an empty buffer; records follow.
pub(super) fn begin(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER_BYTES, 0);
}

/// Whether nothing was put into a buffer since [`begin`].
pub(super) const fn is_empty(buffer: &[u8]) -> bool {
    buffer.len() <= HEADER_BYTES
}

/// Closes the group in `buffer`: mark, padding, header. The group's chain
/// value comes back.
pub(super) fn finish(
    sum: Checksum,
    buffer: &mut Vec<u8>,
    segment_position: &SegmentPosition,
) -> u32 {
    buffer.push(END_MARK);
    let length = buffer.len();
    buffer.resize(padded(length), 0);
    let blank = blank_sectors(buffer, HEADER_BYTES);
    let mut header = Vec::with_capacity(HEADER_BYTES);
    put(sum, &mut header, GROUP, |to| {
        for number in [
            segment_position.group,
            segment_position.segment,
            segment_position.offset,
            length as u64,
            segment_position.salt,
        ] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        to.extend_from_slice(&blank.to_le_bytes());
        to.extend_from_slice(&segment_position.chain.to_le_bytes());
        to.push(END_MARK);
    });
    buffer[..HEADER_BYTES].copy_from_slice(&header);
    let end = length - 1;
    frames(&buffer[..end]).fold(0, |so_far, (_, frame)| chain(sum, so_far, frame.checksum))
}

/// The records that fill `bytes`, which were checked before, each with its
/// offset.
pub(super) fn frames(bytes: &[u8]) -> impl Iterator<Item = (usize, Frame<'_>)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let frame = frame_unchecked(bytes.get(at..)?)?;
        let offset = at;
        at += frame.bytes;
        Some((offset, frame))
    })
}

/// The seal that ends a segment at `segment_position`: a sector.
pub(super) fn seal(sum: Checksum, segment_position: &SegmentPosition) -> Vec<u8> {
    let mut sector = Vec::with_capacity(SECTOR);
    put(sum, &mut sector, SEAL, |to| {
        for number in [
            segment_position.segment,
            segment_position.offset,
            segment_position.salt,
        ] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        to.extend_from_slice(&segment_position.chain.to_le_bytes());
        to.push(END_MARK);
    });
    sector.resize(SECTOR, 0);
    sector
}

/// A group that is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    /// Its records and nothing else.
    pub(super) body: &'a [u8],
    /// Where they begin in the segment, in bytes.
    pub(super) body_at: usize,
    /// All of it with its padding, in bytes.
    pub(super) bytes: usize,
    /// Its header's part of the chain.
    head: u32,
}

/// What is wrong at a place of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Damage {
    pub(super) offset: u64,
    pub(super) expected: String,
    pub(super) found: String,
    /// It is whole, and of a kind that only a later release knows.
    pub(super) later: bool,
}

impl Damage {
    pub(super) fn new(offset: usize, (expected, found): (String, String)) -> Self {
        Self {
            offset: offset as u64,
            expected,
            found,
            later: false,
        }
    }
}

/// What stands where a group should.
#[derive(Clone, Debug)]
pub(super) enum FoundGroup<'a> {
    /// A group. Its header and bounds are checked, its records are not yet.
    Group(Group<'a>),
    /// Nothing but zeros up to the end of the segment.
    SegmentEnd,
    /// The seal: the log goes on in the next segment.
    Seal,
    /// A write that never finished, and why that is certain.
    Torn(String),
    /// Something that was acknowledged, or may have been, is damaged.
    Damaged(Damage),
}

/// Looks for a group at `segment_position` in a whole segment.
pub(super) fn read_group<'a>(
    sum: Checksum,
    segment: &'a [u8],
    segment_position: &SegmentPosition,
) -> FoundGroup<'a> {
    let at = usize::try_from(segment_position.offset).unwrap_or(usize::MAX);
    let Some(rest) = segment.get(at..).filter(|rest| !rest.is_empty()) else {
        return FoundGroup::SegmentEnd;
    };
    let first = &rest[..rest.len().min(SECTOR)];
    // Nothing where the header belongs, whatever stands behind it: so it is
    // while a torn write is being cleared, and after one that lost its first
    // sector.
    if is_zero(&first[..first.len().min(HEADER_BYTES)]) {
        return without_header(sum, segment, at, segment_position, None);
    }
    match frame(sum, first) {
        Ok(frame) if frame.kind == SEAL => judge_seal(sum, first, at, segment_position),
        Ok(frame) => match header(&frame, segment_position, rest.len()) {
            Ok((length, blank)) => FoundGroup::Group(Group {
                body: &rest[HEADER_BYTES..length - 1],
                body_at: at + HEADER_BYTES,
                bytes: padded(length),
                head: chain(sum, 0, frame.checksum),
            })
            .whole_or(segment, at, length, blank),
            Err(wrong) => FoundGroup::Damaged(Damage::new(at, wrong)),
        },
        Err(wrong) => without_header(sum, segment, at, segment_position, Some(wrong)),
    }
}

impl<'a> FoundGroup<'a> {
    /// Checks what a group's header cannot: that all of the group is there.
    /// Only the records' own checksums are left to check.
    fn whole_or(self, segment: &'a [u8], at: usize, length: usize, blank: u32) -> Self {
        let end = at + length;
        let padding = &segment[end..at + padded(length)];
        let wrong = if segment[end - 1] != END_MARK {
            let found = format!("{:02x}", segment[end - 1]);
            Damage::new(end - 1, (format!("the last byte {END_MARK:02x}"), found))
        } else if !is_zero(padding) {
            let found = "something else".to_owned();
            Damage::new(end, ("zeros up to the next sector".to_owned(), found))
        } else {
            return self;
        };
        judge(segment, at, length, blank, wrong)
    }
}

/// Checks a group's records: each must be whole, and they must fill the group.
/// The group's value for the chain comes back.
pub(super) fn check<'a>(
    sum: Checksum,
    segment: &[u8],
    group: &Group<'a>,
) -> Result<u32, FoundGroup<'a>> {
    let mut at = 0;
    let mut so_far = group.head;
    while at < group.body.len() {
        match frame(sum, &group.body[at..]) {
            Ok(frame) => {
                so_far = chain(sum, so_far, frame.checksum);
                at += frame.bytes;
            }
            Err(wrong) => {
                let start = group.body_at - HEADER_BYTES;
                let length = HEADER_BYTES + group.body.len() + 1;
                let blank = word(&segment[start + FRAME_BYTES + 40..]);
                let damage = Damage::new(group.body_at + at, wrong);
                return Err(judge(segment, start, length, blank, damage));
            }
        }
    }
    Ok(so_far)
}

/// Decodes a frame of a group's record, which stands at `offset`.
pub(super) fn decode(frame: &Frame<'_>, offset: usize) -> Result<Record, Damage> {
    Record::decode(frame.kind, frame.payload).map_err(|error| {
        let expected = "a record that this release could have written".to_owned();
        Damage {
            later: matches!(error, DecodeError::Kind(_)),
            ..Damage::new(offset, (expected, format!("{error}")))
        }
    })
}

/// Torn or damaged? For a group whose header can be read.
fn judge<'a>(
    segment: &[u8],
    at: usize,
    length: usize,
    blank: u32,
    damage: Damage,
) -> FoundGroup<'a> {
    let end = at + padded(length);
    if let Some(byte) = first_not_zero(&segment[end..]) {
        let found = format!(
            "{} (with more behind it at byte {}, so it had been acknowledged)",
            damage.found,
            end + byte
        );
        return FoundGroup::Damaged(Damage { found, ..damage });
    }
    let missing = blank_sectors(&segment[at..end], 0).saturating_sub(blank);
    if missing > 0 {
        return FoundGroup::Torn(format!("{missing} sectors of it were never written"));
    }
    if segment[at + length - 1] == 0 {
        return FoundGroup::Torn("its end was never written".to_owned());
    }
    FoundGroup::Damaged(damage)
}

/// Torn or damaged? For a place without a header that can be read.
fn without_header<'a>(
    sum: Checksum,
    segment: &'a [u8],
    at: usize,
    segment_position: &SegmentPosition,
    wrong: Option<(String, String)>,
) -> FoundGroup<'a> {
    let rest = &segment[at..];
    if let Some(later) = later_header(sum, segment, at, segment_position) {
        let expected = format!("group {} of the log", segment_position.group);
        let found = wrong.map_or_else(|| "zeros".to_owned(), |(_, found)| found);
        let found =
            format!("{found} (with a later group at byte {later}, so it had been acknowledged)");
        return FoundGroup::Damaged(Damage::new(at, (expected, found)));
    }
    match (wrong, first_not_zero(rest)) {
        (None, None) => FoundGroup::SegmentEnd,
        (None, Some(byte)) => FoundGroup::Torn(format!(
            "its header was never written, but bytes at {} were",
            at + byte
        )),
        // Nothing after a part of a header, not even the end of that part.
        (Some(_), _) if rest.len() >= HEADER_BYTES && is_zero(&rest[HEADER_BYTES - 1..]) => {
            FoundGroup::Torn("the end of its header was never written".to_owned())
        }
        (Some(wrong), _) => FoundGroup::Damaged(Damage::new(at, wrong)),
    }
}

fn later_header(
    sum: Checksum,
    segment: &[u8],
    at: usize,
    segment_position: &SegmentPosition,
) -> Option<usize> {
    (at + SECTOR..segment.len()).step_by(SECTOR).find(|later| {
        let sector = &segment[*later..segment.len().min(later + SECTOR)];
        let Ok(frame) = frame(sum, sector) else {
            return false;
        };
        let [_, segment, offset, _, salt] = numbers(frame.payload);
        frame.kind == GROUP
            && frame.payload.len() == HEADER_BYTES - FRAME_BYTES
            && segment == segment_position.segment
            && offset == *later as u64
            && salt == segment_position.salt
    })
}

/// The length and the blank sectors of a group, from its header. Behind it
/// there is room for the seal, or for the next group with one: the log leaves
/// it, and could not close the segment without.
fn header(
    frame: &Frame<'_>,
    segment_position: &SegmentPosition,
    room: usize,
) -> Result<(usize, u32), (String, String)> {
    if frame.kind != GROUP || frame.bytes != HEADER_BYTES {
        let found = format!("a record of kind {}", frame.kind);
        return Err(("the header of a group".to_owned(), found));
    }
    let [group, segment, offset, length, salt] = numbers(frame.payload);
    let chain = word(&frame.payload[44..]);
    let found = SegmentPosition {
        segment,
        salt,
        offset,
        group,
        chain,
    };
    if found != *segment_position {
        return Err((
            format!("the header of {}", describe(segment_position)),
            format!("that of {}", describe(&found)),
        ));
    }
    let room = room.saturating_sub(SECTOR);
    match usize::try_from(length) {
        Ok(length) if length > HEADER_BYTES && length <= room && padded(length) <= room => {
            Ok((length, word(&frame.payload[40..])))
        }
        _ => Err((
            format!("a group of {HEADER_BYTES} bytes and more that leaves room for a seal"),
            format!("a length of {length}, where {room} bytes are left"),
        )),
    }
}

fn describe(segment_position: &SegmentPosition) -> String {
    format!(
        "group {} at byte {} of segment {} (chain {:08x}, storage {:016x})",
        segment_position.group,
        segment_position.offset,
        segment_position.segment,
        segment_position.chain,
        segment_position.salt
    )
}

fn judge_seal<'a>(
    sum: Checksum,
    sector: &[u8],
    at: usize,
    segment_position: &SegmentPosition,
) -> FoundGroup<'a> {
    if sector == seal(sum, segment_position) {
        return FoundGroup::Seal;
    }
    let expected = format!("the seal at the end of {}", describe(segment_position));
    FoundGroup::Damaged(Damage::new(at, (expected, "that of another".to_owned())))
}

/// The first five numbers of a header's payload; zeros where it is too short.
fn numbers(payload: &[u8]) -> [u64; 5] {
    let mut numbers = [0; 5];
    for (number, bytes) in numbers.iter_mut().zip(payload.chunks_exact(8)) {
        *number = bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    }
    numbers
}

fn word(bytes: &[u8]) -> u32 {
    bytes[..4]
        .iter()
        .rev()
        .fold(0, |n, b| n << 8 | u32::from(*b))
}

/// How many whole sectors are zeros, beginning to look at `from`.
fn blank_sectors(group: &[u8], from: usize) -> u32 {
    let mut sectors = group.chunks_exact(SECTOR);
    // A header that is still to be written makes its sector not blank.
    let first = sectors
        .next()
        .is_some_and(|first| from == 0 && is_zero(first));
    let blank = sectors.filter(|sector| is_zero(sector)).count();
    u32::try_from(blank).unwrap_or(u32::MAX) + u32::from(first)
}

/// Whether there is nothing but zeros.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    first_not_zero(bytes).is_none()
}

/// Where the first byte is that is not zero. A page at a time, because whole
/// segments are looked through.
pub(super) fn first_not_zero(bytes: &[u8]) -> Option<usize> {
    static ZEROS: [u8; 4096] = [0; 4096];
    let page = bytes
        .chunks(ZEROS.len())
        .position(|page| page != &ZEROS[..page.len()])?;
    let start = page * ZEROS.len();
    let within = bytes[start..].iter().position(|byte| *byte != 0)?;
    Some(start + within)
}

/// Where the last byte ends that is not zero.
pub(super) fn end_of_content(bytes: &[u8]) -> usize {
    static ZEROS: [u8; 4096] = [0; 4096];
    let mut end = bytes.len();
    while end >= ZEROS.len() && bytes[end - ZEROS.len()..end] == ZEROS {
        end -= ZEROS.len();
    }
    bytes[..end]
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1)
}
