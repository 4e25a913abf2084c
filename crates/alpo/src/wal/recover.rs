//! Reading a log back.
//!
//! Everything here only looks, so `tenure wal verify` and a server that starts
//! come to the same verdict. The segments are read in order; each says in its
//! header where the one before ended and what the log said in sum by then,
//! and each that is full ends with a seal, so a segment that is missing is
//! missed wherever it stood: in the middle by its number, at the end by the
//! seal before it, at the beginning because the snapshot does not reach the
//! first entry that is left.
//!
//! The order of the steps when a segment is full is: the next one is made,
//! with its header, and synced; then the seal is written and synced; then the
//! first group of the next. So a seal may be missing only if the segment
//! behind it is the last and has nothing in it.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::{Entry, Identity, LogId, Position, Recovered, Snapshot};

use super::Format;
use super::disk::Disk;
use super::error::{DamageReport, Refused, WalError};
use super::group::{self, Damage, SECTOR, SegmentPosition};
use super::header::{self, SegmentStart};
use super::names::{self, Listing};
use super::record::{Checksum, Record};
use super::segment_scan::{self, GroupSpan, ReadBuffers, ScannedSegment, SegmentEnd};
use super::tail::Tail;

/// What is met on the way through a log, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item<'a> {
    /// A segment begins.
    Segment(&'a SegmentStart),
    /// A group: what was written and synced at once.
    Group {
        /// In which segment.
        segment: u64,
        /// At which byte of it.
        offset: u64,
        /// Its number in the log.
        number: u64,
        /// Its length with padding.
        bytes: usize,
    },
    /// A record of that group.
    Record {
        /// In which segment.
        segment: u64,
        /// At which byte of it.
        offset: u64,
        /// Its length.
        bytes: usize,
        /// What it says.
        record: &'a Record,
    },
    /// The segment is full and the log goes on in the next.
    Seal {
        /// Which segment.
        segment: u64,
        /// At which byte of it.
        offset: u64,
    },
    /// A write that never finished; it is cut when a server opens the log.
    Torn {
        /// In which segment.
        segment: u64,
        /// At which byte of it.
        offset: u64,
        /// How that is known.
        why: String,
    },
}

/// A segment that is not written any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedSegment {
    pub(super) number: u64,
    /// The highest id of an entry in it that any snapshot must cover before
    /// it can go.
    pub(super) highest: LogId,
}

/// The last segment, as it is.
pub(super) struct LastSegment {
    pub(super) start: SegmentStart,
    /// Where the next group goes.
    pub(super) segment_position: SegmentPosition,
    /// The last group, or the header of the segment if there is none yet.
    pub(super) newest: (u64, Vec<u8>),
    /// Where the last byte ends that is not zero.
    pub(super) dirty_end: u64,
    pub(super) highest: LogId,
}

/// A log that was read.
pub struct Log {
    /// What it says in sum.
    pub tail: Tail,
    pub(super) entries: Vec<Entry>,
    /// The id of the first of `entries`, or of the next one if there is none.
    pub(super) first: LogId,
    pub(super) closed: Vec<ClosedSegment>,
    pub(super) last: LastSegment,
    /// How many groups there are.
    pub groups: u64,
    /// A write that never finished, and where.
    pub torn: Option<String>,
}

/// What is in a directory, by its names.
///
/// # Errors
/// [`WalError::Disk`].
pub fn list<D: Disk + ?Sized>(disk: &D) -> Result<Listing, WalError<D::Error>> {
    disk.names()
        .map(Listing::of)
        .map_err(|error| WalError::disk("", None, "list the data directory", error))
}

/// Reads the identity file.
///
/// # Errors
/// [`Refused`] if it is none, [`WalError::Disk`].
pub fn identity<D: Disk + ?Sized>(disk: &D, sum: Checksum) -> Result<Identity, WalError<D::Error>> {
    let mut bytes = Vec::new();
    disk.read(names::IDENTITY, &mut bytes)
        .map_err(|error| WalError::disk(names::IDENTITY, None, "read", error))?;
    Ok(header::decode_identity(sum, names::IDENTITY, &bytes)?)
}

