//! The checker of the plain log: each way to be wrong, and a log that is
//! not.

use tenure_core::cas::Bytes;
use tenure_core::rng::Rng;
use tenure_sim::linearize::{Append, Misdeed, exactly_once};

/// `(session, serial, payload, invoked, answered)`
type Told<'a> = (u64, u64, &'a str, u64, Option<(u64, u64)>);

fn bytes(text: &str) -> Bytes {
    text.as_bytes().into()
}

fn misdeeds(appends: &[Told<'_>], log: &[(u64, &str)]) -> Vec<Misdeed> {
    let appends: Vec<Append> = appends
        .iter()
        .map(|(session, serial, payload, invoked, answered)| Append {
            session: *session,
            serial: *serial,
            payload: bytes(payload),
            invoked: *invoked,
            answered: *answered,
        })
        .collect();
    let log: Vec<_> = log.iter().map(|(n, text)| (*n, bytes(text))).collect();
    exactly_once(&appends, &log).err().unwrap_or_default()
}

const TWO: [Told<'_>; 2] = [(1, 1, "a", 0, Some((5, 1))), (2, 1, "b", 3, Some((6, 2)))];

#[test]
fn each_once_is_right() {
    assert_eq!(misdeeds(&[], &[]), []);
    assert_eq!(misdeeds(&TWO, &[(1, "a"), (2, "b")]), []);
    // Never answered: there once, or not at all.
    let three = [TWO[0], TWO[1], (3, 1, "c", 1, None)];
    assert_eq!(misdeeds(&three, &[(1, "a"), (2, "b")]), []);
    assert_eq!(misdeeds(&three, &[(1, "a"), (2, "b"), (3, "c")]), []);
}

#[test]
fn a_lost_append_is_noticed() {
    let lost = |found: Vec<Misdeed>| match &found[..] {
        [Misdeed::Lost { instead, .. }] => instead.clone(),
        other => panic!("expected one lost append, found {other:?}"),
    };
    assert_eq!(lost(misdeeds(&TWO, &[(1, "a")])), None);
    let other = [TWO[0], (2, 1, "b", 3, Some((6, 1)))];
    let found = misdeeds(&other, &[(1, "a"), (2, "b")]);
    assert_eq!(lost(found), Some(bytes("a")));
    let nowhere = [(1, 1, "a", 0, Some((5, 0)))];
    assert_eq!(lost(misdeeds(&nowhere, &[(1, "a")])), None);
}

#[test]
fn an_append_that_stands_twice_is_noticed() {
    let found = misdeeds(&TWO, &[(1, "a"), (2, "b"), (3, "a")]);
    assert!(matches!(found[..], [Misdeed::Twice { again: 3, .. }]));
    let unknown = [(1, 1, "a", 0, None)];
    let found = misdeeds(&unknown, &[(1, "a"), (2, "a")]);
    assert!(matches!(found[..], [Misdeed::Twice { first: 1, .. }]));
}

#[test]
fn what_nobody_asked_for_is_noticed() {
    let found = misdeeds(&TWO, &[(1, "a"), (2, "b"), (3, "z")]);
    assert!(matches!(found[..], [Misdeed::Unasked { number: 3, .. }]));
}

#[test]
fn the_order_of_serials_is_the_order_of_the_log() {
    let pipelined = [(1, 1, "a", 0, Some((5, 2))), (1, 2, "b", 1, Some((6, 1)))];
    let found = misdeeds(&pipelined, &[(1, "b"), (2, "a")]);
    assert!(matches!(found[..], [Misdeed::Serials { .. }]));
    let unknown = [(1, 1, "a", 0, None), (1, 2, "b", 1, Some((6, 1)))];
    let found = misdeeds(&unknown, &[(1, "b"), (2, "a")]);
    assert!(matches!(found[..], [Misdeed::Serials { .. }]));
}

#[test]
fn what_was_answered_comes_before_what_is_asked_then() {
    let later = [(1, 1, "a", 0, Some((5, 2))), (2, 1, "b", 6, None)];
    let found = misdeeds(&later, &[(1, "b"), (2, "a")]);
    assert!(matches!(found[..], [Misdeed::Time { .. }]));
    let at_once = [(1, 1, "a", 0, Some((5, 2))), (2, 1, "b", 4, None)];
    assert_eq!(misdeeds(&at_once, &[(1, "b"), (2, "a")]), []);
}

#[test]
fn a_log_has_no_gaps_and_payloads_are_told_apart() {
    let found = misdeeds(&TWO, &[(1, "a"), (3, "b")]);
    assert!(matches!(found[..], [Misdeed::Gap { expected: 2, .. }]));
    let alike = [(1, 1, "a", 0, None), (2, 1, "a", 0, None)];
    assert!(matches!(misdeeds(&alike, &[])[..], [Misdeed::Alike(_)]));
}

#[test]
fn what_was_trimmed_is_not_judged_but_what_is_left_is() {
    assert_eq!(misdeeds(&TWO, &[(2, "b")]), []);
    let found = misdeeds(&TWO, &[(2, "a")]);
    assert!(!found.is_empty());
}

/// Appends of some clients to a real log, with the log.
fn generate(rng: &mut Rng) -> (Vec<Append>, Vec<(u64, Bytes)>) {
    let (mut appends, mut log) = (Vec::<Append>::new(), Vec::new());
    let mut open: [Option<usize>; 5] = [None; 5];
    for at in 0..rng.between(10, 80) {
        let client = rng.below(5) as usize;
        let Some(call) = open[client] else {
            open[client] = Some(appends.len());
            appends.push(Append {
                session: client as u64,
                serial: at,
                payload: bytes(&format!("p{at}")),
                invoked: at,
                answered: None,
            });
            continue;
        };
        if !rng.chance(90) {
            // Given up before anything happened.
            open[client] = None;
            continue;
        }
        let number = log.len() as u64 + 1;
        log.push((number, appends[call].payload.clone()));
        if rng.chance(80) {
            appends[call].answered = Some((at, number));
        }
        open[client] = None;
    }
    (appends, log)
}

#[test]
fn real_logs_are_right_and_damaged_ones_are_not() {
    let mut damaged = 0;
    for seed in 0..2_000 {
        let rng = &mut Rng::from_seed(seed);
        let (appends, log) = generate(rng);
        assert_eq!(exactly_once(&appends, &log), Ok(()), "seed {seed}");
        let acknowledged: Vec<&Append> = appends.iter().filter(|a| a.answered.is_some()).collect();
        if acknowledged.len() < 2 {
            continue;
        }
        let one = acknowledged[rng.below(acknowledged.len() as u64) as usize];
        let at = one.answered.map_or(0, |(_, number)| number as usize - 1);
        let mut log: Vec<Bytes> = log.into_iter().map(|(_, payload)| payload).collect();
        match rng.below(3) {
            0 => drop(log.remove(at)),
            1 => log.insert(at, bytes("never asked for")),
            _ => log.push(one.payload.clone()),
        }
        let log: Vec<(u64, Bytes)> = (1..).zip(log).collect();
        assert!(exactly_once(&appends, &log).is_err(), "seed {seed}");
        damaged += 1;
    }
    assert!(damaged > 1_000);
}
