//! What was asked through the register is obeyed.
//!
//! From the moment a request is in the register, the holder's next renewal
//! either finds it or fails. So whatever else happens, the leadership it was
//! written to cannot last longer than one lease of true time from then.

use tenure_core::ids::Term;

use super::{Exclusivity, Finding};
use crate::clock::TrueTime;

/// The requests that reached the register.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    reached: Vec<(usize, Term)>,
}

impl Requests {
    /// A request was written to the holder of `term`.
    pub(crate) fn reached(&mut self, election: usize, term: Term) {
        self.reached.push((election, term));
    }

    /// A holder says it leaves because it was asked to.
    pub(crate) fn asked(&self, election: usize, term: Term) -> Finding {
        if self.reached.contains(&(election, term)) {
            return Ok(());
        }
        Err(format!(
            "leaves term {term} because it was asked to, but nobody did"
        ))
    }

    /// One lease has passed.
    pub(crate) fn due(
        election: usize,
        term: Term,
        now: TrueTime,
        leaderships: &Exclusivity,
    ) -> Finding {
        match leaderships
            .valid(election, now)
            .find(|(_, held)| held.term == term)
        {
            None => Ok(()),
            Some((_, held)) => Err(format!(
                "term {term} was asked to end a lease ago and is valid for {} ns more",
                held.until - now
            )),
        }
    }
}
