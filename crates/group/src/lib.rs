//! Work that moves off dead machines, over any store of registers.
//!
//! A *group* of nodes shares one register, the [`View`]: which nodes are in the
//! group, and which workload is to run where. Each node writes its heartbeat in a
//! register of its own, so that heartbeats do not contend for the view. It runs
//! what the view assigns to it ([`reconcile`]). When a node falls silent, another
//! one judges it dead, in two steps. Its HA workloads go to a node that every
//! node would have chosen. The clauses cited as `§` are those of
//! `docs/design/groups.md`.
//!
//! # Why does a workload never run twice?
//!
//! The view gives it one holder at a time. Only the holder itself, after it has
//! reaped what ran, or the holder's death changes the holder. Death needs the
//! holder's own heartbeat register, swapped from a version that was silent for
//! `lease x (1 + drift)` on the clock of the node that judges. The holder has
//! killed everything by `lease x (1 - drift)` on its own clock, counted from
//! before that very heartbeat was sent. So it has ended before it can be judged.
//!
//! A heartbeat that is written in between changes the version, and the swap
//! fails. A heartbeat that comes later meets a conflict, and never creates the
//! register anew. A node that passed its deadline never comes back under the same
//! id.
//!
//! # What is left out on purpose
//!
//! * Processes and files, and metrics.
//! * What configs mean: the machine writes and deletes them, and does not look
//!   into them ([`Spec::content`]).
//! * Balancing of load: an operator moves workloads.
//! * Quorum as a defence against split views. There is one view, so there is no
//!   other half. The quorum is what HAManager (Vert.x) has it for: not to run at
//!   all with too few machines.
#![no_std]

extern crate alloc;

mod bug;
mod codec;
mod config;
mod content;
mod context;
mod detector;
mod edit;
mod execute;
mod heartbeat;
mod ids;
mod node;
mod own_heartbeat;
mod placement;
mod reconcile;
mod report;
mod resume_state;
mod transitions;
mod types;
mod view;
mod view_sync;

pub use bug::{Bug, Plant};
pub use codec::{CodecError, VIEW_BYTES_MAX, VIEW_BYTES_ROOM};
pub use config::{Config, ConfigError};
pub use edit::{Draft, Refusal, Request};
pub use heartbeat::{Heartbeat, STATUS_BYTES_MAX};
pub use ids::{Digest, Keys, NodeId};
pub use node::Node;
pub use reconcile::{
    Action, BACKOFF, BACKOFF_MAX, HEALTHY, HEALTHY_BACKOFFS, Job, Jobs, Phase, STARTS_MAX,
    StartBackoff, Times, reconcile,
};
pub use resume_state::{ResumeState, is_one_clock, may_resume};
pub use types::{Command, Event, Input, KeyPage, Order, Output, Run, Why};
pub use view::{
    Assignment, DEPARTURES_MAX, Departure, INSTANCES_MAX, LABELS_MAX, MARKS_MAX, MEMBERS_MAX,
    Member, Place, Spec, Target, View,
};
pub use view_sync::COMMANDS_MAX;
