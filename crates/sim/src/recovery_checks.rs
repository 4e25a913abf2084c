//! Once faults stop there must be a leader in time, and it must stay.
//!
//! How soon follows from the times that candidates were told (`§4`): at
//! worst somebody has just seen, at the end of a call that hung and a pause
//! for a store in trouble, a renewal that landed just before, and waits a
//! lease, a jitter and its priority's turn. After that nothing may change for
//! three leases. Then comes an examination: the leader dies, or is asked to
//! leave, and the next one must be there in time.

use tenure_core::ids::Term;
use tenure_election::{Command, Expiry, Input};

use crate::checkers::{Check, Held};
use crate::events::SimEvent;
use crate::simulated_process::{Actor, ProcessInput, SimProcess};
use crate::world::RecoveryExam;
use crate::world::{SHORTLY, World};

impl World {
    /// All faults end.
    pub(crate) fn heal(&mut self) {
        self.healed = true;
        self.store.outage = None;
        self.store.refuses_until = 0;
        self.store.cuts.fill(None);
        self.join();
        self.refresh_sessions();
        for node in 0..self.nodes.len() {
            self.wake(node);
        }
        for p in 0..self.processes.len() {
            self.note(p, || "all is well from now on".into());
            self.unpause(p);
            self.goes_on(p);
            let stopped = match &self.processes[p].actor {
                Actor::Candidate(campaign) => campaign.is_stopped(),
                Actor::Observer(_) | Actor::RequestSender(_) => false,
            };
            if !self.processes[p].up || stopped {
                self.restart(p);
            }
        }
        for index in 0..self.store.lines.len() {
            self.line_up(index);
        }
        let at = self.now + self.settling();
        self.queue.push(at, SimEvent::Settled);
    }

    /// A span of local time, at worst.
    pub(crate) const fn at_worst(&self, local: u64) -> u64 {
        let ppm = self.swarm.drift.ppm() as u64;
        local / (1_000_000 - ppm) * 1_000_000 + 1_000_000
    }

    fn interval(&self) -> u64 {
        let intervals = self
            .swarm
            .candidates
            .iter()
            .map(|config| config.interval.as_nanos());
        intervals.max().unwrap_or(0) as u64
    }

    fn turn(&self) -> u64 {
        let waits = self.swarm.candidates.iter();
        let waits = waits.map(|config| config.priority.wait(config.lease).as_nanos());
        waits.max().unwrap_or(0) as u64
    }

    /// How long until somebody who does not look learns of a change.
    fn notice(&self) -> u64 {
        if self.swarm.watch {
            0
        } else {
            self.interval() * 11 / 10
        }
    }

    /// From a renewal to the next leadership, if the holder dies at once.
    fn take_over(&self) -> u64 {
        let lease = self.swarm.lease;
        let judged = self
            .swarm
            .drift
            .lengthen(std::time::Duration::from_nanos(lease));
        // By the calendar the skew comes on top: once by the rule, and once
        // more because the judge's calendar may be behind by as much.
        let skew = match self.swarm.expiry {
            Expiry::BoundedSkew(skew) => 2 * skew.as_nanos() as u64,
            _ => 0,
        };
        let local = judged.as_nanos() as u64 + skew + lease / 10 + self.turn() + self.notice();
        self.at_worst(local) + 6 * self.swarm.hop()
    }

    /// From the end of faults until all is as it should be.
    fn settling(&self) -> u64 {
        let (lease, interval) = (self.swarm.lease, self.interval());
        // A call that hung, and a pause because something seemed broken.
        let late = self.at_worst(lease / 2 + lease);
        // Somebody may have been asked to leave just before, in favour of
        // another, while its work does not care.
        let leaving = self.at_worst(lease + interval * 3);
        let once = late + leaving + self.take_over();
        once * self.swarm.elections as u64 + self.rising()
    }

    /// How long until the terms are above all that anybody remembers, where
    /// the store has lost some. A candidate may have asked for nothing just
    /// before, and asks again a lease later. At worst each of them remembers a
    /// term of its own and they come in the order of these: then each leads
    /// once, and drains for the next, which takes as long as a grant at worst.
    fn rising(&self) -> u64 {
        if !self.store.store_damage.ever {
            return 0;
        }
        let stand = self.swarm.candidates.len() as u64;
        let (lease, interval) = (self.swarm.lease, self.interval());
        self.at_worst(lease + stand * (lease + 3 * interval)) + stand * self.swarm.reap
    }

    /// What the living candidates of an election were told of terms.
    fn floor(&self, election: usize) -> Term {
        let candidates = self
            .processes
            .iter()
            .filter(|proc| proc.election == election && matches!(proc.actor, Actor::Candidate(_)));
        candidates
            .map(|proc| proc.floors.floor())
            .max()
            .unwrap_or_default()
    }

    /// Whether a living candidate remembers another leader of this term than
    /// the register shows.
    fn had_before(&self, election: usize, term: Term) -> bool {
        let holder = self.terms[election].last().and_then(|shown| shown.holder);
        let stands = |proc: &&SimProcess| {
            proc.election == election && matches!(proc.actor, Actor::Candidate(_))
        };
        let mut candidates = self.processes.iter().filter(stands);
        holder.is_some_and(|id| candidates.any(|it| it.floors.knows_another(term, id)))
    }

    /// Who leads, by its own clock and by the register.
    fn leader(&self, election: usize) -> Option<(usize, Held)> {
        let shown = self.terms[election].last()?;
        let mut valid = self.leaderships.valid(election, self.now);
        valid.find(|(_, held)| held.term == shown.term && shown.holder.is_some())
    }

