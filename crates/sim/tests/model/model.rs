//! The cluster as a model: what can happen next, and what then is.
//!
//! A step is one input to one server, or a crash. Which one comes next is the
//! explorer's choice, and it tries all of them. Some steps that production
//! takes apart are one step here, and some it takes are left out. Why nothing
//! that matters to safety is lost by it:
//!
//! * **Pre-votes are won at once.** A server whose election timeout is over is
//!   told that a majority would vote for it, whichever servers. A pre-vote
//!   changes nothing at those it asks, and at the one who asks it decides only
//!   *whether* it stands; so every schedule with real pre-votes is here, and
//!   more. (A pre-vote's answer may also tell a higher term; so does the
//!   request for votes by which that term came into the world.) `Bounds::plain`
//!   makes them messages, to see that it makes no difference.
//! * **Clocks are choices.** A server that waits may be told that its wait is
//!   over, at any time. Nobody refuses a vote because it hears a leader, unless
//!   it leads itself: such a refusal changes nothing, so it is the same as a
//!   request that is not delivered.
//! * **A server is never down.** A crash is a crash and a restart; a server
//!   that is down for a while is one that nothing reaches for a while.
//! * **Disks are late only where a crash can tell.** It is chosen at the
//!   beginning who crashes. For the others a batch that is not synced only
//!   holds messages back, and messages are held back on the wire already.
//!   The same goes for a batch with nothing but term and vote: a crash that
//!   loses it is one before the step that wrote it, since nothing was said.
//!   `Bounds::plain` makes all disks late.
//! * **A leader gives up when it matters**: in the step in which it hears a
//!   candidate of a higher term or stands itself. In between it is no worse as
//!   a leader than as a follower of the same term, which nobody else can lead.
//! * **A crash loses all that the server was not told of**, but for parts of
//!   the oldest batch. That more was on disk is the same as a sync before
//!   the crash, and messages that do not arrive.
//! * **A delivery that changes nothing and says nothing is no step**: it is
//!   the same as none.
//! * **The silent are not asked again** by a candidate: its first request is
//!   still on its way.
//!
//! * **A hand-over is given up with the leadership**, and not earlier: a leader
//!   that gives it up goes on as if it had never been asked, but for the word
//!   that it has said, which may arrive at any time.
//!
//! With leases time is no free choice: who has a lease relies on how long others
//! keep silent. There all clocks are equal and jump at once (`Action::Pass`),
//! by more than any wait; a server stands, or steps down, only when its own
//! timer has run out, and those who owe silence refuse. A server may look
//! after its timers as late as it likes. Everything in a server tells states
//! apart then, so that bounds are smaller.
//!
//! There the last server's number may go to another disk: it is removed, and
//! the new disk is admitted and promoted, by the leader (`Action::Change`). The
//! old disk goes on as a server of its own, with all that it has promised. A
//! message is for a disk, and reaches that one; one that says no disk may reach
//! either, or both.
//!
//! Left out: other changes of members, snapshots, reads that wait for a round,
//! sessions.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use stateright::{Model, Property};
use tenure_alpo::{
    Body, Change, ClientRequest, Input, OpenSession, Output, SenderRole, Status, VotingStatus,
};
use tenure_core::ids::Term;

use super::action::{Action, Left};
use super::bounds::Bounds;
use super::host::{Host, addressees, id_of, parts};
use super::rules::{Before, Broken, ResumeState};
use super::seen::Seen;
use super::wire::{Sent, Wire};

/// A state of the whole.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) hosts: Vec<Arc<Host>>,
    pub(crate) wire: Wire,
    pub(crate) left: Left,
    /// Who will crash.
    pub(crate) victim: Option<usize>,
    pub(crate) past: ResumeState,
    pub(crate) broken: Option<Broken>,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, into: &mut H) {
        for host in &self.hosts {
            host.digest.hash(into);
        }
        self.wire.digest(&self.hosts, into);
        (self.left, self.victim, self.broken).hash(into);
        self.past.digest(into);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        let digest = |world: &Self| {
            let mut hasher = DefaultHasher::new();
            world.hash(&mut hasher);
            hasher.finish()
        };
        digest(self) == digest(other)
    }
}

