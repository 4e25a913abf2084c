//! The cluster simulator's checkers prove themselves: nothing is violated by
//! the real thing, and every planted bug is caught by the default workload.
//!
//! `TENURE_SIM_RUNS` sets how many worlds the real thing is tried in; the
//! short form is what CI runs. A hunt for a bug takes as many worlds as it
//! takes luck, so the short form begins with the seed that caught the bug in
//! the last long one, as `caught.txt` has it. Where that seed catches it no
//! more, because the simulator draws anew or a checker has gone blind, the
//! whole hunt follows: nothing is taken for caught that is not. The long form,
//! `TENURE_HUNT=long`, hunts for each from seed 1 and writes `caught.txt`.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

use tenure_sim::cluster::{Bug, Options, Violation, run, sweep, trace};

/// A bug must be caught within so many runs.
const RUNS_MAX: u64 = 10_000;
/// `StaleMatches`, the classical one, within these.
const SOON_MAX: u64 = 500;
const SEED: u64 = 1;
/// Which seed caught which bug, a line each.
const CAUGHT: &str = include_str!("../caught.txt");
const CAUGHT_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/caught.txt");

/// Not to be caught here: what it does harm to is mended when a storm is over,
/// since all disks work again then. The scripts of `alpo/tests/scripts.rs` see it
/// (`h17_nobody_is_taken_out_…`).
const UNSEEN: [Bug; 1] = [Bug::ChangeUnsynced];

/// The seed that caught it in the last long form.
fn known(bug: Bug) -> Option<u64> {
    let name = format!("{bug:?}");
    let lines = CAUGHT.lines().filter_map(|line| line.split_once(' '));
    let mut lines = lines.filter(|(of, _)| *of == name);
    lines.next().and_then(|(_, seed)| seed.trim().parse().ok())
}

fn hunt(bug: Bug, long: bool) -> Option<Violation> {
    let options = Options {
        planted: Some(bug),
        ..Options::default()
    };
    let known = known(bug).filter(|_| !long);
    let found = known.and_then(|seed| run(seed, &options).violation);
    found.map(|it| *it).or_else(|| {
        let report = sweep(SEED, RUNS_MAX, &options, |_| true);
        report.violations.into_iter().next()
    })
}

#[test]
fn every_planted_bug_is_caught() {
    // Panics of a node are violations here, not news.
    std::panic::set_hook(Box::new(|_| {}));
    let long = std::env::var("TENURE_HUNT").is_ok_and(|form| form == "long");
    let only = std::env::var("TENURE_BUG").ok();
    let wanted = |bug: &Bug| only.as_ref().is_none_or(|only| *only == format!("{bug:?}"));
    let bugs = Bug::ALL.iter().copied().filter(wanted);
    let bugs = bugs.filter(|bug| only.is_some() || !UNSEEN.contains(bug));
    let bugs: Mutex<Vec<_>> = Mutex::new(bugs.collect());
    let found = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(bug) = { bugs.lock().unwrap().pop() } {
                    let violation = hunt(bug, long);
                    found.lock().unwrap().insert(bug, violation);
                }
            });
        }
    });
    drop(std::panic::take_hook());
    println!("| mistake | caught by | runs |\n|---|---|---|");
    let (mut missed, mut lines) = (Vec::new(), String::new());
    for (bug, violation) in found.into_inner().unwrap() {
        match violation {
            Some(it) if bug == Bug::StaleMatches && it.seed > SOON_MAX => missed.push(bug),
            Some(violation) => {
                let seed = violation.seed;
                println!("| `{bug:?}` | {} | {seed} |", violation.check);
                writeln!(lines, "{bug:?} {seed}").unwrap();
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "never caught: {missed:?}");
    if long && only.is_none() {
        std::fs::write(CAUGHT_FILE, lines).expect("caught.txt can be written");
    }
}

#[test]
fn without_a_bug_nothing_is_violated() {
    let asked = std::env::var("TENURE_SIM_RUNS").ok();
    let runs = asked.and_then(|runs| runs.parse().ok()).unwrap_or(1_000);
    let report = sweep(SEED, runs, &Options::default(), |_| true);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}

#[test]
fn the_same_seed_takes_the_same_way() {
    let options = Options::default();
    for seed in 1..=5 {
        let (first, second) = (trace(seed, &options), trace(seed, &options));
        assert!(!first.is_empty());
        assert_eq!(first, second);
        assert_eq!(run(seed, &options), run(seed, &options));
    }
}
