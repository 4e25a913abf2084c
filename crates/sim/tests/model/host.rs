//! One server of the model: the production machine, its disk, and its clock.
//!
//! The machine is driven as in production: an input, then everything it has
//! to say, then batches for the disk. Time is not a number here but a choice.
//! A server's clock stands still until the explorer says that its patience is
//! over, and then jumps past every deadline; so it never draws a schedule
//! from the generator, and stickiness never hides one (see `model.rs`).
//!
//! A disk keeps what was synced and loses any suffix of what was not, the
//! first lost batch perhaps torn between two of its parts.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tenure_alpo::{
    Answer, Batch, Body, ClientRequest, ClusterId, Config, Envelope, HardState, Identity, Input,
    Limits, LogId, Membership, Node, Output, Position, Query, QueryResult, Recovered, Reply,
    Request, ServerId, Snapshot, State, Status, StorageId,
};
use tenure_core::Machine;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now};

/// Past every wait: patience is at most 2.01 timeouts and, where syncs take
/// long, 32 more; a cycle at most two.
const FAR: Duration = Duration::from_secs(40);
/// Past stickiness, which is 1.01 timeouts.
const UNSTICK: Duration = Duration::from_secs(2);
/// The disk of the first founder; the others' follow.
const DISKS: u128 = 100;
/// One heartbeat: so short that a leader can beat for ever before a timeout
/// passes.
pub(crate) const BEAT: Duration = Duration::from_nanos(1);

/// The number of the founder with this index.
pub(crate) fn id_of(index: usize) -> ServerId {
    ServerId::new(index as u64 + 1).expect("not zero")
}

/// The index of the founder with this number.
pub(crate) fn index_of(id: ServerId) -> usize {
    id.get() as usize - 1
}

/// The index of the server with this disk.
pub(crate) fn index_with(storage: StorageId) -> usize {
    (storage.to_u128() - DISKS) as usize
}

/// Whom a message for this number reaches: the one with the disk that it is
/// for, or any if it does not say.
pub(crate) fn addressees(
    hosts: &[Arc<Host>],
    to: ServerId,
    storage: Option<StorageId>,
) -> impl Iterator<Item = usize> {
    let all = hosts.iter().enumerate();
    let meant = all.filter(move |(index, host)| {
        host.node.id() == to && storage.is_none_or(|storage| index_with(storage) == *index)
    });
    meant.map(|(index, _)| index)
}

/// What is on the disk, and what is on its way there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    synced: Recovered,
    pub(crate) waiting: VecDeque<Batch>,
}

impl Disk {
    fn sync_one(&mut self) -> Option<u64> {
        let batch = self.waiting.pop_front()?;
        let number = batch.number;
        write(&mut self.synced, batch);
        Some(number)
    }

    /// The hard state as a crash now would leave it at least.
    pub(crate) const fn hard(&self) -> HardState {
        self.synced.hard
    }

    fn digest(&self, into: &mut impl Hasher) {
        self.synced.hard.hash(into);
        for entry in &self.synced.entries {
            entry.digest(into);
        }
        for batch in &self.waiting {
            (batch.hard, batch.truncate, batch.entries.len()).hash(into);
            batch.entries.iter().for_each(|entry| entry.digest(into));
        }
    }
}

/// How many parts a batch can be torn between.
pub(crate) fn parts(batch: &Batch) -> usize {
    usize::from(batch.hard.is_some()) + usize::from(batch.truncate.is_some()) + batch.entries.len()
}

/// The first `kept` parts of a batch.
fn torn(mut batch: Batch, kept: usize) -> Batch {
    let mut left = kept;
    let mut keep = |there: bool| {
        let keeps = there && left > 0;
        left -= usize::from(keeps);
        keeps
    };
    if !keep(batch.hard.is_some()) {
        batch.hard = None;
    }
    if !keep(batch.truncate.is_some()) {
        batch.truncate = None;
    }
    batch.entries.truncate(left);
    batch
}

