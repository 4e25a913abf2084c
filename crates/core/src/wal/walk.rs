//! The half of reading that needs no memory of what came before: which groups
//! are in a segment, and whether all of their checksums are right.
//!
//! So a driver can do it for one segment while the entries of the one before
//! it are still being taken in (see `recover`).

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use super::Format;
use super::error::Refused;
use super::group::{self, Damage, Found, Place};
use super::header::SegmentStart;
use super::names;
use crate::alpo::Bug;

/// A group that is whole.
pub(super) struct Span {
    pub(super) place: Place,
    /// Where its records are in the segment.
    pub(super) body: Range<usize>,
    /// All of it with its padding.
    pub(super) bytes: usize,
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
    pub(super) bytes: Vec<u8>,
    pub(super) start: SegmentStart,
    pub(super) groups: Vec<Span>,
    /// The place behind the last of them.
    pub(super) place: Place,
    pub(super) end: End,
}

/// Walks through all `bytes` of the file of segment `number`. Damage behind
/// its header is no error yet: what the next segment says may matter more.
///
/// # Errors
/// [`Refused`] if its header is not that of this segment of this server.
pub fn walk(format: &Format, number: u64, bytes: Vec<u8>) -> Result<Walked, Refused> {
    let sum = format.sum;
    let start = SegmentStart::decode(format, &names::segment(number), &bytes, number)?;
    let mut place = start.place(&format.identity);
    let mut groups = Vec::new();
    let end = loop {
        let mut found = group::look(sum, &bytes, &place);
        if let Found::Group(group) = &found {
            match group::check(sum, &bytes, group) {
                Ok(chain) => {
                    groups.push(Span {
                        place,
                        body: group.body_at..group.body_at + group.body.len(),
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
            Found::Damaged(damage) if format.planted(Bug::DamageCut) => End::Torn(damage.found),
            Found::Damaged(damage) => End::Damaged(damage),
        };
    };
    Ok(Walked {
        bytes,
        start,
        groups,
        place,
        end,
    })
}
