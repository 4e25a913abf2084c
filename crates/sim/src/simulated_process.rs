//! A simulated process, with what runs in it and beside it.

use std::collections::VecDeque;

use tenure_core::ids::Term;
use tenure_core::time::Instant;
use tenure_election::{Call, Campaign, Config, Grant, Input, Observer, Request};

use crate::checkers::{Confirmed, Floors};
use crate::clock::TrueTime;
use crate::leadership::{Leadership, Work};
use crate::swarm::BootId;

/// What waits in an inbox.
#[derive(Clone, Debug)]
pub(crate) enum ProcessInput {
    Input(Input),
    /// A store's answer, and how many writes there had been by then.
    Answer(Input, Option<u64>),
    /// A keep-alive of this session that was sent at this time has been
    /// confirmed, or not.
    Kept(usize, Option<Instant>),
    /// The go-ahead for work.
    Begin(Term),
    /// The guardian says that the work goes by the grant of this start.
    Word(Instant),
}

/// What runs in a process.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a handful in a run, nearly all candidates"
)]
pub(crate) enum Actor {
    Candidate(Campaign),
    Observer(Observer),
    RequestSender(RequestSender),
}

/// A command that writes a request into the register, like an operator's.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestSender {
    pub(crate) request: Option<Request>,
    pub(crate) calls: u64,
    pub(crate) tries: u32,
}

/// A process, over all its lives.
#[derive(Clone, Debug)]
pub(crate) struct SimProcess {
    pub(crate) name: String,
    pub(crate) node: usize,
    pub(crate) election: usize,
    pub(crate) config: Config,
    pub(crate) actor: Actor,
    pub(crate) life: u32,
    pub(crate) up: bool,
    pub(crate) paused: bool,
    pub(crate) inbox: VecDeque<ProcessInput>,
    pub(crate) leadership: Option<Leadership>,
    pub(crate) work: Option<Work>,
    /// When the timer is set, and which one counts.
    pub(crate) timer: (TrueTime, u64),
    /// Ticks in a row that moved no deadline.
    pub(crate) spins: u32,
    /// How many writes the last answer that counted had seen.
    pub(crate) shown: u64,
    /// The call whose answer counts, and until when on its own clock.
    pub(crate) awaited: (Call, Instant),
    /// The session that it binds its register to, once it has one.
    pub(crate) session: Option<usize>,
    /// The last keep-alive that is known to be confirmed, and of which session.
    pub(crate) kept: Option<(usize, Instant)>,
    /// Whether it is told that a register is bound.
    pub(crate) knows_sessions: bool,
    /// What it reads as the id of its machine's boot.
    pub(crate) boot_id: BootId,
    /// Work that it polls itself.
    pub(crate) guarded: Option<Guarded>,
    /// What it was told of terms.
    pub(crate) floors: Floors,
    /// The guardian of work that confirms.
    pub(crate) guardian: Guardian,
}

/// The guardian of a candidate's work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guardian {
    /// What it has said.
    pub(crate) confirmed: Confirmed,
    pub(crate) hung: bool,
    /// How often one has hung, or was replaced.
    pub(crate) number: u64,
    /// A go-ahead that it has not read.
    pub(crate) begin: Option<Term>,
    /// A grant that it has not read.
    pub(crate) grant: Option<(Term, Grant)>,
}

impl Guardian {
    pub(crate) const fn is_hung(&self) -> bool {
        self.hung
    }

    /// Its work has ended; another one stands by.
    pub(crate) const fn replace(&mut self) {
        self.hung = false;
        self.number += 1;
        (self.begin, self.grant) = (None, None);
    }
}

/// What reaches a guardian.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GuardianMessage {
    /// The candidate has this grant.
    Granted(Term, Grant),
    /// It goes on, if it hangs as it did then.
    GoesOn(u64),
    /// By now the term must be over, if it still hangs as it did then.
    Due(Term, u64),
}

/// Guarded work of a leadership.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded {
    pub(crate) term: Term,
    /// Its task was woken while the process did not run.
    pub(crate) woken: bool,
}
