//! True time, and everybody in it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tenure_alpo::{
    Body, ClientRequest, ClusterId, Input, LogId, Membership, Node, ServerId, State, Status,
    invariants,
};
use tenure_core::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Now};

use super::Options;
use super::checkers::accepted;
use super::checkers::clients::Calls;
use super::checkers::committed::Committed;
use super::checkers::deferral::{Calm, Patience};
use super::checkers::leaders::Leaders;
use super::checkers::majority_heard::Followed;
use super::checkers::session_leases::Holders;
use super::checkers::{Broken, Check, Verdict, broken};
use super::client::Client;
use super::copied_disks::{ClonedProcesses, SetBackDisks};
use super::events::{Event, Waiting};
use super::former_settings::SettingsRollout;
use super::given_out::ClusterLoss;
use super::host::Host;
use super::intruders::SharedSessions;
use super::network::{DelayedMessages, LINGER_MAX};
use super::network::{InFlightMessage, Network};
use super::reader_state::Readers;
use super::stats::Stats;
use super::swarm::Swarm;
use crate::clock::SECOND;
use crate::kernel::{Ended, Queue};
use crate::trace::Trace;

/// How the cluster began.
#[derive(Default)]
pub(super) struct BootstrapState {
    /// What was founded first, and by whom.
    pub(super) bootstrapped: Option<(ClusterId, Membership)>,
    /// A disk was wiped, or a number used twice.
    pub(super) mishap: bool,
    /// No cluster can ever vote.
    pub(super) failed: bool,
}

/// How the judging of a shape stands.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PartitionCheck {
    /// Since when nobody leads though somebody could.
    pub(super) leaderless: Option<u64>,
    /// For how many looks the same server has led.
    pub(super) steady: u64,
    pub(super) led_by: Option<usize>,
    pub(super) looks: u64,
}

/// Everything.
pub(super) struct World {
    pub(super) now: u64,
    queue: Queue<Event>,
    pub(super) rng: Rng,
    pub(super) swarm: Swarm,
    pub(super) settings_rollout: SettingsRollout,
    pub(super) hosts: Vec<Host>,
    pub(super) network: Network,
    pub(super) delayed_messages: DelayedMessages,
    /// What a row of faults waits for.
    pub(super) waiting: Option<Waiting>,
    pub(super) readers: Readers,
    pub(super) partition_check: PartitionCheck,
    pub(super) clients: Vec<Client>,
    /// Who asked with a token, and which of its requests it was.
    pub(super) tokens: BTreeMap<u64, (usize, u64)>,
    pub(super) next_token: u64,
    pub(super) shared_sessions: SharedSessions,
    pub(super) committed: Committed,
    pub(super) beginning: BootstrapState,
    pub(super) set_back_disks: SetBackDisks,
    pub(super) cloned_processes: ClonedProcesses,
    pub(super) leaders: Leaders,
    pub(super) deferral: Patience,
    majority_heard: Followed,
    pub(super) calls: Calls,
    pub(super) session_leases: Holders,
    pub(super) loss: ClusterLoss,
    pub(super) stats: Stats,
    pub(super) trace: Trace,
    /// Faults are over.
    pub(super) healed: bool,
    /// Clients ask for nothing new.
    pub(super) quiet: bool,
    /// The leader from here on must not be disturbed.
    pub(super) undisturbed: Option<(ServerId, tenure_core::ids::Term)>,
    /// The calm began later, for a snapshot.
    pub(super) waited_for_snapshot: bool,
    /// How often the end was put off for servers that make states of snapshots.
    pub(super) ends_put_off: u64,
    /// What was committed a while before the end.
    pub(super) settled: LogId,
    /// Counts storages, so that each is new.
    pub(super) storages: u128,
}

