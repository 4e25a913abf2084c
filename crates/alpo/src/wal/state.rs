//! Reading the state in a snapshot.
//!
//! The log takes a snapshot for bytes with a checksum. A server that starts
//! reads them as a state, and cannot start if they are none.

use alloc::format;
use alloc::string::ToString as _;

use crate::{Snapshot, SnapshotError, State};

use super::Format;
use super::error::{DamageReport, Refused};
use super::header::SNAPSHOT_HEADER_BYTES;
use super::names;

/// The state that a server starts from, read as the server reads it.
///
/// # Errors
/// [`Refused::Later`] if a later release wrote it, [`Refused::Damaged`] if no
/// server starts from it.
pub fn state(format: &Format, snapshot: &Snapshot) -> Result<State, Refused> {
    State::decode_with(format.sum, &snapshot.bytes).map_err(|error| {
        let flaw = DamageReport {
            file: names::snapshot(snapshot.last),
            offset: SNAPSHOT_HEADER_BYTES as u64,
            expected: format!("the state at {}, which a server starts from", snapshot.last),
            found: error.to_string(),
        };
        match error {
            SnapshotError::Version(_) => Refused::Later(flaw),
            SnapshotError::Checksum
            | SnapshotError::Hash
            | SnapshotError::Decode(_)
            | SnapshotError::Last(_) => Refused::Damaged(flaw),
        }
    })
}
