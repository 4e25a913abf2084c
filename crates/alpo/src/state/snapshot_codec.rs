//! The state as bytes, for snapshots.
//!
//! A version, the state, and a checksum over both, so that a snapshot which
//! crossed a network in pieces, or lay on a disk for a year, is taken whole
//! or not at all. The change log of the registers is not part of it: a watch
//! that resumes on a server which was given a snapshot may be told to list
//! again.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU64;

use tenure_core::cas::{Bytes, Register, Registers};
use tenure_core::ids::{Key, Term, Version};
use tenure_core::shared_queue::SharedQueue;
use tenure_core::time::{ClockId, StoreTime};

use super::super::codec::{
    Checksum, DecodeError, Reader, crc32c_append, put_bytes, put_u64, read_membership, read_owner,
    write_membership, write_owner,
};
use super::super::durable::Snapshot;
use super::super::entry::{ClusterVersion, Outcome};
use super::super::ids::Position;
use super::super::session_owner::SessionOwner;
use super::bindings::Bindings;
use super::change_index::ChangeIndex;
use super::gaps::{Gap, Gaps, LAST};
use super::sessions::Saved;
use super::state_checksums::{self, StateChecksums};
use super::{Limits, MAX_WINDOW, Session, Sessions, State, UserLog};

/// The version of the format in which a cluster of version 1 writes it.
const VERSION_BEFORE: u8 = 3;

/// The version of the format from cluster version 2 on: with the owners of
/// sessions, the digests of what they did, and what was left out by restoring.
/// It is not written before: until then a server may be there that could not
/// read it.
const VERSION: u8 = 4;

/// Why bytes are no snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotError {
    /// They were written by another version.
    Version(u8),
    /// The checksum is wrong.
    Checksum,
    /// The registers are not those that the state was hashed with.
    Hash,
    /// They make no sense.
    Decode(DecodeError),
    /// They are a snapshot, but its last entry is another one than was said.
    Last(Position),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(found) => {
                write!(
                    f,
                    "expected a snapshot of version {VERSION_BEFORE} or {VERSION}, found version {found}"
                )
            }
            Self::Checksum => f.write_str("the snapshot is damaged: its checksum is wrong"),
            Self::Hash => f.write_str(
                "the snapshot was written from a state that had gone wrong: its registers \
                 are not those it says it has",
            ),
            Self::Decode(error) => write!(f, "the snapshot makes no sense: {error}"),
            Self::Last(found) => write!(f, "the snapshot is another one: it ends with {found}"),
        }
    }
}

impl core::error::Error for SnapshotError {}

impl From<DecodeError> for SnapshotError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

/// Whether a cluster of this version writes the newer format.
fn is_newer(version: ClusterVersion) -> bool {
    version >= ClusterVersion::SECOND
}

/// The checksum of what is written, kept up piece by piece: some tens of
/// megabytes would be out of the processor's caches by the time that all of
/// it is there.
struct RunningChecksum {
    append: Checksum,
    value: u32,
    upto: usize,
}

impl RunningChecksum {
    /// As much as a cache near the processor holds.
    const MUCH: usize = 64 * 1024;

    const fn of(append: Checksum) -> Self {
        Self {
            append,
            value: 0,
            upto: 0,
        }
    }

    /// Over all of it, which goes on from what it was over before.
    fn over(&mut self, all: &[u8]) -> u32 {
        self.value = (self.append)(self.value, &all[self.upto..]);
        self.upto = all.len();
        self.value
    }

    fn over_much(&mut self, all: &[u8]) {
        if all.len() - self.upto >= Self::MUCH {
            self.over(all);
        }
    }
}

/// A copy of the state at one moment, which is to become a snapshot. To make
/// it takes microseconds, to encode it a second for some gigabytes, so that
/// is not done on the thread that keeps a leadership alive.
#[derive(Clone, Debug)]
pub struct StateCopy {
    state: State,
    sum: Checksum,
}

impl StateCopy {
    pub(crate) const fn new(state: State, sum: Checksum) -> Self {
        Self { state, sum }
    }

