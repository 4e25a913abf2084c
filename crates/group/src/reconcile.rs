//! What runs here, and what should: the planner (§6).
//!
//! [`reconcile`] is a pure function of the view, the node's id, what runs here,
//! and the node's times. It is level-triggered: an extra call changes nothing,
//! and a missed event costs only time, so there is no work queue. Three things decide whether a workload is
//! wanted here: the view assigns it to this node *and does not ask for its
//! release*, the group has its quorum (if the workload is HA), and the node's own
//! grant still counts.
//!
//! A start that failed is repeated after a back-off that doubles (of a crash loop;
//! Kubernetes: `CrashLoopBackOff`). After
//! [`STARTS_MAX`] failures in a row the next node may try. A workload that starts
//! well and ends by itself soon after counts as a failure too. A start alone
//! proves nothing, so failures are forgotten only once the workload has run for a
//! while ([`HEALTHY`]).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use tenure_core::ids::Name;
use tenure_core::time::Instant;

use super::types::Run;
use super::view::{Place, Target, View};
use super::{Bug, Digest, NodeId, Plant};

/// How many starts in a row may fail before the next node tries.
pub const STARTS_MAX: u32 = 3;
/// The pause after the first start that failed.
pub const BACKOFF: Duration = Duration::from_millis(500);
/// The longest pause between two starts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// How long a workload must run, at least, before its failures are forgotten.
pub const HEALTHY: Duration = Duration::from_secs(10);
/// The same as a multiple of its last back-off. Without this, a workload that always
/// crashes just after [`HEALTHY`] would have its back-off reset each time.
pub const HEALTHY_BACKOFFS: u32 = 10;

/// A workload that runs here, or is about to, or is about to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// The order it was begun by.
    pub run: Run,
    /// Names its config and command.
    pub digest: Digest,
    /// How many instances.
    pub instances: u32,
    /// What it attaches to its effects.
    pub fence: u64,
    /// How far it is.
    pub phase: Phase,
}

/// How far a job is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It has been told to start.
    Starting,
    /// It runs.
    Running,
    /// It has been told to stop.
    Stopping {
        /// When it is killed.
        kill_at: Instant,
        /// Whether it has been.
        killed: bool,
    },
}

/// Starts that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartBackoff {
    /// What failed to start.
    pub digest: Digest,
    /// How many times in a row.
    pub fails: u32,
    /// When to try again.
    pub until: Instant,
}

/// What runs here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Jobs {
    /// By the workload's name.
    pub jobs: BTreeMap<Name, Job>,
    /// Those that failed to start, by name.
    pub backoffs: BTreeMap<Name, StartBackoff>,
    /// Those that run again after failures, by name: when these are forgotten.
    pub backoff_resets_at: BTreeMap<Name, Instant>,
    /// Workloads that a write of the view gives away which is under way. None of them is
    /// started before a newer view is seen, since the write may yet succeed.
    pub released_in_flight: BTreeSet<Name>,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Start this workload.
    Start(Name),
    /// Stop it. It keeps its place in the view.
    Stop(Name),
}

/// The node's own times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Now.
    pub now: Instant,
    /// Whether anything may run: the node is a member, and `drain_at` has not
    /// come.
    pub open: bool,
    /// Whether anything new may start: a node that resumes its incarnation
    /// first makes sure that no swap of its last incarnation can take effect any more.
    pub may_start: bool,
}

/// What follows from the view for the node `me`.
pub fn reconcile(view: &View, me: NodeId, here: &Jobs, times: Times, plant: Plant) -> Vec<Action> {
    let quorum = has_quorum(view, plant);
    let wanted = |name: &Name, digest: &Digest, instances: u32| {
        let assigned = view.workloads.get(name);
        assigned.is_some_and(|it| {
            is_mine(it.place, me, plant)
                && it.digest == *digest
                && it.instances == instances
                && (quorum || !it.ha)
        })
    };
    let mut actions = Vec::new();
    for (name, job) in &here.jobs {
        let stopping = matches!(job.phase, Phase::Stopping { .. });
        let stays = times.open && wanted(name, &job.digest, job.instances);
        if !stopping && !stays {
            actions.push(Action::Stop(name.clone()));
        }
    }
    if !times.open || !times.may_start {
        return actions;
    }
    let mut starts = Vec::new();
    let mut first = u32::MAX;
    for (name, it) in &view.workloads {
        if !is_mine(it.place, me, plant) || (it.ha && !quorum) {
            continue;
        }
        match here.jobs.get(name).map(|job| job.phase) {
            Some(Phase::Starting) => first = first.min(it.order),
            Some(Phase::Running | Phase::Stopping { .. }) => {}
            None if here.released_in_flight.contains(name) => {}
            None if here.backs_off(name, &it.digest, times.now) => {}
            None => {
                first = first.min(it.order);
                starts.push((it.order, name));
            }
        }
    }
    let now = starts.into_iter().filter(|(order, _)| *order == first);
    actions.extend(now.map(|(_, name)| Action::Start(name.clone())));
    actions
}

