//! A few servers whose network and disks take no time and lose nothing.

use std::time::Duration;

use tenure_alpo::{
    Answer, Body, ClientRequest, ClusterId, Config, Event, Fault, Identity, Input, Limits,
    Membership, Node, Output, Position, Recovered, Refusal, Request, ServerId, Snapshot, State,
    StorageId,
};
use tenure_core::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

pub(crate) struct Servers {
    pub(crate) nodes: Vec<Node>,
    pub(crate) events: Vec<(ServerId, Event)>,
    pub(crate) answers: Vec<Answer>,
    /// How often registers were written by what a server applied at once.
    pub(crate) writes: Vec<(usize, u64)>,
    revisions: Vec<u64>,
    disks: Vec<Recovered>,
    blanks: Vec<State>,
    cut_off: Option<usize>,
    starved: Option<usize>,
    now: Duration,
    token: u64,
}

impl Servers {
    /// One server for each of these; all of them vote.
    pub(crate) fn start(each: &[(Config, Limits)]) -> Self {
        let ids = || (1..=each.len() as u64).filter_map(ServerId::new);
        let founders = ids().map(|id| (id, storage(id)));
        let members = Membership::bootstrapped(founders);
        let mut servers = Self {
            nodes: Vec::new(),
            events: Vec::new(),
            answers: Vec::new(),
            writes: Vec::new(),
            revisions: vec![0; each.len()],
            disks: Vec::new(),
            blanks: Vec::new(),
            cut_off: None,
            starved: None,
            now: Duration::ZERO,
            token: 0,
        };
        for (id, (config, limits)) in ids().zip(each) {
            let blank = State::bootstrapped(*limits, ClockId::default(), members.clone());
            let recovered = Recovered {
                snapshot: Some(Snapshot {
                    last: Position::ZERO,
                    bytes: blank.encode().into(),
                }),
                ..Recovered::default()
            };
            servers.disks.push(recovered.clone());
            servers.blanks.push(blank.clone());
            let node = servers.node(id, config.clone(), recovered, blank);
            servers.nodes.push(node);
        }
        servers
    }

    fn node(&self, id: ServerId, config: Config, disk: Recovered, blank: State) -> Node {
        let identity = Identity {
            cluster: ClusterId::from_u128(1),
            server: id,
            storage: storage(id),
        };
        let rng = Rng::from_seed(id.get());
        let now = self.at().boot;
        Node::start(config, identity, disk, blank, rng, now).expect("a good snapshot")
    }

    /// Starts a server again, from its disk, as another release.
    pub(crate) fn restart(&mut self, index: usize, config: Config) {
        let id = self.nodes[index].id();
        let (disk, blank) = (self.disks[index].clone(), self.blanks[index].clone());
        self.nodes[index] = self.node(id, config, disk, blank);
        self.settle();
    }

    /// What is on its disk.
    pub(crate) fn disk(&self, index: usize) -> Recovered {
        self.disks[index].clone()
    }

    /// It is started again on what was on its disk once.
    pub(crate) fn set_back(&mut self, index: usize, disk: Recovered, config: Config) {
        self.disks[index] = disk;
        self.restart(index, config);
    }

    /// This one's clock alone runs until it leads.
    pub(crate) fn elect(&mut self, index: usize) {
        self.now += Duration::from_secs(5);
        let now = self.at();
        self.nodes[index].tick(now);
        self.settle();
        assert!(self.nodes[index].is_ready(), "{:?}", self.nodes[index]);
    }

    /// Time passes, a heartbeat at a time.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(100);
            let now = self.at();
            self.nodes.iter_mut().for_each(|node| node.tick(now));
            self.settle();
        }
    }

    /// Time passes, and no server runs: a machine that all of them share
    /// slept.
    pub(crate) fn sleep(&mut self, time: Duration) {
        self.now += time;
    }

    pub(crate) fn submit(&mut self, index: usize, request: ClientRequest) {
        self.token += 1;
        let (now, token) = (self.at(), self.token);
        self.nodes[index].handle(now, Input::ClientRequest { token, request });
        self.settle();
    }

    /// Nothing reaches it and nothing leaves it; `None`: everything goes
    /// everywhere.
    pub(crate) fn cut_off(&mut self, index: Option<usize>) {
        self.cut_off = index;
    }

    /// It answers, but no entries reach it; `None`: they reach all.
    pub(crate) fn starve(&mut self, index: Option<usize>) {
        self.starved = index;
    }

    pub(crate) fn fault(&self, index: usize) -> Option<&Fault> {
        self.nodes[index].fault()
    }

    pub(crate) fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(Node::is_ready)
    }

    fn at(&self) -> Now {
        let nanos = u64::try_from(self.now.as_nanos()).expect("a short test");
        Now {
            boot: Instant::from_nanos(nanos),
            wall: WallTime::default(),
        }
    }

    /// Until nobody has anything more to say.
    fn settle(&mut self) {
        while let Some((from, output)) = self.next_output() {
            let now = self.at();
            match output {
                Output::Persist(batch) => {
                    let disk = &mut self.disks[from];
                    disk.hard = batch.hard.unwrap_or(disk.hard);
                    if let Some(first) = batch.truncate {
                        disk.entries.retain(|entry| entry.id < first);
                    }
                    disk.entries.extend(batch.entries);
                    assert!(batch.snapshot.is_none(), "too short for one");
                    self.nodes[from].handle(now, Input::Persisted(batch.number));
                }
                Output::EncodeSnapshot(_) | Output::DecodeSnapshot(_) | Output::Discard(_) => {
                    panic!("too short for a snapshot")
                }
                Output::Send {
                    envelope,
                    storage: wanted,
                } => {
                    let to = usize::try_from(envelope.to.get()).expect("a few") - 1;
                    let cut = self.cut_off.is_some_and(|gone| gone == from || gone == to);
                    let starved = self.starved == Some(to) && brings_entries(&envelope.body);
                    let storage = self.nodes[from].identity().storage;
                    // A member that was admitted may have no server yet.
                    let node = self.nodes.get_mut(to).filter(|_| !cut && !starved);
                    if let Some(node) = node {
                        let found = node.identity().storage;
                        if wanted.is_none_or(|wanted| wanted == found) {
                            node.handle(now, Input::Received { envelope, storage });
                        }
                    }
                }
                Output::Event(event) => {
                    let id = self.nodes[from].id();
                    self.events.push((id, event));
                }
                Output::Answer { answer, .. } => self.answers.push(answer),
                Output::Applied { .. } => {
                    let revision = self.nodes[from].state().registers().revision();
                    let before = std::mem::replace(&mut self.revisions[from], revision);
                    self.writes.push((from, revision - before));
                }
                Output::Halt(_) => {}
            }
        }
    }

    fn next_output(&mut self) -> Option<(usize, Output)> {
        let nodes = self.nodes.iter_mut().enumerate();
        let mut outputs = nodes.filter_map(|(index, node)| Some((index, node.poll()?)));
        outputs.next()
    }
}

fn brings_entries(body: &Body) -> bool {
    let Body::Request { request, .. } = body else {
        return false;
    };
    matches!(request, Request::Append { entries, .. } if !entries.is_empty())
}

/// What refuses a change for which these have not answered.
pub(crate) fn unheard(servers: &[u64]) -> Refusal {
    let servers = servers.iter().filter_map(|id| ServerId::new(*id));
    Refusal::TooFewHeard {
        servers: servers.collect(),
    }
}

pub(crate) fn storage(id: ServerId) -> StorageId {
    StorageId::from_u128(u128::from(id.get()))
}