impl World {
    fn new(seed: u64, options: &Options, trace: usize) -> Self {
        let mut rng = Rng::from_seed(seed);
        let mut swarm = Swarm::draw(&mut rng, options);
        let settings_rollout = SettingsRollout::draw(seed, &mut swarm, options);
        let hosts = (0..swarm.servers).map(|index| {
            let id = ServerId::new(index as u64 + 1).expect("not zero");
            Host::new(id, rng.below(1_000 * SECOND), swarm.drift[index])
        });
        let mut hosts: Vec<_> = hosts.collect();
        for host in &mut hosts {
            host.old = settings_rollout.before.is_some();
        }
        let mut members = Membership::default();
        if !swarm.blank {
            let founders = hosts.iter().take(swarm.founders);
            members = Membership::bootstrapped(founders.map(|host| (host.id, host.storage)));
            let bootstrapped =
                State::bootstrapped(swarm.limits, ClockId::default(), members.clone());
            for host in hosts.iter_mut().take(swarm.founders) {
                host.disk
                    .found(&bootstrapped.encode())
                    .expect("a sound disk");
            }
        }
        let rates = swarm.client_drift.iter().copied().enumerate();
        let clients = rates.map(|(number, rate)| Client::new(number, rng.fork(), rate));
        let clients: Vec<_> = clients.collect();
        let set_back_disks = SetBackDisks::new(seed, &swarm);
        let (least, most, strictly) = settings_rollout.timeouts(&swarm.config);
        Self {
            now: 0,
            queue: Queue::default(),
            hosts,
            network: Network::new(swarm.servers),
            delayed_messages: DelayedMessages::default(),
            waiting: None,
            readers: Readers::new(swarm.servers + LINGER_MAX),
            partition_check: PartitionCheck::default(),
            clients,
            tokens: BTreeMap::new(),
            next_token: 0,
            shared_sessions: SharedSessions::new(seed),
            committed: committed(&swarm, &members),
            beginning: BootstrapState::default(),
            cloned_processes: ClonedProcesses::new(seed, &swarm, &set_back_disks),
            set_back_disks,
            leaders: Leaders::default(),
            deferral: Patience::new(swarm.servers + LINGER_MAX, least),
            majority_heard: Followed::new(
                (swarm.servers, swarm.servers + LINGER_MAX),
                most,
                strictly,
            ),
            calls: Calls::default(),
            session_leases: Holders::default(),
            loss: ClusterLoss::new(seed),
            stats: Stats::default(),
            trace: Trace::new(trace),
            healed: false,
            quiet: false,
            undisturbed: None,
            waited_for_snapshot: false,
            ends_put_off: 0,
            settled: 0,
            storages: 1_000,
            rng,
            swarm,
            settings_rollout,
        }
    }

    pub(super) fn after(&mut self, delay: u64, event: Event) {
        self.queue.push(self.now.saturating_add(delay), event);
    }

