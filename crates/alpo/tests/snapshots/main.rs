//! When snapshots are taken, and what is kept behind them.

mod far;
mod transfers;

use std::time::Duration;

use tenure_alpo::codec::crc32c_append;
use tenure_alpo::{
    Body, ClientRequest, ClusterId, Command, Config, Entry, Envelope, Identity, Input, Limits,
    Membership, Node, OpenSession, Operation, Output, OwnershipProof, Payload, Position, Recovered,
    Request, ServerId, Snapshot, State, StateCopy, StorageId,
};
use tenure_core::Machine;
use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

use far::Far;

fn at(seconds: u64) -> Now {
    Now {
        boot: Instant::from_nanos(seconds * 1_000_000_000),
        wall: WallTime::default(),
    }
}

/// A server that is its whole cluster, and leads.
fn alone(config: Config) -> Node {
    alone_as(1, config)
}

fn alone_as(number: u64, config: Config) -> Node {
    let server = ServerId::new(number).expect("not zero");
    let storage = StorageId::from_u128(1);
    let members = Membership::bootstrapped([(server, storage)]);
    let blank = State::bootstrapped(Limits::default(), ClockId::default(), members);
    let recovered = Recovered {
        snapshot: Some(Snapshot {
            last: Position::ZERO,
            bytes: blank.encode().into(),
        }),
        ..Recovered::default()
    };
    let identity = Identity {
        cluster: ClusterId::from_u128(1),
        server,
        storage,
    };
    let rng = Rng::from_seed(1);
    let mut node =
        Node::start(config, identity, recovered, blank, rng, at(0).boot).expect("a good snapshot");
    node.tick(at(5));
    drain(&mut node);
    assert!(node.is_ready());
    node
}

/// Everything is written at once; gives the number of snapshots.
fn drain(node: &mut Node) -> usize {
    let mut snapshots = 0;
    while let Some(output) = node.poll() {
        match output {
            Output::Persist(batch) => {
                snapshots += usize::from(batch.snapshot.is_some());
                node.handle(at(5), Input::Persisted(batch.number));
            }
            Output::EncodeSnapshot(copy) => {
                node.handle(at(5), Input::SnapshotEncoded(copy.encode()));
            }
            _ => {}
        }
    }
    snapshots
}

fn command(bytes: usize) -> ClientRequest {
    // Nobody's session: it is written and applied, and changes nothing.
    let command = Command {
        session: 99,
        serial: 1,
        outstanding: 1,
        operation: Operation::Append(vec![7; bytes].into()),
    };
    ClientRequest::Command(command, OwnershipProof::NONE)
}

#[test]
fn what_is_kept_behind_a_snapshot_makes_no_other_one_due() {
    let log_bytes = 10_000;
    let mut node = alone(Config {
        snapshot_threshold_bytes: log_bytes,
        kept_entries: 1_000,
        ..Config::default()
    });
    let mut snapshots = 0;
    for token in 0..400 {
        let request = command(1_000);
        node.handle(at(5), Input::ClientRequest { token, request });
        snapshots += drain(&mut node);
        let bytes = node.log().bytes();
        assert!(bytes < 2 * log_bytes, "{bytes} bytes of log in memory");
    }
    // 400 entries of a bit more than 1,000 bytes: a round is 8 of them.
    assert!((45..=50).contains(&snapshots), "{snapshots} snapshots");
}

#[test]
fn a_snapshot_that_is_asked_for_is_taken_once() {
    let mut node = alone(Config {
        kept_entries: 0,
        ..Config::default()
    });
    let request = command(1_000);
    node.handle(at(5), Input::ClientRequest { token: 1, request });
    assert_eq!(drain(&mut node), 0, "none was due");
    let applied = node.state().applied();
    node.handle(at(5), Input::Compact);
    assert_eq!(drain(&mut node), 1);
    let snapshot = node.snapshot().expect("it was taken");
    assert_eq!(snapshot.last, applied);
    let held = State::decode(&snapshot.bytes).expect("a state");
    assert_eq!(held.applied(), applied);
    assert!(node.log().get(applied.id).is_none(), "what it covers went");
    // It covers everything already.
    node.handle(at(5), Input::Compact);
    assert_eq!(drain(&mut node), 0);
}

#[test]
fn of_a_server_that_has_applied_nothing_no_snapshot_is_taken() {
    let mut far = Far::new(&Config::default());
    let node = &mut far.nodes[0];
    assert_eq!(node.state().applied(), Position::ZERO);
    node.handle(at(0), Input::Compact);
    assert_eq!(drain(node), 0, "no log takes one that covers nothing");
    assert!(node.snapshot().is_none());
}