    /// The last entry that is in it.
    pub const fn last(&self) -> Position {
        self.state.applied()
    }

    /// The snapshot.
    pub fn encode(&self) -> Snapshot {
        let mut bytes = Vec::new();
        self.state.encode_into(self.sum, &mut bytes);
        Snapshot {
            last: self.last(),
            bytes: Arc::new(bytes),
        }
    }
}

/// Two copies of the state of one server are equal if they were taken after
/// the same entry.
impl PartialEq for StateCopy {
    fn eq(&self, other: &Self) -> bool {
        self.last() == other.last()
    }
}

impl Eq for StateCopy {}

/// All bytes of a snapshot that another server has sent, which are to become a
/// state. To decode some gigabytes takes seconds, so that is not done on the
/// thread that hears the leader either.
#[derive(Clone, Debug)]
pub struct ReceivedSnapshot {
    snapshot: Snapshot,
    sum: Checksum,
}

impl ReceivedSnapshot {
    pub(crate) const fn new(snapshot: Snapshot, sum: Checksum) -> Self {
        Self { snapshot, sum }
    }

    /// The last entry that is in it, as its sender says.
    pub const fn last(&self) -> Position {
        self.snapshot.last
    }

    /// The state, if there is one in it.
    pub fn decode(self) -> DecodedSnapshot {
        let Self { snapshot, sum } = self;
        let state = match State::decode_foreign(sum, &snapshot.bytes) {
            Ok(state) if state.applied() == snapshot.last => Ok(Box::new(state)),
            Ok(state) => Err(SnapshotError::Last(state.applied())),
            Err(error) => Err(error),
        };
        DecodedSnapshot { snapshot, state }
    }
}

/// Two of one server are equal if they end with the same entry.
impl PartialEq for ReceivedSnapshot {
    fn eq(&self, other: &Self) -> bool {
        self.last() == other.last()
    }
}

impl Eq for ReceivedSnapshot {}

/// A snapshot that another server has sent, with the state in it.
#[derive(Clone, Debug)]
pub struct DecodedSnapshot {
    pub(crate) snapshot: Snapshot,
    pub(crate) state: Result<Box<State>, SnapshotError>,
}

impl DecodedSnapshot {
    /// The last entry that is in it.
    pub const fn last(&self) -> Position {
        self.snapshot.last
    }

    /// The bytes, if there is a state in them.
    pub const fn snapshot(&self) -> Option<&Snapshot> {
        if self.state.is_ok() {
            Some(&self.snapshot)
        } else {
            None
        }
    }

    /// Why there is no state in it, if there is none.
    pub fn error(&self) -> Option<SnapshotError> {
        self.state.as_ref().err().copied()
    }
}

/// Two of one server are equal if they end with the same entry.
impl PartialEq for DecodedSnapshot {
    fn eq(&self, other: &Self) -> bool {
        self.last() == other.last()
    }
}

impl Eq for DecodedSnapshot {}

