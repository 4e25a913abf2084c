//! Client sessions: by whom, and up to which serial, requests have been done.
//! They are how a command that is sent again is done exactly once
//! (deduplication).
//!
//! A client numbers its requests 1, 2, 3, … and says with each which answers
//! it still waits for. The session remembers the highest serial that was
//! done and the answers from there down to the oldest one still waited for,
//! so a request that is sent again after a change of leader is answered and
//! not done again (`docs/design/alpo.md`, H16). Sessions end by the log's time, at
//! the same entry on every server.
//!
//! From version 2 of the cluster on a session has an owner, and each answer
//! is kept with the digest of what was asked: a serial that comes again with
//! other content is refused, and not answered as if it had been done. What
//! was kept before the cluster's version rose has no digest, and is answered
//! to whatever has its serial, as it was then.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::ops::Bound;

use tenure_core::shared_map::SharedMap;

use super::super::entry::{Command, LogTime, Operation, Outcome, Serial, SessionId};
use super::super::session_owner::{SessionOpener, SessionOwner};
use super::digest::digest_of;

/// The most answers a session keeps, and so the most requests a client may
/// have under way: a leader admits no more.
pub const MAX_WINDOW: u64 = 1_024;
/// The least window of a session, however many sessions its opener has.
const MIN_WINDOW: u64 = 64;
/// So many answers may be kept of all sessions of one opener, about. Each takes some
/// 60 bytes, for as long as its session lives, and a session may live for a day.
const ANSWERS_OF_ONE: u64 = 256 * MAX_WINDOW;

/// One client's session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    pub(super) ttl: LogTime,
    pub(super) heard: LogTime,
    pub(super) completed: Serial,
    pub(super) owner: SessionOwner,
    /// Answers to the last serials, up to `completed`.
    pub(super) saved: VecDeque<Saved>,
}

/// An answer, and to what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Saved {
    /// `None` if it was done before the cluster's version was 2.
    pub(super) digest: Option<NonZeroU64>,
    pub(super) outcome: Outcome,
}

impl Session {
    /// The highest serial that was done; 0 before the first.
    pub const fn completed(&self) -> Serial {
        self.completed
    }

    /// How long it lives without being heard of, in the log's time.
    pub const fn ttl(&self) -> LogTime {
        self.ttl
    }

    /// When it was last heard of, in the log's time.
    pub const fn heard(&self) -> LogTime {
        self.heard
    }

    /// Whose it is.
    pub const fn owner(&self) -> &SessionOwner {
        &self.owner
    }

    /// When it ends if nothing more is heard.
    pub const fn expires(&self) -> LogTime {
        self.heard.saturating_add(self.ttl)
    }
}

/// How a request stands to its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SerialStatus {
    /// It is the next one.
    Next,
    /// It was done, and this is its answer.
    Done(Outcome),
    /// Its serial was used for something else.
    OtherContent,
    /// It was done, and the client said it needs no answer any more.
    Forgotten,
    /// There is a gap before it.
    Ahead {
        /// The serial that comes next.
        expected: Serial,
    },
    /// There is no such session (any more).
    NoSession,
}

/// All sessions.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sessions {
    /// A copy of all of them shares each until one of the two changes it.
    sessions: SharedMap<SessionId, Arc<Session>>,
    /// How many each has opened.
    of: SharedMap<SessionOpener, u64>,
}

