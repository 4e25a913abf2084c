//! A client that floods the log keeps no other waiting.
//!
//! Three servers; all that the leader sends goes over one link of 100 Mbit/s,
//! and each disk takes a millisecond. Time passes in steps of a millisecond.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tenure_alpo::{
    Answer, Body, ClientRequest, ClusterId, ClusterVersion, Command, Config, Entry, Envelope,
    Identity, Input, Limits, Membership, Node, OpenSession, Operation, Outcome, Output,
    OwnershipProof, Position, Recovered, Refusal, Request, ServerId, SessionOpener, SessionOwner,
    Snapshot, State, StorageId,
};
use tenure_core::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

/// Bytes that the link carries in a millisecond.
const RATE: usize = 12_500;
/// When it begins, in milliseconds.
const START: u64 = 5_000;
const PROOF: OwnershipProof = OwnershipProof::of_secret([7; 16]);
const HOUR: Duration = Duration::from_secs(3_600);

struct Cluster {
    /// The first one leads.
    nodes: Vec<Node>,
    /// In milliseconds.
    now: u64,
    /// What waits for the leader's link, with the bytes that are left of it.
    link: VecDeque<(usize, Envelope)>,
    /// What arrives, or is on a disk, at the next step.
    soon: Vec<(usize, Input)>,
    asked: BTreeMap<u64, u64>,
    /// What was answered at this step: the token, how long it took, and with what.
    answered: Vec<(u64, u64, Answer)>,
    token: u64,
}

impl Cluster {
    fn start() -> Self {
        let ids = || (1..=3).filter_map(ServerId::new);
        let founders = ids().map(|id| (id, storage(id)));
        let members = Membership::bootstrapped(founders);
        let blank = State::bootstrapped(Limits::default(), ClockId::default(), members);
        let node = |id: ServerId| {
            let identity = Identity {
                cluster: ClusterId::from_u128(1),
                server: id,
                storage: storage(id),
            };
            let recovered = Recovered {
                snapshot: Some(Snapshot {
                    last: Position::ZERO,
                    bytes: blank.encode().into(),
                }),
                ..Recovered::default()
            };
            let rng = Rng::from_seed(id.get());
            // The first one's clock has run for so long that it stands at once.
            let since = if id.get() == 1 { 0 } else { START };
            let start = Instant::from_nanos(since * 1_000_000);
            let config = Config::default();
            Node::start(config, identity, recovered, blank.clone(), rng, start).expect("a server")
        };
        let mut cluster = Self {
            nodes: ids().map(node).collect(),
            now: START,
            link: VecDeque::new(),
            soon: Vec::new(),
            asked: BTreeMap::new(),
            answered: Vec::new(),
            token: 0,
        };
        while cluster.nodes[0].state().version() < ClusterVersion::SECOND {
            assert!(cluster.now < 2 * START, "no leader");
            cluster.step();
        }
        cluster
    }

    fn at(&self) -> Now {
        Now {
            boot: Instant::from_nanos(self.now * 1_000_000),
            wall: WallTime::default(),
        }
    }

    fn submit(&mut self, request: ClientRequest) -> u64 {
        self.token += 1;
        let (now, token) = (self.at(), self.token);
        self.asked.insert(token, self.now);
        self.nodes[0].handle(now, Input::ClientRequest { token, request });
        token
    }

