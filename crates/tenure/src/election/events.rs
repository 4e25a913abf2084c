//! What a listener of an election hears; the streams themselves are those of
//! every machine ([`crate::drive::Events`]).

use tenure_election::Event;

pub use crate::drive::EVENTS_MAX;

/// A stream of events: delivered in order, never concurrently. The last one
/// is [`Event::Stopped`].
pub type Events = crate::drive::Events<Event>;

/// The sender's side of all streams of one election.
pub(super) type EventBroadcaster = crate::drive::EventBroadcaster<Event>;