/// The parts take effect in this order; there are no snapshots at this size.
fn write(disk: &mut Recovered, batch: Batch) {
    assert!(batch.snapshot.is_none(), "nothing is compacted here");
    if let Some(hard) = batch.hard {
        disk.hard = hard;
    }
    if let Some(from) = batch.truncate {
        disk.entries.retain(|entry| entry.id < from);
    }
    disk.entries.extend(batch.entries);
}

/// A server.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    index: usize,
    pub(crate) node: Node,
    pub(crate) disk: Disk,
    now: Instant,
    /// Its reads rest on a lease, so all that has to do with time decides.
    lease: bool,
    /// Of node and disk; two hosts with the same one have the same future.
    pub(crate) digest: u64,
}

impl Host {
    /// A founding member before its first start.
    pub(crate) fn bootstrapped(index: usize, servers: usize, config: &Config) -> Self {
        let all = (0..servers).map(|index| (id_of(index), storage(index)));
        let members = Membership::bootstrapped(all);
        let state = State::bootstrapped(Limits::default(), ClockId::default(), members);
        let disk = Disk {
            synced: Recovered {
                snapshot: Some(Snapshot {
                    last: Position::ZERO,
                    bytes: state.encode().into(),
                }),
                no_vote_time: config.no_vote_time(),
                ..Recovered::default()
            },
            ..Disk::default()
        };
        Self::start((index, id_of(index)), disk, config, Instant::ZERO)
    }

    /// One with a new disk, which is to have the number of a founder.
    pub(crate) fn blank(index: usize, number: ServerId, config: &Config) -> Self {
        let disk = Disk {
            synced: Recovered {
                no_vote_time: config.no_vote_time(),
                ..Recovered::default()
            },
            ..Disk::default()
        };
        Self::start((index, number), disk, config, Instant::ZERO)
    }

    fn start(
        (index, server): (usize, ServerId),
        disk: Disk,
        config: &Config,
        now: Instant,
    ) -> Self {
        let identity = Identity {
            cluster: ClusterId::from_u128(7),
            server,
            storage: storage(index),
        };
        let blank = State::new(Limits::default(), ClockId::default());
        let (recovered, rng) = (disk.synced.clone(), Rng::from_seed(1));
        let node = Node::start(config.clone(), identity, recovered, blank, rng, now);
        let mut host = Self {
            index,
            node: node.expect("a snapshot that was just written"),
            disk,
            now,
            lease: config.lease_reads,
            digest: 0,
        };
        host.note();
        host
    }

    /// The process dies and comes back. Of the batches on their way `whole`
    /// arrived, and `part` parts of the next.
    pub(crate) fn crash(&mut self, config: &Config, whole: usize, part: usize) {
        for _ in 0..whole {
            self.disk.sync_one();
        }
        if let Some(batch) = std::mem::take(&mut self.disk.waiting).pop_front() {
            write(&mut self.disk.synced, torn(batch, part));
        }
        // Without leases its clock means nothing, and begins anew.
        let now = if self.lease { self.now } else { Instant::ZERO };
        let who = (self.index, self.node.id());
        *self = Self::start(who, self.disk.clone(), config, now);
    }

    fn now(&self) -> Now {
        Now {
            boot: self.now,
            ..Now::default()
        }
    }

    fn drain(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        while let Some(output) = self.node.poll() {
            match output {
                Output::Persist(batch) => self.disk.waiting.push_back(batch),
                Output::EncodeSnapshot(copy) => {
                    let encoded = Input::SnapshotEncoded(copy.encode());
                    self.node.handle(self.now(), encoded);
                }
                Output::DecodeSnapshot(received) => {
                    let decoded = Box::new(received.decode());
                    self.node
                        .handle(self.now(), Input::SnapshotDecoded(decoded));
                }
                Output::Discard(_) => {}
                other => outputs.push(other),
            }
        }
        outputs
    }

    pub(crate) fn handle(&mut self, input: Input) -> Vec<Output> {
        self.node.handle(self.now(), input);
        self.drain()
    }

    /// A message comes from the disk that its sender has.
    pub(crate) fn receive(&mut self, envelope: &Envelope, from: usize) -> Vec<Output> {
        self.handle(Input::Received {
            envelope: envelope.clone(),
            storage: storage(from),
        })
    }