    /// Somebody must lead by now.
    pub(crate) fn settled(&mut self) {
        let mut terms = Vec::new();
        for election in 0..self.swarm.elections {
            match self.leader(election) {
                // A candidate that goes with another election may have to wait
                // for it.
                Some((_, held)) if election == 0 && held.term < self.floor(election) => {
                    let (term, floor) = (held.term, self.floor(election));
                    let finding = format!("term {term} leads, though {floor} is remembered");
                    self.judge(Check::Floors, 0, Err(finding));
                    return self.end();
                }
                Some((_, held)) if election == 0 && self.had_before(election, held.term) => {
                    let text = format!("term {} leads again, under another leader", held.term);
                    self.judge(Check::Floors, 0, Err(text));
                    return self.end();
                }
                Some((_, held)) => terms.push(held.term),
                None => return self.dead("nobody leads, long after all faults have ended"),
            }
        }
        self.exam = Some(RecoveryExam {
            terms,
            next: None,
            not: None,
            what: "nothing",
        });
        let at = self.now + 3 * self.swarm.lease;
        self.queue.push(at, SimEvent::Stable);
    }

    /// Nobody must have left since.
    pub(crate) fn stable(&mut self) {
        let Some(exam) = self.exam.clone() else {
            return;
        };
        for (election, term) in exam.terms.iter().enumerate() {
            match self.leader(election) {
                Some((_, held)) if held.term == *term => {}
                _ => return self.dead("the leader changed, though nothing happened"),
            }
        }
        match self.leader(0) {
            Some((leader, _)) if self.swarm.elections == 1 => self.examine(leader, exam),
            _ => self.end(),
        }
    }

    /// The guardian of the leader's work hangs, beside a healthy store. What
    /// it has said already may be good for one renewal more, an interval after
    /// the last. The grant of that one ends like a dead leader's at the latest;
    /// its holder holds itself back for two intervals, and may be alone.
    fn examine_hang(&mut self, leader: usize, mut exam: RecoveryExam) {
        exam.what = "the guardian of the leader's work hung";
        let config = &self.swarm.candidates[leader];
        let (kill_margin, stand) = (config.kill_margin, self.swarm.candidates.len());
        let (name, hop) = (config.name.clone(), self.swarm.hop());
        // Where the election is vacated in time, the candidate that notices at
        // once is first.
        let vacated = kill_margin.as_nanos() as u64 > self.at_worst(self.swarm.reap) + 6 * hop;
        if vacated && stand > 1 && self.swarm.watch && self.turn() == 0 {
            exam.not = Some(name);
        }
        let bound = self.at_worst(4 * self.interval()) + self.swarm.reap + 6 * hop;
        let at = self.now + bound + self.take_over();
        let _ = self.hang_up(leader);
        self.stats.exams += 1;
        self.exam = Some(exam);
        self.queue.push(at, SimEvent::Examined);
    }

    /// The leader dies, or has to leave.
    fn examine(&mut self, leader: usize, mut exam: RecoveryExam) {
        if self.processes[leader].config.require_work_confirmation && self.words.chance(50) {
            return self.examine_hang(leader, exam);
        }
        let stand = self.swarm.candidates.len();
        let other = (0..stand).find(|p| *p != leader);
        let prompt = self.swarm.stubborn == 0 && self.swarm.reap < 100 * SHORTLY;
        let interval = self.interval();
        // Its work ends, the election is vacated, that is noticed, and one who
        // may have to hold back races.
        let grace = self.swarm.candidates[leader].grace.as_nanos() as u64;
        let mut bound = self.at_worst(interval * 3 + self.turn() + self.notice());
        bound += grace + self.swarm.reap + 10 * self.swarm.hop();
        if !prompt {
            bound += self.at_worst(self.swarm.lease) + self.swarm.reap + self.take_over();
        }
        let command = match (self.rng.below(3), other) {
            (0, Some(_)) => {
                exam.what = "the leader died";
                self.crash(leader);
                // It does not come back in time.
                self.processes[leader].life += 1;
                bound = self.take_over();
                None
            }
            (1, Some(other)) => {
                exam.what = "the leader handed over";
                let next = self.processes[other].config.name.clone();
                exam.next = Some(next.clone()).filter(|_| prompt && self.swarm.watch);
                Some(Command::Transfer(next))
            }
            _ => {
                exam.what = "the leader resigned";
                Some(Command::Resign)
            }
        };
        if let Some(command) = command {
            self.post(
                leader,
                self.now,
                ProcessInput::Input(Input::Command(command)),
            );
        }
        self.stats.exams += 1;
        self.exam = Some(exam);
        self.queue.push(self.now + bound, SimEvent::Examined);
    }

    /// The next one must lead by now.
    pub(crate) fn examined(&mut self) {
        let Some(exam) = self.exam.clone() else {
            return;
        };
        match self.leader(0) {
            Some((p, held)) if exam.terms.first() < Some(&held.term) => {
                let name = self.processes[p].config.name.clone();
                if exam.next.as_ref().is_some_and(|next| *next != name) {
                    return self.dead("another leads than the one the election was handed to");
                }
                if exam.not.as_ref() == Some(&name) {
                    return self.dead("whose work hung leads again, though others stand");
                }
                self.end();
            }
            _ => {
                let text = format!("{}, and nobody leads in time", exam.what);
                self.dead(&text);
            }
        }
    }

    fn dead(&mut self, text: &str) {
        self.judge(Check::Liveness, 0, Err(text.into()));
        self.end();
    }
}
