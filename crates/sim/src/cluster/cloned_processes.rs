//! Two live processes with one disk.
//!
//! In some of the worlds an operator starts a second process, once, with a
//! copy of the directory of one that runs: on another machine, where nothing
//! keeps the two apart. Often the first one is stopped for a while just then,
//! as a machine is that is moved. The rule ([`KnownStarts`]): the second is let in
//! by nobody who has heard of the first within an election timeout, and is out
//! for good once the first has promised more than is in the copy; when the
//! first has been silent, the second is let in, and the first is refused.
//!
//! As long as both are there, a connection is judged with every message on it.
//! The first gives its keep-alives, and the second knocks. Requests for the
//! disk reach the first; where both are let in (a planted mistake) those of
//! some servers reach the second.
//!
//! Each server remembers for itself. So nothing is promised where some hear of
//! the first of two and others do not, nor of what was done in the moment
//! before it fell silent (`docs/design/identity.md`, limits). While both are there,
//! the network is whole and nothing happens to either but what is said here;
//! of the others the leader may crash.

use std::time::Duration;

use tenure_alpo::{DiskProgress, Start, StartVerdict};

use super::checkers::Verdict;
use super::host::Host;
use super::network::InFlightMessage;
use super::world::World;
use crate::clock::SECOND;

use super::copied_disks::ProcessPair;
use super::events::Event;
#[cfg(doc)]
use tenure_alpo::KnownStarts;

impl World {
    /// Plans when a disk is copied.
    pub(super) fn plan_clones(&mut self) {
        let last = self.swarm.storm.saturating_sub(14 * self.timeout());
        if self.cloned_processes.wanted && last > SECOND {
            let server = self.cloned_processes.rng.below(self.swarm.founders as u64) as usize;
            let delay = self.cloned_processes.rng.between(SECOND / 2, last);
            self.after(delay, Event::Cloned { server });
        }
    }

    /// Whether two processes share a disk.
    pub(super) const fn are_two(&self) -> bool {
        self.cloned_processes.pair.is_some()
    }

    /// Whether another process has, or had, the disk of this one.
    pub(super) fn is_shared(&self, server: usize) -> bool {
        self.cloned_processes.of == Some(self.hosts[server].storage)
    }

    /// A second process is started with a copy of the disk of one that runs.
    pub(super) fn cloned(&mut self, server: usize) -> Verdict {
        let host = &self.hosts[server];
        if self.healed || host.node.is_none() || host.paused_until > self.now {
            return Ok(());
        }
        let mut second = Host::after(host);
        second.storage = host.storage;
        second.disk = host.disk.copy();
        second.disk.no_vote_time = host.disk.no_vote_time;
        second.starts = host.starts;
        second.connected = self.cloned_processes.rng.next_u64();
        self.cloned_processes.of = Some(host.storage);
        let slot = self.hosts.len();
        self.cloned_processes.pair = Some(ProcessPair {
            first: server,
            second: slot,
            until: self.now + 10 * self.timeout(),
            both: 0,
        });
        self.stats.cloned_processes += 1;
        self.note(server, "is cloned");
        self.network.heal();
        self.network.unruly = false;
        self.release_all();
        // It was heard of lately by all that it could reach.
        for other in (0..self.swarm.servers).filter(|other| *other != server) {
            self.lives(other, server);
        }
        if self.cloned_processes.rng.chance(50) {
            // From the very moment of the copy on, until one of them goes.
            self.hosts[server].paused_until = u64::MAX;
        }
        self.hosts.push(second);
        self.start_node(slot)?;
        self.after(1, Event::Knock);
        Ok(())
    }

    /// The first gives a keep-alive, and the second knocks.
    pub(super) fn knock(&mut self) {
        let Some(ProcessPair { first, second, .. }) = self.cloned_processes.pair else {
            return;
        };
        let others = (0..self.swarm.servers).filter(|other| *other != first);
        for other in others.collect::<Vec<_>>() {
            if self.hosts[other].node.is_some() && self.hosts[other].paused_until <= self.now {
                self.lives(other, first);
                self.lets_in(other, second);
            }
        }
        let Some(pair) = self.cloned_processes.pair else {
            return;
        };
        if self.now >= pair.until {
            return self.end_clones();
        }
        if let Some(leader) = self.leader().filter(|leader| *leader != first)
            && self.cloned_processes.rng.chance(5)
        {
            self.crash(leader, Some(SECOND / 10));
        }
        self.after(self.timeout() / 8, Event::Knock);
    }

    fn lives(&mut self, server: usize, first: usize) {
        let host = &self.hosts[first];
        let who = (host.id, host.storage);
        let runs = host.paused_until <= self.now;
        if let Some((start, reached)) = self.says(first).filter(|_| runs) {
            let host = &mut self.hosts[server];
            let now = host.now(self.now).boot;
            host.memory.heard(who, start, Some(reached), now);
        }
    }

