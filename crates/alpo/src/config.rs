//! How a server behaves: times, sizes, options.
//!
//! All servers of a cluster must agree on `election_timeout`, `drift`, `lease_reads`
//! and `fast_detection`: one server's stickiness is what another's lease
//! rests on. The driver makes sure of it when servers meet.

use core::fmt;
use core::time::Duration;

use tenure_core::time::Drift;

#[cfg(feature = "planted-bugs")]
use super::Bug;
use super::codec::{Checksum, crc32c_append};
use super::entry::ClusterVersion;

/// Settings of one server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The least time without a word from a leader before somebody may stand
    /// for election; each wait is drawn between this and twice this. Several
    /// times the round trip and the sync of a disk. 20 ms to 60 s.
    pub election_timeout: Duration,
    /// How often an idle leader is heard of; at most a third of
    /// `election_timeout`.
    pub heartbeat: Duration,
    /// How far the rate of any clock may be off.
    pub drift: Drift,
    /// Whether a leader may answer reads on the strength of its last
    /// confirmed round. Excludes `fast_detection`.
    pub lease_reads: bool,
    /// Whether a broken connection to the leader shortens the wait.
    /// Excludes `lease_reads`.
    pub fast_detection: bool,
    /// Requests to one peer that may be unanswered (in flight).
    pub max_inflight: usize,
    /// Bytes of entries in one request, about.
    pub append_bytes: usize,
    /// Bytes of a snapshot in one request, at most.
    pub chunk_bytes: usize,
    /// Bytes of entries that are uncommitted and of proposals that wait for
    /// their turn, together; what is beyond is refused with
    /// [`Refusal::Busy`](super::Refusal::Busy).
    pub uncommitted_bytes: usize,
    /// How long a batch may wait for a leader's own disk, while those of the
    /// others are enough, before it hands over to one of them. At least 5 s.
    pub disk_lag: Duration,
    /// Bytes of entries that may wait for a disk. Beyond, a leader hands over
    /// or refuses proposals, and others leave entries unanswered.
    pub disk_bytes: usize,
    /// Proposals and reads that may wait for a new leader to become ready, or
    /// for a hand-over to end; of proposals at most `uncommitted_bytes`.
    pub backlog_requests: usize,
    /// Reads that may wait for a round of a majority, or be part of one. The
    /// machine does not know callers: the driver leaves each of them some places.
    pub max_pending_reads: usize,
    /// How many bytes of applied entries make the next snapshot due, about: more than
    /// half of this, and at most half as much again. Where the last snapshot had more
    /// bytes than this, its size counts instead.
    pub snapshot_threshold_bytes: usize,
    /// Entries kept behind a snapshot for servers that are a little late (hashicorp/raft:
    /// `TrailingLogs`; etcd: `SnapshotCatchUpEntries`); of these at most half of what makes a snapshot due.
    pub kept_entries: u64,
    /// What this server speaks: all versions up to this one. Less than this
    /// release does only to be taken for an earlier one.
    pub version: ClusterVersion,
    /// The checksum of snapshots: CRC-32C, by whatever way is quickest here.
    /// All ways give the same numbers.
    pub checksum: Checksum,
    /// The mistake to make, if any.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<Bug>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            election_timeout: Duration::from_secs(1),
            heartbeat: Duration::from_millis(100),
            drift: Drift::DEFAULT,
            lease_reads: false,
            fast_detection: true,
            max_inflight: 64,
            append_bytes: 512 * 1024,
            chunk_bytes: 512 * 1024,
            uncommitted_bytes: 64 * 1024 * 1024,
            disk_lag: Duration::from_secs(10),
            disk_bytes: 256 * 1024 * 1024,
            backlog_requests: 4_096,
            max_pending_reads: 65_536,
            snapshot_threshold_bytes: 64 * 1024 * 1024,
            kept_entries: 1_024,
            version: ClusterVersion::NEWEST,
            checksum: crc32c_append,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

/// Why settings were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// `election_timeout` is out of range.
    Timeout(Duration),
    /// `heartbeat` is zero or more than a third of `election_timeout`.
    Heartbeat {
        /// What it is.
        heartbeat: Duration,
        /// The most it may be.
        most: Duration,
    },
    /// `lease_reads` and `fast_detection` are both on.
    LeaseAndDetection,
    /// Something that must not be zero is, or a request would not fit a
    /// frame.
    Size(&'static str),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(found) => {
                write!(
                    f,
                    "expected an election timeout of 20 ms to 60 s, found {found:?}"
                )
            }
            Self::Heartbeat { heartbeat, most } => write!(
                f,
                "expected a heartbeat of at most a third of the election timeout \
                 ({most:?}), found {heartbeat:?}"
            ),
            Self::LeaseAndDetection => f.write_str(
                "lease reads and fast detection exclude each other: a shortened \
                 election may depose a leader that still counts on its lease",
            ),
            Self::Size(name) => write!(f, "{name} is out of range"),
        }
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Checks that the settings fit each other.
    ///
    /// # Errors
    /// The first that does not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let range = Duration::from_millis(20)..=Duration::from_secs(60);
        if !range.contains(&self.election_timeout) {
            return Err(ConfigError::Timeout(self.election_timeout));
        }
        let most = self.election_timeout / 3;
        if self.heartbeat.is_zero() || self.heartbeat > most {
            let heartbeat = self.heartbeat;
            return Err(ConfigError::Heartbeat { heartbeat, most });
        }
        if self.lease_reads && self.fast_detection {
            return Err(ConfigError::LeaseAndDetection);
        }
        let frame = super::codec::MAX_FRAME_BYTES / 4;
        for (name, fits) in [
            ("max_inflight", self.max_inflight > 0),
            ("append_bytes", (1..=frame).contains(&self.append_bytes)),
            ("chunk_bytes", (1..=frame).contains(&self.chunk_bytes)),
            ("uncommitted_bytes", self.uncommitted_bytes > 0),
            ("disk_lag", self.disk_lag >= Duration::from_secs(5)),
            ("disk_bytes", self.disk_bytes > 0),
            ("backlog_requests", self.backlog_requests > 0),
            ("max_pending_reads", self.max_pending_reads > 0),
            (
                "snapshot_threshold_bytes",
                self.snapshot_threshold_bytes > 0,
            ),
            ("version", self.version <= ClusterVersion::NEWEST),
        ] {
            if !fits {
                return Err(ConfigError::Size(name));
            }
        }
        Ok(())
    }

    /// For how long a server that has heard a leader under these settings
    /// must refuse to elect another, because that leader may answer reads for
    /// as long without asking again; nothing if none does. A directory keeps
    /// the longest that it may owe across restarts, whatever the settings are
    /// by then (`docs/design/identity.md`).
    pub fn no_vote_time(&self) -> Duration {
        if self.lease_reads {
            self.drift.lengthen(self.election_timeout)
        } else {
            Duration::ZERO
        }
    }

    /// Whether this mistake is to be made; never, in a release.
    #[cfg(feature = "planted-bugs")]
    pub(super) fn planted(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    /// Whether this mistake is to be made; never, in a release.
    #[cfg(not(feature = "planted-bugs"))]
    pub(super) const fn planted(&self, _bug: super::Bug) -> bool {
        false
    }
}
