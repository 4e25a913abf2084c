//! One connection to the leader, kept up and fed from a [`Pipeline`].
//!
//! Callers put requests into the pipeline under a lock and wait for theirs to
//! be answered; there is no task and no timer for any of them. The stream
//! takes what has piled up whenever it can write, so that requests share
//! messages as soon as there are many. Two tasks on the background thread
//! serve each connection: one finds the leader, connects, writes requests and
//! takes answers, the HTTP library's part included ([`InlineTasks`]); the other
//! does what time asks for.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tenure_api::v1::{self, pipeline_client::PipelineClient};
use tenure_core::time::Instant;
use tenure_runtime::error::about;
use tenure_runtime::{clock, drive};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tokio_stream::Stream;

use super::Error;
use super::channel::Channel;
use super::error::{carried, sentence};
use super::inline_tasks::{InlineExecutor, InlineTasks};
use super::leader_discovery::{Leader, LeaderDiscovery, jitter, status};
use super::pipeline::{Outcomes, PendingRequest, Pipeline, Reply, RequestKind, Verdict};

/// How long a server that is near may take to accept a stream, or to say over it that it
/// leads.
const ACCEPT_WITHIN: Duration = Duration::from_millis(500);
/// How long a closed connection still tries to end its session.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// The largest message of answers: a page of registers, or of the log.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The pauses after a stream that brought nothing.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The longest pause while nobody lets this client in.
const PAUSE_REFUSED: Duration = Duration::from_millis(500);
/// How often in a row a silent server may be found to lead all the same
/// before the connection to it is given up.
const CHECKS_MAX: u32 = 2;

/// The callers' end. Dropping it ends the session and the connection.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something is wanted of the connection.
    wanted: Notify,
    /// The time to wake up at has changed.
    timer_changed: Notify,
    /// Answers are waited for in vain.
    no_answers: Notify,
    leader_discovery: Arc<LeaderDiscovery>,
}

#[derive(Debug)]
struct State {
    pipeline: Pipeline,
    /// Wakes the stream, when it has nothing to write.
    writer: Option<Waker>,
    /// Which stream may write.
    stream: u64,
    /// Nobody asks any more.
    closed: bool,
    /// Nobody serves any more.
    ended: bool,
    /// When the timer wakes up; `None`: never.
    wake_at: Option<Instant>,
}

