//! What an agent knows of its workloads beyond the view: since when each runs
//! here, how often it was started again, why it would not start, and from which
//! node it came.
//!
//! The node publishes this status in its heartbeat register, where `tenure ps`
//! reads it. It also gives a copy to the shim, so that a restarted agent goes on
//! with it. A register has room for some hundred workloads. If there are more,
//! those that simply run are left out first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::core::time::WallTime;
use tenure::ha::{Event, Job, NodeId, Phase, STATUS_BYTES_MAX, View};

/// How much of a reason is kept, in bytes.
const WHY_MAX: usize = 160;

/// How a workload is on the node that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// It is to run, and does not yet.
    #[default]
    Starting,
    /// It runs.
    Running,
    /// It would not start, or has ended by itself; it is tried again.
    Failing,
    /// It was ordered to stop.
    Stopped,
    /// It ended as it should, and is about to be undeployed.
    Completed,
}

/// How a workload came to its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveReason {
    /// The node that had it died.
    Died,
    /// The node that had it handed it on.
    Moved,
}

/// What is known of one workload.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkloadStatus {
    #[serde(rename = "s")]
    pub condition: Condition,
    /// Since when, in milliseconds of the calendar.
    #[serde(rename = "t")]
    pub since: u64,
    /// The epoch at that time; of one that runs, its fence.
    #[serde(rename = "x")]
    pub epoch: u64,
    /// How often it was started again after it had run here.
    #[serde(rename = "r", default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
    /// How many starts have failed here.
    #[serde(rename = "f", default, skip_serializing_if = "is_zero")]
    pub failed: u32,
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Which node had it before, and how that ended.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<(String, MoveReason)>,
    /// It has run here.
    #[serde(skip)]
    ran: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What a node publishes of itself in its heartbeat.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The host name of its machine.
    #[serde(default)]
    pub host: String,
    /// The process of the agent.
    #[serde(default)]
    pub pid: u32,
    /// Since when the agent runs, in milliseconds of the calendar.
    #[serde(default)]
    pub since: u64,
    /// The release of the agent.
    #[serde(default)]
    pub version: String,
    /// The bound on the rates of clocks that it was given. Agents of older
    /// versions do not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_ppm: Option<u32>,
    /// Where it serves metrics, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// How each of its workloads is, by name.
    #[serde(default)]
    pub workloads: BTreeMap<String, WorkloadStatus>,
    /// How many workloads there was no room for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
}

