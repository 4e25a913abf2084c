//! Reading a log back, on several threads if it is long.
//!
//! What is read, and what is made of it, is decided in `tenure_alpo::wal`.
//! Here only the files are opened: for a long log some threads read segments,
//! check their sums and decode their records, in turns, while the entries of
//! the ones before are taken in. Most of the time of a first recovery goes
//! into touching fresh memory, for what the entries hold; that is shared too.

use std::collections::VecDeque;
use std::sync::mpsc::{channel, sync_channel};

use tenure_alpo::wal::{self, Format, Item, Listing, Log, LogReader, ReadBuffers, ScannedSegment};

use super::disk::Disk;
use super::error::WalError;

/// Up to so many segments other threads are not worth their start.
const FEW: usize = 4;
/// More threads than this would wait for the one that takes the entries in.
const MANY: usize = 4;

fn walk(
    disk: &dyn Disk,
    format: &Format,
    (number, name): (u64, String),
    mut room: ReadBuffers,
) -> Result<ScannedSegment, WalError> {
    disk.read(&name, &mut room.bytes)
        .map_err(|error| WalError::disk(disk.path(&name), None, "read", error))?;
    wal::scan_segment(format, number, room)
        .map_err(|refused| WalError::refused(&disk.path(""), refused))
}

/// Reads all segments.
pub(super) fn read(
    disk: &dyn Disk,
    format: &Format,
    listing: &Listing,
    see: &mut dyn FnMut(Item<'_>),
) -> Result<Log, WalError> {
    if listing.segments().len() <= FEW {
        return wal::read(disk, format, listing, see)
            .map_err(|error| WalError::of(&disk.path(""), error));
    }
    let refused = |refused| WalError::refused(&disk.path(""), refused);
    let mut reading = LogReader::new(listing, see).map_err(refused)?;
    std::thread::scope(|scope| {
        let walkers = std::thread::available_parallelism().map_or(1, |count| count.get().min(MANY));
        let mut turns = VecDeque::new();
        for first in 0..walkers {
            // Without a queue: a thread that has scanned a segment waits until
            // it is its turn, and no more of them are in memory.
            let (ahead, walked) = sync_channel(0);
            let (give_back, rooms) = channel::<ReadBuffers>();
            let mine = listing.segments().skip(first).step_by(walkers);
            let walk_mine = move || {
                for segment in mine {
                    let room = rooms.try_recv().unwrap_or_default();
                    let result = walk(disk, format, segment, room);
                    let failed = result.is_err();
                    if ahead.send(result).is_err() || failed {
                        return;
                    }
                }
            };
            std::thread::Builder::new()
                .name("tenure-wal-read".into())
                .spawn_scoped(scope, walk_mine)
                .map_err(|error| {
                    WalError::disk(disk.path(""), None, "start a thread for", error)
                })?;
            turns.push_back((walked, give_back));
        }
        // In order: each has every so many-th segment, and the first that has
        // no more has had the last but those of the others.
        while let Some((walked, give_back)) = turns.pop_front() {
            if let Ok(segment) = walked.recv() {
                let room = reading.take(segment?).map_err(refused)?;
                // A thread that has scanned its last one needs no buffers.
                let _ = give_back.send(room);
                turns.push_back((walked, give_back));
            }
        }
        Ok(())
    })?;
    reading.end().map_err(refused)
}
