//! The replicated state machine: what the log adds up to.
//!
//! Registers ([`cas`](tenure_core::cas)), the user log ([`UserLog`]), sessions and what
//! is bound to them, and the members. It changes by [`State::apply`]
//! alone, one committed entry after another, and the change is a function of
//! the state and the entry: no clock, no chance, no configuration that could
//! differ between servers. So equal logs give equal states, down to the
//! answers that are saved for clients who have to ask again.
//!
//! Commands are deduplicated here: a (session, serial) takes effect when it is first
//! applied, and later copies get the saved answer. The leader also avoids appending a
//! command twice (`node/pending_proposals.rs`); this makes it safe if it does.

mod bindings;
mod change_index;
mod digest;
mod gaps;
mod restore;
mod sessions;
mod snapshot_codec;
mod state_checksums;
mod user_log;

pub use bindings::MAX_BOUND;
pub use digest::digest_of;
pub use gaps::{Gap, Gaps};
pub use restore::{JUMP, NotRestorable, Restored, Restoring, TERM_STEP};
pub use sessions::{MAX_WINDOW, SerialStatus, Session, Sessions};
pub use snapshot_codec::{DecodedSnapshot, ReceivedSnapshot, SnapshotError, StateCopy};
pub use state_checksums::StateChecksum;
pub use user_log::{TooOld, UserLog};

use alloc::vec::Vec;
use core::num::NonZeroU64;

use tenure_core::cas::{Bytes, Expect, Register, Registers, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::{ClockId, StoreTime};

use super::bug::Bug;
use super::entry::{
    ClusterVersion, Command, Entry, LogTime, Operation, Outcome, Payload, SessionId,
};
use super::ids::{LogId, Position};
use super::membership::Membership;
use super::session_owner::{SessionOpener, SessionOwner};
use bindings::Bindings;
use change_index::ChangeIndex;
use state_checksums::{StateChecksums, mix};

/// How much the state may hold. The same on every server of a cluster; part
/// of every snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of the user log that are kept; the oldest entries go first.
    pub user_log_bytes: u64,
    /// Open sessions; one more is refused.
    pub sessions: u64,
    /// Changes of registers that a watch can resume from.
    pub changes: u64,
    /// A checksum of the state is kept, for servers to compare, after every entry whose
    /// id is a multiple of this; at least 1.
    pub checksum_every: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            user_log_bytes: 64 * 1024 * 1024,
            sessions: 65_536,
            changes: 4_096,
            checksum_every: 256,
        }
    }
}

/// To what a register is bound, and so by what it is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Which session.
    pub session: SessionId,
    /// When that was last heard of, in the log's time.
    pub heard: LogTime,
    /// When it ends, if nothing more is heard.
    pub ends: LogTime,
}

/// The replicated state.
#[derive(Clone, Debug)]
pub struct State {
    limits: Limits,
    clock: ClockId,
    applied: Position,
    time: LogTime,
    version: ClusterVersion,
    members: Membership,
    registers: Registers,
    user_log: UserLog,
    sessions: Sessions,
    bindings: Bindings,
    state_checksums: StateChecksums,
    change_index: ChangeIndex,
    /// What was left out, each time that it was restored from a backup.
    gaps: Vec<Gaps>,
    #[cfg(feature = "planted-bugs")]
    planted: Option<Bug>,
}

