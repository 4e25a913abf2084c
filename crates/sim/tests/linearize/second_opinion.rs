//! The same question put to stateright's tester, which shares no line with
//! ours: it tries every order. Its register is the core's own, stepped.
//!
//! What the tester cannot do is leave a version open, so here the version of
//! each swap that was never answered, and of each end of a session, is
//! *guessed*: every version that is
//! mentioned anywhere, and one that is not. A history is good if it is good
//! for some guess.

use std::collections::{BTreeMap, BTreeSet};

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use tenure_core::cas::{Bytes, Expect, Registers, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::rng::Rng;
use tenure_sim::linearize::{Answer, Call, CallId, History, Invocation, check};

use super::generate::{Shape, generate, with_answers};

/// A call with the version it has if it takes effect.
#[derive(Clone, Debug)]
struct Op {
    session: u64,
    key: Key,
    invocation: Invocation,
    version: Version,
    /// The version is one that nobody ever saw, and so above or below none.
    unseen: bool,
}

#[derive(Clone)]
struct Stepped {
    registers: Registers,
    highest: BTreeMap<Key, Version>,
    bound: BTreeMap<Key, (u64, Bytes)>,
    over: BTreeSet<(u64, Key)>,
}

impl Stepped {
    /// Writes under the version of `op`, if a log could give it that here.
    fn write(&mut self, op: &Op, expect: Expect, value: Bytes) -> Option<Version> {
        let highest = self.highest.get(&op.key);
        if !op.unseen && highest.is_some_and(|highest| op.version <= *highest) {
            // It is either refused, or a guess that comes to nothing.
            return None;
        }
        let stamp = Stamp::Keep;
        let key = op.key.clone();
        let write = Write {
            key: key.clone(),
            expect,
            value,
            stamp,
        };
        let written = self.registers.swap_as(write, None, op.version.clone());
        let version = written.ok()?;
        if !op.unseen {
            self.highest.insert(key, version.clone());
        }
        Some(version)
    }

    fn is_anothers(&self, op: &Op) -> bool {
        let holder = self.bound.get(&op.key);
        holder.is_some_and(|(session, _)| *session != op.session)
    }

    /// A write that leaves the register bound, or not.
    fn swap(&mut self, op: &Op, expect: Expect, value: Bytes, last: Option<Bytes>) -> Answer {
        if self.is_anothers(op) {
            return Answer::Conflict;
        }
        let Some(version) = self.write(op, expect, value) else {
            return Answer::Conflict;
        };
        match last {
            Some(last) => self.bound.insert(op.key.clone(), (op.session, last)),
            None => self.bound.remove(&op.key),
        };
        Answer::Swapped(version)
    }

    /// The session is over. With a version that does not fit it never was,
    /// which is no answer to anything.
    fn end(&mut self, op: &Op) -> Answer {
        let bound = self.bound.get(&op.key);
        let Some((_, last)) = bound.filter(|(session, _)| *session == op.session).cloned() else {
            self.over.insert((op.session, op.key.clone()));
            return Answer::Ended;
        };
        let held = self.registers.read(&op.key).expect("a bound register");
        let expect = Expect::Version(held.version.clone());
        if self.write(op, expect, last).is_none() {
            return Answer::Absent;
        }
        self.bound.remove(&op.key);
        self.over.insert((op.session, op.key.clone()));
        Answer::Ended
    }
}

impl SequentialSpec for Stepped {
    type Op = Op;
    type Ret = Answer;

    fn invoke(&mut self, op: &Op) -> Answer {
        let key = op.key.clone();
        let note = matches!(op.invocation, Invocation::Read | Invocation::Note { .. });
        if !note && self.over.contains(&(op.session, key.clone())) {
            // No register says this: nothing is done in a session that is
            // over.
            return Answer::Absent;
        }
        match op.invocation.clone() {
            Invocation::Read => match self.registers.read(&key) {
                None => Answer::Absent,
                Some(held) => Answer::Holds {
                    value: held.value.clone(),
                    version: held.version.clone(),
                },
            },
            Invocation::Swap { expect, value } => self.swap(op, expect, value, None),
            Invocation::Bind {
                expect,
                value,
                last,
            } => self.swap(op, expect, value, Some(last)),
            Invocation::Note { expect, value } => match self.write(op, expect, value) {
                Some(version) => Answer::Swapped(version),
                None => Answer::Conflict,
            },
            Invocation::Delete { .. } if self.is_anothers(op) => Answer::Conflict,
            Invocation::Delete { expect } => match self.registers.delete(&key, &expect) {
                Ok(()) => {
                    self.bound.remove(&key);
                    Answer::Deleted
                }
                Err(_) => Answer::Conflict,
            },
            Invocation::End => self.end(op),
        }
    }

    fn is_valid_step(&mut self, op: &Op, told: &Answer) -> bool {
        // A swap that was told a conflict has no version; whatever it would
        // have been, the swap must not have fitted.
        let refused = is_write(&op.invocation) && *told == Answer::Conflict;
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
        bound: BTreeMap::new(),
        over: BTreeSet::new(),
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
            session: call.session,
            key: call.key.clone(),
            invocation: call.invocation.clone(),
            version,
            unseen,
        };
        tester.on_invoke(id, op).expect("a call");
    }
    tester.is_consistent()
}

