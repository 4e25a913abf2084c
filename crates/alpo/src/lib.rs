//! ALPO: a replicated log.
//!
//! A few servers keep the same log of entries, and through it the same state,
//! although some of them crash, lose messages, or are cut off. One leads: it
//! appends, the others follow, and what a majority has on disk is committed and
//! stays.
//!
//! When the leader is gone the others elect another, with one vote each per
//! *term*, and only a server whose log has everything that was committed can
//! win. `docs/design/alpo.md` has the rules by their numbers (T1, E4, H7, …),
//! the flaws in the original drafts (H1 to H18), their fixes, and the tests of each.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Node`] | one server as a machine: follower, candidate or leader |
//! | [`Envelope`], [`Request`], [`Reply`] | what servers say to each other |
//! | [`Entry`], [`Log`], [`Position`] | the log |
//! | [`State`] | the replicated state machine: registers, the user log, sessions |
//! | [`Batch`], [`HardState`], [`Recovered`] | persistent state: what is written to disk, and what recovery returns |
//! | [`Membership`], [`quorum`] | the cluster's configuration (voters and learners), and majorities |
//! | [`Bootstrap`] | who may vote at all |
//! | [`invariants`] | what must be true of a server and of each of its steps |
//! | [`codec`] | all of it as bytes |
//! | [`wal`] | the log on disk: formats, recovery, what may be removed |
//! | [`Bug`] | planted bugs, which test that the checkers find them |
//!
//! Left out: joint consensus, sharding, and speculative execution.
#![no_std]

extern crate alloc;

mod bootstrap;
mod bug;
mod chunks;
pub mod codec;
mod config;
mod durable;
mod entry;
mod ids;
pub mod invariants;
mod known_starts;
mod log;
mod membership;
mod message;
mod node;
pub mod quorum;
mod session_owner;
mod state;
pub mod wal;

pub use bootstrap::{Bootstrap, Hello, JoinError, MemberDisks, digest};
pub use bug::Bug;
pub use config::{Config, ConfigError};
pub use durable::{Batch, HardState, Identity, Recovered, Snapshot, Vote};
pub use entry::{
    Binding, ClusterVersion, Command, Deletion, Entries, Entry, LogTime, MAX_ENTRY_BYTES,
    Operation, Outcome, Payload, Serial, SessionId,
};
pub use ids::{ClusterId, LogId, MAX_NUMBER, MAX_TERM_LEAP, Position, Rank, ServerId, StorageId};
pub use known_starts::{CopyEvidence, DiskProgress, KnownStarts, Start, StartVerdict};
pub use log::{Forgotten, Log};
pub use membership::{Change, ChangeError, MAX_MEMBERS, Member, Membership, VotingStatus};
pub use message::{Body, CompareChecksums, Envelope, Reply, Request, SenderRole};
pub use node::{
    Answer, ClientRequest, Discarded, Event, Fault, Input, MAX_SESSION_ENDS, MAX_SNAPSHOT_BYTES,
    MessageError, Node, Output, Query, QueryResult, QuotaExceeded, Refusal, ServerList, Status,
    StepDownReason,
};
pub use session_owner::{Fingerprint, OpenSession, OwnershipProof, SessionOpener, SessionOwner};
pub use state::{
    Bound, DecodedSnapshot, Gap, Gaps, JUMP, Limits, MAX_BOUND, MAX_WINDOW, NotRestorable,
    ReceivedSnapshot, Restored, Restoring, SerialStatus, Session, Sessions, SnapshotError, State,
    StateChecksum, StateCopy, TERM_STEP, TooOld, UserLog, digest_of,
};
