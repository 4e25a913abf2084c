//! Elections where a sync takes longer than an election timeout.
//!
//! A vote is a sync, and so is a term: where syncs take as long as several
//! timeouts, candidates that stand by the clock of a fast disk take each
//! other's terms away for ever. Here time is simulated, messages take a
//! millisecond, and everything that waits for a disk goes with its next sync.
//! (Elections with fast disks, and with one that hangs, have golden scripts.)

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tenure_alpo::{
    Batch, ClientRequest, ClusterId, Config, Envelope, Identity, Input, Limits, Membership, Node,
    OpenSession, Output, Position, Recovered, ServerId, Snapshot, State, Status, StorageId,
};
use tenure_core::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

const TIMEOUT: Duration = Duration::from_millis(250);
const HOP: Duration = Duration::from_millis(1);
/// How often the waits are drawn anew, for each case.
const SEEDS: u64 = 50;

enum Due {
    Arrives(Envelope),
    /// The sync that a server was at, if it has not been started anew since.
    Synced(usize, u32),
}

struct Server {
    node: Option<Node>,
    /// How long its syncs take.
    sync: Duration,
    durable: Recovered,
    syncing: Vec<Batch>,
    waiting: Vec<Batch>,
    lives: u32,
}

struct Cluster {
    servers: Vec<Server>,
    blank: State,
    due: BTreeMap<(Duration, u64), Due>,
    now: Duration,
    count: u64,
    seed: u64,
    /// Servers read by their leases.
    leases: bool,
}

fn storage(id: ServerId) -> StorageId {
    StorageId::from_u128(u128::from(id.get()))
}

fn id_of(index: usize) -> ServerId {
    ServerId::new(index as u64 + 1).expect("not zero")
}

impl Cluster {
    /// Blank servers, one for each of these times that a sync takes.
    fn start(seed: u64, syncs: &[Duration]) -> Self {
        let founders = (0..syncs.len()).map(|index| (id_of(index), storage(id_of(index))));
        let members = Membership::bootstrapped(founders);
        let blank = State::bootstrapped(Limits::default(), ClockId::default(), members);
        let durable = Recovered {
            snapshot: Some(Snapshot {
                last: Position::ZERO,
                bytes: blank.encode().into(),
            }),
            ..Recovered::default()
        };
        let server = |sync: &Duration| Server {
            node: None,
            sync: *sync,
            durable: durable.clone(),
            syncing: Vec::new(),
            waiting: Vec::new(),
            lives: 0,
        };
        let mut cluster = Self {
            servers: syncs.iter().map(server).collect(),
            blank,
            due: BTreeMap::new(),
            now: Duration::ZERO,
            count: 0,
            seed,
            leases: false,
        };
        (0..syncs.len()).for_each(|index| cluster.restart(index));
        cluster
    }

    fn restart(&mut self, index: usize) {
        self.stop(index);
        let identity = Identity {
            cluster: ClusterId::from_u128(1),
            server: id_of(index),
            storage: storage(id_of(index)),
        };
        let config = Config {
            election_timeout: TIMEOUT,
            heartbeat: TIMEOUT / 10,
            lease_reads: self.leases,
            fast_detection: !self.leases,
            ..Config::default()
        };
        let now = self.at().boot;
        let server = &mut self.servers[index];
        let seed = self.seed * 1_000 + u64::from(server.lives) * 10 + index as u64;
        let rng = Rng::from_seed(seed);
        let (disk, blank) = (server.durable.clone(), self.blank.clone());
        let node = Node::start(config, identity, disk, blank, rng, now);
        server.node = Some(node.expect("a good snapshot"));
    }

    /// It dies, and what was not synced is lost.
    fn stop(&mut self, index: usize) {
        let server = &mut self.servers[index];
        server.node = None;
        server.lives += 1;
        server.syncing.clear();
        server.waiting.clear();
    }

    fn at(&self) -> Now {
        let nanos = u64::try_from(self.now.as_nanos()).expect("a short test");
        Now {
            boot: Instant::from_nanos(nanos),
            wall: WallTime::default(),
        }
    }

    fn later(&mut self, span: Duration, due: Due) {
        self.count += 1;
        self.due.insert((self.now + span, self.count), due);
    }

