//! The write-ahead log: the formats of its files, recovery, and how a torn write is
//! told from damage.
//!
//! All IO goes through the trait [`Disk`], which only moves bytes. In production it is
//! a directory (`crates/server/src/wal/`). In the simulator it is in memory, loses what
//! was not synced, tears writes, flips bits and fills up. Both run the code of this
//! module, so the simulator can find its mistakes.
//!
//! [`Wal`] takes the [`Batch`](crate::Batch)es of the machine and gives
//! back, after a restart, a [`Recovered`](crate::Recovered) that
//! contains everything that was acknowledged and is a prefix of everything
//! that was handed in; or it refuses and says why. It never guesses.
//!
//! | module | what it holds |
//! |---|---|
//! | `disk` | the few things asked of a file system |
//! | `record`, `group` | what is in a segment; how a torn write is told from damage |
//! | `header`, `format` | how each file begins, and whose it is |
//! | `names` | how the files are called |
//! | `tail` | what may follow what |
//! | `segment_scan`, `recover` | reading |
//! | `log` | writing |
//! | `error` | why bytes are refused |
//!
//! Left out on purpose: threads, compression (the log is short-lived),
//! encryption (the file system's), and repair. A server whose log is damaged
//! is replaced by an empty one; the others have everything.
//!
//! The formats are laid down byte by byte in `docs/reference/formats.md`.

mod disk;
mod error;
mod format;
mod group;
mod header;
mod log;
mod names;
mod record;
mod recover;
mod segment_scan;
mod state;
mod tail;

pub use disk::{Disk, DiskFile};
pub use error::{DamageReport, Refused, WalError};
pub use format::Format;
pub use header::{FORMAT_VERSION, SegmentStart, snapshot_header};
pub use log::{Opened, Options, Wal};
pub use names::Listing;
pub use record::{Checksum, Record};
pub use recover::{Item, Log, LogReader, assemble, check_identity, identity, list, read, snapshot};
pub use segment_scan::{ReadBuffers, ScannedSegment, scan_segment};
pub use state::state;
pub use tail::Tail;
