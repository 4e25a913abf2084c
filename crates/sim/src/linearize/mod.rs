//! Was what clients saw possible at all?
//!
//! A history of calls on compare-and-swap registers is *linearizable*
//! (Herlihy and Wing 1990) if every call can be given one instant, between
//! its start and its answer, such that the calls, taken one at a time in the
//! order of those instants, give exactly the answers that clients got. This
//! is the whole promise of a replicated store to its users, and it is judged
//! here from the outside: nothing is known of leaders, terms or logs.
//!
//! Registers are independent of each other, so a history is linearizable if
//! and only if its part about each register is; each is searched alone
//! (`search`), against the register as a sequential machine (`model`). A
//! history that is not linearizable is cut down to the calls that contradict
//! each other (`explain`). The user log has a stricter and simpler promise,
//! with a checker of its own: [`exactly_once`].
//!
//! To search is exponential at worst, in the calls that are open at the same
//! time. It is given up at a limit, and then says so:
//! [`Verdict::Inconclusive`] is neither a pass nor a failure.
//!
//! Left out: watches and lists (the order of changes is checked against the
//! log itself), stamps (they are the log's time, not an answer to a client),
//! and stores whose versions do not grow.

mod appends;
mod explain;
mod history;
mod model;
mod part;
mod search;

use std::collections::BTreeMap;
use std::fmt;

use tenure_core::ids::Key;

pub use appends::{Append, Misdeed, exactly_once};
pub use explain::Contradiction;
pub use history::{Answer, Call, CallId, History, Invocation};

use part::Part;
use search::{Found, search};

/// How many configurations of a register's calls are looked at before the
/// search is given up. Two thousand calls of ten clients on one register, of
/// which one in twelve is never answered, take a fiftieth of it at worst.
pub const CONFIGURATIONS_MAX: u64 = 2_000_000;

/// What became of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is an order that explains everything.
    Linearizable {
        /// How many configurations were looked at: what it cost.
        configurations: u64,
    },
    /// There is none.
    Violation(Box<Contradiction>),
    /// The search of this register was given up, and no other was found to
    /// be wrong.
    Inconclusive {
        /// Which register.
        key: Key,
        /// How many configurations were looked at.
        configurations: u64,
    },
}

impl Verdict {
    /// Whether there is an order that explains everything.
    pub const fn is_linearizable(&self) -> bool {
        matches!(self, Self::Linearizable { .. })
    }

    /// What contradicts what, if anything does.
    pub const fn violation(&self) -> Option<&Contradiction> {
        match self {
            Self::Violation(found) => Some(found),
            Self::Linearizable { .. } | Self::Inconclusive { .. } => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linearizable { .. } => f.write_str("linearizable"),
            Self::Violation(found) => found.fmt(f),
            Self::Inconclusive {
                key,
                configurations,
            } => write!(
                f,
                "undecided: gave up on register {key} after {configurations} configurations \
                 (fewer clients at a time, fewer unanswered calls or more registers help)"
            ),
        }
    }
}

/// Judges a history, looking at most at [`CONFIGURATIONS_MAX`]
/// configurations of each register.
pub fn check(history: &History) -> Verdict {
    check_within(history, CONFIGURATIONS_MAX)
}

/// Judges a history, looking at most at `limit` configurations of each
/// register.
pub fn check_within(history: &History, limit: u64) -> Verdict {
    let mut configurations = 0;
    let mut undecided = None;
    for (key, calls) in by_key(history) {
        let part = Part::new(history, key, calls);
        match search(&part.ops, limit, &mut configurations) {
            Found::Order => {}
            Found::None { at, held } => {
                return Verdict::Violation(Box::new(explain::explain(&part, at, held)));
            }
            Found::Limit => {
                undecided.get_or_insert_with(|| part.key.clone());
            }
        }
    }
    match undecided {
        None => Verdict::Linearizable { configurations },
        Some(key) => Verdict::Inconclusive {
            key,
            configurations,
        },
    }
}

fn by_key(history: &History) -> BTreeMap<Key, Vec<CallId>> {
    let mut parts: BTreeMap<Key, Vec<CallId>> = BTreeMap::new();
    for (id, call) in history.calls() {
        parts.entry(call.key.clone()).or_default().push(id);
    }
    parts
}
