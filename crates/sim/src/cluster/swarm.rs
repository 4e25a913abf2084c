//! What kind of world, drawn from the seed.
//!
//! Each run has its own mixture of faults and of sizes ("swarm testing"): a
//! world in which everything happens at once hides what only shows when some
//! things do *not* happen.

use std::time::Duration;

use tenure_alpo::{Config, Limits};
use tenure_core::rng::Rng;
use tenure_core::time::Drift;

use super::Options;
use super::options::Kinds;
use crate::clock::{MILLI, SECOND};

/// One world.
#[derive(Clone, Debug)]
pub(super) struct Swarm {
    pub(super) servers: usize,
    /// Those of them that the cluster is founded with.
    pub(super) founders: usize,
    /// Their disks are blank, and they found it themselves.
    pub(super) blank: bool,
    pub(super) pipeline: u64,
    pub(super) config: Config,
    pub(super) limits: Limits,
    /// How the log is kept on disk: in segments so short that there are many.
    pub(super) log: tenure_alpo::wal::Options,
    /// How long faults last.
    pub(super) storm: u64,
    /// One way through the network, when nothing is wrong.
    pub(super) latency: u64,
    /// In 1,000 messages, how many are lost, late, doubled.
    pub(super) loss: u64,
    pub(super) late: u64,
    pub(super) doubled: u64,
    /// How long a sync takes.
    pub(super) sync: u64,
    /// The mean time between two faults.
    pub(super) pace: u64,
    /// How often a client asks for something.
    pub(super) think: u64,
    pub(super) session_ttl: u64,
    pub(super) drift: Vec<i64>,
    /// How fast the clients' clocks are.
    pub(super) client_drift: Vec<i64>,
    pub(super) kinds: Kinds,
    /// Nobody who wins an election keeps its connections for long.
    pub(super) fickle: bool,
    /// Operators change the members whatever else goes on.
    pub(super) restless: bool,
    /// One server cannot open connections when the rest is healed (H7).
    pub(super) mute: bool,
}

fn draw_log(rng: &mut Rng) -> tenure_alpo::wal::Options {
    tenure_alpo::wal::Options {
        segment_bytes: [2_048, 8_192, 65_536][rng.below(3) as usize],
    }
}

impl Swarm {
    pub(super) fn draw(rng: &mut Rng, options: &Options) -> Self {
        let servers = options
            .servers
            .unwrap_or_else(|| [1, 2, 3, 3, 3, 4, 5, 5, 6, 7][rng.below(10) as usize]);
        let kinds = options.allow(Kinds::draw(rng, servers));
        let founders = match kinds.members && servers > 3 {
            true => (servers - rng.between(0, 3) as usize).max(2),
            false => servers,
        };
        let lease_reads = rng.chance(25);
        let latency = rng.between(MILLI / 5, 8 * MILLI);
        let sync = rng.between(MILLI / 10, 10 * MILLI);
        // Some clusters are set up so tightly that candidates often meet.
        let timeout = if rng.chance(30) {
            Duration::from_nanos(12 * latency + 6 * sync).max(Duration::from_millis(20))
        } else {
            Duration::from_millis(rng.between(200, 1_000))
        };
        let log_bytes = [1_000_000, 2_000][usize::from(rng.chance(60))];
        let config = Config {
            election_timeout: timeout,
            heartbeat: timeout / rng.between(4, 8) as u32,
            lease_reads,
            fast_detection: !lease_reads && rng.chance(70),
            max_inflight: rng.between(1, 8) as usize,
            append_bytes: [1, 200, 65_536][rng.below(3) as usize],
            chunk_bytes: [100, 700, 65_536][rng.below(3) as usize],
            uncommitted_bytes: [2_000, 1_000_000][rng.below(2) as usize],
            backlog_requests: 64,
            max_pending_reads: 64,
            snapshot_threshold_bytes: log_bytes,
            kept_entries: rng.between(0, 16),
            #[cfg(feature = "planted-bugs")]
            planted: options.planted,
            ..Config::default()
        };
        let most = i64::from(Drift::DEFAULT.ppm()) * 9 / 20;
        let drift = |rng: &mut Rng| rng.between(0, 2 * most as u64) as i64 - most;
        let clients = rng.between(1, 5) as usize;
        Self {
            servers,
            founders,
            blank: rng.chance(30),
            pipeline: rng.between(1, 4),
            config,
            limits: Limits {
                user_log_bytes: [1_000, 1_000_000][rng.below(2) as usize],
                sessions: 64,
                changes: 32,
                // Not drawn, so that the seeds before it keep their meaning.
                checksum_every: [1, 16, 64][servers % 3],
            },
            log: draw_log(rng),
            storm: options.seconds * SECOND,
            latency,
            loss: rng.below(80),
            late: rng.below(100),
            doubled: rng.below(50),
            sync,
            // Some worlds have no rest at all.
            pace: if rng.chance(25) {
                rng.between(SECOND / 20, SECOND / 3)
            } else {
                rng.between(SECOND / 2, 4 * SECOND)
            },
            think: rng.between(50 * MILLI, 400 * MILLI),
            session_ttl: rng.between(2, 20) * SECOND,
            drift: (0..servers).map(|_| drift(rng)).collect(),
            client_drift: (0..clients).map(|_| drift(rng)).collect(),
            kinds,
            fickle: kinds.snipers && rng.chance(45),
            restless: kinds.members && rng.chance(40),
            mute: servers >= 3 && !kinds.members && rng.chance(30) && kinds.partitions,
        }
    }
}