    fn step(&mut self, index: usize, input: Option<Input>) {
        let now = self.at();
        let server = &mut self.servers[index];
        let Some(node) = &mut server.node else {
            return;
        };
        match input {
            Some(input) => node.handle(now, input),
            None => node.tick(now),
        }
        let mut sent = VecDeque::new();
        while let Some(output) = node.poll() {
            match output {
                Output::Persist(batch) => server.waiting.push(batch),
                Output::Send { envelope, .. } => sent.push_back(envelope),
                Output::Halt(fault) => panic!("{fault}"),
                Output::EncodeSnapshot(copy) => {
                    node.handle(now, Input::SnapshotEncoded(copy.encode()));
                }
                Output::DecodeSnapshot(received) => {
                    let decoded = Box::new(received.decode());
                    node.handle(now, Input::SnapshotDecoded(decoded));
                }
                Output::Answer { .. }
                | Output::Applied { .. }
                | Output::Event(_)
                | Output::Discard(_) => {}
            }
        }
        for envelope in sent {
            self.later(HOP, Due::Arrives(envelope));
        }
        self.sync(index);
    }

    /// Begins a sync of all that waits, if none is under way.
    fn sync(&mut self, index: usize) {
        let server = &mut self.servers[index];
        if server.syncing.is_empty() && !server.waiting.is_empty() {
            server.syncing = std::mem::take(&mut server.waiting);
            let (sync, lives) = (server.sync, server.lives);
            self.later(sync, Due::Synced(index, lives));
        }
    }

    fn synced(&mut self, index: usize, lives: u32) {
        let server = &mut self.servers[index];
        if server.lives != lives {
            return;
        }
        let mut last = None;
        for batch in server.syncing.drain(..) {
            last = Some(batch.number);
            let disk = &mut server.durable;
            disk.hard = batch.hard.unwrap_or(disk.hard);
            if let Some(first) = batch.truncate {
                disk.entries.retain(|entry| entry.id < first);
            }
            disk.entries.extend(batch.entries);
            assert!(batch.snapshot.is_none(), "too short for one");
        }
        self.sync(index);
        self.step(index, last.map(Input::Persisted));
    }

    /// The next thing that happens, before `end`.
    fn advance(&mut self, end: Duration) -> bool {
        let timers = self.servers.iter().enumerate().filter_map(|(index, it)| {
            let deadline = it.node.as_ref()?.deadline()?;
            Some((deadline.since(Instant::ZERO).max(self.now), index))
        });
        let timer = timers.min();
        let due = self.due.first_key_value().map(|((at, _), _)| *at);
        let next = timer.map(|(at, _)| at).into_iter().chain(due).min();
        let Some(next) = next.filter(|next| *next < end) else {
            self.now = end;
            return false;
        };
        self.now = next;
        if due == Some(next) {
            match self.due.pop_first().expect("it is due").1 {
                Due::Synced(index, lives) => self.synced(index, lives),
                Due::Arrives(envelope) => {
                    let storage = storage(envelope.from);
                    let to = usize::try_from(envelope.to.get()).expect("a few") - 1;
                    self.step(to, Some(Input::Received { envelope, storage }));
                }
            }
        } else if let Some((_, index)) = timer {
            self.step(index, None);
        }
        true
    }

    fn ready(&self) -> Option<usize> {
        let ready = |it: &Server| it.node.as_ref().is_some_and(Node::is_ready);
        self.servers.iter().position(ready)
    }

    /// How long it takes until somebody leads and has committed its first
    /// entry, and who; `None` if that takes longer than `most`.
    fn elect(&mut self, most: Duration) -> Option<(usize, Duration)> {
        let begun = self.now;
        while self.ready().is_none() {
            if !self.advance(begun + most) {
                return None;
            }
        }
        Some((self.ready()?, self.now - begun))
    }

    /// Nobody else takes the lead for so long.
    fn keeps_leading(&mut self, leader: usize, span: Duration) -> bool {
        let end = self.now + span;
        while self.advance(end) {
            let node = self.servers[leader].node.as_ref();
            if node.is_none_or(|node| node.status() != Status::Leader) {
                return false;
            }
        }
        true
    }
}

/// What happens before the election that is measured.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    /// All servers of a cluster that was led are started again at once.
    Restart,
    /// The leader dies.
    Death,
}

