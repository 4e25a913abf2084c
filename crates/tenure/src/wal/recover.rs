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

use std::sync::Arc;

use tenure_core::alpo::{Entry, Identity, LogId, Position, Recovered, Snapshot};

use super::disk::Disk;
use super::error::WalError;
use super::group::{self, Damage, Place, SECTOR};
use super::header::{self, SegmentStart};
use super::names::{self, Listing};
use super::record::Record;
use super::tail::Tail;
use super::walk::{self, End, Span, Walked};

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
pub(super) struct Log {
    pub(super) tail: Tail,
    pub(super) entries: Vec<Entry>,
    /// The id of the first of `entries`, or of the next one if there is none.
    pub(super) first: LogId,
    pub(super) closed: Vec<Closed>,
    pub(super) last: Last,
    pub(super) groups: u64,
    pub(super) torn: Option<String>,
}

/// Reads the identity file.
pub(super) fn identity(disk: &dyn Disk) -> Result<Identity, WalError> {
    let file = disk.path(names::IDENTITY);
    let mut bytes = Vec::new();
    disk.read(names::IDENTITY, &mut bytes)
        .map_err(|error| WalError::disk(file.clone(), None, "read", error))?;
    header::decode_identity(&file, &bytes)
}

/// Reads all segments.
pub(super) fn read(
    disk: &dyn Disk,
    identity: &Identity,
    listing: &Listing,
    see: &mut dyn FnMut(Item<'_>),
) -> Result<Log, WalError> {
    let first = check_numbers(disk, listing)?;
    let mut reading = Reading {
        disk,
        see,
        tail: Tail::default(),
        entries: Vec::new(),
        first,
        closed: Vec::new(),
        groups: 0,
        torn: None,
    };
    let mut last: Option<(Walked, Stop)> = None;
    walk::each(disk, identity, &listing.segments, |walked| {
        let (room, before) = last
            .take()
            .map(|(walked, stop)| (walked.bytes, stop))
            .unzip();
        let stop = reading.segment(&walked, before)?;
        last = Some((walked, stop));
        Ok(room)
    })?;
    let Some((Walked { bytes, start, .. }, stop)) = last else {
        return Err(missing(disk, first, "at least one segment".to_owned()));
    };
    if stop.sealed {
        let number = start.segment.saturating_add(1);
        let expected = format!(
            "segment {number}, because segment {} is sealed",
            start.segment
        );
        return Err(missing(disk, number, expected));
    }
    let Reading {
        tail,
        entries,
        first,
        closed,
        groups,
        torn,
        ..
    } = reading;
    let (from, to) = stop.newest;
    Ok(Log {
        tail,
        entries,
        first,
        closed,
        last: Last {
            start,
            place: stop.place,
            newest: (from as u64, bytes[from..to].to_vec()),
            dirty_end: group::end_of_content(&bytes) as u64,
            highest: stop.highest,
        },
        groups,
        torn,
    })
}

fn missing(disk: &dyn Disk, segment: u64, expected: String) -> WalError {
    let file = disk.path(&names::segment(segment));
    WalError::damaged(file, 0, expected, "no such file")
}

/// Checks that there are segments, without a gap; gives the first.
fn check_numbers(disk: &dyn Disk, listing: &Listing) -> Result<u64, WalError> {
    let Some(first) = listing.segments.first() else {
        return Err(missing(disk, 1, "at least one segment".to_owned()));
    };
    for pair in listing.segments.windows(2) {
        if pair[0] + 1 != pair[1] {
            let expected = format!("all segments between {} and {}", pair[0], pair[1]);
            return Err(missing(disk, pair[0] + 1, expected));
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
    /// From where to where the last group goes.
    newest: (usize, usize),
    highest: LogId,
    /// This segment is empty and the one before it has no seal.
    unsealed_before: Option<Place>,
}

struct Reading<'a> {
    disk: &'a dyn Disk,
    see: &'a mut dyn FnMut(Item<'_>),
    tail: Tail,
    entries: Vec<Entry>,
    first: LogId,
    closed: Vec<Closed>,
    groups: u64,
    torn: Option<String>,
}

impl Reading<'_> {
    fn damaged(&self, segment: u64, damage: Damage) -> WalError {
        let file = self.disk.path(&names::segment(segment));
        WalError::damaged(file, damage.offset, damage.expected, damage.found)
    }

    fn no_seal(&self, place: &Place) -> WalError {
        let damage = Damage {
            offset: place.offset,
            expected: "the seal, because there are groups in the next segment".to_owned(),
            found: "none".to_owned(),
        };
        self.damaged(place.segment, damage)
    }

    fn segment(&mut self, walked: &Walked, before: Option<Stop>) -> Result<Stop, WalError> {
        let start = &walked.start;
        if let Some(place) = before.as_ref().and_then(|before| before.unsealed_before) {
            return Err(self.no_seal(&place));
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
                return Err(self.no_seal(&place));
            }
            stop.unsealed_before = Some(place);
        }
        Ok(stop)
    }

    /// Checks that a segment begins where the one before it ended. Gives the
    /// place of its seal if that is not there.
    fn joint(&mut self, before: &Stop, start: &SegmentStart) -> Result<Option<Place>, WalError> {
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
            };
            return Err(self.damaged(place.segment, damage));
        }
        self.closed.push(Closed {
            number: place.segment,
            highest: before.highest,
        });
        // A write that never finished can only be that of the seal.
        self.torn = None;
        Ok((!before.sealed).then_some(place))
    }

    fn groups(&mut self, walked: &Walked) -> Result<Stop, WalError> {
        let segment = walked.start.segment;
        let mut stop = Stop {
            place: walked.place,
            sealed: false,
            torn: None,
            newest: (0, SECTOR),
            highest: 0,
            unsealed_before: None,
        };
        for span in &walked.groups {
            self.group(&walked.bytes, span, &mut stop)?;
        }
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
            End::Damaged(damage) => return Err(self.damaged(segment, damage.clone())),
        }
        Ok(stop)
    }

    /// Takes the records of a group in.
    fn group(&mut self, bytes: &[u8], span: &Span, stop: &mut Stop) -> Result<(), WalError> {
        let (segment, offset) = (span.place.segment, span.place.offset);
        (self.see)(Item::Group {
            segment,
            offset,
            number: span.place.group,
            bytes: span.bytes,
        });
        for (at, frame) in group::frames(&bytes[span.body.clone()]) {
            let offset = span.body.start + at;
            // Its checksum is right: whatever is wrong with it is no tear.
            let record = match group::decode(&frame) {
                Ok(record) => record,
                Err(wrong) => return Err(self.damaged(segment, Damage::new(offset, wrong))),
            };
            (self.see)(Item::Record {
                segment,
                offset: offset as u64,
                bytes: frame.bytes,
                record: &record,
            });
            if let Err(wrong) = self.take(record, stop) {
                return Err(self.damaged(segment, Damage::new(offset, wrong)));
            }
        }
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        stop.newest = (at, at + span.bytes);
        self.groups += 1;
        Ok(())
    }

    fn take(&mut self, record: Record, stop: &mut Stop) -> Result<(), (String, String)> {
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
pub(super) fn snapshot(
    disk: &dyn Disk,
    identity: &Identity,
    last: Position,
) -> Result<Snapshot, WalError> {
    let name = names::snapshot(last);
    let file = disk.path(&name);
    let mut bytes = Vec::new();
    disk.read(&name, &mut bytes)
        .map_err(|error| WalError::disk(file.clone(), None, "read", error))?;
    let content = header::decode_snapshot(&file, &bytes, last, identity)?;
    Ok(Snapshot {
        last,
        bytes: Arc::from(content),
    })
}

/// The snapshot to start from and the entries after it. If the newest is bad
/// the one before it will do, or none at all, but only if the log still leads
/// on from there: otherwise the newest is the only place where some of what
/// was acknowledged stood.
pub(super) fn assemble(
    disk: &dyn Disk,
    identity: &Identity,
    log: &mut Log,
) -> Result<(Recovered, Option<WalError>), WalError> {
    let Tail {
        hard,
        newest,
        previous,
        ..
    } = log.tail;
    let mut problem: Option<WalError> = None;
    for at in [newest, previous] {
        if at == Position::ZERO {
            break;
        }
        match snapshot(disk, identity, at) {
            Ok(snapshot) if log.first <= at.id.saturating_add(1) => {
                let covered =
                    usize::try_from(at.id.saturating_add(1) - log.first).unwrap_or(usize::MAX);
                let mut entries = std::mem::take(&mut log.entries);
                entries.drain(..covered.min(entries.len()));
                let recovered = Recovered {
                    hard,
                    snapshot: Some(snapshot),
                    entries,
                };
                return Ok((recovered, problem));
            }
            Ok(_) => return Err(problem.unwrap_or_else(|| not_covered(disk, log, at))),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    if log.first != 1 {
        return Err(problem.unwrap_or_else(|| not_covered(disk, log, newest)));
    }
    let recovered = Recovered {
        hard,
        snapshot: None,
        entries: std::mem::take(&mut log.entries),
    };
    Ok((recovered, problem))
}

fn not_covered(disk: &dyn Disk, log: &Log, at: Position) -> WalError {
    let first = log
        .closed
        .first()
        .map_or(log.last.start.segment, |closed| closed.number);
    let file = disk.path(&names::segment(first.saturating_sub(1)));
    let expected = format!("the entries after {}", at.id);
    let found = format!("nothing before entry {} (is a segment missing?)", log.first);
    WalError::damaged(file, 0, expected, found)
}