#[test]
fn a_long_tail_that_waits_makes_no_snapshot_due() {
    let mut node = alone(Config {
        snapshot_threshold_bytes: 10_000,
        kept_entries: 0,
        ..Config::default()
    });
    // A hundred batches that the disk takes one by one.
    let mut batches = Vec::new();
    let mut snapshots = 0;
    for token in 0..100 {
        let request = command(1_000);
        node.handle(at(5), Input::ClientRequest { token, request });
        while let Some(output) = node.poll() {
            if let Output::Persist(batch) = output {
                batches.push(batch.number);
            }
        }
    }
    for number in batches {
        node.handle(at(5), Input::Persisted(number));
        while let Some(output) = node.poll() {
            match output {
                Output::Persist(batch) => snapshots += usize::from(batch.snapshot.is_some()),
                Output::EncodeSnapshot(copy) => {
                    node.handle(at(5), Input::SnapshotEncoded(copy.encode()));
                }
                _ => {}
            }
        }
    }
    assert!((8..=13).contains(&snapshots), "{snapshots} snapshots");
}

#[test]
fn over_a_slow_link_no_chunk_is_sent_again_and_again() {
    let mut far = Far::new(&Config {
        snapshot_threshold_bytes: 30_000,
        kept_entries: 0,
        chunk_bytes: 1_000,
        ..Config::default()
    });
    far.run(5_000);
    let leader = far.nodes.iter().position(Node::is_ready).expect("a leader");
    let late = (leader + 1) % 3;
    far.cut = vec![late];
    let open = |token| Input::ClientRequest {
        token,
        request: ClientRequest::Open(OpenSession::unowned(u64::MAX)),
    };
    // Sessions make the snapshot large: 40 bytes each.
    for token in 0..2_000 {
        far.step(leader, |node, now| node.handle(now, open(token)));
        far.run(5);
    }
    let snapshot = far.nodes[leader].snapshot().expect("one").bytes.len();
    assert!(snapshot > 20_000, "{snapshot}");
    // Slower than two heartbeats there and back.
    far.cut.clear();
    far.delay = 110;
    far.run(60_000);
    let upto = far.nodes[leader].commit();
    assert_eq!(far.nodes[late].commit(), upto);
    let needed = snapshot.div_ceil(1_000);
    let sent = far.chunks;
    assert!(sent <= 2 * needed, "{sent} chunks of {needed} were sent");
}

/// The newest snapshot could not be read, and the server starts from an older
/// one. What that snapshot held was committed, and the log names it: a
/// snapshot below it could not be written.
#[test]
fn a_server_whose_newest_snapshot_is_lost_takes_none_below_it() {
    let server = ServerId::new(1).expect("not zero");
    let storage = StorageId::from_u128(1);
    // There is another voter, so nothing is committed before it is heard.
    let other = (ServerId::new(2).expect("not zero"), StorageId::from_u128(2));
    let members = Membership::bootstrapped([(server, storage), other]);
    let blank = State::bootstrapped(Limits::default(), ClockId::default(), members);
    let first = Term::new(1).expect("in range");
    let entries: Vec<_> = (1..=24)
        .map(|id| Entry {
            id,
            term: first,
            time: id,
            payload: Payload::NoOp,
        })
        .collect();
    let recovered = Recovered {
        entries,
        committed: 20,
        ..Recovered::default()
    };
    let identity = Identity {
        cluster: ClusterId::from_u128(1),
        server,
        storage,
    };
    let rng = Rng::from_seed(1);
    let node = Node::start(
        Config::default(),
        identity,
        recovered,
        blank,
        rng,
        at(0).boot,
    );
    let mut node = node.expect("nothing to read");
    assert_eq!(node.state().applied(), Position::new(first, 20));
    node.handle(at(0), Input::Compact);
    assert_eq!(drain(&mut node), 1);
    assert_eq!(node.snapshot().map(|it| it.last.id), Some(20));
}

