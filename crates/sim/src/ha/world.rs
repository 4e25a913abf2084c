//! The world of one run of the HA simulator: true time, what happens in it,
//! and who is in it. A run is a function of its seed and its options.

use std::collections::BTreeMap;
use tenure_core::ids::Name;

use tenure_core::cas::Registers;
use tenure_core::ids::Key;
use tenure_core::rng::Rng;
use tenure_group::NodeId;

use super::checkers::{Check, CheckerState, Finding, Once, Writer};
use super::events::GroupEvent;
use super::options::Options;
use super::simulated_agent::Agent;
use super::simulated_store::{GroupStoreWatch, Store};
use super::stats::Stats;
use super::swarm::Swarm;
use super::tickets::Users;
use crate::clock::{DriftModel, Node as Machine, SECOND, TrueTime, WallClockModel};
use crate::kernel::{Ended, Found, Queue, StoreDamage};
use crate::trace::Trace;

/// What a healed world is examined in.
#[derive(Clone, Debug)]
pub(super) struct GroupRecoveryExam {
    pub(super) victim: usize,
    pub(super) kind: Kind,
    /// Which start of each workload runs where, by group and name.
    pub(super) ran: BTreeMap<(Name, Name), (usize, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Death,
    Farewell,
    Drain,
}

/// The world of one run.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: TrueTime,
    pub(super) queue: Queue<GroupEvent>,
    pub(super) rng: Rng,
    pub(super) swarm: Swarm,
    pub(super) machines: Vec<Machine>,
    pub(super) agents: Vec<Agent>,
    pub(super) store: Store,
    pub(super) users: Users,
    pub(super) once: Once,
    pub(super) checker_state: CheckerState,
    pub(super) stats: Stats,
    pub(super) trace: Trace,
    pub(super) healed: bool,
    pub(super) exam: Option<GroupRecoveryExam>,
    pub(super) found: Option<Found<Check>>,
    only: Option<Check>,
    pub(super) done: bool,
    /// The next write of that agent takes that long to arrive.
    pub(super) held: Option<(usize, u64)>,
    /// Numbers timers and workloads, so that old ones can be told.
    pub(super) numbers: u64,
}

impl World {
    pub(super) fn new(seed: u64, options: &Options, trace: usize) -> Self {
        let mut rng = Rng::from_seed(seed);
        let mut swarm = Swarm::draw(&mut rng.fork(), options);
        // From another stream, so that seeds of worlds without these are as
        // they were.
        swarm.draw_more(&mut Rng::from_seed(!seed), options);
        let until = swarm.faults_until * 3;
        let bound = swarm.drift.ppm();
        let mut machines = Vec::new();
        let mut agents = Vec::new();
        for config in &swarm.agents {
            let start = rng.below(1_000_000 * SECOND);
            let curve = DriftModel::draw(&mut rng, start, bound, until);
            machines.push(Machine::new(curve, WallClockModel::new(0)));
            agents.push(Agent::new(config.clone()));
        }
        let count = agents.len();
        let mut world = Self {
            now: 0,
            queue: Queue::default(),
            rng,
            store: Store {
                registers: Registers::new(0),
                lines: vec![GroupStoreWatch::default(); count],
                outage: None,
                cuts: vec![None; count],
                store_damage: StoreDamage::default(),
                backup: None,
            },
            users: Users::default(),
            once: Once::default(),
            checker_state: CheckerState::default(),
            stats: Stats::default(),
            trace: Trace::new(trace),
            machines,
            agents,
            swarm,
            healed: !options.faults,
            exam: None,
            found: None,
            only: options.only,
            done: false,
            held: None,
            numbers: 0,
        };
        world.open_up(options);
        world
    }

    /// Everybody starts within the first lease.
    fn open_up(&mut self, options: &Options) {
        for p in 0..self.agents.len() {
            let at = self.rng.between(0, self.swarm.lease / 2);
            self.queue.push(at, GroupEvent::Restart { p, life: 0 });
        }
        if options.faults {
            self.schedule_mishaps();
        }
        if self.swarm.requests > 0 {
            self.schedule_request();
        }
        if options.judged {
            self.queue.push(self.swarm.faults_until, GroupEvent::Heal);
        }
    }

    /// Whether faults may happen still.
    pub(super) const fn faulty(&self) -> bool {
        !self.healed
    }

    /// The world of this seed lives until the end, or until a checker objects.
    pub(super) fn live(seed: u64, options: &Options, trace: usize) -> Ended<Stats, Check> {
        let mut world = Self::new(seed, options, trace);
        world.run_until(TrueTime::MAX);
        world.stats.runs = 1;
        world.stats.simulated_ns = world.now;
        Ended {
            stats: world.stats,
            world: world.swarm.to_string(),
            found: world.found,
            trace: world.trace,
        }
    }

