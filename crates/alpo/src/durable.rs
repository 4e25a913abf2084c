//! What has to be on disk, and in which order.
//!
//! *Durable* means synced: `fsync` or `fdatasync` has returned.
//!
//! The machine hands out numbered [`Batch`]es and hears which of them are
//! durable. A batch is atomic in no other sense than this: its parts take
//! effect in the order in which they are listed, and after a crash a prefix
//! of everything that was handed out is there, at least up to the last batch
//! that was acknowledged. Nothing that promises durability leaves the machine
//! before its batch was acknowledged, so a driver that does things in any
//! order, or groups any number of batches into one sync, is correct.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use tenure_core::ids::Term;

use super::entry::Entries;
use super::ids::{ClusterId, LogId, Position, Rank, ServerId, StorageId};

/// Who this server is; written before it first speaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its number in it.
    pub server: ServerId,
    /// Its data directory.
    pub storage: StorageId,
}

/// A vote: to whom it was given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Vote {
    /// The candidate's number, with the rank it had.
    pub rank: Rank,
    /// The candidate's disk. `None` in a record that does not name it, which
    /// is how cluster version 1 writes it: which of two disks with that
    /// number has the vote is not known any more.
    pub storage: Option<StorageId>,
}

impl Vote {
    /// Whether it was given to this number with this disk. A vote whose disk
    /// is not known was given to none: to give it again might give it to a
    /// second candidate of one term.
    pub fn is_of(&self, server: ServerId, storage: StorageId) -> bool {
        self.rank.server == server && self.storage == Some(storage)
    }
}

impl fmt::Display for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.rank, f)
    }
}

/// What a server must never forget of elections (`docs/design/alpo.md`, H1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct HardState {
    /// The highest term seen: the lowest whose leader is acceptable.
    pub term: Term,
    /// The highest term in which a leader was heard; never above `term`.
    /// Not needed for safety, and no measure of completeness (H4).
    pub last_reign: Term,
    /// Who has this server's vote in `term` (`votedFor` of Raft).
    pub vote: Option<Vote>,
}

impl HardState {
    /// Whether it is of the form that cluster version 2 writes.
    pub fn names_disk(&self) -> bool {
        self.vote.is_some_and(|vote| vote.storage.is_some())
    }

    /// The same as cluster version 1 writes it: the vote names no disk.
    #[must_use]
    pub fn without_disk(self) -> Self {
        let vote = self.vote.map(|vote| Vote {
            storage: None,
            ..vote
        });
        Self { vote, ..self }
    }
}

/// A snapshot: everything up to and including `last`, as bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The last entry it contains.
    pub last: Position,
    /// The state, as [`State::encode`](super::State::encode) wrote it. A
    /// vector that is shared, and not a slice, so that it need not be copied
    /// to be shared, nor its memory be thrown away after.
    pub bytes: Arc<Vec<u8>>,
}

/// What is to be made durable next.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Batch {
    /// Its number; from 1, without gaps, within the life of a process.
    pub number: u64,
    /// First: this replaces the hard state.
    pub hard: Option<HardState>,
    /// Then: this snapshot is kept. Entries up to its last one are needed no
    /// more, and if `reset` is set none of the log is.
    pub snapshot: Option<Snapshot>,
    /// With the snapshot, the whole log goes: it had another entry where
    /// the snapshot ends, or ended before it.
    pub reset: bool,
    /// Then: entries from this id on are gone.
    pub truncate: Option<LogId>,
    /// Then: these are appended.
    pub entries: Entries,
}

impl Batch {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.hard.is_none()
            && self.snapshot.is_none()
            && self.truncate.is_none()
            && self.entries.is_empty()
    }
}

/// What a disk gave back after a restart.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Recovered {
    /// The last hard state.
    pub hard: HardState,
    /// The newest snapshot, if there is any.
    pub snapshot: Option<Snapshot>,
    /// The entries after it, without gaps.
    pub entries: Entries,
    /// Up to here the log is known to be committed: where the newest snapshot
    /// ends, even if that one could not be read and an older one is given
    /// here. 0 if there was none. A server that knew less might take its next
    /// snapshot below one that its log names already.
    pub committed: LogId,
    /// How long a server with this disk refuses to vote after its start, as it is kept
    /// beside the log: a leader that it answered before may still hold a read lease. Zero
    /// if none ever read by a lease. See [`Config::no_vote_time`](super::Config::no_vote_time).
    pub no_vote_time: Duration,
}