/// The identity of a directory that must hold `wanted`'s log, or anybody's.
///
/// # Errors
/// [`Refused`] if there is none, or another's, [`WalError::Disk`].
pub fn check_identity<D: Disk + ?Sized>(
    disk: &D,
    sum: Checksum,
    listing: &Listing,
    wanted: Option<&Identity>,
) -> Result<Identity, WalError<D::Error>> {
    if !listing.identity {
        refuse_orphans(disk, listing)?;
        let expected = "the data directory of a server";
        return Err(Refused::misplaced(names::IDENTITY, expected, "no identity file").into());
    }
    let found = identity(disk, sum)?;
    if let Some(wanted) = wanted {
        header::check_owner(names::IDENTITY, wanted, &found)?;
    }
    Ok(found)
}

/// A log without an identity: either nobody ever used it, since a crash came
/// before its making was complete, or somebody took the identity away.
pub(super) fn refuse_orphans<D: Disk + ?Sized>(
    disk: &D,
    listing: &Listing,
) -> Result<(), WalError<D::Error>> {
    let used = match listing.segments[..] {
        [] => !listing.snapshots.is_empty(),
        [1] => {
            let name = names::segment(1);
            let mut bytes = Vec::new();
            disk.read(&name, &mut bytes)
                .map_err(|error| WalError::disk(&name, None, "read", error))?;
            !bytes.get(SECTOR..).is_none_or(group::is_zero)
        }
        _ => true,
    };
    if used {
        let expected = "the identity that goes with the log";
        return Err(Refused::damaged(names::IDENTITY, 0, expected, "no such file").into());
    }
    Ok(())
}

/// Reads all segments, one after the other.
///
/// # Errors
/// [`Refused`] if what was acknowledged is not all there,
/// [`WalError::Disk`].
pub fn read<D: Disk + ?Sized>(
    disk: &D,
    format: &Format,
    listing: &Listing,
    see: &mut dyn FnMut(Item<'_>),
) -> Result<Log, WalError<D::Error>> {
    let mut reading = LogReader::new(listing, see)?;
    let mut buffers = ReadBuffers::default();
    for (number, name) in listing.segments() {
        disk.read(&name, &mut buffers.bytes)
            .map_err(|error| WalError::disk(&name, None, "read", error))?;
        buffers = reading.take(segment_scan::scan_segment(format, number, buffers)?)?;
    }
    Ok(reading.end()?)
}

fn missing(segment: u64, expected: String) -> Refused {
    Refused::damaged(&names::segment(segment), 0, expected, "no such file")
}

/// Checks that there are segments, without a gap; gives the first.
fn check_numbers(listing: &Listing) -> Result<u64, Refused> {
    let Some(first) = listing.segments.first() else {
        return Err(missing(1, "at least one segment".to_owned()));
    };
    for pair in listing.segments.windows(2) {
        if pair[0] + 1 != pair[1] {
            let expected = format!("all segments between {} and {}", pair[0], pair[1]);
            return Err(missing(pair[0] + 1, expected));
        }
    }
    Ok(*first)
}

/// How far a segment was read.
struct ReadUpTo {
    segment_position: SegmentPosition,
    sealed: bool,
    /// A write that never finished stands there.
    torn: Option<String>,
    /// The last group, or the header of the segment, and where it begins.
    newest: (u64, Vec<u8>),
    /// Where the last byte ends that is not zero.
    dirty_end: u64,
    highest: LogId,
    /// This segment is empty and the one before it has no seal.
    unsealed_before: Option<SegmentPosition>,
}

/// A log that is being read, segment by segment.
pub struct LogReader<'a> {
    see: &'a mut dyn FnMut(Item<'_>),
    tail: Tail,
    entries: Vec<Entry>,
    first: LogId,
    closed: Vec<ClosedSegment>,
    groups: u64,
    torn: Option<String>,
    last: Option<(SegmentStart, ReadUpTo)>,
}

