//! The connection that calls go over: to one server at a time, opened when needed,
//! shared by all calls, left for the next server when it becomes suspect.
//!
//! A connection is believed to be open when the bucket has been looked at over it, until
//! it breaks. The library connects again by itself, once and to the same server; that is
//! not used, and the next call opens another connection. What the library has not sent by
//! then is never sent.
//!
//! A call that is given up before its answer has come leaves its connection where nothing
//! else was answered meanwhile: the server may be gone, or cut off from the others, and the
//! next call finds out.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, HeaderMap, Message, Subscriber};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;

use super::bucket::{Bucket, Entry};
use super::classify::{self, Refusal, TURN_ON, Unanswered};
use super::settings::{Login, Settings};
use super::streams::{self, FoundStream};
use crate::clock;
use crate::error::StoreError;
use crate::store::dial::{
    ConnectFn, Connection, Dialer, HANDSHAKE_WITHIN, OTHERS_WITHIN, answers_of, comparable,
};
use crate::store::{MAX_VALUE_BYTES, no_store, system_authorities};

/// What a message takes beside its value, at most.
const OVERHEAD: usize = 8 * 1_024;
/// How often a silent connection is asked whether it lives. Two questions without an
/// answer end it.
const PING_EVERY: Duration = Duration::from_secs(10);
/// How many messages may wait to be taken from a subscription.
const MESSAGES_MAX: usize = 4_096;
/// The replicas of a bucket that is made in a cluster, if the URL names no number.
const REPLICAS: u8 = 3;
/// By what number a message must be preceded in its subject.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// When to ask again, in a handshake, what has no answer yet.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// When the library connects again by itself.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// How much later than the first other answers to one question may come.
const ANSWERS_WITHIN: Duration = Duration::from_millis(200);
/// How often another server is asked for an answer that is to come over this connection.
const ASKED_MAX: u32 = 6;
/// How long one of several addresses of a name may take: a server at a distance of a
/// second has answered, and there is time for two more.
const ADDRESS_WITHIN: Duration = Duration::from_secs(6);
/// What the server says when it does not let us send or hear something.
const FORBIDDEN: &str = "Permissions Violation";
/// The same of a subscription; all of ours are to answers and to what a stream tells.
const FORBIDDEN_TO_HEAR: &str = "Permissions Violation for Subscription";

/// Opens connections and carries out calls. Clones are the same one.
#[derive(Clone)]
pub(super) struct NatsClient {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Arc<Settings>,
    dialer: Dialer<NatsConnection>,
}

/// Questions to the other servers of the URL that are under way.
type Asked = JoinSet<Option<FoundStream<NatsConnection>>>;

/// An open connection.
#[derive(Clone)]
pub(super) struct NatsConnection {
    client: Client,
    /// What the server has said last that it does not let us do.
    forbidden: watch::Receiver<String>,
    /// It broke. The library may have made another, whose server was not looked at.
    was_lost: Arc<AtomicBool>,
    /// Tells connections apart.
    identity: Arc<()>,
}

impl Connection for NatsConnection {
    fn is_open(&self) -> bool {
        let is_connected = self.client.connection_state() == State::Connected;
        is_connected && !self.was_lost.load(Ordering::Acquire)
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }
}

impl fmt::Debug for NatsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsClient({})", self.shared.settings)
    }
}

impl NatsClient {
    /// Makes the bucket where it is missing if `create` says so.
    pub(super) fn new(settings: &Arc<Settings>, create: bool) -> Self {
        let (all, was_there) = (Arc::clone(settings), Arc::new(AtomicBool::new(false)));
        let connect_to: ConnectFn<NatsConnection> = Arc::new(move |at| {
            let (settings, was_there) = (Arc::clone(&all), Arc::clone(&was_there));
            Box::pin(async move {
                let others = ask_others(&settings, at);
                let connection = connect(&settings, at).await?;
                let stream = info(&settings, &connection).await?;
                let stream = compare(&settings, at, &connection, stream, others).await?;
                let is_new = streams::made(&stream).is_none();
                let stream = look(&settings, &connection, stream, create, &was_there).await?;
                if is_new {
                    // Another process may have made one on another server meanwhile.
                    let others = ask_others(&settings, at);
                    compare(&settings, at, &connection, stream, others).await?;
                }
                Ok(connection)
            })
        });
        let dialer = Dialer::new(settings.to_string(), settings.hosts.clone(), 0, connect_to);
        Self {
            shared: Arc::new(Shared {
                settings: Arc::clone(settings),
                dialer,
            }),
        }
    }

