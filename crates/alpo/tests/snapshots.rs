//! When snapshots are taken, and what is kept behind them.

use std::collections::VecDeque;
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
        log_bytes,
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
        log_bytes: 10_000,
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

/// Three servers whose network is slow and in order.
struct Far {
    now: u64,
    delay: u64,
    nodes: Vec<Node>,
    under_way: VecDeque<(u64, Envelope)>,
    /// Nothing reaches this server.
    cut: Option<usize>,
    chunks: usize,
    /// What a link carries in a millisecond, and until when the links to each
    /// server are busy, in microseconds.
    carries: u64,
    busy: [u64; 3],
    /// The longest that a heartbeat was on its way, in milliseconds.
    slowest: u64,
}

impl Far {
    fn new(config: &Config) -> Self {
        let id = |n: u64| ServerId::new(n).expect("not zero");
        let members =
            Membership::bootstrapped((1..=3).map(|n| (id(n), StorageId::from_u128(n.into()))));
        let blank = State::bootstrapped(Limits::default(), ClockId::default(), members);
        let node = |n: u64| {
            let identity = Identity {
                cluster: ClusterId::from_u128(1),
                server: id(n),
                storage: StorageId::from_u128(n.into()),
            };
            let rng = Rng::from_seed(n);
            let (config, recovered) = (config.clone(), Recovered::default());
            Node::start(config, identity, recovered, blank.clone(), rng, at(0).boot)
                .expect("no snapshot")
        };
        Self {
            now: 0,
            delay: 1,
            nodes: (1..=3).map(node).collect(),
            under_way: VecDeque::new(),
            cut: None,
            chunks: 0,
            carries: u64::MAX,
            busy: [0; 3],
            slowest: 0,
        }
    }

    fn step(&mut self, index: usize, act: impl FnOnce(&mut Node, Now)) {
        let now = Now {
            boot: Instant::from_nanos(self.now * 1_000_000),
            wall: WallTime::default(),
        };
        let node = &mut self.nodes[index];
        act(node, now);
        let mut sent = Vec::new();
        while let Some(output) = node.poll() {
            match output {
                Output::Persist(batch) => node.handle(now, Input::Persisted(batch.number)),
                Output::EncodeSnapshot(copy) => {
                    node.handle(now, Input::SnapshotEncoded(copy.encode()));
                }
                Output::DecodeSnapshot(received) => {
                    let decoded = Box::new(received.decode());
                    node.handle(now, Input::SnapshotDecoded(decoded));
                }
                Output::Send { envelope, .. } => {
                    if let Body::Request {
                        request: Request::Install { .. },
                        ..
                    } = envelope.body
                    {
                        self.chunks += 1;
                    }
                    sent.push(envelope);
                }
                _ => {}
            }
        }
        for envelope in sent {
            let arrives = self.now + self.delay + self.waits(&envelope);
            self.under_way.push_back((arrives, envelope));
        }
    }

    /// How long a message waits for what was sent before it over its link.
    fn waits(&mut self, envelope: &Envelope) -> u64 {
        let bytes = match &envelope.body {
            Body::Request {
                request: Request::Install { bytes, .. },
                ..
            } => bytes.len() as u64,
            Body::Request {
                request: Request::Append { entries, .. },
                ..
            } => entries.iter().map(|entry| entry.weight() as u64).sum(),
            _ => 0,
        };
        let busy = &mut self.busy[envelope.to.get() as usize - 1];
        *busy = (*busy).max(self.now * 1_000) + bytes * 1_000 / self.carries;
        let waits = (*busy / 1_000).saturating_sub(self.now);
        if let Body::Request {
            request: Request::Heartbeat { .. },
            ..
        } = envelope.body
        {
            self.slowest = self.slowest.max(waits);
        }
        waits
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1;
            // Links are in order, each by itself.
            let under_way = self.under_way.make_contiguous();
            under_way.sort_by_key(|(at, _)| *at);
            while self
                .under_way
                .front()
                .is_some_and(|(at, _)| *at <= self.now)
                && let Some((_, envelope)) = self.under_way.pop_front()
            {
                let to = envelope.to.get() as usize - 1;
                if self.cut != Some(to) {
                    let storage = StorageId::from_u128(envelope.from.get().into());
                    let input = Input::Received { envelope, storage };
                    self.step(to, |node, now| node.handle(now, input));
                }
            }
            for index in 0..3 {
                let now = Instant::from_nanos(self.now * 1_000_000);
                if self.nodes[index].deadline().is_some_and(|due| due <= now) {
                    self.step(index, Node::tick);
                }
            }
        }
    }
}

#[test]
fn over_a_slow_link_no_chunk_is_sent_again_and_again() {
    let mut far = Far::new(&Config {
        log_bytes: 30_000,
        kept_entries: 0,
        chunk_bytes: 1_000,
        ..Config::default()
    });
    far.run(5_000);
    let leader = far.nodes.iter().position(Node::is_ready).expect("a leader");
    let late = (leader + 1) % 3;
    far.cut = Some(late);
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
    far.cut = None;
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
        log_bytes: 10_000,
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

/// A chunk of 512 KiB takes 210 ms over 20 Mbit/s, and heartbeats wait behind
/// it.
#[test]
fn heartbeats_are_in_time_beside_a_snapshot_on_a_slow_link() {
    let mut far = Far::new(&Config {
        timeout: Duration::from_millis(250),
        heartbeat: Duration::from_millis(50),
        log_bytes: 500_000,
        kept_entries: 0,
        ..Config::default()
    });
    far.run(5_000);
    let leader = far.nodes.iter().position(Node::is_ready).expect("a leader");
    let late = (leader + 1) % 3;
    far.cut = Some(late);
    let submit = |far: &mut Far, token, request| {
        let input = Input::ClientRequest { token, request };
        far.step(leader, |node, now| node.handle(now, input));
        far.run(5);
    };
    let open = ClientRequest::Open(OpenSession::unowned(u64::MAX));
    submit(&mut far, 1, open);
    let session = far.nodes[leader].state().applied().id;
    for serial in 1..=100 {
        let operation = Operation::Append(vec![7; 50_000].into());
        let command = Command {
            session,
            serial,
            outstanding: serial,
            operation,
        };
        let command = ClientRequest::Command(command, OwnershipProof::NONE);
        submit(&mut far, 1 + serial, command);
    }
    let snapshot = far.nodes[leader].snapshot().expect("one").bytes.len();
    assert!(snapshot > 3_000_000, "{snapshot}");
    far.carries = 2_500;
    far.run(500);
    (far.cut, far.slowest) = (None, 0);
    let began = far.now;
    // The leadership finds out what the link carries.
    far.run(1_000);
    let at_first = std::mem::take(&mut far.slowest);
    while far.nodes[late].state().applied() != far.nodes[leader].state().applied() {
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

/// Servers apply the same entries, and would all be busy at the same time; with
/// a large state for longer.
#[test]
fn servers_take_their_snapshots_one_after_the_other() {
    let config = Config {
        log_bytes: 1_000,
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
    assert!(large > 20 * config.log_bytes, "{large}");
    // The state has had its size for some rounds.
    taken.retain(|(token, _)| *token > 4_000);
    let first = taken.iter().filter(|it| it.1 == 0).map(|it| it.0);
    let first: Vec<_> = first.collect();
    let round = first[first.len() - 1] - first[first.len() - 2];
    let apart = taken.windows(2).map(|two| two[1].0 - two[0].0);
    let least = apart.min().expect("some");
    assert!(least * 4 > round, "{least} of {round}: {taken:?}");
}
