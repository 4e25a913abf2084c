//! A world in which nothing happens by chance: for scenarios that are told
//! step by step. The same machines, store, guardians and checkers; who does
//! what is up to the caller.

use std::collections::BTreeMap;

use tenure_core::cas::Register;
use tenure_core::ids::Key;
use tenure_group::{Command, Config, Digest, Keys, Node, NodeId, Request, Spec, View};

use super::events::GroupEvent;
use super::swarm::name;
use super::world::World;
use super::{Options, Stats};
use crate::clock::{MILLI, SECOND, TrueTime};

/// A world under control. Agents are named by their number.
#[derive(Debug)]
pub struct Scenario {
    world: World,
}

impl Scenario {
    /// So many agents in the group `alpha`, up and joined, in a world without
    /// faults; `change` says what is special about each. The lease is 10 s.
    pub fn new(seed: u64, agents: usize, watch: bool, change: impl Fn(usize, &mut Config)) -> Self {
        let options = Options {
            faults: false,
            users: false,
            judged: false,
            agents: Some(agents),
            groups: Some(1),
            quorum: Some(0),
            spread: Some(false),
            ..Options::default()
        };
        let mut world = World::new(seed, &options, 2_000);
        world.swarm.watch = watch;
        world.swarm.lease = 10 * SECOND;
        world.swarm.net = (MILLI / 2, MILLI);
        (world.swarm.start, world.swarm.reap) = (MILLI, MILLI);
        for (p, agent) in world.agents.iter_mut().enumerate() {
            let config = Config::new(agent.config.group.clone(), agent.config.name.clone());
            agent.config = Config {
                drift: agent.config.drift,
                ..config
            };
            change(p, &mut agent.config);
        }
        let mut scenario = Self { world };
        scenario.pass(10_000);
        scenario
    }

    /// Lets so many milliseconds pass.
    pub fn pass(&mut self, millis: u64) {
        let until = self.world.now + millis * MILLI;
        self.world.run_until(until);
        let found = self.world.found.clone();
        let lines = self.world.trace.clone().into_lines();
        assert!(found.is_none(), "{found:?}\n{}", lines.join("\n"));
    }

    /// Lets time pass until `is` says so; says how many milliseconds it took.
    ///
    /// # Panics
    /// If it has not in `most` milliseconds, with the trace.
    pub fn until(&mut self, most: u64, is: impl Fn(&Self) -> bool) -> u64 {
        let began = self.world.now;
        while !is(self) {
            let passed = (self.world.now - began) / MILLI;
            let lines = self.world.trace.clone().into_lines();
            assert!(passed < most, "not in {most} ms:\n{}", lines.join("\n"));
            self.pass(1);
        }
        (self.world.now - began) / MILLI
    }

    /// The same, looking only ten times a second, for large scenes.
    ///
    /// # Panics
    /// If it is not so in `most` milliseconds.
    pub fn until_coarse(&mut self, most: u64, is: impl Fn(&Self) -> bool) -> u64 {
        let began = self.world.now;
        while !is(self) {
            let passed = (self.world.now - began) / MILLI;
            assert!(passed < most, "not in {most} ms");
            self.pass(100);
        }
        (self.world.now - began) / MILLI
    }

    /// Keeps no trace from here on: a large scene has a long one.
    pub fn forget_trace(&mut self) {
        self.world.trace = crate::trace::Trace::new(0);
    }

    /// Asks agent `p` to deploy a workload on itself.
    pub fn deploy(&mut self, p: usize, workload: &str, ha: bool) {
        let digest = format!("digest-of-{workload}");
        let digest = Digest::new(&digest).unwrap_or_else(|| unreachable!("{digest}"));
        let mut spec = Spec::new(name(workload), digest);
        (spec.ha, spec.instances) = (ha, 3);
        self.deploy_spec(p, spec);
    }

    /// Asks agent `p` to deploy that on itself.
    pub fn deploy_spec(&mut self, p: usize, spec: Spec) {
        let id = self.id(p);
        self.world.request(p, Request::Deploy(spec, Some(id)));
    }

    /// Asks agent `p` for something.
    pub fn request(&mut self, p: usize, request: Request) {
        self.world.request(p, request);
    }

    /// Tells agent `p` something.
    pub fn command(&mut self, p: usize, command: Command) {
        self.world.command(p, command);
    }

    /// The agent dies, and its guardian with all workloads; the machine stays
    /// up.
    pub fn kill(&mut self, p: usize) {
        self.world.end_all(p);
        self.world.crash(p, None);
    }