impl State {
    /// Whether the timer would wake up too late.
    fn is_late(&self) -> bool {
        match (self.pipeline.wake_at(), self.wake_at) {
            (Some(due), Some(wake_at)) => due < wake_at,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

impl Connection {
    pub(super) fn start(ttl: Duration, leader_discovery: Arc<LeaderDiscovery>) -> Self {
        Self::with(Pipeline::new(ttl, clock::boot()), leader_discovery)
    }

    /// One that has one session and no other.
    pub(super) fn once(ttl: Duration, leader_discovery: Arc<LeaderDiscovery>) -> Self {
        Self::with(Pipeline::once(ttl, clock::boot()), leader_discovery)
    }

    fn with(pipeline: Pipeline, leader_discovery: Arc<LeaderDiscovery>) -> Self {
        let pipeline = pipeline.with_secret(draw_secret());
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                pipeline,
                writer: None,
                stream: 0,
                closed: false,
                ended: false,
                wake_at: None,
            }),
            wanted: Notify::new(),
            timer_changed: Notify::new(),
            no_answers: Notify::new(),
            leader_discovery,
        });
        drive::background().spawn(Arc::clone(&shared).serve());
        drive::background().spawn(Arc::clone(&shared).keep_time());
        Self { shared }
    }

    /// Puts a request into the pipeline. It is answered through its reply,
    /// also if there is no room for it.
    pub(super) fn submit(&self, op: PendingRequest<RequestKind>) {
        self.submit_all(std::iter::once(op));
    }

    /// The same for many, which stay in this order.
    pub(super) fn submit_all(&self, requests: impl Iterator<Item = PendingRequest<RequestKind>>) {
        let mut refused = Vec::new();
        let mut state = self.shared.lock();
        for op in requests {
            if let Err(turned_away) = state.pipeline.push(op) {
                refused.push(turned_away);
            }
        }
        let late = state.is_late();
        let writer = state.writer.take();
        let idle = !state.pipeline.is_connected();
        drop(state);
        match writer {
            Some(writer) => writer.wake(),
            None if idle => self.shared.wanted.notify_one(),
            None => {}
        }
        if late {
            self.shared.timer_changed.notify_one();
        }
        for (reply, error) in refused {
            reply.tell(Err(error));
        }
    }

    /// Whether its one session is over.
    pub(super) fn is_over(&self) -> bool {
        self.shared.lock().pipeline.is_over()
    }

    /// The session that is open.
    pub(super) fn session(&self) -> Option<u64> {
        self.shared.lock().pipeline.session()
    }

    /// Ends the session, if there is one, and waits a moment for that.
    pub(super) async fn close(&self) {
        if let Some(answer) = self.begin_to_close() {
            // On the background's clock: the caller's executor may have none.
            let wait = drive::background().spawn(timeout(CLOSE_WITHIN, answer));
            drop(wait.await);
        }
    }

    fn begin_to_close(&self) -> Option<oneshot::Receiver<super::pipeline::Outcome>> {
        let (waiter, answer) = oneshot::channel();
        let mut state = self.shared.lock();
        let refused = state.pipeline.close(clock::boot(), Reply::One(waiter));
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        refused.is_none().then_some(answer)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.pipeline.close(clock::boot(), Reply::Nobody);
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        self.shared.wanted.notify_one();
        self.shared.timer_changed.notify_one();
    }
}

/// Draws 128 bits. A system that gives none leaves its sessions to any client
/// that has its token, as they were before there were secrets.
fn draw_secret() -> Bytes {
    let mut secret = [0; 16];
    match getrandom::fill(&mut secret) {
        Ok(()) => Bytes::copy_from_slice(&secret),
        Err(error) => {
            tracing::warn!("sessions are opened without a secret: {error}");
            Bytes::new()
        }
    }
}

