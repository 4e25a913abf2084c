//! What is said to be proven is true, and who is said to lead has led.
//!
//! "Nobody leads" is old by the time it is said: the answer travelled, and
//! somebody may have been elected meanwhile, in a *higher* term. What does not
//! age is that every leadership up to the term seen is over. Who is said to
//! lead must have been the register's holder at some time; how long ago is a
//! matter of how late news may be, and so of the world.

use tenure_election::{Certainty, Observation};

use super::{Exclusivity, Finding, Terms};
use crate::clock::TrueTime;

/// Looks at what a process says of an election.
pub(crate) fn claim(
    observation: &Observation,
    election: usize,
    now: TrueTime,
    terms: &Terms,
    leaderships: &Exclusivity,
) -> Finding {
    if let Some(leader) = &observation.leader {
        return if terms.held(leader.term, leader.id) {
            Ok(())
        } else {
            Err(format!(
                "says that {} leads in term {}, who never did",
                leader.id, leader.term
            ))
        };
    }
    if observation.certainty != Certainty::Proven {
        return Ok(());
    }
    let mut valid = leaderships.valid(election, now);
    match valid.find(|(_, held)| held.term <= observation.term) {
        None => Ok(()),
        Some((_, held)) => Err(format!(
            "says that it is proven that nobody leads up to term {}, but term {} is valid for \
             {} ns more",
            observation.term,
            held.term,
            held.until - now
        )),
    }
}
