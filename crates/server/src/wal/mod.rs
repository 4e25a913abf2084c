//! What a server must not forget, on a disk that may be cut off at any moment.
//!
//! A [`Wal`] (write-ahead log) lives in a directory of its own:
//!
//! ```text
//! identity                                   whose log this is
//! lock                                       held by the process that uses it
//! 0000000000000001.wal, …                    the segments
//! snapshot-<id>-<term>.snap                  the last two snapshots
//! prepared-<n>                               a snapshot that the log is to get
//! ```
//!
//! It takes the [`Batch`](tenure_alpo::Batch)es of the machine and gives
//! back, after a restart, a [`Recovered`](tenure_alpo::Recovered) that
//! contains everything that was acknowledged and is a prefix of everything
//! that was handed in; or it refuses, and says which file, where in it, what
//! was expected, what was found, and what to do. It never guesses.
//!
//! What is in the files, and what a crash or damage makes of them, is decided
//! in [`tenure_alpo::wal`], which the simulator runs on disks of its own.
//!
//! Here is the rest, one idea per file: `disk` is the few things asked of a
//! file system, and a directory that does them; `claim` sees that it stays this
//! process's; `spare` prepares its next segment, and `snapshot_files` writes its
//! snapshots; `log` is the log in it; `read` reads a long one on two threads;
//! `writer` is the thread that makes many batches share a sync; `inspect` looks
//! without touching; `error` says what to do next.

mod claim;
mod disk;
mod error;
mod inspect;
mod log;
mod read;
mod snapshot_files;
mod spare;
mod writer;

pub(crate) use disk::LOCK;
pub use disk::{Directory, Disk, DiskFile, holder, refuse_fuse};
pub use error::{Fault, WalError};
pub use inspect::{Report, inspect, verify, verify_on};
pub use log::{Options, Wal, identity};
pub(crate) use snapshot_files::SnapshotWriter;
pub use tenure_alpo::wal::{FORMAT_VERSION, Item, Record, SegmentStart, Tail};
pub use writer::{Ended, InlineWrite, Writer};
