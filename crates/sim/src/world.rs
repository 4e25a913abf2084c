//! The world of one run: true time, what happens in it, and who is in it.
//!
//! Everything that will happen stands in one queue, ordered by true time and,
//! at one time, by when it was put there. Nothing else moves the world, and
//! nothing in it is asked of the machine that the simulator runs on: a run is
//! a function of its seed and its options.
//!
//! ```text
//! faults of all kinds ---------> heal ----> settled ----> stable ----> examined
//!                                 somebody leads   nothing changes   a leader dies or leaves
//! ```

use crate::simulated_store::Sessions;
use std::collections::VecDeque;

use tenure_core::cas::Registers;
use tenure_core::ids::{Key, Name, Term};
use tenure_core::rng::Rng;
use tenure_core::time::{Instant, Now};
use tenure_election::Call;
use tenure_election::{Campaign, Config, Observation, Observer};

use crate::checkers::{
    Causes, Check, Exclusivity, Finding, Floors, Refusals, Requests, Terms, Works, claim,
};
use crate::clock::{DriftModel, MILLI, Node, SECOND, TrueTime, WallClockModel};
use crate::events::SimEvent;
use crate::kernel::{Ended, Found, Queue, StoreDamage};
use crate::simulated_process::{Actor, Guardian, ProcessInput, RequestSender, SimProcess};
use crate::simulated_store::{Store, StoreWatch};
use crate::stats::Stats;
use crate::swarm::{BootId, Swarm};
use crate::trace::Trace;
use crate::{Error, Options};

/// What a healed world is examined in.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryExam {
    /// The terms in which somebody led when all had settled.
    pub(crate) terms: Vec<Term>,
    /// Who must lead next, if that can be said.
    pub(crate) next: Option<Name>,
    /// Who must not.
    pub(crate) not: Option<Name>,
    pub(crate) what: &'static str,
}