/// How a stream came to its end.
struct End {
    why: String,
    hint: Option<String>,
    /// Whether it brought any answer.
    useful: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self: Arc<Self>) {
        self.keep_connected().await;
        self.lock().ended = true;
        self.timer_changed.notify_one();
    }

    /// Keeps a stream to the leader up while one is wanted.
    async fn keep_connected(self: &Arc<Self>) {
        let (mut past, mut pause) = (0, Duration::ZERO);
        loop {
            while !self.lock().pipeline.wants_connection() {
                if self.lock().closed {
                    return;
                }
                self.wanted.notified().await;
            }
            let found = tokio::select! {
                found = self.leader_discovery.leader(past) => found,
                () = self.closing() => return,
            };
            let mut leader = match found {
                Ok(leader) => leader,
                Err(error) => {
                    self.turn_away(&error);
                    pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_REFUSED);
                    tokio::time::sleep(jitter(pause)).await;
                    continue;
                }
            };
            let end = tokio::select! {
                end = self.exchange(&mut leader) => end,
                () = self.closing() => return,
            };
            past = leader.search;
            tracing::debug!("{}: {}", leader.address, end.why);
            if let Some(hint) = &end.hint {
                self.leader_discovery.learn(hint);
            }
            self.end_stream(&end.why);
            if end.useful {
                pause = Duration::ZERO;
            } else {
                tokio::time::sleep(jitter(pause)).await;
                pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            }
        }
    }

    /// Waits until the connection is closed and has had time to say so.
    async fn closing(&self) {
        loop {
            if self.lock().closed {
                let over = async {
                    while self.lock().pipeline.wants_connection() {
                        self.wanted.notified().await;
                    }
                };
                let _ = timeout(CLOSE_WITHIN, over).await;
                return;
            }
            self.wanted.notified().await;
        }
    }

    /// Nobody lets this client in.
    fn turn_away(&self, error: &Error) {
        let mut outcomes = Outcomes::new();
        self.lock().pipeline.turn_away(error, &mut outcomes);
        tell(outcomes);
    }

    fn end_stream(&self, why: &str) {
        let mut outcomes = Outcomes::new();
        let mut state = self.lock();
        // Whatever the old stream still holds, it writes no more.
        state.stream += 1;
        state.writer = None;
        state.pipeline.disconnected(why, &mut outcomes);
        drop(state);
        tell(outcomes);
    }

    async fn exchange(self: &Arc<Self>, leader: &mut Leader) -> End {
        let mut useful = false;
        let mut tasks = InlineTasks::default();
        let executor = tasks.executor();
        let exchange = async {
            match self.open(leader, executor).await {
                Ok((channel, answers)) => {
                    let taken = self.take_answers(leader, &channel, answers, &mut useful);
                    taken.await
                }
                Err(end) => end,
            }
        };
        let (why, hint) = tasks.beside(exchange).await;
        End { why, hint, useful }
    }

    async fn open(
        self: &Arc<Self>,
        leader: &Leader,
        executor: InlineExecutor,
    ) -> Result<(Channel, tonic::Streaming<v1::Answers>), (String, Option<String>)> {
        let dialer = self.leader_discovery.dialer();
        let connecting = dialer.connect(&leader.address, executor);
        let channel = connecting.await.map_err(|why| (why, None))?;
        let client = PipelineClient::new(channel.clone());
        let mut client = client.max_decoding_message_size(ANSWER_BYTES_MAX);
        let stream = {
            let mut state = self.lock();
            state.stream += 1;
            state.pipeline.connected(clock::boot());
            state.pipeline.adapt_to(self.leader_discovery.round_trips());
            state.stream
        };
        let within = self.leader_discovery.round_trips().timeout(ACCEPT_WITHIN);
        let outgoing = Outgoing {
            shared: Arc::clone(self),
            stream,
        };
        match timeout(within, client.exchange(outgoing)).await {
            Ok(Ok(answers)) => Ok((channel, answers.into_inner())),
            Ok(Err(status)) => Err(refused(&status)),
            Err(_) => Err((format!("no stream within {}", about(within)), None)),
        }
    }

    async fn take_answers(
        &self,
        leader: &mut Leader,
        channel: &Channel,
        mut answers: tonic::Streaming<v1::Answers>,
        useful: &mut bool,
    ) -> (String, Option<String>) {
        let mut outcomes = Outcomes::new();
        let mut checks = 0;
        let mut looking = None;
        loop {
            let message = tokio::select! {
                message = answers.message() => message,
                () = self.no_answers.notified(), if looking.is_none() => {
                    let channel = self.lock().pipeline.awaits_little().then(|| channel.clone());
                    looking = Some(Box::pin(self.still_leads(leader.clone(), channel)));
                    continue;
                }
                found = found_leader(&mut looking) => {
                    looking = None;
                    checks += 1;
                    match found {
                        Ok(_) if checks > CHECKS_MAX => return ("no answers".into(), None),
                        Ok(found) => *leader = found,
                        Err(why) => return (why, None),
                    }
                    continue;
                }
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return ("the server has ended the stream".into(), None),
                Err(status) => return refused(&status),
            };
            (checks, looking) = (0, None);
            let verdict = self.take(message, &mut outcomes);
            tell(outcomes.drain(..));
            match verdict {
                Verdict::Stay => *useful = true,
                Verdict::Leave { why, hint } => return (why, hint),
            }
        }
    }

    /// Whether a leader that has sent no answers is slow, and leads: found anew. Where
    /// little is under way over its connection, `channel`, it has to answer there too:
    /// the connection may have been cut off without a word. Where much is, that question
    /// would wait behind it, on a line that is narrow and in order.
    ///
    /// # Errors
    /// Why the connection is of no use: another leads, or nothing comes over it.
    async fn still_leads(
        &self,
        leader: Leader,
        channel: Option<Channel>,
    ) -> Result<Leader, String> {
        let found = self.leader_discovery.leader(leader.search).await;
        let found = found.map_err(|error| error.to_string())?;
        if found.address != leader.address {
            return Err(format!("no answers, and {} leads", found.address));
        }
        let Some(channel) = channel else {
            return Ok(found);
        };
        let within = self.leader_discovery.round_trips().timeout(ACCEPT_WITHIN);
        match timeout(within, status(channel)).await {
            Ok(_) => Ok(found),
            Err(_) => Err(format!("nothing came for {}", about(within))),
        }
    }

    /// Hands answers to the pipeline, and lets the stream write what they
    /// make room for.
    fn take(&self, message: v1::Answers, outcomes: &mut Outcomes) -> Verdict {
        let mut verdict = Verdict::Stay;
        let now = clock::boot();
        let mut state = self.lock();
        for answer in message.answers {
            match state.pipeline.answered(now, answer, outcomes) {
                Verdict::Stay => {}
                leave @ Verdict::Leave { .. } => verdict = leave,
            }
        }
        if let Some(time) = state.pipeline.take_answer_time() {
            let round_trips = self.leader_discovery.round_trips();
            round_trips.record_answer(time);
            state.pipeline.adapt_to(round_trips);
        }
        let writer = if state.pipeline.has_unsent() {
            state.writer.take()
        } else {
            None
        };
        let (closed, late) = (state.closed, state.is_late());
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        if closed {
            self.wanted.notify_one();
        }
        if late {
            self.timer_changed.notify_one();
        }
        verdict
    }

    /// Does what time asks for.
    async fn keep_time(self: Arc<Self>) {
        let mut outcomes = Outcomes::new();
        loop {
            let wake_at = {
                let mut state = self.lock();
                if state.ended {
                    return;
                }
                state.wake_at = state.pipeline.wake_at();
                state.wake_at
            };
            tokio::select! {
                () = self.timer_changed.notified() => {}
                () = drive::until(wake_at) => {}
            }
            let writer = {
                let mut state = self.lock();
                if !state.pipeline.is_connected() {
                    state.pipeline.trouble(&self.leader_discovery.trouble());
                }
                let due = state.pipeline.tick(clock::boot(), &mut outcomes);
                if due.no_answers {
                    self.no_answers.notify_one();
                }
                if due.send {
                    self.wanted.notify_one();
                    state.writer.take()
                } else {
                    None
                }
            };
            tell(outcomes.drain(..));
            if let Some(writer) = writer {
                writer.wake();
            }
        }
    }
}

