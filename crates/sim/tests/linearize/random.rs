//! Long histories of chance: those of a real register are accepted, at a
//! price that stays small, and those in which one answer was changed for one
//! that cannot be are not.

use tenure_core::ids::Version;
use tenure_core::rng::Rng;
use tenure_sim::linearize::{Answer, CallId, History, Invocation, Verdict, check};

use super::generate::{Shape, generate, with_answers};

/// Judges a history that a real register made, and says what it cost.
fn accepted(seed: u64, shape: Shape) -> u64 {
    let history = generate(&mut Rng::from_seed(seed), shape);
    match check(&history) {
        Verdict::Linearizable { configurations } => configurations,
        other => panic!("seed {seed} of {shape:?}: {other}"),
    }
}

#[test]
fn what_a_register_answers_is_accepted() {
    for seed in 0..3_000 {
        let rng = &mut Rng::from_seed(seed);
        let shape = Shape {
            calls: rng.between(1, 60) as usize,
            clients: rng.between(1, 8),
            keys: rng.between(1, 3),
            given_up: rng.between(0, 30),
            reads: rng.between(0, 80),
            bound: if rng.chance(50) {
                rng.between(1, 60)
            } else {
                0
            },
        };
        accepted(seed, shape);
    }
}

#[test]
fn thousands_of_calls_are_cheap() {
    for seed in 0..10 {
        for (given_up, reads, bound) in [
            (0, 20, 0),
            (2, 50, 0),
            (5, 30, 0),
            (8, 30, 0),
            (2, 50, 40),
            (5, 30, 40),
        ] {
            let shape = Shape {
                calls: 2_000,
                clients: 10,
                keys: 1,
                given_up,
                reads,
                bound,
            };
            let configurations = accepted(seed, shape);
            assert!(
                configurations < 100_000,
                "seed {seed} of {shape:?}: {configurations} configurations"
            );
        }
    }
}

/// A read that shows what had been overwritten before it was made.
fn stale_read(rng: &mut Rng, history: &History) -> Option<(CallId, Answer)> {
    let reads: Vec<_> = history
        .calls()
        .filter(|(_, call)| call.invocation == Invocation::Read && call.answer.is_some())
        .collect();
    let (id, read) = *reads.get(rng.below(reads.len() as u64) as usize)?;
    let mut known: Vec<(Version, Answer)> = Vec::new();
    for (_, call) in history.calls() {
        let (Invocation::Swap { value, .. }, Some((_, Answer::Swapped(version)))) =
            (&call.invocation, &call.answer)
        else {
            continue;
        };
        if call.key == read.key && call.order().1 < Some(read.order().0) {
            let holds = Answer::Holds {
                value: value.clone(),
                version: version.clone(),
            };
            known.push((version.clone(), holds));
        }
    }
    known.sort_by(|(one, _), (other, _)| one.cmp(other));
    known.pop()?;
    let (_, stale) = known.get(rng.below(known.len() as u64) as usize)?;
    Some((id, stale.clone()))
}

/// A swap that was refused is said to have won, with another's version.
fn second_winner(rng: &mut Rng, history: &History) -> Option<(CallId, Answer)> {
    let answered = |wanted: fn(&Answer) -> bool| {
        let calls = history.calls();
        let fits = calls.filter(move |(_, call)| {
            let swap = matches!(call.invocation, Invocation::Swap { .. });
            swap && call
                .answer
                .as_ref()
                .is_some_and(|(_, answer)| wanted(answer))
        });
        fits.collect::<Vec<_>>()
    };
    let losers = answered(|answer| *answer == Answer::Conflict);
    let (loser, lost) = losers.get(rng.below(losers.len() as u64) as usize)?;
    let mut winners = answered(|answer| matches!(answer, Answer::Swapped(_)));
    winners.retain(|(_, call)| call.key == lost.key);
    let (_, winner) = winners.get(rng.below(winners.len() as u64) as usize)?;
    Some((*loser, winner.answer.clone()?.1))
}

/// A read that shows what nobody wrote.
fn invention(rng: &mut Rng, history: &History) -> Option<(CallId, Answer)> {
    let calls: Vec<_> = history
        .calls()
        .filter_map(|(id, call)| match &call.answer {
            Some((_, Answer::Holds { version, .. })) => Some((id, version.clone())),
            _ => None,
        })
        .collect();
    let (id, version) = calls.get(rng.below(calls.len() as u64) as usize)?;
    let value = b"never written".as_slice().into();
    let version = version.clone();
    Some((*id, Answer::Holds { value, version }))
}

#[test]
fn one_impossible_answer_is_found_and_explained() {
    let mut planted = 0;
    for seed in 0..300 {
        let rng = &mut Rng::from_seed(seed);
        // A core is dear to find where registers are bound.
        let bound = if rng.chance(25) { 30 } else { 0 };
        let most = if bound > 0 { 60 } else { 400 };
        let shape = Shape {
            calls: rng.between(20, most) as usize,
            clients: rng.between(2, 10),
            keys: rng.between(1, 3),
            given_up: rng.between(0, 8),
            reads: 40,
            bound,
        };
        let history = generate(rng, shape);
        let plant = [stale_read, second_winner, invention][rng.below(3) as usize];
        let Some((liar, lie)) = plant(rng, &history) else {
            continue;
        };
        planted += 1;
        let history = with_answers(&history, |id, answer| {
            let told = if id == liar { &lie } else { answer };
            Some(told.clone())
        });
        let verdict = check(&history);
        let found = verdict
            .violation()
            .unwrap_or_else(|| panic!("seed {seed} of {shape:?}: {verdict}"));
        let kept = |left_out: Option<CallId>| {
            with_answers(&history, |id, answer| {
                let keep = found.core.contains(&id) && left_out != Some(id);
                keep.then(|| answer.clone())
            })
        };
        assert!(
            check(&kept(None)).violation().is_some(),
            "seed {seed}: the core contradicts itself\n{verdict}"
        );
        for id in &found.core {
            assert!(
                check(&kept(Some(*id))).violation().is_none(),
                "seed {seed}: every answer of the core is needed\n{verdict}"
            );
        }
        assert!(found.core.len() <= 6, "seed {seed}: a long core\n{verdict}");
    }
    assert!(planted > 250, "only {planted} lies were planted");
}
