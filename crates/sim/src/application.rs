//! The application of a candidate, and the guardian of its work.
//!
//! Work begins a little after `Elected` (and not at all if the go-ahead comes
//! too late), is told to stop at `Draining`, takes its time, and is killed at
//! the `kill_at` of the latest grant known. The killing is not done by the
//! candidate: a *guardian*, another process with its own copy of the deadlines,
//! does it on the same clock even while the candidate is paused. When the work
//! has ended the candidate is told so, and only then does it leave the
//! election.
//!
//! Left out: what the work does. All that matters here is when it runs.

use tenure_core::ids::{Fence, Term};
use tenure_election::{Event, Grant, Input, Why};

use crate::checkers::{Causes, Check, Works};
use crate::clock::{MILLI, pick};
use crate::events::SimEvent;
use crate::leadership::{Leadership, Work};
use crate::simulated_process::ProcessInput;
use crate::world::World;

impl World {
    /// The application of `p` hears of an event.
    pub(crate) fn tell(&mut self, p: usize, event: &Event) {
        match event {
            Event::Elected { fence, grant } => self.elected(p, *fence, *grant),
            Event::Renewed { term, grant } => self.renewed(p, *term, *grant),
            Event::Draining { why, .. } => self.draining(p, why),
            Event::Kill { .. } => {
                self.with_leadership(p, |leadership| leadership.killed = true);
                self.end_work(p, true);
                self.ensure_drained(p);
            }
            Event::Ousted { why, .. } => self.ousted(p, why),
            Event::LeaderChanged(seen) | Event::LeaderRenewed(seen) => self.claimed(p, seen),
            Event::Trouble { .. } => self.stats.troubles += 1,
            Event::TermFell(fallen) => {
                self.stats.falls += 1;
                self.processes[p].floors.told(fallen.floor);
            }
            Event::Recovered => {}
            Event::Stopped => self.stopped(p),
            unknown => unreachable!("the simulator does not know {unknown:?}"),
        }
    }

    fn with_leadership(&mut self, p: usize, change: impl FnOnce(&mut Leadership)) {
        if let Some(leadership) = &mut self.processes[p].leadership {
            change(leadership);
        }
    }

    fn elected(&mut self, p: usize, fence: Fence, grant: Grant) {
        let election = self.processes[p].election;
        self.stats.elections += 1;
        if self.held_before[election] {
            self.stats.take_overs += 1;
        }
        let finding = self.terms[election].elected(fence);
        self.judge(Check::Terms, p, finding);
        let finding = self.processes[p].floors.elected(fence);
        self.judge(Check::Floors, p, finding);
        self.processes[p].leadership = Some(Leadership {
            fence,
            grant,
            draining: false,
            killed: false,
            ousted: false,
            drained: false,
        });
        self.granted(p, fence, grant);
        let slowest = *pick(&mut self.rng, &[MILLI, MILLI, 50 * MILLI, self.swarm.lease]);
        let delay = self.rng.between(0, slowest);
        let delay = self.go_ahead(p, delay);
        self.post(p, self.now + delay, ProcessInput::Begin(fence.term));
        self.guarded(p, fence.term);
    }

    fn granted(&mut self, p: usize, fence: Fence, grant: Grant) {
        let proc = &self.processes[p];
        let node = &self.nodes[proc.node];
        let start = node.when(grant.start);
        let finding = self.terms[proc.election].granted(fence, start);
        let life = proc.life;
        for deadline in [grant.drain_at, grant.kill_at, grant.valid_until] {
            let at = node.when(deadline) + 1;
            self.queue.push(at, SimEvent::Look { p, life });
        }
        self.judge(Check::Grants, p, finding);
    }

    fn renewed(&mut self, p: usize, term: Term, grant: Grant) {
        self.stats.renewals += 1;
        let Some(leadership) = self.processes[p]
            .leadership
            .as_mut()
            .filter(|o| o.fence.term == term)
        else {
            return;
        };
        leadership.grant = grant;
        let fence = leadership.fence;
        if self.processes[p].config.require_work_confirmation {
            self.feed(p, term, grant);
        } else if let Some(work) = self.processes[p]
            .work
            .as_mut()
            .filter(|work| work.term == term)
        {
            // Extensions only.
            work.kill_at = work.kill_at.max(grant.kill_at);
        }
        self.granted(p, fence, grant);
    }

    fn draining(&mut self, p: usize, why: &Why) {
        let Some(leadership) = &mut self.processes[p].leadership else {
            return;
        };
        leadership.draining = true;
        let leadership = *leadership;
        let (term, election) = (leadership.fence.term, self.processes[p].election);
        let lease = self.processes[p].config.lease.as_nanos() as u64;
        let finding = match why {
            Why::Unconfirmed => {
                self.stats.unconfirmed += 1;
                // The holder's clock may be slow.
                self.causes.unconfirmed(p, self.now, lease + lease / 5)
            }
            Why::Requested => {
                self.stats.requested += 1;
                self.requests.asked(election, term)
            }
            Why::Transferred(_) => {
                self.stats.transfers += 1;
                Ok(())
            }
            Why::AffinityEnded => {
                self.stats.affinities += 1;
                Ok(())
            }
            Why::WorkUnconfirmed => {
                self.stats.work_unconfirmed += 1;
                self.processes[p].guardian.confirmed.unheard(&leadership)
            }
            Why::Resigned | Why::Replaced => {
                self.stats.resignations += 1;
                Ok(())
            }
            unknown => unreachable!("the simulator does not know {unknown:?}"),
        };
        let check = if *why == Why::Requested {
            Check::Requests
        } else {
            Check::Causes
        };
        self.judge(check, p, finding);
        if self.processes[p].work.is_none() {
            return self.ensure_drained(p);
        }
        let grace = self.processes[p].config.grace.as_nanos() as u64;
        let stubborn = self.rng.chance(self.swarm.stubborn);
        let most = if stubborn { lease * 2 } else { grace / 2 };
        let at = self.now + self.rng.between(0, most);
        self.queue.push(at, SimEvent::WorkEnds { p, term });
    }