impl State {
    /// The whole state as bytes; equal states give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        self.encode_into(crc32c_append, &mut to);
        to
    }

    /// The same, in the place of whatever is in `to`.
    pub fn encode_into(&self, sum: Checksum, to: &mut Vec<u8>) {
        to.clear();
        // Most of it is the user log; growing by doubling would copy that
        // twice over.
        to.reserve(self.user_log.weight() + 4_096);
        let newer = is_newer(self.version);
        to.push(if newer { VERSION } else { VERSION_BEFORE });
        for limit in [
            self.limits.user_log_bytes,
            self.limits.sessions,
            self.limits.changes,
            self.limits.checksum_every,
        ] {
            put_u64(to, limit);
        }
        put_u64(to, self.clock.boot);
        put_u64(to, self.clock.namespace);
        put_u64(to, self.applied.term.get());
        put_u64(to, self.applied.id);
        put_u64(to, self.time);
        put_u64(to, self.version.get());
        put_u64(to, self.state_checksums.chain);
        put_u64(to, self.state_checksums.registers);
        write_membership(to, &self.members);
        self.encode_registers(to);
        let mut sum = RunningChecksum::of(sum);
        self.encode_user_log(to, &mut sum);
        self.encode_sessions(to, newer);
        self.encode_bindings(to);
        if newer {
            self.encode_gaps(to);
        }
        let checksum = sum.over(to);
        to.extend_from_slice(&checksum.to_le_bytes());
    }

    /// The state that was written.
    ///
    /// # Errors
    /// If the bytes are not those of a whole state.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        Self::decode_with(crc32c_append, bytes)
    }

    /// The same with a checksum that is quicker here.
    ///
    /// # Errors
    /// As there.
    pub fn decode_with(sum: Checksum, bytes: &[u8]) -> Result<Self, SnapshotError> {
        Self::read(Reader::new(whole(sum, bytes)?))
    }

    /// The same of what another server has sent: a state with numbers that
    /// are taken from nobody is refused.
    ///
    /// # Errors
    /// As there.
    pub fn decode_foreign(sum: Checksum, bytes: &[u8]) -> Result<Self, SnapshotError> {
        Self::read(Reader::foreign(whole(sum, bytes)?))
    }

    fn read(mut from: Reader<'_>) -> Result<Self, SnapshotError> {
        let from = &mut from;
        let format = from.u8()?;
        if format != VERSION && format != VERSION_BEFORE {
            return Err(SnapshotError::Version(format));
        }
        let newer = format == VERSION;
        let limits = Limits {
            user_log_bytes: from.u64()?,
            sessions: from.u64()?,
            changes: from.u64()?,
            checksum_every: from.number()?,
        };
        let clock = ClockId {
            boot: from.u64()?,
            namespace: from.u64()?,
        };
        let term = Term::new(from.number()?).ok_or(DecodeError::Number)?;
        let applied = Position::new(term, from.number()?);
        let time = from.number()?;
        let version = ClusterVersion::new(from.u64()?).ok_or(DecodeError::Number)?;
        // There is one way to write a state.
        if newer != is_newer(version) {
            return Err(DecodeError::Number.into());
        }
        let (chain, sum) = (from.u64()?, from.u64()?);
        let members = read_membership(from)?;
        let registers = decode_registers(from, limits, clock)?;
        let (first, entries) = decode_user_log(from)?;
        let sessions = decode_sessions(from, newer)?;
        let bindings = decode_bindings(from, &registers, &sessions)?;
        let gaps = if newer {
            decode_gaps(from)?
        } else {
            Vec::new()
        };
        let numbers = gaps.iter().map(|gaps: &Gaps| gaps.numbers);
        let user_log = UserLog::restored(limits.user_log_bytes, first, entries, numbers);
        let user_log = user_log.ok_or(DecodeError::Number)?;
        from.end()?;
        // What was kept up entry by entry, against what is really there.
        if state_checksums::sum(registers.list("")) != sum {
            return Err(SnapshotError::Hash);
        }
        let changes = usize::try_from(limits.changes).unwrap_or(usize::MAX);
        let change_index = ChangeIndex::begin(applied.id, registers.revision(), changes);
        Ok(Self {
            limits,
            clock,
            applied,
            time,
            version,
            members,
            registers,
            user_log,
            sessions,
            bindings,
            state_checksums: StateChecksums::restored(chain, sum),
            change_index,
            gaps,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        })
    }

    fn encode_gaps(&self, to: &mut Vec<u8>) {
        put_u64(to, self.gaps.len() as u64);
        for gaps in &self.gaps {
            for gap in [gaps.ids, gaps.revisions, gaps.numbers] {
                put_u64(to, gap.from);
                put_u64(to, gap.to);
            }
        }
    }

    fn encode_registers(&self, to: &mut Vec<u8>) {
        put_u64(to, self.registers.revision());
        put_u64(to, self.registers.list("").count() as u64);
        for (key, register) in self.registers.list("") {
            put_bytes(to, key.as_str().as_bytes());
            put_bytes(to, &register.value);
            put_bytes(to, register.version.as_bytes());
            // All stamps are of the log's own clock.
            to.push(u8::from(register.stamp.is_some()));
            if let Some(stamp) = register.stamp {
                put_u64(to, stamp.nanos);
            }
        }
    }

    fn encode_user_log(&self, to: &mut Vec<u8>, sum: &mut RunningChecksum) {
        put_u64(to, self.user_log.first());
        put_u64(to, self.user_log.entries().len() as u64);
        for entry in self.user_log.entries().iter() {
            put_bytes(to, entry);
            sum.over_much(to);
        }
    }

    fn encode_bindings(&self, to: &mut Vec<u8>) {
        put_u64(to, self.bindings.len() as u64);
        for (key, binding) in self.bindings.iter() {
            put_bytes(to, key.as_str().as_bytes());
            put_u64(to, binding.session);
            put_bytes(to, &binding.last);
        }
    }

    fn encode_sessions(&self, to: &mut Vec<u8>, newer: bool) {
        put_u64(to, self.sessions.len() as u64);
        for (id, session) in self.sessions.iter() {
            put_u64(to, id);
            put_u64(to, session.ttl);
            put_u64(to, session.heard);
            put_u64(to, session.completed);
            if newer {
                write_owner(to, &session.owner);
            }
            put_u64(to, session.saved.len() as u64);
            for saved in &session.saved {
                encode_outcome(to, &saved.outcome);
                if newer {
                    let digest = saved.digest.map_or(0, NonZeroU64::get);
                    to.extend_from_slice(&digest.to_le_bytes());
                }
            }
        }
    }
}

