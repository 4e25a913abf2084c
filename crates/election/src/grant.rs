//! The time table of one grant (§4.2).
//!
//! `drain_at` is the renew deadline (client-go: `RenewDeadline`): work is told to
//! stop then, before the lease ends.
//!
//! ```text
//! start        drain_at          kill_at   valid_until        judges: over
//!   |------------|------------------|----------|------------------|
//!   renewals ... | TERM, grace ...  | KILL ... | is_valid: false  | a rival may lead
//! ```
//!
//! [`Grant::new`] has the arithmetic (`config.rs`, which checks settings by it).
//!
//! All times are on the holder's own boot-time clock, counted from the
//! moment *before* the last successful write was sent: the answer may take
//! any time to come back, and a judge may have seen the write at once.

use tenure_core::time::Instant;

/// What a holder may do until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The moment before the last successful write was sent.
    pub start: Instant,
    /// Begin to stop work if nothing newer is confirmed by now. A renewal
    /// that succeeds before is as good as any.
    pub drain_at: Instant,
    /// Kill whatever still runs.
    pub kill_at: Instant,
    /// `is_valid()` is false from here on.
    pub valid_until: Instant,
}

impl Grant {
    /// Whether a step of guarded work may begin at `now` (§5.6). A timer tells
    /// that `drain_at` has come, but late: after a pause of the process, or
    /// where timers stand still in suspend, the work may be woken first. So
    /// the clock is asked before each step, and the timer only wakes.
    pub fn may_step(&self, now: Instant) -> bool {
        now < self.drain_at
    }

    /// Whether the holder may act at `now`.
    pub fn is_valid(&self, now: Instant) -> bool {
        now < self.valid_until
    }
}