impl Sessions {
    /// How many there are.
    pub const fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// One of them.
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id).map(|session| &**session)
    }

    /// All of them in the order they were opened.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, &**session))
    }

    /// Those that were opened after `id`, in that order.
    pub fn after(&self, id: SessionId) -> impl Iterator<Item = (SessionId, &Session)> {
        let after = self.sessions.range_from(Bound::Excluded(&id));
        after.map(|(id, session)| (*id, &**session))
    }

    /// How many were opened by this one.
    pub fn of(&self, opener: &SessionOpener) -> u64 {
        self.of.get(opener).copied().unwrap_or(0)
    }

    /// How far the serials of a session of this one may be ahead of what it still
    /// waits for: the more sessions it has, the less. A leader asks it of new
    /// commands; what is kept already stays.
    pub fn window(&self, opener: &SessionOpener) -> u64 {
        let equal = ANSWERS_OF_ONE / self.of(opener).max(1);
        equal.clamp(MIN_WINDOW, MAX_WINDOW)
    }

    /// Who has opened most of those there are, and how many: `most` of them
    /// at most, the largest first.
    pub fn holders(&self, most: usize) -> Vec<(SessionOpener, u64)> {
        let mut holders: Vec<_> = self.of.iter().map(|(it, held)| (*it, *held)).collect();
        holders.sort_by_key(|(_, held)| core::cmp::Reverse(*held));
        holders.truncate(most);
        holders
    }

    /// Whether request `serial` of session `id`, which is about `operation`, is
    /// the next, a duplicate, or neither: what makes requests exactly-once.
    pub fn serial_status(
        &self,
        id: SessionId,
        serial: Serial,
        operation: &Operation,
    ) -> SerialStatus {
        let Some(session) = self.sessions.get(&id) else {
            return SerialStatus::NoSession;
        };
        // The last serial there is has none after it.
        let next = session.completed.checked_add(1);
        if next == Some(serial) {
            return SerialStatus::Next;
        }
        let Some(back) = session.completed.checked_sub(serial) else {
            let expected = next.unwrap_or(Serial::MAX);
            return SerialStatus::Ahead { expected };
        };
        let index = usize::try_from(back)
            .ok()
            .and_then(|back| session.saved.len().checked_sub(back)?.checked_sub(1));
        match index.and_then(|index| session.saved.get(index)) {
            Some(saved) if saved.digest.is_some_and(|it| it != digest_of(operation)) => {
                SerialStatus::OtherContent
            }
            Some(saved) => SerialStatus::Done(saved.outcome.clone()),
            None => SerialStatus::Forgotten,
        }
    }

    pub(super) fn insert(&mut self, id: SessionId, session: Session) {
        let opener = session.owner.opener;
        let count = self.of(&opener);
        self.of.insert(opener, count + 1);
        self.sessions.insert(id, Arc::new(session));
    }

    pub(super) fn open(&mut self, id: SessionId, ttl: LogTime, owner: SessionOwner, now: LogTime) {
        let session = Session {
            ttl,
            heard: now,
            completed: 0,
            owner,
            saved: VecDeque::new(),
        };
        self.insert(id, session);
    }

    pub(super) fn close(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        let opener = session.owner.opener;
        if let Some(count) = self.of.get_mut(&opener) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&opener);
            }
        }
    }

    /// Ends the session if it is really over at `now`; whether it did.
    pub(super) fn expire(&mut self, id: SessionId, now: LogTime) -> bool {
        let over = self.get(id).is_some_and(|session| session.expires() <= now);
        if over {
            self.close(id);
        }
        over
    }

    pub(super) fn refresh(&mut self, now: LogTime) {
        for session in self.sessions.values_mut() {
            Arc::make_mut(session).heard = now;
        }
    }

    pub(super) fn complete(
        &mut self,
        command: &Command,
        outcome: Outcome,
        digest: Option<NonZeroU64>,
        now: LogTime,
    ) {
        let Some(session) = self.sessions.get_mut(&command.session) else {
            return;
        };
        let session = Arc::make_mut(session);
        session.heard = now;
        session.completed = command.serial;
        session.saved.push_back(Saved { digest, outcome });
        // What the client still waits for, itself included.
        let others = command.serial.saturating_sub(command.outstanding.max(1));
        let kept = usize::try_from(others.min(MAX_WINDOW - 1)).unwrap_or(usize::MAX) + 1;
        while session.saved.len() > kept {
            session.saved.pop_front();
        }
    }
}
