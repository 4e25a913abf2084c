//! What goes wrong, at which pace, and how it ends.
//!
//! While the storm lasts, something happens every now and then: a crash, a
//! pause, a partition, a rotten record, a change of members, a hand-over.
//! Then everything is healed but perhaps one server that cannot ask, or one
//! whose disk was lost, and the cluster must work again within a bound: see
//! `recovery_checks`.

use tenure_alpo::{Change, ClientRequest, Membership, StorageId, VotingStatus};

use super::checkers::Verdict;
use super::disk::Disk;
use super::events::Event;
use super::world::World;
use crate::clock::SECOND;

impl World {
    /// Something goes wrong, or is mended.
    pub(super) fn fault(&mut self) -> Verdict {
        if self.healed {
            return Ok(());
        }
        let next = self
            .rng
            .between(self.swarm.pace / 4, self.swarm.pace * 7 / 4);
        self.after(next, Event::Fault);
        if self.are_two() {
            return Ok(());
        }
        let kinds = self.swarm.kinds;
        if self.swarm.restless && self.rng.chance(50) {
            self.change_members()?;
            self.change_members()?;
        }
        let server = self.rng.below(self.swarm.servers as u64) as usize;
        if kinds.delayed_messages && self.rng.chance(25) {
            self.hold(server);
        }
        if kinds.members && kinds.partitions {
            self.haunt();
        }
        match self.rng.below(12) {
            0..3 if kinds.crashes => self.crash_some(server),
            3 if kinds.crashes && self.rng.chance(30) => {
                self.stats.blackouts += 1;
                for server in 0..self.swarm.servers {
                    let delay = self.rng.between(SECOND / 10, 2 * SECOND);
                    self.crash(server, Some(delay));
                }
            }
            4 | 5 if kinds.pauses => {
                self.stats.pauses += 1;
                let span = self.rng.between(self.timeout() / 4, self.timeout() * 5);
                let host = &mut self.hosts[server];
                host.paused_until = self.now + span;
                self.note(server, "pauses");
            }
            6..9 if kinds.partitions => self.part(server),
            9 if kinds.transfers => {
                self.stats.transfers += 1;
                self.order(ClientRequest::Transfer(None));
            }
            10 if kinds.members => {
                self.change_members()?;
                // A hasty operator asks for the next thing at once.
                if self.rng.chance(30) {
                    self.change_members()?;
                }
            }
            11 if kinds.rot => self.rot(server),
            _ if kinds.slow_links => self.slow_down(server),
            _ => {}
        }
        Ok(())
    }

    /// Something happened in an election, to `server`. A sniper waits for
    /// that.
    pub(super) fn snipe(&mut self, server: usize, won: bool) {
        if self.healed || !self.swarm.kinds.snipers {
            return;
        }
        let server = self.place(server);
        let step = 2 * self.swarm.latency + self.swarm.sync;
        if won && self.swarm.fickle {
            // The server that has won is cut off some steps later, and the one
            // that was cut off before is back: figure 8 of the Raft paper,
            // again and again.
            let delay = self.rng.below(6 * step);
            self.after(delay, Event::Dethrone { server });
        } else if self.rng.chance(30) {
            let other = self.rng.below(self.swarm.servers as u64) as usize;
            let server = if self.rng.chance(60) { server } else { other };
            let delay = self.rng.below(2 * step);
            self.after(delay, Event::Snipe { server });
        }
    }

    pub(super) fn dethrone(&mut self, server: usize) {
        let server = self.place(server);
        if !self.healed {
            self.stats.snipes += 1;
            self.network.heal();
            // A connection that holds messages back may outlive the cut.
            if !self.swarm.kinds.delayed_messages || self.rng.chance(50) {
                self.hang_up(server);
            }
            self.network.isolate(server, 0);
        }
    }

    /// A vote is on its way to a candidate. The worst moment for it to be cut
    /// off from everybody else, and for the voter to crash.
    pub(super) fn tempt(&mut self, voter: usize, winner: usize) {
        let sniper = self.swarm.kinds.snipers && self.swarm.kinds.partitions;
        if !self.healed && sniper && self.rng.chance(15) {
            self.after(1, Event::Betray { voter, winner });
        }
    }

    pub(super) fn betray(&mut self, voter: usize, winner: usize) {
        self.stats.snipes += 1;
        self.network.heal();
        self.network.isolate(winner, 0);
        let back = self.rng.below(3 * self.swarm.latency) + 1;
        self.crash(voter, Some(back));
    }

    /// A server crashes and is back before anybody noticed; or somebody is
    /// cut off just now.
    pub(super) fn sniped(&mut self, server: usize) {
        if self.healed {
            return;
        }
        self.stats.snipes += 1;
        let kind = self.rng.below(10);
        if kind < 7 {
            let back = self.rng.below(4 * self.swarm.latency) + 1;
            self.crash(server, Some(back));
        }
        // The server that has just won is cut off, and one of its voters
        // forgets.
        if kind >= 5 && self.swarm.kinds.partitions {
            let place = self.place(server);
            let server = self.leader().filter(|_| kind < 9).unwrap_or(place);
            let one_way = self.rng.below(3);
            self.network.heal();
            self.network.isolate(server, one_way);
        }
    }

