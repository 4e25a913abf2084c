//! Looking at a log without touching it.
//!
//! Neither function takes the lock or writes anything. While a server runs
//! they may see a write half done, as torn.

use std::path::Path;

use tenure_alpo::{Identity, LogId, Position, Recovered, Snapshot};

use tenure_alpo::wal::{self, Format, Item, Listing, Tail};

use super::disk::{Directory, Disk};
use super::error::WalError;
use super::log;
use super::read;

/// What [`verify`] found.
#[derive(Debug)]
pub struct Report {
    /// Whose log it is.
    pub identity: Identity,
    /// What it says in sum.
    pub tail: Tail,
    /// How many segments there are.
    pub segments: usize,
    /// How many groups.
    pub groups: u64,
    /// Up to where the snapshot goes that a server would start from.
    pub snapshot: Option<Position>,
    /// The first entry after it, if there is one.
    pub first: Option<LogId>,
    /// How many entries there are after it.
    pub entries: usize,
    /// A write that never finished and will be cut, and where.
    pub torn: Option<String>,
    /// What is wrong although a server could start: a snapshot is damaged,
    /// and an older one with the log after it takes its place.
    pub spare_used: Option<WalError>,
}

/// Walks through a log and shows everything in it, in order, up to the end or
/// the first damage.
///
/// # Errors
/// As [`Wal::open`](super::Wal::open), except that the directory may be in
/// use.
pub fn inspect(dir: &Path, mut see: impl FnMut(Item<'_>)) -> Result<Identity, WalError> {
    let disk = Directory::look(dir)?;
    let (listing, format) = look(&disk)?;
    read::read(&disk, &format, &listing, &mut see)?;
    Ok(*format.identity())
}

/// Checks all of a log: whether a server could start from it. So the state in
/// the snapshot is read as well.
///
/// # Errors
/// As [`Wal::open`](super::Wal::open), except that the directory may be in
/// use. [`WalError::Damaged`], or [`WalError::Later`] if a later release wrote
/// it, if no server can start from the state.
pub fn verify(dir: &Path) -> Result<Report, WalError> {
    let disk: &dyn Disk = &Directory::look(dir)?;
    let (mut report, recovered) = verify_on(disk)?;
    let format = log::format(&report.identity);
    let read = |snapshot: &Snapshot| {
        let state = wal::state(&format, snapshot).map(drop);
        state.map_err(|refused| WalError::refused(dir, refused))
    };
    if let Some(snapshot) = &recovered.snapshot {
        read(snapshot)?;
    }
    let previous = report.tail.previous;
    if report.spare_used.is_none() && previous != Position::ZERO {
        let older = wal::snapshot(disk, &format, previous);
        let older = older.map_err(|error| WalError::of(dir, error));
        report.spare_used = older.and_then(|older| read(&older)).err();
    }
    Ok(report)
}

/// Checks the log on any disk, and gives what a server would start from. The
/// bytes of a snapshot are not read as a state.
///
/// # Errors
/// As [`verify`].
pub fn verify_on(disk: &dyn Disk) -> Result<(Report, Recovered), WalError> {
    let dir = disk.path("");
    let failed = |error| WalError::of(&dir, error);
    let (listing, format) = look(disk)?;
    let mut log = read::read(disk, &format, &listing, &mut |_| {})?;
    let (recovered, mut problem) = wal::assemble(disk, &format, &mut log).map_err(failed)?;
    if problem.is_none() && log.tail.previous != Position::ZERO {
        // Not needed today, but it is kept for the day when it is.
        problem = wal::snapshot(disk, &format, log.tail.previous).err();
    }
    let report = Report {
        identity: *format.identity(),
        tail: log.tail,
        segments: listing.segments().len(),
        groups: log.groups,
        snapshot: recovered.snapshot.as_ref().map(|snapshot| snapshot.last),
        first: recovered.entries.first().map(|entry| entry.id),
        entries: recovered.entries.len(),
        torn: log.torn,
        spare_used: problem.map(failed),
    };
    Ok((report, recovered))
}

/// What is there, and whose it is.
fn look(disk: &dyn Disk) -> Result<(Listing, Format), WalError> {
    let said = wal::list(disk).and_then(|listing| {
        let identity = wal::check_identity(disk, crc32c::crc32c_append, &listing, None)?;
        Ok((listing, log::format(&identity)))
    });
    said.map_err(|error| WalError::of(&disk.path(""), error))
}