impl State {
    /// Before the first entry. `clock` names the log's time wherever it is
    /// shown as a store's time; the same on every server.
    pub fn new(limits: Limits, clock: ClockId) -> Self {
        Self {
            limits,
            clock,
            applied: Position::ZERO,
            time: 0,
            version: ClusterVersion::FIRST,
            members: Membership::default(),
            registers: Registers::new(usize::try_from(limits.changes).unwrap_or(usize::MAX)),
            user_log: UserLog::new(limits.user_log_bytes),
            sessions: Sessions::default(),
            bindings: Bindings::default(),
            state_checksums: StateChecksums::default(),
            change_index: ChangeIndex::begin(
                0,
                0,
                usize::try_from(limits.changes).unwrap_or(usize::MAX),
            ),
            gaps: Vec::new(),
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }

    /// Before the first entry of a cluster that is founded with `members`.
    pub fn bootstrapped(limits: Limits, clock: ClockId, members: Membership) -> Self {
        Self {
            members,
            ..Self::new(limits, clock)
        }
    }

    /// The same in a log that may have entries of `version` from the first on.
    #[must_use]
    pub fn with_version(self, version: ClusterVersion) -> Self {
        Self { version, ..self }
    }

    /// The last entry that was applied.
    pub const fn applied(&self) -> Position {
        self.applied
    }

    /// The log's time at that entry.
    pub const fn time(&self) -> LogTime {
        self.time
    }

    /// The log's time as a store's time.
    pub const fn store_time(&self) -> StoreTime {
        StoreTime {
            clock: self.clock,
            nanos: self.time,
        }
    }

    /// The version that all members speak, as the log says: entries of a
    /// later one are not in the log up to here.
    pub const fn version(&self) -> ClusterVersion {
        self.version
    }

    /// The checksum of the state after this entry, if one was taken
    /// there and the checksum is still kept.
    pub fn state_checksum(&self, id: LogId) -> Option<StateChecksum> {
        self.state_checksums.at(id)
    }

    /// The newest checksum that is kept.
    pub fn newest_state_checksum(&self) -> Option<StateChecksum> {
        self.state_checksums.newest()
    }

    /// The members as of the last applied entry.
    pub const fn members(&self) -> &Membership {
        &self.members
    }

    /// The registers.
    pub const fn registers(&self) -> &Registers {
        &self.registers
    }

    /// How many bytes the registers take: of their keys, their values, and
    /// what they are to hold when a session ends.
    pub const fn register_bytes(&self) -> u64 {
        self.registers.bytes() + self.bindings.bytes()
    }

    /// How many bytes of these are this register's.
    pub fn weight(&self, key: &Key, register: &Register) -> usize {
        register.weight(key) + self.on_expiry_value(key).map_or(0, |it| it.len())
    }

    /// The revision of the registers after entry `id`: the changes after it
    /// are those by later entries.
    ///
    /// # Errors
    /// [`TooOld`](tenure_core::cas::TooOld) if that is not remembered any more.
    pub fn revision_at(&self, id: LogId) -> Result<u64, tenure_core::cas::TooOld> {
        self.change_index.revision_at(id)
    }

    /// How much it may hold.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// One register as a reader sees it. A bound one is as young as its
    /// session's last command: that renews it.
    pub fn register(&self, key: &Key) -> Option<Register> {
        let held = self.registers.read(key)?;
        Some(self.seen(key, held))
    }

    /// The same for a register that was found already.
    pub(crate) fn seen(&self, key: &Key, held: &Register) -> Register {
        let mut seen = held.clone();
        let heard = self.bound(key).map(|bound| bound.heard);
        if let (Some(stamp), Some(heard)) = (&mut seen.stamp, heard) {
            stamp.nanos = stamp.nanos.max(heard);
        }
        seen
    }

    /// What a register is bound to, if it is.
    pub fn bound(&self, key: &Key) -> Option<Bound> {
        let session = self.bindings.session(key)?;
        let held = self.sessions.get(session)?;
        Some(Bound {
            session,
            heard: held.heard(),
            ends: held.expires(),
        })
    }

    /// What it is to hold when that session ends.
    pub fn on_expiry_value(&self, key: &Key) -> Option<&Bytes> {
        self.bindings.last(key)
    }

    /// How many registers are bound to sessions.
    pub fn bound_len(&self) -> usize {
        self.bindings.len()
    }

    /// How many registers are bound to this session.
    pub fn bound_by(&self, session: SessionId) -> usize {
        self.bindings.held(session)
    }

    /// The registers that are bound to this session, in order.
    pub fn bound_to(&self, session: SessionId) -> impl Iterator<Item = &Key> {
        self.bindings.keys(session)
    }

    /// The user log.
    pub const fn user_log(&self) -> &UserLog {
        &self.user_log
    }

    /// The sessions.
    pub const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The state as it would be if a snapshot had forgotten the sessions:
    /// one of the mistakes that the checkers must notice.
    pub(super) fn without_sessions(&self) -> Self {
        Self {
            sessions: Sessions::default(),
            bindings: Bindings::default(),
            ..self.clone()
        }
    }

    /// From here on this mistake is made. What a checker compares a server
    /// with must make it too, if the checker of the rule itself is to be
    /// tried and not the comparison.
    #[cfg(feature = "planted-bugs")]
    pub const fn plant(&mut self, planted: Option<Bug>) {
        self.planted = planted;
    }

    /// Whether this mistake is to be made; never, in a release.
    #[cfg(feature = "planted-bugs")]
    fn planted(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    /// Whether this mistake is to be made; never, in a release.
    #[cfg(not(feature = "planted-bugs"))]
    #[allow(clippy::unused_self)]
    const fn planted(&self, _bug: Bug) -> bool {
        false
    }

    /// Applies the next entry and says what became of it.
    ///
    /// # Panics
    /// If it is not the next one: a broken invariant of the node.
    pub fn apply(&mut self, entry: &Entry) -> Outcome {
        assert_eq!(
            entry.id,
            self.applied.id + 1,
            "entries are applied in order"
        );
        self.applied = entry.position();
        self.time = self.time.max(entry.time);
        let content = self.content(&entry.payload);
        let outcome = self.carry_out(entry, NonZeroU64::new(content));
        self.change_index
            .applied(entry.id, self.registers.revision());
        let sizes = [
            self.sessions.len() as u64,
            self.user_log.first(),
            self.bindings.len() as u64,
        ];
        self.state_checksums
            .applied(entry, &outcome, sizes, content);
        self.state_checksums
            .record_if_due(entry.id, self.limits.checksum_every);
        outcome
    }

    fn carry_out(&mut self, entry: &Entry, digest: Option<NonZeroU64>) -> Outcome {
        match &entry.payload {
            Payload::NoOp => {
                // A new leader: nobody could be heard in between, so everybody
                // gets a full new lease.
                if !self.planted(Bug::NewLeaderExtendsNoSession) {
                    self.sessions.refresh(self.time);
                }
                Outcome::Nothing
            }
            Payload::Members(members) => {
                self.members = members.clone();
                Outcome::Members
            }
            Payload::Open { ttl } => self.open(entry.id, *ttl, SessionOwner::default()),
            Payload::OpenOwned { ttl, owner } => self.open(entry.id, *ttl, *owner),
            Payload::Command(command) => self.apply_command(command, digest),
            Payload::Expire { session } => {
                let at = if self.planted(Bug::ExpiryUnchecked) {
                    LogTime::MAX
                } else {
                    self.time
                };
                if self.sessions.expire(*session, at) {
                    self.vacate(*session);
                }
                Outcome::Nothing
            }
            Payload::Version(version) => {
                self.version = self.version.max(*version);
                Outcome::Nothing
            }
            #[cfg(feature = "next-version")]
            Payload::Note(_) => Outcome::Nothing,
        }
    }

    fn open(&mut self, id: SessionId, ttl: LogTime, owner: SessionOwner) -> Outcome {
        if self.sessions.len() as u64 >= self.limits.sessions {
            return Outcome::TooManySessions;
        }
        // No leader writes an owner before; a state of version 1 has none.
        let noted = self.version >= ClusterVersion::SECOND;
        let owner = if noted {
            owner
        } else {
            SessionOwner::default()
        };
        self.sessions.open(id, ttl, owner, self.time);
        Outcome::Opened(id)
    }

    /// What an entry is about, as far as sessions keep it: the digest of a
    /// command, whose session is opened. 0 before version 2: servers that keep
    /// none of it must have the same state as long as one may be there.
    fn content(&self, payload: &Payload) -> u64 {
        if self.version < ClusterVersion::SECOND || self.planted(Bug::SerialWithoutDigest) {
            return 0;
        }
        match payload {
            Payload::Command(command) => digest_of(&command.operation).get(),
            Payload::OpenOwned { owner, .. } => of_owner(owner),
            Payload::NoOp
            | Payload::Members(_)
            | Payload::Open { .. }
            | Payload::Expire { .. }
            | Payload::Version(_) => 0,
            #[cfg(feature = "next-version")]
            Payload::Note(_) => 0,
        }
    }

    fn apply_command(&mut self, command: &Command, digest: Option<NonZeroU64>) -> Outcome {
        let Command {
            session,
            serial,
            operation,
            ..
        } = command;
        match self.sessions.serial_status(*session, *serial, operation) {
            SerialStatus::Next => {}
            SerialStatus::Done(outcome) => return outcome,
            SerialStatus::OtherContent => return Outcome::OtherContent,
            SerialStatus::Forgotten => return Outcome::TooOld,
            SerialStatus::Ahead { expected } => return Outcome::OutOfOrder { expected },
            SerialStatus::NoSession => return Outcome::SessionExpired,
        }
        let outcome = self.execute(command.session, &command.operation);
        if matches!(command.operation, Operation::Close) {
            self.sessions.close(command.session);
            self.vacate(command.session);
        } else {
            let (saved, now) = (outcome.clone(), self.time);
            self.sessions.complete(command, saved, digest, now);
        }
        outcome
    }

    fn execute(&mut self, session: SessionId, operation: &Operation) -> Outcome {
        match operation {
            Operation::Append(bytes) => Outcome::Appended(self.user_log.append(bytes.clone())),
            Operation::Swap(write) => self.write(session, write),
            Operation::Bind(bind) => self.bind(session, &bind.write, &bind.last),
            Operation::Delete(delete) => self.delete(session, &delete.key, &delete.expect),
            Operation::KeepAlive => Outcome::Alive,
            Operation::Close => Outcome::Closed,
        }
    }

    /// Whether the register is bound, and not to this session.
    fn is_anothers(&self, session: SessionId, key: &Key) -> bool {
        let holder = self.bindings.session(key);
        holder.is_some_and(|holder| holder != session) && !self.planted(Bug::BoundWritable)
    }

    fn write(&mut self, session: SessionId, write: &Write) -> Outcome {
        let note = write.stamp == Stamp::Keep;
        if !note && self.is_anothers(session, &write.key) {
            return Outcome::Conflict;
        }
        let outcome = self.swap(write);
        // A writer that may do more than leave a note takes it over, or up,
        // whole.
        if !note && matches!(outcome, Outcome::Swapped(_)) {
            self.release(&write.key);
        }
        outcome
    }

    fn bind(&mut self, session: SessionId, write: &Write, last: &Bytes) -> Outcome {
        if self.is_anothers(session, &write.key) {
            return Outcome::Conflict;
        }
        if !self.bindings.has_room(session, &write.key) {
            return Outcome::TooManyBound;
        }
        let outcome = self.swap(write);
        if matches!(outcome, Outcome::Swapped(_)) {
            let before = self.on_expiry_value(&write.key).map_or(0, |it| it.len());
            self.bindings.bind(write.key.clone(), session, last.clone());
            self.registers
                .grown_beside(last.len() as i64 - before as i64);
        }
        outcome
    }

    /// The register was written or deleted, and is bound no more.
    fn release(&mut self, key: &Key) {
        let freed = self.on_expiry_value(key).map_or(0, |it| it.len());
        self.bindings.release(key);
        self.registers.grown_beside(-(freed as i64));
    }

    /// The session is over: its registers get their on-expiry values.
    fn vacate(&mut self, session: SessionId) {
        for (key, value) in self.bindings.end(session).collect::<Vec<_>>() {
            let Some(held) = self.registers.read(&key) else {
                continue;
            };
            if self.planted(Bug::OnExpiryValueForgotten) {
                continue;
            }
            let expect = Expect::Version(held.version.clone());
            let last = value.len() as i64;
            // It is there as it was just read, so it is written.
            let _ = self.swap(&Write {
                key,
                expect,
                value,
                stamp: Stamp::Now,
            });
            self.registers.grown_beside(-last);
        }
    }

    fn swap(&mut self, write: &Write) -> Outcome {
        // Versions are log ids, so none is ever used twice for a register.
        let version = Version::from_u64(self.applied.id);
        let now = Some(self.store_time());
        let (key, state_checksums) = (&write.key, &mut self.state_checksums);
        let changed = |before: Option<&Register>, after: &Register| {
            if let Some(before) = before {
                state_checksums.take(key, before);
            }
            state_checksums.put(key, after);
        };
        match self.registers.swap_with(write, now, version, changed) {
            Ok(version) => Outcome::Swapped(version),
            Err(_) => Outcome::Conflict,
        }
    }

    fn delete(&mut self, session: SessionId, key: &Key, expect: &Version) -> Outcome {
        if self.is_anothers(session, key) {
            return Outcome::Conflict;
        }
        let state_checksums = &mut self.state_checksums;
        let gone = |before: &Register| state_checksums.take(key, before);
        match self.registers.delete_with(key, expect, gone) {
            Ok(()) => {
                self.release(key);
                Outcome::Deleted
            }
            Err(_) => Outcome::Conflict,
        }
    }
}

fn of_owner(owner: &SessionOwner) -> u64 {
    let of = |hash, half: [u8; 16]| {
        let number = u128::from_le_bytes(half);
        mix(mix(hash, number as u64), (number >> 64) as u64)
    };
    let hash = owner.secret.map_or(0, |secret| of(1, secret));
    match owner.opener {
        SessionOpener::Server => mix(hash, 0),
        SessionOpener::Token(token) => of(mix(hash, 1), token),
        SessionOpener::Address(address) => of(mix(hash, 2), address),
    }
}
