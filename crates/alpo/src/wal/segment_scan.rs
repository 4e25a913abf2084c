//! The half of reading that needs no memory of what came before: which groups
//! are in a segment, whether all of their checksums are right, and what their
//! records say.
//!
//! So a driver can do it for one segment while the entries of the one before
//! it are still being taken in (see `recover`).

use alloc::string::String;
use alloc::vec::Vec;

use super::Format;
use super::error::Refused;
use super::group::{self, Damage, FoundGroup, Group, SECTOR, SegmentPosition};
use super::header::SegmentStart;
use super::names;
use super::record::Record;
use crate::Bug;

/// A group that is whole.
pub(super) struct GroupSpan {
    pub(super) segment_position: SegmentPosition,
    /// Where its records begin in the segment.
    pub(super) body_at: usize,
    /// How many there are.
    pub(super) records: usize,
    /// All of it with its padding.
    pub(super) bytes: usize,
}

/// What is needed to read a segment. It comes back when the segment was taken
/// in, so that the next one needs no fresh memory.
#[derive(Default)]
pub struct ReadBuffers {
    /// The file; to be filled before the walk.
    pub bytes: Vec<u8>,
    /// All records of all groups, each with its length.
    pub(super) records: Vec<(Record, usize)>,
}

/// How the groups of a segment end.
pub(super) enum SegmentEnd {
    /// With nothing behind them.
    Zeros,
    /// With the seal.
    Seal,
    /// With a write that never finished, and how that is known.
    Torn(String),
    /// With damage.
    Damaged(Damage),
}

/// A segment whose checksums were checked; all its bytes are inside.
pub struct ScannedSegment {
    pub(super) buffers: ReadBuffers,
    pub(super) start: SegmentStart,
    pub(super) groups: Vec<GroupSpan>,
    /// The place behind the last of them.
    pub(super) segment_position: SegmentPosition,
    pub(super) end: SegmentEnd,
}

impl ScannedSegment {
    /// Where the last group begins, and all of it; the header of the segment
    /// if it has none.
    pub(super) fn newest(&self) -> (u64, &[u8]) {
        let newest = self.groups.last();
        let (offset, bytes) = newest.map_or((0, SECTOR), |span| {
            (span.segment_position.offset, span.bytes)
        });
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        (offset, &self.buffers.bytes[from..from + bytes])
    }
}

/// Walks through the file of segment `number`, all of it. Damage behind its
/// header is no error yet: what the next segment says may matter more.
///
/// # Errors
/// [`Refused`] if its header is not that of this segment of this server.
pub fn scan_segment(
    format: &Format,
    number: u64,
    mut buffers: ReadBuffers,
) -> Result<ScannedSegment, Refused> {
    let sum = format.sum;
    let ReadBuffers { bytes, records } = &mut buffers;
    records.clear();
    let start = SegmentStart::decode(format, &names::segment(number), bytes, number)?;
    let mut segment_position = start.segment_position(&format.identity);
    let mut groups = Vec::new();
    let end = loop {
        let mut found = group::read_group(sum, bytes, &segment_position);
        if let FoundGroup::Group(group) = &found {
            match group::check(sum, bytes, group) {
                Ok(chain) => {
                    let before = records.len();
                    if let Err(damage) = decode(group, records) {
                        break SegmentEnd::Damaged(damage);
                    }
                    groups.push(GroupSpan {
                        segment_position,
                        body_at: group.body_at,
                        records: records.len() - before,
                        bytes: group.bytes,
                    });
                    segment_position = segment_position.after(group.bytes, chain);
                    continue;
                }
                Err(bad) => found = bad,
            }
        }
        break match found {
            FoundGroup::Group(_) | FoundGroup::SegmentEnd => SegmentEnd::Zeros,
            FoundGroup::Seal => SegmentEnd::Seal,
            FoundGroup::Torn(why) => SegmentEnd::Torn(why),
            FoundGroup::Damaged(damage) if format.planted.is(Bug::DamageCut) => {
                SegmentEnd::Torn(damage.found)
            }
            FoundGroup::Damaged(damage) => SegmentEnd::Damaged(damage),
        };
    };
    Ok(ScannedSegment {
        buffers,
        start,
        groups,
        segment_position,
        end,
    })
}

/// Decodes the records of a group. The checksums are right, so whatever is
/// wrong with one of them is no tear.
fn decode(group: &Group<'_>, records: &mut Vec<(Record, usize)>) -> Result<(), Damage> {
    for (at, frame) in group::frames(group.body) {
        let record = group::decode(&frame, group.body_at + at)?;
        records.push((record, frame.bytes));
    }
    Ok(())
}
