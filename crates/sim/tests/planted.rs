//! Every planted mistake is caught by the ordinary workload.
//!
//! `cargo test -p tenure-sim --features planted-bugs --test planted`. A
//! longer clean sweep: `TENURE_SIM_RUNS=100000`. The seeds are always the
//! same, so the number of runs each mistake takes is, too.
#![expect(clippy::print_stdout, reason = "a table for people")]

use tenure_sim::{Bug, Check, Options, Report, sweep};

const RUNS_MAX: u64 = 5_000;
const SEED: u64 = 1;

/// The first run that a checker objects to, or `only` this one.
fn hunt(bug: Bug, only: Option<Check>) -> Report {
    let options = Options {
        planted: Some(bug),
        trace: 1,
        only,
        ..Options::default()
    };
    let mut report = Report::new(SEED);
    for number in 0..RUNS_MAX {
        report.merge(sweep(SEED + number, 1, &options, |_| true));
        if !report.is_clean() {
            break;
        }
    }
    report
}

#[test]
fn every_planted_bug_is_caught() {
    println!("{:<20} {:<14} {:>5}", "bug", "caught by", "runs");
    let mut missed = Vec::new();
    for bug in Bug::ALL.iter().copied() {
        let report = hunt(bug, None);
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

/// The checkers that look for causes object long before harm is done. That
/// those that look for the harm itself can see it is tried without them.
#[test]
fn the_harm_itself_is_seen_too() {
    let alone = [
        (Check::Exclusivity, Bug::DeadlineFromEnd),
        (Check::Exclusivity, Bug::DriftForgotten),
        (Check::Exclusivity, Bug::UnknownIsWon),
        (Check::Exclusivity, Bug::JudgedByWall),
        (Check::Exclusivity, Bug::SequenceKept),
        (Check::Exclusivity, Bug::VacateUndrained),
        (Check::Work, Bug::DeadlineFromEnd),
        (Check::Work, Bug::DriftForgotten),
        (Check::Work, Bug::UnknownIsWon),
        (Check::Work, Bug::JudgedByWall),
        (Check::Work, Bug::SequenceKept),
        (Check::Work, Bug::VacateUndrained),
        (Check::Liveness, Bug::SequenceKept),
        (Check::Liveness, Bug::WorkUnasked),
        (Check::Liveness, Bug::OldWord),
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
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}
