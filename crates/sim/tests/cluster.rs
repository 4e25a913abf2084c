//! The cluster simulator's checkers prove themselves: nothing is violated by
//! the real thing, and every planted bug is caught by the default workload.
//!
//! `TENURE_SIM_RUNS` sets how many worlds the real thing is tried in; the
//! short form is what CI runs.
#![allow(clippy::print_stdout)]

use tenure_sim::cluster::{Bug, Options, Report, run, sweep};

/// A bug must be caught within so many runs.
const RUNS_MAX: u64 = 5_000;
const SEED: u64 = 1;

fn hunt(bug: Bug) -> Report {
    let options = Options {
        planted: Some(bug),
        ..Options::default()
    };
    sweep(SEED, RUNS_MAX, &options, |_| true)
}

#[test]
fn every_planted_bug_is_caught() {
    // Panics of a node are violations here, not news.
    std::panic::set_hook(Box::new(|_| {}));
    println!("{:<20} {:<14} {:>5}", "bug", "caught by", "runs");
    let only = std::env::var("TENURE_BUG").ok();
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let name = format!("{bug:?}");
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let report = hunt(bug);
        match report.violation {
            Some(violation) => {
                let check = violation.check.to_string();
                println!("{name:<20} {check:<14} {:>5}", report.stats.runs);
            }
            None => {
                println!("{name:<20} {:<14} {:>5}", "NOT CAUGHT", report.stats.runs);
                missed.push(name);
            }
        }
    }
    assert!(missed.is_empty(), "never caught: {missed:?}");
}

#[test]
fn without_a_bug_nothing_is_violated() {
    let asked = std::env::var("TENURE_SIM_RUNS").ok();
    let runs = asked.and_then(|runs| runs.parse().ok()).unwrap_or(1_000);
    let report = sweep(SEED, runs, &Options::default(), |_| true);
    println!("{report}");
    assert!(report.violation.is_none(), "{report}");
}

#[test]
fn the_same_seed_takes_the_same_way() {
    let options = Options {
        trace: 1_000_000,
        ..Options::default()
    };
    for seed in 1..=5 {
        let (first, second) = (run(seed, &options), run(seed, &options));
        assert!(!first.trace.is_empty());
        assert_eq!(first, second);
    }
}
