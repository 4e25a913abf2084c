//! Simulated agents: the machine, the driver around it, and the guardian
//! that ends workloads at their deadline.
//!
//! The driver hands in inputs with the time of its own clock and carries out
//! every output. The guardian is another process: while the agent is paused
//! or dead it goes on counting, and kills every workload at the `kill_at` of
//! the latest grant it was told. The agent writes its id and grant to a file;
//! an agent that is restarted on the same boot, before `kill_at`, goes on
//! from there.

use tenure_core::Machine as _;
use tenure_core::ids::{Key, Name};
use tenure_core::time::Instant;
use tenure_group::{
    Event, Input, Job, Node, Order, Output, Phase, ResumeState, Run, is_one_clock, may_resume,
};

use super::checkers::{Check, Floors};
use super::events::GroupEvent;
use super::simulated_agent::{NotedClock, Work};
use super::simulated_store::{GroupStoreCall, Op};
use super::world::World;
use crate::clock::{MICRO, TrueTime};

/// The most inputs that wait for an agent that is paused.
const INBOX_MAX: usize = 4_096;

impl World {
    /// Starts `p`: on from where it was, if that is still allowed.
    pub(super) fn restart(&mut self, p: usize) {
        self.settle_in(p);
        let now = self.local(p);
        let rng = self.rng.fork();
        let agent = &mut self.agents[p];
        agent.life += 1;
        (agent.floors, agent.fell) = (Floors::default(), None);
        (agent.up, agent.paused) = (true, false);
        (agent.fenced, agent.leaving) = (false, false);
        agent.timer = (TrueTime::MAX, agent.timer.1 + 1);
        agent.inbox.clear();
        let config = agent.config.clone();
        let (clock, plant) = (agent.reads.id, config.plant);
        let one_clock = agent.file.map(|file| file.reads.id);
        let one_clock = one_clock.is_some_and(|noted| is_one_clock(noted, clock, plant));
        let past = agent
            .file
            .filter(|it| may_resume(it.reads.id, clock, now.boot, &it.grant, plant));
        agent.resumed = past.is_some();
        match past {
            Some(NotedClock { id, grant, .. }) => {
                // What was only about to run, or to end, is ended first.
                let keep = |work: &Work| work.up && !work.stopping;
                let ends: Vec<Run> = agent
                    .works
                    .iter()
                    .filter(|(_, work)| !keep(work))
                    .map(|(run, _)| *run)
                    .collect();
                for run in ends {
                    self.end_work(p, run);
                }
                let agent = &mut self.agents[p];
                let jobs = agent.works.values().map(kept).collect();
                let past = ResumeState { id, grant, jobs };
                agent.machine = Some(Node::resume(config, rng, now, past));
                self.stats.resumes += 1;
                self.trace_note(Some(p), || format!("starts, and wants to go on as {id}"));
            }
            None => {
                let former = agent.file.map(|file| file.id);
                self.end_all(p);
                if !one_clock {
                    // A guardian that it starts itself reads its clock, and has
                    // noted nothing yet.
                    self.agents[p].shim = self.agents[p].reads;
                    self.agents[p].file = None;
                }
                self.agents[p].machine = Some(Node::new(config, rng, now, former));
                self.stats.starts += 1;
                self.trace_note(Some(p), || "starts".to_string());
            }
        }
        self.carry_out(p);
        if self.swarm.watch {
            self.line_up(p);
        }
    }

