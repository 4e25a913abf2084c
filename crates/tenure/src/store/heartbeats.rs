//! Elections in the heartbeat table of HPC Pack HA (`?format=hpc`): what its rows
//! mean, as values. Which statements read and write them is the matter of each
//! database.
//!
//! The table has a row for each election: `{uuid, utype, uname, timestamp}`. Its
//! programs have two calls. `GetPrimary(utype)` is the row if `ha_time - timestamp
//! <= T`, else nothing. `UpdateHeartBeat(uuid, utype)` replaces the row that was seen
//! last by `{uuid, utype, ha_time}`; where the `uuid` is another, only if the row is
//! older than T. `ha_time` is the database's clock, in UTC.
//!
//! The row has no term, no sequence, no lease and no request. Tenure keeps these in a
//! *note*: a row of a second table with the whole record of the election, and the
//! `uuid` and `timestamp` of the row that it was written with. Both rows are written
//! in one transaction.
//!
//! If row and note differ, another program has written the row. The first candidate
//! that sees it writes a new note ([`Note::after`]): the same term if the
//! `uuid` is that of the note, else the next one. So terms never fall, and rise with
//! each leader of the other system that is seen. What a note is given is never taken
//! back: the version of the register is that of the note.
//!
//! An election that is vacated gets an empty `uuid` and the time that the other system
//! writes for *never*, so that its programs take it at once.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tenure_core::cas::Bytes;
use tenure_core::ids::{Key, LeaderId, Name, Term};
use tenure_core::time::{ClockId, StoreTime, WallTime};
use tenure_election::{Holder, Occupancy, Record};

use super::{Stamp, Write, url_options};
use crate::error::StoreError;

/// What the keys of elections begin with.
const ELECTIONS: &str = "elections/";

/// The time of a row that nobody holds, as the other system writes it.
pub(super) const NEVER: &str = "1753-01-01 12:00:00.000";

/// The name of the other system's table.
const TABLE: &str = "heartbeattable";

/// The example of T in the other system's description, and what its scripts set.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The name of the database's clock. It may step.
const CLOCK: ClockId = ClockId {
    boot: 0,
    namespace: 0,
};

/// What a URL says of the format of its tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Options {
    /// Whether the format is asked for.
    pub(super) is_asked: bool,
    /// The table of heartbeats; that of notes is named after it.
    table: String,
    /// T: after so long the other programs take a row over.
    pub(super) timeout: Duration,
    pub(super) judge_by_store_clock: bool,
    pub(super) poll_every: Duration,
    /// The first option that only this format has.
    foreign: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            is_asked: false,
            table: TABLE.to_owned(),
            timeout: TIMEOUT,
            // As the other system does.
            judge_by_store_clock: true,
            poll_every: Duration::from_millis(200),
            foreign: None,
        }
    }
}

impl Options {
    /// Takes an option of a URL; whether it is one of these.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<bool, StoreError> {
        match key {
            "format" if value == "hpc" => {
                self.is_asked = true;
                return Ok(true);
            }
            "format" => {
                return Err(StoreError::broken(format!(
                    "format=: expected hpc, found {value:?}; this store has no other format but \
                     its own, which has no name"
                )));
            }
            "table" => self.table = table(value)?,
            "heartbeat_timeout" => self.timeout = timeout(value)?,
            "expiry" => self.judge_by_store_clock = url_options::expiry(value)?,
            "poll" => self.poll_every = url_options::poll(value)?,
            _ => return Ok(false),
        }
        self.foreign.get_or_insert_with(|| key.to_owned());
        Ok(true)
    }

    /// Refuses options of this format without it.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match &self.foreign {
            Some(key) if !self.is_asked => Err(StoreError::broken(format!(
                "expected {key}= together with format=hpc, found it without; leave it out"
            ))),
            _ => Ok(()),
        }
    }

    /// The table of heartbeats.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// The table of notes.
    #[cfg(feature = "sqlite")]
    pub(super) fn notes(&self) -> String {
        format!("{}_tenure", self.table)
    }
}

/// A name that needs no quotes in any statement.
fn table(name: &str) -> Result<String, StoreError> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let digit = name.bytes().next().is_none_or(|b| b.is_ascii_digit());
    if !digit && name.len() <= 48 && name.bytes().all(fits) {
        return Ok(name.to_owned());
    }
    Err(StoreError::broken(format!(
        "table=: expected at most 48 lower-case letters, digits and underscores, found {name:?}"
    )))
}

