//! Sessions: by whom, and up to which serial, requests have been done.
//!
//! A client numbers its requests 1, 2, 3, … and says with each which answers
//! it still waits for. The session remembers the highest serial that was
//! done and the answers from there down to the oldest one still waited for,
//! so a request that is sent again after a change of leader is answered and
//! not done again (`docs/alpo.md`, H16). Sessions end by the log's time, at
//! the same entry on every server.

use alloc::collections::{BTreeMap, VecDeque};

use super::super::entry::{Command, LogTime, Outcome, Serial, SessionId};

/// The most answers a session keeps, and so the most requests a client may
/// have under way: a leader admits no more.
pub const MAX_WINDOW: u64 = 1_024;

/// One client's session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    pub(super) ttl: LogTime,
    pub(super) heard: LogTime,
    pub(super) completed: Serial,
    /// Answers to the last serials, up to `completed`.
    pub(super) saved: VecDeque<Outcome>,
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

    /// When it ends if nothing more is heard.
    pub const fn expires(&self) -> LogTime {
        self.heard.saturating_add(self.ttl)
    }
}

/// How a request stands to its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is the next one.
    Next,
    /// It was done, and this is its answer.
    Done(Outcome),
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
    sessions: BTreeMap<SessionId, Session>,
}

impl Sessions {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// One of them.
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// All of them in the order they were opened.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// How request `serial` of session `id` stands.
    pub fn standing(&self, id: SessionId, serial: Serial) -> Standing {
        let Some(session) = self.sessions.get(&id) else {
            return Standing::NoSession;
        };
        // The last serial there is has none after it.
        let next = session.completed.checked_add(1);
        if next == Some(serial) {
            return Standing::Next;
        }
        let Some(back) = session.completed.checked_sub(serial) else {
            let expected = next.unwrap_or(Serial::MAX);
            return Standing::Ahead { expected };
        };
        let index = usize::try_from(back)
            .ok()
            .and_then(|back| session.saved.len().checked_sub(back)?.checked_sub(1));
        match index.and_then(|index| session.saved.get(index)) {
            Some(outcome) => Standing::Done(outcome.clone()),
            None => Standing::Forgotten,
        }
    }

    pub(super) fn insert(&mut self, id: SessionId, session: Session) {
        self.sessions.insert(id, session);
    }

    pub(super) fn open(&mut self, id: SessionId, ttl: LogTime, now: LogTime) {
        let session = Session {
            ttl,
            heard: now,
            completed: 0,
            saved: VecDeque::new(),
        };
        self.sessions.insert(id, session);
    }

    pub(super) fn close(&mut self, id: SessionId) {
        self.sessions.remove(&id);
    }

    /// Ends the session if it is really over at `now`; whether it did.
    pub(super) fn expire(&mut self, id: SessionId, now: LogTime) -> bool {
        let over = self.get(id).is_some_and(|session| session.expires() <= now);
        if over {
            self.sessions.remove(&id);
        }
        over
    }

    pub(super) fn refresh(&mut self, now: LogTime) {
        for session in self.sessions.values_mut() {
            session.heard = now;
        }
    }

    pub(super) fn complete(&mut self, command: &Command, outcome: Outcome, now: LogTime) {
        let Some(session) = self.sessions.get_mut(&command.session) else {
            return;
        };
        session.heard = now;
        session.completed = command.serial;
        session.saved.push_back(outcome);
        // What the client still waits for, itself included.
        let others = command.serial.saturating_sub(command.outstanding.max(1));
        let kept = usize::try_from(others.min(MAX_WINDOW - 1)).unwrap_or(usize::MAX) + 1;
        while session.saved.len() > kept {
            session.saved.pop_front();
        }
    }
}