thread_local! {
    /// Whether the machine is at work on this thread.
    static AT_WORK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A checksum that is made by those who encode, and never by the machine.
fn not_at_work(sum: u32, bytes: &[u8]) -> u32 {
    assert!(!AT_WORK.get(), "the machine encodes a snapshot itself");
    crc32c_append(sum, bytes)
}

/// Runs the machine, and gives the copies that it wants encoded.
fn work(node: &mut Node, input: Input) -> Vec<StateCopy> {
    AT_WORK.set(true);
    node.handle(at(5), input);
    let mut copies = Vec::new();
    while let Some(output) = node.poll() {
        match output {
            Output::Persist(batch) => node.handle(at(5), Input::Persisted(batch.number)),
            Output::EncodeSnapshot(copy) => copies.push(*copy),
            _ => {}
        }
    }
    AT_WORK.set(false);
    copies
}

#[test]
fn a_server_goes_on_while_its_snapshot_is_encoded() {
    let mut node = alone(Config {
        snapshot_threshold_bytes: 10_000,
        kept_entries: 0,
        checksum: not_at_work,
        ..Config::default()
    });
    let submit = |node: &mut Node, token| {
        let request = command(1_000);
        work(node, Input::ClientRequest { token, request })
    };
    let mut copies = Vec::new();
    let mut token = 0;
    while copies.is_empty() {
        token += 1;
        copies = submit(&mut node, token);
    }
    let first = copies.remove(0);
    // However much is applied meanwhile, no second one is begun, and the log
    // keeps what only it has.
    for _ in 0..50 {
        token += 1;
        assert_eq!(submit(&mut node, token), []);
    }
    assert!(node.encodes_snapshot());
    assert!(node.snapshot().is_none_or(|it| it.last < first.last()));
    let next = first.last().id + 1;
    assert!(node.log().get(next).is_some(), "what comes after the copy");
    // One that is asked for meanwhile comes after it, of all that is applied.
    assert_eq!(work(&mut node, Input::Compact), []);
    let applied = node.state().applied();
    let mut copies = work(&mut node, Input::SnapshotEncoded(first.encode()));
    assert_eq!(node.snapshot().map(|it| it.last), Some(first.last()));
    assert!(node.log().get(next).is_some(), "what comes after the copy");
    assert!(node.log().get(next - 1).is_none(), "what it covers went");
    let second = copies.remove(0);
    assert_eq!(second.last(), applied);
    // What nobody asked for is not taken; nor is the first one again.
    work(&mut node, Input::SnapshotEncoded(first.encode()));
    assert_eq!(node.snapshot().map(|it| it.last), Some(first.last()));
    work(&mut node, Input::SnapshotEncoded(second.encode()));
    assert_eq!(node.snapshot().map(|it| it.last), Some(applied));
    assert!(!node.encodes_snapshot());
    let held = node.snapshot().map(|it| State::decode(&it.bytes));
    assert_eq!(
        held.and_then(Result::ok).map(|it| it.applied()),
        Some(applied)
    );
}

/// What a follower wants encoded, and the batches that it wants written, when
/// its leader has appended and committed entry `id`.
fn follow(node: &mut Node, id: u64, payload: Payload, now: Now) -> (Vec<StateCopy>, Vec<u64>) {
    let first = Term::new(1).expect("in range");
    let leader = ServerId::new(2).expect("not zero");
    let before = Position::new(if id == 1 { Term::ZERO } else { first }, id - 1);
    let envelope = Envelope {
        from: leader,
        to: node.id(),
        term: first,
        body: Body::Request {
            number: id,
            request: Request::Append {
                prev: before,
                entries: vec![Entry {
                    id,
                    term: first,
                    time: id,
                    payload,
                }],
                commit: id,
                round: 1,
            },
        },
    };
    let storage = StorageId::from_u128(2);
    node.handle(now, Input::Received { envelope, storage });
    wants(node)
}

fn wants(node: &mut Node) -> (Vec<StateCopy>, Vec<u64>) {
    let (mut copies, mut batches) = (Vec::new(), Vec::new());
    while let Some(output) = node.poll() {
        match output {
            Output::EncodeSnapshot(copy) => copies.push(*copy),
            Output::Persist(batch) => batches.push(batch.number),
            _ => {}
        }
    }
    (copies, batches)
}

#[test]
fn a_snapshot_that_is_asked_for_while_another_waits_for_the_disk_is_taken_later() {
    let far = Far::new(&Config::default());
    let mut node = far.nodes.into_iter().next().expect("three");
    follow(&mut node, 1, Payload::NoOp, at(0));
    node.handle(at(0), Input::Compact);
    let (mut copies, _) = wants(&mut node);
    let first = copies.remove(0);
    node.handle(at(0), Input::SnapshotEncoded(first.encode()));
    let (_, batches) = wants(&mut node);
    // The disk hangs.
    follow(&mut node, 2, Payload::NoOp, at(20));
    node.handle(at(20), Input::Compact);
    assert_eq!(wants(&mut node).0, []);
    assert!(node.encodes_snapshot(), "it is still wanted");
    node.handle(at(21), Input::Persisted(batches[batches.len() - 1]));
    let (copies, _) = wants(&mut node);
    assert_eq!(copies.len(), 1, "nothing else had to happen");
    assert_eq!(copies[0].last().id, 2);
    node.handle(at(21), Input::SnapshotEncoded(copies[0].encode()));
    assert!(!node.encodes_snapshot());
    assert_eq!(node.snapshot().map(|it| it.last.id), Some(2));
}

/// Three servers with a state of more than 3 MB. One of them was away. Returns
/// them, the leader's index and that of the server that was away.
fn with_large_state() -> (Far, usize, usize) {
    let mut far = Far::new(&Config {
        election_timeout: Duration::from_millis(250),
        heartbeat: Duration::from_millis(50),
        snapshot_threshold_bytes: 500_000,
        kept_entries: 0,
        ..Config::default()
    });
    far.run(5_000);
    let leader = far.leader().expect("a leader");
    let late = (leader + 1) % 3;
    far.cut = vec![late];
    far.open();
    far.append(500, 10_000, 50_000);
    let snapshot = far.nodes[leader].snapshot().expect("one").bytes.len();
    assert!(snapshot > 3_000_000, "{snapshot}");
    (far, leader, late)
}

/// A chunk of 512 KiB takes 210 ms over 20 Mbit/s, and heartbeats wait behind
/// it.
#[test]
fn heartbeats_are_in_time_beside_a_snapshot_on_a_slow_link() {
    let (mut far, leader, late) = with_large_state();
    far.carries = vec![2_500; 3];
    far.run(500);
    (far.cut, far.slowest) = (Vec::new(), 0);
    let began = far.now;
    // The leadership finds out what the link carries.
    far.run(1_000);
    let at_first = std::mem::take(&mut far.slowest);
    while far.lag(late) > 0 {
        far.run(10);
        assert!(far.now < began + 10_000, "most of the link is not used");
    }
    assert!(far.nodes[leader].is_ready(), "it leads as before");
    let slowest = far.slowest;
    assert!(
        at_first < 200 && slowest < 150,
        "{at_first} ms, {slowest} ms"
    );
}

/// There is one chunk in each round trip, so the first ones' size would make a
/// snapshot of 3 MB take 50 of them.
#[test]
fn over_a_long_link_chunks_become_larger() {
    let (mut far, _, late) = with_large_state();
    far.delay = 40;
    far.run(500);
    far.cut.clear();
    let began = far.now;
    while far.lag(late) > 0 {
        far.run(10);
        assert!(far.now < began + 2_000, "{} chunks so far", far.chunks);
    }
}

/// Servers apply the same entries, and would all be busy at the same time; with
/// a large state for longer.
#[test]
fn servers_take_their_snapshots_one_after_the_other() {
    let config = Config {
        snapshot_threshold_bytes: 1_000,
        ..Config::default()
    };
    let mut nodes = Far::new(&config).nodes;
    // The second leads.
    nodes.remove(1);
    let mut taken = Vec::new();
    for token in 1..8_000 {
        for (index, node) in nodes.iter_mut().enumerate() {
            // What sessions take stays.
            let payload = match token {
                ..2_000 => Payload::Open { ttl: u64::MAX },
                _ => Payload::NoOp,
            };
            let (copies, batches) = follow(node, token, payload, at(0));
            assert_eq!(copies, [], "it is begun as soon as it is due");
            let last = batches.last().copied().unwrap_or_default();
            node.handle(at(0), Input::Persisted(last));
            if drain(node) > 0 {
                taken.push((token, index));
            }
        }
    }
    let large = nodes[0].snapshot().expect("one").bytes.len();
    assert!(large > 20 * config.snapshot_threshold_bytes, "{large}");
    // The state has had its size for some rounds.
    taken.retain(|(token, _)| *token > 4_000);
    let first = taken.iter().filter(|it| it.1 == 0).map(|it| it.0);
    let first: Vec<_> = first.collect();
    let round = first[first.len() - 1] - first[first.len() - 2];
    let apart = taken.windows(2).map(|two| two[1].0 - two[0].0);
    let least = apart.min().expect("some");
    assert!(least * 4 > round, "{least} of {round}: {taken:?}");
}
