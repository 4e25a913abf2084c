//! How fast the replicated log's machine is by itself: three servers in
//! memory, on one core, no disk and no network, batches of 64 entries of 100
//! bytes, each proposed, sent, accepted, committed, applied three times and
//! answered. Also how many allocations an entry costs, all three servers and
//! the client together.
#![allow(clippy::print_stdout, clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::time::Instant as Clock;

use tenure_alpo::{
    Answer, ClientRequest, ClusterId, Command, Config, Identity, Input, Limits, Membership, Node,
    OpenSession, Operation, Outcome, Output, OwnershipProof, Position, Recovered, ServerId,
    Snapshot, State, StorageId,
};
use tenure_core::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now};

const BATCH: u64 = 64;
const BYTES: usize = 100;

struct Cluster {
    nodes: Vec<Node>,
    inputs: VecDeque<(usize, Input)>,
    answers: u64,
    session: Option<u64>,
    now: Now,
}

fn storage(id: &ServerId) -> StorageId {
    StorageId::from_u128(u128::from(id.get()))
}

impl Cluster {
    fn new() -> Self {
        let ids: Vec<_> = (1..=3).filter_map(ServerId::new).collect();
        let members = Membership::bootstrapped(ids.iter().map(|id| (*id, storage(id))));
        let bootstrapped = State::bootstrapped(limits(), ClockId::default(), members);
        let snapshot = Snapshot {
            last: Position::ZERO,
            bytes: bootstrapped.encode().into(),
        };
        let nodes = ids.iter().map(|id| {
            let identity = Identity {
                cluster: ClusterId::from_u128(1),
                server: *id,
                storage: storage(id),
            };
            let recovered = Recovered {
                snapshot: Some(snapshot.clone()),
                ..Recovered::default()
            };
            let rng = Rng::from_seed(id.get());
            let blank = bootstrapped.clone();
            let start = Instant::ZERO;
            Node::start(config(), identity, recovered, blank, rng, start).expect("a sound snapshot")
        });
        Self {
            nodes: nodes.collect(),
            inputs: VecDeque::new(),
            answers: 0,
            session: None,
            now: Now::default(),
        }
    }

    /// Does what server `index` asks for, at once.
    fn drain(&mut self, index: usize) {
        while let Some(output) = self.nodes[index].poll() {
            match output {
                Output::Persist(batch) => {
                    self.inputs
                        .push_back((index, Input::Persisted(batch.number)));
                }
                Output::EncodeSnapshot(copy) => {
                    let encoded = Input::SnapshotEncoded(copy.encode());
                    self.inputs.push_back((index, encoded));
                }
                Output::DecodeSnapshot(received) => {
                    let decoded = Input::SnapshotDecoded(Box::new(received.decode()));
                    self.inputs.push_back((index, decoded));
                }
                Output::Send { envelope, .. } => {
                    let to = envelope.to.get() as usize - 1;
                    let storage = storage(&envelope.from);
                    self.inputs
                        .push_back((to, Input::Received { envelope, storage }));
                }
                Output::Answer { answer, .. } => match answer {
                    Answer::Done(Outcome::Opened(session)) => self.session = Some(session),
                    Answer::Done(Outcome::Appended(_)) => self.answers += 1,
                    other => panic!("an answer of another kind: {other:?}"),
                },
                Output::Halt(fault) => panic!("{fault}"),
                Output::Applied { .. } | Output::Discard(_) | Output::Event(_) => {}
            }
        }
    }

    /// Until nobody has anything to do.
    fn settle(&mut self) {
        while let Some((index, input)) = self.inputs.pop_front() {
            self.nodes[index].handle(self.now, input);
            self.drain(index);
        }
    }

    fn elect(&mut self) {
        while !self.nodes[0].is_ready() {
            if let Some(deadline) = self.nodes[0].deadline() {
                self.now.boot = deadline;
            }
            self.nodes[0].tick(self.now);
            self.drain(0);
            self.settle();
        }
        let ttl = u64::MAX / 2;
        let request = ClientRequest::Open(OpenSession::unowned(ttl));
        self.nodes[0].handle(self.now, Input::ClientRequest { token: 0, request });
        self.drain(0);
        self.settle();
    }

    fn append(&mut self, first: u64, payload: &[u8]) {
        let session = self.session.expect("an open session");
        for serial in first..first + BATCH {
            let command = Command {
                session,
                serial,
                outstanding: first,
                operation: Operation::Append(payload.into()),
            };
            let request = ClientRequest::Command(command, OwnershipProof::NONE);
            let input = Input::ClientRequest {
                token: serial,
                request,
            };
            self.nodes[0].handle(self.now, input);
        }
        self.drain(0);
        self.settle();
    }
}

fn main() {
    let batches: u64 = std::env::args()
        .nth(1)
        .and_then(|batches| batches.parse().ok())
        .unwrap_or(20_000);
    let payload = vec![7; BYTES];
    let mut cluster = Cluster::new();
    cluster.elect();
    for round in 0..3 {
        let start = Clock::now();
        let before = cluster.answers;
        let spent = allocation_counter::measure(|| {
            for batch in 0..batches {
                let first = 1 + (round * batches + batch) * BATCH;
                cluster.append(first, &payload);
            }
        });
        let entries = cluster.answers - before;
        let seconds = start.elapsed().as_secs_f64();
        assert_eq!(entries, batches * BATCH, "every entry is answered");
        println!(
            "{entries} entries in {seconds:.2} s: {:.0} a second, {:.2} allocations and {:.0} bytes each",
            entries as f64 / seconds,
            spent.count_total as f64 / entries as f64,
            spent.bytes_total as f64 / entries as f64,
        );
    }
}

/// Settings as servers have them: with the processor's instruction for the
/// checksum of snapshots, where it has one.
fn config() -> Config {
    Config {
        checksum: crc32c::crc32c_append,
        ..Config::default()
    }
}

/// Limits as they are by default, but for a plain log of as many MiB as the
/// second argument says.
fn limits() -> Limits {
    let mebibytes: Option<u64> = std::env::args().nth(2).and_then(|arg| arg.parse().ok());
    let mut limits = Limits::default();
    if let Some(mebibytes) = mebibytes {
        limits.user_log_bytes = mebibytes << 20;
    }
    limits
}
