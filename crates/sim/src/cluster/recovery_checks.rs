//! What must be right again after everything is healed.
//!
//! ```text
//!   storm ──► heal ──► elected ──► calm ──► flapping ──► quiet ──► end
//!                 in time    ready in     nobody deposes   all answered,
//!                            time         it               all logs equal
//! ```
//!
//! The bounds: somebody is elected within 25 timeouts and 3 seconds (twice
//! that if one server can only answer), and is ready after the time in which
//! the shortest log can be brought up to the longest entry by entry, as it
//! has to be where one is all that a request holds and a window of one (and
//! a thread has made a state of a snapshot, which may take ten seconds); from
//! then on one server that is not the leader is cut off and comes back, again
//! and again, and the leader stays; every request is answered within 10
//! timeouts and 2 seconds; and at the end all members have the same log and
//! the same state.

use tenure_alpo::Bootstrap;

use super::checkers::committed::matching;
use super::checkers::{Check, Verdict, broken};
use super::events::Event;
use super::host::Host;
use super::world::World;
use crate::clock::SECOND;

impl World {
    /// The storm is over.
    pub(super) fn heal(&mut self) -> Verdict {
        self.healed = true;
        self.end_clones();
        self.give_up();
        self.network.heal();
        self.network.unruly = false;
        self.end_turns();
        self.release_all();
        for server in 0..self.hosts.len() {
            let host = &mut self.hosts[server];
            (host.paused_until, host.connected) = (0, 0);
            self.start(server)?;
        }
        self.lose_machines();
        // Who is a member is open while members change, and nobody can lead
        // before all is founded.
        if self.swarm.kinds.lasting_partitions
            && !self.swarm.kinds.members
            && !self.beginning.failed
        {
            self.stats.lasting_partitions += 1;
            let partition_shape = self.any_shape();
            self.partition_shape(partition_shape);
            self.after(1, Event::PartitionCheck);
            return Ok(());
        }
        self.mended()
    }

    /// The network is whole again, but perhaps for one server.
    pub(super) fn mended(&mut self) -> Verdict {
        self.network.heal();
        // One that is still blank may turn out to have another disk than the
        // cluster was founded with, and then it takes no part: two faults.
        let out = |host: &Host| host.dead || host.bootstrap.is_some();
        let mute = self.swarm.mute && !self.hosts.iter().any(out);
        if mute {
            // It answers every server that asks, and can ask none. A leader to
            // whom that happens goes on appending for a while, so its log is
            // the best, and it can neither lead nor let others.
            let best = (0..self.swarm.servers)
                .max_by_key(|server| self.hosts[*server].node.as_ref().map(|n| n.log().last()));
            let mute = self.leader().or(best).unwrap_or(0);
            self.network.isolate(mute, 1);
            self.stats.mutes += 1;
        }
        let bound = self.bound() * if mute { 2 } else { 1 };
        let catching_up = self.catching_up();
        self.after(bound, Event::Elected { catching_up });
        Ok(())
    }

    /// Somebody must have been elected by now.
    pub(super) fn elected(&mut self, catching_up: u64) -> Verdict {
        self.after(catching_up + 1, Event::Calm);
        self.give_up();
        if !self.beginning.failed && self.leader().is_none() {
            return self.nobody_leads();
        }
        Ok(())
    }

    /// The leader may need a server for its majority that has nothing but a
    /// snapshot. The check waits once: until the server's thread has made a state of
    /// the snapshot, and for the entries that the server lacks then.
    fn unready(&mut self) -> Verdict {
        let until = self.hosts.iter().filter_map(Host::decodes_until).max();
        let until = until.filter(|until| until + self.bound() > self.now);
        match until.filter(|_| !self.waited_for_snapshot) {
            Some(until) => {
                self.waited_for_snapshot = true;
                let left = until.saturating_sub(self.now) + self.catching_up();
                self.after(left + 1, Event::Calm);
                Ok(())
            }
            None => self.nobody_leads(),
        }
    }

    fn nobody_leads(&self) -> Verdict {
        let all: Vec<_> = self.hosts.iter().map(describe).collect();
        broken(Check::Election, all.join("; "))
    }

    /// How long a leader may need for a voter without which it has no
    /// majority.
    fn catching_up(&self) -> u64 {
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let ends: Vec<_> = nodes.map(|node| node.log().last().id).collect();
        let longest = ends.iter().max().copied().unwrap_or(0);
        let shortest = ends.iter().min().copied().unwrap_or(0);
        (longest - shortest) * (6 * self.swarm.latency + 4 * self.swarm.sync)
    }

    /// Somebody must lead now, and be ready.
    pub(super) fn calm(&mut self) -> Verdict {
        self.give_up();
        if self.beginning.failed {
            return Ok(());
        }
        self.all_founded()?;
        let ready = self.leader().filter(|leader| {
            let node = self.hosts[*leader].node.as_ref();
            node.is_some_and(tenure_alpo::Node::is_ready)
        });
        let Some(leader) = ready else {
            return self.unready();
        };
        if let Some(node) = &self.hosts[leader].node {
            self.undisturbed = Some((node.id(), node.term()));
        }
        self.after(1, Event::Flap { round: 0 });
        Ok(())
    }