    fn ousted(&mut self, p: usize, why: &Why) {
        let Some(leadership) = &mut self.processes[p].leadership else {
            return;
        };
        leadership.ousted = true;
        let fence = leadership.fence;
        if *why == Why::Replaced {
            self.stats.replaced += 1;
            let finding = Causes::replaced(fence, &self.terms[self.processes[p].election]);
            self.judge(Check::Causes, p, finding);
        }
        self.end_work(p, true);
        self.ensure_drained(p);
    }

    fn stopped(&mut self, p: usize) {
        self.stats.stops += 1;
        self.end_work(p, true);
        let life = self.processes[p].life;
        let at = self.now + self.rng.between(MILLI, self.swarm.lease);
        self.queue.push(at, SimEvent::Restart { p, life });
    }

    /// The go-ahead for the work of `term` has reached the guardian.
    pub(crate) fn begin_work(&mut self, p: usize, term: Term) {
        if self.begins_later(p, term) {
            return;
        }
        let proc = &self.processes[p];
        let now = self.nodes[proc.node].boot(self.now);
        let good = |leadership: &&Leadership| {
            leadership.fence.term == term
                && !leadership.draining
                && !leadership.killed
                && !leadership.drained
                && now < leadership.grant.drain_at
        };
        let Some(leadership) = proc.leadership.as_ref().filter(good) else {
            self.stats.late_starts += 1;
            return;
        };
        let (start, kill_at) = (leadership.grant.start, leadership.grant.kill_at);
        let at = self.nodes[proc.node].when(kill_at);
        let election = proc.election;
        self.processes[p].work = Some(Work { term, kill_at });
        self.stats.works += 1;
        let finding = self.works.runs(p, election, term);
        self.judge(Check::Work, p, finding);
        self.queue.push(at, SimEvent::Kill { p, term });
        self.say(p, term, start);
        // Now and then work ends by itself.
        if self.faulty() && self.rng.chance(3) {
            let at = self.now + self.rng.between(0, 3 * self.swarm.lease);
            self.queue.push(at, SimEvent::WorkEnds { p, term });
        }
    }

    /// The guardian's timer.
    pub(crate) fn guard(&mut self, p: usize, term: Term) {
        self.watchdog_looks(p, term);
        let proc = &self.processes[p];
        let node = &self.nodes[proc.node];
        let Some(work) = proc.work.filter(|work| work.term == term) else {
            return;
        };
        if node.suspended {
            // It looks as soon as the machine wakes.
            return;
        }
        if node.boot(self.now) >= work.kill_at {
            self.stats.kills += 1;
            self.end_work(p, false);
        } else {
            let at = node.when(work.kill_at);
            self.queue.push(at, SimEvent::Kill { p, term });
        }
    }

    pub(crate) fn work_ends(&mut self, p: usize, term: Term) {
        if self.processes[p].work.is_none_or(|work| work.term != term) {
            return;
        }
        if self.processes[p].guardian.is_hung() {
            // It has not been told to stop, and says nothing of an end.
            return;
        }
        if self.nodes[self.processes[p].node].suspended {
            let at = self.now + 10 * MILLI;
            return self.queue.push(at, SimEvent::WorkEnds { p, term });
        }
        self.end_work(p, false);
    }

    /// Work is over; `told` if the candidate itself had it killed, which the
    /// late guardian of a suspended machine is no proof against.
    pub(crate) fn end_work(&mut self, p: usize, told: bool) {
        let Some(work) = self.processes[p].work.take() else {
            return;
        };
        let node = &self.nodes[self.processes[p].node];
        let kill_at = node.when(work.kill_at);
        self.works.rests(p);
        if !node.suspended && !self.waking && !told {
            let finding = Works::ended(work.term, self.now, kill_at);
            self.judge(Check::Work, p, finding);
        }
        self.note(p, || format!("work of term {} has ended", work.term));
        self.ensure_drained(p);
    }

    /// The candidate learns, some time from now, that its work has ended.
    fn ensure_drained(&mut self, p: usize) {
        if self.processes[p].work.is_some() || !self.processes[p].up {
            return;
        }
        let Some(leadership) = self.processes[p]
            .leadership
            .as_mut()
            .filter(|leadership| !leadership.drained)
        else {
            return;
        };
        leadership.drained = true;
        self.processes[p].guardian.replace();
        let at = self.now + self.rng.between(0, self.swarm.reap);
        self.post(p, at, ProcessInput::Input(Input::Drained));
    }
}
