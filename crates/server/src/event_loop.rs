//! The task that drives the replicated log: one round after the other.
//!
//! A round takes everything that has happened since the last one, tells the
//! machine, and carries out what it asks for. Nothing here waits: the disk
//! has a thread (small batches are written by the thread of the event loop,
//! which is relieved if that takes long: `loop_threads`), each peer a queue, each
//! client a stream. And nothing here decides: whether an answer may leave, and
//! when, is the machine's business.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_alpo::{
    Answer, Batch, ClientRequest, Command, DecodedSnapshot, Event as NodeEvent, Input, LogId,
    Membership, Node, Operation, Outcome, Output, Refusal, Status,
};
use tenure_core::Machine as _;
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::sync::oneshot;

use super::config::Config;
use super::ended::Ended;
use super::inbox::{ClosedBy, Event, Inbox, PeerConnection, ReplyTo, SnapshotWork, TimedAnswer};
use super::keep_alive_batch::KeepAliveBatch;
use super::metrics;
use super::no_vote_time::NoVoteTime;
use super::peers::Peers;
use super::quota_usage::{Quota, QuotaUsage, Size};
use super::refusals::Refusals;
use super::removal::Removal;
use super::shared::{Progress, Shared};
use super::snapshots::Snapshots;
use super::watchers::Watchers;
use crate::transport::{CommittedMembers, Greeting};
use crate::wal::{Ended as LogEnded, InlineWrite, Writer};

/// Entries of a batch that a server may write on its own thread.
const INLINE_ENTRIES_MAX: usize = 16;

/// How many timeouts a leader that is to end looks for a transferee: each of them
/// has one, and after that the others notice by themselves.
const TRANSFER_TIMEOUTS: u32 = 4;

/// The token of that hand-over; those of clients are far above it.
const STOP_TOKEN: u64 = 0;

/// What the thread of the event loop is to do.
pub(super) enum Step {
    /// Write this.
    Write(InlineWrite),
    /// End the server.
    End(Ended),
}

/// The machine and what surrounds it.
pub(super) struct EventLoop {
    pub(super) node: Node,
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) peers: Peers,
    pub(super) writer: Writer,
    pub(super) watchers: Arc<Watchers>,
    /// Requests that may be under way.
    pub(super) requests: usize,
    waiting: HashMap<u64, ReplyTo>,
    keep_alive_batch: KeepAliveBatch,
    next_token: u64,
    /// What registers take.
    pub(super) quota_usage: QuotaUsage,
    pub(super) members: Membership,
    /// Whether others know the members without this server.
    pub(super) removal: Removal,
    /// Why others do not let this server in.
    pub(super) refusals: Refusals,
    /// What is wrong with the disk of a member, found in this term.
    pub(super) lost: String,
    /// Batches that are not known to be durable, and since when.
    syncing: VecDeque<(u64, Instant)>,
    /// A small batch that this thread writes, when the others have been told.
    own: Option<Batch>,
    snapshots: Snapshots,
    /// The last batch that was handed to the disk.
    last_submitted: u64,
    /// Set when the server is to end: when at the latest.
    pub(super) stopping: Option<Instant>,
    /// Whether the leadership is to be offered to another server before that.
    transfer_pending: bool,
    timeout: Duration,
    pub(super) data: PathBuf,
    /// What the directory owes, which another server may raise after this one.
    pub(super) no_vote_time: Option<Arc<NoVoteTime>>,
}

impl EventLoop {
    pub(super) fn new(
        node: Node,
        shared: Arc<Shared>,
        inbox: Arc<Inbox>,
        peers: Peers,
        writer: Writer,
        watchers: Arc<Watchers>,
        config: &Config,
    ) -> Self {
        let members = node.members().clone();
        watchers.begin(node.state().registers());
        let snapshots = Snapshots::new(writer.snapshot_writer());
        Self {
            node,
            shared,
            inbox,
            peers,
            writer,
            watchers,
            requests: config.requests,
            waiting: HashMap::new(),
            keep_alive_batch: KeepAliveBatch::default(),
            // A small number would do; this one is never mistaken for a count.
            next_token: 1 << 32,
            quota_usage: QuotaUsage::new(Size {
                bytes: config.quota_bytes,
                registers: config.quota_registers,
            }),
            members,
            removal: Removal::default(),
            refusals: Refusals::default(),
            lost: String::new(),
            syncing: VecDeque::new(),
            own: None,
            snapshots,
            last_submitted: 0,
            stopping: None,
            transfer_pending: false,
            timeout: config.node.election_timeout,
            data: config.data.clone(),
            no_vote_time: None,
        }
    }

