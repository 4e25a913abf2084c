//! What changes in turn over a cluster: the settings, one server after the
//! other, there and back; and disks that stall.
//!
//! Drawn by a generator of its own, so that worlds without it are what they
//! were. In a world of changing settings all servers begin under `before`,
//! are started again in turn under those of the world, perhaps go back, and
//! are under those of the world when everything is healed. Servers with
//! different settings do not talk, as their greetings see to it. What a
//! directory owes is kept on its disk, raised before a start and lowered when
//! it was waited out, as `tenure::server` does it.

use std::time::Duration;

use tenure_alpo::{Body, Envelope, Request, StorageId};

use super::events::Event;
use super::world::World;
use crate::clock::{MILLI, SECOND};

impl World {
    /// Plans when the settings change.
    pub(super) fn plan_turns(&mut self) {
        if !self.swarm.kinds.settings {
            return;
        }
        let storm = self.swarm.storm;
        let mut at = self.settings_rollout.rng.between(storm / 20, storm / 4);
        let mut old = false;
        while at < storm {
            // Quickly, or with time for the rest to get used to it.
            let gap =
                [20 * MILLI, SECOND / 2, 3 * SECOND][self.settings_rollout.rng.below(3) as usize];
            let first = self.settings_rollout.rng.below(self.swarm.servers as u64) as usize;
            for turn in 0..self.swarm.servers {
                let server = (first + turn) % self.swarm.servers;
                self.after(at, Event::Turn { server, old });
                at += gap / 2 + self.settings_rollout.rng.below(gap);
            }
            at += self.settings_rollout.rng.between(2 * SECOND, 15 * SECOND);
            old = !old;
        }
    }

    /// A server is started again under other settings. The leader goes last, or
    /// is forgotten: it is then that a lease of before may live on.
    pub(super) fn turn(&mut self, server: usize, old: bool) {
        let forgotten = self.leader() == Some(server) && self.settings_rollout.rng.chance(60);
        if self.healed || self.hosts[server].old == old || forgotten {
            return;
        }
        self.hosts[server].old = old;
        self.stats.settings += 1;
        let delay = 1 + self.settings_rollout.rng.below(100 * MILLI);
        self.crash(server, Some(delay));
    }

    /// The storm is over: everybody is under the settings of the world, and
    /// disks that hang are replaced by starting their servers anew.
    pub(super) fn end_turns(&mut self) {
        for server in 0..self.hosts.len() {
            let stuck = self.hosts[server].stalled_until > self.now;
            if self.hosts[server].old || stuck {
                self.crash(server, None);
            }
            self.hosts[server].old = false;
        }
    }

    /// Whether a server has refused the greetings of the process that has this
    /// disk.
    pub(super) fn are_strange(&self, sender: StorageId, server: usize) -> bool {
        let sender = self.hosts.iter().find(|host| host.storage == sender);
        sender.is_some_and(|sender| sender.old != self.hosts[server].old)
    }

    /// What a server that starts now owes, raised to what its settings owe. It
    /// is lowered when it was waited out.
    pub(super) fn owed(&mut self, server: usize) -> Duration {
        let own = self
            .settings_rollout
            .config(&self.hosts[server], &self.swarm.config)
            .no_vote_time();
        let host = &mut self.hosts[server];
        host.disk.no_vote_time = host.disk.no_vote_time.max(own);
        let owed = host.disk.no_vote_time;
        if owed > own {
            let over = host.now(self.now).boot.after(owed);
            let delay = host.true_time(over) - self.now;
            // That of the process which is about to run.
            let epoch = host.epoch + 1;
            self.after(delay, Event::WaitedOut { server, epoch });
        }
        owed
    }

    /// A server has owed what it had to.
    pub(super) fn waited_out(&mut self, server: usize, epoch: u64) {
        if self.hosts[server].epoch == epoch {
            let own = self
                .settings_rollout
                .config(&self.hosts[server], &self.swarm.config)
                .no_vote_time();
            self.hosts[server].disk.no_vote_time = own;
        }
    }

    /// How much longer a sync of so many bytes takes: on a disk that stalls
    /// by their number, sometimes for seconds, and now and then for ever.
    pub(super) fn stall(&mut self, server: usize, bytes: usize) -> u64 {
        if !self.swarm.kinds.stalls || self.healed {
            return 0;
        }
        let size = bytes as u64 * self.swarm.sync / 8_192;
        let rng = &mut self.settings_rollout.rng;
        let stall = match rng.below(600) {
            0 => 1_000 * SECOND,
            1..4 => rng.between(SECOND / 2, 12 * SECOND),
            _ => return size,
        };
        self.stats.stalled_syncs += 1;
        self.hosts[server].stalled_until = self.now + stall;
        // Whose disk hangs is likely to be ended by somebody.
        if self.swarm.kinds.crashes && self.settings_rollout.rng.chance(50) {
            let soon = self.settings_rollout.rng.below(4 * self.timeout());
            self.after(soon, Event::Snipe { server });
        }
        size + stall
    }

    /// A leader that has just offered the leadership is cut off: whichever
    /// server is elected, it does not hear of it.
    pub(super) fn cut_off_who_offers(&mut self, server: usize, envelope: &Envelope) {
        let offers = matches!(
            envelope.body,
            Body::Request {
                request: Request::TimeoutNow,
                ..
            }
        );
        let leases = self
            .settings_rollout
            .config(&self.hosts[server], &self.swarm.config)
            .lease_reads;
        if offers && leases && self.swarm.kinds.partitions && self.settings_rollout.rng.chance(50) {
            self.after(1, Event::Dethrone { server });
        }
    }
}
