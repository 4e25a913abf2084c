//! A process that is running at a deadline has been told by then.
//!
//! It is looked at after every step, and one nanosecond after each deadline
//! that an application knows of. A process that was paused is looked at after
//! the first step it takes again: by then the grant that ended meanwhile must
//! have been taken back.

use tenure_core::time::Instant;

use super::Finding;
use crate::leadership::Leadership;

/// Looks at a process that runs, at `now` on its own clock.
pub(crate) fn told(leadership: &Leadership, now: Instant) -> Finding {
    if leadership.ousted {
        return Ok(());
    }
    let (term, grant) = (leadership.fence.term, leadership.grant);
    let missed = if now >= grant.valid_until {
        Some(("is over", grant.valid_until))
    } else if now >= grant.kill_at && !leadership.killed && !leadership.drained {
        Some(("must be killed for", grant.kill_at))
    } else if now >= grant.drain_at && !leadership.draining {
        Some(("must drain for", grant.drain_at))
    } else {
        None
    };
    match missed {
        None => Ok(()),
        Some((what, at)) => Err(format!(
            "at {now} nobody has told the application that term {term} {what} {at}"
        )),
    }
}