    fn bucket(&self) -> Bucket<'_> {
        self.shared.settings.bucket()
    }

    /// The open connection, or a new one. The caller gives up when its own time is
    /// over, and dialling goes on.
    pub(super) async fn connected(&self) -> Result<NatsConnection, StoreError> {
        let until = clock::boot().after(HANDSHAKE_WITHIN);
        self.shared.dialer.connected(until).await
    }

    /// Sends a message, and waits for the answer.
    async fn ask(
        &self,
        connection: &NatsConnection,
        subject: String,
        headers: HeaderMap,
        payload: Vec<u8>,
    ) -> Result<Value, Unanswered> {
        let pending = self.shared.dialer.pending(connection);
        let answer = connection.ask(subject, headers, payload).await;
        pending.ended(answer.is_ok());
        answer
    }

    /// Asks the interface of JetStream something that changes no register.
    async fn api(&self, call: &str, question: &Value) -> Result<Value, StoreError> {
        let connection = self.connected().await?;
        let subject = api(self.bucket(), call);
        let asked = question.to_string().into_bytes();
        let answered = self
            .ask(&connection, subject, HeaderMap::new(), asked)
            .await;
        answered.map_err(Unanswered::reading)
    }

    /// The last message of a subject, by the stream's leader.
    pub(super) async fn last(&self, subject: &str) -> Result<Option<Entry>, StoreError> {
        let question = json!({ "last_by_subj": subject });
        let answer = self.api("STREAM.MSG.GET", &question).await?;
        match Refusal::find(&answer) {
            Some(refusal) if refusal.is_no_message() => Ok(None),
            Some(refusal) => Err(refusal.reading(self.bucket())),
            None => Entry::parse(answer.get("message").unwrap_or(&Value::Null)).map(Some),
        }
    }

    /// Stores a message if the last one of its subject has the expected number; its
    /// own number.
    pub(super) async fn publish(
        &self,
        subject: &str,
        expected: u64,
        mut headers: HeaderMap,
        value: &[u8],
    ) -> Result<u64, StoreError> {
        headers.insert(EXPECTED, expected.to_string());
        let connection = self.connected().await?;
        let (subject, value) = (subject.to_owned(), value.to_vec());
        let answered = self.ask(&connection, subject, headers, value).await;
        let answer = answered.map_err(Unanswered::writing)?;
        if let Some(refusal) = Refusal::find(&answer) {
            return Err(refusal.writing(self.bucket()));
        }
        let number = answer.get("seq").and_then(Value::as_u64);
        // An answer that cannot be read says nothing of what was done.
        number
            .filter(|number| *number > expected)
            .ok_or_else(|| StoreError::unknown("expected the number of a message from JetStream"))
    }

    /// The subjects that match, by the stream's leader.
    pub(super) async fn subjects(&self, filter: &str) -> Result<Vec<String>, StoreError> {
        let mut subjects = Vec::new();
        loop {
            let question = json!({ "subjects_filter": filter, "offset": subjects.len() });
            let answer = self.api("STREAM.INFO", &question).await?;
            if let Some(refusal) = Refusal::find(&answer) {
                return Err(refusal.reading(self.bucket()));
            }
            let found = answer.get("state").and_then(|state| state.get("subjects"));
            let found = found.and_then(Value::as_object);
            let before = subjects.len();
            subjects.extend(
                found
                    .into_iter()
                    .flatten()
                    .map(|(subject, _)| subject.clone()),
            );
            let total = answer.get("total").and_then(Value::as_u64).unwrap_or(0);
            let is_all = u64::try_from(subjects.len()).is_ok_and(|have| have >= total);
            if is_all || subjects.len() == before {
                return Ok(subjects);
            }
        }
    }

    /// Has the stream tell of its messages, from now on and without their values.
    pub(super) async fn consume(&self) -> Result<Subscriber, StoreError> {
        let connection = self.connected().await?;
        let inbox = connection.client.new_inbox();
        let subscribed = connection.client.subscribe(inbox.clone()).await;
        let subscriber = subscribed.map_err(StoreError::unavailable)?;
        let bucket = self.bucket();
        let config = json!({
            "deliver_subject": inbox,
            "deliver_policy": "new",
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": bucket.all(),
            "headers_only": true,
            "idle_heartbeat": 5_000_000_000_u64,
            "inactive_threshold": 30_000_000_000_u64,
            "mem_storage": true,
            "num_replicas": 1,
        });
        let question = json!({ "stream_name": bucket.stream(), "config": config });
        let answer = self.api("CONSUMER.CREATE", &question).await?;
        match Refusal::find(&answer) {
            Some(refusal) => Err(refusal.reading(bucket)),
            None => Ok(subscriber),
        }
    }
}

