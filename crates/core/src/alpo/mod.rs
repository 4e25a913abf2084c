//! The ALPO replicated log (prose to come with the node).

mod bug;
pub mod codec;
mod config;
mod durable;
mod entry;
mod ids;
pub mod invariants;
mod log;
mod membership;
mod message;
mod node;
pub mod quorum;
mod state;

pub use bug::Bug;
pub use config::{Config, ConfigError};
pub use durable::{Batch, HardState, Identity, Recovered, Snapshot};
pub use entry::{
    Command, Entries, Entry, LogTime, MAX_ENTRY_BYTES, Operation, Outcome, Payload, Serial,
    SessionId,
};
pub use ids::{ClusterId, LogId, Position, Rank, ServerId, StorageId};
pub use log::Log;
pub use membership::{Change, ChangeError, MAX_MEMBERS, Member, Membership, Part};
pub use message::{Asker, Body, Envelope, Reply, Request};
pub use node::{
    Answer, Ask, Event, Fault, Found, Input, MAX_SNAPSHOT_BYTES, Node, Output, Query, Refusal,
    Status, Why,
};
pub use state::{
    ImageError, Journal, Limits, MAX_WINDOW, Session, Sessions, Standing, State, TooOld,
};