    /// A millisecond passes.
    fn step(&mut self) {
        self.now += 1;
        self.answered.clear();
        let now = self.at();
        for (to, input) in std::mem::take(&mut self.soon) {
            self.nodes[to].handle(now, input);
        }
        let mut rate = RATE;
        while let Some((left, _)) = self.link.front_mut() {
            let sent = rate.min(*left);
            (rate, *left) = (rate - sent, *left - sent);
            if *left > 0 {
                break;
            }
            let (_, envelope) = self.link.pop_front().expect("the first one");
            self.deliver(envelope);
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].deadline() <= Some(now.boot) {
                self.nodes[index].tick(now);
            }
            while let Some(output) = self.nodes[index].poll() {
                self.perform(index, output);
            }
        }
    }

    fn deliver(&mut self, envelope: Envelope) {
        let index = |id: ServerId| usize::try_from(id.get()).expect("a few") - 1;
        let (to, storage) = (index(envelope.to), storage(envelope.from));
        self.soon.push((to, Input::Received { envelope, storage }));
    }

    fn perform(&mut self, index: usize, output: Output) {
        match output {
            Output::Persist(batch) => self.soon.push((index, Input::Persisted(batch.number))),
            Output::EncodeSnapshot(copy) => {
                let encoded = Input::SnapshotEncoded(copy.encode());
                self.soon.push((index, encoded));
            }
            Output::DecodeSnapshot(received) => {
                let decoded = Input::SnapshotDecoded(Box::new(received.decode()));
                self.soon.push((index, decoded));
            }
            Output::Send { envelope, .. } if index == 0 => {
                let bytes = match &envelope.body {
                    Body::Request {
                        request: Request::Append { entries, .. },
                        ..
                    } => entries.iter().map(Entry::weight).sum(),
                    _ => 0,
                };
                self.link.push_back((bytes + 100, envelope));
            }
            Output::Send { envelope, .. } => self.deliver(envelope),
            Output::Answer { token, answer } => {
                let took = self.now - self.asked.remove(&token).expect("it was asked");
                self.answered.push((token, took, answer));
            }
            Output::Event(_) | Output::Applied { .. } | Output::Discard(_) => {}
            Output::Halt(fault) => panic!("{fault}"),
        }
    }

    fn open(&mut self, opener: SessionOpener) -> u64 {
        self.open_for(HOUR, opener)
    }

    fn open_for(&mut self, ttl: Duration, opener: SessionOpener) -> u64 {
        let mut opening = OpenSession::unowned(u64::try_from(ttl.as_nanos()).expect("short"));
        opening.owner = SessionOwner {
            secret: PROOF.secret,
            opener,
        };
        let token = self.submit(ClientRequest::Open(opening));
        loop {
            self.step();
            match self
                .answered
                .iter()
                .find(|(answered, ..)| *answered == token)
            {
                Some((.., Answer::Done(Outcome::Opened(session)))) => return *session,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }

    fn append(&mut self, session: u64, serial: u64, bytes: usize) -> u64 {
        let command = Command {
            session,
            serial,
            outstanding: serial.saturating_sub(500).max(1),
            operation: Operation::Append(vec![0; bytes].into()),
        };
        self.submit(ClientRequest::Command(command, PROOF))
    }
}

fn storage(id: ServerId) -> StorageId {
    StorageId::from_u128(u128::from(id.get()))
}

/// A session that keeps so many appends under way, each of so many bytes.
struct Flood {
    session: u64,
    serial: u64,
    bytes: usize,
    under_way: VecDeque<u64>,
}

impl Flood {
    fn new(cluster: &mut Cluster, opener: SessionOpener, bytes: usize) -> Self {
        Self {
            session: cluster.open(opener),
            serial: 0,
            bytes,
            under_way: VecDeque::new(),
        }
    }

    /// Keeps 16 MB under way; gives how many were done, in their order.
    fn go_on(&mut self, cluster: &mut Cluster) -> usize {
        let mut done = 0;
        for (token, _, answer) in &cluster.answered {
            if self
                .under_way
                .pop_front_if(|first| first == token)
                .is_some()
            {
                assert!(
                    matches!(answer, Answer::Done(Outcome::Appended(_))),
                    "{answer:?}"
                );
                done += 1;
            } else {
                assert!(
                    !self.under_way.contains(token),
                    "{answer:?} before its turn"
                );
            }
        }
        while self.under_way.len() * self.bytes < 16_000_000 && self.under_way.len() < 500 {
            self.serial += 1;
            let token = cluster.append(self.session, self.serial, self.bytes);
            self.under_way.push_back(token);
        }
        done
    }
}

/// How long small writes of others take at most, in milliseconds, beside one
/// that keeps 16 MB of appends of so many bytes under way; and how many of 100
/// bytes that the link carries are of its appends.
fn beside_a_flood(bytes: usize, opener: SessionOpener) -> (u64, usize) {
    const SECONDS: usize = 10;
    let mut cluster = Cluster::start();
    let flooding = SessionOpener::Token([1; 16]);
    let mut flood = Flood::new(&mut cluster, flooding, bytes);
    let other = cluster.open(opener);
    let (mut done, mut slowest, mut serial, mut waits) = (0, 0, 0, None);
    for milli in 0..SECONDS * 1_000 {
        done += flood.go_on(&mut cluster);
        if milli % 50 == 0 && waits.is_none() {
            serial += 1;
            waits = Some(cluster.append(other, serial, 100));
        }
        cluster.step();
        for (token, took, answer) in &cluster.answered {
            if waits == Some(*token) {
                assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
                slowest = slowest.max(*took);
                waits = None;
            }
        }
    }
    assert_eq!(
        waits
            .map(|token| cluster.now - cluster.asked[&token])
            .filter(|it| *it > 500),
        None
    );
    // Two followers share the link.
    let share = done * bytes * 2 * 100 / (RATE * SECONDS * 1_000);
    (slowest, share)
}

#[test]
fn small_writes_of_others_wait_for_a_part_of_a_second_beside_a_flood() {
    let others = [SessionOpener::Token([2; 16]), SessionOpener::Token([1; 16])];
    for opener in others {
        for bytes in [1_000_000, 250_000, 40_000] {
            let (slowest, share) = beside_a_flood(bytes, opener);
            assert!(slowest < 500, "{bytes}: {slowest} ms");
            assert!(share > 80, "{bytes}: {share} of 100 bytes were used");
        }
    }
}

/// 40 sessions of one caller, each with a request of a megabyte: all of them
/// have their turn within seven seconds, and live for two without one.
#[test]
fn a_session_does_not_expire_while_its_request_waits_for_its_turn() {
    let mut cluster = Cluster::start();
    let opener = SessionOpener::Token([1; 16]);
    let live = Duration::from_secs(2);
    let sessions: Vec<u64> = (0..40).map(|_| cluster.open_for(live, opener)).collect();
    let submit = |cluster: &mut Cluster, session| cluster.append(session, 1, 1_000_000);
    let mut waits: Vec<u64> = sessions
        .iter()
        .map(|it| submit(&mut cluster, *it))
        .collect();
    let begun = cluster.now;
    while !waits.is_empty() {
        cluster.step();
        assert!(cluster.now < begun + 20_000, "{} wait", waits.len());
        for (token, took, answer) in &cluster.answered {
            assert!(
                matches!(answer, Answer::Done(Outcome::Appended(_))),
                "{answer:?} after {took} ms"
            );
            waits.retain(|it| it != token);
        }
    }
    assert!(
        cluster.now > begun + 5_000,
        "they waited for longer than they live"
    );
    // Nothing of them waits any more: they end.
    let ends = cluster.now + 3_000;
    while cluster.now < ends {
        cluster.step();
    }
    let token = cluster.append(sessions[0], 2, 10);
    while !cluster.answered.iter().any(|(it, ..)| *it == token) {
        cluster.step();
    }
    let (.., answer) = &cluster.answered[0];
    assert_eq!(*answer, Answer::Done(Outcome::SessionExpired));
}

/// What is known already is told at once, even behind what its session has
/// asked for; and nobody's requests wait in a session that is not theirs.
#[test]
fn what_needs_no_entry_waits_for_no_turn() {
    let mut cluster = Cluster::start();
    let session = cluster.open(SessionOpener::Token([1; 16]));
    let first = cluster.append(session, 1, 100);
    while !cluster.answered.iter().any(|(it, ..)| *it == first) {
        cluster.step();
    }
    for serial in 2..40 {
        cluster.append(session, serial, 1_000_000);
    }
    let again = cluster.append(session, 1, 100);
    let foreign = Command {
        session,
        serial: 40,
        outstanding: 1,
        operation: Operation::KeepAlive,
    };
    let proof = OwnershipProof::of_secret([8; 16]);
    let foreign = cluster.submit(ClientRequest::Command(foreign, proof));
    cluster.step();
    let told: BTreeMap<_, _> = cluster
        .answered
        .iter()
        .map(|(it, _, answer)| (*it, answer))
        .collect();
    assert!(
        matches!(told.get(&again), Some(Answer::Done(Outcome::Appended(_)))),
        "{told:?}"
    );
    assert_eq!(
        told.get(&foreign),
        Some(&&Answer::Refused(Refusal::NotOwner))
    );
}