    /// Whether a message is heeded by the process that gets it, and that one
    /// by the process that has sent it.
    pub(super) fn is_heeded(&mut self, server: usize, message: &InFlightMessage) -> bool {
        let Some(of) = self.cloned_processes.of else {
            return true;
        };
        let (sender, start) = message.sender;
        if message.storage == of {
            return if self.hosts[sender].start == start {
                self.lets_in(server, sender)
            } else {
                // The last words of a process that is gone.
                let who = (message.envelope.from, of);
                let host = &mut self.hosts[server];
                let now = host.now(self.now).boot;
                host.memory.heard(who, start, None, now)
            };
        }
        self.hosts[server].storage != of || self.lets_in(sender, server)
    }

    /// A process greets a server, if it is not the one that is let in there.
    fn lets_in(&mut self, server: usize, process: usize) -> bool {
        let Some(says) = self.says(process) else {
            return false;
        };
        let (start, reached): (Start, DiskProgress) = says;
        let who = (self.hosts[process].id, self.hosts[process].storage);
        let timeout = Duration::from_nanos(self.timeout());
        let members = self.committed.reference.members();
        let host = &mut self.hosts[server];
        let now = host.now(self.now).boot;
        let mut verdict = StartVerdict::Accepted;
        if !host.memory.heard(who, start, Some(reached), now) {
            verdict = host.memory.greeted(who, says, members, (now, timeout));
        }
        match verdict {
            StartVerdict::Accepted => self.is_let_in(server, process),
            StartVerdict::WaitFor(_) => {}
            StartVerdict::SetBack(_) => self.is_refused(process),
        }
        verdict == StartVerdict::Accepted
    }

    /// If it is the second of two, the first finds its connection closed, and
    /// greets again.
    fn is_let_in(&mut self, server: usize, process: usize) {
        let Some(pair) = self
            .cloned_processes
            .pair
            .filter(|pair| pair.second == process)
        else {
            return;
        };
        let Some(says) = self.says(pair.first) else {
            return;
        };
        let who = (self.hosts[pair.first].id, self.hosts[pair.first].storage);
        let members = self.committed.reference.members();
        let host = &mut self.hosts[server];
        let at = (host.now(self.now).boot, Duration::ZERO);
        let number = host.id.get();
        match host.memory.greeted(who, says, members, at) {
            StartVerdict::SetBack(_) => self.is_refused(pair.first),
            StartVerdict::Accepted | StartVerdict::WaitFor(_) => {
                let both = pair.both | 1 << number;
                self.cloned_processes.pair = Some(ProcessPair { both, ..pair });
            }
        }
    }

    /// A process is told that it is not the newer one of two, or that its disk
    /// was set back: it takes part in nothing any more.
    fn is_refused(&mut self, process: usize) {
        self.note(process, "is refused: another has its disk");
        let Some(pair) = self.cloned_processes.pair else {
            self.hosts[process].dead = true;
            return self.end(process);
        };
        if process == pair.second {
            self.stats.refused_seconds += 1;
            return self.end_clones();
        }
        // The second goes on in its place; for the simulator, as a new start.
        self.stats.refused_firsts += 1;
        self.end_clones();
        self.hosts.swap(pair.first, pair.second);
        let newest = self.hosts.iter().map(|host| host.epoch).max();
        for (server, ahead) in [(pair.first, 1), (pair.second, 2)] {
            self.hosts[server].epoch = newest.unwrap_or(0) + ahead;
        }
        self.end(pair.second);
        self.hosts[pair.second].lost = true;
        self.hosts[pair.first].lost = false;
        self.after(1, Event::Restart { server: pair.first });
    }

    /// An operator ends the second process, or it has ended itself.
    pub(super) fn end_clones(&mut self) {
        if let Some(pair) = self.cloned_processes.pair.take() {
            self.end(pair.second);
            self.hosts[pair.second].lost = true;
            if self.hosts[pair.first].paused_until == u64::MAX {
                // What it waited for was put off for ever.
                self.crash(pair.first, Some(SECOND / 10));
            }
            self.network.unruly = self.swarm.kinds.unruly && !self.healed;
        }
    }

    /// The process ends, with connections that nobody had let in.
    fn end(&mut self, process: usize) {
        let host = &mut self.hosts[process];
        host.node = None;
        host.epoch += 1;
        host.paused_until = 0;
        host.disk.crash(&mut self.cloned_processes.rng);
    }

    /// Which of two processes with one disk a message for it reaches.
    pub(super) fn one_of_two(&self, message: &InFlightMessage) -> Option<usize> {
        let pair = self.cloned_processes.pair?;
        if message.wanted != self.cloned_processes.of {
            return None;
        }
        let bit = 1 << message.envelope.from.get();
        let leads_there = pair.both & self.hosts[pair.second].connected & bit != 0;
        Some(if leads_there { pair.second } else { pair.first })
    }
}
