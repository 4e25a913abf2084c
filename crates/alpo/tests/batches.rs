//! Whatever comes in between two fetches of what a node wants done, each
//! batch it hands out follows from those before: a disk that checks every
//! record, as the real one does, takes all of them, and gives back the very
//! log that the node has in memory.

use std::time::Duration;

use tenure_alpo::{
    Batch, ClientRequest, ClusterId, ClusterVersion, Command, Config, Envelope, Identity, Input,
    Limits, Membership, Node, Operation, Output, OwnershipProof, Payload, Position, Recovered,
    ServerId, Snapshot, State, Status, StorageId,
};
use tenure_core::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

const SERVERS: usize = 3;

/// A disk that takes nothing which does not follow.
#[derive(Clone)]
struct Disk {
    held: Recovered,
    last: u64,
    /// Snapshots, resets, truncations.
    seen: [u64; 3],
}

impl Disk {
    fn write(&mut self, batch: Batch) {
        self.held.hard = batch.hard.unwrap_or(self.held.hard);
        if let Some(snapshot) = batch.snapshot {
            let at = snapshot.last.id;
            let newest = self.held.snapshot.as_ref().map_or(0, |s| s.last.id);
            assert!(at > newest, "a snapshot at {at} after one at {newest}");
            assert!(
                batch.reset || at <= self.last,
                "a snapshot at {at} of a log that ends at {}",
                self.last
            );
            self.held.entries.retain(|e| !batch.reset && e.id > at);
            self.last = if batch.reset { at } else { self.last };
            self.held.snapshot = Some(snapshot);
            self.seen[usize::from(batch.reset)] += 1;
        }
        if let Some(from) = batch.truncate {
            let newest = self.held.snapshot.as_ref().map_or(0, |s| s.last.id);
            assert!(from > newest, "truncation from {from} below {newest}");
            assert!(
                from - 1 <= self.last,
                "truncation from {from} on of a log that ends at {}",
                self.last
            );
            self.held.entries.retain(|e| e.id < from);
            self.last = from - 1;
            self.seen[2] += 1;
        }
        for entry in batch.entries {
            assert_eq!(entry.id, self.last + 1, "an entry that does not follow");
            self.last = entry.id;
            self.held.entries.push(entry);
        }
    }
}

struct World {
    rng: Rng,
    now: u64,
    nodes: Vec<Node>,
    disks: Vec<Disk>,
    /// Batches that were handed out and are not written, by server.
    waiting: Vec<Vec<Batch>>,
    messages: Vec<Envelope>,
    /// Nothing gets to this server or away from it.
    isolated: usize,
}

fn server(index: usize) -> ServerId {
    ServerId::new(index as u64 + 1).expect("not zero")
}

