//! A follower that is sent a snapshot: what it says and does while the state is
//! made of it elsewhere, and what becomes of it.

use std::cell::Cell;

use tenure_alpo::codec::crc32c_append;
use tenure_alpo::{
    Body, ClusterId, CompareChecksums, Config, DecodedSnapshot, Discarded, Entry, Envelope,
    Identity, Input, Limits, Membership, Node, Output, Payload, Position, ReceivedSnapshot,
    Recovered, Reply, Request, ServerId, State, Status, StorageId,
};
use tenure_core::Machine;
use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

const CHUNK: usize = 50;

fn id(number: u64) -> ServerId {
    ServerId::new(number).expect("not zero")
}

fn storage(number: u64) -> StorageId {
    StorageId::from_u128(number.into())
}

fn term(number: u64) -> Term {
    Term::new(number).expect("in range")
}

fn at(seconds: u64) -> Now {
    Now {
        boot: Instant::from_nanos(seconds * 1_000_000_000),
        wall: WallTime::default(),
    }
}

thread_local! {
    /// Whether the machine is at work on this thread.
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// A checksum that is made by those who decode, and never by the machine.
fn not_at_work(sum: u32, bytes: &[u8]) -> u32 {
    assert!(!AT_WORK.get(), "the machine decodes a snapshot itself");
    crc32c_append(sum, bytes)
}

fn entry(number: u64) -> Entry {
    Entry {
        id: number,
        term: term(1),
        time: number,
        payload: Payload::NoOp,
    }
}

fn blank() -> State {
    let members = Membership::bootstrapped((1..=3).map(|number| (id(number), storage(number))));
    State::bootstrapped(Limits::default(), ClockId::default(), members)
}

/// The snapshot that ends with this entry.
fn snapshot(last: u64) -> (Position, Vec<u8>) {
    let mut state = blank();
    for number in 1..=last {
        state.apply(&entry(number));
    }
    (state.applied(), state.encode())
}

/// Server 3, which has nothing yet and follows.
struct Follower {
    node: Node,
    number: u64,
    /// What is to be decoded.
    received: Vec<ReceivedSnapshot>,
    /// Where the snapshots end that were written.
    written: Vec<Position>,
    discarded: Vec<Discarded>,
}

impl Follower {
    fn new() -> Self {
        let identity = Identity {
            cluster: ClusterId::from_u128(1),
            server: id(3),
            storage: storage(3),
        };
        let config = Config {
            checksum: not_at_work,
            ..Config::default()
        };
        let (recovered, rng) = (Recovered::default(), Rng::from_seed(1));
        let node = Node::start(config, identity, recovered, blank(), rng, at(0).boot);
        Self {
            node: node.expect("nothing to read"),
            number: 0,
            received: Vec::new(),
            written: Vec::new(),
            discarded: Vec::new(),
        }
    }

    /// Does this; says what is replied.
    fn act(&mut self, act: impl FnOnce(&mut Node)) -> Vec<Reply> {
        AT_WORK.set(true);
        act(&mut self.node);
        let mut replies = Vec::new();
        while let Some(output) = self.node.poll() {
            match output {
                Output::Persist(batch) => {
                    self.written.extend(batch.snapshot.map(|it| it.last));
                    self.node.handle(at(0), Input::Persisted(batch.number));
                }
                Output::DecodeSnapshot(received) => self.received.push(received),
                Output::Discard(what) => self.discarded.push(what),
                Output::Send { envelope, .. } => {
                    if let Body::Reply { reply, .. } = envelope.body {
                        replies.push(reply);
                    }
                }
                Output::Halt(fault) => panic!("{fault}"),
                _ => {}
            }
        }
        AT_WORK.set(false);
        replies
    }

    /// What it replies to the leader of this term, which has its number.
    fn hear(&mut self, leads: u64, request: Request) -> Vec<Reply> {
        self.number += 1;
        let envelope = Envelope {
            from: id(leads),
            to: id(3),
            term: term(leads),
            body: Body::Request {
                number: self.number,
                request,
            },
        };
        let storage = storage(leads);
        self.act(|node| node.handle(at(0), Input::Received { envelope, storage }))
    }

    /// Is sent this snapshot from that byte on; gives the replies to the last
    /// chunk.
    fn install(&mut self, (last, bytes): &(Position, Vec<u8>), from: usize) -> Vec<Reply> {
        let mut replies = Vec::new();
        let mut offset = from;
        loop {
            let to = (offset + CHUNK).min(bytes.len());
            let request = Request::Install {
                last: *last,
                offset: offset as u64,
                bytes: bytes[offset..to].into(),
                total: bytes.len() as u64,
                round: 1,
            };
            replies.splice(.., self.hear(1, request));
            offset = to;
            if offset == bytes.len() {
                return replies;
            }
        }
    }

    fn heartbeat(&mut self, leads: u64, commit: u64) -> Vec<Reply> {
        let last = Position::new(term(1), 9);
        let request = Request::Heartbeat {
            last,
            commit,
            round: 2,
            time: 9,
            compare_checksums: CompareChecksums::default(),
        };
        self.hear(leads, request)
    }

    fn append(&mut self, upto: u64) -> Vec<Reply> {
        let request = Request::Append {
            prev: Position::ZERO,
            entries: (1..=upto).map(entry).collect(),
            commit: upto,
            round: 1,
        };
        self.hear(1, request)
    }

    /// Elsewhere, a state is made of the snapshot that is to be decoded.
    fn decode(&mut self) -> DecodedSnapshot {
        assert_eq!(self.received.len(), 1, "one at a time");
        self.received.remove(0).decode()
    }

    /// The state is there.
    fn decoded(&mut self, decoded: DecodedSnapshot) -> Vec<Reply> {
        let input = Input::SnapshotDecoded(Box::new(decoded));
        self.act(|node| node.handle(at(0), input))
    }

    fn applied(&self) -> u64 {
        self.node.state().applied().id
    }
}

fn installed((last, bytes): &(Position, Vec<u8>), done: bool) -> Reply {
    Reply::Installed {
        last: *last,
        offset: bytes.len() as u64,
        done,
        round: 1,
    }
}

fn heard(replies: &[Reply]) -> bool {
    matches!(replies, [Reply::Heard { .. }])
}

#[test]
fn a_follower_goes_on_while_a_snapshot_is_decoded() {
    let mut follower = Follower::new();
    let sent = snapshot(5);
    // Nothing is missing, and it is not in use.
    assert_eq!(follower.install(&sent, 0), [installed(&sent, false)]);
    let decoded = follower.decode();
    for _ in 0..3 {
        assert!(heard(&follower.heartbeat(1, 5)));
        // Asked again, without a byte and with all of them.
        let end = sent.1.len();
        assert_eq!(follower.install(&sent, end), [installed(&sent, false)]);
        assert_eq!(follower.install(&sent, 0), [installed(&sent, false)]);
    }
    assert!(follower.received.is_empty(), "it is decoded once");
    assert_eq!((follower.applied(), follower.written.len()), (0, 0));
    assert_eq!(follower.decoded(decoded.clone()), [installed(&sent, true)]);
    assert_eq!(follower.node.state().applied(), sent.0);
    assert_eq!(follower.written, [sent.0]);
    // What it had is given back elsewhere.
    assert!(matches!(follower.discarded[..], [Discarded::State(_)]));
    assert_eq!(follower.install(&sent, 0), [installed(&sent, true)]);
    // Nobody asked for a second one.
    assert_eq!(follower.decoded(decoded), []);
    assert_eq!(follower.written.len(), 1);
}

#[test]
fn a_snapshot_that_the_log_has_passed_meanwhile_is_dropped() {
    let mut follower = Follower::new();
    follower.install(&snapshot(3), 0);
    let decoded = follower.decode();
    follower.append(5);
    assert_eq!(follower.node.commit(), 5);
    assert_eq!(follower.decoded(decoded), []);
    assert_eq!((follower.applied(), follower.node.log().len()), (5, 5));
    assert_eq!(follower.written, []);
    let gone = &follower.discarded[..];
    let all = matches!(gone, [Discarded::Snapshot(_), Discarded::State(_)]);
    assert!(all, "{gone:?}");
}

#[test]
fn entries_behind_a_snapshot_that_came_meanwhile_stay() {
    let mut follower = Follower::new();
    follower.install(&snapshot(3), 0);
    let decoded = follower.decode();
    let entries = (1..=5).map(entry).collect();
    let request = Request::Append {
        prev: Position::ZERO,
        entries,
        commit: 1,
        round: 1,
    };
    follower.hear(1, request);
    assert_eq!(follower.node.commit(), 1);
    follower.decoded(decoded);
    assert_eq!((follower.applied(), follower.node.log().last().id), (3, 5));
    assert_eq!(follower.node.log().base().id, 3);
}

#[test]
fn a_newer_snapshot_is_gathered_meanwhile_and_decoded_after() {
    let mut follower = Follower::new();
    let (first, second) = (snapshot(3), snapshot(7));
    follower.install(&first, 0);
    let decoded = follower.decode();
    assert_eq!(follower.install(&second, 0), [installed(&second, false)]);
    assert!(follower.received.is_empty(), "one at a time");
    assert_eq!(follower.decoded(decoded), [installed(&first, true)]);
    assert_eq!(follower.applied(), 3);
    // The leader asks again: all of it is there.
    let end = second.1.len();
    assert_eq!(follower.install(&second, end), [installed(&second, false)]);
    let decoded = follower.decode();
    assert_eq!(follower.decoded(decoded), [installed(&second, true)]);
    assert_eq!(follower.applied(), 7);
    assert_eq!(follower.written, [first.0, second.0]);
}

#[test]
fn a_snapshot_of_an_earlier_term_is_taken_over_by_a_follower() {
    let mut follower = Follower::new();
    let sent = snapshot(5);
    follower.install(&sent, 0);
    let decoded = follower.decode();
    assert!(heard(&follower.heartbeat(2, 0)));
    assert_eq!(follower.node.term(), term(2));
    // Its sender leads no more.
    assert_eq!(follower.decoded(decoded), []);
    assert_eq!(follower.applied(), 5);
    assert_eq!(follower.written, [sent.0]);
}

#[test]
fn a_candidate_drops_a_snapshot() {
    let mut follower = Follower::new();
    follower.install(&snapshot(5), 0);
    let decoded = follower.decode();
    follower.act(|node| node.tick(at(60)));
    assert_eq!(follower.node.status(), Status::PreVoting);
    let before = follower.node.rank();
    assert_eq!(follower.decoded(decoded), []);
    assert_eq!((follower.applied(), follower.node.rank()), (0, before));
    assert_eq!(follower.written, []);
}

#[test]
fn a_snapshot_that_is_damaged_is_asked_for_from_its_first_byte() {
    let mut follower = Follower::new();
    let sent = snapshot(5);
    let mut damaged = sent.clone();
    *damaged.1.last_mut().expect("bytes") ^= 1;
    follower.install(&damaged, 0);
    let decoded = follower.decode();
    assert!(decoded.error().is_some());
    assert_eq!(follower.decoded(decoded), []);
    let again = Reply::Installed {
        last: sent.0,
        offset: 0,
        done: false,
        round: 1,
    };
    assert_eq!(follower.install(&sent, sent.1.len()), [again]);
    follower.install(&sent, 0);
    let decoded = follower.decode();
    assert_eq!(follower.decoded(decoded), [installed(&sent, true)]);
    // One that ends elsewhere than it says is none.
    let other = (Position::new(term(1), 8), snapshot(7).1);
    follower.install(&other, 0);
    let decoded = follower.decode();
    assert!(decoded.error().is_some());
    follower.decoded(decoded);
    assert_eq!(follower.applied(), 5);
}