impl NodeStatus {
    /// The status in a heartbeat; an empty one if it does not parse.
    pub fn parse(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// Encodes it so that it fits into the register.
    fn encode(mut self) -> Vec<u8> {
        let bytes = |status: &Self| serde_json::to_vec(status).unwrap_or_default();
        let mut encoded = bytes(&self);
        // Those that simply run are left out first: they have the least news.
        for plain in [true, false] {
            while encoded.len() > STATUS_BYTES_MAX {
                let fits = |entry: &WorkloadStatus| !plain || entry.condition == Condition::Running;
                let names = self.workloads.iter().filter(|(_, entry)| fits(entry));
                let names: Vec<String> = names.map(|(name, _)| name.clone()).take(16).collect();
                if names.is_empty() {
                    break;
                }
                for name in names {
                    self.workloads.remove(&name);
                    self.more += 1;
                }
                encoded = bytes(&self);
            }
        }
        encoded
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct StatusTracker {
    own: NodeStatus,
    entries: BTreeMap<Name, WorkloadStatus>,
    counts: Counts,
    epoch: u64,
}

/// What has happened to a node, for its metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) fenced: u64,
    pub(super) deaths: u64,
    pub(super) failovers_begun: u64,
    pub(super) failovers_completed: u64,
    pub(super) failovers_failed: u64,
    pub(super) starts: u64,
    pub(super) start_failures: u64,
    pub(super) store_failures: u64,
    pub(super) shims_lost: u64,
}

impl StatusTracker {
    /// Begins empty, or with what a previous incarnation has noted.
    pub(super) fn new(own: NodeStatus, notes: &str) -> Self {
        let noted: BTreeMap<String, WorkloadStatus> =
            serde_json::from_str(notes).unwrap_or_default();
        let entry = |(name, entry): (String, WorkloadStatus)| {
            let ran = entry.condition == Condition::Running || entry.restarts > 0;
            Some((Name::new(&name).ok()?, WorkloadStatus { ran, ..entry }))
        };
        Self {
            own,
            entries: noted.into_iter().filter_map(entry).collect(),
            ..Self::default()
        }
    }

    /// Corrects what a previous incarnation has noted by what really `runs`. It
    /// may have ended before it knew, or could note, how that went on.
    pub(super) fn resume(&mut self, runs: &BTreeMap<Name, Job>, now: WallTime) {
        for (name, entry) in &mut self.entries {
            if entry.condition == Condition::Running && !runs.contains_key(name) {
                (entry.condition, entry.since) = (Condition::Starting, now.as_millis());
            }
        }
        for (name, job) in runs {
            let noted = self.entries.get(name);
            let noted = noted.map(|entry| (entry.condition, entry.epoch));
            match job.phase {
                Phase::Starting if noted.is_some_and(|(it, _)| it == Condition::Running) => {
                    self.set_condition(name, Condition::Starting, now);
                }
                Phase::Running if noted != Some((Condition::Running, job.fence)) => {
                    self.set_running(name, job.fence, now);
                }
                Phase::Starting | Phase::Running | Phase::Stopping { .. } => {}
            }
        }
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &WorkloadStatus> {
        self.entries.values()
    }

    pub(super) fn entry(&self, name: &Name) -> Option<&WorkloadStatus> {
        self.entries.get(name)
    }

    /// What the next incarnation should know.
    pub(super) fn notes(&self) -> String {
        let entries = self.entries.iter();
        let entries: BTreeMap<&str, &WorkloadStatus> = entries
            .map(|(name, entry)| (name.as_str(), entry))
            .collect();
        serde_json::to_string(&entries).unwrap_or_default()
    }

    /// What other nodes read of it.
    pub(super) fn status(&self) -> Vec<u8> {
        let entries = self.entries.iter();
        let workloads = entries.map(|(name, entry)| (name.to_string(), entry.clone()));
        let mut status = self.own.clone();
        status.workloads = workloads.collect();
        status.encode()
    }

    /// Updates the statuses by another view, which follows `before`, for the node
    /// of the id `me`.
    pub(super) fn handle_view(
        &mut self,
        before: Option<&View>,
        view: &View,
        me: NodeId,
        now: WallTime,
    ) {
        self.epoch = view.epoch;
        let mine = |name: &Name| {
            let it = view.workloads.get(name);
            it.is_some_and(|it| it.place.holder() == Some(me))
        };
        self.entries.retain(|name, _| mine(name));
        for (name, _) in view.held_by(me) {
            if self.entries.contains_key(name) {
                continue;
            }
            let entry = WorkloadStatus {
                since: now.as_millis(),
                epoch: view.epoch,
                origin: before.and_then(|before| origin(before, view, name, me)),
                ..WorkloadStatus::default()
            };
            self.entries.insert(name.clone(), entry);
        }
    }

    /// Updates the statuses by an event of the node.
    pub(super) fn handle_event(&mut self, event: &Event, now: WallTime) {
        let counts = &mut self.counts;
        match event {
            Event::Fenced { .. } => counts.fenced += 1,
            Event::NodeDied { .. } => counts.deaths += 1,
            Event::FailoverBegun { .. } => counts.failovers_begun += 1,
            Event::FailoverCompleted { .. } => counts.failovers_completed += 1,
            Event::FailoverFailed { .. } => counts.failovers_failed += 1,
            Event::Trouble { .. } => counts.store_failures += 1,
            Event::Deployed { name, fence } => {
                counts.starts += 1;
                self.set_running(name, *fence, now);
            }
            Event::StartFailed { name, why, .. } => {
                counts.start_failures += 1;
                let epoch = self.epoch;
                let entry = self.entries.entry(name.clone()).or_default();
                if entry.condition != Condition::Running {
                    entry.failed += 1;
                }
                let entry = self.set_condition(name, Condition::Failing, now);
                entry.epoch = epoch;
                entry.why = Some(truncate(why));
            }
            Event::Undeployed { name } => {
                self.set_condition(name, Condition::Stopped, now);
            }
            _ => {}
        }
    }

    /// Counts that another shim had to be started.
    pub(super) const fn count_lost_shim(&mut self) {
        self.counts.shims_lost += 1;
    }

    /// It ended as it should.
    pub(super) fn set_completed(&mut self, name: &Name, now: WallTime) {
        self.set_condition(name, Condition::Completed, now);
    }

    fn set_running(&mut self, name: &Name, fence: u64, now: WallTime) {
        let entry = self.set_condition(name, Condition::Running, now);
        entry.epoch = fence;
        if std::mem::replace(&mut entry.ran, true) {
            entry.restarts += 1;
        }
    }

    fn set_condition(
        &mut self,
        name: &Name,
        condition: Condition,
        now: WallTime,
    ) -> &mut WorkloadStatus {
        let entry = self.entries.entry(name.clone()).or_default();
        (entry.condition, entry.since) = (condition, now.as_millis());
        entry
    }
}

fn truncate(why: &str) -> String {
    let mut end = why.len().min(WHY_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why[..end].to_owned()
}

/// Which node had it in the view before.
fn origin(before: &View, view: &View, name: &Name, me: NodeId) -> Option<(String, MoveReason)> {
    let holder = before.workloads.get(name)?.place.holder()?;
    let former = before.member(holder).filter(|former| former.id != me)?;
    let died = view.departures.iter().find(|gone| gone.id == holder);
    let how = if died.is_some_and(|gone| gone.died) {
        MoveReason::Died
    } else {
        MoveReason::Moved
    };
    Some((former.name.to_string(), how))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn failed(of: &str) -> Event {
        Event::StartFailed {
            name: name(of),
            in_a_row: 1,
            why: "it broke".into(),
        }
    }

    fn deployed(of: &str) -> Event {
        let name = name(of);
        Event::Deployed { name, fence: 7 }
    }

    #[test]
    fn restarts_and_failed_starts_are_told_apart() {
        let mut tracker = StatusTracker::default();
        let now = WallTime::from_millis(5);
        let events = [
            failed("w"),
            failed("w"),
            deployed("w"),
            failed("w"),
            deployed("w"),
        ];
        for event in events {
            tracker.handle_event(&event, now);
        }
        let entry = tracker.entry(&name("w")).expect("one").clone();
        assert_eq!((entry.failed, entry.restarts, entry.epoch), (2, 1, 7));
        let again = StatusTracker::new(NodeStatus::default(), &tracker.notes());
        assert_eq!(again.entry(&name("w")), Some(&entry), "a next life knows");
    }

    #[test]
    fn what_really_runs_corrects_what_was_noted() {
        let job = |fence, phase| Job {
            run: tenure::ha::Run(fence),
            digest: tenure::ha::Digest::new(&"0".repeat(64)).expect("a digest"),
            instances: 1,
            fence,
            phase,
        };
        let now = WallTime::from_millis(5);
        let mut tracker = StatusTracker::default();
        for noted in ["same", "again", "lost", "starts"] {
            tracker.handle_event(&deployed(noted), now);
        }
        tracker.handle_event(&failed("ready"), now);
        let runs = [
            ("same", job(7, Phase::Running)),
            ("again", job(8, Phase::Running)),
            ("starts", job(8, Phase::Starting)),
            ("ready", job(7, Phase::Running)),
            ("unheard", job(7, Phase::Running)),
        ];
        let runs = runs.map(|(of, job)| (name(of), job)).into();
        let mut next = StatusTracker::new(NodeStatus::default(), &tracker.notes());
        next.resume(&runs, WallTime::from_millis(6));
        let told = |of| {
            let entry = next.entry(&name(of)).expect("one");
            (entry.condition, entry.epoch, entry.restarts, entry.since)
        };
        assert_eq!(told("same"), (Condition::Running, 7, 0, 5));
        assert_eq!(told("again"), (Condition::Running, 8, 1, 6));
        assert_eq!(told("lost"), (Condition::Starting, 7, 0, 6));
        assert_eq!(told("starts"), (Condition::Starting, 7, 0, 6));
        assert_eq!(told("ready"), (Condition::Running, 7, 0, 6));
        assert_eq!(told("unheard"), (Condition::Running, 7, 0, 6));
    }

    #[test]
    fn a_status_that_is_too_long_leaves_out_what_simply_runs() {
        let mut tracker = StatusTracker::default();
        let now = WallTime::from_millis(1_763_705_412_345);
        for number in 0..500 {
            tracker.handle_event(&deployed(&format!("workload-{number:03}")), now);
        }
        tracker.handle_event(&failed("workload-499"), now);
        let bytes = tracker.status();
        assert!(bytes.len() <= STATUS_BYTES_MAX);
        let status = NodeStatus::parse(&bytes);
        let listed = u32::try_from(status.workloads.len()).expect("few");
        assert_eq!(listed + status.more, 500);
        assert!(listed > 100, "only {listed}");
        let failing = status.workloads.get("workload-499").expect("it is told");
        assert_eq!(failing.why.as_deref(), Some("it broke"));
        assert_eq!(NodeStatus::parse(b"nonsense"), NodeStatus::default());
    }
}
