//! The search for an order in which the calls of one register could have
//! taken effect one at a time.
//!
//! Events are walked in real time. At every moment the search holds all the
//! *configurations* that explain what was answered so far: a state of the
//! register, and which of the open calls have taken effect in it. Nothing is
//! decided before it must be: only when a call is answered are other open
//! calls put before it, in every order that leads to its answer ("just in
//! time", Lowe 2017, after Wing and Gong 1993). If no configuration is left,
//! no order exists.
//!
//! Five things keep the set small, none of which loses an answer:
//! * equal configurations are one (Lowe's memoisation);
//! * an answered call that would leave a state as it is takes effect at once
//!   where its answer fits, since later it could explain no more;
//! * of two configurations that hold the same, the one in which fewer calls
//!   that were never answered have taken effect can do everything that the
//!   other can, and more (its floor is no higher: calls that take effect are
//!   all that raises a floor);
//! * nothing is done in a session that is over, so its end takes effect after
//!   all its calls that were answered, and if nobody was told of it, only
//!   where it writes something;
//! * of calls that were never answered and ask for the same, the oldest takes
//!   effect first: from the time the second is made they cannot be told
//!   apart. Two that would write different values ask for the same if
//!   nobody's answer shows either value.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{ANY, Held, State, Step, Tie};

/// A call as the search sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) step: Step,
    pub(super) invoked: usize,
    /// `None` if it was never answered.
    pub(super) returned: Option<usize>,
}

/// How a search ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// There is an order.
    Order,
    /// There is none that explains the answer to op `at`; the register could
    /// have held this just before it.
    None { at: usize, held: Vec<State> },
    /// The search was given up.
    Limit,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Configuration {
    state: State,
    /// Open calls that will be answered and have taken effect, ascending.
    done: Vec<usize>,
    /// Calls that were never answered and have taken effect, ascending.
    spent: Vec<usize>,
}

struct Search {
    ops: Vec<Op>,
    sessions: BTreeMap<u32, Session>,
    /// Which event is looked at.
    at: usize,
    /// Calls that were made and not answered yet.
    open: BTreeSet<usize>,
    visited: u64,
    limit: u64,
}

/// The calls of a session that binds the register.
#[derive(Default)]
struct Session {
    end: Option<usize>,
    /// Those that were answered.
    answered: Vec<usize>,
}

fn sessions(ops: &[Op]) -> BTreeMap<u32, Session> {
    let mut sessions: BTreeMap<u32, Session> = BTreeMap::new();
    for (number, op) in ops.iter().enumerate() {
        let Some(session) = op.step.session() else {
            continue;
        };
        let session = sessions.entry(session).or_default();
        if let Step::Ended { .. } = op.step {
            session.end = Some(number);
        } else if op.returned.is_some() {
            session.answered.push(number);
        }
    }
    sessions
}

/// Looks for an order. Visits at most `limit` configurations, and adds how
/// many it visited to `visited`.
pub(super) fn search(ops: &[Op], limit: u64, visited: &mut u64) -> Found {
    let mut events: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * ops.len());
    for (number, op) in ops.iter().enumerate() {
        events.push((op.invoked, false, number));
        events.extend(op.returned.map(|at| (at, true, number)));
    }
    events.sort_unstable();
    let mut search = Search {
        ops: alike(ops),
        sessions: sessions(ops),
        at: 0,
        open: BTreeSet::new(),
        visited: 0,
        limit,
    };
    let mut now = BTreeSet::from([Configuration {
        state: State::new(),
        done: Vec::new(),
        spent: Vec::new(),
    }]);
    let mut found = Found::Order;
    for (at, returned, number) in events {
        search.at = at;
        if !returned {
            search.open.insert(number);
            now = now.into_iter().map(|c| search.settled(c)).collect();
            continue;
        }
        let Some(next) = search.explain(&now, number) else {
            found = Found::Limit;
            break;
        };
        if next.is_empty() {
            let held: BTreeSet<State> = now.into_iter().map(|c| c.state).collect();
            let held = held.into_iter().collect();
            found = Found::None { at: number, held };
            break;
        }
        search.open.remove(&number);
        now = dominant(next);
    }
    *visited += search.visited;
    found
}

impl Search {
    /// All configurations in which `wanted` has taken effect, reached from
    /// those of now by letting open calls take effect until it has. `None`
    /// if the limit was reached.
    fn explain(
        &mut self,
        now: &BTreeSet<Configuration>,
        wanted: usize,
    ) -> Option<BTreeSet<Configuration>> {
        let mut reached = BTreeSet::new();
        let mut seen = Best::default();
        let mut todo: Vec<Configuration> = Vec::new();
        for configuration in now {
            if seen.admit(configuration) {
                todo.push(configuration.clone());
            }
        }
        while let Some(mut from) = todo.pop() {
            self.visited += 1;
            if self.visited > self.limit {
                return None;
            }
            if let Ok(index) = from.done.binary_search(&wanted) {
                from.done.remove(index);
                reached.insert(from);
                continue;
            }
            let mut asked: Vec<Step> = Vec::new();
            for number in &self.open {
                let op = &self.ops[*number];
                if op.returned.is_none() {
                    let spent = from.spent.binary_search(number).is_ok();
                    if spent || asked.contains(&op.step) {
                        continue;
                    }
                    asked.push(op.step);
                }
                let Some(next) = self.taken(&from, *number) else {
                    continue;
                };
                let next = self.settled(next);
                if seen.admit(&next) {
                    todo.push(next);
                }
            }
        }
        Some(reached)
    }

