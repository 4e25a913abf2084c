//! The log: opening it, and making batches durable.
//!
//! Whatever is given to one call goes to the disk with one write and one
//! sync. When either fails the log takes nothing more: after a failed sync
//! the system may have thrown the bytes away and say of the next sync that it
//! went well, so the only way to know is to read the disk again.
//!
//! Which is also why opening writes: the newest group may be in the memory of
//! the system and not on the disk (the process was killed before its sync, or
//! the sync failed). It is the only one, so it is written again where it
//! stands, with the same bytes, and synced; what stands behind it of a torn
//! write is overwritten with zeros. Only then is what was read durable.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Batch, LogId, Position, Recovered, Snapshot};

use super::Format;
use super::disk::{Disk, DiskFile as _};
use super::error::{Refused, WalError};
use super::group::{self, SECTOR, SegmentPosition};
use super::header::{self, SegmentStart};
use super::names::{self, Listing};
use super::record::{Record, put_entry};
use super::recover::{self, ClosedSegment, Log, list, refuse_orphans};
use super::tail::Tail;

/// How a log is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long a segment is, in bytes; rounded up to whole sectors. A group
    /// that is longer gets a segment of its own length.
    pub segment_bytes: u64,
}

/// The first segment of a new log is not longer than this.
const FIRST_SEGMENT_BYTES: u64 = 1024 * 1024;

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
        }
    }
}

/// A log on a disk, which nobody else writes.
pub struct Wal<D: Disk + ?Sized> {
    /// The file of the segment that is written.
    file: D::File,
    format: Format,
    options: Options,
    tail: Tail,
    closed: Vec<ClosedSegment>,
    file_bytes: u64,
    segment_position: SegmentPosition,
    highest: LogId,
    /// Kept from call to call, so that it is not made anew.
    buffer: Vec<u8>,
    poisoned: bool,
    disk: Box<D>,
}

impl<D: Disk + ?Sized> core::fmt::Debug for Wal<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Wal")
            .field("identity", self.format.identity())
            .field("tail", &self.tail)
            .field("place", &self.segment_position)
            .field("poisoned", &self.poisoned)
            .finish_non_exhaustive()
    }
}

/// A log that was opened.
#[derive(Debug)]
pub struct Opened<D: Disk + ?Sized> {
    /// The log, to be gone on with.
    pub wal: Wal<D>,
    /// What it said. It is durable.
    pub recovered: Recovered,
    /// A write that never finished and was cut, and where.
    pub torn: Option<String>,
    /// Why an older snapshot was used than the newest, if that is so.
    pub spare_used: Option<WalError<D::Error>>,
}

impl<D: Disk + ?Sized> Wal<D> {
    /// Makes a log on a disk that has none.
    ///
    /// # Errors
    /// [`Refused`] if it has one, [`WalError::Disk`].
    pub fn create(
        disk: Box<D>,
        format: Format,
        options: Options,
    ) -> Result<Self, WalError<D::Error>> {
        let listing = list(&*disk)?;
        if listing.identity {
            let found = recover::identity(&*disk, format.sum)?;
            let found = format!(
                "that of server {}, storage {}",
                found.server.get(),
                found.storage
            );
            let expected = "a directory without a log";
            return Err(Refused::misplaced(names::IDENTITY, expected, found).into());
        }
        refuse_orphans(&*disk, &listing)?;
        let start = SegmentStart {
            segment: 1,
            // A short one: the next may be prepared by then.
            bytes: segment_bytes(options, 0).min(FIRST_SEGMENT_BYTES),
            group: 1,
            previous_end: 0,
            chain: 0,
            tail: Tail::default(),
        };
        let file = create_segment(&*disk, &format, &start)?;
        // The identity comes last: a directory without it was never used.
        let identity = header::encode_identity(&format);
        create_file(&*disk, names::IDENTITY, 0, &[&identity])?;
        sync_names(&*disk)?;
        Ok(Self {
            segment_position: start.segment_position(format.identity()),
            file_bytes: start.bytes,
            disk,
            format,
            options,
            tail: Tail::default(),
            closed: Vec::new(),
            file,
            highest: 0,
            buffer: Vec::new(),
            poisoned: false,
        })
    }

