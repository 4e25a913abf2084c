//! What happens to a server, in the order in which it happens.
//!
//! One task drives the machine, the event loop. All others, the disk's thread
//! included, put events here. What piled up while the event loop was busy is taken in one
//! piece, so that under load many requests share one write, one sync and one
//! message to each peer.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_alpo::{
    Answer, ClientRequest, DecodedSnapshot, Envelope, LogId, LogTime, Node, QueryResult, ServerId,
    Snapshot, StorageId,
};
use tenure_core::cas::Register;
use tenure_core::ids::Key;
use tokio::sync::{Notify, oneshot};

use super::account::Pipelined;
use super::audit::Entry;
use super::quota_usage::Quota;
use crate::transport::Greeting;
use crate::wal::WalError;

/// Something that happened.
pub(super) enum Event {
    /// A message came from another server, which has greeted with this disk.
    Received(Envelope, StorageId),
    /// Batches up to this one are durable.
    Persisted(u64),
    /// The log takes nothing more.
    DiskFailed(WalError),
    /// Another server, which was not refused, has introduced itself.
    Greeted {
        /// What it said. It is long, and all that happens is as long as the
        /// longest.
        greeting: Box<Greeting>,
        /// Whether it was dialled, at an address that this server was told.
        dialled: bool,
    },
    /// Another server has told this one that its disk was set back, and why.
    SetBack(String),
    /// Another server that was dialled does not let this one in, and why; or
    /// it does, or is not reached.
    Refused {
        /// Which server.
        by: ServerId,
        /// What is wrong, if anything is.
        why: Option<String>,
    },
    /// A connection of another server has ended.
    Closed(PeerConnection, ClosedBy),
    /// Another server has connected.
    Connected(PeerConnection),
    /// A client, or an operator, wants something; with the quota of its token,
    /// if that has one.
    ClientRequest(ClientRequest, Option<Arc<Quota>>, ReplyTo),
    /// A caller wants to look at the state machine; there is none as long as
    /// the server is blank.
    Inspection(Inspection),
    /// A caller wants a snapshot taken now, and to know up to which entry the
    /// newest one on the disk goes.
    Snapshot(oneshot::Sender<LogId>),
    /// A snapshot that the machine asked for is encoded.
    SnapshotEncoded(Snapshot),
    /// The state of a snapshot of the leader is there, or why there is none.
    SnapshotDecoded(Box<DecodedSnapshot>),
    /// The thread that did this panicked.
    SnapshotPanicked(SnapshotWork),
    /// Hand over what can be handed over, and end.
    Stop,
}

impl Event {
    /// What becomes of the batch of this number.
    pub(super) fn written(result: Result<u64, WalError>) -> Self {
        result.map_or_else(Self::DiskFailed, Self::Persisted)
    }
}

/// What a thread does for a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SnapshotWork {
    /// It encodes this server's state.
    Encode,
    /// It makes a state of what the leader has sent.
    Decode,
}

impl fmt::Display for SnapshotWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encode => "encodes a snapshot",
            Self::Decode => "decodes a snapshot of the leader",
        })
    }
}

/// A connection of another server to this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PeerConnection {
    /// Whose it is.
    pub(super) server: ServerId,
    /// The disk that it greeted with.
    pub(super) storage: StorageId,
    /// Tells its connections apart.
    pub(super) number: u64,
}

/// Who ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClosedBy {
    /// This side: that says nothing about the other's process.
    Here,
    /// The other side, or something on the way.
    There,
}

/// A read of the machine's state.
pub(super) type Inspection = Box<dyn FnOnce(Option<&Node>) + Send>;

/// What is known of a request of a stream when its answer comes.
#[derive(Debug)]
pub(super) struct StreamRequest {
    /// The client's number for it.
    pub(super) number: u64,
    /// Whether it deletes: a comparison that fails has one outcome for the
    /// machine, but an answer of its own for each call.
    pub(super) deletes: bool,
    /// Whether it asks for a page of the log or of registers.
    pub(super) page: bool,
    /// What is to be noted of it.
    pub(super) entry: Option<Entry>,
}

/// An answer with what only the event loop can add.
#[derive(Debug)]
pub(super) struct TimedAnswer {
    /// The answer.
    pub(super) answer: Answer,
    /// For a swap: the log's time of its entry, as long as it is known.
    pub(super) at: Option<LogTime>,
    /// For the opening of a session: whether it has an owner.
    pub(super) owned: bool,
}

