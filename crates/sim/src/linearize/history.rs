//! What clients asked and were told, in the order in which it happened.
//!
//! A history is recorded by somebody who sees all clients: first that a call
//! was made, later, perhaps, what was answered. The *order of recording* is
//! the real-time order that a correct system must respect; the times are
//! only shown to people. Two events of one instant are therefore never taken
//! for concurrent by accident.
//!
//! A call without an answer is not a call that failed. The client gave up,
//! crashed, or lost its connection; the call may take effect at any time
//! after it was made, or never. Only a call that is *known* to have had no
//! effect, because it was refused before anything was written, may be
//! withdrawn.
//!
//! A register may be *bound* to a session: then nobody else may write it, and
//! when the session ends it gets a value that was said when it was bound. The
//! end of a session is a call like others, though no client may have made it: a
//! recorder of a first [`Invocation::Bind`] of a session records an [`Invocation::End`] with
//! it, on the same register, and answers that when a client learns that the
//! session is over. The registers of one session then end at instants of their
//! own; that they end at *one* is for a checker that sees the log.

use std::fmt;

use tenure_core::cas::{Bytes, Expect};
use tenure_core::ids::{Key, Version};

/// Which call of a history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub(super) usize);

/// What is asked of one register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invocation {
    /// What it holds.
    Read,
    /// That it be written if it is as expected.
    Swap {
        /// What it must hold.
        expect: Expect,
        /// The new value.
        value: Bytes,
    },
    /// The same, as a note: the register stays bound to its session.
    Note {
        /// What it must hold.
        expect: Expect,
        /// The new value.
        value: Bytes,
    },
    /// That it be written if it is as expected, and bound to the call's
    /// session.
    Bind {
        /// What it must hold.
        expect: Expect,
        /// The new value.
        value: Bytes,
        /// What it is to hold when the session ends.
        last: Bytes,
    },
    /// That it be deleted if it has this version.
    Delete {
        /// What it must hold.
        expect: Version,
    },
    /// The end of the call's session: if the register is bound to that, it
    /// gets what was said.
    End,
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To a read: there is no such register.
    Absent,
    /// To a read: it holds this.
    Holds {
        /// Its value.
        value: Bytes,
        /// Its version.
        version: Version,
    },
    /// To a swap, a note or a bind: it is written and has this version now.
    Swapped(Version),
    /// To a delete: it is gone.
    Deleted,
    /// To a swap, a note, a bind or a delete: it was not as expected, or
    /// bound to another session, and nothing changed.
    Conflict,
    /// To an end: the session is over.
    Ended,
}

/// One call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Who made it. For people only: what orders calls is when they were
    /// made and answered.
    pub client: u64,
    /// In which session; 0 if it does not matter because that session never
    /// binds the register.
    pub session: u64,
    /// Which register it is about.
    pub key: Key,
    /// What was asked.
    pub invocation: Invocation,
    /// When it was made, in nanoseconds of true time.
    pub invoked_ns: u64,
    /// What was answered and when, `None` if nothing was.
    pub answer: Option<(u64, Answer)>,
    invoked: usize,
    returned: Option<usize>,
    withdrawn: bool,
}

/// Calls on any number of registers, none of which exists at the beginning.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct History {
    calls: Vec<Call>,
    events: usize,
}

impl History {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A client asks, in a session that binds no registers.
    pub fn invoke(&mut self, at_ns: u64, client: u64, key: Key, invocation: Invocation) -> CallId {
        self.invoke_in(0, at_ns, client, key, invocation)
    }

    /// A client asks in this session, which is not 0.
    pub fn invoke_in(
        &mut self,
        session: u64,
        at_ns: u64,
        client: u64,
        key: Key,
        invocation: Invocation,
    ) -> CallId {
        let id = CallId(self.calls.len());
        self.calls.push(Call {
            client,
            session,
            key,
            invocation,
            invoked_ns: at_ns,
            answer: None,
            invoked: self.events,
            returned: None,
            withdrawn: false,
        });
        self.events += 1;
        id
    }

    /// A client hears the answer. Only the first counts: a second one is the
    /// client library's to refuse.
    pub fn answer(&mut self, at_ns: u64, id: CallId, answer: Answer) {
        let call = &mut self.calls[id.0];
        if call.returned.is_none() {
            call.answer = Some((at_ns, answer));
            call.returned = Some(self.events);
            self.events += 1;
        }
    }

    /// The call is known to have had no effect and never to have one.
    pub fn withdraw(&mut self, id: CallId) {
        self.calls[id.0].withdrawn = true;
    }

    /// How many calls there are.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// One call.
    pub fn call(&self, id: CallId) -> &Call {
        &self.calls[id.0]
    }

    /// All calls that may have had an effect or were answered, in the order
    /// in which they were made.
    pub fn calls(&self) -> impl Iterator<Item = (CallId, &Call)> {
        let all = self.calls.iter().enumerate();
        all.filter(|(_, call)| !call.withdrawn)
            .map(|(number, call)| (CallId(number), call))
    }
}

impl Call {
    /// The places of its start and of its answer among all events of the
    /// history.
    pub const fn order(&self) -> (usize, Option<usize>) {
        (self.invoked, self.returned)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} at {} ns: ", self.client, self.invoked_ns)?;
        match &self.invocation {
            Invocation::Read => f.write_str("read")?,
            Invocation::Swap { expect, value } => match expect {
                Expect::Absent => write!(f, "create {}", shown(value))?,
                Expect::Version(version) => write!(f, "replace {version} by {}", shown(value))?,
            },
            Invocation::Note { expect, value } => write!(f, "note {} on {expect:?}", shown(value))?,
            Invocation::Bind {
                expect,
                value,
                last,
            } => {
                let (session, value, last) = (self.session, shown(value), shown(last));
                write!(f, "bind {value} on {expect:?} to {session}, at last {last}")?;
            }
            Invocation::Delete { expect } => write!(f, "delete {expect}")?,
            Invocation::End => write!(f, "end of session {}", self.session)?,
        }
        match &self.answer {
            None => f.write_str(", never answered"),
            Some((at_ns, answer)) => write!(f, ", at {at_ns} ns: {answer}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("absent"),
            Self::Holds { value, version } => write!(f, "{} of {version}", shown(value)),
            Self::Swapped(version) => write!(f, "swapped, now {version}"),
            Self::Deleted => f.write_str("deleted"),
            Self::Conflict => f.write_str("conflict"),
            Self::Ended => f.write_str("ended"),
        }
    }
}

/// A value for people: its beginning, if it is text.
pub(super) fn shown(value: &[u8]) -> String {
    const MOST: usize = 32;
    let text = String::from_utf8_lossy(value);
    if text.chars().count() <= MOST {
        return format!("{text:?}");
    }
    let start: String = text.chars().take(MOST).collect();
    format!("{start:?}… ({} bytes)", value.len())
}