/// T, in milliseconds or seconds.
fn timeout(value: &str) -> Result<Duration, StoreError> {
    let millis = match value.strip_suffix("ms") {
        Some(number) => number.parse().ok(),
        None => value
            .strip_suffix('s')
            .and_then(|number| number.parse::<u64>().ok()?.checked_mul(1_000)),
    };
    match millis {
        Some(millis @ 10..=604_800_000) => Ok(Duration::from_millis(millis)),
        _ => Err(StoreError::broken(format!(
            "heartbeat_timeout=: expected 10ms to 604800s, found {value:?}"
        ))),
    }
}

/// The election of a key.
///
/// # Errors
/// [`StoreError::Broken`] if it is the key of something else.
pub(super) fn utype(key: &Key) -> Result<Name, StoreError> {
    let name = key.as_str().strip_prefix(ELECTIONS);
    let name = name.ok_or_else(|| no_registers(key.as_str()))?;
    Name::new(name).map_err(|_| no_registers(key.as_str()))
}

/// Whether this is what is read to see how long a round trip takes.
pub(super) fn is_probe(key: &Key) -> bool {
    key.as_str() == ELECTIONS
}

/// What names of elections come after, of a page that goes on after `key`.
pub(super) fn after(key: &Key) -> &str {
    key.as_str().strip_prefix(ELECTIONS).unwrap_or_default()
}

/// The key of the election of a row, if it can be one.
pub(super) fn key(utype: &str) -> Option<Key> {
    Name::new(utype).ok().map(|name| Key::of_election(&name))
}

/// Whether there is something below a prefix; then what the names of the elections
/// begin with.
///
/// # Errors
/// [`StoreError::Broken`] if it is the prefix of something else.
pub(super) fn utypes(prefix: &str) -> Result<&str, StoreError> {
    match prefix.strip_prefix(ELECTIONS) {
        Some(rest) => Ok(rest),
        None if ELECTIONS.starts_with(prefix) => Ok(""),
        None => Err(no_registers(prefix)),
    }
}

fn no_registers(key: &str) -> StoreError {
    StoreError::broken(format!(
        "expected the key of an election, {ELECTIONS}NAME, found {key:?}: format=hpc keeps a row \
         for each election and has no other registers; groups and what else needs them want a \
         store without it"
    ))
}

/// What a row of the heartbeat table says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Beat {
    /// Empty if nobody holds the election.
    pub(super) uuid: String,
    pub(super) uname: String,
    /// The time, if it can be read and is after 1970.
    pub(super) millis: Option<u64>,
}

/// What Tenure keeps of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Note {
    pub(super) term: Term,
    /// Whether another program wrote the row.
    pub(super) is_foreign: bool,
    /// The election's record, encoded.
    pub(super) record: Bytes,
}

impl Note {
    /// The note on a row that was written by another program: the one before, and what
    /// the row says now; `None` if there is no row any more.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if the note before cannot be read.
    pub(super) fn after(
        before: Option<&Self>,
        utype: &Name,
        beat: Option<&Beat>,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let before = before.map(|note| note.decode(utype)).transpose()?;
        let last = before.as_ref().map_or(0, |record| record.sequence);
        let sequence = (last + 1).min(Record::SEQUENCE_MAX);
        let term = before.as_ref().map_or(Term::ZERO, |record| record.term);
        let at = WallTime::from_millis(beat.and_then(|beat| beat.millis).unwrap_or_default());
        let held_before = before.as_ref().and_then(Record::holder);
        let mut record = Record {
            election: utype.clone(),
            term,
            sequence,
            renewal: sequence,
            lease: timeout,
            acquired_at: at,
            renewed_at: at,
            occupancy: Occupancy::Vacant { successor: None },
        };
        if let Some(beat) = beat.filter(|beat| !beat.uuid.is_empty()) {
            let id = leader_id(&beat.uuid);
            let same = held_before.filter(|holder| holder.id == id).cloned();
            if same.is_none() {
                record.term = term.next().ok_or_else(|| exhausted(utype))?;
            } else if let Some(before) = &before {
                record.acquired_at = before.acquired_at;
            }
            record.occupancy = Occupancy::Held(same.unwrap_or_else(|| Holder {
                id,
                name: name(beat, utype),
                addresses: [].into(),
                params: Bytes::from([]),
                request: None,
            }));
        }
        Ok(Self {
            term: record.term,
            is_foreign: true,
            record: record.encode(),
        })
    }