impl From<Answer> for TimedAnswer {
    fn from(answer: Answer) -> Self {
        Self {
            answer,
            at: None,
            owned: false,
        }
    }
}

impl TimedAnswer {
    /// About how many bytes it is as a message, if that is many.
    pub(super) fn weight(&self) -> usize {
        match &self.answer {
            Answer::Read(found) => weight(found),
            _ => 0,
        }
    }
}

/// About how many bytes what was found is as a message, if that is many.
pub(super) fn weight(found: &QueryResult) -> usize {
    match found {
        QueryResult::Register(register, ..) => register.as_ref().map_or(0, |it| it.value.len()),
        QueryResult::List { registers, .. } => {
            let weight = |(key, it): &(Key, Register)| key.as_str().len() + it.value.len() + 64;
            registers.iter().map(weight).sum()
        }
        QueryResult::UserLog(Ok(entries)) => entries.iter().map(|(_, it)| it.len() + 16).sum(),
        QueryResult::UserLog(Err(_)) | QueryResult::Restored(_) | QueryResult::Barrier(_) => 0,
    }
}

/// Where an answer goes.
#[derive(Debug)]
pub(super) enum ReplyTo {
    /// To a caller that waits for just this one.
    One(oneshot::Sender<TimedAnswer>),
    /// The same, for a command of the server's own session. Its serial has to
    /// be used, also if it is refused.
    InternalSession(oneshot::Sender<TimedAnswer>),
    /// To a stream of answers, as the one to this request.
    Stream(Arc<AnswerQueue>, StreamRequest),
}

impl ReplyTo {
    pub(super) fn send(self, told: TimedAnswer) {
        match self {
            // The caller may have gone.
            Self::One(sender) | Self::InternalSession(sender) => drop(sender.send(told)),
            Self::Stream(sink, ticket) => sink.put(ticket, told),
        }
    }
}

/// Answers that wait to be sent over one stream.
#[derive(Debug)]
pub(super) struct AnswerQueue {
    /// What they are answers to. It is counted here, where each request that
    /// is under way holds it: they are under way also if the stream has ended.
    pub(super) requests: Pipelined,
    answers: Mutex<Vec<(StreamRequest, TimedAnswer)>>,
    more: Notify,
}

impl AnswerQueue {
    pub(super) fn new(requests: Pipelined) -> Self {
        Self {
            requests,
            answers: Mutex::default(),
            more: Notify::default(),
        }
    }

    fn put(&self, ticket: StreamRequest, told: TimedAnswer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push((ticket, told));
        let first = answers.len() == 1;
        drop(answers);
        if first {
            self.more.notify_one();
        }
    }

    /// Waits until there are answers, and takes them all.
    pub(super) async fn take(&self) -> Vec<(StreamRequest, TimedAnswer)> {
        loop {
            let more = self.more.notified();
            let answers = self.taken();
            if !answers.is_empty() {
                return answers;
            }
            more.await;
        }
    }

    fn taken(&self) -> Vec<(StreamRequest, TimedAnswer)> {
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The events that wait for the event loop.
#[derive(Default)]
pub(super) struct Inbox {
    waiting: Mutex<Vec<Event>>,
    more: Notify,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves word. What may come in any number is bounded by its senders:
    /// peers by their windows, clients by
    /// [`ServerHandle`](super::handle::ServerHandle).
    pub(super) fn put(&self, event: Event) {
        let mut waiting = self.lock();
        waiting.push(event);
        let first = waiting.len() == 1;
        drop(waiting);
        if first {
            self.more.notify_one();
        }
    }

    /// Leaves word of many things at once.
    pub(super) fn put_all(&self, events: impl IntoIterator<Item = Event>) {
        let mut waiting = self.lock();
        let none = waiting.is_empty();
        waiting.extend(events);
        let first = none && !waiting.is_empty();
        drop(waiting);
        if first {
            self.more.notify_one();
        }
    }

    /// Exchanges `taken`, which must be empty, for what waits.
    pub(super) fn take(&self, taken: &mut Vec<Event>) {
        std::mem::swap(&mut *self.lock(), taken);
    }

    /// Returns when something has come since the last call.
    pub(super) async fn more(&self) {
        self.more.notified().await;
    }
}
