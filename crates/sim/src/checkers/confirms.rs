//! A leadership is renewed only for work that has confirmed the last grant.
//!
//! What the guardian has said is noted where it says it, so a candidate that
//! goes by something else is found whatever it believes. And whatever was on
//! its way when a guardian hung, the leadership ends: the grant that was
//! confirmed last may be extended once, before its `drain_at`, so within two
//! leases.

use tenure_core::ids::Term;
use tenure_core::time::Instant;

use super::{Exclusivity, Finding};
use crate::clock::TrueTime;
use crate::leadership::Leadership;

/// What was said of the grants that one process's work goes by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Confirmed {
    /// By the guardian, in which term.
    said: Option<(Term, Instant)>,
    /// As far as the candidate has heard.
    heard: Option<Instant>,
}

impl Confirmed {
    pub(crate) fn says(&mut self, term: Term, start: Instant) {
        self.said = self.said.max(Some((term, start)));
    }

    pub(crate) fn hears(&mut self, start: Instant) {
        self.heard = self.heard.max(Some(start));
    }

    /// The candidate sends what extends its grant.
    pub(crate) fn extends(&self, leadership: &Leadership) -> Finding {
        let (term, start) = (leadership.fence.term, leadership.grant.start);
        if self.said >= Some((term, start)) {
            return Ok(());
        }
        Err(format!(
            "renews term {term}, though its work has not confirmed the grant of {start}; the last \
             word was {:?}",
            self.said
        ))
    }

    /// The candidate gives up because the work has not confirmed.
    pub(crate) fn unheard(&self, leadership: &Leadership) -> Finding {
        let start = leadership.grant.start;
        if self.heard < Some(start) {
            return Ok(());
        }
        Err(format!(
            "gave up because its work had not confirmed the grant of {start}, though it had heard \
             that it did"
        ))
    }

    /// The guardian of `p` in `term` has hung for two leases.
    pub(crate) fn due(
        p: usize,
        election: usize,
        term: Term,
        now: TrueTime,
        leaderships: &Exclusivity,
    ) -> Finding {
        let mut valid = leaderships.valid(election, now);
        match valid.find(|(who, held)| *who == p && held.term == term) {
            None => Ok(()),
            Some((_, held)) => Err(format!(
                "the work of term {term} has confirmed nothing for two leases, and its leadership is \
                 valid for {} ns more",
                held.until - now
            )),
        }
    }
}
