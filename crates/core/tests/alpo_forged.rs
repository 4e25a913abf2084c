//! What no leader says: it is neither believed nor answered, and nobody
//! panics of it.

use tenure_core::Machine;
use tenure_core::alpo::{
    Body, ClusterId, Config, Entry, Envelope, Identity, Input, Limits, Membership, Node, Output,
    Payload, Position, Recovered, Reply, Request, ServerId, State, StorageId,
};
use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

const NOW: Now = Now {
    boot: Instant::ZERO,
    wall: WallTime::from_millis(0),
};

fn server(number: u64) -> ServerId {
    ServerId::new(number).expect("not zero")
}

fn term(number: u64) -> Term {
    Term::new(number).expect("a small term")
}

fn entry(id: u64, number: u64, time: u64) -> Entry {
    Entry {
        id,
        term: term(number),
        time,
        payload: Payload::NoOp,
    }
}

/// A passive server that has a snapshot up to 2@3, and 3@3 after it.
fn passive() -> Node {
    let storage = |n: u64| StorageId::from_u128(n.into());
    let members = Membership::founded((1..=3).map(|n| (server(n), storage(n))));
    let mut state = State::founded(Limits::default(), ClockId::default(), members);
    state.apply(&entry(1, 1, 10));
    state.apply(&entry(2, 3, 20));
    let recovered = Recovered {
        snapshot: Some(tenure_core::alpo::Snapshot {
            last: state.applied(),
            bytes: state.encode().into(),
        }),
        entries: vec![entry(3, 3, 30)],
        ..Recovered::default()
    };
    let identity = Identity {
        cluster: ClusterId::from_u128(1),
        server: server(1),
        storage: storage(1),
    };
    let (config, rng) = (Config::default(), Rng::from_seed(1));
    Node::start(config, identity, recovered, state, rng, NOW.boot).expect("a good snapshot")
}

/// What the leader of term 4 is told when it sends these.
fn told(node: &mut Node, prev: Position, entries: Vec<Entry>) -> Vec<Reply> {
    let request = Request::Append {
        prev,
        entries,
        commit: 0,
        round: 1,
    };
    let envelope = Envelope {
        from: server(2),
        to: server(1),
        term: term(4),
        body: Body::Request { number: 1, request },
    };
    let storage = StorageId::from_u128(2);
    node.handle(NOW, Input::Received { envelope, storage });
    let mut replies = Vec::new();
    while let Some(output) = node.poll() {
        match output {
            Output::Persist(batch) => node.handle(NOW, Input::Persisted(batch.number)),
            Output::Send {
                envelope:
                    Envelope {
                        body: Body::Reply { reply, .. },
                        ..
                    },
                ..
            } => replies.push(reply),
            _ => {}
        }
    }
    replies
}

#[test]
fn entries_that_cannot_follow_are_not_answered() {
    let at = |number, id| Position::new(term(number), id);
    let forged = [
        // A gap, a term that falls, one that is not reached yet.
        (at(3, 3), vec![entry(5, 4, 40)]),
        (at(3, 3), vec![entry(4, 2, 40)]),
        (at(3, 3), vec![entry(4, 5, 40)]),
        // Time falls, from here or on the way.
        (at(3, 3), vec![entry(4, 4, 29)]),
        (at(3, 3), vec![entry(4, 4, 40), entry(5, 4, 39)]),
        // The term falls where the snapshot ends, and behind an entry that
        // is only said to be the same.
        (at(1, 1), vec![entry(2, 1, 20), entry(3, 1, 30)]),
        (at(3, 2), vec![entry(3, 3, 1), entry(4, 3, 2)]),
        // The last id there is.
        (at(3, u64::MAX), vec![entry(1, 4, 40)]),
    ];
    for (prev, entries) in forged {
        let mut node = passive();
        let what = format!("after {prev}: {entries:?}");
        let told = told(&mut node, prev, entries);
        let promised = told.iter().any(|r| matches!(r, Reply::Appended { .. }));
        assert!(!promised, "{what}: {told:?}");
    }
    let mut node = passive();
    let told = told(&mut node, at(3, 3), vec![entry(4, 4, 30)]);
    assert_eq!(
        told,
        [Reply::Appended {
            matched: 4,
            round: 1
        }]
    );
}