    /// The configuration after open call `number` took effect, if it can.
    fn taken(&self, from: &Configuration, number: usize) -> Option<Configuration> {
        let op = &self.ops[number];
        if !self.is_in_time(from, op) {
            return None;
        }
        let list = match op.returned {
            Some(_) => &from.done,
            None => &from.spent,
        };
        let place = list.binary_search(&number).err()?;
        let state = from.state.after(op.step)?;
        let mut next = from.clone();
        next.state = state;
        match op.returned {
            Some(_) => next.done.insert(place, number),
            None => next.spent.insert(place, number),
        }
        Some(next)
    }

    /// Whether the op comes before the end of its session, or is that end and
    /// comes after the rest.
    fn is_in_time(&self, from: &Configuration, op: &Op) -> bool {
        let Some(session) = op.step.session() else {
            return true;
        };
        let Session { end, answered } = &self.sessions[&session];
        if let Step::Ended { .. } = op.step {
            let tied = from.state.tie.is_some_and(|tie| tie.session == session);
            let all = || answered.iter().all(|other| self.is_done(from, *other));
            (tied || op.returned.is_some()) && all()
        } else {
            end.is_none_or(|end| !self.is_done(from, end))
        }
    }

    /// Whether op `number` has taken effect.
    fn is_done(&self, from: &Configuration, number: usize) -> bool {
        match self.ops[number].returned {
            Some(returned) if returned < self.at => true,
            Some(_) => from.done.binary_search(&number).is_ok(),
            None => from.spent.binary_search(&number).is_ok(),
        }
    }

    /// Lets every answered open call take effect that leaves the state as it
    /// is.
    fn settled(&self, mut configuration: Configuration) -> Configuration {
        for number in &self.open {
            let op = &self.ops[*number];
            // What an end leaves as it is now it may change later, when a
            // call that was never answered has bound the register.
            if op.returned.is_none() || matches!(op.step, Step::Ended { .. }) {
                continue;
            }
            if let Err(place) = configuration.done.binary_search(number)
                && configuration.state.after(op.step).as_ref() == Some(&configuration.state)
            {
                configuration.done.insert(place, *number);
            }
        }
        configuration
    }
}

/// What configurations must have in common to be compared: what is held and
/// for whom, and which answered calls have taken effect.
type Common = (Held, Option<Tie>, Vec<usize>);

/// The best configurations so far, by what they have in common: the calls
/// without an answer that they spent.
#[derive(Default)]
struct Best(BTreeMap<Common, Vec<Vec<usize>>>);

impl Best {
    /// Whether no configuration that was admitted before can stand in for
    /// this one.
    fn admit(&mut self, configuration: &Configuration) -> bool {
        let Configuration { state, done, spent } = configuration;
        let common = (state.held.clone(), state.tie, done.clone());
        let alike = self.0.entry(common).or_default();
        let covers = |other: &Vec<usize>| other.iter().all(|n| spent.binary_search(n).is_ok());
        let new = !alike.iter().any(covers);
        if new {
            alike.push(spent.clone());
        }
        new
    }
}

/// Without those that another can stand in for.
fn dominant(all: BTreeSet<Configuration>) -> BTreeSet<Configuration> {
    let mut all: Vec<Configuration> = all.into_iter().collect();
    all.sort_by_key(|configuration| configuration.spent.len());
    let mut best = Best::default();
    all.retain(|configuration| best.admit(configuration));
    all.into_iter().collect()
}

/// The ops, with one value for all that would be written by calls without an
/// answer and that no answer shows.
fn alike(ops: &[Op]) -> Vec<Op> {
    let found = |op: &Op| match op.step {
        Step::Found { value, .. } => Some(value),
        Step::Nothing
        | Step::Swapped { .. }
        | Step::Deleted { .. }
        | Step::Refused { .. }
        | Step::Ended { .. }
        | Step::Nonsense => None,
    };
    let shown: BTreeSet<u32> = ops.iter().filter_map(found).collect();
    let mut ops = ops.to_vec();
    for op in &mut ops {
        let Step::Swapped {
            value,
            version,
            last,
            ..
        } = &mut op.step
        else {
            continue;
        };
        if version.is_none() && !shown.contains(value) {
            *value = ANY;
        }
        if let Some(last) = last
            && !shown.contains(last)
        {
            *last = ANY;
        }
    }
    ops
}
