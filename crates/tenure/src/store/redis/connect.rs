//! One connection to a server or to a sentinel: addresses, TLS, login.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ::redis::aio::{MultiplexedConnection, PubSub};
use ::redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, Value};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::backlog::Backlog;
use super::classify;
use super::frames::AnswerFrames;
use super::settings::Settings;
use super::tls::Tls;
use crate::drive;
use crate::error::StoreError;
use crate::store::addresses::addresses;
use crate::store::dial::{self, Connection, Repeats};
use crate::store::limited_stream::{BrokenBound, LimitedStream};

/// How many answers may be due on a connection; a call beyond that waits.
const ANSWERS_MAX: usize = 1_024;

/// An open connection.
#[derive(Clone)]
pub(super) struct RedisConnection {
    calls: MultiplexedConnection,
    broken: BrokenBound,
    /// Ends the connection with its last clone.
    task: Arc<ConnectionTask>,
}

/// Ends a task when it is dropped. A task whose handle is merely forgotten goes on
/// where the server takes nothing more, and keeps its connection.
struct ConnectionTask(JoinHandle<()>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection for RedisConnection {
    fn is_open(&self) -> bool {
        !self.task.0.is_finished()
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.task, &other.task)
    }
}

impl RedisConnection {
    /// Sends a command; its answer, which may be an error of the server.
    pub(super) async fn call(&self, command: &Cmd) -> Result<Value, RedisError> {
        let answer = self.calls.clone().send_packed_command(command).await;
        answer.map_err(|error| explained(&self.broken, error))
    }

    /// Sends some commands; the answer of each, which may be an error of the server.
    pub(super) async fn calls(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut calls = self.calls.clone();
        let answers = calls.send_packed_commands(commands, 0, commands.len());
        answers
            .await
            .map_err(|error| explained(&self.broken, error))
    }
}

/// The error itself, or what has brought it about: the library may tell of the end of
/// the connection alone.
fn explained(broken: &BrokenBound, error: RedisError) -> RedisError {
    match broken.get() {
        Some(why) => io::Error::new(io::ErrorKind::InvalidData, why).into(),
        None => error,
    }
}

/// Why a server cannot be used.
pub(super) fn failed(place: &str, is_broken: bool, why: &str) -> StoreError {
    let why = format!("{place}: {why}");
    if is_broken {
        StoreError::broken(why)
    } else {
        StoreError::unavailable(why)
    }
}

/// A connection before the login, with TLS or without, whose answers have bounds.
pub(super) type RedisStream = LimitedStream<AnswerFrames>;

/// Connects to a server, over the first of its addresses with which `begin` succeeds.
pub(super) async fn connect<T, F>(
    settings: &Settings,
    place: &str,
    begin: impl Fn(RedisStream) -> F + Clone + Send + Sync + 'static,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let addresses = addresses(place, place).await?;
    let (mut is_broken, mut reasons) = (false, Vec::new());
    let one = |address: SocketAddr| {
        let (tls, place, begin) = (settings.tls.clone(), place.to_owned(), begin.clone());
        async move { begin(byte_stream(tls, &place, address).await?).await }
    };
    let opened = dial::race(addresses.into_iter(), Repeats::Never, one, |_, error| {
        if let Some(error) = error {
            is_broken |= matches!(error, StoreError::Broken(_));
            reasons.push(dial::reason(error));
        }
    });
    if let Some((_, connected)) = opened.await {
        return Ok(connected);
    }
    reasons.dedup();
    Err(failed(place, is_broken, &reasons.join("; ")))
}

async fn byte_stream(
    tls: Option<Tls>,
    place: &str,
    address: SocketAddr,
) -> Result<RedisStream, StoreError> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(StoreError::unavailable)?;
    stream.set_nodelay(true).map_err(StoreError::unavailable)?;
    let frames = AnswerFrames::default();
    match tls {
        None => Ok(RedisStream::new(stream, frames)),
        Some(tls) => Ok(RedisStream::new(tls.connect(stream, place).await?, frames)),
    }
}

/// Says who we are, and which database is meant.
pub(super) async fn log_in(
    stream: RedisStream,
    login: RedisConnectionInfo,
) -> Result<RedisConnection, StoreError> {
    // Each call ends when its caller says so.
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None)
        .set_concurrency_limit(ANSWERS_MAX);
    let frames = AnswerFrames::default();
    let (broken, refusal) = (stream.broken(), frames.refusal());
    let stream = stream.with_framing(frames);
    let made = MultiplexedConnection::new_with_config(&login, stream, config).await;
    let failed = |error| classify::logging_in(&explained(&broken, error), refusal.get());
    let (calls, serve) = made.map_err(failed)?;
    Ok(RedisConnection {
        calls,
        broken,
        task: Arc::new(ConnectionTask(drive::background().spawn(serve))),
    })
}

/// A connection that listens.
pub(super) struct Subscription {
    pub(super) messages: PubSub,
    /// To be told of each message that is taken.
    pub(super) backlog: Arc<Backlog>,
}

pub(super) async fn listen(
    stream: RedisStream,
    login: RedisConnectionInfo,
    channel: String,
) -> Result<Subscription, StoreError> {
    let backlog = Arc::<Backlog>::default();
    let frames = AnswerFrames::listening(Arc::clone(&backlog));
    let (broken, refusal) = (stream.broken(), frames.refusal());
    let stream = stream.with_framing(frames);
    let failed = |error| classify::logging_in(&explained(&broken, error), refusal.get());
    let mut messages = PubSub::new(&login, stream).await.map_err(failed)?;
    messages.subscribe(channel).await.map_err(failed)?;
    backlog.clear();
    Ok(Subscription { messages, backlog })
}
