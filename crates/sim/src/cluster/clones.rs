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
//! The first gives its signs of life, and the second knocks. Requests for the
//! disk reach the first; where both are let in (a planted mistake) those of
//! some servers reach the second.
//!
//! Each server remembers for itself. So nothing is promised where some hear of
//! the first of two and others do not, nor of what was done in the moment
//! before it fell silent (`docs/design/identity.md`, limits). While both are there,
//! the network is whole and nothing happens to either but what is said here;
//! of the others the leader may crash.

use std::time::Duration;

use tenure_alpo::{DiskProgress, Start, StartVerdict, StorageId};
use tenure_core::rng::Rng;

use super::checkers::Verdict;
use super::copies::Copies;
use super::host::Host;
use super::network::InFlightMessage;
use super::swarm::{SECOND, Swarm};
use super::world::{Event, World};

#[cfg(doc)]
use tenure_alpo::KnownStarts;

/// Who shares a disk in a run.
pub(super) struct Clones {
    /// Of its own, so that worlds without it stay as they were.
    rng: Rng,
    /// Whether a disk is to be copied in this world.
    pub(super) wanted: bool,
    /// The disk that was.
    of: Option<StorageId>,
    /// The two, while both are there.
    two: Option<Two>,
}

/// Two processes.
#[derive(Clone, Copy)]
struct Two {
    /// In the place of its number.
    first: usize,
    /// Behind the others.
    second: usize,
    /// When one of them goes at the latest.
    until: u64,
    /// A bit for each number whose server has let in both.
    both: u64,
}

impl Clones {
    pub(super) fn new(seed: u64, swarm: &Swarm, copies: &Copies) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0xc10e_0002);
        let kinds = swarm.kinds;
        // Nothing else may happen to the two.
        let calm = !kinds.members && !kinds.rot && !kinds.disks && !kinds.stalls;
        let fits = swarm.founders >= 3 && calm && !kinds.settings && !swarm.blank;
        Self {
            wanted: fits && !copies.wanted && rng.chance(60),
            rng,
            of: None,
            two: None,
        }
    }
}

impl World {
    /// Plans when a disk is copied.
    pub(super) fn plan_clones(&mut self) {
        let last = self.swarm.storm.saturating_sub(14 * self.timeout());
        if self.clones.wanted && last > SECOND {
            let server = self.clones.rng.below(self.swarm.founders as u64) as usize;
            let delay = self.clones.rng.between(SECOND / 2, last);
            self.after(delay, Event::Cloned { server });
        }
    }

    /// Whether two processes share a disk.
    pub(super) const fn are_two(&self) -> bool {
        self.clones.two.is_some()
    }

    /// Whether another process has, or had, the disk of this one.
    pub(super) fn is_shared(&self, server: usize) -> bool {
        self.clones.of == Some(self.hosts[server].storage)
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
        second.disk.silence = host.disk.silence;
        second.starts = host.starts;
        second.connected = self.clones.rng.next_u64();
        self.clones.of = Some(host.storage);
        let slot = self.hosts.len();
        self.clones.two = Some(Two {
            first: server,
            second: slot,
            until: self.now + 10 * self.timeout(),
            both: 0,
        });
        self.stats.clones += 1;
        self.note(server, "is cloned");
        self.network.heal();
        self.network.unruly = false;
        self.release_all();
        // It was heard of lately by all that it could reach.
        for other in (0..self.swarm.servers).filter(|other| *other != server) {
            self.lives(other, server);
        }
        if self.clones.rng.chance(50) {
            // From the very moment of the copy on, until one of them goes.
            self.hosts[server].paused_until = u64::MAX;
        }
        self.hosts.push(second);
        self.start_node(slot)?;
        self.after(1, Event::Knock);
        Ok(())
    }

    /// The first gives a sign of life, and the second knocks.
    pub(super) fn knock(&mut self) {
        let Some(Two { first, second, .. }) = self.clones.two else {
            return;
        };
        let others = (0..self.swarm.servers).filter(|other| *other != first);
        for other in others.collect::<Vec<_>>() {
            if self.hosts[other].node.is_some() && self.hosts[other].paused_until <= self.now {
                self.lives(other, first);
                self.lets_in(other, second);
            }
        }
        let Some(two) = self.clones.two else {
            return;
        };
        if self.now >= two.until {
            return self.end_clones();
        }
        if let Some(leader) = self.leader().filter(|leader| *leader != first)
            && self.clones.rng.chance(5)
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
        let Some(of) = self.clones.of else {
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
        let Some(two) = self.clones.two.filter(|two| two.second == process) else {
            return;
        };
        let Some(says) = self.says(two.first) else {
            return;
        };
        let who = (self.hosts[two.first].id, self.hosts[two.first].storage);
        let members = self.committed.reference.members();
        let host = &mut self.hosts[server];
        let at = (host.now(self.now).boot, Duration::ZERO);
        let number = host.id.get();
        match host.memory.greeted(who, says, members, at) {
            StartVerdict::SetBack(_) => self.is_refused(two.first),
            StartVerdict::Accepted | StartVerdict::WaitFor(_) => {
                let both = two.both | 1 << number;
                self.clones.two = Some(Two { both, ..two });
            }
        }
    }

    /// A process is told that it is not the newer one of two, or that its disk
    /// was set back: it takes part in nothing any more.
    fn is_refused(&mut self, process: usize) {
        self.note(process, "is refused: another has its disk");
        let Some(two) = self.clones.two else {
            self.hosts[process].dead = true;
            return self.end(process);
        };
        if process == two.second {
            self.stats.refused_seconds += 1;
            return self.end_clones();
        }
        // The second goes on in its place; for the simulator, as a new start.
        self.stats.refused_firsts += 1;
        self.end_clones();
        self.hosts.swap(two.first, two.second);
        let newest = self.hosts.iter().map(|host| host.epoch).max();
        for (server, ahead) in [(two.first, 1), (two.second, 2)] {
            self.hosts[server].epoch = newest.unwrap_or(0) + ahead;
        }
        self.end(two.second);
        self.hosts[two.second].lost = true;
        self.hosts[two.first].lost = false;
        self.after(1, Event::Restart { server: two.first });
    }

    /// An operator ends the second process, or it has ended itself.
    pub(super) fn end_clones(&mut self) {
        if let Some(two) = self.clones.two.take() {
            self.end(two.second);
            self.hosts[two.second].lost = true;
            if self.hosts[two.first].paused_until == u64::MAX {
                // What it waited for was put off for ever.
                self.crash(two.first, Some(SECOND / 10));
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
        host.disk.crash(&mut self.clones.rng);
    }

    /// Which of two processes with one disk a message for it reaches.
    pub(super) fn one_of_two(&self, message: &InFlightMessage) -> Option<usize> {
        let two = self.clones.two?;
        if message.wanted != self.clones.of {
            return None;
        }
        let bit = 1 << message.envelope.from.get();
        let leads_there = two.both & self.hosts[two.second].connected & bit != 0;
        Some(if leads_there { two.second } else { two.first })
    }
}