/// What the checksum at the end is of, if it is.
fn whole(sum: Checksum, bytes: &[u8]) -> Result<&[u8], SnapshotError> {
    let (content, checksum) = bytes
        .split_last_chunk::<4>()
        .ok_or(DecodeError::Truncated)?;
    if sum(0, content) != u32::from_le_bytes(*checksum) {
        return Err(SnapshotError::Checksum);
    }
    Ok(content)
}

fn decode_registers(
    from: &mut Reader<'_>,
    limits: Limits,
    clock: ClockId,
) -> Result<Registers, DecodeError> {
    let revision = from.number()?;
    let mut last = "";
    let registers = (0..from.count()?).map(|_| {
        let text = core::str::from_utf8(from.bytes()?).map_err(|_| DecodeError::Name)?;
        let key = Key::new(text).map_err(|_| DecodeError::Name)?;
        // Ascending, so that there is one way to write them.
        if text <= last {
            return Err(DecodeError::Name);
        }
        last = text;
        let value = from.bytes()?.into();
        let version = Version::from_bytes(from.bytes()?);
        let stamp = if from.bool()? {
            let nanos = from.number()?;
            Some(StoreTime { clock, nanos })
        } else {
            None
        };
        let register = Register {
            value,
            version,
            stamp,
        };
        Ok((key, register))
    });
    let registers: Result<_, DecodeError> = registers.collect();
    let changes = usize::try_from(limits.changes).map_err(|_| DecodeError::Number)?;
    Ok(Registers::restored(registers?, revision, changes))
}

fn decode_user_log(from: &mut Reader<'_>) -> Result<(u64, SharedQueue<Bytes>), DecodeError> {
    let first = from.number()?;
    let entries = (0..from.count()?).map(|_| Ok(from.bytes()?.into()));
    Ok((first, entries.collect::<Result<_, DecodeError>>()?))
}

/// Each kind ascends, so that there is one way to write them.
fn decode_gaps(from: &mut Reader<'_>) -> Result<Vec<Gaps>, DecodeError> {
    let mut all: Vec<Gaps> = Vec::new();
    for _ in 0..from.count()? {
        let mut gap = || {
            let gap = Gap {
                from: from.u64()?,
                to: from.u64()?,
            };
            Some(gap)
                .filter(|gap| gap.from < gap.to && gap.to < LAST)
                .ok_or(DecodeError::Number)
        };
        let gaps = Gaps {
            ids: gap()?,
            revisions: gap()?,
            numbers: gap()?,
        };
        if all.last().is_some_and(|last| !gaps.is_after(last)) {
            return Err(DecodeError::Number);
        }
        all.push(gaps);
    }
    Ok(all)
}

