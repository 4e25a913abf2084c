//! A disk is set back to an earlier copy of itself.
//!
//! In some of the worlds an operator copies the disk of a server, once, while
//! it is down, and puts the copy back much later: after the server has voted
//! and acknowledged what is not in the copy, and at the worst moment, when it
//! has just given a vote. When a server starts all that run meet it, as they
//! would when it connects, and one that remembers more of its disk than is on
//! it refuses it ([`KnownStarts`]); it takes part in nothing then.
//!
//! It is put back only if some server remembers more than is in the copy: what
//! nobody remembers is not noticed, here as in production. Keep-alives are
//! heard with every message.

use std::time::Duration;

use tenure_alpo::{DiskProgress, KnownStarts, Node, Start, StartVerdict};

use super::copied_disks::DiskCopy;
use super::events::Event;
use super::host::Host;
use super::world::World;
use crate::clock::SECOND;

impl World {
    /// Plans when a disk is copied.
    pub(super) fn plan_copies(&mut self) {
        if self.set_back_disks.wanted {
            let rng = &mut self.set_back_disks.rng;
            let server = rng.below(self.swarm.servers as u64) as usize;
            let delay = rng.between(SECOND / 2, self.swarm.storm / 2 + SECOND);
            self.after(delay, Event::Copied { server });
            let rng = &mut self.set_back_disks.rng;
            let later = delay + rng.between(SECOND, self.swarm.storm / 2 + SECOND);
            self.after(later, Event::PutBack { server });
        }
    }

    /// A server is stopped, its disk copied, and started again.
    pub(super) fn copied(&mut self, server: usize) {
        if self.healed || self.hosts[server].node.is_none() {
            return;
        }
        self.crash(server, Some(SECOND / 10));
        let host = &self.hosts[server];
        self.set_back_disks.disk_copy = Some(DiskCopy {
            server,
            disk: host.disk.copy(),
            starts: self.set_back_disks.rng.chance(50).then_some(host.starts),
            reached: None,
        });
        self.note(server, "is copied");
    }

    /// A server has given its vote to `winner`: a bad moment to be set back.
    pub(super) fn tempt_to_put_back(&mut self, voter: usize, winner: usize) {
        let disk_copy = self.set_back_disks.disk_copy.as_ref();
        if disk_copy.is_some_and(|it| it.server == voter) && self.set_back_disks.rng.chance(40) {
            self.after(1, Event::PutBack { server: voter });
            if self.swarm.kinds.partitions {
                self.after(1, Event::Dethrone { server: winner });
            }
        }
    }

    /// The copy takes the place of the disk, if that will be noticed.
    pub(super) fn put_back(&mut self, server: usize) {
        let noticed = self.remembered(server);
        if self.healed || !noticed || self.hosts.iter().any(|host| host.dead) {
            return;
        }
        let Some(disk_copy) = self.set_back_disks.disk_copy.take() else {
            return;
        };
        self.crash(server, None);
        let host = &mut self.hosts[server];
        host.disk = disk_copy.disk;
        host.starts = disk_copy.starts.unwrap_or(host.starts);
        self.stats.set_back += 1;
        self.note(server, "is set back");
        self.set_back_disks.returned = Some(server);
        // At once: a server that remembers might have forgotten by later.
        self.after(1, Event::Restart { server });
    }

    /// Whether somebody who runs remembers more than is in the copy.
    fn remembered(&self, server: usize) -> bool {
        let disk_copy = self.set_back_disks.disk_copy.as_ref();
        let Some(disk_copy) = disk_copy.filter(|it| it.server == server) else {
            return false;
        };
        let Some(reached) = disk_copy.reached else {
            return false;
        };
        let host = &self.hosts[server];
        let start = Start {
            counter: disk_copy.starts.unwrap_or(host.starts) + 1,
            random: u128::MAX,
            lock: 0,
        };
        let who = (host.id, host.storage);
        let members = self.committed.reference.members();
        let others = self.hosts.iter().filter(|it| it.id != host.id);
        let mut running = others.filter(|it| it.node.is_some());
        running.any(|other| {
            let at = (other.now(self.now).boot, Duration::ZERO);
            let mut memory = sound(other.memory.clone());
            let verdict = memory.greeted(who, (start, reached), members, at);
            matches!(verdict, StartVerdict::SetBack(_))
        })
    }