/// The model of a cluster within bounds.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) bounds: Bounds,
    /// Where exploration begins; all of the founded cluster if empty.
    pub(crate) start: Vec<World>,
    pub(crate) seen: Seen,
}

impl Cluster {
    pub(crate) fn new(bounds: Bounds) -> Self {
        // Otherwise a change that waits to be judged tells no states apart.
        assert!(!bounds.replaced || bounds.lease.is_some());
        Self {
            bounds,
            start: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// A cluster that was founded and not started before; `victim` will
    /// crash.
    pub(crate) fn bootstrapped(&self, victim: Option<usize>) -> World {
        let Bounds {
            servers,
            stands,
            proposals,
            beats,
            transfers,
            lease,
            replaced,
            changes,
            crashes,
            duplicates,
            ..
        } = self.bounds;
        let config = self.bounds.config();
        let hosts = (0..servers).map(|index| Host::bootstrapped(index, servers, &config));
        let new = || Host::blank(servers, id_of(servers - 1), &config);
        let hosts = hosts.chain(replaced.then(new));
        World {
            hosts: hosts.map(Arc::new).collect(),
            wire: Wire::new(self.bounds.kept()),
            left: Left {
                stands,
                proposals,
                beats,
                transfers,
                passes: lease.unwrap_or(0),
                changes,
                crashes,
                duplicates,
            },
            victim,
            past: ResumeState::default(),
            broken: None,
        }
    }

    fn is_watched(&self, broken: Broken) -> bool {
        self.bounds.only.is_none_or(|only| only == broken)
    }

    /// Server `index` does something, and then its disk if it is never late.
    fn act(&self, world: &mut World, index: usize, what: impl FnOnce(&mut Host) -> Vec<Output>) {
        self.act_once(world, index, what);
        while world.broken.is_none() && !self.is_late(world, index) {
            self.act_once(world, index, |host| host.sync().unwrap_or_default());
        }
        world.wire.sweep(&world.hosts);
        world.past.forget(&world.hosts);
    }

    /// Whether what waits for a disk, if anything, may wait longer.
    fn is_late(&self, world: &World, index: usize) -> bool {
        let Some(batch) = world.hosts[index].disk.waiting.front() else {
            return true;
        };
        if self.bounds.plain {
            return world.left.crashes > 0;
        }
        let only_hard = batch.entries.is_empty() && batch.truncate.is_none();
        world.victim == Some(index) && !only_hard
    }

    fn act_once(
        &self,
        world: &mut World,
        index: usize,
        what: impl FnOnce(&mut Host) -> Vec<Output>,
    ) {
        let before = Before::of(&world.hosts[index]);
        let host = Arc::make_mut(&mut world.hosts[index]);
        let Ok(outputs) = catch_unwind(AssertUnwindSafe(|| what(host))) else {
            world.broken = Some(Broken::Panicked);
            return;
        };
        host.note();
        let watched = |broken| self.is_watched(broken);
        world.broken = world
            .past
            .look(&world.hosts, index, before, &outputs, watched);
        for output in outputs {
            if let Output::Send { envelope, storage } = output {
                for to in addressees(&world.hosts, envelope.to, storage) {
                    world.wire.send(envelope.clone(), (index, to));
                }
            }
        }
        self.look_at_leases(world);
    }

    /// Who reads by its lease has all that is committed.
    fn look_at_leases(&self, world: &mut World) {
        if self.bounds.lease.is_none() || world.broken.is_some() {
            return;
        }
        let committed = world.past.committed() as u64;
        let leads = |host: &&Arc<Host>| host.node.status() == Status::Leader;
        let leaders = world.hosts.iter().filter(leads);
        let stale = leaders
            .filter_map(|host| host.reads())
            .any(|id| id < committed);
        if stale && self.is_watched(Broken::StaleRead) {
            world.broken = Some(Broken::StaleRead);
        }
    }

    fn deliver(&self, world: &mut World, message: usize, stays: bool) -> bool {
        let Sent {
            envelope, from, to, ..
        } = world.wire.get(message).clone();
        if !stays {
            world.wire.take(message);
        }
        let (before, length) = (world.hosts[to].digest, world.wire.len());
        let stands = matches!(&envelope.body, Body::Request { request, .. }
            if request.sender_role() == SenderRole::Candidate);
        if stands {
            self.let_go(world, to, envelope.term);
        }
        self.act(world, to, |host| host.receive(&envelope, from));
        world.broken.is_some() || world.hosts[to].digest != before || world.wire.len() > length
    }

    /// Before a server hears a candidate of `term` it may have lost patience
    /// with its leader, or with those who do not follow it.
    fn let_go(&self, world: &mut World, index: usize, term: Term) {
        if self.bounds.lease.is_some() {
            return;
        }
        let leads = world.hosts[index].node.status() == Status::Leader;
        if !leads {
            Arc::make_mut(&mut world.hosts[index]).forget_leader();
        } else if !self.bounds.plain && term > world.hosts[index].node.term() {
            self.act(world, index, Host::time_out);
        }
    }

    fn time_out(&self, world: &mut World, index: usize) -> bool {
        if self.bounds.lease.is_some() {
            world.left.stands -= 1;
            self.act(world, index, |host| {
                let outputs = host.tick();
                host.win(outputs)
            });
            return true;
        }
        let leads = world.hosts[index].node.status() == Status::Leader;
        if leads {
            self.act(world, index, Host::time_out);
            if self.bounds.plain {
                return true;
            }
        }
        world.left.stands -= 1;
        let polls = self.bounds.plain;
        self.act(world, index, |host| {
            let outputs = host.time_out();
            if polls { outputs } else { host.win(outputs) }
        });
        // A pre-vote that waits for the disk is asked when it was synced.
        polls || world.hosts[index].node.status() != Status::PreVoting
    }

    fn propose(&self, world: &mut World, index: usize) {
        // Each proposal differs from the others.
        let token = u64::from(self.bounds.proposals - world.left.proposals);
        world.left.proposals -= 1;
        let ttl = u64::MAX / 2 + token;
        let request = ClientRequest::Open(OpenSession::unowned(ttl));
        self.act(world, index, |host| {
            host.handle(Input::ClientRequest { token, request })
        });
    }

    fn hand_over(&self, world: &mut World, index: usize, to: usize) {
        world.left.transfers -= 1;
        let request = ClientRequest::Transfer(Some(id_of(to)));
        self.act(world, index, |host| {
            host.handle(Input::ClientRequest { token: 0, request })
        });
    }

    /// What is next until the last server's number is the new disk's. Whether
    /// anything came of it.
    fn change(&self, world: &mut World, index: usize) -> bool {
        world.left.changes -= 1;
        let new = &world.hosts[self.bounds.servers];
        let (server, storage) = (new.node.id(), new.storage());
        let host = &world.hosts[index];
        let change = match host.node.members().get(server) {
            None => Change::AddLearner { server, storage },
            Some(member) if member.storage != storage => Change::Remove(server),
            Some(member) if member.voting_status == VotingStatus::Learner => {
                Change::Promote(server)
            }
            Some(_) => return false,
        };
        let before = host.digest;
        let request = ClientRequest::Change(change);
        self.act(world, index, |host| {
            host.handle(Input::ClientRequest { token: 0, request })
        });
        world.broken.is_some() || world.hosts[index].digest != before
    }

    fn crash(&self, world: &mut World, index: usize, whole: usize, part: usize) {
        world.left.crashes -= 1;
        if world.left.crashes == 0 {
            world.victim = None;
        }
        let config = self.bounds.config();
        let lost = whole < world.hosts[index].disk.waiting.len();
        self.seen.crashed(lost);
        Arc::make_mut(&mut world.hosts[index]).crash(&config, whole, part);
        self.act(world, index, |_| Vec::new());
        // The others' disks need not be late any more.
        for other in 0..world.hosts.len() {
            self.act(world, other, |_| Vec::new());
        }
    }

    /// What can happen to server `index` by itself.
    fn own_actions(&self, world: &World, index: usize, actions: &mut Vec<Action>) {
        let (host, left) = (&world.hosts[index], &world.left);
        let leads = host.node.status() == Status::Leader;
        let may_stand = left.stands > 0
            && host.node.term().get() < self.bounds.terms
            && self.bounds.only_stands.is_none_or(|only| only == index);
        let may_stand = may_stand && (self.bounds.lease.is_none() || host.is_due());
        let may_stand = may_stand && host.is_voter();
        if may_stand || leads && self.bounds.plain {
            actions.push(Action::TimeOut(index));
        }
        if leads && left.beats > 0 {
            actions.push(Action::Beat(index));
        }
        if leads && left.proposals > 0 && host.node.is_ready() {
            actions.push(Action::Propose(index));
        }
        // The target stands in the next term.
        let within = host.node.term().get() < self.bounds.terms;
        if leads && left.transfers > 0 && within && host.node.is_ready() {
            let voter = |target: &usize| host.node.members().is_voter(id_of(*target));
            let targets = (0..self.bounds.servers).filter(|target| *target != index);
            let targets = targets.filter(voter);
            actions.extend(targets.map(|target| Action::HandOver(index, target)));
        }
        if leads && left.changes > 0 && host.node.is_ready() {
            actions.push(Action::Change(index));
        }
        if !host.disk.waiting.is_empty() {
            actions.push(Action::Sync(index));
        }
        if left.crashes > 0 && world.victim.is_none_or(|victim| victim == index) {
            let all = host.disk.waiting.len();
            let most = if self.bounds.plain { all } else { 0 };
            for whole in 0..=most {
                let parts = host.disk.waiting.get(whole).map_or(1, parts);
                actions.extend((0..parts).map(|part| Action::Crash(index, whole, part)));
            }
        }
    }
}

impl Model for Cluster {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        if !self.start.is_empty() {
            return self.start.clone();
        }
        if self.bounds.crashes == 0 || self.bounds.plain {
            return vec![self.bootstrapped(None)];
        }
        let victims = 0..self.bounds.servers;
        victims
            .map(|victim| self.bootstrapped(Some(victim)))
            .collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        for index in 0..world.hosts.len() {
            self.own_actions(world, index, actions);
        }
        if world.left.passes > 0 {
            actions.push(Action::Pass);
        }
        let messages = world.wire.distinct(&world.hosts);
        actions.extend(messages.iter().copied().map(Action::Deliver));
        if world.left.duplicates > 0 {
            actions.extend(messages.into_iter().map(Action::Duplicate));
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        let happens = match action {
            Action::Deliver(message) => self.deliver(&mut next, message, false),
            Action::Duplicate(message) => {
                next.left.duplicates -= 1;
                self.deliver(&mut next, message, true)
            }
            Action::TimeOut(index) => self.time_out(&mut next, index),
            Action::Beat(index) => {
                next.left.beats -= 1;
                self.act(&mut next, index, Host::beat);
                true
            }
            Action::Propose(index) => {
                self.propose(&mut next, index);
                true
            }
            Action::HandOver(index, to) => {
                self.hand_over(&mut next, index, to);
                true
            }
            Action::Change(index) => self.change(&mut next, index),
            Action::Pass => {
                next.left.passes -= 1;
                for host in &mut next.hosts {
                    let host = Arc::make_mut(host);
                    host.pass();
                    host.note();
                }
                true
            }
            Action::Sync(index) => {
                self.act(&mut next, index, |host| host.sync().unwrap_or_default());
                true
            }
            Action::Crash(index, whole, part) => {
                self.crash(&mut next, index, whole, part);
                true
            }
        };
        if happens && self.within_boundary(&next) {
            self.seen.note(&next);
        }
        happens.then_some(next)
    }

    fn within_boundary(&self, world: &World) -> bool {
        let within = |host: &Arc<Host>| host.node.term().get() <= self.bounds.terms;
        world.hosts.iter().all(within)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        super::properties::all()
    }
}