impl<'a> LogReader<'a> {
    /// Before the first segment. `see` is shown everything on the way.
    ///
    /// # Errors
    /// If there is no segment, or one is missing between two others.
    pub fn new(listing: &Listing, see: &'a mut dyn FnMut(Item<'_>)) -> Result<Self, Refused> {
        Ok(Self {
            see,
            tail: Tail::default(),
            entries: Vec::new(),
            first: check_numbers(listing)?,
            closed: Vec::new(),
            groups: 0,
            torn: None,
            last: None,
        })
    }

    /// Takes the next segment in. What it gives back is room for another.
    ///
    /// # Errors
    /// If the segment is damaged, or does not go on where the one before
    /// ended.
    pub fn take(&mut self, mut scanned: ScannedSegment) -> Result<ReadBuffers, Refused> {
        let before = self.last.take().map(|(_, read_up_to)| read_up_to);
        let read_up_to = self.segment(&mut scanned, before)?;
        self.last = Some((scanned.start, read_up_to));
        Ok(scanned.buffers)
    }

    /// After the last segment.
    ///
    /// # Errors
    /// If the last one says that there is another behind it.
    pub fn end(self) -> Result<Log, Refused> {
        let Some((start, read_up_to)) = self.last else {
            return Err(missing(self.first, "at least one segment".to_owned()));
        };
        if read_up_to.sealed {
            let number = start.segment.saturating_add(1);
            let expected = format!(
                "segment {number}, because segment {} is sealed",
                start.segment
            );
            return Err(missing(number, expected));
        }
        Ok(Log {
            tail: self.tail,
            entries: self.entries,
            first: self.first,
            closed: self.closed,
            last: LastSegment {
                start,
                segment_position: read_up_to.segment_position,
                newest: read_up_to.newest,
                dirty_end: read_up_to.dirty_end,
                highest: read_up_to.highest,
            },
            groups: self.groups,
            torn: self.torn,
        })
    }
}

