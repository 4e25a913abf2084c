//! The value of an election's register (§1).
//!
//! The encoding is text that a person can read in a database console, one
//! field a line in a fixed order, closed by a checksum:
//!
//! ```text
//! tenure-election 1
//! election payroll
//! term 7
//! sequence 93
//! renewal 93
//! lease_ns 10000000000
//! acquired_at_ms 1763700000000
//! renewed_at_ms 1763700090000
//! leader 00c0ffee00c0ffee00c0ffee00c0ffee
//! name web-1
//! address 10.0.0.7:8443
//! params 7b7d
//! request transfer web-2
//! crc32c 1a2b3c4d
//! ```
//!
//! A vacant election has no `leader` to `request` lines, and after a transfer
//! one `successor` line. The first line names the format; anything that this
//! version does not know is refused, never guessed at and never overwritten,
//! so an old binary cannot damage what a newer one wrote.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use core::str::Lines;
use core::time::Duration;

use tenure_core::cas::Bytes;
use tenure_core::crc::crc32c;
use tenure_core::ids::{LeaderId, Name, Term};
use tenure_core::time::{WallTime, nanos};

use super::config::Config;

const MAGIC: &str = "tenure-election";
/// The format version of a record (its schema version, like `apiVersion` of
/// Kubernetes): another number is refused, never converted. What Tenure calls a
/// *version* elsewhere is the token that a compare-and-swap compares.
const FORMAT: u64 = 1;

/// What an election's register says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The name of the election.
    pub election: Name,
    /// Grows by one whenever the leader changes; never resets.
    pub term: Term,
    /// Grows with every write by anyone, so that no two writes of a register
    /// have equal bytes: a version is often a hash of the content.
    pub sequence: u64,
    /// The sequence of the holder's own last write. A request written by
    /// somebody else leaves it, and so cannot make a dead holder look alive.
    pub renewal: u64,
    /// How long a grant lasts without renewal. Judges use this value, not
    /// their own setting.
    pub lease: Duration,
    /// When the election was won, by the writer's calendar (information).
    pub acquired_at: WallTime,
    /// When it was last renewed, by the writer's calendar (information,
    /// except under [`Expiry::BoundedSkew`](super::Expiry::BoundedSkew)).
    pub renewed_at: WallTime,
    /// Who holds it.
    pub occupancy: Occupancy,
}

/// Whether an election is held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Occupancy {
    /// Nobody holds it: it was resigned.
    Vacant {
        /// To whom it was handed, if to anyone: others hold back a little.
        successor: Option<Name>,
    },
    /// Somebody holds it.
    Held(Holder),
}

/// Who holds an election.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The incarnation.
    pub id: LeaderId,
    /// Its name for people.
    pub name: Name,
    /// Where clients connect, in order of preference.
    pub addresses: Arc<[Name]>,
    /// Opaque bytes for clients.
    pub params: Bytes,
    /// What somebody asked of it.
    pub request: Option<Request>,
}

/// What somebody asked of a leader, written into its register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Give up the leadership.
    Resign,
    /// Give it up in favour of the candidate of this name.
    Transfer(Name),
}

/// A leader as others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leader {
    /// The term it leads in: the fence.
    pub term: Term,
    /// The incarnation.
    pub id: LeaderId,
    /// Its name for people.
    pub name: Name,
    /// Where clients connect, in order of preference.
    pub addresses: Arc<[Name]>,
    /// Opaque bytes for clients.
    pub params: Bytes,
}

impl Record {
    /// The largest sequence that is read, and so the largest that is written.
    /// What is added to it still fits: a sequence that stood still would make
    /// every renewal look like silence. No election gets there by itself.
    pub const SEQUENCE_MAX: u64 = 1 << 62;

    /// The largest sequence above which a candidate stands. What its leadership
    /// writes must be read: 2^40 writes are left for it, which is a thousand
    /// years of a write every 40 ms.
    pub const SEQUENCE_TO_STAND_MAX: u64 = Self::SEQUENCE_MAX - (1 << 40);

    /// The sequence of the write after this record's; `None` if nobody could
    /// read it.
    pub fn next_sequence(&self) -> Option<u64> {
        (self.sequence < Self::SEQUENCE_MAX).then(|| self.sequence + 1)
    }

    /// The sequence with which a candidate stands above this record; `None` if
    /// none does, for too few would be left for its leadership.
    pub fn sequence_to_stand(&self) -> Option<u64> {
        (self.sequence <= Self::SEQUENCE_TO_STAND_MAX).then(|| self.sequence + 1)
    }

