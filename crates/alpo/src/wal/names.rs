//! How the files of a data directory are called.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tenure_core::ids::Term;

use crate::Position;

/// The file that says who the server is.
pub(super) const IDENTITY: &str = "identity";
/// What a file is called until it is complete and synced.
const UNFINISHED: &str = ".tmp";

/// A segment's name: 16 hexadecimal digits.
pub(super) fn segment(number: u64) -> String {
    format!("{number:016x}.wal")
}

/// A snapshot's name: the id and the term of its last entry.
pub(super) fn snapshot(last: Position) -> String {
    format!("snapshot-{:016x}-{:016x}.snap", last.id, last.term.get())
}

/// A file that is not complete yet.
pub(super) fn unfinished(name: &str) -> String {
    format!("{name}{UNFINISHED}")
}

/// What is in a directory; files that are none of the log's are left out.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Listing {
    pub(super) identity: bool,
    /// Ascending.
    pub(super) segments: Vec<u64>,
    /// Ascending by id.
    pub(super) snapshots: Vec<Position>,
    /// Left behind by a crash.
    pub(super) unfinished: Vec<String>,
}

impl Listing {
    /// Whether there is a file that says whose log it is.
    pub const fn has_identity(&self) -> bool {
        self.identity
    }

    /// The segments in order: the number of each, and its file.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = (u64, String)> {
        self.segments
            .iter()
            .map(|number| (*number, segment(*number)))
    }

    pub(super) fn of(names: Vec<String>) -> Self {
        let mut listing = Self::default();
        for name in names {
            if name == IDENTITY {
                listing.identity = true;
            } else if let Some(number) = name.strip_suffix(".wal").and_then(hex) {
                listing.segments.push(number);
            } else if let Some(position) = parse_snapshot(&name) {
                listing.snapshots.push(position);
            } else if name.strip_suffix(UNFINISHED).is_some_and(is_ours) {
                listing.unfinished.push(name);
            }
        }
        listing.segments.sort_unstable();
        listing
            .snapshots
            .sort_unstable_by_key(|at| (at.id, at.term));
        listing.unfinished.sort_unstable();
        listing
    }
}

fn is_ours(name: &str) -> bool {
    name == IDENTITY
        || name.strip_suffix(".wal").and_then(hex).is_some()
        || parse_snapshot(name).is_some()
}

fn parse_snapshot(name: &str) -> Option<Position> {
    let stem = name.strip_prefix("snapshot-")?.strip_suffix(".snap")?;
    let (id, term) = stem.split_once('-')?;
    Some(Position::new(Term::new(hex(term)?)?, hex(id)?))
}

fn hex(digits: &str) -> Option<u64> {
    let canonical = digits.len() == 16
        && digits
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    canonical
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}
