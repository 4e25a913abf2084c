//! From "there is no order" to the few calls that contradict each other.
//!
//! Calls cannot simply be left out of a history to see whether they matter:
//! without the write it saw, every read is wrong. But an *answer* can be
//! forgotten. A call without an answer may take effect at any time or never, so
//! a history with fewer answers can only be easier to explain.
//!
//! What is still impossible after an answer was forgotten was impossible
//! without it. So answers are forgotten, many at a time and then fewer, as long
//! as the contradiction stays. The calls that keep their answers are its core:
//! take any one of their answers away and there is an order.

use std::fmt;

use tenure_core::ids::Key;

use super::history::{Call, CallId, shown};
use super::model::{ANY, Held, Names, State};
use super::part::Part;
use super::search::{Found, Op, search};

/// How many configurations a search for a smaller core may look at. One that
/// needs more counts as "not smaller", so that a core may keep a call too
/// many, but is never wrong.
const SHRINK_LIMIT: u64 = 20_000;

/// How many states of the register are shown.
const STATES_MAX: usize = 4;

/// Why a history is not linearizable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contradiction {
    /// Which register.
    pub key: Key,
    /// The call whose answer cannot be explained by anything before it.
    pub call: CallId,
    /// The calls whose answers contradict each other, in the order in which
    /// they were made. All other answers can be forgotten.
    pub core: Vec<CallId>,
    /// The same calls, for people.
    calls: Vec<Call>,
    /// The call that cannot be explained, for people.
    unexplained: Call,
    /// What the register could have held when that call was answered.
    held: Vec<String>,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "register {}: no order of the calls explains this answer:",
            self.key
        )?;
        writeln!(f, "  {}", self.unexplained)?;
        writeln!(
            f,
            "by what was answered before it, the register held {}",
            self.held.join(", or ")
        )?;
        f.write_str("these answers contradict each other, whatever became of all other calls:")?;
        for call in &self.calls {
            write!(f, "\n  {call}")?;
        }
        Ok(())
    }
}

/// Explains that op `at` of `part` could not be ordered when the register
/// could have held any of `held`.
pub(super) fn explain(part: &Part<'_>, at: usize, held: Vec<State>) -> Contradiction {
    let core = core(part, at);
    let more = held.len().saturating_sub(STATES_MAX);
    let mut shown: Vec<String> = held
        .iter()
        .take(STATES_MAX)
        .map(|state| describe(state, &part.names))
        .collect();
    if more > 0 {
        shown.push(format!("one of {more} other states"));
    }
    Contradiction {
        key: part.key.clone(),
        call: part.calls[at],
        core: core.iter().map(|op| part.calls[*op]).collect(),
        calls: core.iter().map(|op| part.call(*op).clone()).collect(),
        unexplained: part.call(at).clone(),
        held: shown,
    }
}

fn describe(state: &State, names: &Names) -> String {
    let bound = if state.tie.is_some() { ", bound" } else { "" };
    format!("{}{bound}", describe_held(state, names))
}

fn describe_held(state: &State, names: &Names) -> String {
    match &state.held {
        Held::Absent => "nothing".to_owned(),
        Held::Known { value, version } => {
            format!(
                "{} of {}",
                shown(names.value(*value)),
                names.version(*version)
            )
        }
        Held::Unseen { value: ANY, .. } => "what nobody was ever shown".to_owned(),
        Held::Unseen { value, .. } => {
            format!(
                "{} of a version nobody was told",
                shown(names.value(*value))
            )
        }
    }
}

/// The ops whose answers contradict each other, `at` being the first that
/// could not be explained.
fn core(part: &Part<'_>, at: usize) -> Vec<usize> {
    let all = 0..part.ops.len();
    let mut answered: Vec<usize> = all.filter(|op| part.ops[*op].returned.is_some()).collect();
    // What was answered later is not to blame, unless it was open then.
    let earlier: Vec<usize> = answered
        .iter()
        .copied()
        .filter(|op| part.ops[*op].returned <= part.ops[at].returned)
        .collect();
    if contradict(part, &earlier) {
        answered = earlier;
    }
    let mut size = answered.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        let mut shrunk = false;
        while start < answered.len() {
            let end = answered.len().min(start + size);
            let rest = [&answered[..start], &answered[end..]].concat();
            if contradict(part, &rest) {
                answered = rest;
                shrunk = true;
            } else {
                start = end;
            }
        }
        // At the smallest size it goes on until nothing more goes.
        if size > 1 || !shrunk {
            size /= 2;
        }
    }
    answered
}

/// Whether the answers to these ops alone contradict each other.
fn contradict(part: &Part<'_>, answered: &[usize]) -> bool {
    let mut ops: Vec<Op> = Vec::with_capacity(part.ops.len());
    for (number, op) in part.ops.iter().enumerate() {
        if answered.binary_search(&number).is_ok() {
            ops.push(*op);
        } else if let Some(step) = part.names.step(part.call(number), None) {
            let returned = None;
            ops.push(Op {
                step,
                returned,
                ..*op
            });
        }
    }
    matches!(search(&ops, SHRINK_LIMIT, &mut 0), Found::None { .. })
}