    /// Nobody must still be looking for the cluster.
    fn all_founded(&self) -> Verdict {
        let blank = self.hosts.iter().find(|host| host.bootstrap.is_some());
        match blank {
            Some(host) if !self.swarm.kinds.members => {
                let missing = host.bootstrap.as_ref().map(Bootstrap::missing);
                let detail = format!("{} is still blank, waits for {missing:?}", host.id);
                broken(Check::Bootstrap, detail)
            }
            _ => Ok(()),
        }
    }

    /// A server is cut off and comes back; the leader must not notice.
    pub(super) fn flap(&mut self, round: u64) -> Verdict {
        self.still_leads()?;
        let timeout = self.timeout();
        let others: Vec<_> = (0..self.swarm.servers)
            .filter(|server| Some(*server) != self.leader())
            .collect();
        let mut members = self.hosts.iter().take(self.swarm.servers);
        let bare = members.any(|host| host.lost);
        if round >= 6 || self.swarm.servers < 3 || bare {
            let bound = 10 * timeout + 10 * SECOND;
            self.after(1, Event::Quiet);
            self.after(bound - 3 * timeout, Event::Settle);
            self.after(bound, Event::End);
            return Ok(());
        }
        let even = round.is_multiple_of(2);
        if even && !self.swarm.mute {
            let victim = others[self.rng.below(others.len() as u64) as usize];
            let one_way = self.rng.below(3);
            self.network.isolate(victim, one_way);
        } else if !self.swarm.mute {
            self.network.heal();
        }
        self.after(3 * timeout, Event::Flap { round: round + 1 });
        Ok(())
    }

    fn still_leads(&self) -> Verdict {
        let Some((id, term)) = self.undisturbed else {
            return Ok(());
        };
        let now = self
            .leader()
            .and_then(|leader| self.hosts[leader].node.as_ref());
        match now {
            // With few voters the cut may be one too many.
            Some(node) if node.id() == id && node.term() == term => Ok(()),
            _ if self.majority_is_thin() => Ok(()),
            Some(node) => {
                let (new, next) = (node.id(), node.term());
                let detail =
                    format!("{id} led term {term} and was healthy; now {new} leads {next}");
                broken(Check::Disturbed, detail)
            }
            None => broken(
                Check::Disturbed,
                format!("{id} led term {term}; now nobody does"),
            ),
        }
    }

    /// Whether losing one more voter may leave no majority.
    fn majority_is_thin(&self) -> bool {
        let members = self.committed.reference.members();
        let voters = members.voters().count();
        let alive = members
            .voters()
            .filter(|id| self.hosts[id.get() as usize - 1].node.is_some());
        alive.count() <= voters / 2 + 1
    }

    /// How long the end is to be put off: until each server's thread that makes a state of
    /// a snapshot is done, and for the entries that the server lacks then. A thread may take
    /// as long as the quiet before the end, and begin late in it. The next snapshot may
    /// follow at once, so the end is put off a few times.
    pub(super) fn left_to_decode(&mut self) -> Option<u64> {
        let until = self.hosts.iter().filter_map(Host::decodes_until).max();
        let until = until.filter(|until| *until >= self.now && self.ends_put_off < 3)?;
        self.ends_put_off += 1;
        Some(until - self.now + self.catching_up() + 10 * self.timeout() + 1)
    }

    /// The end: everything must add up.
    pub(super) fn judge_end(&mut self) -> Verdict {
        self.still_leads()?;
        if let Some(overdue) = self.overdue() {
            return broken(Check::Answers, overdue);
        }
        self.agree()?;
        for (index, a) in self.hosts.iter().enumerate() {
            for b in &self.hosts[..index] {
                if let (Some(a), Some(b)) = (&a.node, &b.node) {
                    matching(a.log(), b.log())?;
                }
            }
        }
        let Self {
            calls, committed, ..
        } = self;
        calls.judge(&committed.everything)?;
        self.stats.calls += self.calls.count() as u64;
        self.stats.bound(&self.committed.bound.seen);
        self.stats.inconclusive += self.calls.inconclusive;
        Ok(())
    }

    /// All members that live have everything that is committed.
    fn agree(&self) -> Verdict {
        let members = self.committed.reference.members();
        for host in &self.hosts {
            let Some(node) = host
                .node
                .as_ref()
                .filter(|_| members.get(host.id).is_some())
            else {
                continue;
            };
            if members
                .get(host.id)
                .is_some_and(|m| m.storage != host.storage)
            {
                continue;
            }
            if node.state().applied().id < self.settled {
                let all: Vec<_> = self.hosts.iter().map(describe).collect();
                let detail = format!("{} committed; {}", self.settled, all.join("; "));
                return broken(Check::Agreement, detail);
            }
            self.committed.same_state(node)?;
        }
        Ok(())
    }
}

pub(super) fn describe(host: &Host) -> String {
    match &host.node {
        None => format!("{} down", host.id),
        Some(node) => format!(
            "{} {:?} term {} log {} commit {}",
            host.id,
            node.status(),
            node.term(),
            node.log().last(),
            node.commit()
        ),
    }
}