    /// A line reports changes (again), from the present state on.
    pub(super) fn line_up(&mut self, p: usize) {
        if !self.agents[p].up {
            return;
        }
        self.store.lines[p].up = true;
        let life = self.agents[p].life;
        let input = Input::WatchUp(true);
        self.queue
            .push(self.now, GroupEvent::Mail { p, life, input });
        let keys: Vec<Key> = self
            .registers(p)
            .list("ha/")
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            if self.agents[p].follows(&key) {
                self.tell_line(p, key);
            }
        }
    }

    pub(super) fn deliver(&mut self, p: usize, input: Input) {
        let agent = &mut self.agents[p];
        if agent.runs() {
            self.step(p, Some(input));
        } else if agent.inbox.len() < INBOX_MAX {
            agent.inbox.push_back(input);
        }
    }

    pub(super) fn timer(&mut self, p: usize) {
        self.agents[p].timer.0 = TrueTime::MAX;
        if self.agents[p].runs() {
            self.step(p, None);
        }
    }

    pub(super) fn unpause(&mut self, p: usize) {
        if !self.agents[p].paused {
            return;
        }
        self.agents[p].paused = false;
        self.trace_note(Some(p), || "goes on".into());
        // Nobody says what its driver looks at first.
        if self.rng.chance(50) {
            self.step(p, None);
        }
        while let Some(input) = self.agents[p].inbox.pop_front() {
            if self.agents[p].runs() {
                self.step(p, Some(input));
            }
        }
        if self.agents[p].runs() {
            self.step(p, None);
        }
    }

    /// One step of the machine, and everything it asks for.
    fn step(&mut self, p: usize, input: Option<Input>) {
        let now = self.local(p);
        self.stats.steps += 1;
        if self.trace.is_on()
            && let Some(input) = &input
        {
            let text = brief(input);
            self.trace_note(Some(p), || format!("<- {text}"));
        }
        if let Some(machine) = &mut self.agents[p].machine {
            match input {
                Some(input) => machine.handle(now, input),
                None => machine.tick(now),
            }
        }
        self.carry_out(p);
    }

    /// Carries out what the machine of `p` asks for, sets its timer anew and
    /// lets the checkers look.
    fn carry_out(&mut self, p: usize) {
        self.note_view(p);
        loop {
            let agent = &mut self.agents[p];
            let Some(machine) = &mut agent.machine else {
                return;
            };
            let Some(output) = machine.poll() else {
                break;
            };
            let id = machine.id();
            if !agent.ids.contains(&id) {
                agent.ids.push(id);
            }
            let (op, call) = match output {
                Output::Read { call, key, .. } => (Op::Read(key), call),
                Output::List { call, prefix, .. } => (Op::List(prefix), call),
                Output::Page {
                    call,
                    prefix,
                    after,
                    ..
                } => (Op::Page(prefix, after), call),
                Output::Write { call, write, .. } => {
                    self.check_sent(p, &write);
                    (Op::Write(write), call)
                }
                Output::Delete {
                    call, key, version, ..
                } => (Op::Delete(key, version), call),
                Output::Deploy(order) => {
                    self.begin_work(p, order);
                    continue;
                }
                Output::Undeploy { run } => {
                    self.stop_work(p, run);
                    continue;
                }
                Output::Kill { run } => {
                    self.stats.kills += 1;
                    self.kill_work(p, run);
                    continue;
                }
                Output::Event(event) => {
                    self.trace_note(Some(p), || format!("-- {event:?}"));
                    self.tell(p, event);
                    continue;
                }
            };
            let life = self.agents[p].life;
            let question = GroupStoreCall {
                p,
                life,
                id,
                call,
                op,
                slow: false,
                held: false,
            };
            self.send(question);
        }
        self.check_told(p);
        self.set_timer(p);
        self.look(p);
    }

    fn set_timer(&mut self, p: usize) {
        let deadline = self.agents[p].machine.as_ref().and_then(Node::deadline);
        let deadline = deadline.filter(|at| *at < Instant::MAX);
        let Some(at) = deadline.map(|at| self.when(p, at)) else {
            let agent = &mut self.agents[p];
            agent.timer = (TrueTime::MAX, agent.timer.1 + 1);
            return;
        };
        let agent = &mut self.agents[p];
        let at = if at > self.now {
            agent.spins = 0;
            at
        } else {
            // A deadline that has passed: come back very soon.
            agent.spins += 1;
            self.now + MICRO
        };
        let spins = agent.spins > 100;
        if at != agent.timer.0 {
            agent.timer = (at, agent.timer.1 + 1);
            let (life, number) = (agent.life, agent.timer.1);
            self.queue.push(at, GroupEvent::Timer { p, life, number });
        }
        if spins {
            let finding = Err("asked a hundred times to be woken in the past".into());
            self.judge(Check::Spin, Some(p), finding);
        }
    }

    /// The agent hears of an event.
    fn tell(&mut self, p: usize, event: Event) {
        self.stats.event(&event);
        self.agents[p].floors.hear(&event);
        match event {
            Event::Beat { grant } => {
                let finding = self.checker_state.granted(
                    self.agents[p].machine.as_ref().map(Node::id),
                    self.when(p, grant.start),
                );
                self.judge(Check::Grants, Some(p), finding);
                let finding = self.check_clocks(p);
                self.judge(Check::Clocks, Some(p), finding);
                let agent = &mut self.agents[p];
                if let Some(machine) = &agent.machine {
                    let (reads, id) = (agent.reads, machine.id());
                    agent.file = Some(NotedClock { reads, id, grant });
                }
                let number = self.number();
                self.agents[p].run_deadline = (grant.kill_at, number);
                let at = self.guarded_when(p, grant.kill_at);
                self.queue.push(at, GroupEvent::Leash { p, number });
            }
            Event::Fenced { .. } => self.agents[p].fenced = true,
            Event::Joined { .. } => self.agents[p].fenced = false,
            Event::Done { ticket } => self.answered(p, ticket, None),
            Event::Refused { ticket, why } => self.answered(p, ticket, Some(why)),
            Event::Excluded { .. } => self.agents[p].gone = true,
            Event::Stopped => {
                self.trace_note(Some(p), || "has left".into());
                self.agents[p].gone = true;
                self.agents[p].up = false;
                self.agents[p].file = None;
                self.end_all(p);
                self.users.forget(p);
                if self.faulty() {
                    // It comes back as another node.
                    self.agents[p].gone = false;
                    self.agents[p].life += 1;
                    let life = self.agents[p].life;
                    let at = self.now + self.rng.between(0, 2 * self.swarm.lease);
                    self.queue.push(at, GroupEvent::Restart { p, life });
                }
            }
            _ => {}
        }
    }

    fn begin_work(&mut self, p: usize, order: Order) {
        let (run, name) = (order.run, order.name.clone());
        self.trace_note(Some(p), || format!("starts {name}, run {}", run.0));
        let finding = self.agents[p]
            .node()
            .map_or(Ok(()), |node| super::checkers::may_start(node, &order));
        self.judge(Check::Placed, Some(p), finding);
        self.check_fence(p, &order);
        let finding = self.check_begins(p, &order);
        self.judge(Check::Guard, Some(p), finding);
        // A guardian asks the clock, too: its timer may come late.
        if self.guarded_now(p) >= self.agents[p].run_deadline.0 {
            return self.post_ended(p, run, true);
        }
        let number = self.number();
        let Some(id) = self.agents[p].machine.as_ref().map(Node::id) else {
            return;
        };
        let store_damage = self.store.store_damage.ever;
        let finding = self
            .once
            .begins(&self.agents[p].config, &order, p, store_damage);
        self.judge(Check::Once, Some(p), finding);
        let work = Work {
            order,
            id,
            up: false,
            stopping: false,
            number,
        };
        self.agents[p].works.insert(run, work);
        let at = self.now + self.rng.between(0, self.swarm.start);
        let failed = self.faulty() && self.rng.chance(self.swarm.failing);
        let happening = if failed {
            GroupEvent::Down {
                p,
                run,
                number,
                failed,
            }
        } else {
            GroupEvent::Up { p, run, number }
        };
        self.queue.push(at, happening);
    }

    pub(super) fn workload_up(&mut self, p: usize, run: Run, number: u64) {
        let Some(work) = self.agents[p].work(run, number) else {
            return;
        };
        if work.up || work.stopping {
            return;
        }
        work.up = true;
        self.stats.works += 1;
        let life = self.agents[p].life;
        let input = Input::Started { run };
        self.queue
            .push(self.now, GroupEvent::Mail { p, life, input });
    }

    fn stop_work(&mut self, p: usize, run: Run) {
        let Some(work) = self.agents[p].works.get_mut(&run) else {
            return self.post_ended(p, run, false);
        };
        work.stopping = true;
        let number = work.number;
        let stubborn = self.faulty() && self.rng.chance(self.swarm.stubborn);
        let most = if stubborn {
            self.swarm.lease
        } else {
            self.swarm.reap
        };
        let at = self.now + self.rng.between(0, most);
        let failed = false;
        self.queue.push(
            at,
            GroupEvent::Down {
                p,
                run,
                number,
                failed,
            },
        );
    }

    pub(super) fn workload_down(&mut self, p: usize, run: Run, number: u64, failed: bool) {
        if self.agents[p].work(run, number).is_some() {
            self.end_work(p, run);
            self.post_ended(p, run, failed);
        }
    }

    fn kill_work(&mut self, p: usize, run: Run) {
        self.end_work(p, run);
        self.post_ended(p, run, false);
    }

    /// It has ended, in true time.
    fn end_work(&mut self, p: usize, run: Run) {
        if let Some(work) = self.agents[p].works.remove(&run) {
            let name = work.order.name.clone();
            self.trace_note(Some(p), || format!("{name} has ended, run {}", run.0));
            self.once.ends(&self.agents[p].config, &name, p);
        }
    }

    fn post_ended(&mut self, p: usize, run: Run, failed: bool) {
        let failed = failed.then(|| "it would not start".into());
        let (life, input) = (self.agents[p].life, Input::Ended { run, failed });
        self.queue
            .push(self.now, GroupEvent::Mail { p, life, input });
    }

    /// Ends everything that runs at `p`.
    pub(super) fn end_all(&mut self, p: usize) {
        let runs: Vec<Run> = self.agents[p].works.keys().copied().collect();
        for run in runs {
            self.end_work(p, run);
        }
    }

    /// A guardian looks at the clock.
    pub(super) fn end_by_deadline(&mut self, p: usize) {
        if self.sleeps(p) || self.guarded_now(p) < self.agents[p].run_deadline.0 {
            return;
        }
        let runs: Vec<Run> = self.agents[p].works.keys().copied().collect();
        for run in runs {
            self.stats.guarded += 1;
            self.kill_work(p, run);
        }
    }
}

/// A job that a guardian kept.
fn kept(work: &Work) -> (Name, Job) {
    let order = &work.order;
    let job = Job {
        run: order.run,
        digest: order.digest.clone(),
        instances: order.instances,
        fence: order.fence,
        phase: Phase::Running,
    };
    (order.name.clone(), job)
}

fn brief(input: &Input) -> String {
    let text = match input {
        Input::Read {
            call,
            result: Ok(reading),
        } => match &reading.register {
            Some(register) => format!("read {} {}", call.0, register.version),
            None => format!("read {} nothing", call.0),
        },
        Input::Listed {
            call,
            result: Ok(listed),
        } => format!("listed {} {} registers", call.0, listed.len()),
        Input::Seen { key, register } => {
            let version = register.as_ref().map(|register| register.version.clone());
            format!("watch: {key} {version:?}")
        }
        other => format!("{other:?}"),
    };
    text.chars().take(200).collect()
}