/// Where a call of JetStream's interface about the bucket goes.
fn api(bucket: Bucket<'_>, call: &str) -> String {
    format!("$JS.API.{call}.{}", bucket.stream())
}

impl NatsConnection {
    /// Sends a message, and waits for the answer.
    async fn ask(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Vec<u8>,
    ) -> Result<Value, Unanswered> {
        let mut forbidden = self.forbidden.clone();
        forbidden.mark_unchanged();
        let asking = async {
            let (subject, payload) = (subject.clone(), payload.into());
            // An empty map would be sent as headers all the same.
            if headers.is_empty() {
                self.client.request(subject, payload).await
            } else {
                self.client
                    .request_with_headers(subject, headers, payload)
                    .await
            }
        };
        tokio::pin!(asking);
        let answer = loop {
            tokio::select! {
                answer = &mut asking => break answer,
                changed = forbidden.changed() => {
                    // The connection has ended, and says nothing more.
                    if changed.is_err() {
                        break asking.await;
                    }
                    let words = forbidden.borrow_and_update().clone();
                    if words.contains(&subject) {
                        return Err(Unanswered::NotDone(classify::forbidden(&words)));
                    }
                    if words.contains(FORBIDDEN_TO_HEAR) {
                        return Err(Unanswered::Unheard);
                    }
                }
            }
        };
        let answer = answer.map_err(|error| Unanswered::new(&error))?;
        let parsed = serde_json::from_slice(&answer.payload);
        parsed.map_err(|error| Unanswered::Lost(format!("expected JSON from JetStream: {error}")))
    }

    /// What JetStream says of the stream of a bucket.
    async fn stream_info(&self, bucket: Bucket<'_>) -> Result<Value, StoreError> {
        self.api(&api(bucket, "STREAM.INFO"), &json!({})).await
    }

    /// Whether this server and another one name two leaders of the stream, when they are
    /// asked one after the other, and the first once more.
    async fn names_another_leader_than(&self, other: &Self, bucket: Bucket<'_>) -> bool {
        let ask = async |connection: &Self| {
            let answer = timeout(HANDSHAKE_WITHIN / 10, connection.stream_info(bucket)).await;
            streams::leader(&answer.ok()?.ok()?).map(str::to_owned)
        };
        let (own, its, again) = (ask(self).await, ask(other).await, ask(self).await);
        own.is_some() && its.is_some() && own == again && own != its
    }

    /// Whether answers to questions that another server is asked do not come over this
    /// connection, though that server answers; or come from two streams, as where one
    /// server is a leaf node of the other. (To publish otherwise takes other rights.)
    async fn is_apart_from(&self, other: &Self, bucket: Bucket<'_>) -> bool {
        let inbox = self.client.new_inbox();
        let Ok(mut heard) = self.client.subscribe(inbox.clone()).await else {
            return false;
        };
        // The server has it before the other one is asked.
        if self.client.flush().await.is_err() {
            return false;
        }
        for _ in 0..ASKED_MAX {
            let (subject, to) = (api(bucket, "STREAM.INFO"), inbox.clone());
            let asked = other.client.publish_with_reply(subject, to, "{}".into());
            if asked.await.is_err() {
                return false;
            }
            if let Ok(Some(first)) = timeout(ASK_AGAIN_AFTER, heard.next()).await {
                return leaders(first, &mut heard).await.len() > 1;
            }
        }
        // It may have gone meanwhile, or its stream may have no leader.
        let there = timeout(HANDSHAKE_WITHIN / 10, other.stream_info(bucket)).await;
        matches!(there, Ok(Ok(_)))
    }

    /// Asks the interface of JetStream something that changes no register, again and
    /// again until it is answered: while the stream has no leader, a question gets no
    /// answer, not even later. The first answer counts, whichever question it is to:
    /// where a round trip is long, the next question is sent before it comes.
    async fn api(&self, call: &str, question: &Value) -> Result<Value, StoreError> {
        let asked = question.to_string().into_bytes();
        let mut questions = JoinSet::new();
        loop {
            let (connection, call, asked) = (self.clone(), call.to_owned(), asked.clone());
            questions.spawn(async move { connection.ask(call, HeaderMap::new(), asked).await });
            if let Ok(Some(answered)) = timeout(ASK_AGAIN_AFTER, questions.join_next()).await {
                return answered
                    .map_err(StoreError::unavailable)?
                    .map_err(Unanswered::reading);
            }
        }
    }
}

