//! Once faults stop, everything must be as it should be in time; and then a
//! node dies for good, leaves, or is drained, and it must be so again, within
//! the bound of `docs/design/groups.md` and the start-up of workloads.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::ids::Name;
use tenure_group::{Command, Node, NodeId, Place, Request, View};

use super::checkers::Check;
use super::events::GroupEvent;
use super::world::World;
use super::world::{GroupRecoveryExam, Kind};
use crate::clock::MILLI;

impl World {
    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.store.outage = None;
        self.store.cuts.fill(None);
        self.join_copies();
        self.wake_all();
        self.trace_note(None, || "all is well from now on".into());
        for p in 0..self.agents.len() {
            self.unpause(p);
            if !self.agents[p].up {
                self.agents[p].gone = false;
                self.restart(p);
            } else if self.swarm.watch {
                self.line_up(p);
            }
        }
        let at = self.now + self.settling();
        self.queue.push(at, GroupEvent::Settled);
    }

    /// A span of local time, at worst.
    fn at_worst(&self, local: u64) -> u64 {
        let ppm = u64::from(self.swarm.drift.ppm());
        local / (1_000_000 - ppm) * 1_000_000 + MILLI
    }

    fn interval(&self) -> u64 {
        let intervals = self.swarm.agents.iter();
        let intervals = intervals.map(|config| config.interval.as_nanos() as u64);
        intervals.max().unwrap_or(0)
    }

    /// How long until somebody who does not look learns of a change.
    fn notice(&self) -> u64 {
        if self.swarm.watch {
            0
        } else {
            self.interval() * 11 / 10
        }
    }

    /// From a node's last beat until its workloads run elsewhere: the span, a
    /// jitter, one notice of the beat and one of the view, round trips, and three
    /// starts one after the other, because there are three orders.
    fn take_over(&self) -> u64 {
        let lease = Duration::from_nanos(self.swarm.lease);
        let span = self.swarm.drift.lengthen(lease).as_nanos() as u64;
        let local = span + self.swarm.lease / 10 + 2 * self.notice();
        self.at_worst(local) + 12 * self.swarm.net.1 + 3 * self.swarm.start
    }

    /// From the end of faults until all is as it should be: a call that hung
    /// and a pause for a store in trouble; a node that lost its id ends its
    /// work and joins again; the last of the dead are judged; what fell to one
    /// that then left moves on; starts that failed are repeated.
    fn settling(&self) -> u64 {
        let nodes = self.agents.iter().filter_map(|agent| agent.node());
        let waits = nodes.map(|node| {
            let cooling = node.jobs().backoffs.values();
            let here = cooling.map(|it| it.fails).max().unwrap_or(0);
            let held = node
                .view()
                .into_iter()
                .flat_map(|view| view.workloads.values());
            // The back-off goes on from what failed on other nodes.
            here + held.map(|it| it.fails).max().unwrap_or(0)
        });
        let fails = waits.max().unwrap_or(0);
        let backoff = (500 * MILLI) << fails.min(7);
        let orders = 3 * (self.swarm.start + self.notice());
        let stop = self.swarm.lease + self.swarm.reap;
        self.at_worst(2 * self.swarm.lease + 8 * self.interval())
            + 2 * (self.take_over() + stop)
            + orders
            + self.looking()
            + if self.swarm.failing > 0 { backoff } else { 0 }
    }

    /// What a torn store has lost is found by looking: a watch shows what is
    /// older than what is known as old news, which is once a lease for the view
    /// and once for the heartbeats.
    fn looking(&self) -> u64 {
        if self.store.store_damage.ever {
            self.at_worst(3 * self.swarm.lease)
        } else {
            0
        }
    }

    /// Everything must be as it should be by now.
    pub(super) fn settled(&mut self) {
        let rises = self.risen();
        self.judge(Check::Floors, None, rises);
        if let Err(text) = self.is_well() {
            return self.dead(&format!("long after all faults have ended, {text}"));
        }
        let up: Vec<usize> = (0..self.agents.len())
            .filter(|p| self.agents[*p].up && !self.agents[*p].leaving)
            .collect();
        if up.is_empty() {
            return self.done = true;
        }
        let victim = up[self.rng.below(up.len() as u64) as usize];
        let kind = [Kind::Death, Kind::Farewell, Kind::Drain][self.rng.below(3) as usize];
        let mut ran = BTreeMap::new();
        for (p, agent) in self.agents.iter().enumerate() {
            for work in agent.works.values() {
                let key = (agent.config.group.clone(), work.order.name.clone());
                ran.insert(key, (p, work.number));
            }
        }
        self.exam = Some(GroupRecoveryExam { victim, kind, ran });
        self.stats.exams += 1;
        // A node that loses the quorum by it has to stop, too.
        let at = self.now + self.examine(victim, kind) + 2 * self.swarm.reap;
        self.queue.push(at, GroupEvent::Examined);
    }

    /// Something happens to the victim; says how long the others have.
    fn examine(&mut self, victim: usize, kind: Kind) -> u64 {
        self.agents[victim].gone = true;
        match kind {
            Kind::Death => {
                self.crash(victim, None);
                self.take_over()
            }
            Kind::Farewell => {
                self.command(victim, Command::Leave);
                self.at_worst(2 * self.interval() + self.notice())
                    + self.swarm.reap
                    + 8 * self.swarm.net.1
            }
            Kind::Drain => {
                let group = self.agents[victim].config.group.clone();
                let id = self.agents[victim].node().map(Node::id);
                let others = (0..self.agents.len()).find(|p| {
                    *p != victim && self.agents[*p].up && self.agents[*p].config.group == group
                });
                match (others, id) {
                    (Some(other), Some(id)) => {
                        self.request(other, Request::Drain(id));
                    }
                    _ => self.command(victim, Command::Drain),
                }
                self.at_worst(3 * self.interval() + 4 * self.notice())
                    + self.swarm.reap
                    + 3 * self.swarm.start
                    + 20 * self.swarm.net.1
            }
        }
    }

    pub(super) fn examined(&mut self) {
        let Some(exam) = self.exam.clone() else {
            return;
        };
        let what = match exam.kind {
            Kind::Death => "a node died",
            Kind::Farewell => "a node left",
            Kind::Drain => "a node was drained",
        };
        let verdict = self.is_well().and_then(|()| self.undisturbed(&exam));
        match verdict {
            Err(text) => self.dead(&format!("{what}, and {text}")),
            Ok(()) => self.await_collection(),
        }
    }

    /// What the survivors ran they run still, and what the victim ran is
    /// where it should be.
    fn undisturbed(&self, exam: &GroupRecoveryExam) -> Result<(), String> {
        for ((group, name), (p, number)) in &exam.ran {
            let view = self.checker_state.views.get(group);
            let listed = view.and_then(|view| view.workloads.get(name));
            let quorum = view.is_some_and(View::has_quorum);
            if *p == exam.victim {
                if exam.kind == Kind::Farewell && listed.is_some() {
                    return Err(format!("{name} was failed over"));
                }
                continue;
            }
            let mut works = self.agents[*p].works.values();
            let same = works.any(|work| work.number == *number);
            let ha = listed.is_some_and(|it| it.ha);
            if !same && (quorum || !ha) {
                return Err(format!("{name} was disturbed on another node"));
            }
        }
        Ok(())
    }

    /// Whether everything is as it should be.
    pub(super) fn is_well(&self) -> Result<(), String> {
        for agent in self.agents.iter().filter(|agent| agent.up) {
            let name = &agent.config.name;
            let member = agent.node().filter(|node| node.is_member());
            let view = self.checker_state.views.get(&agent.config.group);
            let listed = member
                .zip(view)
                .and_then(|(node, view)| view.member(node.id()));
            if listed.is_none() {
                return Err(format!("{name} is no member"));
            }
        }
        for (ticket, it) in &self.users.tickets {
            if !it.answered && !it.orphan {
                return Err(format!("request {ticket} {:?} is not answered", it.request));
            }
        }
        for (group, view) in &self.checker_state.views {
            let mut agents = self.agents.iter().filter(|agent| agent.up);
            if !agents.any(|agent| agent.config.group == *group) {
                // Nobody is left who could see to anything.
                continue;
            }
            for member in &view.members {
                if self.agent_of(member.id).is_none() {
                    return Err(format!("{} is listed as a member of {group}", member.name));
                }
            }
            self.all_placed(group, view)?;
        }
        self.nothing_else()
    }

    /// The agent whose node has this id at present.
    fn agent_of(&self, id: NodeId) -> Option<usize> {
        self.agents
            .iter()
            .position(|agent| agent.node().is_some_and(|node| node.id() == id))
    }

    fn all_placed(&self, group: &Name, view: &View) -> Result<(), String> {
        for (name, it) in &view.workloads {
            let runner = self.once.runner(group, name);
            match it.place {
                Place::Assigned(id) if view.has_quorum() || !it.ha => {
                    let p = self.agent_of(id).ok_or("a node is not there")?;
                    if runner != Some(p) {
                        return Err(format!(
                            "{name} does not run on {}",
                            self.agents[p].config.name
                        ));
                    }
                    let mut works = self.agents[p].works.values();
                    let runs = works.any(|work| {
                        let order = &work.order;
                        let right = order.digest == it.digest && order.instances == it.instances;
                        order.name == *name && work.up && right
                    });
                    if !runs {
                        return Err(format!("{name} does not run as it should"));
                    }
                }
                Place::Assigned(_) => {
                    if runner.is_some() {
                        return Err(format!("{name} runs without the quorum"));
                    }
                }
                Place::Releasing { .. } => return Err(format!("{name} is not released")),
                Place::Waiting => self.nobody_fits(name, view)?,
            }
        }
        Ok(())
    }

    fn nobody_fits(&self, name: &Name, view: &View) -> Result<(), String> {
        let Some(it) = view.workloads.get(name) else {
            return Ok(());
        };
        let fits = view.members.iter().find(|member| {
            let taken = view.workloads.values();
            let load = taken
                .filter(|other| other.place.holder() == Some(member.id))
                .count();
            let room = member.max.is_none_or(|max| (load as u64) < u64::from(max));
            member.ha && !member.draining && room && member.satisfies(&it.needs)
        });
        match fits {
            Some(member) => Err(format!(
                "{name} waits, though {} could take it",
                member.name
            )),
            None => Ok(()),
        }
    }

    /// Nothing runs that the views do not know.
    fn nothing_else(&self) -> Result<(), String> {
        for agent in &self.agents {
            let view = self.checker_state.views.get(&agent.config.group);
            for work in agent.works.values() {
                let name = &work.order.name;
                let known = view.and_then(|view| view.workloads.get(name));
                if agent.up && known.and_then(|it| it.place.holder()) != Some(work.id) {
                    return Err(format!("{name} runs on {} unasked", agent.config.name));
                }
            }
        }
        Ok(())
    }

    fn dead(&mut self, text: &str) {
        self.judge(Check::Liveness, None, Err(text.into()));
        self.done = true;
    }
}
