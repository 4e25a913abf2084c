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
//! Three things keep the set small, none of which loses an answer:
//! * equal configurations are one (Lowe's memoisation);
//! * an answered call that would leave a state as it is takes effect at once
//!   where its answer fits, since later it could explain no more;
//! * of two configurations that differ only in calls which were never
//!   answered, the one in which fewer of them have taken effect can do
//!   everything that the other can, and more.

use std::collections::BTreeSet;

use super::model::{State, Step};

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

struct Search<'a> {
    ops: &'a [Op],
    /// Calls that were made and not answered yet.
    open: BTreeSet<usize>,
    visited: u64,
    limit: u64,
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
        ops,
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
    for (_, returned, number) in events {
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

impl Search<'_> {
    /// All configurations in which `wanted` has taken effect, reached from
    /// those of now by letting open calls take effect until it has. `None`
    /// if the limit was reached.
    fn explain(
        &mut self,
        now: &BTreeSet<Configuration>,
        wanted: usize,
    ) -> Option<BTreeSet<Configuration>> {
        let mut reached = BTreeSet::new();
        let mut seen = now.clone();
        let mut todo: Vec<Configuration> = now.iter().cloned().collect();
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
            for number in &self.open {
                let Some(next) = self.taken(&from, *number) else {
                    continue;
                };
                let next = self.settled(next);
                if seen.insert(next.clone()) {
                    todo.push(next);
                }
            }
        }
        Some(reached)
    }

    /// The configuration after open call `number` took effect, if it can.
    fn taken(&self, from: &Configuration, number: usize) -> Option<Configuration> {
        let op = &self.ops[number];
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

    /// Lets every answered open call take effect that leaves the state as it
    /// is.
    fn settled(&self, mut configuration: Configuration) -> Configuration {
        for number in &self.open {
            let op = &self.ops[*number];
            if op.returned.is_none() {
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

/// Without those that another can stand in for.
fn dominant(all: BTreeSet<Configuration>) -> BTreeSet<Configuration> {
    let mut kept: BTreeSet<Configuration> = BTreeSet::new();
    let mut group: Vec<Configuration> = Vec::new();
    // Those of one state and one set of answered calls follow one another.
    for configuration in all {
        let alike = |other: &Configuration| {
            other.state == configuration.state && other.done == configuration.done
        };
        if !group.first().is_some_and(alike) {
            kept.extend(minimal(std::mem::take(&mut group)));
        }
        group.push(configuration);
    }
    kept.extend(minimal(group));
    kept
}

fn minimal(mut group: Vec<Configuration>) -> Vec<Configuration> {
    group.sort_by_key(|configuration| configuration.spent.len());
    let mut kept: Vec<Configuration> = Vec::new();
    for configuration in group {
        let spent = &configuration.spent;
        let covers =
            |other: &Configuration| other.spent.iter().all(|n| spent.binary_search(n).is_ok());
        if !kept.iter().any(covers) {
            kept.push(configuration);
        }
    }
    kept
}
