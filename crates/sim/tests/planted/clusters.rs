//! The planted bugs of the log, in simulated clusters.

use tenure_sim::cluster::{Bug, Options, run};

use super::hunt;

/// A bug must be caught within so many runs.
const RUNS_MAX: u64 = 10_000;
/// `StaleMatches`, the classical one, is caught within so many runs.
const SOON_MAX: u64 = 500;

/// Not to be caught here: what it does harm to is mended when a storm is over,
/// since all disks work again then. The scripts of `alpo/tests/scripts.rs` see it
/// (`h17_nobody_is_taken_out_…`).
const UNSEEN: [Bug; 1] = [Bug::ChangeUnsynced];

#[test]
fn every_planted_bug_is_caught() {
    let bugs = Bug::ALL.iter().filter(|bug| !UNSEEN.contains(bug));
    let bugs = bugs.map(|bug| (*bug, None)).collect();
    let caught = hunt::all("clusters", RUNS_MAX, bugs, |bug, _, seed| {
        let options = Options {
            planted: Some(bug),
            ..Options::default()
        };
        run(seed, &options).violation
    });
    assert!(caught["StaleMatches"] <= SOON_MAX);
}
