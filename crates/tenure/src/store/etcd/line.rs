//! The connection that calls go over: to one server at a time, opened when
//! needed, shared by all calls, left for the next server when it becomes
//! suspect.
//!
//! The servers are tried in the order of the URL. Which of them answers makes
//! no difference to what is true (every read asks a majority), only to how
//! long it takes: the leader need not forward.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use tenure_core::time::Instant;
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::classify;
use super::settings::Settings;
use super::wire::{AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, WATCH};
use super::wire::{WatchRequest, WatchResponse};
use crate::error::{StoreError, about};
use crate::store::{Key, MAX_VALUE_BYTES, PAGE_MAX};
use crate::{clock, drive};

/// The largest answer that is taken: a full page of the largest registers,
/// and as much again for what etcd adds.
const ANSWER_MAX: usize = 2 * PAGE_MAX * (MAX_VALUE_BYTES + Key::MAX_BYTES);

/// Opens connections and carries out calls.
#[derive(Debug)]
pub(super) struct Line {
    settings: Arc<Settings>,
    open: Mutex<Option<Opened>>,
    /// Which server to try first; held while connecting, so that many calls
    /// open one connection.
    next: tokio::sync::Mutex<usize>,
}

/// An open connection.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    channel: Channel,
    token: Option<AsciiMetadataValue>,
    server: usize,
    /// Tells connections apart.
    identity: Arc<()>,
}

