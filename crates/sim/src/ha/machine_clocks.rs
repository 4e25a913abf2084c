//! What each life of an agent is shown of its machine's clock, and machines
//! that are suspended.
//!
//! An agent may live in a container: one that masks the boot id, shows another
//! one, or has a clock of its own (a time namespace). Its next life may live in
//! another. Its guardian outlives it and reads the clock of the life that
//! started it. So an agent goes on, and keeps its guardian, only where both
//! boot ids can be read and are equal ([`may_resume`]); else it ends everything
//! and starts a guardian of its own.
//!
//! While a machine is suspended nothing on it takes a step, and its boot-time
//! clock goes on. When it wakes guardians look first.
//!
//! Left out: two machines, or two clocks, with one readable boot id.
//!
//! [`may_resume`]: tenure_group::may_resume

use tenure_core::time::{Instant, Now};

use super::checkers::{Check, Finding};
use super::events::GroupEvent;
use super::simulated_agent::{ClockReading, ClockView};
use super::world::World;
use crate::clock::{MILLI, TrueTime};

impl World {
    /// A new life of `p` begins somewhere.
    pub(super) fn settle_in(&mut self, p: usize) {
        // Mostly where the one before it was.
        if self.swarm.foreign && self.rng.chance(50) {
            self.agents[p].clock_view = ClockView::draw(&mut self.rng);
        }
        let (clock_view, boot) = (self.agents[p].clock_view, self.machines[p].boot_id);
        self.agents[p].reads = ClockReading::of(clock_view, boot, self.swarm.lease);
    }

    /// What `p` reads at this moment.
    pub(super) fn local(&self, p: usize) -> Now {
        let now = self.machines[p].now(self.now);
        Now {
            boot: ahead(now.boot, self.agents[p].reads.ahead),
            ..now
        }
    }

    /// What `p` reads at `t`.
    pub(super) fn local_at(&self, p: usize, t: TrueTime) -> Instant {
        ahead(self.machines[p].boot(t), self.agents[p].reads.ahead)
    }

    /// When `p` reads that.
    pub(super) fn when(&self, p: usize, at: Instant) -> TrueTime {
        let ahead = self.agents[p].reads.ahead;
        self.machines[p].when(behind(at, ahead))
    }

    /// The time by the clock that the guardian of `p` reads.
    pub(super) fn guarded_now(&self, p: usize) -> Instant {
        ahead(self.machines[p].boot(self.now), self.agents[p].shim.ahead)
    }

    /// When the guardian of `p` reads that; at once, if it has.
    pub(super) fn guarded_when(&self, p: usize, at: Instant) -> TrueTime {
        let ahead = self.agents[p].shim.ahead;
        self.machines[p].when(behind(at, ahead)).max(self.now)
    }

    /// The agent and its guardian must read one clock, or the times that one
    /// tells the other mean nothing.
    pub(super) fn check_clocks(&self, p: usize) -> Finding {
        let agent = &self.agents[p];
        if agent.reads.is_one(&agent.shim) {
            return Ok(());
        }
        Err(format!(
            "it reads {:?}, and tells times to a guardian that reads {:?}",
            agent.reads, agent.shim
        ))
    }

    /// Whether `p` sleeps with its machine.
    pub(super) fn sleeps(&self, p: usize) -> bool {
        self.now < self.agents[p].sleeps_until
    }

    /// The machine stands still, and everything on it.
    pub(super) fn suspend(&mut self, p: usize, span: u64) {
        if self.sleeps(p) {
            return;
        }
        self.stats.suspends += 1;
        self.trace_note(Some(p), || format!("is suspended for {span} ns"));
        let until = self.now + span;
        let agent = &mut self.agents[p];
        agent.sleeps_until = until;
        agent.paused |= agent.up;
        self.once.rests(p);
        self.queue.push(until, GroupEvent::Wake(p));
    }

    /// The machine is suspended until it is judged dead, mostly. What its agent
    /// was writing lands in a view that it never sees: its watch has no line
    /// then, and has one again before it wakes, perhaps.
    pub(super) fn nap(&mut self, p: usize) {
        if !self.faulty() || !self.store.lines[p].up || self.sleeps(p) {
            return;
        }
        let lease = self.swarm.lease;
        let span = self.rng.between(lease, 3 * lease);
        self.store.lines[p].up = false;
        self.suspend(p, span);
        let at = self.now + self.rng.between(lease, 3 * lease);
        self.queue.push(at, GroupEvent::LineUp(p));
    }

    /// The machine goes on; guardians look first.
    pub(super) fn wake(&mut self, p: usize) {
        let agent = &mut self.agents[p];
        if agent.sleeps_until == 0 || self.now < agent.sleeps_until {
            return;
        }
        agent.sleeps_until = 0;
        self.trace_note(Some(p), || "wakes".into());
        self.end_by_deadline(p);
        let names = self.agents[p].works.values();
        let names: Vec<_> = names.map(|work| work.order.name.clone()).collect();
        for name in names {
            let finding = self.once.wakes(&self.agents[p].config, &name, p);
            self.judge(Check::Once, Some(p), finding);
        }
        self.unpause(p);
    }

    /// All that sleep wake.
    pub(super) fn wake_all(&mut self) {
        for p in 0..self.agents.len() {
            if self.sleeps(p) {
                self.agents[p].sleeps_until = self.now;
                self.wake(p);
            }
        }
    }

    /// What happens on a machine that sleeps happens when it wakes.
    pub(super) fn unless_asleep(&mut self, happening: GroupEvent) -> Option<GroupEvent> {
        let p = match &happening {
            GroupEvent::Up { p, .. }
            | GroupEvent::Down { p, .. }
            | GroupEvent::Restart { p, .. } => *p,
            _ => return Some(happening),
        };
        if !self.sleeps(p) {
            return Some(happening);
        }
        let at = self.agents[p].sleeps_until + MILLI;
        self.queue.push(at, happening);
        None
    }
}

const fn ahead(at: Instant, by: u64) -> Instant {
    Instant::from_nanos(at.as_nanos().saturating_add(by))
}

const fn behind(at: Instant, by: u64) -> Instant {
    Instant::from_nanos(at.as_nanos().saturating_sub(by))
}