    /// Says how it stands before anything happens.
    pub(super) fn begin(&mut self) {
        if let Some(why) = &self.shared.copies().set_back {
            tracing::warn!("this server takes part in nothing: {why}");
        }
        self.update_version();
        self.after_round(false, true);
    }

    /// Runs until there is something to write on this thread, or until the
    /// server is told to stop or cannot go on. `wrote` is the number of the
    /// batch that this thread has just written.
    pub(super) async fn run(&mut self, wrote: Option<u64>) -> Step {
        let mut events: Vec<Event> = wrote.map(Event::Persisted).into_iter().collect();
        loop {
            if let Some(ended) = self.round(&mut events) {
                return Step::End(ended);
            }
            if self.own.is_some() && self.members.len() > 1 {
                // What was said to others leaves before this thread waits.
                tokio::task::yield_now().await;
            }
            let here = self.own.take().map(|batch| self.writer.here(batch));
            if let Some(here) = here.and_then(|it| it.unwrap_or_else(log_failed)) {
                return Step::Write(here);
            }
            self.wait().await;
            self.inbox.take(&mut events);
        }
    }

    fn round(&mut self, events: &mut Vec<Event>) -> Option<Ended> {
        for event in events.drain(..) {
            if let Some(ended) = self.handle_event(event) {
                return Some(ended);
            }
        }
        let now = clock::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now.boot);
        if is_due(self.node.deadline()) {
            self.node.tick(now);
        }
        if is_due(self.keep_alive_batch.due()) {
            self.propose_gathered();
        }
        if is_due(self.snapshots.warns_at()) {
            self.snapshots.warn(now.boot);
        }
        if std::mem::take(&mut self.transfer_pending) && self.node.status() == Status::Leader {
            let (token, request) = (STOP_TOKEN, ClientRequest::Transfer(None));
            self.node
                .handle(now, Input::ClientRequest { token, request });
        }
        if let Some(ended) = self.perform_outputs() {
            return Some(ended);
        }
        // Until the next leader has spoken up: a client that still asks here is
        // told where to go on.
        let led = self.node.status() != Status::Leader && self.node.leader().is_some();
        let over = |at| at <= now.boot || led;
        self.stopping.is_some_and(over).then_some(Ended::Stopped)
    }

    async fn wait(&self) {
        let deadlines = [
            self.node.deadline(),
            self.keep_alive_batch.due(),
            self.stopping,
            self.snapshots.warns_at(),
        ];
        let deadline = deadlines.into_iter().flatten().min();
        tokio::select! {
            biased;
            () = self.inbox.more() => {}
            () = clock::until(deadline) => {}
        }
    }

    fn handle_event(&mut self, event: Event) -> Option<Ended> {
        let now = clock::now();
        match event {
            Event::Received(envelope, storage) => self.received(envelope, storage),
            Event::Persisted(number) => {
                while let Some((_, at)) = self.syncing.pop_front_if(|(it, _)| *it <= number) {
                    self.shared.metrics.synced(now.boot.since(at));
                }
                self.shared.metrics.waits(self.syncing.front());
                self.node.handle(now, Input::Persisted(number));
                self.snapshots.written(number);
            }
            Event::DiskFailed(error) => return Some(Ended::Disk(error)),
            Event::Greeted { greeting, dialled } => {
                let applied = self.node.state().applied().id;
                if self.shared.local_server().meet(&greeting, dialled, applied) {
                    self.save_address_book();
                }
                self.peers.greeted(&self.members);
                self.hear(&greeting);
            }
            Event::Connected(peer_connection) => {
                self.peers.connected(peer_connection, &self.members);
            }
            Event::Closed(peer_connection, ending) => {
                // What this side closed is no sign of a crash of the other.
                if self.peers.closed(peer_connection) && ending == ClosedBy::There {
                    let PeerConnection {
                        server, storage, ..
                    } = peer_connection;
                    self.node.handle(now, Input::Closed(server, storage));
                }
            }
            Event::SetBack(why) => self.set_back(why),
            Event::Refused { by, why } => {
                if self.refusals.hear(by, why) {
                    self.update_health();
                }
            }
            Event::ClientRequest(request, quota, reply) => {
                self.client_request(request, quota.as_deref(), reply);
            }
            Event::Inspection(inspect) => inspect(Some(&self.node)),
            Event::Snapshot(reply_to) => return self.snapshot(reply_to),
            Event::SnapshotEncoded(snapshot) => {
                self.snapshots.done(SnapshotWork::Encode);
                self.node.handle(now, Input::SnapshotEncoded(snapshot));
            }
            Event::SnapshotDecoded(decoded) => self.snapshot_decoded(decoded),
            Event::SnapshotPanicked(work) => {
                let text = format!("the thread that {work} panicked; this is a bug");
                return Some(Ended::Fault(text));
            }
            Event::Stop => self.stop(),
        }
        None
    }

    /// Takes a snapshot. If the newest covers everything already, it may still
    /// be on its way: the caller waits for all that is.
    fn snapshot(&mut self, reply_to: oneshot::Sender<LogId>) -> Option<Ended> {
        self.node.handle(clock::now(), Input::Compact);
        let ended = self.perform_outputs();
        self.snapshots
            .wait(&self.node, self.last_submitted, reply_to);
        self.answer_snapshots();
        ended
    }

    /// A snapshot of the leader has become a state, or has not.
    fn snapshot_decoded(&mut self, decoded: Box<DecodedSnapshot>) {
        self.snapshots.done(SnapshotWork::Decode);
        if let Some(error) = decoded.error() {
            tracing::warn!(
                upto = decoded.last().id,
                "a snapshot of the leader is asked for again: {error}"
            );
        }
        self.node
            .handle(clock::now(), Input::SnapshotDecoded(decoded));
    }

    fn answer_snapshots(&mut self) {
        if self.syncing.is_empty() {
            self.snapshots.written(self.last_submitted);
        }
    }

    fn client_request(&mut self, request: ClientRequest, quota: Option<&Quota>, reply: ReplyTo) {
        if self.waiting.len() >= self.requests {
            self.shared.metrics.refused();
            let answer = Answer::Refused(Refusal::Busy);
            return reply.send(TimedAnswer::from(answer));
        }
        let token = self.next_token;
        self.next_token += 1;
        let request = match (
            self.quota_usage.admit(&self.node, token, request, quota),
            reply,
        ) {
            (ClientRequest::RefuseIfNew(it), ReplyTo::InternalSession(sender)) => {
                let (command, claim, refusal) = *it;
                self.shared.metrics.refused();
                self.count_refusal(refusal);
                let answer = Answer::Refused(refusal);
                ReplyTo::InternalSession(sender).send(TimedAnswer::from(answer));
                let operation = Operation::KeepAlive;
                ClientRequest::Command(
                    Command {
                        operation,
                        ..command
                    },
                    claim,
                )
            }
            (request, reply) => {
                self.waiting.insert(token, reply);
                request
            }
        };
        let request = if self.node.status() == Status::Leader {
            match self.keep_alive_batch.keep(clock::boot, token, request) {
                Ok(()) => return,
                Err(request) => request,
            }
        } else {
            // It refuses at once, and names the leader.
            request
        };
        self.propose_gathered();
        self.node
            .handle(clock::now(), Input::ClientRequest { token, request });
    }

    fn count_refusal(&self, refusal: Refusal) {
        if let Refusal::QuotaExceeded(_) = refusal {
            self.shared.metrics.no_room.inc();
        }
    }

    fn propose_gathered(&mut self) {
        for (token, request) in self.keep_alive_batch.take() {
            self.node
                .handle(clock::now(), Input::ClientRequest { token, request });
        }
    }

    /// Keeps what is known of addresses, off this thread.
    pub(super) fn save_address_book(&self) {
        let (dir, shared) = (self.data.clone(), Arc::clone(&self.shared));
        tokio::task::spawn_blocking(move || shared.save_address_book(&dir));
    }

    /// A leader hands over before it goes, so that no timeout passes first.
    fn stop(&mut self) {
        if self.node.status() == Status::Leader && self.members.voters().count() > 1 {
            self.transfer_pending = true;
            self.stopping = Some(clock::boot().after(self.timeout * TRANSFER_TIMEOUTS));
        } else {
            self.stopping = Some(Instant::ZERO);
        }
        self.update_health();
    }

    /// Does what the machine asks for.
    fn perform_outputs(&mut self) -> Option<Ended> {
        let (mut applied, mut told) = (false, false);
        while let Some(output) = self.node.poll() {
            match output {
                Output::Persist(batch) => self.persist(batch),
                Output::EncodeSnapshot(copy) => self.snapshots.encode(copy, &self.inbox),
                Output::DecodeSnapshot(received) => {
                    self.snapshots.decode(received, &self.inbox);
                }
                Output::Discard(what) => Snapshots::discard(what),
                Output::Send { envelope, storage } => self.peers.send(&envelope, storage),
                Output::Answer { token, answer } => self.answer(token, answer),
                Output::Applied { .. } => applied = true,
                Output::Event(event) => {
                    told = true;
                    self.log_event(&event);
                }
                Output::Halt(fault) => return Some(Ended::of(&fault)),
            }
        }
        self.snapshots.encoded(&self.node, self.last_submitted);
        self.answer_snapshots();
        self.after_round(applied, told);
        None
    }

    /// Has a batch made durable: a small one by this thread, after this round,
    /// if the disk is quick; others by the log's thread, in their order.
    fn persist(&mut self, batch: Batch) {
        self.syncing.push_back((batch.number, clock::boot()));
        self.shared.metrics.waits(self.syncing.front());
        self.last_submitted = batch.number;
        if let Some(earlier) = self.own.take() {
            self.submit(earlier);
        }
        let small = batch.entries.len() <= INLINE_ENTRIES_MAX && batch.snapshot.is_none();
        if small && self.writer.is_quick() {
            self.own = Some(batch);
        } else {
            self.submit(batch);
        }
    }

    fn submit(&self, batch: Batch) {
        let submitted = self.writer.submit(batch);
        submitted.unwrap_or_else(|failed| drop(log_failed(failed)));
    }

    fn answer(&mut self, token: u64, answer: Answer) {
        if token == STOP_TOKEN {
            // The transferee was too slow; perhaps another one is not.
            self.transfer_pending = answer == Answer::Refused(Refusal::NotHandedOver);
            return;
        }
        self.quota_usage.answered(token);
        let Some(reply) = self.waiting.remove(&token) else {
            return;
        };
        let result = match &answer {
            Answer::Done(_) | Answer::Read(_) | Answer::HandedOver => metrics::Result::Done,
            Answer::Refused(_) => metrics::Result::Refused,
            Answer::Interrupted => metrics::Result::Interrupted,
        };
        if let Answer::Refused(refusal) = answer {
            self.count_refusal(refusal);
        }
        if matches!(
            answer,
            Answer::Done(Outcome::TooManySessions)
                | Answer::Refused(Refusal::FewSessionsLeft { .. })
        ) {
            self.shared.warn_sessions_full(self.node.state().sessions());
        }
        let requests = &self.shared.metrics.requests;
        requests.get_or_create(&metrics::Outcome { result }).inc();
        let at = match &answer {
            Answer::Done(Outcome::Swapped(version)) => version
                .to_u64()
                .and_then(|id: LogId| self.node.log().get(id))
                .map(|entry| entry.time),
            _ => None,
        };
        let owned = match &answer {
            Answer::Done(Outcome::Opened(session)) => {
                let opened = self.node.state().sessions().get(*session);
                opened.is_some_and(|it| !it.owner().is_unowned())
            }
            _ => false,
        };
        reply.send(TimedAnswer { answer, at, owned });
    }

    /// What others are told after each round.
    fn after_round(&mut self, applied: bool, told: bool) {
        self.shared.local_server().update_progress(&self.node);
        self.shared.acknowledged(&self.node);
        if self.quota_usage.applied(self.node.state()) {
            // There is more to count, in another round.
            self.inbox.put(Event::Inspection(Box::new(|_| ())));
        }
        if applied {
            self.update_version();
            self.publish_members();
            self.watchers.applied(self.node.state().registers());
            let progress = Progress {
                next: self.node.state().user_log().next(),
                applied: self.node.state().applied().id,
            };
            self.shared.progress.send_if_modified(|known| {
                let news = known.next != progress.next;
                *known = progress;
                news
            });
        }
        if !*self.shared.caught_up.borrow() && self.node.has_caught_up() {
            self.shared.caught_up.send_replace(true);
        }
        if *self.node.members() != self.members {
            self.members = self.node.members().clone();
            let known = self.members.iter().map(|(id, it)| (id, it.storage));
            let mut local_server = self.shared.local_server();
            local_server.hello.known = known.collect();
            let news = local_server.admit(self.members.clone());
            drop(local_server);
            if news {
                self.save_address_book();
            }
            self.peers.greeted(&self.members);
        }
        if told || applied {
            self.update_health();
        }
    }

    /// What another server says of the members may be news to one that was
    /// removed.
    fn hear(&mut self, greeting: &Greeting) {
        let (own, hello) = (self.node.identity(), &greeting.hello);
        let by = self.node.members().get(hello.server);
        let is_member = by.is_some_and(|member| member.storage == hello.storage);
        let says_who = !greeting.settled.members.is_empty();
        if hello.cluster != Some(own.cluster) || !is_member || !says_who {
            return;
        }
        let ours = CommittedMembers {
            upto: self.node.log().last().id,
            members: self.node.members().clone(),
        };
        let news = self
            .removal
            .hear(own, &ours, hello.server, &greeting.settled);
        if let Some(text) = news {
            tracing::warn!("{text}");
            self.update_health();
        }
    }

    /// Others hear in greetings of what was applied; those that are members no
    /// more are to greet again.
    fn publish_members(&self) {
        let state = self.node.state();
        self.shared.settled.send_if_modified(|settled| {
            settled.upto = state.applied().id;
            let news = settled.members != *state.members();
            if news {
                settled.members = state.members().clone();
            }
            news
        });
    }

    fn log_event(&mut self, event: &NodeEvent) {
        let term = self.node.term().get();
        let metrics = &self.shared.metrics;
        match event {
            NodeEvent::LeaderKnown { leader, .. } if *leader == self.node.id() => {
                metrics.reigns.inc();
                let about = serde_json::json!({ "term": term });
                self.shared.audit.note("leads", about, Ok(()));
                tracing::info!(term, "this server leads");
            }
            NodeEvent::LeaderKnown { leader, .. } => {
                tracing::info!(term, leader = leader.get(), "follows a leader");
            }
            NodeEvent::SteppedDown(why) => tracing::info!(term, ?why, "stepped down"),
            NodeEvent::StatesDisagree { at } => {
                metrics.disagreements.inc();
                tracing::error!(
                    term,
                    at,
                    "servers have different states, and no majority agrees on one"
                );
            }
            NodeEvent::SetBack {
                server,
                acknowledged,
                found,
            } => self.found_set_back(*server, (*acknowledged, *found)),
            NodeEvent::Installed { upto } => {
                metrics.installed.inc();
                tracing::info!(term, upto = upto.id, "took over a snapshot from the leader");
                self.watchers.restart(self.node.state().registers());
            }
            NodeEvent::DiskStalls { transferee } => {
                let transferee = transferee.get();
                metrics.handovers.inc();
                tracing::warn!(
                    term,
                    transferee,
                    "hands over: this server's disk lags too far behind"
                );
            }
            other => {
                match other {
                    NodeEvent::Standing { .. } => drop(metrics.elections.inc()),
                    NodeEvent::StatesAgree { .. } => drop(metrics.compared.inc()),
                    NodeEvent::Truncated { .. } => drop(metrics.truncated.inc()),
                    NodeEvent::Compacted { .. } => drop(metrics.snapshots.inc()),
                    _ => {}
                }
                tracing::debug!(term, event = ?other, "protocol");
            }
        }
    }

    /// Ends all but the log, which it gives back.
    pub(super) fn end(mut self, ended: &Ended) -> Writer {
        for (_, reply) in self.waiting.drain() {
            let answer = Answer::Interrupted;
            reply.send(TimedAnswer::from(answer));
        }
        let why = ended.to_string();
        self.shared.health_status.send_modify(|health_status| {
            health_status.alive = false;
            health_status.ready = false;
            health_status.leads = false;
            health_status.waiting = why;
        });
        if let Some(batch) = self.own.take() {
            self.submit(batch);
        }
        drop(self.peers);
        if let Some(no_vote_time) = &self.no_vote_time {
            no_vote_time.let_go();
        }
        self.writer
    }
}

/// The last report of the log's thread says why, and is on its way.
fn log_failed(failed: LogEnded) -> Option<InlineWrite> {
    tracing::debug!("{failed}");
    None
}