impl LogReader<'_> {
    fn damaged(segment: u64, damage: Damage) -> Refused {
        let file = names::segment(segment);
        let flaw = DamageReport {
            file,
            offset: damage.offset,
            expected: damage.expected,
            found: damage.found,
        };
        if damage.later {
            Refused::Later(flaw)
        } else {
            Refused::Damaged(flaw)
        }
    }

    fn no_seal(segment_position: &SegmentPosition) -> Refused {
        let damage = Damage {
            offset: segment_position.offset,
            expected: "the seal, because there are groups in the next segment".to_owned(),
            found: "none".to_owned(),
            later: false,
        };
        Self::damaged(segment_position.segment, damage)
    }

    fn segment(
        &mut self,
        scanned: &mut ScannedSegment,
        before: Option<ReadUpTo>,
    ) -> Result<ReadUpTo, Refused> {
        let start = &scanned.start;
        if let Some(segment_position) = before.as_ref().and_then(|before| before.unsealed_before) {
            return Err(Self::no_seal(&segment_position));
        }
        (self.see)(Item::Segment(start));
        let unsealed = match before {
            Some(before) => self.check_continuation(&before, start)?,
            None => {
                self.tail = start.tail;
                self.first = start.tail.last.saturating_add(1);
                None
            }
        };
        let mut read_up_to = self.groups(scanned)?;
        if let Some(segment_position) = unsealed {
            let untouched =
                read_up_to.newest.0 == 0 && read_up_to.torn.is_none() && !read_up_to.sealed;
            if !untouched {
                return Err(Self::no_seal(&segment_position));
            }
            read_up_to.unsealed_before = Some(segment_position);
        }
        Ok(read_up_to)
    }

    /// Checks that a segment begins where the one before it ended. Gives the
    /// place of its seal if that is not there.
    fn check_continuation(
        &mut self,
        before: &ReadUpTo,
        start: &SegmentStart,
    ) -> Result<Option<SegmentPosition>, Refused> {
        let segment_position = before.segment_position;
        let found = (
            segment_position.offset,
            segment_position.group,
            segment_position.chain,
            self.tail,
        );
        let wanted = (start.previous_end, start.group, start.chain, start.tail);
        if found != wanted {
            let found = match &before.torn {
                Some(why) => format!("a torn write there ({why})"),
                None => format!(
                    "that it ends with another at byte {}",
                    segment_position.offset
                ),
            };
            let damage = Damage {
                offset: segment_position.offset,
                expected: format!(
                    "the log up to the group before {} and byte {}, as the next segment says",
                    start.group, start.previous_end
                ),
                found,
                later: false,
            };
            return Err(Self::damaged(segment_position.segment, damage));
        }
        self.closed.push(ClosedSegment {
            number: segment_position.segment,
            highest: before.highest,
        });
        // A write that never finished can only be that of the seal.
        self.torn = None;
        Ok((!before.sealed).then_some(segment_position))
    }

    fn groups(&mut self, scanned: &mut ScannedSegment) -> Result<ReadUpTo, Refused> {
        let segment = scanned.start.segment;
        let (offset, newest) = scanned.newest();
        let newest = (offset, newest.to_vec());
        let mut read_up_to = ReadUpTo {
            segment_position: scanned.segment_position,
            sealed: false,
            torn: None,
            newest,
            dirty_end: group::end_of_content(&scanned.buffers.bytes) as u64,
            highest: 0,
            unsealed_before: None,
        };
        let mut records = scanned.buffers.records.drain(..);
        for span in &scanned.groups {
            self.group(&mut records, span, &mut read_up_to)?;
        }
        drop(records);
        let offset = scanned.segment_position.offset;
        match &scanned.end {
            SegmentEnd::Zeros => {}
            SegmentEnd::Seal => {
                (self.see)(Item::Seal { segment, offset });
                read_up_to.sealed = true;
            }
            SegmentEnd::Torn(why) => {
                self.torn = Some(format!("segment {segment}, byte {offset}: {why}"));
                read_up_to.torn = Some(why.clone());
                let why = why.clone();
                (self.see)(Item::Torn {
                    segment,
                    offset,
                    why,
                });
            }
            SegmentEnd::Damaged(damage) => return Err(Self::damaged(segment, damage.clone())),
        }
        Ok(read_up_to)
    }

    /// Takes the records of a group in.
    fn group(
        &mut self,
        records: &mut impl Iterator<Item = (Record, usize)>,
        span: &GroupSpan,
        read_up_to: &mut ReadUpTo,
    ) -> Result<(), Refused> {
        let (segment, offset) = (span.segment_position.segment, span.segment_position.offset);
        (self.see)(Item::Group {
            segment,
            offset,
            number: span.segment_position.group,
            bytes: span.bytes,
        });
        let mut at = span.body_at;
        for (record, bytes) in records.take(span.records) {
            let offset = at;
            at += bytes;
            (self.see)(Item::Record {
                segment,
                offset: offset as u64,
                bytes,
                record: &record,
            });
            if let Err(wrong) = self.record(record, read_up_to) {
                return Err(Self::damaged(segment, Damage::new(offset, wrong)));
            }
        }
        self.groups += 1;
        Ok(())
    }

    fn record(
        &mut self,
        record: Record,
        read_up_to: &mut ReadUpTo,
    ) -> Result<(), (String, String)> {
        self.tail.take(&record)?;
        match record {
            Record::Hard(_) => {}
            Record::Entry(entry) => {
                read_up_to.highest = read_up_to.highest.max(entry.id);
                self.entries.push(entry);
            }
            Record::Truncate(from) => {
                let keep = from.saturating_sub(self.first);
                self.entries
                    .truncate(usize::try_from(keep).unwrap_or(usize::MAX));
                self.first = self.first.min(from);
            }
            Record::Snapshot { last, reset: true } => {
                self.entries.clear();
                self.first = last.id.saturating_add(1);
                read_up_to.highest = 0;
                for closed in &mut self.closed {
                    closed.highest = 0;
                }
            }
            Record::Snapshot { last, .. } => {
                let index = last
                    .id
                    .checked_sub(self.first)
                    .and_then(|i| usize::try_from(i).ok());
                let entry = index.and_then(|index| self.entries.get(index));
                if let Some(entry) = entry.filter(|entry| entry.term != last.term) {
                    let expected = format!("a snapshot of the log with {}", entry.position());
                    return Err((expected, format!("one at {last}")));
                }
            }
        }
        Ok(())
    }
}