    /// Whether no candidate will ever stand above this record: there is no term
    /// or too few sequences after it. It was written by hand, and only a person
    /// who deletes it makes room for another leader.
    pub fn is_last(&self) -> bool {
        self.term.next().is_none() || self.sequence_to_stand().is_none()
    }

    /// The holder, if there is one.
    pub const fn holder(&self) -> Option<&Holder> {
        match &self.occupancy {
            Occupancy::Held(holder) => Some(holder),
            Occupancy::Vacant { .. } => None,
        }
    }

    /// The holder as others see it, if there is one.
    pub fn leader(&self) -> Option<Leader> {
        self.holder().map(|holder| Leader {
            term: self.term,
            id: holder.id,
            name: holder.name.clone(),
            addresses: holder.addresses.clone(),
            params: holder.params.clone(),
        })
    }

    /// Whether `id` holds it in `term`.
    pub fn is_held_by(&self, id: LeaderId, term: Term) -> bool {
        self.term == term && self.holder().is_some_and(|holder| holder.id == id)
    }

    /// Whether `other` shows the same write of the same holder, perhaps with
    /// a request that somebody has added since.
    pub(crate) fn is_same_grant_as(&self, other: &Self) -> bool {
        let id = |record: &Self| record.holder().map(|holder| holder.id);
        (self.term, self.renewal, id(self)) == (other.term, other.renewal, id(other))
    }

    /// The bytes to store.
    pub fn encode(&self) -> Bytes {
        let mut text = String::with_capacity(256);
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        let sum = crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c {sum:08x}");
        Bytes::from(text.into_bytes())
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "{MAGIC} {FORMAT}")?;
        writeln!(out, "election {}", self.election)?;
        writeln!(out, "term {}", self.term)?;
        writeln!(out, "sequence {}", self.sequence)?;
        writeln!(out, "renewal {}", self.renewal)?;
        writeln!(out, "lease_ns {}", nanos(self.lease))?;
        writeln!(out, "acquired_at_ms {}", self.acquired_at.as_millis())?;
        writeln!(out, "renewed_at_ms {}", self.renewed_at.as_millis())?;
        match &self.occupancy {
            Occupancy::Vacant { successor: None } => Ok(()),
            Occupancy::Vacant {
                successor: Some(name),
            } => writeln!(out, "successor {name}"),
            Occupancy::Held(holder) => holder.write(out),
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If the bytes are anything else, with what was expected where.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let text = core::str::from_utf8(bytes).map_err(|_| RecordError::NotARecord)?;
        let format = text
            .strip_prefix(MAGIC)
            .and_then(|rest| rest.lines().next()?.trim().parse::<u64>().ok())
            .ok_or(RecordError::NotARecord)?;
        if format != FORMAT {
            return Err(RecordError::Newer { format });
        }
        let body = text.rfind("crc32c ").ok_or(RecordError::Checksum)?;
        let (body, sum) = text.split_at(body);
        let mut line = String::new();
        let _ = writeln!(line, "crc32c {:08x}", crc32c(body.as_bytes()));
        if line != sum {
            return Err(RecordError::Checksum);
        }
        Fields::new(body).record()
    }
}

impl Holder {
    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "leader {}", self.id)?;
        writeln!(out, "name {}", self.name)?;
        for address in self.addresses.iter() {
            writeln!(out, "address {address}")?;
        }
        if !self.params.is_empty() {
            out.push_str("params ");
            self.params
                .iter()
                .try_for_each(|byte| write!(out, "{byte:02x}"))?;
            out.push('\n');
        }
        match &self.request {
            None => Ok(()),
            Some(Request::Resign) => writeln!(out, "request resign"),
            Some(Request::Transfer(to)) => writeln!(out, "request transfer {to}"),
        }
    }
}

/// Why bytes are not a record.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RecordError {
    /// They do not begin like one.
    NotARecord,
    /// They were written by another version of the format.
    Newer {
        /// Its number.
        format: u64,
    },
    /// They are damaged: the checksum does not match.
    Checksum,
    /// A line is not what it should be.
    Field {
        /// What was expected.
        expected: &'static str,
        /// What was found.
        found: String,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARecord => write!(
                f,
                "expected an election's register, beginning with \"{MAGIC} {FORMAT}\", found \
                 something else; the program that wrote it should use another prefix or table"
            ),
            Self::Newer { format } => write!(
                f,
                "expected register format {FORMAT}, found format {format}, written by another \
                 version of tenure; upgrade this one"
            ),
            Self::Checksum => f.write_str(
                "expected a register whose checksum matches, found a damaged one; it is left \
                 as it is: restore it, or delete it knowing that its fence restarts",
            ),
            Self::Field { expected, found } => write!(
                f,
                "expected a register with a line \"{expected}\", found {found:?}; it was \
                 written by another version of tenure or by hand"
            ),
        }
    }
}

