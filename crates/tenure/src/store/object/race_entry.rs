//! The message that vimeo's Go library `leaderelection` keeps in an object, and what it
//! says in words of ours.
//!
//! ```text
//! message RaceEntry {
//!     uint64 election_number = 1;                // grows with each write
//!     string leader_id = 2;
//!     repeated string host_port = 3;
//!     google.protobuf.Timestamp term_expiry = 4; // by the writer's calendar
//!     bytes connection_parameters = 5;
//! }
//! ```
//!
//! | of ours | is there |
//! |---|---|
//! | sequence, renewal | the election number |
//! | leader, term, lease, name | in the leader's id, `tenure/ID/TERM/LEASE_MS/NAME` |
//! | addresses, params | `host_port`, `connection_parameters` |
//! | time of the renewal | the expiry, less the lease |
//! | requests, a successor, when it was won | nowhere |
//!
//! Of a leader that is no candidate of ours, and of an election that was resigned, the
//! term is one above the election number: above all that were led in before, and below
//! all that come after. So terms grow, and by more than one.
//!
//! The others do not wait for the bound on clocks when they begin to stand, and take an
//! election whose expiry is past by their own calendar. So what is written is later than
//! the end of the grant by that bound.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tenure_core::ids::{LeaderId, Name, Term};
use tenure_core::time::WallTime;
use tenure_election::{Config, Holder, Occupancy, Record};

/// What the id of a candidate of ours begins with.
const OURS: &str = "tenure/";
/// The last second of the year 9999, the latest that a timestamp may say.
const SECONDS_MAX: i64 = 253_402_300_799;

/// What is in the object.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct RaceEntry {
    pub(super) election_number: u64,
    pub(super) leader_id: String,
    pub(super) host_port: Vec<String>,
    pub(super) term_expiry: Option<Timestamp>,
    pub(super) connection_parameters: Vec<u8>,
}

/// A time since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Timestamp {
    pub(super) seconds: i64,
    pub(super) nanos: i32,
}

/// A field of a message: its number, and what it has.
enum Field<'a> {
    Number(u64, u64),
    Bytes(u64, &'a [u8]),
    /// Of a kind that no field here is.
    Other,
}

/// What is left of a message in the wire format of Protocol Buffers.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// At most ten bytes, of which the last has one bit.
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    /// The next field, if there is one; `None` if the message is damaged.
    fn next(&mut self) -> Option<Option<Field<'a>>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number >= 1 << 29 {
            return None;
        }
        Some(Some(match tag & 7 {
            0 => Field::Number(number, self.varint()?),
            1 => self.bytes(8).map(|_| Field::Other)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(number, self.bytes(length)?)
            }
            5 => self.bytes(4).map(|_| Field::Other)?,
            _ => return None,
        }))
    }
}

impl Timestamp {
    /// Adds what a message says to what was said before.
    fn merge(&mut self, message: &[u8]) -> Option<()> {
        let mut fields = Fields(message);
        while let Some(field) = fields.next()? {
            match field {
                // Two's complement, and of the second the low half.
                Field::Number(1, seconds) => self.seconds = seconds.cast_signed(),
                Field::Number(2, nanos) => self.nanos = (nanos as u32).cast_signed(),
                _ => {}
            }
        }
        Some(())
    }

    /// In milliseconds, not before it; `None` of what is no time from 1970 to 9999.
    fn as_millis(self) -> Option<u64> {
        let seconds = u64::try_from(self.seconds).ok()?;
        let nanos = u64::try_from(self.nanos).ok()?;
        (self.seconds <= SECONDS_MAX && nanos < 1_000_000_000)
            .then(|| seconds * 1_000 + nanos.div_ceil(1_000_000))
    }

    fn from_millis(millis: u64) -> Self {
        let seconds = i64::try_from(millis / 1_000).unwrap_or(SECONDS_MAX);
        Self {
            seconds: seconds.min(SECONDS_MAX),
            nanos: (millis % 1_000) as i32 * 1_000_000,
        }
    }

    fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_number(&mut bytes, 1, self.seconds.cast_unsigned());
        put_number(&mut bytes, 2, i64::from(self.nanos).cast_unsigned());
        bytes
    }
}

