//! A process whose writes are refused does not repeat them as fast as the store
//! answers.
//!
//! The pauses double from an eighth of the interval, a fortieth of a lease, up
//! to a lease: seven writes in the first lease. A leader that drains, and its
//! next incarnation, add some; so does a process that is started again.

use std::collections::VecDeque;

use super::Finding;
use crate::clock::TrueTime;

/// The most writes that one process may have refused within a lease.
const REFUSED_MAX: usize = 40;

/// When the last writes of each process were refused, though the register was
/// as they expected.
#[derive(Clone, Debug)]
pub(crate) struct Refusals {
    recent: Vec<VecDeque<TrueTime>>,
}

impl Refusals {
    pub(crate) fn new(processes: usize) -> Self {
        Self {
            recent: vec![VecDeque::new(); processes],
        }
    }

    /// A write of `process` is refused.
    pub(crate) fn refused(&mut self, process: usize, now: TrueTime, lease: u64) -> Finding {
        let recent = &mut self.recent[process];
        recent.push_back(now);
        while recent.front().is_some_and(|at| at + lease < now) {
            recent.pop_front();
        }
        if recent.len() <= REFUSED_MAX {
            return Ok(());
        }
        Err(format!(
            "wrote {} times within a lease though the store refused each of them",
            recent.len()
        ))
    }
}
