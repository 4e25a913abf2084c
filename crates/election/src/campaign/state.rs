//! The states of a campaign, which turn into each other. How the last one begins
//! is here too, since what the states share knows no state.

use super::draining::Draining;
use super::leading::Leading;
use super::racing::Racing;
use super::standby::Standby;
use super::{Context, Event};

#[derive(Clone, Debug)]
pub(super) enum State {
    Standby(Standby),
    Racing(Racing),
    Leading(Leading),
    Draining(Draining),
    Stopped,
}

impl Context {
    /// The last thing the application hears.
    pub(super) fn stopped(&mut self) -> State {
        self.tell_leader();
        self.event(Event::Stopped);
        State::Stopped
    }
}
