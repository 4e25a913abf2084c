//! What happened, counted: a sweep in which something never happened has not
//! tested it.

use std::fmt;

use tenure_group::{Event, Why};

use crate::kernel;

kernel::stats! {
    /// Nanoseconds of true time.
    simulated_ns by saturating_add;
    happenings: "happenings",
    steps: "steps of machines",
    calls: "calls of the store",
    writes: "writes that took effect",
    conflicts: "conflicts",
    lost: "messages lost",
    unknown: "calls answered unknown",
    forgotten: "heartbeats deleted by hand",
    views_lost: "views lost",
    restored: "older copies given out",
    forks: "second copies of the store",
    fell: "views that fell, as nodes saw",
    suspends: "machines suspended",
    standstills: "standstills of many leases",
    starts: "agents started",
    resumes: "agents that tried to go on",
    crashes: "crashes",
    reboots: "reboots",
    pauses: "pauses",
    cuts: "agents cut off",
    outages: "outages of the store",
    requests: "requests",
    refused: "requests refused",
    farewells: "agents told to leave or drain",
    beats: "beats confirmed",
    joins: "joins",
    unconfirmed: "fenced for want of a beat",
    judged: "fenced because judged dead",
    removed: "fenced because forgotten or removed",
    deaths: "deaths told",
    departures: "departures told",
    quorum_lost: "quorums lost",
    takeovers: "take-overs begun",
    completed: "take-overs completed",
    failed: "take-overs in which a start failed",
    works: "workloads that ran",
    kills: "workloads killed by their agent",
    guarded: "workloads killed by their guardian",
    exams: "examinations",
    touches: "contents written",
    marks: "contents marked",
    rescued: "deploys of marked content",
    collected: "contents deleted",
}

impl Stats {
    pub(super) const fn event(&mut self, event: &Event) {
        match event {
            Event::Beat { .. } => self.beats += 1,
            Event::Joined { .. } => self.joins += 1,
            Event::Fenced { why, .. } => match why {
                Why::Unconfirmed => self.unconfirmed += 1,
                Why::JudgedDead => self.judged += 1,
                _ => self.removed += 1,
            },
            Event::NodeDied { .. } => self.deaths += 1,
            Event::NodeLeft { .. } => self.departures += 1,
            Event::QuorumLost { .. } => self.quorum_lost += 1,
            Event::FailoverBegun { .. } => self.takeovers += 1,
            Event::FailoverCompleted { .. } => self.completed += 1,
            Event::FailoverFailed { .. } => self.failed += 1,
            _ => {}
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        kernel::show_hours(f, self, self.simulated_ns)
    }
}