async fn found_leader<F: Future + Unpin>(looking: &mut Option<F>) -> F::Output {
    match looking {
        Some(looking) => looking.await,
        None => std::future::pending().await,
    }
}

fn tell(outcomes: impl IntoIterator<Item = (Reply, super::pipeline::Outcome)>) {
    for (reply, outcome) in outcomes {
        reply.tell(outcome);
    }
}

/// Why a stream was refused or broke, and who might lead.
fn refused(status: &tonic::Status) -> (String, Option<String>) {
    let hint = carried(status)
        .map(|error| error.leader_address)
        .filter(|address| !address.is_empty());
    (sentence(status), hint)
}

/// What the stream sends: whatever has piled up, whenever it can.
struct Outgoing {
    shared: Arc<Shared>,
    stream: u64,
}

impl Stream for Outgoing {
    type Item = v1::Requests;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<v1::Requests>> {
        let mut state = self.shared.lock();
        if state.stream != self.stream {
            return Poll::Ready(None);
        }
        match state.pipeline.message(clock::boot()) {
            Some(message) => {
                let late = state.is_late();
                drop(state);
                if late {
                    // From now on an answer is waited for.
                    self.shared.timer_changed.notify_one();
                }
                Poll::Ready(Some(message))
            }
            None => {
                state.writer = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
