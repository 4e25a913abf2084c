//! Disks that were removed and live on, and machines that are lost for good.
//!
//! A server that is replaced does not always stop. When an operator replaces a
//! server's disk, the old one may come back beside it: a second process under
//! the same number, with the promises of the first, and without the entry that
//! removed it, since nobody sends it that. By its own log it is a member for
//! ever: it asks for pre-votes, and votes for every candidate that asks. It is
//! in a slot of its own behind the others, and shares the place of its number
//! in the network.
//!
//! A message says for which disk it is, and only that disk gets it. One that
//! does not say (a planted mistake) goes where the sender's connection ends,
//! and until the storm is over some connections still end at the old disk.
//!
//! When the storm is over some machines may be gone for good, so that what is
//! left is a bare majority, of those who lag rather than of those who know
//! everything. One of them has all that is committed, and the others must
//! follow it, whatever their own logs say of the members.

use tenure_alpo::{LogId, Node, StorageId, quorum};

use super::checkers::{Check, Verdict, broken};
use super::events::Event;
use super::host::Host;
use super::network::InFlightMessage;
use super::network::LINGER_MAX;
use super::world::World;
use crate::clock::SECOND;

impl World {
    /// A server's place in the network: that of its number.
    pub(super) fn place(&self, server: usize) -> usize {
        self.hosts[server].id.get() as usize - 1
    }

    /// Whom a message reaches, if anybody.
    pub(super) fn addressee(&self, message: &InFlightMessage) -> Option<usize> {
        if let Some(process) = self.one_of_two(message) {
            return Some(process);
        }
        let to = message.envelope.to;
        let newest = to.get() as usize - 1;
        let old = self.swarm.servers..self.hosts.len();
        let mut old = old.filter(|server| self.hosts[*server].id == to);
        let Some(wanted) = message.wanted else {
            let from = message.envelope.from.get();
            let ends_here = |server: &usize| {
                let host = &self.hosts[*server];
                host.node.is_some() && host.connected & 1 << from != 0
            };
            return Some(old.find(ends_here).unwrap_or(newest));
        };
        let has = |server: &usize| self.hosts[*server].storage == wanted;
        Some(newest).into_iter().chain(old).find(has)
    }

    /// The disk of a server is about to be replaced: perhaps the old one
    /// comes back beside the new one.
    pub(super) fn linger(&mut self, server: usize) {
        let full = self.hosts.len() >= self.swarm.servers + LINGER_MAX;
        let host = &self.hosts[server];
        if full || host.dead || !host.disk.has_log() || !self.rng.chance(60) {
            return;
        }
        self.stats.lingering += 1;
        let new = Host::after(host);
        let mut old = std::mem::replace(&mut self.hosts[server], new);
        old.connected = self.rng.next_u64();
        old.founder = false;
        let slot = self.hosts.len();
        self.hosts.push(old);
        let delay = self.rng.below(SECOND);
        self.after(delay, Event::Restart { server: slot });
    }

    /// A server has found that its number went to another disk. That must be
    /// so, and then it has to go.
    pub(super) fn replaced(&mut self, server: usize) -> Verdict {
        let members = self.committed.reference.members();
        let host = &mut self.hosts[server];
        if members.has(host.id, host.storage) {
            let detail = format!("{} has gone, and it is a member", host.id);
            return broken(Check::Halted, detail);
        }
        self.stats.replaced += 1;
        host.node = None;
        host.epoch += 1;
        host.lost = true;
        Ok(())
    }

    /// Whether the machine with this disk is lost for good. What it sent last is
    /// lost with its connections: a change of members that only a late message
    /// of it brings could need it, and nobody could ever be elected.
    pub(super) fn is_gone(&self, storage: StorageId) -> bool {
        // Of two processes with one disk, one may have ended.
        let mut with = self.hosts.iter().filter(|host| host.storage == storage);
        self.healed && with.clone().count() > 0 && with.all(|host| host.lost)
    }

    /// Machines are lost for good, and what is left can elect somebody.
    pub(super) fn lose_machines(&mut self) {
        if !self.swarm.kinds.members || !self.rng.chance(60) {
            return;
        }
        let Some((best, others)) = self.laggards() else {
            return;
        };
        let voters = others.len() + 1;
        let (kept, lost) = others.split_at(quorum::majority(voters) - 1);
        let Some(node) = &self.hosts[best].node else {
            return;
        };
        // One with a better log would not vote for it, and may know members of
        // whom too many are gone: a change that is not committed.
        let last = |server: &usize| self.hosts[*server].node.as_ref().map(|it| it.log().last());
        if kept.iter().any(|server| last(server) > last(&best)) {
            return;
        }
        // The best of them stands by the members that it knows.
        let kept = kept.iter().chain([&best]);
        let kept = kept.map(|server| (self.hosts[*server].id, self.hosts[*server].storage));
        if lost.is_empty() || !quorum::is_majority_of_disks(node.members(), kept) {
            return;
        }
        self.stats.bare += 1;
        for server in lost.iter().copied() {
            self.crash(server, None);
            self.hosts[server].lost = true;
            self.note(server, "is lost for good");
        }
    }

    /// The voter with the best log, and the other voters from the worst log
    /// on; nobody if one of them is down or does not know that it votes.
    fn laggards(&self) -> Option<(usize, Vec<usize>)> {
        let members = self.committed.reference.members();
        let rank = |server: &usize| self.hosts[*server].node.as_ref().map(Node::rank);
        let mut voters: Vec<_> = members.voters().map(|id| id.get() as usize - 1).collect();
        let knows_itself = |server: &usize| {
            let host = &self.hosts[*server];
            let knows = |node: &Node| node.members().is_voter_with(host.id, host.storage);
            members.is_voter_with(host.id, host.storage) && host.node.as_ref().is_some_and(knows)
        };
        if voters.len() < 3 || !voters.iter().all(knows_itself) {
            return None;
        }
        // Of those that have everything one whose disk is new: a server that
        // lags does not know it.
        let all: LogId = self.committed.len();
        let has_all = |server: &&usize| {
            let node = self.hosts[**server].node.as_ref();
            node.is_some_and(|node| node.log().last().id >= all)
        };
        let newest = |server: &&usize| (self.hosts[**server].storage, **server);
        let best = *voters.iter().filter(has_all).max_by_key(newest)?;
        let most = rank(&best)?.last;
        voters.retain(|server| *server != best);
        // Not those whose logs are better: they would stand themselves.
        let better = |server: &usize| rank(server).is_some_and(|rank| rank.last > most);
        voters.sort_by_key(|server| (better(server), rank(server)));
        Some((best, voters))
    }
}
