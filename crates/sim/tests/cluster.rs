//! The cluster simulator's checkers prove themselves: nothing is violated by
//! the real thing, and every planted bug is caught by the default workload.
//!
//! `TENURE_SIM_RUNS` sets how many worlds the real thing is tried in; the
//! short form is what CI runs.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::Mutex;

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
    let only = std::env::var("TENURE_BUG").ok();
    let wanted = |bug: &Bug| only.as_ref().is_none_or(|only| *only == format!("{bug:?}"));
    let bugs: Mutex<Vec<_>> = Mutex::new(Bug::ALL.into_iter().filter(wanted).collect());
    let found = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(bug) = { bugs.lock().unwrap().pop() } {
                    let report = hunt(bug);
                    found.lock().unwrap().insert(bug, report);
                }
            });
        }
    });
    println!("{:<20} {:<14} {:>5}", "bug", "caught by", "runs");
    let mut missed = Vec::new();
    for (bug, report) in found.into_inner().unwrap() {
        let caught = match &report.violation {
            Some(violation) => violation.check.to_string(),
            None => {
                missed.push(bug);
                "NOTHING".to_string()
            }
        };
        let name = format!("{bug:?}");
        println!("{name:<20} {caught:<14} {:>5}", report.stats.runs);
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
