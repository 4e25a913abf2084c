//! Work that is polled in the candidate's own process (`Leadership::guard`).
//!
//! Unlike the work of `application`, which a guardian ends, nothing outside can
//! stop it: it takes steps whenever its task is woken. When a process goes on
//! after a pause, its task may run before the thread that would end it at its deadline.
//! So the clock is asked before each step ([`Grant::may_step`]), and whether a
//! step was taken too late is judged here on true grants and clocks.
//!
//! Left out: how long a step takes. A pause inside one is for the fence.
//!
//! [`Grant::may_step`]: tenure_election::Grant::may_step

use tenure_core::ids::Term;
use tenure_core::time::Instant;
use tenure_election::Grant;

use crate::checkers::{Check, step};
use crate::clock::MILLI;
use crate::events::SimEvent;
use crate::simulated_process::{Guarded, SimProcess};
use crate::world::World;

impl World {
    /// The application of `p` begins guarded work.
    pub(crate) fn guarded(&mut self, p: usize, term: Term) {
        if self.swarm.guarded {
            self.processes[p].guarded = Some(Guarded { term, woken: false });
            self.wake_task(p, term);
        }
    }

    fn wake_task(&mut self, p: usize, term: Term) {
        let life = self.processes[p].life;
        let at = self.now + self.rng.between(MILLI, self.swarm.lease / 4);
        self.queue.push(at, SimEvent::Step { p, life, term });
    }

    /// The task is woken.
    pub(crate) fn woken(&mut self, p: usize, term: Term) {
        let runs = self.runs(p);
        let Some(guarded) = self.processes[p].guarded.as_mut() else {
            return;
        };
        if guarded.term != term {
            return;
        }
        if runs {
            self.poll_work(p);
        } else {
            guarded.woken = true;
        }
    }

    /// `p` runs again, and its executor has a thread.
    pub(crate) fn resume_task(&mut self, p: usize) {
        if self.processes[p]
            .guarded
            .is_some_and(|guarded| guarded.woken)
        {
            self.poll_work(p);
        }
    }

    /// What the guard does when its task runs.
    fn poll_work(&mut self, p: usize) {
        let proc = &self.processes[p];
        let Some(Guarded { term, .. }) = proc.guarded else {
            return;
        };
        let now = self.nodes[proc.node].boot(self.now);
        let leadership = proc
            .leadership
            .filter(|leadership| leadership.fence.term == term);
        let pulled = leadership.is_none_or(|leadership| leadership.draining || leadership.ousted);
        let may = leadership.is_some_and(|leadership| may_step(proc, &leadership.grant, now));
        let Some(leadership) = leadership.filter(|_| !pulled && may) else {
            // Dropped, and with it the leadership.
            self.processes[p].guarded = None;
            return;
        };
        self.stats.guarded_steps += 1;
        let finding = step(
            p,
            &leadership,
            now,
            self.now,
            self.leaderships.of(p),
            &self.leaderships,
        );
        self.judge(Check::Guard, p, finding);
        self.processes[p].guarded = Some(Guarded { term, woken: false });
        self.wake_task(p, term);
    }
}

/// What the guard of this process's application is told by its clock.
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unused_variables, reason = "the mistake is in the process's config")
)]
fn may_step(proc: &SimProcess, grant: &Grant, now: Instant) -> bool {
    #[cfg(feature = "planted-bugs")]
    if proc.config.planted == Some(crate::Bug::GuardByTimer) {
        return true;
    }
    grant.may_step(now)
}