impl core::error::Error for RecordError {}

/// Reads the lines of a record in their order.
struct Fields<'a> {
    lines: Lines<'a>,
    next: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn new(body: &'a str) -> Self {
        let mut lines = body.lines();
        // The first line, the format, has been checked.
        lines.next();
        let next = lines.next();
        Self { lines, next }
    }

    fn record(&mut self) -> Result<Record, RecordError> {
        let record = Record {
            election: self.name("election")?,
            term: self.parsed("term", |text| Term::new(text.parse().ok()?))?,
            sequence: self.at_most(
                Record::SEQUENCE_MAX,
                "sequence",
                "sequence N (at most 2^62)",
            )?,
            renewal: self.at_most(Record::SEQUENCE_MAX, "renewal", "renewal N (at most 2^62)")?,
            lease: self.lease()?,
            acquired_at: WallTime::from_millis(self.number("acquired_at_ms")?),
            renewed_at: WallTime::from_millis(self.number("renewed_at_ms")?),
            occupancy: self.occupancy()?,
        };
        match self.next {
            None => Ok(record),
            Some(found) => Err(RecordError::Field {
                expected: "crc32c",
                found: clip(found),
            }),
        }
    }

    fn occupancy(&mut self) -> Result<Occupancy, RecordError> {
        if !self.is_next("leader") {
            let successor = self.optional("successor", |text| Name::new(text).ok())?;
            return Ok(Occupancy::Vacant { successor });
        }
        let id = self.parsed("leader", LeaderId::parse)?;
        let name = self.name("name")?;
        let mut addresses = Vec::new();
        while let Some(address) = self.optional("address", |text| Name::new(text).ok())? {
            // What no candidate writes would be copied to all who look.
            if addresses.len() == Config::ADDRESSES_MAX {
                return Err(RecordError::Field {
                    expected: "at most 16 addresses",
                    found: clip(address.as_str()),
                });
            }
            addresses.push(address);
        }
        let params = self.optional("params", unhex)?.unwrap_or_default();
        if params.len() > Config::PARAMS_MAX {
            return Err(RecordError::Field {
                expected: "at most 16384 bytes of params",
                found: format!("{} bytes", params.len()),
            });
        }
        let request = self.optional("request", request)?;
        Ok(Occupancy::Held(Holder {
            id,
            name,
            addresses: addresses.into(),
            params: params.into(),
            request,
        }))
    }

    fn is_next(&self, key: &str) -> bool {
        self.next
            .and_then(|line| line.split_once(' '))
            .is_some_and(|(found, _)| found == key)
    }

    fn parsed<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&'a str) -> Option<T>,
    ) -> Result<T, RecordError> {
        let line = self.next.unwrap_or_default();
        let value = line
            .strip_prefix(key)
            .and_then(|rest| rest.strip_prefix(' '));
        let Some(value) = value.and_then(parse) else {
            return Err(RecordError::Field {
                expected: key,
                found: clip(line),
            });
        };
        self.next = self.lines.next();
        Ok(value)
    }

    fn optional<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&'a str) -> Option<T>,
    ) -> Result<Option<T>, RecordError> {
        if self.is_next(key) {
            self.parsed(key, parse).map(Some)
        } else {
            Ok(None)
        }
    }

    fn number(&mut self, key: &'static str) -> Result<u64, RecordError> {
        self.parsed(key, |text| text.parse().ok())
    }

    fn at_most(
        &mut self,
        most: u64,
        key: &'static str,
        expected: &'static str,
    ) -> Result<u64, RecordError> {
        let found = clip(self.next.unwrap_or_default());
        let number = self.number(key)?;
        if number > most {
            return Err(RecordError::Field { expected, found });
        }
        Ok(number)
    }

    /// No candidate takes a longer one than that.
    fn lease(&mut self) -> Result<Duration, RecordError> {
        let most = nanos(Config::LEASE_MAX);
        let lease = self.at_most(most, "lease_ns", "lease_ns N (at most 7 days)")?;
        Ok(Duration::from_nanos(lease))
    }

    fn name(&mut self, key: &'static str) -> Result<Name, RecordError> {
        self.parsed(key, |text| Name::new(text).ok())
    }
}

fn request(text: &str) -> Option<Request> {
    match text.split_once(' ') {
        Some(("transfer", to)) => Name::new(to).ok().map(Request::Transfer),
        None if text == "resign" => Some(Request::Resign),
        _ => None,
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

/// Enough of a bad line to recognise it, never all of a huge one.
fn clip(line: &str) -> String {
    line.chars().take(60).collect()
}