    /// A server has started: it counts that, and meets all that run. It takes
    /// part in nothing if one of them remembers more of its disk.
    pub(super) fn meets_all(&mut self, server: usize) {
        if !self.set_back_disks.wanted && !self.cloned_processes.wanted {
            return;
        }
        if self.set_back_disks.returns(server) {
            self.set_back_disks.returned = None;
        }
        let random = u128::from(self.set_back_disks.rng.next_u64());
        let planted = self.planted();
        let host = &mut self.hosts[server];
        host.starts += 1;
        host.start = Start {
            counter: host.starts,
            random,
            // A copy that is put back keeps the lock file; a clone has its own.
            lock: server as u128 + 1,
        };
        host.memory = planted;
        if let Some(disk_copy) = self
            .set_back_disks
            .disk_copy
            .as_mut()
            .filter(|it| it.server == server)
        {
            let reached = host.node.as_ref().and_then(Node::disk_progress);
            disk_copy.reached = disk_copy.reached.or(reached);
        }
        let id = self.hosts[server].id;
        let runs = |host: &Host| host.node.is_some() && host.paused_until < u64::MAX;
        let others = (0..self.swarm.servers).filter(|other| self.hosts[*other].id != id);
        let others: Vec<_> = others.filter(|other| runs(&self.hosts[*other])).collect();
        for other in others {
            let refused = self.meets(other, server);
            self.meets(server, other);
            if refused {
                self.stats.refused_copies += 1;
                self.note(server, "is refused: its disk was set back");
                self.crash(server, None);
                self.hosts[server].dead = true;
                return;
            }
        }
    }

    /// `host` is greeted by `other`. Whether it refuses it for good.
    fn meets(&mut self, host: usize, other: usize) -> bool {
        let Some(greets) = self.says(other) else {
            return false;
        };
        let who = (self.hosts[other].id, self.hosts[other].storage);
        let (shared, timeout) = (self.is_shared(other), self.timeout());
        let members = self.committed.reference.members();
        let host = &mut self.hosts[host];
        let now = host.now(self.now).boot;
        // Where one process of a number runs nobody waits for another.
        let timeout = Duration::from_nanos(if shared { timeout } else { 0 });
        let at = (now, timeout);
        let verdict = host.memory.greeted(who, greets, members, at);
        matches!(verdict, StartVerdict::SetBack(_))
    }

    /// How a process greets.
    pub(super) fn says(&self, server: usize) -> Option<(Start, DiskProgress)> {
        let host = &self.hosts[server];
        let reached = host.node.as_ref()?.disk_progress()?;
        Some((host.start, reached))
    }

    /// A message has come from another server, and with it a keep-alive.
    pub(super) fn heard_from(&mut self, server: usize, from: usize) {
        if !self.set_back_disks.wanted {
            return;
        }
        let says = self.says(from);
        let who = (self.hosts[from].id, self.hosts[from].storage);
        let host = &mut self.hosts[server];
        let now = host.now(self.now).boot;
        if let Some((start, reached)) = says {
            host.memory.heard(who, start, Some(reached), now);
        }
        if let Some(node) = &host.node {
            for (who, id) in node.acknowledged() {
                host.memory.acknowledged(who, node.term(), id);
            }
        }
    }

    #[cfg(feature = "planted-bugs")]
    fn planted(&self) -> KnownStarts {
        KnownStarts::default().with_bug(self.swarm.config.planted)
    }

    #[cfg(not(feature = "planted-bugs"))]
    fn planted(&self) -> KnownStarts {
        KnownStarts::default()
    }
}

/// The same memory of a server that makes no mistake.
#[cfg(feature = "planted-bugs")]
fn sound(memory: KnownStarts) -> KnownStarts {
    memory.with_bug(None)
}

/// The same memory of a server that makes no mistake.
#[cfg(not(feature = "planted-bugs"))]
const fn sound(memory: KnownStarts) -> KnownStarts {
    memory
}
