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
use std::time::Duration;

use tenure_core::Machine;
use tenure_core::alpo::{
    Batch, Body, ClusterId, Config, Envelope, HardState, Identity, Input, Limits, Membership, Node,
    Output, Position, Recovered, Reply, Request, ServerId, Snapshot, State, Status, StorageId,
};
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now};

/// Past every wait: patience is at most 2.01 timeouts, a cycle at most two.
const FAR: Duration = Duration::from_secs(4);
/// Past stickiness, which is 1.01 timeouts.
const UNSTICK: Duration = Duration::from_secs(2);
/// One heartbeat: so short that a leader can beat for ever before a timeout
/// passes.
pub(crate) const BEAT: Duration = Duration::from_nanos(1);

/// The server with this index.
pub(crate) fn id_of(index: usize) -> ServerId {
    ServerId::new(index as u64 + 1).expect("not zero")
}

/// The index of a server.
pub(crate) fn index_of(id: ServerId) -> usize {
    id.get() as usize - 1
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
    pub(crate) node: Node,
    pub(crate) disk: Disk,
    now: Instant,
    /// Of node and disk; two hosts with the same one have the same future.
    pub(crate) digest: u64,
}

impl Host {
    /// A founding member before its first start.
    pub(crate) fn founded(index: usize, servers: usize, config: &Config) -> Self {
        let all = (0..servers).map(|index| (id_of(index), storage(index)));
        let members = Membership::founded(all);
        let state = State::founded(Limits::default(), ClockId::default(), members);
        let disk = Disk {
            synced: Recovered {
                snapshot: Some(Snapshot {
                    last: Position::ZERO,
                    bytes: state.encode().into(),
                }),
                ..Recovered::default()
            },
            ..Disk::default()
        };
        Self::start(index, disk, config)
    }

    fn start(index: usize, disk: Disk, config: &Config) -> Self {
        let identity = Identity {
            cluster: ClusterId::from_u128(7),
            server: id_of(index),
            storage: storage(index),
        };
        let blank = State::new(Limits::default(), ClockId::default());
        let (recovered, rng) = (disk.synced.clone(), Rng::from_seed(1));
        let node = Node::start(
            config.clone(),
            identity,
            recovered,
            blank,
            rng,
            Instant::ZERO,
        );
        let mut host = Self {
            node: node.expect("a snapshot that was just written"),
            disk,
            now: Instant::ZERO,
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
        *self = Self::start(index_of(self.node.id()), self.disk.clone(), config);
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
    pub(crate) fn receive(&mut self, envelope: &Envelope) -> Vec<Output> {
        let storage = storage(index_of(envelope.from));
        self.handle(Input::Received {
            envelope: envelope.clone(),
            storage,
        })
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

    fn run_out(&mut self) -> Vec<Output> {
        self.now = self.now.after(FAR);
        self.node.tick(self.now());
        self.drain()
    }

    /// Answers the polls among `outputs` with all the votes that are wanted.
    pub(crate) fn win(&mut self, outputs: Vec<Output>) -> Vec<Output> {
        let mut said = Vec::new();
        for output in outputs {
            if let Output::Send { envelope, .. } = output
                && let Body::Request { number, request } = &envelope.body
                && let (Request::Poll { .. }, Status::Polling) = (request, self.node.status())
            {
                let reply = Envelope {
                    from: envelope.to,
                    to: envelope.from,
                    term: envelope.term,
                    body: Body::Reply {
                        number: *number,
                        asked_in: envelope.term,
                        reply: Reply::WouldGrant,
                    },
                };
                said.extend(self.receive(&reply));
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
        self.digest = hasher.finish();
    }
}

fn storage(index: usize) -> StorageId {
    StorageId::from_u128(index as u128 + 100)
}
