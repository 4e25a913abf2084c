//! Servers whose network is slow and in order.

use std::collections::VecDeque;
use std::sync::Weak;

use tenure_alpo::{
    Answer, Body, ClientRequest, ClusterId, Command, Config, Envelope, Event, Identity, Input,
    Limits, Membership, Node, OpenSession, Operation, Outcome, Output, OwnershipProof, Position,
    Recovered, Request, ServerId, State, StorageId,
};
use tenure_core::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

pub(crate) struct Far {
    config: Config,
    limits: Limits,
    pub(crate) now: u64,
    pub(crate) delay: u64,
    pub(crate) nodes: Vec<Node>,
    under_way: VecDeque<(u64, Envelope)>,
    /// Nothing reaches these servers.
    pub(crate) cut: Vec<usize>,
    /// Chunks that were sent, and bytes in them.
    pub(crate) chunks: usize,
    pub(crate) chunk_bytes: usize,
    /// What the links to each server carry in a millisecond, and until when
    /// they are busy, in microseconds.
    pub(crate) carries: Vec<u64>,
    busy: Vec<u64>,
    /// The longest that a heartbeat was on its way, in milliseconds.
    pub(crate) slowest: u64,
    /// Which server took over a snapshot, and where that ends.
    pub(crate) installed: Vec<(usize, Position)>,
    /// The memory of the snapshots that each server wrote.
    written: Vec<Vec<Weak<Vec<u8>>>>,
    /// The session that was opened last.
    pub(crate) session: u64,
    serial: u64,
    /// Bytes that are to be appended.
    credit: u64,
    token: u64,
}

fn id(index: usize) -> ServerId {
    ServerId::new(index as u64 + 1).expect("not zero")
}

pub(crate) fn storage(index: usize) -> StorageId {
    StorageId::from_u128(index as u128 + 1)
}

impl Far {
    pub(crate) fn new(config: &Config) -> Self {
        Self::found(config, Limits::default(), 3)
    }

    pub(crate) fn found(config: &Config, limits: Limits, count: usize) -> Self {
        let mut far = Self {
            config: config.clone(),
            limits,
            now: 0,
            delay: 1,
            nodes: Vec::new(),
            under_way: VecDeque::new(),
            cut: Vec::new(),
            chunks: 0,
            chunk_bytes: 0,
            carries: Vec::new(),
            busy: Vec::new(),
            slowest: 0,
            installed: Vec::new(),
            written: Vec::new(),
            session: 0,
            serial: 0,
            credit: 0,
            token: 0,
        };
        let founders = (0..count).map(|index| (id(index), storage(index)));
        let members = Membership::bootstrapped(founders);
        let blank = State::bootstrapped(limits, ClockId::default(), members);
        for _ in 0..count {
            far.add(blank.clone());
        }
        far
    }

    /// One more server, which no other knows.
    pub(crate) fn add_stranger(&mut self) -> usize {
        self.add(State::new(self.limits, ClockId::default()));
        self.nodes.len() - 1
    }

    fn add(&mut self, blank: State) {
        let node = self.node(self.nodes.len(), blank);
        self.nodes.push(node);
        self.carries.push(u64::MAX);
        self.busy.push(0);
        self.written.push(Vec::new());
    }

    /// The process of a server that knows nothing yet.
    fn node(&self, index: usize, blank: State) -> Node {
        let identity = Identity {
            cluster: ClusterId::from_u128(1),
            server: id(index),
            storage: storage(index),
        };
        let rng = Rng::from_seed(index as u64 + 1);
        let (config, recovered) = (self.config.clone(), Recovered::default());
        Node::start(config, identity, recovered, blank, rng, self.at().boot).expect("no snapshot")
    }

    /// The stranger is started again, before anything was on its disk.
    pub(crate) fn restart_stranger(&mut self, index: usize) {
        self.nodes[index] = self.node(index, State::new(self.limits, ClockId::default()));
    }

    fn at(&self) -> Now {
        Now {
            boot: Instant::from_nanos(self.now * 1_000_000),
            wall: WallTime::default(),
        }
    }

