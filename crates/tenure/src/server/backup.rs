//! A copy of everything a cluster holds, in one file, and back.
//!
//! A backup is the applied state of the leader at one moment, after a round
//! that confirmed that it leads: everything that was acknowledged before the
//! backup was asked for is in it. The file begins with a header of 56 bytes:
//! 16 of a magic that names the version, the cluster, the term and the id of
//! the last entry, the length of what follows, its CRC-32C, and that of the
//! header before it; all numbers little-endian.
//!
//! Restoring makes the data directory of a *new* cluster of one server, which
//! others then join as usual. Registers, terms and the plain log go on where
//! they were; whoever may still run in the old cluster is not part of it.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tenure_core::alpo::codec::crc32c;
use tenure_core::alpo::{
    Batch, ClusterId, HardState, Identity, Membership, Position, ServerId, Snapshot, State, Table,
    digest,
};

use super::data;
use crate::wal::{self, WalError};

const MAGIC: &[u8; 16] = b"tenure-backup-1\n";
const HEADER_BYTES: usize = 56;

/// Why a backup cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file is not a whole and undamaged backup.
    #[error("expected a backup of a Tenure cluster, found {0}")]
    File(String),
    /// There is a log in the data directory already.
    #[error(
        "expected a data directory without a log, found the log of server {} in {}: name another \
         directory",
        .server.get(), .dir.display()
    )]
    Used {
        /// The directory.
        dir: PathBuf,
        /// Whose log it is.
        server: ServerId,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Disk(#[from] WalError),
}

/// What a backup says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Of which cluster.
    pub cluster: ClusterId,
    /// The last entry that is in it.
    pub last: Position,
}

/// The header of a backup of `image`.
pub(super) fn header(cluster: ClusterId, last: Position, image: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&cluster.to_u128().to_le_bytes());
    bytes.extend_from_slice(&last.id.to_le_bytes());
    bytes.extend_from_slice(&(image.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&crc32c(image).to_le_bytes());
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.into()
}

/// Reads a backup and checks it.
///
/// # Errors
/// [`RestoreError::File`] if it is damaged, cut short, or something else.
pub fn read(bytes: &[u8]) -> Result<(Summary, State), RestoreError> {
    let wrong = |found: &str| RestoreError::File(found.to_owned());
    let (header, image) = bytes
        .split_at_checked(HEADER_BYTES)
        .ok_or_else(|| wrong("a file that is too short"))?;
    if !header.starts_with(MAGIC) {
        return Err(wrong("another kind of file, or one of a newer version"));
    }
    let number = |at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(eight)
    };
    let crc = |at: usize| number(at - 4) >> 32;
    if u64::from(crc32c(&header[..52])) != crc(52) {
        return Err(wrong("a damaged header"));
    }
    if image.len() as u64 != number(40) {
        let (found, wanted) = (image.len() as u64, number(40));
        return Err(wrong(&if found < wanted {
            format!("{found} of {wanted} bytes: it was cut short; copy it again")
        } else {
            let more = found - wanted;
            format!(
                "{more} bytes behind its end, at {wanted}: something was added to it; copy it again"
            )
        }));
    }
    if u64::from(crc32c(image)) != crc(48) {
        return Err(wrong("damaged contents (their checksum is wrong)"));
    }
    let state = State::decode(image).map_err(|error| wrong(&error.to_string()))?;
    let cluster = u128::from(number(16)) | u128::from(number(24)) << 64;
    let summary = Summary {
        cluster: ClusterId::from_u128(cluster),
        last: state.applied(),
    };
    Ok((summary, state))
}

/// Makes a data directory for `server`, alone in a new cluster that begins
/// with what is in the backup.
///
/// # Errors
/// [`RestoreError::Used`] if there is a log in the directory already,
/// [`RestoreError::Disk`] if it cannot be written.
pub fn restore(state: State, dir: &Path, server: ServerId) -> Result<Identity, RestoreError> {
    let used = |server| RestoreError::Used {
        dir: dir.to_owned(),
        server,
    };
    // Before anything is opened: to look changes nothing.
    if let Some(identity) = wal::identity(dir)? {
        return Err(used(identity.server));
    }
    let (storage, directory) = match data::open(dir, server, wal::Options::default())? {
        data::Found::Blank(storage, directory) => (storage, directory),
        data::Found::Log(identity, ..) => return Err(used(identity.server)),
    };
    let table = Table::from([(server, storage)]);
    let identity = Identity {
        cluster: digest(&table),
        server,
        storage,
    };
    let members = Membership::founded(table);
    let last = state.applied();
    let state = state.with_members(members.clone());
    let mut wal = data::found(dir, directory, &identity, &members, wal::Options::default())?;
    if last != Position::ZERO {
        wal.append(&[Batch {
            number: 1,
            hard: Some(HardState {
                term: last.term,
                last_reign: last.term,
                vote: None,
            }),
            snapshot: Some(Snapshot {
                last,
                bytes: state.encode().into(),
            }),
            reset: true,
            ..Batch::default()
        }])?;
    }
    Ok(identity)
}
