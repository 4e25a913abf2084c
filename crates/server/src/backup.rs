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
//! others then join as usual. Everything that was in the backup is there; what
//! the old cluster may have given out since (ids, terms, epochs) is jumped
//! over, and who led there is waited for (`State::restored` in the core says
//! how, and why). A server that may still run in the old cluster is not part of
//! the new one.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use tenure_alpo::codec::crc32c;
use tenure_alpo::{
    Batch, ClusterId, HardState, Identity, MemberDisks, Membership, NotRestorable, Position,
    Restored, Restoring, ServerId, Snapshot, State, StorageId, TERM_STEP, digest,
};
use tenure_core::ids::Key;
use tenure_runtime::clock;

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
    /// What the old cluster may have given out cannot be jumped over.
    #[error(transparent)]
    Jump(#[from] NotRestorable),
    /// The data directory cannot be used.
    #[error("nothing was restored: {error}{again}", error = .0, again = again(.0))]
    Disk(#[from] WalError),
}

/// What to do besides, where the directory could not be written.
const fn again(error: &WalError) -> &'static str {
    match error {
        WalError::Disk { .. } => {
            " (no server starts there before the directory is emptied and the backup restored again)"
        }
        _ => "",
    }
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

/// Whether a file that begins so may be a backup: other files need not be read whole.
#[must_use]
pub fn begins_as_backup(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
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
    // As the servers that join the new cluster will take it: a number that they
    // refuse would leave the first one alone.
    let state = State::decode_foreign(crc32c::crc32c_append, image);
    let state = state.map_err(|error| wrong(&error.to_string()))?;
    let cluster = u128::from(number(16)) | u128::from(number(24)) << 64;
    let summary = Summary {
        cluster: ClusterId::from_u128(cluster),
        last: state.applied(),
    };
    Ok((summary, state))
}

/// How a backup is restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreOptions {
    /// How often this very backup was restored, this time included.
    pub times: u64,
    /// By how much terms of elections and epochs of groups are raised.
    pub term_step: u64,
    /// The longest lease of any leader; if it is not known, the longest in
    /// the backup. An election whose own record has a longer one is held for
    /// that.
    pub longest_lease: Option<Duration>,
}

impl Default for RestoreOptions {
    /// For the first time, by [`TERM_STEP`], with the leases of the backup.
    fn default() -> Self {
        Self {
            times: 1,
            term_step: TERM_STEP,
            longest_lease: None,
        }
    }
}

/// What was made of a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoredDirectory {
    /// Whose log it is.
    pub identity: Identity,
    /// Where the log of the new cluster begins.
    pub last: Position,
    /// How many elections are held, and how many groups begin anew.
    pub elections: usize,
    /// How many groups begin anew.
    pub groups: usize,
    /// For how long, but for those with a longer lease of their own.
    pub lease: Duration,
    /// The longest lease in the backup, and the register that has it.
    pub longest: Option<(Key, Duration)>,
    /// Elections and groups that can have no leader any more: their terms
    /// could not be raised.
    pub spent: Vec<Key>,
    /// Registers of elections and groups that could not be read.
    pub unread: Vec<Key>,
}

/// Makes a data directory for `server`, alone in a new cluster that begins
/// with what is in the backup.
///
/// # Errors
/// [`RestoreError::Used`] if there is a log in the directory already,
/// [`RestoreError::Jump`] if the backup was restored too often,
/// [`RestoreError::Disk`] if it cannot be written.
pub fn restore(state: State, dir: &Path, server: ServerId) -> Result<Identity, RestoreError> {
    let made = restore_with(state, dir, server, RestoreOptions::default(), || Ok(()));
    made.map(|made| made.identity)
}