    /// Opens the log that is on a disk, and reads everything back. What is
    /// given back is durable.
    ///
    /// # Errors
    /// [`Refused`] if it is another's, or something that was acknowledged is
    /// not there; [`WalError::Disk`].
    pub fn open(
        disk: Box<D>,
        format: Format,
        options: Options,
    ) -> Result<Opened<D>, WalError<D::Error>> {
        let listing = list(&*disk)?;
        recover::check_identity(&*disk, format.sum, &listing, Some(format.identity()))?;
        let log = recover::read(&*disk, &format, &listing, &mut |_| {})?;
        Self::resume(disk, format, options, &listing, log)
    }

    /// The second half of [`open`](Self::open), for a driver that has read
    /// the segments by itself.
    ///
    /// # Errors
    /// As there.
    pub fn resume(
        disk: Box<D>,
        format: Format,
        options: Options,
        listing: &Listing,
        mut log: Log,
    ) -> Result<Opened<D>, WalError<D::Error>> {
        let (recovered, spare_used) = recover::assemble(&*disk, &format, &mut log)?;
        let file = repair_tail(&*disk, &format, &log)?;
        remove_leftovers(&*disk, listing, &log.tail);
        let wal = Self {
            disk,
            format,
            options,
            tail: log.tail,
            closed: log.closed,
            file,
            file_bytes: log.last.start.bytes,
            segment_position: log.last.segment_position,
            highest: log.last.highest,
            buffer: Vec::new(),
            poisoned: false,
        };
        Ok(Opened {
            wal,
            recovered,
            torn: log.torn,
            spare_used,
        })
    }

    /// The disk it is on.
    pub const fn disk(&self) -> &D {
        &self.disk
    }

    /// Whose log this is, and how it is written.
    pub const fn format(&self) -> &Format {
        &self.format
    }

    /// Makes batches durable, in this order, with one write and one sync for
    /// all of them (and more for snapshots, which get files of their own, and
    /// for a new segment now and then). When it returns they are durable.
    ///
    /// # Errors
    /// [`WalError::Misuse`] if a batch does not follow the log; then nothing
    /// was written and the log goes on. [`WalError::Disk`] if the disk
    /// failed; what was given may be durable or not, and every later call
    /// fails with [`WalError::Poisoned`].
    pub fn append(&mut self, batches: &[Batch]) -> Result<(), WalError<D::Error>> {
        if self.poisoned {
            return Err(WalError::Poisoned);
        }
        let sum = self.encode(batches).map_err(|(expected, found)| {
            WalError::Misuse(format!("{found} in place of {expected}"))
        })?;
        if group::is_empty(&self.buffer) {
            return Ok(());
        }
        let snapshots: Vec<&Snapshot> = batches
            .iter()
            .filter_map(|batch| batch.snapshot.as_ref())
            .collect();
        let written = self.write(&snapshots);
        self.poisoned = written.is_err();
        written?;
        self.tail = sum.tail;
        self.highest = sum.highest.max(if sum.reset { 0 } else { self.highest });
        if sum.reset {
            for closed in &mut self.closed {
                closed.highest = 0;
            }
        }
        if !snapshots.is_empty() {
            self.forget();
        }
        Ok(())
    }

    /// Puts the records of all batches into the buffer and checks that each
    /// follows the one before.
    fn encode(&mut self, batches: &[Batch]) -> Result<EncodedSum, (String, String)> {
        let checksum = self.format.sum;
        let mut sum = EncodedSum {
            tail: self.tail,
            highest: 0,
            reset: false,
        };
        group::begin(&mut self.buffer);
        for batch in batches {
            let mut put = |record: Record| {
                sum.tail.take(&record)?;
                record.encode(checksum, &mut self.buffer);
                Ok::<_, (String, String)>(())
            };
            if let Some(hard) = batch.hard {
                put(Record::Hard(hard))?;
            }
            if let Some(snapshot) = &batch.snapshot {
                let (last, reset) = (snapshot.last, batch.reset);
                put(Record::Snapshot { last, reset })?;
            }
            if let Some(from) = batch.truncate {
                put(Record::Truncate(from))?;
            }
            if batch.snapshot.is_some() && batch.reset {
                sum.reset = true;
                sum.highest = 0;
            }
            for entry in &batch.entries {
                sum.tail.entry(entry.id)?;
                sum.highest = sum.highest.max(entry.id);
                put_entry(checksum, &mut self.buffer, entry);
            }
        }
        Ok(sum)
    }

