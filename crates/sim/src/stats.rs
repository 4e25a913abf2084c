//! What happened in a run, or in many.

use std::fmt;

use crate::kernel;

kernel::stats! {
    /// Nanoseconds of true time.
    simulated_ns by saturating_add;
    /// Steps of all machines.
    steps: "steps of machines",
    /// Writes that took effect.
    writes: "writes that took effect",
    /// Candidates that were elected.
    elections: "elections",
    /// Elections that were taken though their holder had not left.
    take_overs: "take-overs",
    /// Renewals that were confirmed.
    renewals: "renewals",
    /// Keep-alives of sessions that were confirmed.
    confirmations: "confirmations of sessions",
    /// Sessions whose time to live passed.
    sessions_ended: "sessions that ended",
    /// Leaders that left because no renewal was confirmed.
    unconfirmed: "left unconfirmed",
    /// Leaders that found themselves replaced.
    replaced: "found themselves replaced",
    /// Leaders that resigned.
    resignations: "resignations",
    /// Leaders that handed over.
    transfers: "transfers",
    /// Leaders that resigned because the register asked them to.
    requested: "resigned on request",
    /// Leaders that left because of the election they go with.
    affinities: "left with another election",
    /// Leaders that left because their work did not confirm the last grant.
    work_unconfirmed: "left because the work did not confirm",
    /// What guardians said of the grants that work goes by.
    words: "words of work that confirms",
    /// Guardians that hung.
    hangs: "guardians that hung",
    /// Commands of applications.
    commands: "commands of applications",
    /// Requests written into the register.
    leader_requests: "requests in the register",
    /// Campaigns that were ended.
    stops: "campaigns ended",
    /// Works that began.
    works: "works begun",
    /// Go-aheads for work that came too late.
    late_starts: "go-aheads that came too late",
    /// Works that a guardian had to kill.
    kills: "works killed by their guardian",
    /// Processes that crashed, machines that rebooted aside.
    crashes: "crashes",
    /// Processes that were paused.
    pauses: "pauses",
    /// Machines that were suspended.
    suspends: "suspends",
    /// Machines that rebooted.
    reboots: "reboots",
    /// Times the store was down.
    outages: "outages of the store",
    /// Times one process could not reach the store.
    cuts: "processes cut off",
    /// Steps and stops of calendars.
    calendar_steps: "steps and stops of calendars",
    /// Watches that lost their line.
    lines_lost: "watches that lost their line",
    /// News that came late.
    stale_news: "late news of watches",
    /// Requests that were lost.
    lost_requests: "lost requests",
    /// Answers that were lost.
    lost_answers: "lost answers",
    /// Requests that met an outage.
    refused: "requests that met an outage",
    /// Writes of candidates that the store refused though the register was as
    /// they expected.
    denied: "writes refused without a race",
    /// Calls refused as unavailable.
    unavailable: "calls answered unavailable",
    /// Calls answered unknown.
    unknown: "calls answered unknown",
    /// Calls answered broken.
    broken: "calls answered broken",
    /// Damaged answers.
    corrupted: "damaged answers",
    /// Compare-and-swaps that met a conflict.
    conflicts: "conflicts",
    /// Writes that took effect after their sender had given them up.
    late_landings: "late landings",
    /// Troubles that applications were told of.
    troubles: "troubles told",
    /// What processes said of who leads.
    claims: "claims of who leads",
    /// Registers that the store has lost.
    forgotten: "registers lost",
    /// Older states of registers that came back.
    restored: "older states that came back",
    /// Times the store had two copies of its registers.
    forks: "stores with two copies",
    /// Processes that saw a lower term than before.
    falls: "falls of the term that were told",
    /// Requests of candidates that remember a higher term.
    floor_requests: "requests for the sake of a floor",
    /// Processes, or stores, that stood still for many leases.
    standstills: "standstills of many leases",
    /// Steps of work that is polled.
    guarded_steps: "steps of guarded work",
    /// Examinations of healed worlds.
    exams: "examinations",
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        kernel::show_hours(f, self, self.simulated_ns)
    }
}
