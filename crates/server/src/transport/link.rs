//! The connection to one other server: dialled, greeted, written, made again.
//!
//! The event loop encodes frames straight into the link's queue and
//! goes on; a task writes whatever has piled up in one piece. While there is
//! no connection nothing is queued: what could not be said then is out of
//! date by the time it could.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::AbortHandle;
use tenure_alpo::codec::encode_frame_with;
use tenure_alpo::{Envelope, ServerId};
use tenure_runtime::tls::MaybeTlsStream;
use tenure_runtime::{clock, lookup};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::frames::PeerKeepAlive;
use super::greeting::{Greeting, GreetingAnswer, GreetingError};
use super::handshake::{Form, GreetingReply, Introduced, Prover, greet};
use super::tasks::Tasks;
use super::tls::Tls;

/// How many bytes may wait to be written to one server; what comes on top is
/// dropped, and asked for again by the protocol.
pub const QUEUE_BYTES: usize = 32 * 1024 * 1024;
/// How long a connection and its greeting may take, or an election timeout if that
/// is longer. They are up to four round trips, and a timeout is five at least:
/// servers that are far apart would never connect within a fixed time.
const DIAL_WITHIN: Duration = Duration::from_secs(3);
/// How long a write may make no progress before the connection is given up.
const WRITE_WITHIN: Duration = Duration::from_secs(10);
/// How long what was sent may stay unacknowledged by the other side's system
/// before the connection is given up. Without it a connection outlives a cut of
/// the network, and after that the system waits to send again for as long as
/// the cut was: two servers that reach each other would not talk. A sign of
/// life is always under way, so each cut is noticed. Or an election timeout, if
/// that is longer.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(2);
/// How long to wait before dialling again, at first and at most.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// How long to wait where the other side has said that it will talk soon.
const LATER: Duration = Duration::from_millis(100);
/// How many keep-alives a server gives in an election timeout.
const KEEP_ALIVES: u32 = 4;

/// What a link has to tell.
#[derive(Debug)]
pub enum LinkEvent {
    /// It is up, and this is who is at the other end.
    Up(Box<Introduced>),
    /// The other side answered with something else than a welcome. Nothing
    /// of it counts before its proof was looked at.
    Unwelcome(Box<GreetingReply>),
    /// One side does not believe the other, or speaks no TLS: what was
    /// expected, what was found and what to do. Trying again will not help
    /// until an operator has mended that.
    Untrusted(String),
    /// Another server is there than the one that was dialled: which was
    /// expected, which was found and what to do.
    Elsewhere(String),
    /// It could not be made.
    Failed(String),
    /// It was up and is not any more.
    Down,
}

/// A connection that is kept up until this is dropped.
#[derive(Debug)]
pub struct Link {
    queue: Arc<Queue>,
    addresses: Vec<String>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    more: Notify,
    /// The other side is known to be there.
    dial_now: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    up: bool,
    bytes: Vec<u8>,
    dropped: u64,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Keeps a connection to `server` with one of `tasks`, at the first of
    /// `addresses` where it is found: they are tried in turn. `greet` makes the
    /// greeting anew for each connection, `tell` hears at which address, and
    /// what becomes of them, and says whether to use the connection. On one
    /// that began in the second form the keep-alive that `live` makes is said
    /// four times in an election timeout.
    pub fn start(
        tasks: &Tasks,
        addresses: Vec<String>,
        server: ServerId,
        (tls, prover): (Option<Arc<Tls>>, Prover),
        greet: impl Fn() -> Greeting + Send + 'static,
        (election_timeout, live): (Duration, impl Fn() -> PeerKeepAlive + Send + 'static),
        tell: impl FnMut(&str, LinkEvent) -> bool + Send + 'static,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        let dialler = Dialler {
            queue: Arc::clone(&queue),
            addresses: addresses.clone(),
            turn: 0,
            server,
            tls,
            prover,
            greet,
            election_timeout,
            live,
            tell,
        };
        let task = tasks.spawn(dialler.run());
        Self {
            queue,
            addresses,
            task,
        }
    }

    /// Where it looks for the server.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Whether it is up.
    pub fn is_up(&self) -> bool {
        self.queue.lock().up
    }

    /// The server is known to be there: if the link is down it is dialled at
    /// once, instead of after the pause that its silence had led to.
    pub fn dial_now(&self) {
        if !self.is_up() {
            self.queue.dial_now.notify_one();
        }
    }

    /// How many messages were dropped because too much was waiting.
    pub fn dropped(&self) -> u64 {
        self.queue.lock().dropped
    }