/// Waits for more answers to one question about a stream, whose first answer has come.
/// Returns the leaders that the answers name.
async fn leaders(first: Message, heard: &mut Subscriber) -> BTreeSet<String> {
    let until = clock::boot().after(ANSWERS_WITHIN);
    let (mut leaders, mut next) = (BTreeSet::new(), Some(first));
    while let Some(message) = next {
        let answer: Value = serde_json::from_slice(&message.payload).unwrap_or_default();
        leaders.extend(streams::leader(&answer).map(str::to_owned));
        let left = until.since(clock::boot());
        next = timeout(left, heard.next()).await.ok().flatten();
    }
    leaders
}

/// How long one address may take for its handshake. The library tries the addresses of
/// a name one after another, each for so long, and wants the name for TLS.
async fn within(host: &str) -> Duration {
    let found = tokio::net::lookup_host(host).await;
    match found.map(Iterator::count) {
        Ok(2..) => ADDRESS_WITHIN,
        // The library says what is wrong with the name.
        Ok(_) | Err(_) => HANDSHAKE_WITHIN,
    }
}

/// How long the library waits before it connects again by itself. No call waits for that,
/// and a server may end each connection: without a pause the library would connect as fast
/// as it can. It reads the system's authorities each time. Where they are a file that never
/// ends it does not connect again.
fn before_reconnect(is_system: bool) -> Duration {
    match system_authorities::check() {
        Err(_) if is_system => Duration::from_secs(3_600),
        _ => RECONNECT_AFTER,
    }
}

