//! Looking at a log without touching it.
//!
//! Neither function takes the lock or writes anything. While a server runs
//! they may see a write half done, as torn.

use std::path::Path;

use tenure_core::alpo::{Identity, LogId, Position, Recovered};

use super::disk::{Directory, Disk};
use super::error::WalError;
use super::log::{check_identity, list};
use super::recover::{self, Item};
use super::tail::Tail;

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
    let listing = list(&disk)?;
    let identity = check_identity(&disk, &listing, None)?;
    recover::read(&disk, &identity, &listing, &mut see)?;
    Ok(identity)
}

/// Checks all of a log: whether a server could start from it.
///
/// # Errors
/// As [`Wal::open`](super::Wal::open), except that the directory may be in
/// use.
pub fn verify(dir: &Path) -> Result<Report, WalError> {
    verify_on(&Directory::look(dir)?).map(|(report, _)| report)
}

/// [`verify`] on any disk, with what a server would start from.
///
/// # Errors
/// As there.
pub fn verify_on(disk: &dyn Disk) -> Result<(Report, Recovered), WalError> {
    let listing = list(disk)?;
    let identity = check_identity(disk, &listing, None)?;
    let mut log = recover::read(disk, &identity, &listing, &mut |_| {})?;
    let (recovered, mut problem) = recover::assemble(disk, &identity, &mut log)?;
    if problem.is_none() && log.tail.previous != Position::ZERO {
        // Not needed today, but it is kept for the day when it is.
        problem = recover::snapshot(disk, &identity, log.tail.previous).err();
    }
    let report = Report {
        identity,
        tail: log.tail,
        segments: listing.segments.len(),
        groups: log.groups,
        snapshot: recovered.snapshot.as_ref().map(|snapshot| snapshot.last),
        first: recovered.entries.first().map(|entry| entry.id),
        entries: recovered.entries.len(),
        torn: log.torn,
        spare_used: problem,
    };
    Ok((report, recovered))
}