fn decode_sessions(from: &mut Reader<'_>, newer: bool) -> Result<Sessions, DecodeError> {
    let mut sessions = Sessions::default();
    let mut last = None;
    for _ in 0..from.count()? {
        let id = from.number()?;
        if last >= Some(id) {
            return Err(DecodeError::Number);
        }
        last = Some(id);
        let (ttl, heard, completed) = (from.u64()?, from.number()?, from.number()?);
        let owner = if newer {
            read_owner(from)?
        } else {
            SessionOwner::default()
        };
        let saved = from.count()?;
        if saved as u64 > MAX_WINDOW.min(completed) {
            return Err(DecodeError::Number);
        }
        let saved = (0..saved).map(|_| decode_saved(from, newer));
        let saved = saved.collect::<Result<_, DecodeError>>()?;
        let session = Session {
            ttl,
            heard,
            completed,
            owner,
            saved,
        };
        sessions.insert(id, session);
    }
    Ok(sessions)
}

fn decode_saved(from: &mut Reader<'_>, newer: bool) -> Result<Saved, DecodeError> {
    let outcome = decode_outcome(from)?;
    let digest = if newer {
        NonZeroU64::new(u64::from_le_bytes(from.array()?))
    } else {
        None
    };
    Ok(Saved { digest, outcome })
}

fn decode_bindings(
    from: &mut Reader<'_>,
    registers: &Registers,
    sessions: &Sessions,
) -> Result<Bindings, DecodeError> {
    let mut bindings = Bindings::default();
    let mut last = "";
    for _ in 0..from.count()? {
        let text = core::str::from_utf8(from.bytes()?).map_err(|_| DecodeError::Name)?;
        let key = Key::new(text).map_err(|_| DecodeError::Name)?;
        if text <= last {
            return Err(DecodeError::Name);
        }
        last = text;
        let session = from.u64()?;
        // A register is bound as long as it is there and its session lives.
        let lives = sessions.get(session).is_some() && registers.read(&key).is_some();
        if !lives || !bindings.has_room(session, &key) {
            return Err(DecodeError::Number);
        }
        bindings.bind(key, session, from.bytes()?.into());
    }
    Ok(bindings)
}

/// Only outcomes that are saved with a session can be met here; those of a
/// request that was refused are not.
fn encode_outcome(to: &mut Vec<u8>, outcome: &Outcome) {
    match outcome {
        Outcome::Appended(number) => {
            to.push(0);
            put_u64(to, *number);
        }
        Outcome::Swapped(version) => {
            to.push(1);
            put_bytes(to, version.as_bytes());
        }
        Outcome::Conflict => to.push(2),
        Outcome::Deleted => to.push(3),
        Outcome::Alive => to.push(4),
        Outcome::TooManyBound => to.push(6),
        Outcome::Opened(_)
        | Outcome::Closed
        | Outcome::TooManySessions
        | Outcome::SessionExpired
        | Outcome::TooOld
        | Outcome::OtherContent
        | Outcome::OutOfOrder { .. }
        | Outcome::Members
        | Outcome::Nothing => to.push(5),
    }
}

fn decode_outcome(from: &mut Reader<'_>) -> Result<Outcome, DecodeError> {
    Ok(match from.u8()? {
        0 => Outcome::Appended(from.number()?),
        1 => Outcome::Swapped(Version::from_bytes(from.bytes()?)),
        2 => Outcome::Conflict,
        3 => Outcome::Deleted,
        4 => Outcome::Alive,
        5 => Outcome::Nothing,
        6 => Outcome::TooManyBound,
        kind => return Err(DecodeError::Kind(kind)),
    })
}