const fn is_write(invocation: &Invocation) -> bool {
    matches!(
        invocation,
        Invocation::Swap { .. } | Invocation::Note { .. } | Invocation::Bind { .. }
    )
}

/// Whether the version is for the checkers to find out.
const fn is_open(call: &Call) -> bool {
    matches!(call.invocation, Invocation::End)
        || (is_write(&call.invocation) && call.answer.is_none())
}

fn is_good(history: &History) -> bool {
    let mut versions: Vec<Option<Version>> = vec![None];
    let mut open = Vec::new();
    for (id, call) in history.calls() {
        if is_open(call) {
            open.push(id);
        }
        match &call.invocation {
            Invocation::Swap { expect, .. }
            | Invocation::Note { expect, .. }
            | Invocation::Bind { expect, .. } => {
                if let Expect::Version(version) = expect {
                    versions.push(Some(version.clone()));
                }
            }
            Invocation::Delete { expect } => versions.push(Some(expect.clone())),
            Invocation::Read | Invocation::End => {}
        }
        match &call.answer {
            Some((_, Answer::Holds { version, .. } | Answer::Swapped(version))) => {
                versions.push(Some(version.clone()));
            }
            Some((_, Answer::Absent | Answer::Deleted | Answer::Conflict | Answer::Ended))
            | None => {}
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
fn other_answer(rng: &mut Rng, history: &History, invocation: &Invocation) -> Answer {
    let version = Version::from_u64(rng.between(1, 8));
    let value = match rng.below(4) {
        0 => b"x0".as_slice().into(),
        _ => {
            let values: Vec<_> = history
                .calls()
                .filter_map(|(_, call)| match &call.invocation {
                    Invocation::Swap { value, .. } | Invocation::Note { value, .. } => {
                        Some(value.clone())
                    }
                    Invocation::Bind { last, .. } => Some(last.clone()),
                    Invocation::Read | Invocation::Delete { .. } | Invocation::End => None,
                })
                .collect();
            let nth = rng.below(values.len() as u64) as usize;
            let none = || b"x1".as_slice().into();
            values.get(nth).cloned().unwrap_or_else(none)
        }
    };
    match invocation {
        Invocation::Read if rng.chance(30) => Answer::Absent,
        Invocation::Read => Answer::Holds { value, version },
        Invocation::End => Answer::Ended,
        Invocation::Delete { .. } if rng.chance(50) => Answer::Deleted,
        Invocation::Delete { .. } => Answer::Conflict,
        _ if rng.chance(50) => Answer::Swapped(version),
        _ => Answer::Conflict,
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
        bound: rng.below(3) / 2 * 60,
    };
    let history = generate(rng, shape);
    let changes = rng.below(4) * 20;
    let original = history.clone();
    with_answers(&history, |id, answer| {
        let change = rng.chance(changes);
        let invocation = &original.call(id).invocation;
        Some(match change {
            true => other_answer(rng, &original, invocation),
            false => answer.clone(),
        })
    })
}

#[test]
fn another_checker_says_the_same() {
    let (mut good, mut bad, mut bound) = (0, 0, 0);
    for seed in 0..6_600 {
        let history = small(&mut Rng::from_seed(seed));
        let open = history.calls().filter(|(_, call)| is_open(call));
        if open.count() > 3 {
            continue;
        }
        let binds = |(_, call): (_, &Call)| matches!(call.invocation, Invocation::Bind { .. });
        bound += u32::from(history.calls().any(binds));
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
    assert!(bound > 1_000, "{bound} with registers bound");
}
