//! What befalls processes, machines and the store from time to time.
//!
//! Each kind comes at random moments whose mean distance the
//! [swarm](crate::swarm) has drawn. Leaders are hit more often than others:
//! most of what can go wrong goes wrong around them.

use tenure_core::ids::Name;
use tenure_election::{Command, Expiry, Input, Request};

use crate::clock::{MILLI, SECOND, pick};
use crate::events::SimEvent;
use crate::simulated_process::{Actor, ProcessInput};
use crate::swarm::{InjectedFault, StoreClock, candidate_name};
use crate::world::World;

impl World {
    pub(crate) fn schedule_mishaps(&mut self) {
        for mishap in InjectedFault::ALL {
            self.schedule(*mishap);
        }
    }

    fn schedule(&mut self, mishap: InjectedFault) {
        let mean = mishap.rarity(&self.swarm.fault_rates) * (self.swarm.lease / 1_000);
        if mean > 0 {
            let at = self.now + self.rng.between(MILLI, 2 * mean);
            self.queue.push(at, SimEvent::InjectedFault(mishap));
        }
    }

    pub(crate) fn mishap(&mut self, mishap: InjectedFault) {
        if !self.faulty() {
            return;
        }
        self.schedule(mishap);
        let p = self.victim();
        match mishap {
            InjectedFault::Pause => {
                let most = *pick(&mut self.rng, &[1, 2, 4]) * self.swarm.lease;
                let span = self.rng.between(0, most);
                self.pause(p, span);
            }
            InjectedFault::Stall => {
                let span = self.rng.between(MILLI, 200 * MILLI);
                self.pause(p, span);
            }
            InjectedFault::Crash => {
                self.stats.crashes += 1;
                self.crash(p);
            }
            InjectedFault::Suspend => self.suspend(self.processes[p].node),
            InjectedFault::Reboot => self.reboot(self.processes[p].node),
            InjectedFault::Outage => {
                self.stats.outages += 1;
                let until = self.now + self.rng.between(0, 2 * self.swarm.lease);
                if self.rng.chance(30) {
                    self.store.refuses_until = until;
                } else {
                    self.store.outage = Some((until, self.rng.chance(50)));
                }
            }
            InjectedFault::Cut => {
                self.stats.cuts += 1;
                let until = self.now + self.rng.between(0, 3 * self.swarm.lease);
                self.store.cuts[p] = Some((until, self.rng.chance(30)));
            }
            InjectedFault::Calendar => self.upset_calendar(p),
            InjectedFault::StoreWatch => self.upset_line(),
            InjectedFault::Command => self.command(p),
            InjectedFault::LeaderRequest => self.ask_leader(),
            InjectedFault::Tear => self.tear(),
            InjectedFault::Standstill => self.stand_still(p),
            InjectedFault::Hang => self.hang(p),
        }
    }

    /// A process, or the store, stands still for many leases.
    fn stand_still(&mut self, p: usize) {
        self.stats.standstills += 1;
        let span = self.rng.between(2, 12) * self.swarm.lease;
        if self.rng.chance(50) {
            self.pause(p, span);
        } else {
            self.store.outage = Some((self.now + span, self.rng.chance(50)));
        }
    }

    /// Mostly a leader.
    fn victim(&mut self) -> usize {
        let leaders = |world: &Self, election| {
            world
                .leaderships
                .valid(election, world.now)
                .map(|(p, _)| p)
                .next()
        };
        let election = self.rng.below(self.swarm.elections as u64) as usize;
        match leaders(self, election) {
            Some(leader) if self.rng.chance(60) => leader,
            _ => self.rng.below(self.processes.len() as u64 - 1) as usize,
        }
    }

    fn pause(&mut self, p: usize, span: u64) {
        if !self.processes[p].up || self.processes[p].paused {
            return;
        }
        self.stats.pauses += 1;
        self.note(p, || format!("is paused for {span} ns"));
        self.processes[p].paused = true;
        self.causes.disturb(p, self.now + span);
        let life = self.processes[p].life;
        self.queue
            .push(self.now + span, SimEvent::Resume { p, life });
    }

    pub(crate) fn unpause(&mut self, p: usize) {
        if self.processes[p].paused {
            self.processes[p].paused = false;
            self.causes.disturb(p, self.now);
            self.note(p, || "goes on".into());
            self.resume(p);
        }
    }

    /// The process is gone; its guardian ends the work it left behind.
    pub(crate) fn crash(&mut self, p: usize) {
        if !self.processes[p].up {
            return;
        }
        self.note(p, || "crashes".into());
        let proc = &mut self.processes[p];
        proc.up = false;
        proc.life += 1;
        proc.leadership = None;
        proc.inbox.clear();
        let (life, work, grace) = (proc.life, proc.work, proc.config.grace.as_nanos() as u64);
        // No leadership can be said to be valid that nobody holds.
        let _ = self.leaderships.note(p, self.now, None);
        if let Some(work) = work {
            let at = self.now + self.rng.between(0, grace);
            self.queue
                .push(at, SimEvent::WorkEnds { p, term: work.term });
        }
        for line in self.store.lines.iter_mut().filter(|line| line.p == p) {
            line.up = false;
        }
        let at = self.now + self.rng.between(MILLI, 2 * self.swarm.lease);
        self.queue.push(at, SimEvent::Restart { p, life });
    }

