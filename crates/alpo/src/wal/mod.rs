//! The log on disk, without the disk.
//!
//! What a server must not forget goes into files: what is in them byte by
//! byte, what may follow what, what a crash can leave behind, and what is
//! damage. All of that is decided here, over a [`Disk`] that only moves
//! bytes. Production gives it a directory (`tenure::wal`), the simulator one
//! in memory that loses what was not synced, tears writes, flips bits and
//! fills up; so the code that tells a torn write from damage is the same code
//! in both, and a mistake in it is a mistake that the simulator can find.
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
//! | `header` | how each file begins |
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
pub use header::{FORMAT_VERSION, SegmentStart};
pub use log::{Opened, Options, Wal};
pub use names::Listing;
pub use record::{Checksum, Record};
pub use recover::{Item, Log, LogReader, assemble, check_identity, identity, list, read, snapshot};
pub use segment_scan::{ReadBuffers, ScannedSegment, scan_segment};
pub use state::state;
pub use tail::Tail;

use tenure_core::bug::Plant;

use crate::{Bug, Identity};

/// Whose log it is, and how its checksums are made.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    identity: Identity,
    sum: Checksum,
    planted: Plant<Bug>,
}

impl Format {
    /// The log of `identity`, with this way to work out CRC-32C.
    pub const fn new(identity: Identity, sum: Checksum) -> Self {
        Self {
            identity,
            sum,
            planted: Plant::NONE,
        }
    }

    /// Whose log it is.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The same, with a mistake that is to be made.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub const fn with_bug(self, planted: Option<Bug>) -> Self {
        Self {
            planted: Plant::of(planted),
            ..self
        }
    }
}