impl RaceEntry {
    /// Reads a message; `None` if it is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = |bytes: &[u8]| Some(std::str::from_utf8(bytes).ok()?.to_owned());
        let (mut entry, mut fields) = (Self::default(), Fields(bytes));
        while let Some(field) = fields.next()? {
            match field {
                Field::Number(1, number) => entry.election_number = number,
                Field::Bytes(2, bytes) => entry.leader_id = text(bytes)?,
                Field::Bytes(3, bytes) => entry.host_port.push(text(bytes)?),
                Field::Bytes(4, bytes) => {
                    let expiry = entry.term_expiry.get_or_insert_default();
                    expiry.merge(bytes)?;
                }
                Field::Bytes(5, bytes) => entry.connection_parameters = bytes.to_vec(),
                // One of these of another kind is another message.
                Field::Number(1..=5, _) | Field::Bytes(1..=5, _) => return None,
                // A later version may have more.
                _ => {}
            }
        }
        Some(entry)
    }

    /// The bytes, in the order of the fields, as other implementations write them.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_number(&mut bytes, 1, self.election_number);
        if !self.leader_id.is_empty() {
            put_bytes(&mut bytes, 2, self.leader_id.as_bytes());
        }
        for address in &self.host_port {
            put_bytes(&mut bytes, 3, address.as_bytes());
        }
        if let Some(expiry) = self.term_expiry {
            put_bytes(&mut bytes, 4, &expiry.encode());
        }
        if !self.connection_parameters.is_empty() {
            put_bytes(&mut bytes, 5, &self.connection_parameters);
        }
        bytes
    }

    /// What a record says in this format, where clocks differ by at most `skew`; why
    /// not, of one that says more.
    pub(super) fn of(record: &Record, skew: Duration) -> Result<Self, &'static str> {
        let mut entry = Self {
            election_number: record.sequence,
            ..Self::default()
        };
        let renewed_at = record.renewed_at.as_millis();
        let holder = match &record.occupancy {
            // The others take what has run out.
            Occupancy::Vacant { .. } => {
                entry.term_expiry = Some(Timestamp::from_millis(renewed_at));
                return Ok(entry);
            }
            Occupancy::Held(holder) => holder,
        };
        if holder.request.is_some() {
            return Err("a request to a leader");
        }
        // The object was lost, and its numbers began again: a leader of theirs would be
        // in a term below this one.
        if !is_early(record.term, record.sequence) {
            return Err("a term above the election number");
        }
        let Ok(lease) = u64::try_from(record.lease.as_millis()) else {
            return Err("so long a lease");
        };
        let (id, term, name) = (holder.id, record.term, &holder.name);
        entry.leader_id = format!("{OURS}{id}/{term}/{lease}/{name}");
        let addresses = holder.addresses.iter();
        entry.host_port = addresses.map(|it| it.as_str().to_owned()).collect();
        entry.connection_parameters = holder.params.to_vec();
        // Rounded up, as the grant of our own is counted from the whole lease.
        let after = record
            .lease
            .saturating_add(skew)
            .as_nanos()
            .div_ceil(1_000_000);
        let after = u64::try_from(after).map_err(|_| "so long a lease")?;
        let expiry = renewed_at.saturating_add(after);
        entry.term_expiry = Some(Timestamp::from_millis(expiry));
        Ok(entry)
    }

    /// The record of this election; `None` of an entry that is not whole.
    pub(super) fn record(&self, election: Name) -> Option<Record> {
        let expiry = self.term_expiry?.as_millis()?;
        let sequence = self.election_number;
        let after = Term::new(sequence.checked_add(1)?)?;
        let vacant = Record {
            election,
            term: after,
            sequence,
            renewal: sequence,
            lease: Config::LEASE,
            acquired_at: WallTime::from_millis(expiry),
            renewed_at: WallTime::from_millis(expiry),
            occupancy: Occupancy::Vacant { successor: None },
        };
        if sequence > Record::SEQUENCE_MAX {
            return None;
        }
        if self.leader_id.is_empty() {
            return Some(vacant);
        }
        let (id, term, lease, name) = match self.of_ours() {
            Some(ours) => ours,
            None => {
                let (id, name) = self.of_others()?;
                (id, after, Config::LEASE, name)
            }
        };
        let lease_ms = u64::try_from(lease.as_millis()).ok()?;
        let renewed_at = WallTime::from_millis(expiry.saturating_sub(lease_ms));
        let addresses = self.host_port.iter().filter_map(|it| Name::new(it).ok());
        let params = match self.connection_parameters.as_slice() {
            params if params.len() <= Config::PARAMS_MAX => params,
            _ => &[],
        };
        Some(Record {
            term,
            lease,
            acquired_at: renewed_at,
            renewed_at,
            occupancy: Occupancy::Held(Holder {
                id,
                name,
                addresses: addresses.take(Config::ADDRESSES_MAX).collect(),
                params: params.into(),
                request: None,
            }),
            ..vacant
        })
    }

    /// What the id of a candidate of ours says.
    fn of_ours(&self) -> Option<(LeaderId, Term, Duration, Name)> {
        let mut parts = self.leader_id.strip_prefix(OURS)?.splitn(4, '/');
        let id = LeaderId::parse(parts.next()?)?;
        let term = Term::new(parts.next()?.parse().ok()?)?;
        let lease = Duration::from_millis(parts.next()?.parse().ok()?);
        let name = Name::new(parts.next()?).ok()?;
        let is_whole = !lease.is_zero() && lease <= Config::LEASE_MAX;
        (is_whole && is_early(term, self.election_number)).then_some((id, term, lease, name))
    }

    /// An id for a leader that is none of ours, and a name for people: a hash where
    /// theirs cannot be shown.
    fn of_others(&self) -> Option<(LeaderId, Name)> {
        let hash = Sha256::digest(self.leader_id.as_bytes());
        let (first, _) = hash.split_first_chunk::<16>()?;
        let id = LeaderId::from_u128(u128::from_be_bytes(*first));
        let name = Name::new(&self.leader_id).or_else(|_| Name::new(&id.to_string()));
        Some((id, name.ok()?))
    }
}