    /// Writes the snapshots, then the group in the buffer.
    fn write(&mut self, snapshots: &[&Snapshot]) -> Result<(), WalError<D::Error>> {
        for snapshot in snapshots {
            self.keep_snapshot(snapshot)?;
        }
        if !snapshots.is_empty() {
            sync_names(&*self.disk)?;
        }
        // The mark is not in the buffer yet, and a seal must fit behind.
        let needed = group::padded(self.buffer.len() + 1) as u64;
        if self.segment_position.offset + needed + SECTOR as u64 > self.file_bytes {
            self.roll(needed)?;
        }
        let chain = group::finish(self.format.sum, &mut self.buffer, &self.segment_position);
        let offset = self.segment_position.offset;
        let failed = |doing, error| {
            WalError::disk(
                &names::segment(self.segment_position.segment),
                offset,
                doing,
                error,
            )
        };
        self.file
            .write_at(offset, &self.buffer)
            .map_err(|error| failed("write", error))?;
        self.file.sync().map_err(|error| failed("sync", error))?;
        self.segment_position = self.segment_position.after(self.buffer.len(), chain);
        Ok(())
    }

    /// Has a snapshot's file under its name, with all of it on the disk.
    fn keep_snapshot(&self, snapshot: &Snapshot) -> Result<(), WalError<D::Error>> {
        let name = names::snapshot(snapshot.last);
        if let Some(prepared) = self.disk.prepared(snapshot) {
            let renamed = self.disk.rename(&prepared, &name);
            return renamed.map_err(|error| WalError::disk(&prepared, None, "rename", error));
        }
        let header = header::snapshot_header(&self.format, snapshot);
        create_file(&*self.disk, &name, 0, &[&header, &snapshot.bytes])
    }

    /// Goes on in a new segment, with room for a group of `needed` bytes.
    fn roll(&mut self, needed: u64) -> Result<(), WalError<D::Error>> {
        let start = SegmentStart {
            segment: self.segment_position.segment + 1,
            bytes: segment_bytes(self.options, needed),
            group: self.segment_position.group,
            previous_end: self.segment_position.offset,
            chain: self.segment_position.chain,
            tail: self.tail,
        };
        let file = create_segment(&*self.disk, &self.format, &start)?;
        write_seal::<D>(&self.format, &mut self.file, &self.segment_position)?;
        self.closed.push(ClosedSegment {
            number: self.segment_position.segment,
            highest: self.highest,
        });
        self.highest = 0;
        self.file = file;
        self.file_bytes = start.bytes;
        self.segment_position = start.segment_position(self.format.identity());
        Ok(())
    }

    /// Removes what is needed no more after a snapshot: the snapshots before
    /// the last two, and the segments that even the older of the two covers.
    /// A failure here loses only room; it is tried again the next time.
    fn forget(&mut self) {
        match list(&*self.disk) {
            Ok(listing) => remove_leftovers(&*self.disk, &listing, &self.tail),
            Err(error) => {
                let disk = &self.disk;
                disk.warn(format_args!("old snapshots are kept for now: {error}"));
            }
        }
        let covered = self.tail.previous.id;
        while let Some(oldest) = self.closed.first().filter(|it| it.highest <= covered) {
            let name = names::segment(oldest.number);
            // In order and one by one, so that no crash leaves a gap.
            let removed = self
                .disk
                .remove(&name)
                .and_then(|()| self.disk.sync_names());
            if let Err(error) = removed {
                self.disk
                    .warn(format_args!("segment {name} could not be removed: {error}"));
                return;
            }
            self.closed.remove(0);
        }
    }
}

/// What batches come to.
struct EncodedSum {
    tail: Tail,
    highest: LogId,
    reset: bool,
}

fn segment_bytes(options: Options, needed: u64) -> u64 {
    // Its header, the group, a seal.
    let least = needed + 2 * SECTOR as u64;
    options
        .segment_bytes
        .max(least)
        .next_multiple_of(SECTOR as u64)
}

