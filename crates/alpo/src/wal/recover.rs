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
use super::error::{Flaw, Refused, WalError};
use super::group::{self, Damage, Place, SECTOR};
use super::header::{self, SegmentStart};
use super::names::{self, Listing};
use super::record::{Checksum, Record};
use super::tail::Tail;
use super::walk::{self, End, Room, Span, Walked};

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
pub(super) struct Closed {
    pub(super) number: u64,
    /// The highest id of an entry in it that any snapshot must cover before
    /// it can go.
    pub(super) highest: LogId,
}

/// The last segment, as it is.
pub(super) struct Last {
    pub(super) start: SegmentStart,
    /// Where the next group goes.
    pub(super) place: Place,
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
    pub(super) closed: Vec<Closed>,
    pub(super) last: Last,
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
    let mut reading = Reading::new(listing, see)?;
    let mut room = Room::default();
    for (number, name) in listing.segments() {
        disk.read(&name, &mut room.bytes)
            .map_err(|error| WalError::disk(&name, None, "read", error))?;
        room = reading.take(walk::walk(format, number, room)?)?;
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
struct Stop {
    place: Place,
    sealed: bool,
    /// A write that never finished stands there.
    torn: Option<String>,
    /// The last group, or the header of the segment, and where it begins.
    newest: (u64, Vec<u8>),
    /// Where the last byte ends that is not zero.
    dirty_end: u64,
    highest: LogId,
    /// This segment is empty and the one before it has no seal.
    unsealed_before: Option<Place>,
}

/// A log that is being read, segment by segment.
pub struct Reading<'a> {
    see: &'a mut dyn FnMut(Item<'_>),
    tail: Tail,
    entries: Vec<Entry>,
    first: LogId,
    closed: Vec<Closed>,
    groups: u64,
    torn: Option<String>,
    last: Option<(SegmentStart, Stop)>,
}

impl<'a> Reading<'a> {
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
    pub fn take(&mut self, mut walked: Walked) -> Result<Room, Refused> {
        let before = self.last.take().map(|(_, stop)| stop);
        let stop = self.segment(&mut walked, before)?;
        self.last = Some((walked.start, stop));
        Ok(walked.room)
    }

    /// After the last segment.
    ///
    /// # Errors
    /// If the last one says that there is another behind it.
    pub fn end(self) -> Result<Log, Refused> {
        let Some((start, stop)) = self.last else {
            return Err(missing(self.first, "at least one segment".to_owned()));
        };
        if stop.sealed {
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
            last: Last {
                start,
                place: stop.place,
                newest: stop.newest,
                dirty_end: stop.dirty_end,
                highest: stop.highest,
            },
            groups: self.groups,
            torn: self.torn,
        })
    }
}

impl Reading<'_> {
    fn damaged(segment: u64, damage: Damage) -> Refused {
        let file = names::segment(segment);
        let flaw = Flaw {
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

    fn no_seal(place: &Place) -> Refused {
        let damage = Damage {
            offset: place.offset,
            expected: "the seal, because there are groups in the next segment".to_owned(),
            found: "none".to_owned(),
            later: false,
        };
        Self::damaged(place.segment, damage)
    }

    fn segment(&mut self, walked: &mut Walked, before: Option<Stop>) -> Result<Stop, Refused> {
        let start = &walked.start;
        if let Some(place) = before.as_ref().and_then(|before| before.unsealed_before) {
            return Err(Self::no_seal(&place));
        }
        (self.see)(Item::Segment(start));
        let unsealed = match before {
            Some(before) => self.joint(&before, start)?,
            None => {
                self.tail = start.tail;
                self.first = start.tail.last.saturating_add(1);
                None
            }
        };
        let mut stop = self.groups(walked)?;
        if let Some(place) = unsealed {
            let untouched = stop.newest.0 == 0 && stop.torn.is_none() && !stop.sealed;
            if !untouched {
                return Err(Self::no_seal(&place));
            }
            stop.unsealed_before = Some(place);
        }
        Ok(stop)
    }

    /// Checks that a segment begins where the one before it ended. Gives the
    /// place of its seal if that is not there.
    fn joint(&mut self, before: &Stop, start: &SegmentStart) -> Result<Option<Place>, Refused> {
        let place = before.place;
        let found = (place.offset, place.group, place.chain, self.tail);
        let wanted = (start.previous_end, start.group, start.chain, start.tail);
        if found != wanted {
            let found = match &before.torn {
                Some(why) => format!("a torn write there ({why})"),
                None => format!("that it ends with another at byte {}", place.offset),
            };
            let damage = Damage {
                offset: place.offset,
                expected: format!(
                    "the log up to the group before {} and byte {}, as the next segment says",
                    start.group, start.previous_end
                ),
                found,
                later: false,
            };
            return Err(Self::damaged(place.segment, damage));
        }
        self.closed.push(Closed {
            number: place.segment,
            highest: before.highest,
        });
        // A write that never finished can only be that of the seal.
        self.torn = None;
        Ok((!before.sealed).then_some(place))
    }

    fn groups(&mut self, walked: &mut Walked) -> Result<Stop, Refused> {
        let segment = walked.start.segment;
        let (offset, newest) = walked.newest();
        let newest = (offset, newest.to_vec());
        let mut stop = Stop {
            place: walked.place,
            sealed: false,
            torn: None,
            newest,
            dirty_end: group::end_of_content(&walked.room.bytes) as u64,
            highest: 0,
            unsealed_before: None,
        };
        let mut records = walked.room.records.drain(..);
        for span in &walked.groups {
            self.group(&mut records, span, &mut stop)?;
        }
        drop(records);
        let offset = walked.place.offset;
        match &walked.end {
            End::Zeros => {}
            End::Seal => {
                (self.see)(Item::Seal { segment, offset });
                stop.sealed = true;
            }
            End::Torn(why) => {
                self.torn = Some(format!("segment {segment}, byte {offset}: {why}"));
                stop.torn = Some(why.clone());
                let why = why.clone();
                (self.see)(Item::Torn {
                    segment,
                    offset,
                    why,
                });
            }
            End::Damaged(damage) => return Err(Self::damaged(segment, damage.clone())),
        }
        Ok(stop)
    }

    /// Takes the records of a group in.
    fn group(
        &mut self,
        records: &mut impl Iterator<Item = (Record, usize)>,
        span: &Span,
        stop: &mut Stop,
    ) -> Result<(), Refused> {
        let (segment, offset) = (span.place.segment, span.place.offset);
        (self.see)(Item::Group {
            segment,
            offset,
            number: span.place.group,
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
            if let Err(wrong) = self.record(record, stop) {
                return Err(Self::damaged(segment, Damage::new(offset, wrong)));
            }
        }
        self.groups += 1;
        Ok(())
    }

    fn record(&mut self, record: Record, stop: &mut Stop) -> Result<(), (String, String)> {
        self.tail.take(&record)?;
        match record {
            Record::Hard(_) => {}
            Record::Entry(entry) => {
                stop.highest = stop.highest.max(entry.id);
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
                stop.highest = 0;
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
                    // Not in the log: whoever opened it knows.
                    silence: Duration::ZERO,
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
        silence: Duration::ZERO,
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