fn start(index: usize, held: Recovered, rng: Rng, now: u64) -> Node {
    let config = Config {
        election_timeout: Duration::from_millis(200),
        heartbeat: Duration::from_millis(20),
        snapshot_threshold_bytes: 600,
        kept_entries: 3,
        chunk_bytes: 100,
        append_bytes: 300,
        ..Config::default()
    };
    let identity = Identity {
        cluster: ClusterId::from_u128(1),
        server: server(index),
        storage: StorageId::from_u128(index as u128),
    };
    let blank = State::new(Limits::default(), ClockId::default());
    let now = Instant::from_nanos(now);
    Node::start(config, identity, held, blank, rng, now).expect("a good snapshot")
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let members = (0..SERVERS).map(|i| (server(i), StorageId::from_u128(i as u128)));
        let members = Membership::bootstrapped(members);
        let state = State::bootstrapped(Limits::default(), ClockId::default(), members);
        // A vote on disk names its disk from the beginning.
        let state = state.with_version(ClusterVersion::SECOND);
        let held = Recovered {
            snapshot: Some(Snapshot {
                last: Position::ZERO,
                bytes: state.encode().into(),
            }),
            ..Recovered::default()
        };
        let disk = Disk {
            held: held.clone(),
            last: 0,
            seen: [0; 3],
        };
        Self {
            nodes: (0..SERVERS)
                .map(|index| start(index, held.clone(), rng.fork(), 0))
                .collect(),
            rng,
            now: 0,
            disks: vec![disk; SERVERS],
            waiting: vec![Vec::new(); SERVERS],
            messages: Vec::new(),
            isolated: SERVERS,
        }
    }

    /// One thing happens to a server.
    fn happen(&mut self, index: usize) {
        let now = Now {
            boot: Instant::from_nanos(self.now),
            wall: WallTime::default(),
        };
        let node = &mut self.nodes[index];
        match self.rng.below(10) {
            0 if node.status() == Status::Leader => {
                let command = Command {
                    session: 99,
                    serial: 1,
                    outstanding: 1,
                    operation: Operation::Append(vec![7; 40].into()),
                };
                for token in 0..self.rng.between(1, 8) {
                    let request = ClientRequest::Command(command.clone(), OwnershipProof::NONE);
                    node.handle(now, Input::ClientRequest { token, request });
                }
            }
            0 | 1 => {
                if node.deadline().is_some_and(|due| due <= now.boot) {
                    node.tick(now);
                }
            }
            2 | 3 if !self.waiting[index].is_empty() => {
                let count = self.rng.between(1, self.waiting[index].len() as u64);
                let mut last = 0;
                for batch in self.waiting[index].drain(..count as usize) {
                    last = batch.number;
                    self.disks[index].write(batch);
                }
                node.handle(now, Input::Persisted(last));
            }
            _ => {
                let to = server(index);
                if let Some(at) = self.messages.iter().position(|m| m.to == to) {
                    let message = self.messages.remove(at);
                    let cut = [message.from, to]
                        .iter()
                        .any(|id| id.get() as usize == self.isolated + 1);
                    if !cut {
                        let from = message.from.get() as usize - 1;
                        let input = Input::Received {
                            envelope: message,
                            storage: StorageId::from_u128(from as u128),
                        };
                        node.handle(now, input);
                    }
                }
            }
        }
    }

    fn fetch(&mut self, index: usize) {
        while let Some(output) = self.nodes[index].poll() {
            match output {
                Output::Persist(batch) => self.waiting[index].push(batch),
                Output::EncodeSnapshot(copy) => {
                    let encoded = Input::SnapshotEncoded(copy.encode());
                    self.nodes[index].handle(Now::default(), encoded);
                }
                Output::DecodeSnapshot(received) => {
                    let decoded = Input::SnapshotDecoded(Box::new(received.decode()));
                    self.nodes[index].handle(Now::default(), decoded);
                }
                Output::Send { envelope, .. } => self.messages.push(envelope),
                Output::Halt(fault) => panic!("{fault}"),
                _ => {}
            }
        }
    }

    /// The process ends, and the next one reads what the disk has.
    fn restart(&mut self, index: usize) {
        self.waiting[index].clear();
        let held = self.disks[index].held.clone();
        self.nodes[index] = start(index, held, self.rng.fork(), self.now);
    }

    /// What the disk has is what the node has, once everything is written.
    fn compare_checksums(&mut self, index: usize) {
        self.fetch(index);
        for batch in self.waiting[index].drain(..) {
            self.disks[index].write(batch);
        }
        let held = &self.disks[index].held;
        let covered = held.snapshot.as_ref().map_or(0, |s| s.last.id);
        let log = self.nodes[index].log();
        let after: Vec<_> = log.iter().filter(|e| e.id > covered).cloned().collect();
        assert_eq!(held.entries, after);
        assert_eq!(held.hard, self.nodes[index].hard_state());
    }
}

#[test]
fn each_batch_follows_however_rarely_they_are_fetched() {
    let mut seen = [0; 3];
    let mut commands = 0;
    for seed in 0..300 {
        let mut world = World::new(seed);
        let patience = world.rng.between(1, 30);
        for step in 0..6_000 {
            let index = world.rng.below(SERVERS as u64) as usize;
            world.happen(index);
            if world.rng.below(patience) == 0 {
                world.fetch(index);
            }
            world.now += 1_000_000;
            if step % 400 == 0 {
                world.isolated = world.rng.below(SERVERS as u64 + 2) as usize;
            }
            if world.rng.below(1_500) == 0 {
                world.restart(index);
            }
        }
        for index in 0..SERVERS {
            world.compare_checksums(index);
            let log = world.nodes[index].log();
            commands += log
                .iter()
                .filter(|e| matches!(e.payload, Payload::Command(_)))
                .count();
            for (sum, count) in seen.iter_mut().zip(world.disks[index].seen) {
                *sum += count;
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
    assert!(commands > 500, "{commands}");
}
