//! The one shape of every protocol in Tenure.
//!
//! A machine is a plain synchronous value. The world tells it what happened
//! ([`Machine::handle`]), asks it what to do ([`Machine::poll`], until it
//! says `None`) and when to come back at the latest ([`Machine::deadline`]).
//! Four rules make that enough:
//!
//! 1. **It never blocks and never fails.** A bad answer from outside is an
//!    input like any other; a broken invariant of its own is an assertion.
//! 2. **It reads no clock.** Every input comes with the time at which it is
//!    handled; times never go back (a driver that hands in an earlier time
//!    is read as handing in the latest one seen).
//! 3. **It draws no randomness of its own.** A seeded generator is handed in
//!    when it is built, so a run is a function of its seed and inputs.
//! 4. **What must happen in order is kept by the machine, not by the
//!    driver.** A driver that carries out every output it is given, in any
//!    order and with any delay, is a correct driver.
//!
//! What is left out on purpose: cancellation (an output that is overtaken is
//! answered anyway, and the machine ignores the answer) and priorities.

use crate::time::{Instant, Now};

/// A protocol that never blocks, never reads a clock and never fails.
pub trait Machine {
    /// What the world tells the machine.
    type Input;
    /// What the machine asks of the world.
    type Output;

    /// Takes note of `input`, which happened at or before `now`.
    fn handle(&mut self, now: Now, input: Self::Input);

    /// Takes note that time has passed. A driver calls this when
    /// [`deadline`](Self::deadline) is reached; calling it early or often is
    /// harmless.
    fn tick(&mut self, now: Now);

    /// The next thing to do, or `None` when there is nothing until the next
    /// input or deadline.
    fn poll(&mut self) -> Option<Self::Output>;

    /// When [`tick`](Self::tick) is wanted at the latest; `None` if only an
    /// input can move the machine.
    fn deadline(&self) -> Option<Instant>;
}