    fn suspend(&mut self, node: usize) {
        if self.nodes[node].suspended {
            return;
        }
        self.stats.suspends += 1;
        self.nodes[node].suspended = true;
        let span = self.rng.between(MILLI, 3 * self.swarm.lease);
        for p in 0..self.processes.len() {
            if self.processes[p].node == node {
                self.works.rests(p);
                self.causes.disturb(p, self.now + span);
                self.note(p, || format!("is suspended for {span} ns"));
            }
        }
        let boot = self.nodes[node].boot_id;
        self.queue
            .push(self.now + span, SimEvent::Wake { node, boot });
    }

    /// Guardians look first, at the clock that went on.
    pub(crate) fn wake(&mut self, node: usize) {
        if !self.nodes[node].suspended {
            return;
        }
        self.nodes[node].suspended = false;
        self.waking = true;
        let local = self.nodes[node].boot(self.now);
        for p in 0..self.processes.len() {
            let Some(work) = self.processes[p]
                .work
                .filter(|_| self.processes[p].node == node)
            else {
                continue;
            };
            if local >= work.kill_at {
                self.stats.kills += 1;
                self.end_work(p, false);
            } else {
                let election = self.processes[p].election;
                let finding = self.works.runs(p, election, work.term);
                self.judge(crate::Check::Work, p, finding);
                let at = self.nodes[node].when(work.kill_at);
                self.queue.push(at, SimEvent::Kill { p, term: work.term });
            }
        }
        self.waking = false;
        for p in 0..self.processes.len() {
            if self.processes[p].node == node {
                self.causes.disturb(p, self.now);
                self.note(p, || "wakes".into());
                self.resume(p);
            }
        }
    }

    fn reboot(&mut self, node: usize) {
        self.stats.reboots += 1;
        self.nodes[node].suspended = false;
        for p in 0..self.processes.len() {
            if self.processes[p].node == node {
                self.processes[p].work = None;
                self.works.rests(p);
                self.crash(p);
            }
        }
        self.nodes[node].reboot(self.now);
    }

    fn upset_calendar(&mut self, p: usize) {
        self.stats.calendar_steps += 1;
        let most = self.swarm.calendar_ms;
        let off = self.rng.between(0, 2 * most) as i64 - most as i64;
        let bounded = matches!(self.swarm.expiry, Expiry::BoundedSkew(_));
        let freeze = self.rng.chance(40);
        let wall = &mut self.nodes[self.processes[p].node].wall;
        if freeze && !bounded {
            wall.freeze(self.now);
        } else {
            wall.step_to(off);
        }
        if self.swarm.store_clock == StoreClock::Stepping {
            self.store.stepped = self.rng.below(3_600 * SECOND);
        }
    }

    /// A watch loses its line, and says so or not.
    fn upset_line(&mut self) {
        let lines = self.store.lines.len() as u64;
        let index = self.rng.below(lines) as usize;
        let Some(line) = self.store.lines.get_mut(index).filter(|line| line.up) else {
            return;
        };
        self.stats.lines_lost += 1;
        line.up = false;
        let p = line.p;
        if self.rng.chance(50) {
            let at = self.now + self.rng.between(0, SECOND);
            self.post(p, at, ProcessInput::Input(Input::WatchUp(false)));
        }
        let at = self.now + self.rng.between(MILLI, 4 * self.swarm.lease);
        self.queue.push(at, SimEvent::LineUp { index });
    }

    fn somebody(&mut self) -> Option<Name> {
        let stand = self.swarm.candidates.len() / self.swarm.elections;
        candidate_name(self.rng.below(stand as u64) as usize).ok()
    }

    fn command(&mut self, p: usize) {
        if !matches!(self.processes[p].actor, Actor::Candidate(_)) {
            return;
        }
        self.stats.commands += 1;
        let to = self.somebody();
        let command = match (self.rng.below(5), to) {
            (0, _) => Command::Stop,
            (1 | 2, Some(to)) => Command::Transfer(to),
            _ => Command::Resign,
        };
        if self.processes[p].up {
            self.post(p, self.now, ProcessInput::Input(Input::Command(command)));
        }
    }

    fn ask_leader(&mut self) {
        let operator = self.processes.len() - 1;
        let to = self.somebody().filter(|_| self.rng.chance(50));
        let request = to.map_or(Request::Resign, Request::Transfer);
        if self.runs(operator) {
            self.leader_request(operator, request);
        }
    }
}
