//! The planted bugs of the HA manager.

use tenure_sim::ha::{Bug, Check, Options, run};

use super::hunt;

/// A bug must be caught within so many runs.
const RUNS_MAX: u64 = 5_000;

/// Breaks no rule: the script `two_observers_write_the_same_death` tells of it.
const SCRIPTED: [Bug; 1] = [Bug::WaitsTwice];

/// Most checkers look for causes and object before harm is done. These see the
/// harm itself, two instances at once, without the others.
const HARM: [(Check, Bug); 6] = [
    (Check::Once, Bug::StaleVerdict),
    (Check::Once, Bug::SuccessorBeforeRelease),
    (Check::Once, Bug::AdoptAcross),
    (Check::Once, Bug::ReleaseUnreaped),
    (Check::Once, Bug::BootTrusted),
    (Check::Guard, Bug::GuardByTimer),
];

#[test]
fn every_planted_bug_is_caught_and_its_harm_is_seen() {
    let bugs = Bug::ALL
        .iter()
        .filter(|bug| !SCRIPTED.contains(bug))
        .map(|bug| (*bug, None));
    let harm = HARM.into_iter().map(|(check, bug)| (bug, Some(check)));
    hunt::all(
        "groups",
        RUNS_MAX,
        bugs.chain(harm).collect(),
        |bug, only, seed| {
            let options = Options {
                planted: Some(bug),
                only,
                ..Options::default()
            };
            run(seed, &options).violation
        },
    );
}
