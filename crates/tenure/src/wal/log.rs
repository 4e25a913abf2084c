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

use std::path::{Path, PathBuf};

use tenure_core::alpo::{Batch, Identity, LogId, Position, Recovered, Snapshot};

use super::disk::{Directory, Disk, DiskFile};
use super::error::WalError;
use super::group::{self, Place, SECTOR};
use super::header::{self, SegmentStart};
use super::names::{self, Listing};
use super::record::{Record, put_entry};
use super::recover::{self, Closed, Log};
use super::tail::Tail;

/// How a log is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long a segment is, in bytes; rounded up to whole sectors. A group
    /// that is longer gets a segment of its own length.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
        }
    }
}

/// A log on disk that this process writes.
pub struct Wal {
    disk: Box<dyn Disk>,
    identity: Identity,
    options: Options,
    tail: Tail,
    closed: Vec<Closed>,
    /// The segment that is written.
    file: Box<dyn DiskFile>,
    file_bytes: u64,
    place: Place,
    highest: LogId,
    /// Kept from call to call, so that it is not made anew.
    buffer: Vec<u8>,
    poisoned: Option<String>,
}

impl std::fmt::Debug for Wal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wal")
            .field("directory", &self.disk.path(""))
            .field("identity", &self.identity)
            .field("tail", &self.tail)
            .field("place", &self.place)
            .field("poisoned", &self.poisoned)
            .finish_non_exhaustive()
    }
}

/// Whose log is in a directory; `None` if there is none, or no directory.
///
/// # Errors
/// [`WalError::Damaged`] or [`WalError::Newer`] if that cannot be said,
/// [`WalError::Disk`] if the directory cannot be read.
pub fn identity(dir: &Path) -> Result<Option<Identity>, WalError> {
    match dir.try_exists() {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) => {
            let doing = "look for the data directory";
            return Err(WalError::disk(dir.to_owned(), None, doing, error));
        }
    }
    let disk = Directory::look(dir)?;
    let listing = list(&disk)?;
    if listing.identity {
        recover::identity(&disk).map(Some)
    } else {
        Ok(None)
    }
}

pub(super) fn list(disk: &dyn Disk) -> Result<Listing, WalError> {
    let names = disk.names();
    names
        .map(Listing::of)
        .map_err(|error| WalError::disk(disk.path(""), None, "list the data directory", error))
}

/// The identity of a directory that must hold `wanted`'s log.
pub(super) fn check_identity(
    disk: &dyn Disk,
    listing: &Listing,
    wanted: Option<&Identity>,
) -> Result<Identity, WalError> {
    if !listing.identity {
        let file = disk.path(names::IDENTITY);
        refuse_orphans(disk, listing)?;
        let expected = "the data directory of a server";
        return Err(WalError::misplaced(file, expected, "no identity file"));
    }
    let found = recover::identity(disk)?;
    if let Some(wanted) = wanted {
        header::check_owner(disk.path(names::IDENTITY), wanted, &found)?;
    }
    Ok(found)
}

impl Wal {
    /// Makes a log in `dir`, which is made too if need be, and locks it.
    ///
    /// # Errors
    /// [`WalError::Misplaced`] if there is one already, [`WalError::InUse`]
    /// if another process uses the directory, [`WalError::Disk`].
    pub fn create(dir: &Path, identity: &Identity, options: Options) -> Result<Self, WalError> {
        Self::create_on(Box::new(Directory::lock(dir)?), identity, options)
    }

    /// Opens the log in `dir`, locks it, and reads everything back. What is
    /// given back is durable.
    ///
    /// # Errors
    /// Every [`WalError`] but the last two.
    pub fn open(
        dir: &Path,
        identity: &Identity,
        options: Options,
    ) -> Result<(Self, Recovered), WalError> {
        Self::open_on(Box::new(Directory::lock(dir)?), identity, options)
    }

    /// [`create`](Self::create) on any disk.
    ///
    /// # Errors
    /// As there.
    pub fn create_on(
        disk: Box<dyn Disk>,
        identity: &Identity,
        options: Options,
    ) -> Result<Self, WalError> {
        let listing = list(&*disk)?;
        if listing.identity {
            let found = recover::identity(&*disk)?;
            let found = format!("that of server {}, storage {}", found.server, found.storage);
            let file = disk.path(names::IDENTITY);
            return Err(WalError::misplaced(
                file,
                "a directory without a log",
                found,
            ));
        }
        refuse_orphans(&*disk, &listing)?;
        let start = SegmentStart {
            segment: 1,
            bytes: segment_bytes(options, 0),
            group: 1,
            previous_end: 0,
            chain: 0,
            tail: Tail::default(),
        };
        let file = make_segment(&*disk, identity, &start)?;
        // The identity comes last: a directory without it was never used.
        make(
            &*disk,
            names::IDENTITY,
            0,
            &[&header::encode_identity(identity)],
        )?;
        sync_names(&*disk)?;
        Ok(Self {
            place: start.place(identity),
            file_bytes: start.bytes,
            disk,
            identity: *identity,
            options,
            tail: Tail::default(),
            closed: Vec::new(),
            file,
            highest: 0,
            buffer: Vec::new(),
            poisoned: None,
        })
    }

