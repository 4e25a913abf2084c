//! Reading a log back, on two threads if it is long.
//!
//! What is read, and what is made of it, is decided in `tenure_core::wal`.
//! Here only the files are opened: for a long log a second thread reads the
//! next segment and checks its sums while the entries of the one before it
//! are taken in.

use std::sync::mpsc::{channel, sync_channel};

use tenure_core::wal::{self, Format, Item, Listing, Log, Reading, Walked};

use super::disk::Disk;
use super::error::WalError;

/// Up to so many segments a second thread is not worth its start.
const FEW: usize = 4;

fn walk(
    disk: &dyn Disk,
    format: &Format,
    (number, name): (u64, String),
    mut bytes: Vec<u8>,
) -> Result<Walked, WalError> {
    disk.read(&name, &mut bytes)
        .map_err(|error| WalError::disk(disk.path(&name), None, "read", error))?;
    wal::walk(format, number, bytes).map_err(|refused| WalError::refused(&disk.path(""), refused))
}

/// Reads all segments.
pub(super) fn read(
    disk: &dyn Disk,
    format: &Format,
    listing: &Listing,
    see: &mut dyn FnMut(Item<'_>),
) -> Result<Log, WalError> {
    let segments = listing.segments();
    if segments.len() <= FEW {
        return wal::read(disk, format, listing, see)
            .map_err(|error| WalError::of(&disk.path(""), error));
    }
    let refused = |refused| WalError::refused(&disk.path(""), refused);
    let mut reading = Reading::new(listing, see).map_err(refused)?;
    std::thread::scope(|scope| {
        // Without a queue: one segment is walked while another is taken, and
        // no more of them are in memory.
        let (ahead, walked) = sync_channel(0);
        let (give_back, rooms) = channel::<Vec<u8>>();
        let walk_all = move || {
            for segment in segments {
                let bytes = rooms.try_recv().unwrap_or_default();
                let result = walk(disk, format, segment, bytes);
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
            if let Some(room) = reading.take(segment?).map_err(refused)? {
                // Whoever has walked the last one needs no room.
                let _ = give_back.send(room);
            }
        }
        Ok(())
    })?;
    reading.end().map_err(refused)
}
