//! What happened, counted: a sweep in which something never happened has not
//! tested it.

use std::fmt;

use tenure_alpo::{Event, StepDownReason};

use super::checkers::bindings::Seen;
use crate::kernel;

kernel::stats! {
    /// The longest wait of a client, in nanoseconds.
    slowest by max;
    events: "events",
    ticks: "timers that ran out",
    messages: "messages",
    lost: "messages lost",
    doubled: "messages doubled",
    batches: "batches written",
    applied: "entries applied",
    polls: "polls",
    elections: "elections",
    reigns: "reigns",
    defers: "candidates that deferred",
    early: "early cycles",
    vetoes: "vetoes by a better log",
    deposed: "leaders deposed by a higher term",
    unfollowed: "leaders that heard no majority",
    truncations: "truncations",
    snapshots: "snapshots taken",
    installs: "snapshots taken over",
    compared: "states compared",
    changes: "changes of members asked for",
    transfers: "hand-overs asked for",
    crashes: "crashes",
    blackouts: "crashes of all at once",
    lost_writes: "crashes that lost writes",
    slow_syncs: "slow syncs",
    stalled_syncs: "syncs that took seconds",
    quicker: "hand-overs to a quicker disk",
    settings: "starts under other settings",
    failed_syncs: "failed syncs",
    full_disks: "full disks",
    torn: "torn writes cut",
    cut_starts: "starts cut short",
    rotten: "rotten bytes",
    refused_starts: "starts refused for damage",
    spares: "older snapshots used",
    set_back: "disks set back",
    refused_copies: "starts refused for an earlier copy",
    cloned_processes: "disks with two processes",
    refused_firsts: "first processes refused after silence",
    refused_seconds: "second processes refused",
    restores: "clusters lost and restored",
    restored_answers: "answers of restored clusters",
    pauses: "pauses",
    partitions: "changes of the network",
    snipes: "faults in the middle of elections",
    slow_links: "slow connections",
    mutes: "servers that could only answer",
    read: "reads judged",
    stale_reads: "stale reads",
    watches: "watches that went on",
    told: "changes told to watches",
    compacted: "watches that began again",
    holds: "connections that held messages back",
    held: "messages held back",
    released: "messages held back that came",
    plots: "faults in a row",
    lasting_partitions: "networks broken in part for long",
    shapes_led: "of them led",
    shapes_idle: "of them in which nobody could lead",
    foundings: "servers founded",
    wipes: "disks wiped",
    doubles: "numbers used twice",
    lingering: "removed disks that lived on",
    replaced: "servers that went since their number did",
    bare: "bare majorities that were left",
    strangers: "strangers met",
    refused_strangers: "starts refused by peers",
    begun_anew: "foundings begun anew by an operator",
    failed_foundings: "foundings without a majority",
    calls: "calls of clients",
    answers: "answers",
    retries: "requests sent again",
    expired: "sessions found expired",
    silences: "clients that fell silent",
    meddled: "requests under another's session",
    kept_out: "of these refused",
    timed_out: "sessions ended for their silence",
    spared: "ends of sessions that spoke again",
    renewed: "sessions with registers renewed by a new leader",
    binds: "registers bound",
    wills: "last wills executed",
    kept_off: "writes refused for another's session",
    notes: "notes on bound registers",
    inconclusive: "histories too hard to judge",
}

impl Stats {
    pub(super) const fn bound(&mut self, seen: &Seen) {
        self.timed_out += seen.expired;
        self.spared += seen.spared;
        self.renewed += seen.renewed;
        self.binds += seen.binds;
        self.wills += seen.wills;
        self.kept_off += seen.kept_off;
        self.notes += seen.notes;
    }

    pub(super) fn told(&mut self, event: &Event) {
        match event {
            Event::PreVoting => self.polls += 1,
            Event::Standing { .. } => self.elections += 1,
            Event::Deferred { .. } => self.defers += 1,
            Event::EarlyCycle => self.early += 1,
            Event::Vetoed => self.vetoes += 1,
            Event::SteppedDown(StepDownReason::NoMajority) => self.unfollowed += 1,
            Event::SteppedDown(StepDownReason::HigherTerm) => self.deposed += 1,
            Event::Truncated { .. } => self.truncations += 1,
            Event::Compacted { .. } => self.snapshots += 1,
            Event::Installed { .. } => self.installs += 1,
            Event::DiskStalls { .. } => self.quicker += 1,
            Event::StatesAgree { .. } => self.compared += 1,
            Event::SteppedDown(
                StepDownReason::LeaderKnown
                | StepDownReason::VoteGiven
                | StepDownReason::BetterLog
                | StepDownReason::NoVoteAfterRestart,
            )
            | Event::LeaderKnown { .. }
            | Event::SetBack { .. }
            | Event::StatesDisagree { .. } => {}
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        kernel::show(f, self, "")?;
        let slowest = self.slowest as f64 / 1e9;
        write!(f, "\n{slowest:>12.1}  seconds a client waited at most")
    }
}
