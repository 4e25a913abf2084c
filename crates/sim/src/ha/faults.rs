//! What befalls agents, machines and the store from time to time.

use tenure_group::Input;

use super::events::GroupEvent;
use super::swarm::GroupFault;
use super::world::World;
use crate::clock::{MILLI, SECOND, pick};

impl World {
    pub(super) fn schedule_mishaps(&mut self) {
        for mishap in GroupFault::ALL {
            self.schedule(*mishap);
        }
    }

    fn schedule(&mut self, mishap: GroupFault) {
        let mean = mishap.rarity(&self.swarm.fault_rates) * (self.swarm.lease / 1_000);
        if mean > 0 {
            let at = self.now + self.rng.between(MILLI, 2 * mean);
            self.queue.push(at, GroupEvent::GroupFault(mishap));
        }
    }

    pub(super) fn mishap(&mut self, mishap: GroupFault) {
        if !self.faulty() {
            return;
        }
        self.schedule(mishap);
        let p = self.rng.below(self.agents.len() as u64) as usize;
        let lease = self.swarm.lease;
        match mishap {
            GroupFault::Pause => {
                let most = *pick(&mut self.rng, &[1, 2, 4]) * lease;
                let span = self.rng.between(0, most);
                self.pause(p, span);
            }
            GroupFault::Crash => {
                let most = if self.swarm.quick {
                    lease / 10
                } else {
                    2 * lease
                };
                let back = self.rng.between(MILLI, most);
                self.crash(p, Some(back));
            }
            GroupFault::Reboot => {
                let back = self.rng.between(SECOND / 10, 2 * lease);
                self.reboot(p, Some(back));
            }
            GroupFault::Outage => {
                self.stats.outages += 1;
                let until = self.now + self.rng.between(0, 2 * lease);
                self.store.outage = Some((until, self.rng.chance(50)));
            }
            GroupFault::Cut => {
                let until = self.now + self.rng.between(0, 3 * lease);
                let says = self.rng.chance(30);
                self.cut(p, until, says);
            }
            GroupFault::GroupStoreWatch => self.upset_line(p),
            GroupFault::Forget => self.forget(),
            GroupFault::Suspend => {
                let most = *pick(&mut self.rng, &[1, 3, 8]) * lease;
                let span = self.rng.between(MILLI, most);
                self.suspend(p, span);
            }
            GroupFault::Standstill => self.stand_still(p),
            GroupFault::Tear => self.tear(),
        }
    }

    /// An agent, or the store, stands still for many leases.
    fn stand_still(&mut self, p: usize) {
        self.stats.standstills += 1;
        let span = self.rng.between(2, 12) * self.swarm.lease;
        if self.rng.chance(50) {
            self.pause(p, span);
        } else {
            self.store.outage = Some((self.now + span, self.rng.chance(50)));
        }
    }

    /// The agent stops; its workloads and their guardian go on.
    pub(super) fn pause(&mut self, p: usize, span: u64) {
        if !self.agents[p].runs() {
            return;
        }
        self.stats.pauses += 1;
        self.trace_note(Some(p), || format!("is paused for {span} ns"));
        self.agents[p].paused = true;
        let life = self.agents[p].life;
        let at = self.now + span;
        self.queue.push(at, GroupEvent::Resume { p, life });
    }

    /// The agent is gone; its guardian ends the workloads at their deadline.
    pub(super) fn crash(&mut self, p: usize, back: Option<u64>) {
        if !self.agents[p].up || self.sleeps(p) {
            return;
        }
        self.stats.crashes += 1;
        self.trace_note(Some(p), || "crashes".into());
        let agent = &mut self.agents[p];
        (agent.up, agent.paused, agent.machine) = (false, false, None);
        agent.life += 1;
        self.store.lines[p].up = false;
        self.users.forget(p);
        if let Some(back) = back {
            let life = self.agents[p].life;
            let at = self.now + back;
            self.queue.push(at, GroupEvent::Restart { p, life });
        }
    }

    /// The machine is gone, and everything on it.
    pub(super) fn reboot(&mut self, p: usize, back: Option<u64>) {
        if self.sleeps(p) {
            return;
        }
        self.stats.reboots += 1;
        self.trace_note(Some(p), || "reboots".into());
        self.end_all(p);
        self.crash(p, back);
        self.machines[p].reboot(self.now);
        self.agents[p].run_deadline.1 = 0;
    }

    pub(super) fn cut(&mut self, p: usize, until: u64, says: bool) {
        self.stats.cuts += 1;
        self.trace_note(Some(p), || format!("is cut off until {until}"));
        self.store.cuts[p] = Some((until, says));
    }

    /// A watch loses its line, and says so or not.
    fn upset_line(&mut self, p: usize) {
        if !self.store.lines[p].up {
            return;
        }
        self.store.lines[p].up = false;
        if self.rng.chance(50) {
            let at = self.now + self.rng.between(0, SECOND);
            let life = self.agents[p].life;
            let input = Input::WatchUp(false);
            self.queue.push(at, GroupEvent::Mail { p, life, input });
        }
        let at = self.now + self.rng.between(MILLI, 4 * self.swarm.lease);
        self.queue.push(at, GroupEvent::LineUp(p));
    }
}