/// Connects to the host of this number.
async fn connect(settings: &Settings, at: usize) -> Result<NatsConnection, StoreError> {
    let Some(host) = settings.hosts.get(at) else {
        return Err(StoreError::broken("expected a server of this number"));
    };
    let is_system = settings.tls.as_ref();
    let is_system = is_system.is_none_or(|tls| tls.authorities.is_none());
    if is_system {
        // Without `tls=on`, too: a server may demand TLS.
        system_authorities::check()?;
    }
    let (say, forbidden) = watch::channel(String::new());
    let was_lost = Arc::new(AtomicBool::new(false));
    let lost = Arc::clone(&was_lost);
    let was_connected = Arc::new(AtomicBool::new(false));
    let connects_again = Arc::clone(&was_connected);
    let mut options = ConnectOptions::new()
        .name("tenure")
        .connection_timeout(within(host).await)
        // Callers wait for as long as they have time.
        .request_timeout(None)
        .ping_interval(PING_EVERY)
        .subscription_capacity(MESSAGES_MAX)
        .ignore_discovered_servers()
        .retain_servers_order()
        .max_reconnects(1)
        .reconnect_delay_callback(move |_| match connects_again.load(Ordering::Acquire) {
            false => Duration::ZERO,
            true => before_reconnect(is_system),
        })
        .event_callback(move |event| {
            match event {
                Event::Disconnected => lost.store(true, Ordering::Release),
                Event::ServerError(error) => {
                    let words = error.to_string();
                    if words.contains(FORBIDDEN) {
                        say.send_replace(words);
                    }
                }
                _ => {}
            }
            async {}
        });
    options = match &settings.login {
        Login::Nobody => options,
        Login::User(name, password) => options.user_and_password(name.clone(), password.clone()),
        Login::Token(token) => options.token(token.clone()),
        // The library looks for the end of the last line.
        Login::Credentials(text) => options
            .credentials(&format!("{text}\n"))
            .map_err(|error| StoreError::broken(format!("creds=: {error}")))?,
    };
    if let Some(tls) = &settings.tls {
        options = options.require_tls(true);
        if let Some(authorities) = &tls.authorities {
            options = options.add_root_certificates(authorities.clone());
        }
        if let Some((certificate, key)) = &tls.own {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
    }
    let connected = options.connect(format!("nats://{host}")).await;
    let client = connected.map_err(|error| classify::connecting(&error))?;
    was_connected.store(true, Ordering::Release);
    Ok(NatsConnection {
        client,
        forbidden,
        was_lost,
        identity: Arc::new(()),
    })
}

/// Checks the server, and returns what JetStream says there of the bucket's stream.
async fn info(settings: &Settings, connection: &NatsConnection) -> Result<Value, StoreError> {
    let info = connection.client.server_info();
    if info.max_payload < MAX_VALUE_BYTES + OVERHEAD {
        return Err(StoreError::broken(format!(
            "expected a server that takes messages of {} bytes, found max_payload: {}",
            MAX_VALUE_BYTES + OVERHEAD,
            info.max_payload
        )));
    }
    match connection.stream_info(settings.bucket()).await {
        // Its own word that it has no JetStream counts if nobody else has it either.
        Err(StoreError::Unavailable(_)) if !info.jetstream => Err(StoreError::broken(TURN_ON)),
        answered => answered,
    }
}

/// Asks each other server of the URL for its stream.
fn ask_others(settings: &Arc<Settings>, at: usize) -> Asked {
    let mut asked = JoinSet::new();
    for other in (0..settings.hosts.len()).filter(|other| *other != at) {
        let settings = Arc::clone(settings);
        asked.spawn(async move {
            let host = settings.hosts.get(other)?.clone();
            let connection = comparable(&host, connect(&settings, other).await)?;
            let answer = connection.stream_info(settings.bucket()).await;
            let answer = comparable(&host, answer)?;
            Some(FoundStream {
                host,
                made: streams::made(&answer)?.to_owned(),
                leader: streams::leader(&answer).map(str::to_owned),
                connection,
            })
        });
    }
    asked
}

/// Fails if another server of the URL has another stream. Returns what JetStream says of
/// the own one now.
async fn compare(
    settings: &Settings,
    at: usize,
    connection: &NatsConnection,
    mut answer: Value,
    asked: Asked,
) -> Result<Value, StoreError> {
    let is_told = Refusal::find(&answer).is_none_or(|refusal| refusal.is_no_stream());
    let Some(host) = settings
        .hosts
        .get(at)
        .filter(|_| is_told && !asked.is_empty())
    else {
        return Ok(answer);
    };
    let bucket = settings.bucket();
    let others = answers_of(asked, clock::boot().after(OTHERS_WITHIN)).await;
    if streams::compare(host, streams::made(&answer), &others).is_err() {
        // It may have been made, or made anew, before the others were asked.
        answer = connection.stream_info(bucket).await?;
        streams::compare(host, streams::made(&answer), &others)?;
    }
    for other in others {
        let leads = streams::leader(&answer);
        let is_led_apart = other.leader.is_some()
            && leads.is_some()
            && other.leader.as_deref() != leads
            && connection
                .names_another_leader_than(&other.connection, bucket)
                .await;
        if is_led_apart || connection.is_apart_from(&other.connection, bucket).await {
            let why = streams::copied(host, &other.host);
            tracing::warn!("{why}");
            return Err(StoreError::unavailable(why));
        }
    }
    Ok(answer)
}

/// Checks the bucket by `answer`, what JetStream has said of its stream. Where the bucket
/// is missing and `create` is set, makes it, unless this process has used it. Returns what
/// JetStream says of the stream now.
async fn look(
    settings: &Settings,
    connection: &NatsConnection,
    mut answer: Value,
    create: bool,
    was_there: &AtomicBool,
) -> Result<Value, StoreError> {
    let bucket = settings.bucket();
    if Refusal::find(&answer).is_some_and(|refusal| refusal.is_no_stream()) {
        if was_there.load(Ordering::Relaxed) {
            return Err(classify::missing(bucket));
        }
        if !create {
            let found = format!("no stream {}", bucket.stream());
            return Err(StoreError::unavailable(no_store(found)));
        }
        answer = make(settings, connection).await?;
    }
    if let Some(refusal) = Refusal::find(&answer) {
        return Err(refusal.reading(bucket));
    }
    bucket.check(answer.get("config").unwrap_or(&Value::Null))?;
    was_there.store(true, Ordering::Relaxed);
    Ok(answer)
}

/// Makes the bucket; what was answered.
async fn make(settings: &Settings, connection: &NatsConnection) -> Result<Value, StoreError> {
    let bucket = settings.bucket();
    let create = async |replicas| {
        let question = bucket.config(replicas);
        connection
            .api(&api(bucket, "STREAM.CREATE"), &question)
            .await
    };
    let mut replicas = settings.replicas.unwrap_or(REPLICAS);
    let mut answer = create(replicas).await?;
    let refusal = Refusal::find(&answer);
    if settings.replicas.is_none() && refusal.as_ref().is_some_and(Refusal::is_no_cluster) {
        replicas = 1;
        answer = create(replicas).await?;
    }
    match Refusal::find(&answer) {
        Some(refusal) if refusal.is_made_already() => connection.stream_info(bucket).await,
        Some(refusal) => Err(refusal.making(bucket)),
        None => {
            let stream = bucket.stream();
            tracing::info!("{settings}: made the stream {stream}, with replicas: {replicas}");
            Ok(answer)
        }
    }
}
