//! The planted bugs of elections.

use tenure_sim::{Bug, Check, Options, run};

use super::hunt;

/// A bug must be caught within so many runs.
const RUNS_MAX: u64 = 5_000;

/// The checkers that look for causes object long before harm is done. These see
/// the harm itself, without the others.
const HARM: [(Check, Bug); 15] = [
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

#[test]
fn every_planted_bug_is_caught_and_its_harm_is_seen() {
    let bugs = Bug::ALL.iter().map(|bug| (*bug, None));
    let harm = HARM.into_iter().map(|(check, bug)| (bug, Some(check)));
    hunt::all(
        "elections",
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
