//! No step of guarded work begins at or after `drain_at` of the last grant that
//! was confirmed, nor while anybody else holds a valid leadership.

use tenure_core::time::Instant;

use super::{Exclusivity, Finding, Held};
use crate::clock::TrueTime;
use crate::leadership::Leadership;

/// Looks at a step of `p` as it begins, at `local` on its own clock.
pub(crate) fn step(
    p: usize,
    leadership: &Leadership,
    local: Instant,
    now: TrueTime,
    held: Option<Held>,
    leaderships: &Exclusivity,
) -> Finding {
    let (term, grant) = (leadership.fence.term, leadership.grant);
    if local >= grant.drain_at {
        return Err(format!(
            "a step of guarded work in term {term} begins at {local}, at or after the end of its \
             grant at {}",
            grant.drain_at
        ));
    }
    let Some(election) = held.map(|held| held.election) else {
        return Ok(());
    };
    let rival = leaderships.valid(election, now).find(|(who, _)| *who != p);
    match rival {
        None => Ok(()),
        Some((_, rival)) => Err(format!(
            "a step of guarded work in term {term} begins while term {} is valid",
            rival.term
        )),
    }
}
