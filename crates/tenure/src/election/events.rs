//! What a listener of an election hears; the streams themselves are those of
//! every machine ([`crate::drive::Events`]).

use tenure_core::election::Event;

pub use crate::drive::EVENTS_MAX;
use crate::drive::Told;

/// A stream of events: delivered in order, never concurrently. The last one
/// is [`Event::Stopped`].
pub type Events = crate::drive::Events<Event>;

/// The sender's side of all streams of one election.
pub(super) type Fan = crate::drive::Fan<Event>;

impl Told for Event {
    const LAST: Self = Self::Stopped;
}