/// Whether a term is below all that come after this election number.
fn is_early(term: Term, number: u64) -> bool {
    term.get() <= number.saturating_add(1)
}

fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Zero is not written.
fn put_number(bytes: &mut Vec<u8>, field: u64, number: u64) {
    if number != 0 {
        put_varint(bytes, field << 3);
        put_varint(bytes, number);
    }
}

fn put_bytes(bytes: &mut Vec<u8>, field: u64, content: &[u8]) {
    put_varint(bytes, field << 3 | 2);
    put_varint(bytes, content.len() as u64);
    bytes.extend_from_slice(content);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKEW: Duration = Duration::from_secs(1);

    /// Made by Python's protobuf 6.33 with `tests/object/race_entry.py encode` of
    /// `{"election_number": 300, "leader_id": "web-1", "host_port": ["10.0.0.7:80",
    /// "[::1]:80"], "term_expiry": "2025-11-24T16:00:00.500000001Z",
    /// "connection_parameters": "AP8="}`.
    const OF_PYTHON: &str = "08ac0212057765622d311a0b31302e302e302e373a38301a085b3a3a315d3a3830\
                             220c08808292c9061081cab5ee012a0200ff";

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn record(term: u64, sequence: u64) -> Record {
        Record {
            election: name("payroll"),
            term: Term::new(term).expect("a term"),
            sequence,
            renewal: sequence,
            lease: Duration::from_secs(10),
            acquired_at: WallTime::from_millis(0),
            renewed_at: WallTime::from_millis(1_764_000_000_123),
            occupancy: Occupancy::Held(Holder {
                id: LeaderId::from_u128(7),
                name: name("web/1"),
                addresses: vec![name("h:1")].into(),
                params: vec![1, 0].into(),
                request: None,
            }),
        }
    }

    #[test]
    fn bytes_of_another_implementation_are_read_and_written() {
        let found = RaceEntry::decode(&bytes(OF_PYTHON)).expect("an entry");
        assert_eq!(
            (found.election_number, found.leader_id.as_str()),
            (300, "web-1")
        );
        assert_eq!(found.host_port, ["10.0.0.7:80", "[::1]:80"]);
        assert_eq!(
            found.term_expiry,
            Some(Timestamp {
                seconds: 1_764_000_000,
                nanos: 500_000_001
            })
        );
        assert_eq!(found.connection_parameters, [0, 255]);
        assert_eq!(found.encode(), bytes(OF_PYTHON));
    }

    #[test]
    fn what_we_write_we_read_but_for_what_has_no_room() {
        let ours = record(4, 9);
        let entry = RaceEntry::of(&ours, SKEW).expect("an entry");
        let expiry = entry.term_expiry.expect("an expiry").as_millis();
        assert_eq!(expiry, Some(1_764_000_011_123), "lease and skew later");
        let read = RaceEntry::decode(&entry.encode()).expect("an entry");
        let read = read.record(name("payroll")).expect("a record");
        let late = WallTime::from_millis(1_764_000_001_123);
        assert_eq!(
            read,
            Record {
                acquired_at: late,
                renewed_at: late,
                ..ours.clone()
            }
        );
        let mut asked = ours.clone();
        if let Occupancy::Held(holder) = &mut asked.occupancy {
            holder.request = Some(tenure_election::Request::Resign);
        }
        assert!(RaceEntry::of(&asked, SKEW).is_err());
        assert!(RaceEntry::of(&record(5, 3), SKEW).is_err());
        let vacant = Record {
            occupancy: Occupancy::Vacant { successor: None },
            ..ours
        };
        let entry = RaceEntry::of(&vacant, SKEW).expect("an entry");
        let read = entry.record(name("payroll")).expect("a record");
        assert_eq!((read.term.get(), read.holder()), (10, None));
        let expiry = entry.term_expiry.expect("an expiry").as_millis();
        assert_eq!(expiry, Some(1_764_000_000_123), "it is over already");
    }

    #[test]
    fn terms_grow_whoever_leads() {
        let of_others = |number: u64| {
            let entry = RaceEntry {
                election_number: number,
                leader_id: "go".to_owned(),
                term_expiry: Some(Timestamp::default()),
                ..RaceEntry::default()
            };
            entry.record(name("payroll")).expect("a record")
        };
        // Theirs, and then one of ours, which renews, and then theirs again.
        let theirs = of_others(0);
        assert_eq!((theirs.term.get(), theirs.sequence), (1, 0));
        for renewals in [0, 1, 50] {
            let ours = record(theirs.term.get() + 1, theirs.sequence + 1 + renewals);
            let entry = RaceEntry::of(&ours, SKEW).expect("an entry");
            let read = entry.record(name("payroll")).expect("a record");
            assert_eq!(read.term, ours.term);
            assert!(of_others(ours.sequence + 1).term > ours.term);
        }
        // An id that says what no candidate of ours writes is another's.
        let entry = RaceEntry {
            election_number: 3,
            leader_id: format!("tenure/{}/9/1000/x", LeaderId::from_u128(1)),
            term_expiry: Some(Timestamp::default()),
            ..RaceEntry::default()
        };
        let read = entry.record(name("payroll")).expect("a record");
        assert_eq!(read.term.get(), 4);
    }

    #[test]
    fn what_is_no_entry_is_none() {
        for odd in [
            "ff",
            "08",
            "0a0161",
            "0801ff",
            "1201ff",
            "120561",
            "0b",
            "00",
            "2203ffffff",
        ] {
            assert_eq!(RaceEntry::decode(&bytes(odd)), None, "{odd}");
        }
        // More fields than are known, of each kind.
        let more = bytes("3001390000000000000000420161550000000008010a");
        assert_eq!(RaceEntry::decode(&more), None, "cut off");
        let known = RaceEntry::decode(&more[..more.len() - 1]).expect("an entry");
        assert_eq!(known.election_number, 1);
        // Without an end nobody knows when it is over.
        assert_eq!(known.record(name("payroll")), None);
        let entry = |seconds, nanos, election_number| RaceEntry {
            election_number,
            leader_id: "a\nb".to_owned(),
            term_expiry: Some(Timestamp { seconds, nanos }),
            ..RaceEntry::default()
        };
        for (seconds, nanos, number) in [
            (-1, 0, 1),
            (0, -1, 1),
            (0, 1_000_000_000, 1),
            (SECONDS_MAX + 1, 0, 1),
            (0, 0, u64::MAX),
            (0, 0, Record::SEQUENCE_MAX + 1),
        ] {
            let odd = entry(seconds, nanos, number);
            assert_eq!(odd.record(name("payroll")), None, "{odd:?}");
        }
        // Whatever is damaged: no panic, and what is read is written as it was read.
        let whole = bytes(OF_PYTHON);
        for (at, end) in (0..whole.len()).flat_map(|at| [(at, at), (at, whole.len())]) {
            for bit in 0..8 {
                let mut damaged = whole[..end].to_vec();
                if let Some(byte) = damaged.get_mut(at) {
                    *byte ^= 1 << bit;
                }
                if let Some(entry) = RaceEntry::decode(&damaged) {
                    assert_eq!(RaceEntry::decode(&entry.encode()), Some(entry.clone()));
                    let _ = entry.record(name("payroll"));
                }
            }
        }
        let read = entry(0, 1, 1).record(name("payroll")).expect("a record");
        assert_eq!(read.holder().expect("a holder").name.as_str().len(), 32);
    }
}
