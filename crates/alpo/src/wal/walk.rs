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
use super::group::{self, Damage, Found, Group, Place, SECTOR};
use super::header::SegmentStart;
use super::names;
use super::record::Record;
use crate::Bug;

/// A group that is whole.
pub(super) struct Span {
    pub(super) place: Place,
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
pub struct Room {
    /// The file; to be filled before the walk.
    pub bytes: Vec<u8>,
    /// All records of all groups, each with its length.
    pub(super) records: Vec<(Record, usize)>,
}

/// How the groups of a segment end.
pub(super) enum End {
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
pub struct Walked {
    pub(super) room: Room,
    pub(super) start: SegmentStart,
    pub(super) groups: Vec<Span>,
    /// The place behind the last of them.
    pub(super) place: Place,
    pub(super) end: End,
}

impl Walked {
    /// Where the last group begins, and all of it; the header of the segment
    /// if it has none.
    pub(super) fn newest(&self) -> (u64, &[u8]) {
        let newest = self.groups.last();
        let (offset, bytes) = newest.map_or((0, SECTOR), |span| (span.place.offset, span.bytes));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        (offset, &self.room.bytes[from..from + bytes])
    }
}

/// Walks through the file of segment `number`, all of it. Damage behind its
/// header is no error yet: what the next segment says may matter more.
///
/// # Errors
/// [`Refused`] if its header is not that of this segment of this server.
pub fn walk(format: &Format, number: u64, mut room: Room) -> Result<Walked, Refused> {
    let sum = format.sum;
    let Room { bytes, records } = &mut room;
    records.clear();
    let start = SegmentStart::decode(format, &names::segment(number), bytes, number)?;
    let mut place = start.place(&format.identity);
    let mut groups = Vec::new();
    let end = loop {
        let mut found = group::look(sum, bytes, &place);
        if let Found::Group(group) = &found {
            match group::check(sum, bytes, group) {
                Ok(chain) => {
                    let before = records.len();
                    if let Err(damage) = decode(group, records) {
                        break End::Damaged(damage);
                    }
                    groups.push(Span {
                        place,
                        body_at: group.body_at,
                        records: records.len() - before,
                        bytes: group.bytes,
                    });
                    place = place.after(group.bytes, chain);
                    continue;
                }
                Err(bad) => found = bad,
            }
        }
        break match found {
            Found::Group(_) | Found::End => End::Zeros,
            Found::Seal => End::Seal,
            Found::Torn(why) => End::Torn(why),
            Found::Damaged(damage) if format.planted.is(Bug::DamageCut) => End::Torn(damage.found),
            Found::Damaged(damage) => End::Damaged(damage),
        };
    };
    Ok(Walked {
        room,
        start,
        groups,
        place,
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