    fn decode(&self, utype: &Name) -> Result<Record, StoreError> {
        Record::decode(&self.record).map_err(|error| {
            StoreError::broken(format!(
                "the note on {utype}, of term {}: {error}; end all candidates of Tenure, delete \
                 the note, and start them with a term above {} (`tenure repair {utype} \
                 --term-above {}`)",
                self.term, self.term, self.term
            ))
        })
    }
}

fn exhausted(utype: &Name) -> StoreError {
    StoreError::broken(format!(
        "expected a term after that of {utype}, found that there is none; the note was written by \
         hand: delete it"
    ))
}

/// What a write makes of the two rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Change {
    pub(super) utype: Name,
    /// What the row holds from now on; `None` if it stays as it is.
    pub(super) row: Option<Row>,
    pub(super) note: Note,
    /// It asks something of the holder.
    is_request: bool,
}

/// What stands in a row that Tenure writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    /// Empty if the election is vacated; then the time is [`NEVER`].
    pub(super) uuid: String,
    pub(super) uname: String,
}

impl Change {
    /// What this write means, where the other programs wait for `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if it is no write of a candidate whose lease fits.
    pub(super) fn new(write: &Write, timeout: Duration) -> Result<Self, StoreError> {
        let utype = utype(&write.key)?;
        let record = Record::decode(&write.value)
            .ok()
            .filter(|record| record.election == utype)
            .ok_or_else(|| {
                StoreError::broken(format!(
                    "expected the record of the election {utype}, found another value: format=hpc \
                     keeps elections alone"
                ))
            })?;
        let holder = record.holder();
        // Before a leader with a longer lease stops, another program may lead.
        if holder.is_some() && record.lease > timeout {
            return Err(StoreError::broken(format!(
                "expected a lease of at most {timeout:?}, after which programs of HPC Pack HA take \
                 {utype} over, found {:?}; stand with --lease {timeout:?}, or say their T with \
                 heartbeat_timeout=",
                record.lease
            )));
        }
        let row = Row {
            uuid: holder.map_or_else(String::new, |holder| guid(holder.id)),
            uname: holder.map_or_else(String::new, |holder| holder.name.as_str().to_owned()),
        };
        let is_request = write.stamp == Stamp::Keep;
        Ok(Self {
            row: (!is_request).then_some(row),
            note: Note {
                term: record.term,
                is_foreign: false,
                record: write.value.clone(),
            },
            utype,
            is_request,
        })
    }

    /// Refuses a request to a program that hears none. `over` is the note that the
    /// write replaces.
    pub(super) fn check(&self, over: Option<&Note>) -> Result<(), StoreError> {
        if self.is_request && over.is_some_and(|note| note.is_foreign) {
            return Err(StoreError::broken(format!(
                "expected a leader of {} that is a candidate of Tenure, found a program of HPC \
                 Pack HA: it hears no requests; stop it by its own means",
                self.utype
            )));
        }
        Ok(())
    }
}

/// An id as a `uuid` is written.
fn guid(id: LeaderId) -> String {
    let hex = id.to_string();
    let mut text = String::with_capacity(36);
    for (at, digit) in hex.chars().enumerate() {
        if matches!(at, 8 | 12 | 16 | 20) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}

/// The id that a `uuid` is: its digits, or of another text a hash.
fn leader_id(uuid: &str) -> LeaderId {
    let digits: String = uuid.chars().filter(|letter| *letter != '-').collect();
    LeaderId::parse(&digits).unwrap_or_else(|| {
        let hash = Sha256::digest(uuid.as_bytes());
        let half = hash.iter().take(16);
        LeaderId::from_u128(half.fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    })
}

/// What the holder of a row is called; as the election, if it has no name.
fn name(beat: &Beat, utype: &Name) -> Name {
    let named = Name::new(&beat.uname).or_else(|_| Name::new(&beat.uuid));
    named.unwrap_or_else(|_| utype.clone())
}

/// An error of a reading: whether the note that it wrote is there does not matter.
pub(super) fn of_reading(error: StoreError) -> StoreError {
    match error {
        StoreError::Unknown(why) => StoreError::unavailable(why),
        error => error,
    }
}

/// A time of the database's clock.
pub(super) fn store_time(millis: u64) -> StoreTime {
    StoreTime {
        clock: CLOCK,
        nanos: millis.saturating_mul(1_000_000),
    }
}
