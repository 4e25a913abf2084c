//! What goes into a campaign and what comes out of it.

use core::fmt;
use core::time::Duration;

use tenure_core::call::{Call, Failure};
use tenure_core::cas::{Bytes, Reading, Register, Write};
use tenure_core::ids::{Fence, Key, Name, Term, Version};
use tenure_core::time::Instant;

use super::super::{Grant, Observation, TermRegression};

/// What the application may ask of its campaign.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Give up the leadership if it is held, and stand again a little later.
    Resign,
    /// Give up the leadership if it is held, in favour of the candidate of this
    /// name.
    Transfer(Name),
    /// Give up the leadership if it is held, and end the campaign.
    Stop,
}

/// What the environment tells a campaign.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A read has ended.
    Read {
        /// Which.
        call: Call,
        /// How.
        result: Result<Reading, Failure>,
    },
    /// A compare-and-swap has ended.
    Wrote {
        /// Which.
        call: Call,
        /// How: the new version, or the failure.
        result: Result<Version, Failure>,
    },
    /// A confirmation of the session has ended.
    Confirmed {
        /// Which.
        call: Call,
        /// The moment before the keep-alive was sent that was confirmed, on
        /// this process's boot-time clock; a
        /// [`FailureClass::Conflict`](tenure_core::call::FailureClass::Conflict)
        /// if the session is over.
        result: Result<Instant, Failure>,
    },
    /// A watch has seen this state of a register, at some time past.
    Seen {
        /// Which register.
        key: Key,
        /// Its state, `None` if it did not exist.
        register: Option<Register>,
    },
    /// The watch reports changes (`true`), or must be made up for by polling.
    WatchUp(bool),
    /// The application wants something.
    Command(Command),
    /// The application's work has ended (see [`Event::Draining`]).
    Drained,
    /// The application's work runs, and goes by the grant that counts from
    /// `start` or by a later one. Matters only where the candidate was told
    /// that its work confirms.
    WorkConfirmed {
        /// The start of that grant.
        start: Instant,
    },
}

/// How a register is to be bound to a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bind {
    /// What it is to hold when the session ends.
    pub last: Bytes,
    /// How long the session must live after each keep-alive, at least, on the
    /// store's clock.
    pub ttl: Duration,
}

/// What a campaign asks of the environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Read this register; answer by [`Input::Read`].
    Read {
        /// To be named in the answer.
        call: Call,
        /// Which register.
        key: Key,
        /// After this the answer is not wanted any more.
        within: Duration,
    },
    /// Carry out this compare-and-swap, once; answer by [`Input::Wrote`].
    Write {
        /// To be named in the answer.
        call: Call,
        /// The compare-and-swap.
        write: Write,
        /// Bind the register to a session of this process.
        bind: Option<Bind>,
        /// After this the answer is not wanted any more.
        within: Duration,
    },
    /// Have the session confirmed to which the last write bound the register;
    /// answer by [`Input::Confirmed`].
    Confirm {
        /// To be named in the answer.
        call: Call,
        /// A keep-alive that was sent at this time or later is as good as a new
        /// one.
        since: Instant,
        /// After this the answer is not wanted any more.
        within: Duration,
    },
    /// This campaign gives up what it has bound so far, and what it may yet bind by a
    /// write that is under way: see that the register is vacated.
    Release,
    /// Tell the application.
    Event(Event),
}

/// Why a leadership ends.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Why {
    /// The application gave up the election, or its work ended.
    Resigned,
    /// The application or a request handed it to the candidate of this name.
    Transferred(Name),
    /// Somebody asked the leader to resign, through the register.
    Requested,
    /// No renewal was confirmed in time.
    Unconfirmed,
    /// The register shows another leader, or none.
    Replaced,
    /// The other election is no longer led by this candidate's namesake.
    AffinityEnded,
    /// The work did not confirm in time that it goes by the latest grant, so
    /// no renewal was sent (§4.13).
    WorkUnconfirmed,
}

impl Why {
    /// Whether the holder holds back from the next race, so that others get their turn.
    pub(super) const fn lets_others_race_first(&self) -> bool {
        match self {
            Self::Resigned
            | Self::Transferred(_)
            | Self::Requested
            | Self::AffinityEnded
            | Self::WorkUnconfirmed => true,
            Self::Unconfirmed | Self::Replaced => false,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resigned => f.write_str("resigned"),
            Self::Transferred(to) => write!(f, "handed over to {to}"),
            Self::Requested => f.write_str("asked to resign"),
            Self::Unconfirmed => f.write_str("no renewal was confirmed in time"),
            Self::Replaced => f.write_str("the register shows another state"),
            Self::AffinityEnded => f.write_str("the election it goes with is led elsewhere"),
            Self::WorkUnconfirmed => f.write_str("the work did not confirm in time that it runs"),
        }
    }
}

/// What the application is told, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// It leads. Work may begin.
    Elected {
        /// What to attach to every effect.
        fence: Fence,
        /// Until when.
        grant: Grant,
    },
    /// It leads for longer.
    Renewed {
        /// In which term.
        term: Term,
        /// Until when now.
        grant: Grant,
    },
    /// Begin to stop the work; say [`Input::Drained`] when it has ended. The
    /// grant is still valid, and is not extended any more. (client-go has no such
    /// event: its `OnStoppedLeading` comes when the leadership is over.)
    Draining {
        /// In which term.
        term: Term,
        /// Why.
        why: Why,
        /// The deadlines of the work: to stop, to be killed, and the end of the lease.
        grant: Grant,
    },
    /// Kill whatever still runs of this term's work, now.
    Kill {
        /// In which term.
        term: Term,
    },
    /// The leadership is over, for any reason: nothing more may be done in this term
    /// (client-go: `OnStoppedLeading`).
    Ousted {
        /// In which term.
        term: Term,
        /// Why.
        why: Why,
    },
    /// Somebody else leads than before, or nobody.
    LeaderChanged(Observation),
    /// The same leader has renewed; told by observers that were asked to.
    LeaderRenewed(Observation),
    /// The register shows a lower term than this process has seen: it was
    /// lost, or an older copy came back. Told once for each such pair. A
    /// candidate sees to a higher term (§4.14); an observer only tells.
    TermFell(TermRegression),
    /// The store failed. The campaign goes on.
    Trouble {
        /// How.
        failure: Failure,
        /// How many times in a row.
        in_a_row: u32,
    },
    /// The store answers again.
    Recovered,
    /// The campaign has ended.
    Stopped,
}

/// The end of a store call.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Read(Result<Reading, Failure>),
    Wrote(Result<Version, Failure>),
    /// Since when the session is known to have lived.
    Confirmed(Result<Instant, Failure>),
}