    /// What one server asks, or is asked, or both, becomes slow.
    fn slow_down(&mut self, server: usize) {
        self.stats.slow_links += 1;
        let server = match self.leader() {
            Some(leader) if self.rng.chance(60) => leader,
            _ => server,
        };
        let by = self.rng.below(self.timeout() * 3 / 2);
        for other in (0..self.swarm.servers).filter(|other| *other != server) {
            if self.rng.chance(70) {
                self.network.slow(server, other, by);
            }
            if self.rng.chance(20) {
                self.network.slow(other, server, by);
            }
        }
    }

    /// A server crashes; more often than not the leader.
    fn crash_some(&mut self, server: usize) {
        let server = match self.leader() {
            Some(leader) if self.rng.chance(60) => leader,
            _ => server,
        };
        let delay = self.rng.between(SECOND / 20, 4 * SECOND);
        self.crash(server, Some(delay));
    }

    fn part(&mut self, server: usize) {
        self.stats.partitions += 1;
        match self.rng.below(5) {
            0 | 1 => self.network.heal(),
            2 if self.swarm.kinds.lasting_partitions && self.rng.chance(60) => {
                let partition_shape = self.any_shape();
                self.partition_shape(partition_shape);
            }
            2 => {
                self.network.heal();
                self.network.split(&mut self.rng);
            }
            kind => {
                let server = match self.leader() {
                    Some(leader) if kind == 3 => leader,
                    _ => server,
                };
                let one_way = self.rng.below(3);
                if self.rng.chance(50) {
                    self.hang_up(server);
                }
                self.network.isolate(server, one_way);
            }
        }
    }

    /// A disk rots, but never so many that a majority could be gone.
    fn rot(&mut self, server: usize) {
        let lost = self
            .hosts
            .iter()
            .filter(|host| host.disk.rotten || host.dead);
        if lost.count() > 0
            || self.beginning.mishap
            || self.swarm.founders < 3
            || self.swarm.kinds.members
        {
            return;
        }
        let delay = self.rng.between(SECOND / 10, SECOND);
        self.crash(server, Some(delay));
        if let Some((file, at)) = self.hosts[server].disk.rot(&mut self.rng) {
            self.stats.rotten += 1;
            self.note(server, &format!("byte {at} of {file} rots"));
        }
    }

    /// An operator takes a server in, promotes it, or takes one out.
    fn change_members(&mut self) -> Verdict {
        let members: Membership = self.committed.reference.members().clone();
        if members.is_empty() {
            return Ok(());
        }
        for host in &mut self.hosts {
            let member = members.get(host.id);
            host.fresh &= member.is_none_or(|member| member.storage != host.storage);
        }
        let learner = members
            .iter()
            .find(|(_, member)| member.voting_status == VotingStatus::Learner);
        let stranger =
            (0..self.swarm.servers).find(|server| members.get(self.hosts[*server].id).is_none());
        let voters: Vec<_> = members.voters().collect();
        let first = self.rng.chance(50);
        if let Some(server) = stranger.filter(|_| first || learner.is_none()) {
            self.stats.changes += 1;
            return self.admit(server);
        } else if let Some((learner, _)) = learner {
            self.stats.changes += 1;
            self.order(ClientRequest::Change(Change::Promote(learner)));
        } else if voters.len() > 2 {
            self.stats.changes += 1;
            let index = self.rng.below(voters.len() as u64) as usize;
            self.order(ClientRequest::Change(Change::Remove(voters[index])));
            // Its disk is replaced, and it comes back under its old number.
            if self.rng.chance(50) {
                let server = voters[index].get() as usize - 1;
                // A slow machine is a reason to replace it.
                if let Some(leader) = self.leader() {
                    let by = self.timeout() * 3;
                    self.network.slow(leader, server, by);
                }
                let soon = self.rng.below(self.timeout());
                self.after(soon, Event::Readmit { server });
            }
        }
        Ok(())
    }

    pub(super) fn readmit(&mut self, server: usize) -> Verdict {
        let gone = self
            .committed
            .reference
            .members()
            .get(self.hosts[server].id);
        if self.healed || gone.is_some() {
            return Ok(());
        }
        self.admit(server)
    }

    /// A server that is no member comes with a new disk. One whose admission
    /// was asked for before is asked for again as it is: the order may have
    /// been lost, or it may still come true, and then its disk must be there.
    fn admit(&mut self, server: usize) -> Verdict {
        if !self.hosts[server].fresh {
            self.crash(server, None);
            self.linger(server);
            self.storages += 1;
            let host = &mut self.hosts[server];
            host.fresh = true;
            host.disk = Disk::default();
            host.founder = false;
            if let Some((cluster, _)) = self.beginning.bootstrapped {
                host.cluster = cluster;
            }
            host.storage = StorageId::from_u128(self.storages);
            self.start(server)?;
        }
        let host = &self.hosts[server];
        let change = Change::AddLearner {
            server: host.id,
            storage: host.storage,
        };
        self.order(ClientRequest::Change(change));
        Ok(())
    }
}
