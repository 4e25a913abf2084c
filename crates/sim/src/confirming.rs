//! Work that confirms (§4.13): what its guardian hears and says.
//!
//! The work of some candidates runs in another process. Its guardian hears of
//! each grant a while after the candidate, and says by which grant the work
//! goes; both take their time. A guardian may hang, for a while or for good,
//! beside a healthy candidate and a healthy store: it hears nothing then, the
//! go-ahead among it, and says nothing.
//!
//! While the guardian hangs, the candidate's own *watchdog* ends the work at
//! `kill_at` (`docs/design/run.md`). If both are stopped, no process reads the
//! clock, and only the fence protects. That case is left out: where the
//! candidate does not run either, the work ends at the `kill_at` that its
//! guardian knows.

use tenure_core::cas::{Stamp, Write};
use tenure_core::ids::Term;
use tenure_core::time::Instant;
use tenure_election::{Grant, Input, Record};

use crate::checkers::{Check, Confirmed};
use crate::clock::MILLI;
use crate::events::SimEvent;
use crate::simulated_process::{Actor, GuardianMessage, ProcessInput};
use crate::world::World;

impl World {
    /// How long a word takes between candidate and guardian.
    fn word(&mut self) -> u64 {
        let most = if self.faulty() {
            self.swarm.words
        } else {
            MILLI
        };
        self.words.between(0, most)
    }

    /// How long the go-ahead for work takes. Where work confirms, a slow one
    /// costs the leadership, so it is prompt once all is well.
    pub(crate) fn go_ahead(&self, p: usize, delay: u64) -> u64 {
        if self.processes[p].config.require_work_confirmation && !self.faulty() {
            delay.min(MILLI)
        } else {
            delay
        }
    }

    /// Tells the guardian of a grant.
    pub(crate) fn feed(&mut self, p: usize, term: Term, grant: Grant) {
        let at = self.now + self.word();
        self.send_to_guardian(p, at, GuardianMessage::Granted(term, grant));
    }

    fn send_to_guardian(&mut self, p: usize, at: u64, what: GuardianMessage) {
        let life = self.processes[p].life;
        self.queue.push(at, SimEvent::Guardian { p, life, what });
    }

    pub(crate) fn reaches_guardian(&mut self, p: usize, what: GuardianMessage) {
        let proc = &self.processes[p];
        if self.nodes[proc.node].suspended {
            return self.send_to_guardian(p, self.now + 10 * MILLI, what);
        }
        let guardian = &proc.guardian;
        let hangs = |number| guardian.hung && guardian.number == number;
        match what {
            GuardianMessage::Granted(term, grant) => self.follow(p, term, grant),
            GuardianMessage::GoesOn(number) if hangs(number) => self.goes_on(p),
            GuardianMessage::Due(term, number) if hangs(number) => {
                let finding = Confirmed::due(p, proc.election, term, self.now, &self.leaderships);
                self.judge(Check::Confirms, p, finding);
            }
            GuardianMessage::GoesOn(_) | GuardianMessage::Due(..) => {}
        }
    }

    /// The guardian takes over the deadlines of a grant, and says so.
    fn follow(&mut self, p: usize, term: Term, grant: Grant) {
        let proc = &mut self.processes[p];
        if proc.guardian.hung {
            proc.guardian.grant = Some((term, grant));
            return;
        }
        if let Some(work) = proc.work.as_mut().filter(|work| work.term == term) {
            // Extensions only.
            work.kill_at = work.kill_at.max(grant.kill_at);
            self.say(p, term, grant.start);
        }
    }

    /// Says that the work of `term` goes by the grant of `start`.
    pub(crate) fn say(&mut self, p: usize, term: Term, start: Instant) {
        if !self.processes[p].config.require_work_confirmation {
            return;
        }
        self.stats.words += 1;
        self.processes[p].guardian.confirmed.says(term, start);
        let at = self.now + self.word();
        self.post(p, at, ProcessInput::Word(start));
    }

    /// The candidate hears it.
    pub(crate) fn heard(&mut self, p: usize, start: Instant) {
        let proc = &mut self.processes[p];
        proc.guardian.confirmed.hears(start);
        let took = self.nodes[proc.node].boot(self.now).since(start);
        if took > proc.config.interval * 3 / 2 {
            // Too little time may be left for a renewal.
            self.causes.disturb(p, self.now);
        }
        self.step(p, Some(Input::WorkConfirmed { start }));
    }