    /// Queues a message; drops it while the link is down or too much waits.
    pub fn send(&self, envelope: &Envelope) {
        let mut waiting = self.queue.lock();
        if !waiting.up {
            return;
        }
        if waiting.bytes.len() >= QUEUE_BYTES {
            waiting.dropped += 1;
            return;
        }
        let first = waiting.bytes.is_empty();
        encode_frame_with(crc32c::crc32c_append, &mut waiting.bytes, envelope);
        drop(waiting);
        if first {
            self.queue.more.notify_one();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Dialler<G, L, T> {
    queue: Arc<Queue>,
    addresses: Vec<String>,
    /// Which of the addresses is tried next.
    turn: usize,
    server: ServerId,
    tls: Option<Arc<Tls>>,
    prover: Prover,
    greet: G,
    election_timeout: Duration,
    live: L,
    tell: T,
}

impl<G, L, T> Dialler<G, L, T>
where
    G: Fn() -> Greeting,
    L: Fn() -> PeerKeepAlive,
    T: FnMut(&str, LinkEvent) -> bool,
{
    async fn run(mut self) {
        let [mut back_off, most] = BACK_OFF;
        let dial_within = DIAL_WITHIN.max(self.election_timeout);
        loop {
            match timeout(dial_within, self.dial()).await {
                Ok(Ok(Dialled::Used(stream, form))) => {
                    [back_off, _] = BACK_OFF;
                    self.queue.lock().up = true;
                    let every = self.election_timeout / KEEP_ALIVES;
                    let every = (form == Form::Second).then_some(every);
                    let _ = write(&self.queue, stream, (every, &mut self.live)).await;
                    let mut waiting = self.queue.lock();
                    waiting.up = false;
                    waiting.bytes = Vec::new();
                    drop(waiting);
                    let address = self.address();
                    (self.tell)(&address, LinkEvent::Down);
                }
                // It was refused, by one side or the other.
                Ok(Ok(Dialled::Refused)) => back_off = most,
                Ok(Ok(Dialled::Later)) => back_off = LATER,
                Ok(Err(fault)) => self.failed(fault),
                Err(_) => self.failed(DialError::Other(format!(
                    "no answer within {dial_within:?}"
                ))),
            }
            tokio::select! {
                () = sleep(back_off) => back_off = (back_off * 2).min(most),
                () = self.queue.dial_now.notified() => [back_off, _] = BACK_OFF,
            }
        }
    }

    fn failed(&mut self, fault: DialError) {
        let event = match fault {
            DialError::Trust(why) => LinkEvent::Untrusted(why),
            DialError::Server(why) => LinkEvent::Elsewhere(why),
            DialError::Other(why) | DialError::Unanswered(why) => LinkEvent::Failed(why),
        };
        let address = self.address();
        (self.tell)(&address, event);
        self.turn += 1;
    }

    fn broken(&self, error: &std::io::Error) -> DialError {
        let tls = self.tls.as_ref();
        let tls_cause = tls.and_then(|tls| tls.explain_tls_error(error));
        tls_cause.map_or_else(|| DialError::Other(error.to_string()), DialError::Trust)
    }

    fn elsewhere(&self, found: ServerId) -> DialError {
        let (wanted, found) = (self.server.get(), found.get());
        DialError::Server(format!(
            "expected server {wanted}, found server {found}; compare this address with --peers of \
             server {wanted}, and correct --peers of whichever server has it wrong"
        ))
    }

    fn address(&self) -> String {
        let count = self.addresses.len().max(1);
        let address = self.addresses.get(self.turn % count);
        address.cloned().unwrap_or_default()
    }

    async fn dial(&mut self) -> Result<Dialled, DialError> {
        let greeting = (self.greet)();
        // Each time in the second form first: a server that was upgraded is
        // met in it at once. One that knows only the first ends the
        // connection without a word, having taken no part in anything, and is
        // dialled again without a pause.
        let (stream, answered) = match self.greeted(&greeting, Form::Second).await {
            Err(DialError::Unanswered(_)) if greeting.may_be_first() => {
                self.greeted(&greeting, Form::First).await?
            }
            met => met?,
        };
        let address = self.address();
        let GreetingReply {
            answer,
            proof,
            transcript,
        } = answered;
        match answer {
            GreetingAnswer::Welcome(greeting) if greeting.hello.server != self.server => {
                Err(self.elsewhere(greeting.hello.server))
            }
            GreetingAnswer::Welcome(greeting) => {
                let form = match greeting.details {
                    Some(_) => Form::Second,
                    None => Form::First,
                };
                let introduced = Box::new(Introduced {
                    greeting: *greeting,
                    form,
                    proof,
                    transcript,
                });
                let use_it = (self.tell)(&address, LinkEvent::Up(introduced));
                Ok(if use_it {
                    Dialled::Used(stream, form)
                } else {
                    Dialled::Refused
                })
            }
            answer => {
                let later = matches!(answer, GreetingAnswer::Later(_));
                let answered = GreetingReply {
                    answer,
                    proof,
                    transcript,
                };
                (self.tell)(&address, LinkEvent::Unwelcome(Box::new(answered)));
                Ok(if later {
                    Dialled::Later
                } else {
                    Dialled::Refused
                })
            }
        }
    }

    /// Connects, greets and hears the answer.
    async fn greeted(
        &mut self,
        greeting: &Greeting,
        form: Form,
    ) -> Result<(MaybeTlsStream, GreetingReply), DialError> {
        let acknowledged_within = ACKNOWLEDGED_WITHIN.max(self.election_timeout);
        let connected = connect(self.address(), self.tls.clone(), acknowledged_within).await;
        let mut stream = connected.map_err(|error| self.broken(&error))?;
        if let Some(tls) = &self.tls {
            // Before this side says anything of the cluster.
            tls.proves(&stream, self.server).map_err(DialError::Trust)?;
        }
        // A peer that does not believe this side says so here: its own part of
        // the handshake is over before it has looked at the certificate.
        let answered = greet(&mut stream, form, Some(self.server), greeting, &self.prover);
        let answered = answered.await.map_err(|error| match error {
            GreetingError::Elsewhere(found) => self.elsewhere(found),
            GreetingError::Io(error) => self.broken(&error),
            GreetingError::Unanswered(why) => match self.broken(&why) {
                DialError::Other(_) => {
                    DialError::Unanswered(GreetingError::Unanswered(why).to_string())
                }
                trust => trust,
            },
            other => DialError::Other(other.to_string()),
        })?;
        Ok((stream, answered))
    }
}

/// What became of a greeting that was answered.
enum Dialled {
    /// The connection is used.
    Used(MaybeTlsStream, Form),
    /// It was refused, by one side or the other.
    Refused,
    /// It was refused for the moment.
    Later,
}

/// Why there is no connection.
enum DialError {
    /// One side does not believe the other.
    Trust(String),
    /// It is another server.
    Server(String),
    /// It ended the connection without a word.
    Unanswered(String),
    /// Anything else.
    Other(String),
}

#[cfg_attr(
    not(target_os = "linux"),
    allow(unused_variables, reason = "a limit that only Linux has")
)]
async fn connect(
    address: String,
    tls: Option<Arc<Tls>>,
    acknowledged_within: Duration,
) -> std::io::Result<MaybeTlsStream> {
    let stream = lookup::connect(&address).await?;
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        let within = u32::try_from(acknowledged_within.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(&stream, within)?;
    }
    match tls {
        Some(tls) => tls.connect(stream, &address).await,
        None => Ok(MaybeTlsStream::Plain(stream)),
    }
}

/// Writes what is queued until the connection breaks. The other side says
/// nothing more, so that anything read means that it has ended.
async fn write(
    queue: &Queue,
    stream: MaybeTlsStream,
    (every, live): (Option<Duration>, &mut impl Fn() -> PeerKeepAlive),
) -> std::io::Result<()> {
    let (mut from, mut to) = tokio::io::split(stream);
    let mut spare = Vec::new();
    let mut byte = [0];
    let mut live_at = clock::boot();
    loop {
        let more = queue.more.notified();
        std::mem::swap(&mut queue.lock().bytes, &mut spare);
        let now = clock::boot();
        if let Some(every) = every
            && live_at <= now
        {
            live().encode(&mut spare);
            live_at = now.after(every);
        }
        if spare.is_empty() {
            let due = async {
                match every {
                    Some(_) => sleep(live_at.since(now)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = more => {}
                () = due => {}
                ended = from.read(&mut byte) => return ended.map(drop),
            }
            continue;
        }
        timeout(WRITE_WITHIN, to.write_all(&spare)).await??;
        timeout(WRITE_WITHIN, to.flush()).await??;
        spare.clear();
        spare.shrink_to(4 * 1024 * 1024);
    }
}

#[cfg(test)]
mod tests {
    use tenure_alpo::DiskProgress;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::super::greeting::tests::greeting;
    use super::*;

    /// A server that takes connections and says nothing is waited for so long, with
    /// this election timeout.
    async fn dial_takes(election_timeout: Duration, wanted: Duration) {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = silent.local_addr().expect("an address").to_string();
        let (tasks, (tell, mut told)) = (Tasks::default(), mpsc::unbounded_channel());
        let live = || PeerKeepAlive {
            disk_progress: DiskProgress::default(),
        };
        let _link = Link::start(
            &tasks,
            vec![address],
            ServerId::new(2).expect("a number"),
            (None, Prover::default()),
            greeting,
            (election_timeout, live),
            move |_, event| {
                let _ = tell.send(event);
                false
            },
        );
        // Its connection stands before time passes.
        let begun = tasks.beside(silent.accept()).await;
        let _connection = begun.expect("a connection");
        let almost = wanted - Duration::from_millis(50);
        let early = timeout(almost, tasks.beside(told.recv())).await;
        assert!(early.is_err(), "{early:?}");
        let event = timeout(Duration::from_millis(100), tasks.beside(told.recv())).await;
        let event = event.expect("in time").expect("an event");
        assert!(matches!(event, LinkEvent::Failed(_)), "{event:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn servers_that_are_far_apart_have_an_election_timeout_to_connect() {
        for (timeout, wanted) in [(250, 3_000), (3_000, 3_000), (8_000, 8_000)] {
            let [timeout, wanted] = [timeout, wanted].map(Duration::from_millis);
            dial_takes(timeout, wanted).await;
        }
    }
}