    /// Lives until then.
    pub(super) fn run_until(&mut self, until: TrueTime) {
        while self.found.is_none() && !self.done {
            if self.queue.next_at().is_none_or(|at| at > until) {
                break;
            }
            let Some((at, happening)) = self.queue.pop() else {
                break;
            };
            self.now = at;
            self.stats.happenings += 1;
            self.happen(happening);
        }
        if until < TrueTime::MAX {
            self.now = self.now.max(until);
        }
    }

    fn happen(&mut self, happening: GroupEvent) {
        let alive = |world: &Self, p: usize, life: u32| world.agents[p].life == life;
        let Some(happening) = self.unless_asleep(happening) else {
            return;
        };
        match happening {
            GroupEvent::Mail { p, life, input } => {
                if alive(self, p, life) && self.agents[p].up {
                    self.deliver(p, input);
                }
            }
            GroupEvent::Timer { p, life, number } => {
                if alive(self, p, life) && self.agents[p].timer.1 == number {
                    self.timer(p);
                }
            }
            GroupEvent::Arrive(question) => self.arrive(&question),
            GroupEvent::Up { p, run, number } => self.workload_up(p, run, number),
            GroupEvent::Down {
                p,
                run,
                number,
                failed,
            } => self.workload_down(p, run, number, failed),
            GroupEvent::Leash { p, number } => {
                if self.agents[p].run_deadline.1 == number {
                    self.end_by_deadline(p);
                }
            }
            GroupEvent::GroupFault(mishap) => self.mishap(mishap),
            GroupEvent::Resume { p, life } => {
                // Who sleeps goes on when its machine wakes.
                if alive(self, p, life) && !self.sleeps(p) {
                    self.unpause(p);
                }
            }
            GroupEvent::Restart { p, life } => {
                if alive(self, p, life) && !self.agents[p].gone {
                    self.restart(p);
                }
            }
            GroupEvent::LineUp(p) => self.line_up(p),
            GroupEvent::Nap(p) => self.nap(p),
            GroupEvent::Wake(p) => self.wake(p),
            GroupEvent::Join => self.join_copies(),
            GroupEvent::Mended => self.mended(),
            GroupEvent::Request => self.somebody_asks(),
            GroupEvent::Heal => self.heal(),
            GroupEvent::Settled => self.settled(),
            GroupEvent::Examined => self.examined(),
            GroupEvent::Collected => self.collected(),
        }
    }

    /// A register has changed by the hand of `writer`.
    pub(super) fn registered(&mut self, writer: Writer, key: &Key) {
        let register = self.registers(writer.p).read(key).cloned();
        if self.trace.is_on() {
            let shown = register.as_ref().map_or_else(
                || "nothing".to_string(),
                |it| {
                    let text = String::from_utf8_lossy(&it.value);
                    text.lines().skip(1).collect::<Vec<_>>().join(" | ")
                },
            );
            let key = key.clone();
            self.trace_note(Some(writer.p), || format!("** {key} is now {shown}"));
        }
        let findings = self.check_register(writer, key, register.as_ref());
        for (check, finding) in findings {
            self.judge(check, Some(writer.p), finding);
        }
    }

    /// Takes note of what a checker found; the first finding ends the run.
    pub(super) fn judge(&mut self, check: Check, p: Option<usize>, finding: Finding) {
        let excused = check.rests_on_store() && self.store.store_damage.excuses(self.now);
        if let Err(text) = finding
            && self.found.is_none()
            && !excused
            && self.only.is_none_or(|only| only == check)
        {
            let who = p.map_or("the world", |p| self.agents[p].config.name.as_str());
            let text = format!("{who}: {text}");
            self.trace_note(p, || format!("!! {check}: {text}"));
            self.found = Some((check, self.now, text));
        }
    }

    /// A line of the trace.
    pub(super) fn trace_note(&mut self, p: Option<usize>, what: impl FnOnce() -> String) {
        if !self.trace.is_on() {
            return;
        }
        let text = what();
        match p {
            Some(p) => {
                let local = self.local(p).boot;
                let name = self.agents[p].config.name.as_str();
                self.trace.note(self.now, name, Some(local), &text);
            }
            None => self.trace.note(self.now, "*", None, &text),
        }
    }

    /// A number that was never used before.
    pub(super) const fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The agent that has, or had, this id.
    pub(super) fn owner(&self, id: NodeId) -> Option<usize> {
        self.agents.iter().position(|agent| agent.ids.contains(&id))
    }
}