/// Makes a file under another name, complete and synced, and then gives it
/// its own. The caller syncs the names.
fn create_file<D: Disk + ?Sized>(
    disk: &D,
    name: &str,
    bytes: u64,
    parts: &[&[u8]],
) -> Result<(), WalError<D::Error>> {
    let unfinished = names::unfinished(name);
    let failed = |doing, offset, error| WalError::disk(&unfinished, offset, doing, error);
    let mut file = disk
        .create(&unfinished, bytes)
        .map_err(|error| failed("make", None, error))?;
    let mut offset = 0;
    for part in parts {
        file.write_at(offset, part)
            .map_err(|error| failed("write", Some(offset), error))?;
        offset += part.len() as u64;
    }
    file.sync().map_err(|error| failed("sync", None, error))?;
    disk.rename(&unfinished, name)
        .map_err(|error| failed("rename", None, error))
}

fn create_segment<D: Disk + ?Sized>(
    disk: &D,
    format: &Format,
    start: &SegmentStart,
) -> Result<D::File, WalError<D::Error>> {
    let name = names::segment(start.segment);
    create_file(disk, &name, start.bytes, &[&start.encode(format)])?;
    sync_names(disk)?;
    // By its name, by which a disk looks for it with each sync.
    disk.open(&name)
        .map_err(|error| WalError::disk(&name, None, "open for writing", error))
}

fn write_seal<D: Disk + ?Sized>(
    format: &Format,
    file: &mut D::File,
    segment_position: &SegmentPosition,
) -> Result<(), WalError<D::Error>> {
    file.write_at(
        segment_position.offset,
        &group::seal(format.sum, segment_position),
    )
    .and_then(|()| file.sync())
    .map_err(|error| {
        WalError::disk(
            &names::segment(segment_position.segment),
            segment_position.offset,
            "seal",
            error,
        )
    })
}

fn sync_names<D: Disk + ?Sized>(disk: &D) -> Result<(), WalError<D::Error>> {
    disk.sync_names()
        .map_err(|error| WalError::disk("", None, "sync the data directory", error))
}

/// Makes sure that what was read is on disk, and nothing behind it.
fn repair_tail<D: Disk + ?Sized>(
    disk: &D,
    format: &Format,
    log: &Log,
) -> Result<D::File, WalError<D::Error>> {
    let open = |segment: u64| {
        let name = names::segment(segment);
        disk.open(&name)
            .map_err(|error| WalError::disk(&name, None, "open for writing", error))
    };
    let last = &log.last;
    let (offset, bytes) = &last.newest;
    let failed = |doing, offset, error| {
        WalError::disk(&names::segment(last.start.segment), offset, doing, error)
    };
    let mut file = open(last.start.segment)?;
    file.write_at(*offset, bytes)
        .map_err(|error| failed("write again", *offset, error))?;
    let end = last.segment_position.offset;
    if last.dirty_end > end {
        // First the header and then the rest: whatever is left of a write
        // without a header is torn, but half of one with its header may look
        // like damage if this is cut short in turn.
        let length = usize::try_from(last.dirty_end - end).unwrap_or(0);
        let zeros = alloc::vec![0; group::padded(length)];
        let (first, rest) = zeros.split_at(SECTOR);
        for (at, part) in [(end, first), (end + SECTOR as u64, rest)] {
            file.write_at(at, part)
                .and_then(|()| file.sync())
                .map_err(|error| failed("clear a torn write", at, error))?;
        }
    }
    file.sync()
        .map_err(|error| failed("sync", *offset, error))?;
    sync_names(disk)?;
    if *offset == 0
        && let Some(closed) = log.closed.last()
    {
        // The seal before an empty segment may never have reached the disk.
        let segment_position = SegmentPosition {
            segment: closed.number,
            offset: last.start.previous_end,
            ..last.segment_position
        };
        write_seal::<D>(format, &mut open(closed.number)?, &segment_position)?;
    }
    Ok(file)
}

/// Removes files that no recovery would read.
fn remove_leftovers<D: Disk + ?Sized>(disk: &D, listing: &Listing, tail: &Tail) {
    let needed = |at: &&Position| **at != tail.newest && **at != tail.previous;
    let old = listing.snapshots.iter().filter(needed);
    let names = old
        .map(|at| names::snapshot(*at))
        .chain(listing.unfinished.iter().cloned());
    for name in names {
        if let Err(error) = disk.remove(&name) {
            disk.warn(format_args!(
                "{name} is not needed, but could not be removed: {error}"
            ));
        }
    }
}