    /// The world of this seed lives until the end, or until a rule is broken. A
    /// panic of a server breaks one.
    pub(super) fn live(seed: u64, options: &Options, trace: usize) -> Ended<Stats, Check> {
        let mut world = Self::new(seed, options, trace);
        let verdict = catch_unwind(AssertUnwindSafe(|| world.run()));
        let broken = verdict.map(Verdict::err).unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            let detail = text.unwrap_or_else(|| "a panic".to_string());
            Some(Broken::new(Check::Halted, detail))
        });
        world.stats.runs = 1;
        Ended {
            stats: world.stats,
            world: String::new(),
            found: broken.map(|Broken { check, detail }| (check, world.now, detail)),
            trace: world.trace,
        }
    }

    /// Runs to the end, or to the first broken rule.
    fn run(&mut self) -> Verdict {
        self.network.unruly = self.swarm.kinds.unruly;
        let blank = if self.swarm.blank {
            self.begin_founding();
            self.swarm.founders
        } else {
            0
        };
        for server in blank..self.swarm.servers {
            self.start(server)?;
        }
        for client in 0..self.clients.len() {
            let first = self.rng.below(self.swarm.think);
            self.after(first, Event::Client { client });
        }
        self.plan_copies();
        self.plan_clones();
        self.plan_turns();
        self.after(self.swarm.pace, Event::Fault);
        self.plan_loss();
        self.after(self.swarm.storm, Event::Heal);
        self.plot_the_end();
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            self.stats.events += 1;
            if let Event::End = event {
                match self.left_to_decode() {
                    Some(left) => self.after(left, Event::End),
                    None => return self.judge_end(),
                }
                continue;
            }
            self.happen(event)?;
            if self.beginning.failed {
                return Ok(());
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Verdict {
        match event {
            Event::Deliver(message) => {
                let Some(server) = self.addressee(&message) else {
                    return Ok(());
                };
                let again = || Event::Deliver(message.clone());
                if let Some(event) = self.postponed(server, again) {
                    return self.put_off(server, event);
                }
                self.deliver(server, message)
            }
            Event::Wake { server, epoch } => self.wake(server, epoch),
            Event::Synced {
                server,
                epoch,
                upto,
                fails,
            } => self.synced(server, epoch, upto, fails),
            Event::SnapshotEncoded {
                server,
                epoch,
                snapshot,
            } => self.snapshot_encoded(server, epoch, snapshot),
            Event::SnapshotDecoded {
                server,
                epoch,
                decoded,
            } => self.snapshot_decoded(server, epoch, decoded),
            Event::Closed {
                server,
                epoch,
                peer,
                storage,
            } => self.closed(server, epoch, Input::Closed(peer, storage)),
            Event::Restart { server } => self.start(server),
            Event::ClientRequest {
                server,
                token,
                request,
            } => self.deliver_request(server, token, request),
            Event::Answered { token, answer } => self.answered(token, answer),
            Event::Hello {
                from,
                to,
                hello,
                is_request,
            } => self.hear(from, to, &hello, is_request),
            Event::Fault => self.fault(),
            Event::Cloned { server } => self.cloned(server),
            Event::Lost => self.lost(),
            Event::Readmit { server } => self.readmit(server),
            Event::Heal => self.heal(),
            Event::PartitionCheck => self.look_at_shape(),
            Event::Client { client } => self.client_and_reader(client),
            Event::Elected { catching_up } => self.elected(catching_up),
            Event::Calm => self.calm(),
            Event::Flap { round } => self.flap(round),
            other => {
                self.just_happen(other);
                Ok(())
            }
        }
    }

    fn deliver_request(&mut self, server: usize, token: u64, request: ClientRequest) -> Verdict {
        let again = || Event::ClientRequest {
            server,
            token,
            request: request.clone(),
        };
        if let Some(event) = self.postponed(server, again) {
            return self.put_off(server, event);
        }
        self.step(server, |node, now| {
            node.handle(now, Input::ClientRequest { token, request });
        })
    }

    fn deliver(&mut self, server: usize, message: InFlightMessage) -> Verdict {
        if self.are_strange(message.storage, server) || self.is_gone(message.storage) {
            return Ok(());
        }
        if !self.is_heeded(server, &message) {
            return Ok(());
        }
        let InFlightMessage {
            envelope, storage, ..
        } = message;
        let from = envelope.from;
        let node = self.hosts[server].node.as_ref();
        // What another disk under a member's number answers confirms nothing.
        let member = node.is_some_and(|node| node.members().has(from, storage));
        if member && matches!(envelope.body, Body::Reply { .. }) {
            self.majority_heard.heard(server, from, self.now);
        }
        self.heard_from(server, from.get() as usize - 1);
        let node = self.hosts[server].node.as_ref();
        let calm = node.and_then(|node| Calm::before(node, &envelope));
        self.step(server, |node, now| {
            node.handle(now, Input::Received { envelope, storage });
        })?;
        match (calm, &self.hosts[server].node) {
            (Some(calm), Some(node)) => calm.after(node),
            _ => Ok(()),
        }
    }

    /// What breaks no rule by itself.
    fn just_happen(&mut self, event: Event) {
        match event {
            Event::Backup => self.back_up(),
            Event::Knock => self.knock(),
            // Nothing else happens to two processes with one disk.
            Event::Snipe { .. }
            | Event::Dethrone { .. }
            | Event::Betray { .. }
            | Event::Plot(_)
                if self.are_two() => {}
            Event::Greet { server, epoch } => self.greet(server, epoch),
            Event::Stumble { server } => self.stumble(server),
            Event::Mishap { server } => self.mishap(server),
            Event::Copied { server } => self.copied(server),
            Event::PutBack { server } => self.put_back(server),
            Event::Snipe { server } => self.sniped(server),
            Event::Dethrone { server } => self.dethrone(server),
            Event::Betray { voter, winner } => self.betray(voter, winner),
            Event::Plot(next) => self.go_on_plotting(next),
            Event::Release { number } => self.release(number),
            Event::Turn { server, old } => self.turn(server, old),
            Event::WaitedOut { server, epoch } => self.waited_out(server, epoch),
            Event::Quiet => self.quiet = true,
            Event::Settle => self.settled = self.committed.len(),
            _ => {}
        }
    }

    /// The event, if the process does nothing at the moment.
    pub(super) fn postponed(&self, server: usize, event: impl FnOnce() -> Event) -> Option<Event> {
        (self.hosts[server].paused_until > self.now).then(event)
    }

    pub(super) fn put_off(&mut self, server: usize, event: Event) -> Verdict {
        let delay = self.hosts[server].paused_until - self.now;
        self.after(delay, event);
        Ok(())
    }

    fn wake(&mut self, server: usize, epoch: u64) -> Verdict {
        let host = &mut self.hosts[server];
        if host.epoch != epoch || host.wake_at != self.now {
            return Ok(());
        }
        if host.paused_until > self.now {
            host.wake_at = host.paused_until;
            let delay = host.wake_at - self.now;
            self.after(delay, Event::Wake { server, epoch });
            return Ok(());
        }
        host.wake_at = u64::MAX;
        let due = host.node.as_ref().and_then(Machine::deadline);
        let now = host.now(self.now).boot;
        if due.is_some_and(|due| due <= now) {
            self.stats.ticks += 1;
            self.step(server, Machine::tick)?;
            return self
                .majority_heard
                .look(server, self.hosts[server].node.as_ref(), self.now);
        }
        self.plan_wake(server);
        Ok(())
    }

    pub(super) fn plan_wake(&mut self, server: usize) {
        let host = &mut self.hosts[server];
        let Some(due) = host.node.as_ref().and_then(Machine::deadline) else {
            return;
        };
        let at = host.true_time(due).max(self.now + 1);
        if at < host.wake_at {
            host.wake_at = at;
            let (delay, epoch) = (at - self.now, host.epoch);
            self.after(delay, Event::Wake { server, epoch });
        }
    }

    /// Lets a server handle something, and does what it asks for.
    pub(super) fn step(&mut self, server: usize, act: impl FnOnce(&mut Node, Now)) -> Verdict {
        let now = self.hosts[server].now(self.now);
        let Some(node) = &mut self.hosts[server].node else {
            return Ok(());
        };
        let before = invariants::View::of(node);
        act(node, now);
        self.watch(server, &before)?;
        while let Some(output) = self.hosts[server].node.as_mut().and_then(Machine::poll) {
            self.carry_out(server, output)?;
        }
        self.plan_wake(server);
        Ok(())
    }

    fn watch(&mut self, server: usize, before: &invariants::View) -> Verdict {
        let Some(node) = &self.hosts[server].node else {
            return Ok(());
        };
        let after = invariants::View::of(node);
        let fault =
            invariants::check_state(node).or_else(|| invariants::check_step(before, &after));
        if let Some(fault) = fault {
            return broken(Check::Invariant, format!("{}: {fault:?}", node.id()));
        }
        if self.trace.is_on() && (before.status != after.status || before.hard != after.hard) {
            let what = format!(
                "{:?} term {} vote {:?} log {} commit {}",
                after.status, after.hard.term, after.hard.vote, after.last, after.commit
            );
            self.note(server, &what);
        }
        if before.hard.term != after.hard.term {
            self.readers.has_term(server, self.now);
        }
        let voted = after
            .hard
            .vote
            .filter(|_| after.hard.vote != before.hard.vote);
        let id = self.hosts[server].id;
        if voted.is_some_and(|vote| vote.rank.server != id) {
            self.snipe(server, false);
        }
        let Some(node) = &self.hosts[server].node else {
            return Ok(());
        };
        accepted::look(node, &self.hosts)?;
        if self.leaders.look(node)? {
            self.stats.reigns += 1;
            self.committed.complete(node)?;
            self.snipe(server, true);
            self.release_to(server);
            self.plot(server);
        }
        Ok(())
    }

    pub(super) fn note(&mut self, server: usize, what: &str) {
        if self.trace.is_on() {
            let host = &self.hosts[server];
            let local = host.now(self.now).boot;
            let who = host.id.to_string();
            self.trace.note(self.now, &who, Some(local), what);
        }
    }

    /// Who leads with the highest term, if anybody does; not a removed disk.
    pub(super) fn leader(&self) -> Option<usize> {
        let leads = |host: &Host| {
            let node = host.node.as_ref()?;
            (node.status() == Status::Leader).then(|| node.term())
        };
        let leaders = self.hosts.iter().take(self.swarm.servers).enumerate();
        leaders
            .filter_map(|(index, host)| Some((leads(host)?, index)))
            .max()
            .map(|(_, index)| index)
    }

    /// The timeout in nanoseconds.
    pub(super) fn timeout(&self) -> u64 {
        self.swarm.config.election_timeout.as_nanos() as u64
    }
}

/// What all servers are judged by, from the bootstrap on.
pub(super) fn committed(swarm: &Swarm, members: &Membership) -> Committed {
    let mut wide = swarm.limits;
    wide.user_log_bytes = u64::MAX;
    let bootstrapped = |limits| {
        let state = State::bootstrapped(limits, ClockId::default(), members.clone());
        // A mistake in the state itself is for the checker of that rule to
        // see, not for the comparison with a state that does not make it.
        #[cfg(feature = "planted-bugs")]
        let state = {
            let mut state = state;
            state.plant(swarm.config.planted);
            state
        };
        state
    };
    Committed::new(bootstrapped(swarm.limits), bootstrapped(wide))
}