/// The world of one run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: TrueTime,
    pub(crate) queue: Queue<SimEvent>,
    pub(crate) rng: Rng,
    /// For what befalls words of work that confirms.
    pub(crate) words: Rng,
    pub(crate) swarm: Swarm,
    pub(crate) nodes: Vec<Node>,
    pub(crate) processes: Vec<SimProcess>,
    pub(crate) store: Store,
    pub(crate) terms: Vec<Terms>,
    pub(crate) leaderships: Exclusivity,
    pub(crate) works: Works,
    pub(crate) causes: Causes,
    pub(crate) refusals: Refusals,
    pub(crate) requests: Requests,
    pub(crate) stats: Stats,
    pub(crate) trace: Trace,
    /// Whether the last taking of each election was from a holder.
    pub(crate) held_before: Vec<bool>,
    /// Guardians look before anything else does.
    pub(crate) waking: bool,
    pub(crate) healed: bool,
    pub(crate) exam: Option<RecoveryExam>,
    pub(crate) found: Option<Found<Check>>,
    only: Option<Check>,
    done: bool,
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options, trace: usize) -> Result<Self, Error> {
        let mut rng = Rng::from_seed(seed);
        let mut swarm = Swarm::draw(&mut rng.fork(), options)?;
        // A stream of its own: the worlds of old seeds stay what they were,
        // but for what is drawn here.
        let mut more = Rng::from_seed(!seed);
        swarm.draw_more(&mut more, options);
        let mut words = Rng::from_seed(seed.rotate_left(32) ^ 0xc0f1);
        swarm.draw_words(&mut words, options);
        let until = swarm.faults_until * 3;
        let bound = swarm.drift.ppm();
        let stand = swarm.candidates.len() / swarm.elections;
        let mut nodes = Vec::new();
        for _ in 0..if swarm.one_machine {
            1
        } else {
            stand + swarm.observers + 1
        } {
            let start = rng.below(1_000_000 * SECOND);
            let curve = DriftModel::draw(&mut rng, start, bound, until);
            let off = rng.between(0, swarm.calendar_ms * 2) as i64 - swarm.calendar_ms as i64;
            nodes.push(Node::new(curve, WallClockModel::new(off)));
        }
        let mut keys: Vec<Key> = Vec::new();
        for config in &swarm.candidates {
            let key = Key::of_election(&config.election);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut processes = people(&swarm, &nodes, &mut rng)?;
        for proc in &mut processes {
            proc.boot_id = swarm.boot_id(&mut more);
        }
        let store = Store {
            registers: Registers::new(0),
            curve: DriftModel::draw(&mut rng, 1_000_000 * SECOND, bound, until),
            stepped: 0,
            lines: lines(&swarm, &processes),
            sessions: Sessions::default(),
            store_damage: StoreDamage::default(),
            outage: None,
            refuses_until: 0,
            cuts: vec![None; processes.len()],
            keys,
        };
        let mut world = Self {
            now: 0,
            queue: Queue::default(),
            rng,
            words,
            nodes,
            store,
            terms: vec![Terms::default(); swarm.elections],
            held_before: vec![false; swarm.elections],
            leaderships: Exclusivity::new(processes.len()),
            works: Works::new(processes.len()),
            causes: Causes::new(processes.len()),
            refusals: Refusals::new(processes.len()),
            requests: Requests::default(),
            stats: Stats::default(),
            trace: Trace::new(trace),
            processes,
            swarm,
            waking: false,
            healed: false,
            exam: None,
            found: None,
            only: options.only,
            done: false,
        };
        world.open_up();
        Ok(world)
    }

    /// Everybody starts within the first lease.
    fn open_up(&mut self) {
        for p in 0..self.processes.len() {
            let at = self.rng.between(0, self.swarm.lease);
            self.queue.push(at, SimEvent::Restart { p, life: 0 });
        }
        self.schedule_mishaps();
        self.queue.push(self.swarm.faults_until, SimEvent::Heal);
    }

    /// Whether faults may happen still.
    pub(crate) const fn faulty(&self) -> bool {
        !self.healed
    }

    /// The world of this seed lives until the end, or until a checker objects.
    pub(crate) fn live(seed: u64, options: &Options, trace: usize) -> Ended<Stats, Check> {
        let mut world = match Self::new(seed, options, trace) {
            Ok(world) => world,
            Err(error) => {
                let mut trace = Trace::new(1);
                trace.note(0, "*", None, &error.to_string());
                return Ended {
                    stats: Stats::default(),
                    world: String::new(),
                    found: Some((Check::Liveness, 0, error.to_string())),
                    trace,
                };
            }
        };
        while world.found.is_none() && !world.done {
            let Some((at, happening)) = world.queue.pop() else {
                break;
            };
            world.now = at;
            world.happen(happening);
        }
        world.stats.runs = 1;
        world.stats.simulated_ns = world.now;
        Ended {
            stats: world.stats,
            world: world.swarm.to_string(),
            found: world.found,
            trace: world.trace,
        }
    }

    pub(crate) const fn end(&mut self) {
        self.done = true;
    }

    fn happen(&mut self, happening: SimEvent) {
        let alive = |p: usize, life: u32, world: &Self| world.processes[p].life == life;
        match happening {
            SimEvent::ProcessInput { p, life, mail } => {
                if alive(p, life, self) && self.processes[p].up {
                    self.deliver(p, mail);
                }
            }
            SimEvent::Timer { p, life, number } => {
                if alive(p, life, self) && self.processes[p].timer.1 == number {
                    self.timer(p);
                }
            }
            SimEvent::Arrive(question) => self.arrive(&question),
            SimEvent::Look { p, life } => {
                if alive(p, life, self) {
                    self.look(p);
                }
            }
            SimEvent::Kill { p, term } => self.guard(p, term),
            SimEvent::WorkEnds { p, term } => self.work_ends(p, term),
            SimEvent::RequestDue { election, term } => {
                let finding = Requests::due(election, term, self.now, &self.leaderships);
                self.judge(Check::Requests, 0, finding);
            }
            SimEvent::InjectedFault(mishap) => self.mishap(mishap),
            SimEvent::Resume { p, life } => {
                if alive(p, life, self) {
                    self.unpause(p);
                }
            }
            SimEvent::Restart { p, life } => {
                if alive(p, life, self) {
                    self.restart(p);
                }
            }
            SimEvent::Wake { node, boot } => {
                if self.nodes[node].boot_id == boot {
                    self.wake(node);
                }
            }
            SimEvent::LineUp { index } => self.line_up(index),
            SimEvent::SessionDue { session } => self.session_due(session),
            SimEvent::Release { p, life, session } => {
                if alive(p, life, self) {
                    self.released(p, session);
                }
            }
            SimEvent::Neighbours { p, life } => {
                if alive(p, life, self) {
                    self.neighbours(p);
                }
            }
            SimEvent::Step { p, life, term } => {
                if alive(p, life, self) {
                    self.woken(p, term);
                }
            }
            SimEvent::Guardian { p, life, what } => {
                if alive(p, life, self) {
                    self.reaches_guardian(p, what);
                }
            }
            SimEvent::Join => self.join(),
            SimEvent::Heal => self.heal(),
            SimEvent::Settled => self.settled(),
            SimEvent::Stable => self.stable(),
            SimEvent::Examined => self.examined(),
        }
    }

    /// Starts `p`, as another incarnation.
    pub(crate) fn restart(&mut self, p: usize) {
        let node = self.processes[p].node;
        if self.nodes[node].suspended {
            let at = self.now + SECOND;
            let life = self.processes[p].life;
            return self.queue.push(at, SimEvent::Restart { p, life });
        }
        let now = self.nodes[node].now(self.now);
        let rng = self.rng.fork();
        let proc = &mut self.processes[p];
        proc.life += 1;
        proc.up = true;
        proc.paused = false;
        proc.leadership = None;
        proc.shown = 0;
        proc.awaited = (Call(0), Instant::ZERO);
        (proc.session, proc.kept) = (None, None);
        (proc.guarded, proc.floors) = (None, Floors::default());
        proc.guardian = Guardian::default();
        proc.timer = (TrueTime::MAX, proc.timer.1 + 1);
        proc.inbox.clear();
        proc.actor = actor(&proc.config, &proc.actor, rng, now);
        self.causes.disturb(p, self.now);
        self.note(p, || "starts".into());
        self.carry_out(p, now);
        self.after_step(p);
        if self.swarm.neighbours && self.processes[p].config.by_session {
            self.neighbours(p);
        }
        for index in 0..self.store.lines.len() {
            if self.store.lines[index].p == p && self.swarm.watch {
                self.line_up(index);
            }
        }
    }

    /// A line reports changes (again), from the present state on.
    pub(crate) fn line_up(&mut self, index: usize) {
        let p = self.store.lines[index].p;
        if !self.processes[p].up {
            return;
        }
        self.store.lines[index].up = true;
        self.post(
            p,
            self.now,
            ProcessInput::Input(tenure_election::Input::WatchUp(true)),
        );
        self.tell_line(index);
    }

    /// A process says who leads.
    pub(crate) fn claimed(&mut self, p: usize, seen: &Observation) {
        self.processes[p].floors.told(seen.term);
        if let Some(leader) = &seen.leader {
            self.processes[p].floors.told_leader(leader.term, leader.id);
        }
        let election = self.processes[p].election;
        let finding = claim(
            seen,
            election,
            self.now,
            &self.terms[election],
            &self.leaderships,
        );
        self.stats.claims += 1;
        self.judge(Check::Observers, p, finding);
    }

    /// Takes note of what a checker found; the first finding ends the run.
    pub(crate) fn judge(&mut self, check: Check, p: usize, finding: Finding) {
        let store_damage = &self.store.store_damage;
        let excused = (check.rests_on_store() && store_damage.excuses(self.now))
            || (check.rests_on_terms() && store_damage.ever);
        if let Err(text) = finding
            && !excused
            && self.found.is_none()
            && self.only.is_none_or(|only| only == check)
        {
            let text = format!("{}: {text}", self.processes[p].name);
            self.note(p, || format!("!! {check}: {text}"));
            self.found = Some((check, self.now, text));
        }
    }

    /// A line of the trace.
    pub(crate) fn note(&mut self, p: usize, what: impl FnOnce() -> String) {
        if self.trace.is_on() {
            let proc = &self.processes[p];
            let local = self.nodes[proc.node].boot(self.now);
            self.trace.note(self.now, &proc.name, Some(local), &what());
        }
    }
}

