//! No leadership is lost without a cause.
//!
//! * A leader leaves *unconfirmed* only if something happened to its calls or
//!   to itself within the last lease.
//! * It is *replaced* only if the register shows somebody else, or nobody.
//! * Its renewal meets a *conflict* only if the register was written after
//!   what it had last been shown.

use tenure_core::ids::Fence;

use super::{Finding, Terms};
use crate::clock::TrueTime;

/// When each process was last disturbed.
#[derive(Clone, Debug)]
pub(crate) struct Causes {
    disturbed: Vec<TrueTime>,
}

impl Causes {
    pub(crate) fn new(processes: usize) -> Self {
        Self {
            disturbed: vec![0; processes],
        }
    }

    /// Something happened to `process` or to its calls, until `until`.
    pub(crate) fn disturb(&mut self, process: usize, until: TrueTime) {
        let last = &mut self.disturbed[process];
        *last = until.max(*last);
    }

    /// A leader gives up because no renewal was confirmed in time.
    pub(crate) fn unconfirmed(&self, process: usize, now: TrueTime, lease: u64) -> Finding {
        let calm = now.saturating_sub(self.disturbed[process]);
        if calm <= lease {
            return Ok(());
        }
        Err(format!(
            "gave up unconfirmed, though nothing had happened to it for {calm} ns, more than a \
             lease"
        ))
    }

    /// A leader says that the register shows another state.
    pub(crate) fn replaced(fence: Fence, terms: &Terms) -> Finding {
        let shown = terms.last();
        let held = shown
            .is_some_and(|entry| entry.term == fence.term && entry.holder == Some(fence.leader));
        if !held {
            return Ok(());
        }
        Err(format!(
            "took itself for replaced in term {}, which the register still shows",
            fence.term
        ))
    }

    /// A leader's renewal met a conflict. It had been shown the register as
    /// of `shown` writes.
    pub(crate) fn conflict(shown: u64, terms: &Terms) -> Finding {
        if terms.writes() > shown {
            return Ok(());
        }
        Err(format!(
            "expected a stale version, though it had been shown the register's last write, the \
             {shown}th"
        ))
    }
}
