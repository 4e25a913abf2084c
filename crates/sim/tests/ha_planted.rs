//! Every planted mistake of the HA manager is caught by the ordinary
//! workload, and without one nothing is violated.
//!
//! `cargo test -p tenure-sim --features planted-bugs --test ha_planted`. A
//! longer clean sweep: `TENURE_SIM_RUNS=100000`. The seeds are always the
//! same, so the number of runs each mistake takes is, too.
#![expect(clippy::print_stdout, reason = "a table for people")]

use tenure_sim::ha::{Bug, Check, Options, Report, sweep};
use tenure_sim::kernel::Counts;

const RUNS_MAX: u64 = 5_000;
const SEED: u64 = 1;
/// Breaks no rule: the script `two_observers_write_the_same_death` tells of it.
const SCRIPTED: [Bug; 1] = [Bug::WaitsTwice];

/// The first run that a checker objects to, or `only` this one.
fn hunt(bug: Bug, only: Option<Check>) -> Report {
    let options = Options {
        planted: Some(bug),
        trace: 1,
        only,
        ..Options::default()
    };
    sweep(SEED, RUNS_MAX, &options, |_| true)
}

#[test]
fn every_planted_bug_is_caught() {
    println!("{:<20} {:<14} {:>5}", "bug", "caught by", "runs");
    let mut missed = Vec::new();
    let all = Bug::ALL.iter().filter(|bug| !SCRIPTED.contains(bug));
    for bug in all {
        let report = hunt(*bug, None);
        let name = format!("{bug:?}");
        match report.violations.first() {
            Some(violation) => {
                let check = violation.check.to_string();
                println!("{name:<20} {check:<14} {:>5}", report.stats.runs);
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "never caught: {missed:?}");
}

/// Most checkers look for causes and object before harm is done. That the
/// harm itself would be seen, two instances at once, is tried without them.
#[test]
fn the_harm_itself_is_seen_too() {
    let alone = [
        (Check::Once, Bug::StaleVerdict),
        (Check::Once, Bug::SuccessorBeforeRelease),
        (Check::Once, Bug::AdoptAcross),
        (Check::Once, Bug::ReleaseUnreaped),
        (Check::Once, Bug::BootTrusted),
        (Check::Guard, Bug::GuardByTimer),
    ];
    for (check, bug) in alone {
        let report = hunt(bug, Some(check));
        let name = format!("{bug:?}");
        let (check, runs) = (check.to_string(), report.stats.runs);
        println!("{name:<20} {check:<14} {runs:>5}");
        assert!(!report.is_clean(), "{check} alone never saw {name}");
    }
}

#[test]
fn without_a_bug_nothing_is_violated() {
    let asked = std::env::var("TENURE_SIM_RUNS").ok();
    let runs = asked.and_then(|runs| runs.parse().ok()).unwrap_or(RUNS_MAX);
    let report = sweep(SEED, runs, &Options::default(), |_| true);
    println!("{}", report.stats);
    if let Some(violation) = report.violations.first() {
        panic!("{violation}");
    }
    let all = report.stats.fields().into_iter();
    let never: Vec<_> = all.filter(|(_, _, count)| *count == 0).collect();
    assert!(never.is_empty(), "never happened: {never:?}");
}