    /// [`open`](Self::open) on any disk.
    ///
    /// # Errors
    /// As there.
    pub fn open_on(
        disk: Box<dyn Disk>,
        identity: &Identity,
        options: Options,
    ) -> Result<(Self, Recovered), WalError> {
        let listing = list(&*disk)?;
        check_identity(&*disk, &listing, Some(identity))?;
        let mut log = recover::read(&*disk, identity, &listing, &mut |_| {})?;
        let (recovered, problem) = recover::assemble(&*disk, identity, &mut log)?;
        if let Some(problem) = problem {
            tracing::warn!("an older snapshot is used, because of the newest: {problem}");
        }
        if let Some(torn) = &log.torn {
            tracing::info!("a write that never finished is cut: {torn}");
        }
        let file = mend(&*disk, &log)?;
        remove_leftovers(&*disk, &listing, &log.tail);
        let wal = Self {
            disk,
            identity: *identity,
            options,
            tail: log.tail,
            closed: log.closed,
            file,
            file_bytes: log.last.start.bytes,
            place: log.last.place,
            highest: log.last.highest,
            buffer: Vec::new(),
            poisoned: None,
        };
        Ok((wal, recovered))
    }

    /// Where the log is.
    pub fn directory(&self) -> PathBuf {
        self.disk.path("")
    }