    pub(crate) fn step(&mut self, index: usize, act: impl FnOnce(&mut Node, Now)) {
        let now = self.at();
        let node = &mut self.nodes[index];
        act(node, now);
        let mut sent = Vec::new();
        while let Some(output) = node.poll() {
            match output {
                Output::Persist(batch) => {
                    let written = batch.snapshot.iter();
                    let written = written.map(|it| std::sync::Arc::downgrade(&it.bytes));
                    self.written[index].extend(written);
                    node.handle(now, Input::Persisted(batch.number));
                }
                Output::EncodeSnapshot(copy) => {
                    node.handle(now, Input::SnapshotEncoded(copy.encode()));
                }
                Output::DecodeSnapshot(received) => {
                    let decoded = Box::new(received.decode());
                    node.handle(now, Input::SnapshotDecoded(decoded));
                }
                Output::Send { envelope, .. } => {
                    if let Body::Request {
                        request: Request::Install { bytes, .. },
                        ..
                    } = &envelope.body
                    {
                        self.chunks += 1;
                        self.chunk_bytes += bytes.len();
                    }
                    sent.push(envelope);
                }
                Output::Answer {
                    answer: Answer::Done(Outcome::Opened(session)),
                    ..
                } => (self.session, self.serial) = (session, 0),
                Output::Event(Event::Installed { upto }) => self.installed.push((index, upto)),
                Output::Halt(fault) => panic!("{fault}"),
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
        let to = envelope.to.get() as usize - 1;
        let Some(busy) = self.busy.get_mut(to) else {
            return 0;
        };
        *busy = (*busy).max(self.now * 1_000) + bytes * 1_000 / self.carries[to];
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

    pub(crate) fn run(&mut self, ms: u64) {
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
                if to < self.nodes.len() && !self.cut.contains(&to) {
                    let storage = storage(envelope.from.get() as usize - 1);
                    let input = Input::Received { envelope, storage };
                    self.step(to, |node, now| node.handle(now, input));
                }
            }
            for index in 0..self.nodes.len() {
                let now = self.at().boot;
                if self.nodes[index].deadline().is_some_and(|due| due <= now) {
                    self.step(index, Node::tick);
                }
            }
        }
    }

    /// The server that leads, by its own word, and is heard.
    pub(crate) fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|it| self.nodes[*it].is_ready() && !self.cut.contains(it))
    }

    pub(crate) fn request(&mut self, index: usize, request: ClientRequest) {
        self.token += 1;
        let token = self.token;
        let input = Input::ClientRequest { token, request };
        self.step(index, |node, now| node.handle(now, input));
    }

    /// Opens a session with the server that leads.
    pub(crate) fn open(&mut self) {
        let leader = self.leader().expect("a leader");
        self.session = 0;
        let open = ClientRequest::Open(OpenSession::unowned(u64::MAX));
        self.request(leader, open);
        while self.session == 0 {
            self.run(1);
        }
    }

    /// Clients append so many bytes a millisecond for as many milliseconds, in
    /// entries of so many.
    pub(crate) fn append(&mut self, ms: u64, bytes_a_milli: u64, entry: u64) {
        for _ in 0..ms {
            self.run(1);
            self.credit += bytes_a_milli;
            while self.credit >= entry {
                self.credit -= entry;
                self.serial += 1;
                let data = vec![7; entry as usize - 72];
                let command = Command {
                    session: self.session,
                    serial: self.serial,
                    outstanding: self.serial.saturating_sub(200).max(1),
                    operation: Operation::Append(data.into()),
                };
                let leader = self.leader().expect("a leader");
                self.request(
                    leader,
                    ClientRequest::Command(command, OwnershipProof::NONE),
                );
            }
        }
    }

    /// How many of the snapshots that a server wrote are still in memory.
    pub(crate) fn snapshots(&self, index: usize) -> usize {
        let written = self.written[index].iter();
        written.filter(|it| it.strong_count() > 0).count()
    }

    /// Bytes of log in the memory of a server.
    pub(crate) fn log_bytes(&self, index: usize) -> usize {
        self.nodes[index].log().bytes()
    }

    /// How many entries this server has not applied that the leader has.
    pub(crate) fn lag(&self, index: usize) -> u64 {
        let leader = self.leader().expect("a leader");
        let applied = |index: usize| self.nodes[index].state().applied().id;
        applied(leader) - applied(index)
    }
}