    /// The candidate is about to extend its grant: by this write, or by a sign
    /// of life of its session.
    pub(crate) fn extends(&mut self, p: usize, write: Option<&Write>) {
        let proc = &self.processes[p];
        let leadership = proc.leadership.filter(|o| !o.draining && !o.ousted);
        let Some(leadership) = leadership.filter(|_| proc.config.require_work_confirmation) else {
            return;
        };
        let held = |write: &Write| {
            let record = Record::decode(&write.value);
            let fence = leadership.fence;
            record.is_ok_and(|record| record.is_held_by(fence.leader, fence.term))
        };
        // A request, for another leader, extends nothing.
        if write.is_none_or(|write| write.stamp != Stamp::Keep && held(write)) {
            let finding = proc.guardian.confirmed.extends(&leadership);
            self.judge(Check::Confirms, p, finding);
        }
    }

    /// The guardian of `p` hangs, for a while or for good.
    pub(crate) fn hang(&mut self, p: usize) {
        let for_good = self.words.chance(50);
        let span = self.words.between(MILLI, 3 * self.swarm.lease);
        if let Some(number) = self.hang_up(p)
            && !for_good
        {
            self.send_to_guardian(p, self.now + span, GuardianMessage::GoesOn(number));
        }
    }

    /// The guardian of `p` hangs from now on.
    pub(crate) fn hang_up(&mut self, p: usize) -> Option<u64> {
        let proc = &mut self.processes[p];
        let stands =
            matches!(proc.actor, Actor::Candidate(_)) && proc.config.require_work_confirmation;
        if !proc.up || !stands || proc.guardian.hung {
            return None;
        }
        proc.guardian.hung = true;
        proc.guardian.number += 1;
        let number = proc.guardian.number;
        let term = proc.leadership.map(|leadership| leadership.fence.term);
        let lease = proc.config.lease.as_nanos() as u64;
        self.stats.hangs += 1;
        self.causes.disturb(p, self.now);
        self.note(p, || "its guardian hangs".into());
        if let Some(term) = term {
            let at = self.now + self.at_worst(2 * lease);
            self.send_to_guardian(p, at, GuardianMessage::Due(term, number));
        }
        Some(number)
    }

    /// The guardian of `p` goes on, and reads what it was told meanwhile.
    pub(crate) fn goes_on(&mut self, p: usize) {
        let guardian = &mut self.processes[p].guardian;
        if !guardian.hung {
            return;
        }
        let (begin, grant) = (guardian.begin.take(), guardian.grant.take());
        guardian.hung = false;
        self.causes.disturb(p, self.now);
        self.note(p, || "its guardian goes on".into());
        if let Some(term) = begin {
            self.begin_work(p, term);
        }
        if let Some((term, grant)) = grant {
            self.follow(p, term, grant);
        }
        let proc = &self.processes[p];
        let draining = proc
            .leadership
            .is_some_and(|leadership| leadership.draining);
        if let Some(work) = proc.work.filter(|_| draining) {
            // It finds out by its own clock that the work has to stop.
            let most = proc.config.grace.as_nanos() as u64 / 2;
            let at = self.now + self.words.between(0, most);
            let term = work.term;
            self.queue.push(at, SimEvent::WorkEnds { p, term });
        }
    }

    /// Whether the go-ahead waits for a guardian that hangs.
    pub(crate) fn begins_later(&mut self, p: usize, term: Term) -> bool {
        let guardian = &mut self.processes[p].guardian;
        if guardian.hung {
            guardian.begin = Some(term);
        }
        guardian.hung
    }

    /// A deadline of the work has come: where the guardian hangs, the
    /// candidate's watchdog looks in its stead, and knows the latest grant.
    pub(crate) fn watchdog_looks(&mut self, p: usize, term: Term) {
        if !self.processes[p].guardian.hung || !self.runs(p) {
            return;
        }
        let proc = &mut self.processes[p];
        let leadership = proc
            .leadership
            .filter(|leadership| leadership.fence.term == term);
        if let (Some(leadership), Some(work)) = (leadership, proc.work.as_mut()) {
            work.kill_at = work.kill_at.max(leadership.grant.kill_at);
        }
    }
}