/// A fresh machine of the kind that `before` was.
fn actor(config: &Config, before: &Actor, rng: Rng, now: Now) -> Actor {
    match before {
        Actor::Candidate(_) => Actor::Candidate(Campaign::new(config.clone(), rng, now)),
        Actor::Observer(_) => Actor::Observer(observer(config, now)),
        Actor::RequestSender(_) => Actor::RequestSender(RequestSender::default()),
    }
}

fn observer(config: &Config, now: Now) -> Observer {
    Observer::new(
        config.election.clone(),
        config.expiry,
        config.drift,
        true,
        now,
    )
}

/// Everybody: candidates, observers, and one operator.
fn people(swarm: &Swarm, nodes: &[Node], rng: &mut Rng) -> Result<Vec<SimProcess>, Error> {
    let stand = swarm.candidates.len() / swarm.elections;
    let node = |wanted: usize| wanted.min(nodes.len() - 1);
    let mut processes = Vec::new();
    for (index, config) in swarm.candidates.iter().enumerate() {
        let (election, who) = (index / stand, index % stand);
        let mark = if election == 0 { "" } else { "+" };
        let now = nodes[node(who)].now(0);
        let actor = Actor::Candidate(Campaign::new(config.clone(), rng.fork(), now));
        let name = format!("{}{mark}", config.name);
        processes.push(proc(name, node(who), election, config, actor));
    }
    let first = swarm
        .candidates
        .first()
        .ok_or_else(|| Error("expected a candidate".into()))?;
    for who in 0..swarm.observers {
        let at = node(stand + who);
        let actor = Actor::Observer(observer(first, nodes[at].now(0)));
        processes.push(proc(format!("seer-{}", who + 1), at, 0, first, actor));
    }
    let mut config = first.clone();
    config.name = Name::new("operator").map_err(|error| Error(error.to_string()))?;
    let actor = Actor::RequestSender(RequestSender::default());
    let last = node(stand + swarm.observers);
    processes.push(proc("operator".into(), last, 0, &config, actor));
    for proc in &mut processes {
        // Who leads otherwise may be too old to know of sessions.
        proc.knows_sessions = proc.config.by_session || rng.chance(50);
    }
    Ok(processes)
}

fn proc(name: String, node: usize, election: usize, config: &Config, actor: Actor) -> SimProcess {
    SimProcess {
        name,
        node,
        election,
        config: config.clone(),
        actor,
        life: 0,
        up: false,
        paused: false,
        inbox: VecDeque::new(),
        leadership: None,
        work: None,
        timer: (TrueTime::MAX, 0),
        spins: 0,
        shown: 0,
        awaited: (Call(0), Instant::ZERO),
        session: None,
        kept: None,
        knows_sessions: true,
        boot_id: BootId::Own,
        guarded: None,
        floors: Floors::default(),
        guardian: Guardian::default(),
    }
}

/// Who follows what.
fn lines(swarm: &Swarm, processes: &[SimProcess]) -> Vec<StoreWatch> {
    let mut lines = Vec::new();
    for (p, proc) in processes.iter().enumerate() {
        if matches!(proc.actor, Actor::RequestSender(_)) || !swarm.watch {
            continue;
        }
        lines.push(StoreWatch::new(p, proc.election));
        if !proc.config.affinity.is_empty() {
            lines.push(StoreWatch::new(p, 0));
        }
    }
    lines
}

/// A short while, for what must not happen at the very same moment.
pub(crate) const SHORTLY: u64 = MILLI;
