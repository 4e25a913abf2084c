//! The planted bugs of the log, in simulated clusters.

use tenure_sim::cluster::{Bug, Options, run};

use super::hunt::{self, Quarry};

/// `StaleMatches`, the classical one, is caught within so many runs.
const SOON_MAX: u64 = 500;

/// Not to be caught here: what it does harm to is mended when a storm is over,
/// since all disks work again then. The scripts of `alpo/tests/scripts.rs` see it
/// (`h17_nobody_is_taken_out_…`).
const UNSEEN: [Bug; 1] = [Bug::ChangeUnsynced];

#[test]
fn every_planted_bug_is_caught() {
    let quarries = Bug::ALL
        .iter()
        .filter(|bug| !UNSEEN.contains(bug))
        .map(|bug| {
            let options = Options {
                planted: Some(*bug),
                ..Options::default()
            };
            Quarry::new(bug, move |seed| run(seed, &options).violation)
        });
    let caught = hunt::all("clusters", quarries.collect());
    assert!(caught["StaleMatches"] <= SOON_MAX);
}
