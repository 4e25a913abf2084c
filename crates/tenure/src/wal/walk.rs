//! The half of reading that needs no memory of what came before: which groups
//! are in a segment, and whether all of their checksums are right.
//!
//! So it can be done for one segment while the entries of the one before it
//! are still being taken in, and for a long log it is, on a thread of its own.

use std::ops::Range;
use std::sync::mpsc::{channel, sync_channel};

use tenure_core::alpo::Identity;

use super::disk::Disk;
use super::error::WalError;
use super::group::{self, Damage, Found, Place};
use super::header::SegmentStart;
use super::names;

/// Up to so many segments a second thread is not worth its start.
const FEW: usize = 4;

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

/// A segment whose checksums were checked.
pub(super) struct Walked {
    pub(super) bytes: Vec<u8>,
    pub(super) start: SegmentStart,
    pub(super) groups: Vec<Span>,
    /// The place behind the last of them.
    pub(super) place: Place,
    pub(super) end: End,
}

fn walk(
    disk: &dyn Disk,
    identity: &Identity,
    number: u64,
    mut bytes: Vec<u8>,
) -> Result<Walked, WalError> {
    let name = names::segment(number);
    let file = disk.path(&name);
    disk.read(&name, &mut bytes)
        .map_err(|error| WalError::disk(file.clone(), None, "read", error))?;
    let start = SegmentStart::decode(&file, &bytes, number, identity)?;
    let mut place = start.place(identity);
    let mut groups = Vec::new();
    let end = loop {
        let mut found = group::look(&bytes, &place);
        if let Found::Group(group) = &found {
            match group::check(&bytes, group) {
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

/// Gives the segments to `take`, in order. What it gives back is room for the
/// bytes of another.
pub(super) fn each(
    disk: &dyn Disk,
    identity: &Identity,
    segments: &[u64],
    mut take: impl FnMut(Walked) -> Result<Option<Vec<u8>>, WalError>,
) -> Result<(), WalError> {
    if segments.len() <= FEW {
        let mut room = None;
        for number in segments {
            let bytes = room.take().unwrap_or_default();
            room = take(walk(disk, identity, *number, bytes)?)?;
        }
        return Ok(());
    }
    std::thread::scope(|scope| {
        // Without a queue: one segment is walked while another is taken, and
        // no more of them are in memory.
        let (ahead, walked) = sync_channel(0);
        let (give_back, rooms) = channel::<Vec<u8>>();
        let walk_all = move || {
            for number in segments {
                let bytes = rooms.try_recv().unwrap_or_default();
                let result = walk(disk, identity, *number, bytes);
                let failed = result.is_err();
                if ahead.send(result).is_err() || failed {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("tenure-wal-read".into())
            .spawn_scoped(scope, walk_all)
            .map_err(|error| WalError::disk(disk.path(""), None, "start a thread for", error))?;
        for segment in walked {
            if let Some(room) = take(segment?)? {
                // Whoever has walked the last one needs no room.
                let _ = give_back.send(room);
            }
        }
        Ok(())
    })
}