    /// The agent dies; its guardian ends the workloads at their deadline.
    pub fn crash(&mut self, p: usize) {
        self.world.crash(p, None);
    }

    /// The agent is started again.
    pub fn restart(&mut self, p: usize) {
        self.world.agents[p].gone = false;
        self.world.restart(p);
    }

    /// The agent is stopped for so many milliseconds; its guardian is not.
    pub fn pause(&mut self, p: usize, millis: u64) {
        self.world.pause(p, millis * MILLI);
    }

    /// The agent cannot reach the store for so many milliseconds.
    pub fn cut(&mut self, p: usize, millis: u64) {
        let until = self.world.now + millis * MILLI;
        self.world.cut(p, until, false);
    }

    /// The next write of agent `p`, which will be a beat, arrives only after so
    /// many milliseconds, and nothing else of it does for as long.
    pub fn late_beat(&mut self, p: usize, millis: u64) {
        self.world.held = Some((p, millis * MILLI));
        self.cut(p, millis + 20_000);
    }

    /// The next write of agent `p` arrives only after so many milliseconds, also
    /// if its sender has ended meanwhile.
    pub fn late_write(&mut self, p: usize, millis: u64) {
        self.world.held = Some((p, millis * MILLI));
    }

    /// The register of the view, as the store has it.
    pub fn kept_view(&self) -> Option<Register> {
        self.world.store.registers.read(&self.view_key()).cloned()
    }

    /// The store breaks its promise: it gives out that view once more, under the
    /// version that it had.
    pub fn bring_back(&mut self, old: Register) {
        let key = self.view_key();
        self.world.bring_back(&key, old);
    }

    fn view_key(&self) -> Key {
        Keys::of(self.world.agents[0].config.group.clone()).view()
    }

    /// From now on nothing is told to agent `p` by its watch, and it does not
    /// know.
    pub fn silence_watch(&mut self, p: usize) {
        self.world.store.lines[p].up = false;
    }

    /// Every start fails, or none does.
    pub fn fail_starts(&mut self, fail: bool) {
        self.world.swarm.failing = if fail { 100 } else { 0 };
        self.world.healed = !fail;
    }

    /// An agent is started so many milliseconds from now, not before.
    pub fn restart_in(&mut self, p: usize, millis: u64) {
        let (life, at) = (self.world.agents[p].life, self.world.now + millis * MILLI);
        self.world.agents[p].gone = false;
        self.world.queue.push(at, GroupEvent::Restart { p, life });
    }

    /// The id of an agent.
    ///
    /// # Panics
    /// If it has not been started.
    pub fn id(&self, p: usize) -> NodeId {
        let machine = self.world.agents[p].machine.as_ref();
        machine.map_or_else(|| panic!("agent {p} is not up"), Node::id)
    }

    /// The number of the agent that has that id.
    pub fn agent(&self, id: NodeId) -> Option<usize> {
        self.world.owner(id)
    }

    /// The view, as the store has it.
    pub fn view(&self) -> View {
        let views = &self.world.checker_state.views;
        let view = views.values().next().cloned();
        view.unwrap_or_else(|| View::empty(name("alpha"), 0, false))
    }

    /// What runs, on which agent.
    pub fn running(&self) -> BTreeMap<String, usize> {
        let mut running = BTreeMap::new();
        for (p, agent) in self.world.agents.iter().enumerate() {
            for work in agent.works.values().filter(|work| work.up) {
                running.insert(work.order.name.to_string(), p);
            }
        }
        running
    }

    /// On which agent a workload runs.
    pub fn runs_on(&self, workload: &str) -> Option<usize> {
        self.running().get(workload).copied()
    }

    /// Which start of a workload this is, of all in the world.
    pub fn start_of(&self, workload: &str) -> Option<u64> {
        let works = self
            .world
            .agents
            .iter()
            .flat_map(|agent| agent.works.values());
        let mut works = works.filter(|work| work.order.name.as_str() == workload);
        works.next().map(|work| work.number)
    }

    /// Whether everything is as it should be.
    ///
    /// # Errors
    /// What is not, in a sentence.
    pub fn is_well(&self) -> Result<(), String> {
        self.world.is_well()
    }

    /// What has happened.
    pub const fn stats(&self) -> Stats {
        self.world.stats
    }

    /// True time since the world began, in milliseconds.
    pub const fn now(&self) -> TrueTime {
        self.world.now / MILLI
    }

    /// The trace so far.
    pub fn trace(&self) -> Vec<String> {
        self.world.trace.clone().into_lines()
    }
}
