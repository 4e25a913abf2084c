//! What the log adds up to: the replicated state.
//!
//! Registers ([`cas`](crate::cas)), the plain log that users append to
//! ([`Journal`]), sessions, and the members. It changes by [`State::apply`]
//! alone, one committed entry after another, and the change is a function of
//! the state and the entry: no clock, no chance, no configuration that could
//! differ between servers. So equal logs give equal states, down to the
//! answers that are saved for clients who have to ask again.
//!
//! Exactly-once lives here: a (session, serial) changes the state the first
//! time it is applied and is answered from memory ever after. That a leader
//! does not even *append* it twice is the leader's care (`node/admission`);
//! this is the net below it.

mod image;
mod journal;
mod marks;
mod sessions;

pub use image::ImageError;
pub use journal::{Journal, TooOld};
pub use marks::Mark;
pub use sessions::{MAX_WINDOW, Session, Sessions, Standing};

use alloc::collections::VecDeque;

use crate::cas::{Registers, Write};
use crate::ids::{Key, Version};
use crate::time::{ClockId, StoreTime};

use super::entry::{ClusterVersion, Command, Entry, LogTime, Operation, Outcome, Payload};
use super::ids::{LogId, Position};
use super::membership::Membership;
use marks::Marks;

/// How much the state may hold. The same on every server of a cluster; part
/// of every snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of the plain log that are kept; the oldest entries go first.
    pub journal_bytes: u64,
    /// Open sessions; one more is refused.
    pub sessions: u64,
    /// Changes of registers that a watch can resume from.
    pub changes: u64,
    /// The state is marked, for servers to compare, after every entry whose
    /// id is a multiple of this; at least 1.
    pub mark_every: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            journal_bytes: 64 * 1024 * 1024,
            sessions: 65_536,
            changes: 4_096,
            mark_every: 256,
        }
    }
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
    journal: Journal,
    sessions: Sessions,
    marks: Marks,
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
            journal: Journal::restored(limits.journal_bytes, 1, VecDeque::new()),
            sessions: Sessions::default(),
            marks: Marks::default(),
        }
    }

    /// Before the first entry of a cluster that is founded with `members`.
    pub fn founded(limits: Limits, clock: ClockId, members: Membership) -> Self {
        Self {
            members,
            ..Self::new(limits, clock)
        }
    }

    /// The same with other members: what a new cluster begins with that is
    /// made from a copy of an old one.
    #[must_use]
    pub fn with_members(self, members: Membership) -> Self {
        Self { members, ..self }
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

    /// What the state was marked with after this entry, if it was marked
    /// there and the mark is still kept.
    pub fn mark(&self, id: LogId) -> Option<Mark> {
        self.marks.at(id)
    }

    /// The newest mark that is kept.
    pub fn newest_mark(&self) -> Option<Mark> {
        self.marks.newest()
    }

    /// The oldest mark that is kept.
    pub fn oldest_mark(&self) -> Option<Mark> {
        self.marks.oldest()
    }

    /// The members as of the last applied entry.
    pub const fn members(&self) -> &Membership {
        &self.members
    }

    /// The registers.
    pub const fn registers(&self) -> &Registers {
        &self.registers
    }

    /// The plain log.
    pub const fn journal(&self) -> &Journal {
        &self.journal
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
            ..self.clone()
        }
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
        let outcome = self.carry_out(entry);
        let sizes = [self.sessions.len() as u64, self.journal.first()];
        self.marks.applied(entry, &outcome, sizes);
        if entry.id.is_multiple_of(self.limits.mark_every.max(1)) {
            self.marks.mark(entry.id);
        }
        outcome
    }

    fn carry_out(&mut self, entry: &Entry) -> Outcome {
        match &entry.payload {
            Payload::NoOp => {
                // A new reign: nobody could be heard in between, so everybody
                // gets a full new lease.
                self.sessions.refresh(self.time);
                Outcome::Nothing
            }
            Payload::Members(members) => {
                self.members = members.clone();
                Outcome::Members
            }
            Payload::Open { ttl } => {
                if self.sessions.len() as u64 >= self.limits.sessions {
                    return Outcome::TooManySessions;
                }
                self.sessions.open(entry.id, *ttl, self.time);
                Outcome::Opened(entry.id)
            }
            Payload::Command(command) => self.apply_command(command),
            Payload::Expire { session } => {
                self.sessions.expire(*session, self.time);
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

    fn apply_command(&mut self, command: &Command) -> Outcome {
        match self.sessions.standing(command.session, command.serial) {
            Standing::Next => {}
            Standing::Done(outcome) => return outcome,
            Standing::Forgotten => return Outcome::TooOld,
            Standing::Ahead { expected } => return Outcome::OutOfOrder { expected },
            Standing::NoSession => return Outcome::SessionExpired,
        }
        let outcome = self.execute(&command.operation);
        if matches!(command.operation, Operation::Close) {
            self.sessions.close(command.session);
        } else {
            self.sessions.complete(command, outcome.clone(), self.time);
        }
        outcome
    }

    fn execute(&mut self, operation: &Operation) -> Outcome {
        match operation {
            Operation::Append(bytes) => Outcome::Appended(self.journal.append(bytes.clone())),
            Operation::Swap(write) => self.swap(write),
            Operation::Delete { key, expect } => self.delete(key, expect),
            Operation::KeepAlive => Outcome::Alive,
            Operation::Close => Outcome::Closed,
        }
    }

    fn swap(&mut self, write: &Write) -> Outcome {
        // Versions are log ids, so none is ever used twice.
        let version = Version::from_u64(self.applied.id);
        let now = Some(self.store_time());
        let before = self.registers.read(&write.key).cloned();
        match self.registers.swap_as(write.clone(), now, version) {
            Ok(version) => {
                if let Some(before) = before {
                    self.marks.take(&write.key, &before);
                }
                if let Some(after) = self.registers.read(&write.key) {
                    self.marks.put(&write.key, after);
                }
                Outcome::Swapped(version)
            }
            Err(_) => Outcome::Conflict,
        }
    }

    fn delete(&mut self, key: &Key, expect: &Version) -> Outcome {
        let before = self.registers.read(key).cloned();
        match self.registers.delete(key, expect) {
            Ok(()) => {
                if let Some(before) = before {
                    self.marks.take(key, &before);
                }
                Outcome::Deleted
            }
            Err(_) => Outcome::Conflict,
        }
    }
}