/// Whether `me` is to run what is placed so.
fn is_mine(place: Place, me: NodeId, plant: Plant) -> bool {
    match place {
        Place::Assigned(node) => node == me,
        Place::Releasing {
            to: Target::Node(node),
            ..
        } => node == me && plant.is(Bug::SuccessorBeforeRelease),
        Place::Releasing { .. } | Place::Waiting => false,
    }
}

/// Whether HA workloads may run in this view.
pub(super) fn has_quorum(view: &View, plant: Plant) -> bool {
    if plant.is(Bug::QuorumOfAll) {
        return view.members.len() as u64 >= u64::from(view.quorum);
    }
    view.has_quorum() || plant.is(Bug::QuorumIgnored)
}

/// The pause after so many failures in a row, here and elsewhere.
fn pause(fails: u32) -> Duration {
    let doubled = fails.saturating_sub(1).min(16);
    BACKOFF.saturating_mul(1 << doubled).min(BACKOFF_MAX)
}

impl Jobs {
    /// A swap from `now` to `next` is sent: notes which workloads it takes from this node.
    pub(super) fn note_releases(&mut self, me: NodeId, now: &View, next: &View) {
        for (name, it) in now.held_by(me) {
            let kept = next.workloads.get(name).map(|it| it.place);
            if it.place == Place::Assigned(me) && kept != Some(it.place) {
                self.released_in_flight.insert(name.clone());
            }
        }
    }

    /// Whether nothing runs here.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn backs_off(&self, name: &Name, digest: &Digest, now: Instant) -> bool {
        let cooling = self.backoffs.get(name);
        cooling.is_some_and(|it| it.digest == *digest && now < it.until)
    }

    /// The job that was begun by that order, and its name.
    pub fn by_run(&self, run: Run) -> Option<(&Name, &Job)> {
        self.jobs.iter().find(|(_, job)| job.run == run)
    }

    /// Whether a start that failed is to be repeated.
    pub(super) fn is_retry_due(&self, now: Instant) -> bool {
        let due =
            |(name, it): (&Name, &StartBackoff)| now >= it.until && !self.jobs.contains_key(name);
        self.backoffs.iter().any(due)
    }

    /// Takes note that a job runs, whose starts failed on so many other nodes.
    pub(super) fn started(&mut self, name: &Name, now: Instant, elsewhere: u32) {
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        job.phase = Phase::Running;
        let known = self.backoffs.get(name);
        let known = known.filter(|it| it.digest == job.digest);
        let fails = known.map_or(0, |it| it.fails).saturating_add(elsewhere);
        if fails > 0 {
            let healthy = pause(fails).saturating_mul(HEALTHY_BACKOFFS).max(HEALTHY);
            self.backoff_resets_at
                .insert(name.clone(), now.after(healthy));
        }
    }

    /// Forgets the failures of what has run for long enough since; says
    /// whether there was any.
    pub(super) fn reset_backoffs(&mut self, now: Instant) -> bool {
        let before = self.backoff_resets_at.len();
        let Self {
            backoff_resets_at,
            backoffs,
            ..
        } = self;
        backoff_resets_at.retain(|name, at| {
            if now >= *at {
                backoffs.remove(name);
            }
            now < *at
        });
        before > self.backoff_resets_at.len()
    }

    /// A job has ended, and everything of it is reaped.
    pub(super) fn ended(&mut self, name: &Name) {
        self.jobs.remove(name);
        self.backoff_resets_at.remove(name);
    }

    /// Takes note of a failed start, after those on so many other nodes; says
    /// how many there were in a row here.
    pub(super) fn failed(
        &mut self,
        name: Name,
        digest: Digest,
        now: Instant,
        elsewhere: u32,
    ) -> u32 {
        let known = self.backoffs.get(&name).filter(|it| it.digest == digest);
        let fails = known.map_or(0, |it| it.fails).saturating_add(1);
        let until = now.after(pause(fails.saturating_add(elsewhere)));
        self.backoffs.insert(
            name,
            StartBackoff {
                digest,
                fails,
                until,
            },
        );
        fails
    }

    /// Forgets the failures of what is not assigned here any more.
    pub(super) fn forget(&mut self, view: &View, me: NodeId) {
        self.backoffs.retain(|name, cooling| {
            let it = view.workloads.get(name);
            it.is_some_and(|it| it.place.holder() == Some(me) && it.digest == cooling.digest)
        });
    }

    /// When the next of them wants attention: a start to repeat, a job to
    /// kill, failures to forget.
    pub(super) fn deadline(&self, now: Instant) -> Instant {
        let retries = self.backoffs.values().map(|cooling| cooling.until);
        let retries = retries.filter(|until| *until > now);
        let kills = self.jobs.values().filter_map(|job| match job.phase {
            Phase::Stopping {
                kill_at,
                killed: false,
            } => Some(kill_at),
            _ => None,
        });
        let proofs = self.backoff_resets_at.values().copied();
        retries
            .chain(kills)
            .chain(proofs)
            .min()
            .unwrap_or(Instant::MAX)
    }
}