/// Elects with these syncs, given in quarters of a timeout, over many seeds.
/// Somebody must lead within so many of the longest sync (of a timeout, if
/// that is longer), and keep the lead.
fn all_elect(quarters: &[u32], most: u32, cases: &[Before]) {
    let syncs: Vec<_> = quarters.iter().map(|it| TIMEOUT / 4 * *it).collect();
    let unit = syncs.iter().copied().fold(TIMEOUT, Duration::max);
    for before in cases {
        for seed in 0..SEEDS {
            let case = format!("syncs {syncs:?}, before it {before:?}, seed {seed}");
            let mut cluster = Cluster::start(seed, &syncs);
            if !matches!(before, Before::Nothing) {
                let first = cluster.elect(unit * most);
                let (leader, _) = first.unwrap_or_else(|| panic!("nobody leads: {case}"));
                assert!(
                    cluster.keeps_leading(leader, unit * 3),
                    "it does not lead: {case}"
                );
                match before {
                    Before::Death => cluster.stop(leader),
                    _ => (0..syncs.len()).for_each(|index| cluster.restart(index)),
                }
            }
            let elected = cluster.elect(unit * most);
            let (leader, _) = elected.unwrap_or_else(|| panic!("nobody leads: {case}"));
            assert!(
                cluster.keeps_leading(leader, unit * 10),
                "it does not lead: {case}"
            );
        }
    }
}

const ALL: [Before; 3] = [Before::Nothing, Before::Restart, Before::Death];

/// At best it is four: a vote of each candidate for itself, another once all
/// but one have stepped back, the vote of a second, and the first entry.
#[test]
fn where_all_syncs_take_long_somebody_leads_after_a_few() {
    for quarters in [4, 5, 8, 16, 32, 48, 64] {
        all_elect(&[quarters; 3], 10, &ALL);
        all_elect(&[quarters; 5], 10, &ALL);
    }
    for quarters in [8, 32] {
        all_elect(&[quarters; 2], 10, &[Before::Nothing, Before::Restart]);
    }
}

/// Whose own disk is fast learns of the others' from candidacies in vain.
#[test]
fn where_only_some_disks_are_slow_somebody_leads() {
    for slow in [8, 16, 32] {
        all_elect(&[0, slow, slow], 20, &ALL);
        all_elect(&[slow, slow, 0], 20, &ALL);
        all_elect(&[slow, slow / 4, slow / 2], 20, &ALL);
        all_elect(&[slow / 4, slow / 2, slow], 20, &ALL);
        all_elect(&[slow, slow, slow, 0, 0], 20, &ALL);
        all_elect(&[0, 0, slow, slow, slow], 20, &ALL);
    }
}

/// What slow disks need costs fast ones nothing: the first to stand wins.
#[test]
fn where_disks_are_fast_nobody_waits_longer_than_its_patience() {
    let fast = [TIMEOUT / 250; 3];
    for seed in 0..SEEDS {
        let mut cluster = Cluster::start(seed, &fast);
        let (leader, took) = cluster.elect(TIMEOUT * 3).expect("elected");
        assert!(took < TIMEOUT * 21 / 10, "{took:?}, seed {seed}");
        assert!(cluster.keeps_leading(leader, TIMEOUT * 10), "seed {seed}");
        cluster.stop(leader);
        let (_, took) = cluster.elect(TIMEOUT * 3).expect("elected");
        assert!(took < TIMEOUT * 22 / 10, "{took:?}, seed {seed}");
    }
}

/// A stall that is over says nothing of the next sync: a server whose process
/// was stopped while a sync was under way leads soon after it has gone on. Seed
/// 1795447500654008 of the cluster simulator.
#[test]
fn a_stall_that_is_over_is_not_waited_for_again() {
    for seed in 0..SEEDS {
        let mut cluster = Cluster::start(seed, &[TIMEOUT / 250]);
        // Such a leader gives up a lease that it could not renew in time.
        cluster.leases = true;
        cluster.restart(0);
        cluster.elect(TIMEOUT * 3).expect("elected");
        let request = ClientRequest::Open(OpenSession::unowned(1_000_000_000));
        cluster.step(0, Some(Input::ClientRequest { token: 1, request }));
        cluster.now += TIMEOUT * 60;
        // It looks at the clock before it hears of its disk.
        cluster.step(0, None);
        assert_eq!(cluster.ready(), None, "it leads as if nothing had been");
        let (_, took) = cluster.elect(TIMEOUT * 60).expect("elected");
        assert!(took < TIMEOUT * 3, "{took:?}, seed {seed}");
    }
}