/// The same as the operator wants it. When the log is made, and before any server
/// starts in the directory, `add_files` adds what is not the log's.
///
/// # Errors
/// As there. What fails in `add_files` is a [`RestoreError::Disk`], too.
pub fn restore_with(
    state: State,
    dir: &Path,
    server: ServerId,
    options: RestoreOptions,
    add_files: impl FnOnce() -> io::Result<()>,
) -> Result<RestoredDirectory, RestoreError> {
    // Before anything is opened: to look changes nothing, and what cannot be
    // restored leaves nothing behind.
    refuse_used(dir)?;
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        let error = io::Error::other(error.to_string());
        WalError::disk(dir.to_owned(), None, "draw a number for", error)
    })?;
    let holder = u128::from_le_bytes(bits);
    let nobodys = StorageId::from_u128(0);
    anew(state.clone(), (server, nobodys), holder, options)?;
    let locked = data::lock_to_restore(dir)?;
    // A server may have founded a cluster there meanwhile.
    refuse_used(dir)?;
    let (storage, blank_directory) = data::begin_restore(locked, dir)?;
    let (identity, restored) = anew(state, (server, storage), holder, options)?;
    let members = restored.state.members().clone();
    let last = restored.state.applied();
    let mut wal = blank_directory.fill(identity, &members)?.wal;
    wal.append(&[Batch {
        number: 1,
        hard: Some(HardState {
            term: last.term,
            last_reign: last.term,
            vote: None,
        }),
        snapshot: Some(Snapshot {
            last,
            bytes: restored.state.encode().into(),
        }),
        reset: true,
        ..Batch::default()
    }])?;
    add_files().map_err(|error| WalError::disk(dir.to_owned(), None, "write in", error))?;
    data::end_restore(dir)?;
    Ok(RestoredDirectory {
        identity,
        last,
        elections: restored.elections,
        groups: restored.groups,
        lease: restored.lease,
        longest: restored.longest,
        spent: restored.spent,
        unread: restored.unread,
    })
}

/// Refuses a directory that has a log.
fn refuse_used(dir: &Path) -> Result<(), RestoreError> {
    let Some(identity) = wal::identity(dir)? else {
        return Ok(());
    };
    data::refuse_half_restored(dir)?;
    Err(RestoreError::Used {
        dir: dir.to_owned(),
        server: identity.server,
    })
}

/// The cluster that one server with this disk is, and what it begins with.
fn anew(
    state: State,
    (server, storage): (ServerId, StorageId),
    holder: u128,
    options: RestoreOptions,
) -> Result<(Identity, Restored), NotRestorable> {
    let table = MemberDisks::from([(server, storage)]);
    let cluster = digest(&table);
    let restored = state.restored(&Restoring {
        clock: data::clock(cluster),
        members: Membership::bootstrapped(table),
        times: options.times,
        term_step: options.term_step,
        longest_lease: options.longest_lease,
        holder,
        wall: clock::wall(),
    })?;
    let identity = Identity {
        cluster,
        server,
        storage,
    };
    Ok((identity, restored))
}

#[cfg(test)]
mod tests {
    use tenure_alpo::{Entry, Limits, MAX_NUMBER, Payload};
    use tenure_core::ids::Term;
    use tenure_core::time::ClockId;

    use super::*;

    #[test]
    fn what_other_servers_would_refuse_is_not_restored() {
        let backup = |time| {
            let members = Membership::bootstrapped([(ServerId::new(1)?, StorageId::from_u128(1))]);
            let mut state = State::bootstrapped(Limits::default(), ClockId::default(), members);
            let (id, term, payload) = (1, Term::new(1)?, Payload::NoOp);
            state.apply(&Entry {
                id,
                term,
                time,
                payload,
            });
            let image = state.encode();
            let header = header(ClusterId::from_u128(1), state.applied(), &image);
            Some([&header, &image[..]].concat())
        };
        let read = |time| read(&backup(time).expect("good numbers"));
        assert!(read(MAX_NUMBER).is_ok());
        let refused = read(MAX_NUMBER + 1).expect_err("a number that no server takes");
        assert!(matches!(refused, RestoreError::File(_)), "{refused}");
    }
}
