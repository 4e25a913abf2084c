//! A process is never elected in a term that it was told of before, or in a
//! lower one, whatever its store has lost; and it asks a leader to go for the
//! sake of its floor at most once a lease.
//!
//! What a process was told is taken from what it tells its application, not
//! from what its machine says that it remembers.

use std::time::Duration;

use tenure_core::ids::{Fence, LeaderId, Term};
use tenure_core::time::Instant;
use tenure_election::Call;

use super::Finding;

/// What one life of a process was told, and when it last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Floors {
    floor: Term,
    /// Who led first in the highest term in which it was told of a leader.
    led: Option<(Term, LeaderId)>,
    /// The last request that has not certainly failed.
    asked: Option<(Call, Instant)>,
}

impl Floors {
    /// The application was told of this term.
    pub(crate) fn told(&mut self, term: Term) {
        self.floor = self.floor.max(term);
    }

    /// The application was told who leads.
    pub(crate) fn told_leader(&mut self, term: Term, leader: LeaderId) {
        if self.led.is_none_or(|(known, _)| known < term) {
            self.led = Some((term, leader));
        }
    }

    /// Whether it knows another leader of this term.
    pub(crate) fn knows_another(&self, term: Term, leader: LeaderId) -> bool {
        self.led
            .is_some_and(|(known, first)| known == term && first != leader)
    }

    /// The highest term it was told of.
    pub(crate) const fn floor(&self) -> Term {
        self.floor
    }

    /// It is elected.
    pub(crate) fn elected(&mut self, fence: Fence) -> Finding {
        let (term, floor) = (fence.term, self.floor);
        self.told(term);
        self.told_leader(term, fence.leader);
        if term > floor {
            return Ok(());
        }
        Err(format!(
            "elected in term {term}, though it was told of term {floor} before"
        ))
    }

    /// It asks a leader to go, at `now` on its own clock.
    pub(crate) fn asks(&mut self, call: Call, now: Instant, lease: Duration) -> Finding {
        let last = self.asked.replace((call, now));
        match last {
            Some((_, last)) if now.since(last) < lease => Err(format!(
                "asks a leader to go for the sake of its floor {:?} after the last time, within \
                 a lease of {lease:?}",
                now.since(last)
            )),
            _ => Ok(()),
        }
    }

    /// The write of this call has certainly not happened.
    pub(crate) fn failed(&mut self, call: Call) {
        self.asked.take_if(|(asked, _)| *asked == call);
    }
}