    /// Whose log this is.
    pub const fn identity(&self) -> &Identity {
        &self.identity
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
    pub fn append(&mut self, batches: &[Batch]) -> Result<(), WalError> {
        if let Some(cause) = &self.poisoned {
            let cause = cause.clone();
            return Err(WalError::Poisoned { cause });
        }
        let sum = self.encode(batches)?;
        if group::is_empty(&self.buffer) {
            return Ok(());
        }
        let snapshots: Vec<&Snapshot> = batches
            .iter()
            .filter_map(|batch| batch.snapshot.as_ref())
            .collect();
        let written = self.write(&snapshots);
        if let Err(error) = written {
            self.poisoned = Some(error.to_string());
            return Err(error);
        }
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
    fn encode(&mut self, batches: &[Batch]) -> Result<Sum, WalError> {
        let mut sum = Sum {
            tail: self.tail,
            highest: 0,
            reset: false,
        };
        let misuse = |(expected, found): (String, String)| {
            WalError::Misuse(format!("{found} in place of {expected}"))
        };
        group::begin(&mut self.buffer);
        for batch in batches {
            let mut put = |record: Record| {
                sum.tail.take(&record).map_err(misuse)?;
                record.encode(&mut self.buffer);
                Ok::<_, WalError>(())
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
                sum.tail.entry(entry.id).map_err(misuse)?;
                sum.highest = sum.highest.max(entry.id);
                put_entry(&mut self.buffer, entry);
            }
        }
        Ok(sum)
    }

    /// Writes the snapshots, then the group in the buffer.
    fn write(&mut self, snapshots: &[&Snapshot]) -> Result<(), WalError> {
        for snapshot in snapshots {
            let header =
                header::encode_snapshot_header(&self.identity, snapshot.last, &snapshot.bytes);
            let name = names::snapshot(snapshot.last);
            make(&*self.disk, &name, 0, &[&header, &snapshot.bytes])?;
        }
        if !snapshots.is_empty() {
            sync_names(&*self.disk)?;
        }
        // The mark is not in the buffer yet, and a seal must fit behind.
        let needed = group::padded(self.buffer.len() + 1) as u64;
        if self.place.offset + needed + SECTOR as u64 > self.file_bytes {
            self.roll(needed)?;
        }
        let chain = group::finish(&mut self.buffer, &self.place);
        let offset = self.place.offset;
        let failed = |doing, error| {
            let file = self.disk.path(&names::segment(self.place.segment));
            WalError::disk(file, offset, doing, error)
        };
        self.file
            .write_at(offset, &self.buffer)
            .map_err(|error| failed("write", error))?;
        self.file.sync().map_err(|error| failed("sync", error))?;
        self.place = self.place.after(self.buffer.len(), chain);
        Ok(())
    }

    /// Goes on in a new segment, with room for a group of `needed` bytes.
    fn roll(&mut self, needed: u64) -> Result<(), WalError> {
        let start = SegmentStart {
            segment: self.place.segment + 1,
            bytes: segment_bytes(self.options, needed),
            group: self.place.group,
            previous_end: self.place.offset,
            chain: self.place.chain,
            tail: self.tail,
        };
        let file = make_segment(&*self.disk, &self.identity, &start)?;
        write_seal(&*self.disk, &mut *self.file, &self.place)?;
        self.closed.push(Closed {
            number: self.place.segment,
            highest: self.highest,
        });
        self.highest = 0;
        self.file = file;
        self.file_bytes = start.bytes;
        self.place = start.place(&self.identity);
        Ok(())
    }

    /// Removes what is needed no more after a snapshot: the snapshots before
    /// the last two, and the segments that even the older of the two covers.
    /// A failure here loses only room; it is tried again the next time.
    fn forget(&mut self) {
        match list(&*self.disk) {
            Ok(listing) => remove_leftovers(&*self.disk, &listing, &self.tail),
            Err(error) => tracing::warn!("old snapshots are kept for now: {error}"),
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
                tracing::warn!("segment {name} could not be removed: {error}");
                return;
            }
            self.closed.remove(0);
        }
    }
}

/// What batches come to.
struct Sum {
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
fn make(
    disk: &dyn Disk,
    name: &str,
    bytes: u64,
    parts: &[&[u8]],
) -> Result<Box<dyn DiskFile>, WalError> {
    let unfinished = names::unfinished(name);
    let failed =
        |doing, offset, error| WalError::disk(disk.path(&unfinished), offset, doing, error);
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
        .map_err(|error| failed("rename", None, error))?;
    Ok(file)
}

fn make_segment(
    disk: &dyn Disk,
    identity: &Identity,
    start: &SegmentStart,
) -> Result<Box<dyn DiskFile>, WalError> {
    let name = names::segment(start.segment);
    let file = make(disk, &name, start.bytes, &[&start.encode(identity)])?;
    sync_names(disk)?;
    Ok(file)
}

fn write_seal(disk: &dyn Disk, file: &mut dyn DiskFile, place: &Place) -> Result<(), WalError> {
    file.write_at(place.offset, &group::seal(place))
        .and_then(|()| file.sync())
        .map_err(|error| {
            let path = disk.path(&names::segment(place.segment));
            WalError::disk(path, place.offset, "seal", error)
        })
}

fn sync_names(disk: &dyn Disk) -> Result<(), WalError> {
    disk.sync_names()
        .map_err(|error| WalError::disk(disk.path(""), None, "sync the data directory", error))
}

/// A log without an identity: either nobody ever used it, since a crash came
/// before its making was complete, or somebody took the identity away.
fn refuse_orphans(disk: &dyn Disk, listing: &Listing) -> Result<(), WalError> {
    let used = match listing.segments[..] {
        [] => !listing.snapshots.is_empty(),
        [1] => {
            let name = names::segment(1);
            let mut bytes = Vec::new();
            disk.read(&name, &mut bytes)
                .map_err(|error| WalError::disk(disk.path(&name), None, "read", error))?;
            !bytes.get(SECTOR..).is_none_or(group::is_zero)
        }
        _ => true,
    };
    if used {
        let file = disk.path(names::IDENTITY);
        let expected = "the identity that goes with the log";
        return Err(WalError::damaged(file, 0, expected, "no such file"));
    }
    Ok(())
}

/// Makes sure that what was read is on disk, and nothing behind it.
fn mend(disk: &dyn Disk, log: &Log) -> Result<Box<dyn DiskFile>, WalError> {
    let open = |segment: u64| {
        let name = names::segment(segment);
        disk.open(&name)
            .map_err(|error| WalError::disk(disk.path(&name), None, "open for writing", error))
    };
    let last = &log.last;
    let (offset, bytes) = &last.newest;
    let failed = |doing, offset, error| {
        let file = disk.path(&names::segment(last.start.segment));
        WalError::disk(file, offset, doing, error)
    };
    let mut file = open(last.start.segment)?;
    file.write_at(*offset, bytes)
        .map_err(|error| failed("write again", *offset, error))?;
    let end = last.place.offset;
    if last.dirty_end > end {
        // First the header and then the rest: whatever is left of a write
        // without a header is torn, but half of one with its header may look
        // like damage if this is cut short in turn.
        let length = usize::try_from(last.dirty_end - end).unwrap_or(0);
        let zeros = vec![0; group::padded(length)];
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
        let place = Place {
            segment: closed.number,
            offset: last.start.previous_end,
            ..last.place
        };
        write_seal(disk, &mut *open(closed.number)?, &place)?;
    }
    Ok(file)
}

/// Removes files that no recovery would read.
fn remove_leftovers(disk: &dyn Disk, listing: &Listing, tail: &Tail) {
    let needed = |at: &&Position| **at != tail.newest && **at != tail.previous;
    let old = listing.snapshots.iter().filter(needed);
    let names = old
        .map(|at| names::snapshot(*at))
        .chain(listing.unfinished.iter().cloned());
    for name in names {
        if let Err(error) = disk.remove(&name) {
            tracing::warn!("{name} is not needed, but could not be removed: {error}");
        }
    }
}