    /// Its name, for people.
    pub(crate) fn name(&self) -> String {
        let id = self.node.id();
        if index_of(id) == self.index {
            id.to_string()
        } else {
            format!("{id} (the new disk)")
        }
    }

    /// Its disk.
    pub(crate) fn storage(&self) -> StorageId {
        storage(self.index)
    }

    /// Whether by its own log it may stand.
    pub(crate) fn is_voter(&self) -> bool {
        let (id, storage) = (self.node.id(), self.storage());
        self.node.members().is_voter_with(id, storage)
    }

    /// Whatever it waits for has not come. A leader that has no question open
    /// asks before it gives up; nobody hears it, so that whether it gives up
    /// does not depend on what was answered before, which the digest leaves
    /// out.
    pub(crate) fn time_out(&mut self) -> Vec<Output> {
        let led = self.node.status() == Status::Leader;
        let mut outputs = self.run_out();
        if led && self.node.status() == Status::Leader {
            outputs.retain(|output| !matches!(output, Output::Send { .. }));
            outputs.extend(self.run_out());
        }
        outputs
    }

    /// Time passes; it has not noticed yet.
    pub(crate) fn pass(&mut self) {
        self.now = self.now.after(FAR);
    }

    /// Whether a timer of it has run out.
    pub(crate) fn is_due(&self) -> bool {
        self.node.deadline().is_some_and(|due| due <= self.now)
    }

    /// It looks after its timers, at the time that it is.
    pub(crate) fn tick(&mut self) -> Vec<Output> {
        self.node.tick(self.now());
        self.drain()
    }

    /// What it has applied, if it answers a read at once: by its lease.
    pub(crate) fn reads(&self) -> Option<LogId> {
        let mut asked = self.node.clone();
        let (token, request) = (u64::MAX, ClientRequest::Read(Query::Barrier));
        asked.handle(self.now(), Input::ClientRequest { token, request });
        std::iter::from_fn(|| asked.poll()).find_map(|output| match output {
            Output::Answer {
                answer: Answer::Read(QueryResult::Barrier(id)),
                ..
            } => Some(id),
            _ => None,
        })
    }

    fn run_out(&mut self) -> Vec<Output> {
        self.now = self.now.after(FAR);
        self.node.tick(self.now());
        self.drain()
    }

    /// Answers the pre-votes among `outputs` with all the votes that are
    /// wanted.
    pub(crate) fn win(&mut self, outputs: Vec<Output>) -> Vec<Output> {
        let mut said = Vec::new();
        for output in outputs {
            if let Output::Send { envelope, storage } = output
                && let Body::Request { number, request } = &envelope.body
                && let (Request::PreVote { .. }, Status::PreVoting) = (request, self.node.status())
            {
                let reply = Envelope {
                    from: envelope.to,
                    to: envelope.from,
                    term: envelope.term,
                    body: Body::Reply {
                        number: *number,
                        asked_in: envelope.term,
                        reply: Reply::PreVoteGranted,
                    },
                };
                let from = storage.map_or_else(|| index_of(envelope.to), index_with);
                said.extend(self.receive(&reply, from));
            }
        }
        said
    }

    /// A leader's heartbeat is due.
    pub(crate) fn beat(&mut self) -> Vec<Output> {
        self.now = self.now.after(BEAT);
        self.node.tick(self.now());
        self.drain()
    }

    /// It has not heard of a leader for a while; but goes on waiting.
    pub(crate) fn forget_leader(&mut self) {
        self.now = self.now.after(UNSTICK);
    }

    /// The oldest batch on its way is on disk.
    pub(crate) fn sync(&mut self) -> Option<Vec<Output>> {
        let number = self.disk.sync_one()?;
        Some(self.handle(Input::Persisted(number)))
    }

    /// Takes the digest anew.
    pub(crate) fn note(&mut self) {
        let mut hasher = DefaultHasher::new();
        self.node.digest(&mut hasher);
        self.disk.digest(&mut hasher);
        if self.lease {
            (self.now, format!("{:?}", self.node)).hash(&mut hasher);
        }
        self.digest = hasher.finish();
    }
}

fn storage(index: usize) -> StorageId {
    StorageId::from_u128(index as u128 + DISKS)
}
