//! What no leader says: it is neither believed nor answered, and nobody
//! panics of it.

use tenure_alpo::{
    Body, ClusterId, ClusterVersion, CompareChecksums, Config, Entry, Envelope, Fault, HardState,
    Identity, Input, Limits, MAX_NUMBER, MAX_TERM_LEAP, Membership, MessageError, Node, Output,
    Payload, Position, Recovered, Reply, Request, ServerId, State, StateChecksum, StorageId,
};
use tenure_core::Machine;
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

/// A follower that has a snapshot up to 2@3, and 3@3 after it.
fn follower() -> Node {
    let storage = |n: u64| StorageId::from_u128(n.into());
    let members = Membership::bootstrapped((1..=3).map(|n| (server(n), storage(n))));
    let mut state = State::bootstrapped(Limits::default(), ClockId::default(), members);
    state.apply(&entry(1, 1, 10));
    state.apply(&entry(2, 3, 20));
    let recovered = Recovered {
        snapshot: Some(tenure_alpo::Snapshot {
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
            Output::EncodeSnapshot(copy) => {
                node.handle(NOW, Input::SnapshotEncoded(copy.encode()));
            }
            Output::DecodeSnapshot(received) => {
                let decoded = Box::new(received.decode());
                node.handle(NOW, Input::SnapshotDecoded(decoded));
            }
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
        let mut node = follower();
        let what = format!("after {prev}: {entries:?}");
        let told = told(&mut node, prev, entries);
        let promised = told.iter().any(|r| matches!(r, Reply::Appended { .. }));
        assert!(!promised, "{what}: {told:?}");
    }
    let mut node = follower();
    let told = told(&mut node, at(3, 3), vec![entry(4, 4, 30)]);
    assert_eq!(
        told,
        [Reply::Appended {
            matched: 4,
            round: 1
        }]
    );
}

fn asked(from: u64, number: u64, request: Request) -> Envelope {
    Envelope {
        from: server(from),
        to: server(1),
        term: term(number),
        body: Body::Request { number: 1, request },
    }
}

fn heartbeat(at: Position, agreed: Option<StateChecksum>) -> Request {
    Request::Heartbeat {
        last: at,
        commit: 0,
        round: 1,
        time: 0,
        compare_checksums: CompareChecksums { at: 0, agreed },
    }
}

fn handle(node: &mut Node, envelope: Envelope, storage: u128) -> Option<Fault> {
    let storage = StorageId::from_u128(storage);
    node.handle(NOW, Input::Received { envelope, storage });
    let mut fault = None;
    while let Some(output) = node.poll() {
        match output {
            Output::Persist(batch) => node.handle(NOW, Input::Persisted(batch.number)),
            Output::EncodeSnapshot(copy) => {
                node.handle(NOW, Input::SnapshotEncoded(copy.encode()));
            }
            Output::DecodeSnapshot(received) => {
                let decoded = Box::new(received.decode());
                node.handle(NOW, Input::SnapshotDecoded(decoded));
            }
            Output::Halt(found) => fault = Some(found),
            _ => {}
        }
    }
    fault
}

#[test]
fn no_message_leads_to_a_term_that_no_election_leads_to() {
    let vote = |number| {
        let (last, transfer) = (Position::new(term(3), 9), true);
        asked(2, number, Request::Vote { last, transfer })
    };
    for number in [3 + MAX_TERM_LEAP + 1, MAX_NUMBER] {
        let mut node = follower();
        let before = node.term();
        assert_eq!(handle(&mut node, vote(number), 2), None);
        assert_eq!(node.term(), before, "{number}");
    }
    let mut node = follower();
    handle(&mut node, vote(3 + MAX_TERM_LEAP), 2);
    assert_eq!(node.term(), term(3 + MAX_TERM_LEAP));
}

#[test]
fn nobody_has_an_entry_of_a_term_that_it_has_not_reached() {
    let last = Position::new(term(9), 9);
    let forged = [
        Request::Vote {
            last,
            transfer: true,
        },
        Request::Defer { last },
        heartbeat(last, None),
        Request::Install {
            last,
            offset: 0,
            bytes: [].into(),
            total: 1,
            round: 1,
        },
    ];
    for request in forged {
        let mut node = follower();
        let before = (node.term(), node.leader());
        assert_eq!(handle(&mut node, asked(2, 8, request), 2), None);
        assert_eq!((node.term(), node.leader()), before);
    }
}

/// What ends a server if a member says it is refused from anybody else: from
/// another number, and from a member's number with another disk.
#[test]
fn a_contradiction_is_believed_of_members_alone() {
    let end = Position::new(term(3), 3);
    let conflict = Request::Append {
        prev: Position::new(term(3), 2),
        entries: vec![entry(3, 4, 30)],
        commit: 0,
        round: 1,
    };
    let mut newer = entry(4, 5, 40);
    newer.payload = Payload::Version(ClusterVersion::new(99).expect("a version"));
    let unknown = Request::Append {
        prev: end,
        entries: vec![newer],
        commit: 0,
        round: 1,
    };
    let requests = [(heartbeat(end, None), 4), (conflict, 5), (unknown, 5)];
    for (request, term_of_it) in requests {
        let mut node = follower();
        // Server 2 leads term 4, and entry 3 is committed.
        let mut led = asked(2, 4, heartbeat(end, None));
        if let Body::Request {
            request: Request::Heartbeat { commit, .. },
            ..
        } = &mut led.body
        {
            *commit = 3;
        }
        assert_eq!(handle(&mut node, led, 2), None);
        assert_eq!(node.leader(), Some(server(2)));
        // Another number, a member's with another disk, and so the leader's.
        for (from, storage) in [(77, 77), (3, 77), (2, 77)] {
            let mut forged = asked(from, term_of_it, request.clone());
            let refused = node.admit(&mut forged, StorageId::from_u128(storage));
            let by = server(from);
            assert!(
                matches!(refused, Err(MessageError::Contradiction { by: said, .. }) if said == by),
                "{request:?} of {from}: {refused:?}"
            );
        }
        let mut real = asked(3, term_of_it, request.clone());
        assert_eq!(node.admit(&mut real, StorageId::from_u128(3)), Ok(()));
        assert!(handle(&mut node, real, 3).is_some(), "{request:?}");
    }
}

#[test]
fn a_mark_of_somebody_who_is_no_member_is_not_kept() {
    let node = follower();
    let agreed = Some(StateChecksum { id: 256, hash: 1 });
    let end = Position::new(term(3), 3);
    let marked = |envelope: &Envelope| match &envelope.body {
        Body::Request {
            request: Request::Heartbeat {
                compare_checksums, ..
            },
            ..
        } => compare_checksums.agreed,
        _ => None,
    };
    let mut stranger = asked(4, 4, heartbeat(end, agreed));
    assert_eq!(node.admit(&mut stranger, StorageId::from_u128(4)), Ok(()));
    assert_eq!(marked(&stranger), None);
    let mut member = asked(2, 4, heartbeat(end, agreed));
    assert_eq!(node.admit(&mut member, StorageId::from_u128(2)), Ok(()));
    assert_eq!(marked(&member), agreed);
}

/// A disk that an earlier release wrote at the bidding of a forged message.
#[test]
fn after_the_last_term_nobody_stands() {
    let storage = StorageId::from_u128(1);
    let members = Membership::bootstrapped([(server(1), storage)]);
    let state = State::bootstrapped(Limits::default(), ClockId::default(), members);
    for number in [MAX_NUMBER, Term::MAX.get()] {
        let recovered = Recovered {
            hard: HardState {
                term: term(number),
                ..HardState::default()
            },
            ..Recovered::default()
        };
        let identity = Identity {
            cluster: ClusterId::from_u128(1),
            server: server(1),
            storage,
        };
        let (config, rng) = (Config::default(), Rng::from_seed(1));
        let node = Node::start(config, identity, recovered, state.clone(), rng, NOW.boot);
        let mut node = node.expect("a good snapshot");
        node.tick(NOW);
        let fault = std::iter::from_fn(|| node.poll()).find_map(|output| match output {
            Output::Halt(fault) => Some(fault),
            _ => None,
        });
        let (term, last) = (term(number), 0);
        assert_eq!(fault, Some(Fault::Exhausted { term, last }));
        assert_eq!(node.term(), term, "it did not go on");
    }
}
