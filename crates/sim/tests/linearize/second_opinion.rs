//! The same question put to stateright's tester, which shares no line with
//! ours: it tries every order. Its register is the core's own, stepped.
//!
//! What the tester cannot do is leave a version open, so here the version of
//! each swap that was never answered is *guessed*: every version that is
//! mentioned anywhere, and one that is not. A history is good if it is good
//! for some guess.

use std::collections::BTreeMap;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use tenure_core::cas::{Expect, Registers, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::rng::Rng;
use tenure_sim::linearize::{Answer, Ask, CallId, History, check};

use super::generate::{Shape, generate, with_answers};

/// A call with the version it has if it takes effect.
#[derive(Clone, Debug)]
struct Op {
    key: Key,
    ask: Ask,
    version: Version,
    /// The version is one that nobody ever saw, and so above or below none.
    unseen: bool,
}

#[derive(Clone)]
struct Stepped {
    registers: Registers,
    highest: BTreeMap<Key, Version>,
}

impl SequentialSpec for Stepped {
    type Op = Op;
    type Ret = Answer;

    fn invoke(&mut self, op: &Op) -> Answer {
        let key = op.key.clone();
        match op.ask.clone() {
            Ask::Read => match self.registers.read(&key) {
                None => Answer::Absent,
                Some(held) => Answer::Holds {
                    value: held.value.clone(),
                    version: held.version.clone(),
                },
            },
            Ask::Swap { expect, value } => {
                let highest = self.highest.get(&key);
                if !op.unseen && highest.is_some_and(|highest| op.version <= *highest) {
                    // No log could give it this version here. It is either
                    // refused, or a guess that comes to nothing.
                    return Answer::Conflict;
                }
                let stamp = Stamp::Keep;
                let write = Write {
                    key: key.clone(),
                    expect,
                    value,
                    stamp,
                };
                match self.registers.swap_as(write, None, op.version.clone()) {
                    Ok(version) => {
                        if !op.unseen {
                            self.highest.insert(key, version.clone());
                        }
                        Answer::Swapped(version)
                    }
                    Err(_) => Answer::Conflict,
                }
            }
            Ask::Delete { expect } => match self.registers.delete(&key, &expect) {
                Ok(()) => Answer::Deleted,
                Err(_) => Answer::Conflict,
            },
        }
    }

    fn is_valid_step(&mut self, op: &Op, told: &Answer) -> bool {
        // A swap that was told a conflict has no version; whatever it would
        // have been, the swap must not have fitted.
        let refused = matches!((&op.ask, told), (Ask::Swap { .. }, Answer::Conflict));
        let mut op = op.clone();
        op.unseen |= refused;
        self.invoke(&op) == *told
    }
}

/// What the tester says of the history if the unanswered swaps have these
/// versions, `None` being one that nobody saw.
fn is_good_with(history: &History, guesses: &BTreeMap<CallId, Option<Version>>) -> bool {
    let stepped = Stepped {
        registers: Registers::new(0),
        highest: BTreeMap::new(),
    };
    let mut events: Vec<(usize, bool, CallId)> = Vec::new();
    for (id, call) in history.calls() {
        let (invoked, returned) = call.order();
        events.push((invoked, false, id));
        events.extend(returned.map(|at| (at, true, id)));
    }
    events.sort_unstable();
    // Every call is a thread of its own: program order is real-time order.
    let mut tester = LinearizabilityTester::new(stepped);
    let mut next = u64::MAX / 2;
    for (_, returned, id) in events {
        let call = history.call(id);
        let answer = call.answer.as_ref().map(|(_, answer)| answer);
        if returned {
            let answer = answer.expect("an answer").clone();
            tester.on_return(id, answer).expect("a call to answer");
            continue;
        }
        next += 1;
        let fresh = Version::from_u64(next);
        let (version, unseen) = match (answer, guesses.get(&id)) {
            (Some(Answer::Swapped(told)), _) => (told.clone(), false),
            (_, Some(Some(guess))) => (guess.clone(), false),
            (_, Some(None) | None) => (fresh, true),
        };
        let op = Op {
            key: call.key.clone(),
            ask: call.ask.clone(),
            version,
            unseen,
        };
        tester.on_invoke(id, op).expect("a call");
    }
    tester.is_consistent()
}

fn is_good(history: &History) -> bool {
    let mut versions: Vec<Option<Version>> = vec![None];
    let mut open = Vec::new();
    for (id, call) in history.calls() {
        match &call.ask {
            Ask::Swap { expect, .. } => {
                if let Expect::Version(version) = expect {
                    versions.push(Some(version.clone()));
                }
                if call.answer.is_none() {
                    open.push(id);
                }
            }
            Ask::Delete { expect } => versions.push(Some(expect.clone())),
            Ask::Read => {}
        }
        match &call.answer {
            Some((_, Answer::Holds { version, .. } | Answer::Swapped(version))) => {
                versions.push(Some(version.clone()));
            }
            Some((_, Answer::Absent | Answer::Deleted | Answer::Conflict)) | None => {}
        }
    }
    versions.sort_unstable();
    versions.dedup();
    let all = versions.len().pow(open.len() as u32);
    (0..all).any(|mut number| {
        let mut guesses = BTreeMap::new();
        for id in &open {
            guesses.insert(*id, versions[number % versions.len()].clone());
            number /= versions.len();
        }
        is_good_with(history, &guesses)
    })
}

/// Some other answer to the same question.
fn other_answer(rng: &mut Rng, history: &History, ask: &Ask) -> Answer {
    let version = Version::from_u64(rng.between(1, 8));
    let value = match rng.below(4) {
        0 => b"x0".as_slice().into(),
        _ => {
            let values: Vec<_> = history
                .calls()
                .filter_map(|(_, call)| match &call.ask {
                    Ask::Swap { value, .. } => Some(value.clone()),
                    Ask::Read | Ask::Delete { .. } => None,
                })
                .collect();
            let nth = rng.below(values.len() as u64) as usize;
            let none = || b"x1".as_slice().into();
            values.get(nth).cloned().unwrap_or_else(none)
        }
    };
    match ask {
        Ask::Read if rng.chance(30) => Answer::Absent,
        Ask::Read => Answer::Holds { value, version },
        Ask::Swap { .. } if rng.chance(50) => Answer::Swapped(version),
        Ask::Delete { .. } if rng.chance(50) => Answer::Deleted,
        Ask::Swap { .. } | Ask::Delete { .. } => Answer::Conflict,
    }
}

/// A small history, of a real register or with some answers changed.
fn small(rng: &mut Rng) -> History {
    let shape = Shape {
        calls: rng.between(2, 7) as usize,
        clients: rng.between(1, 4),
        keys: if rng.chance(20) { 2 } else { 1 },
        given_up: 25,
        reads: 40,
    };
    let history = generate(rng, shape);
    let changes = rng.below(4) * 20;
    let original = history.clone();
    with_answers(&history, |id, answer| {
        let change = rng.chance(changes);
        let ask = &original.call(id).ask;
        Some(match change {
            true => other_answer(rng, &original, ask),
            false => answer.clone(),
        })
    })
}

#[test]
fn another_checker_says_the_same() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..6_000 {
        let history = small(&mut Rng::from_seed(seed));
        let unanswered = history.calls().filter(|(_, call)| call.answer.is_none());
        if unanswered
            .filter(|(_, call)| matches!(call.ask, Ask::Swap { .. }))
            .count()
            > 3
        {
            continue;
        }
        let verdict = check(&history);
        let second = is_good(&history);
        let told: Vec<_> = history.calls().map(|(_, call)| call.to_string()).collect();
        assert_eq!(
            verdict.is_linearizable(),
            second,
            "seed {seed}: ours says {verdict}\nof\n{}",
            told.join("\n")
        );
        good += u32::from(second);
        bad += u32::from(!second);
    }
    assert!(good > 1_500 && bad > 1_500, "{good} good and {bad} bad");
}
