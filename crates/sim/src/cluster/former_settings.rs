//! The settings before those of a world, and who still has them.

use std::time::Duration;
use tenure_alpo::Config;
use tenure_core::rng::Rng;

use super::host::Host;
use super::options::Options;
use super::swarm::Swarm;

/// What changes in turn.
pub(super) struct SettingsRollout {
    pub(super) rng: Rng,
    /// The settings before those of the world, if they change.
    pub(super) before: Option<Config>,
}

impl SettingsRollout {
    pub(super) fn draw(seed: u64, swarm: &mut Swarm, options: &Options) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0x7475_726e_7321);
        swarm.kinds.settings = options.kinds.settings && swarm.servers > 2 && rng.chance(25);
        swarm.kinds.stalls = options.kinds.stalls && rng.chance(30);
        if swarm.kinds.stalls {
            swarm.config.disk_lag = Duration::from_secs(rng.between(5, 8));
            swarm.config.disk_bytes = [3_000, 1_000_000][rng.below(2) as usize];
        }
        let before = swarm.kinds.settings.then(|| {
            let timeout = if rng.chance(70) {
                swarm.config.election_timeout * rng.between(2, 12) as u32
            } else {
                (swarm.config.election_timeout / 2).max(Duration::from_millis(20))
            };
            let lease_reads = rng.chance(80);
            Config {
                election_timeout: timeout,
                heartbeat: timeout / rng.between(4, 8) as u32,
                lease_reads,
                fast_detection: !lease_reads && rng.chance(70),
                ..swarm.config.clone()
            }
        });
        Self { rng, before }
    }

    /// Under which settings a server is started.
    pub(super) fn config<'a>(&'a self, host: &Host, world: &'a Config) -> &'a Config {
        match &self.before {
            Some(before) if host.old => before,
            _ => world,
        }
    }

    /// The least and the greatest timeout, and whether all read by leases.
    pub(super) fn timeouts(&self, world: &Config) -> (u64, u64, bool) {
        let before = self.before.as_ref().unwrap_or(world);
        let nanos = |config: &Config| config.election_timeout.as_nanos() as u64;
        let (one, two) = (nanos(before), nanos(world));
        let strictly = before.lease_reads && world.lease_reads;
        (one.min(two), one.max(two), strictly)
    }

    /// The longest silence that anybody may owe.
    pub(super) fn longest(&self, world: &Config) -> u64 {
        let before = self.before.as_ref().unwrap_or(world).no_vote_time();
        before.max(world.no_vote_time()).as_nanos() as u64
    }
}