/// Ends a task when it is dropped, so that a call that runs out of time
/// leaves no connection behind.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Line {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            open: Mutex::new(None),
            next: tokio::sync::Mutex::new(0),
        }
    }

    /// Carries out a call that changes nothing.
    pub(super) async fn read<A, B>(
        &self,
        path: &'static str,
        request: A,
        within: Duration,
    ) -> Result<B, StoreError>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
    {
        let until = clock::boot().after(within);
        let opened = self.connected(until).await?;
        match self.ask(&opened, path, request, until).await? {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(status)) => Err(classify::reading(&self.settings.to_string(), &status)),
            None => Err(StoreError::unavailable(self.silence(within))),
        }
    }

    /// Carries out a call that may change something.
    pub(super) async fn write<A, B>(
        &self,
        path: &'static str,
        request: A,
        within: Duration,
    ) -> Result<B, StoreError>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
    {
        let until = clock::boot().after(within);
        let opened = self.connected(until).await?;
        match self.ask(&opened, path, request, until).await? {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(status)) => Err(classify::writing(&self.settings.to_string(), &status)),
            None => Err(StoreError::unknown(self.silence(within))),
        }
    }

    fn silence(&self, within: Duration) -> String {
        format!("{} did not answer within {}", self.settings, about(within))
    }

    /// The answer; `None` if none came in time. An error means that nothing
    /// was sent.
    async fn ask<A, B>(
        &self,
        opened: &Opened,
        path: &'static str,
        request: A,
        until: Instant,
    ) -> Result<Option<Result<B, Status>>, StoreError>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
    {
        let mut line = opened.line();
        let mut request = Request::new(request);
        opened.sign(&mut request);
        let left = until.since(clock::boot());
        let asked = async {
            if let Err(error) = line.ready().await {
                return Err(StoreError::unavailable(classify::text(&error)));
            }
            let path = PathAndQuery::from_static(path);
            let codec: ProstCodec<A, B> = ProstCodec::default();
            Ok(line.unary(request, path, codec).await)
        };
        match tokio::time::timeout(left, asked).await {
            Ok(Ok(Ok(answer))) => Ok(Some(Ok(answer.into_inner()))),
            Ok(Ok(Err(status))) => {
                if classify::suspect(&status) {
                    self.give_up(opened).await;
                }
                Ok(Some(Err(status)))
            }
            Ok(Err(error)) => {
                self.give_up(opened).await;
                Err(error)
            }
            Err(_) => {
                self.give_up(opened).await;
                Ok(None)
            }
        }
    }

    /// Asks for a stream of changes. The server answers the first request
    /// with the stream, so `requests` must begin with one.
    pub(super) async fn watch(
        &self,
        opened: &Opened,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>, StoreError> {
        let mut line = opened.line();
        line.ready()
            .await
            .map_err(|error| StoreError::unavailable(classify::text(&error)))?;
        let mut request = Request::new(requests);
        opened.sign(&mut request);
        // A server that is cut off from the others ends the stream instead
        // of keeping silent.
        let yes = AsciiMetadataValue::from_static("true");
        request.metadata_mut().insert("hasleader", yes);
        let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
        let path = PathAndQuery::from_static(WATCH);
        match line.streaming(request, path, codec).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(self.stream_broke(opened, &status).await),
        }
    }

    /// What it means that a stream ended with this.
    pub(super) async fn stream_broke(&self, opened: &Opened, status: &Status) -> StoreError {
        if classify::suspect(status) {
            self.give_up(opened).await;
        }
        classify::reading(&self.settings.to_string(), status)
    }

    /// The open connection, or a new one.
    pub(super) async fn connected(&self, until: Instant) -> Result<Opened, StoreError> {
        if let Some(opened) = self.current() {
            return Ok(opened);
        }
        let left = until.since(clock::boot());
        let late = || {
            let waited = format!("no connection to {} within {}", self.settings, about(left));
            Err(StoreError::unavailable(waited))
        };
        tokio::time::timeout(left, self.open())
            .await
            .unwrap_or_else(|_| late())
    }

    fn current(&self) -> Option<Opened> {
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, opened: Option<Opened>) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = opened;
    }

    /// Tries each server once, beginning with the next.
    async fn open(&self) -> Result<Opened, StoreError> {
        let mut next = self.next.lock().await;
        if let Some(opened) = self.current() {
            return Ok(opened);
        }
        let servers = self.settings.servers.len();
        let mut failure = None;
        for _ in 0..servers {
            let server = *next % servers;
            match self.open_one(server).await {
                Ok(opened) => {
                    self.set(Some(opened.clone()));
                    return Ok(opened);
                }
                Err(broken @ StoreError::Broken(_)) => return Err(broken),
                Err(error) => failure = Some(error),
            }
            *next = server + 1;
        }
        Err(failure.unwrap_or_else(|| StoreError::broken("expected a server in the URL")))
    }

    async fn open_one(&self, server: usize) -> Result<Opened, StoreError> {
        let Some(endpoint) = self.settings.servers.get(server) else {
            return Err(StoreError::broken("expected a server of this number"));
        };
        let mut opened = Opened {
            channel: connect(endpoint).await?,
            token: None,
            server,
            identity: Arc::new(()),
        };
        if let Some((name, password)) = &self.settings.user {
            opened.token = Some(self.authenticate(&opened, name, password).await?);
        }
        Ok(opened)
    }

    async fn authenticate(
        &self,
        opened: &Opened,
        name: &str,
        password: &str,
    ) -> Result<AsciiMetadataValue, StoreError> {
        let mut line = opened.line();
        line.ready()
            .await
            .map_err(|error| StoreError::unavailable(classify::text(&error)))?;
        let request = Request::new(AuthenticateRequest {
            name: name.to_owned(),
            password: password.to_owned(),
        });
        let codec: ProstCodec<_, AuthenticateResponse> = ProstCodec::default();
        let path = PathAndQuery::from_static(AUTHENTICATE);
        let answer = line.unary(request, path, codec).await;
        let answer =
            answer.map_err(|status| classify::reading(&self.settings.to_string(), &status))?;
        let token = AsciiMetadataValue::try_from(answer.into_inner().token);
        token.map_err(|_| StoreError::unavailable("the server's token is no text"))
    }

    /// Leaves a suspect connection, if nobody has yet: the next call tries
    /// the server after it.
    async fn give_up(&self, suspect: &Opened) {
        let mut next = self.next.lock().await;
        let same = |open: &Opened| Arc::ptr_eq(&open.identity, &suspect.identity);
        if self.current().as_ref().is_some_and(same) {
            self.set(None);
            *next = suspect.server + 1;
        }
    }
}

impl Opened {
    fn line(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_MAX)
    }

    /// Says who asks.
    fn sign<T>(&self, request: &mut Request<T>) {
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
    }
}

/// Connected and served on our own thread: the caller's executor may be
/// blocked when the answer comes.
async fn connect(endpoint: &Endpoint) -> Result<Channel, StoreError> {
    let place = endpoint.uri().to_string();
    let endpoint = endpoint.clone();
    let connecting = async move { endpoint.connect().await };
    let mut connecting = Task(drive::background().spawn(connecting));
    let connected = (&mut connecting.0).await.map_err(StoreError::unavailable)?;
    connected
        .map_err(|error| StoreError::unavailable(format!("{place}: {}", classify::text(&error))))
}