/// Reads the snapshot at `last`.
///
/// # Errors
/// [`Refused`] if it is damaged or another's, [`WalError::Disk`].
pub fn snapshot<D: Disk + ?Sized>(
    disk: &D,
    format: &Format,
    last: Position,
) -> Result<Snapshot, WalError<D::Error>> {
    let name = names::snapshot(last);
    let mut bytes = Vec::new();
    disk.read(&name, &mut bytes)
        .map_err(|error| WalError::disk(&name, None, "read", error))?;
    let header = header::decode_snapshot(format, &name, &bytes, last)?;
    bytes.drain(..header);
    Ok(Snapshot {
        last,
        bytes: Arc::new(bytes),
    })
}

/// What a server starts from, and why an older snapshot was used for it if
/// that is so.
type Assembled<E> = (Recovered, Option<WalError<E>>);

/// The snapshot to start from and the entries after it, which are taken out
/// of `log`. If the newest is bad the one before it will do, or none at all,
/// but only if the log still leads on from there: otherwise the newest is the
/// only place where some of what was acknowledged stood.
///
/// # Errors
/// [`Refused`] if something that was acknowledged is gone,
/// [`WalError::Disk`].
pub fn assemble<D: Disk + ?Sized>(
    disk: &D,
    format: &Format,
    log: &mut Log,
) -> Result<Assembled<D::Error>, WalError<D::Error>> {
    let Tail {
        hard,
        newest,
        previous,
        ..
    } = log.tail;
    let mut problem: Option<WalError<D::Error>> = None;
    for at in [newest, previous] {
        if at == Position::ZERO {
            break;
        }
        match snapshot(disk, format, at) {
            Ok(snapshot) if log.first <= at.id.saturating_add(1) => {
                let covered =
                    usize::try_from(at.id.saturating_add(1) - log.first).unwrap_or(usize::MAX);
                let mut entries = core::mem::take(&mut log.entries);
                entries.drain(..covered.min(entries.len()));
                let recovered = Recovered {
                    hard,
                    snapshot: Some(snapshot),
                    entries,
                    committed: newest.id,
                    // Not in the log: the caller that opened it knows.
                    no_vote_time: Duration::ZERO,
                };
                return Ok((recovered, problem));
            }
            Ok(_) => return Err(problem.unwrap_or_else(|| not_covered(log, at).into())),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    if log.first != 1 {
        return Err(problem.unwrap_or_else(|| not_covered(log, newest).into()));
    }
    let recovered = Recovered {
        hard,
        snapshot: None,
        entries: core::mem::take(&mut log.entries),
        committed: newest.id,
        no_vote_time: Duration::ZERO,
    };
    Ok((recovered, problem))
}

fn not_covered(log: &Log, at: Position) -> Refused {
    let first = log
        .closed
        .first()
        .map_or(log.last.start.segment, |closed| closed.number);
    let file = names::segment(first.saturating_sub(1));
    let expected = format!("the entries after {}", at.id);
    let found = format!("nothing before entry {} (is a segment missing?)", log.first);
    Refused::damaged(&file, 0, expected, found)
}
