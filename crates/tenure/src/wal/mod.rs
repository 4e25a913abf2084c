//! What a server must not forget, on a disk that may be cut off at any moment.
//!
//! A [`Wal`] (write-ahead log) lives in a directory of its own:
//!
//! ```text
//! identity                                   whose log this is
//! lock                                       held by the process that uses it
//! 0000000000000001.wal, …                    the segments
//! snapshot-<id>-<term>.snap                  the last two snapshots
//! ```
//!
//! It takes the [`Batch`](tenure_core::alpo::Batch)es of the machine and gives
//! back, after a restart, a [`Recovered`](tenure_core::alpo::Recovered) that
//! contains everything that was acknowledged and is a prefix of everything
//! that was handed in; or it refuses, and says which file, where in it, what
//! was expected, what was found, and what to do. It never guesses.
//!
//! One idea per file: `disk` is the few things asked of a file system,
//! `record` and `group` are what is in a segment and the argument how a torn
//! write is told from damage, `header` is how each file begins, `tail` is what
//! may follow what, `walk` and `recover` read, `log` writes, `writer` is the thread that
//! makes many batches share a sync, `inspect` looks without touching.
//!
//! Left out on purpose: compression (the log is short-lived), encryption (the
//! file system's), and repair. A server whose log is damaged is replaced by an
//! empty one; the others have everything.
//!
//! The formats are laid down byte by byte in `docs/formats.md`.

mod disk;
mod error;
mod group;
mod header;
mod inspect;
mod log;
mod names;
mod record;
mod recover;
mod tail;
mod walk;
mod writer;

pub use disk::{Directory, Disk, DiskFile, holder};
pub use error::{Fault, WalError};
pub use header::{FORMAT_VERSION, SegmentStart};
pub use inspect::{Report, inspect, verify, verify_on};
pub use log::{Options, Wal, identity};
pub use record::Record;
pub use recover::Item;
pub use tail::Tail;
pub use writer::{Ended, Writer};
