//! The connection that calls go over: to one server at a time, opened when
//! needed, shared by all calls, left for the next server when it becomes
//! suspect.
//!
//! The servers are tried in the order of the URL, each with a whole handshake:
//! connection, TLS, password and a first read, which takes a majority to
//! answer. Which of them answers makes no difference to what is true (every
//! read asks a majority), only to how long it takes: the leader need not
//! forward.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tenure_core::time::Instant;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::classify;
use super::kv::KeySpace;
use super::settings::Settings;
use super::wire::{AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, WATCH};
use super::wire::{RANGE, RangeRequest, RangeResponse, WatchRequest, WatchResponse};
use crate::clock;
use crate::error::StoreError;
use crate::round_trip::RoundTripTimes;
use crate::store::dial::{ConnectFn, Connection, Dialer};
use crate::store::{Key, MAX_VALUE_BYTES, PAGE_MAX};

/// The largest answer that is taken: a full page of the largest registers,
/// and as much again for what etcd adds.
const ANSWER_MAX: usize = 2 * PAGE_MAX * (MAX_VALUE_BYTES + Key::MAX_BYTES);

/// Opens connections and carries out calls.
#[derive(Debug)]
pub(super) struct EtcdClient {
    settings: Arc<Settings>,
    dialer: Dialer<EtcdConnection>,
    round_trips: RoundTripTimes,
}

/// An open connection.
#[derive(Clone, Debug)]
pub(super) struct EtcdConnection {
    channel: Channel,
    token: Option<AsciiMetadataValue>,
    /// Tells connections apart.
    identity: Arc<()>,
}

impl Connection for EtcdConnection {
    fn is_open(&self) -> bool {
        // That it is not shows with the next call, which leaves it.
        true
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }
}

impl EtcdClient {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let round_trips = RoundTripTimes::default();
        let (all, measured) = (Arc::clone(&settings), round_trips.clone());
        let connect_to: ConnectFn<EtcdConnection> = Arc::new(move |at| {
            let (settings, round_trips) = (Arc::clone(&all), measured.clone());
            Box::pin(async move { open(&settings, at, &round_trips).await })
        });
        let hosts = settings.servers.iter();
        let hosts = hosts.map(|server| {
            server
                .uri()
                .authority()
                .map_or_else(String::new, ToString::to_string)
        });
        Self {
            dialer: Dialer::new(settings.to_string(), hosts.collect(), 0, connect_to),
            settings,
            round_trips,
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
        let connection = self.connected(until).await?;
        match self.unary(&connection, path, request, until).await? {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(status)) => Err(classify::reading(&self.settings.to_string(), &status)),
            None => Err(StoreError::unavailable(self.timeout_text(within))),
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
        let connection = self.connected(until).await?;
        match self.unary(&connection, path, request, until).await? {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(status)) => Err(classify::writing(&self.settings.to_string(), &status)),
            None => Err(StoreError::unknown(self.timeout_text(within))),
        }
    }

    fn timeout_text(&self, within: Duration) -> String {
        self.round_trips
            .timeout_text(&self.settings.to_string(), within)
    }

    /// How long a round trip takes: the quickest of some.
    pub(super) async fn round_trip(&self, within: Duration) -> Option<Duration> {
        const TRIPS: u32 = 3;
        let until = clock::boot().after(within);
        self.connected(until).await.ok()?;
        let mut quickest = None;
        for _ in 0..TRIPS {
            let asked = clock::boot();
            let left = until.since(asked);
            let request = probe_request(&self.settings);
            let _: RangeResponse = self.read(RANGE, request, left).await.ok()?;
            let took = clock::boot().since(asked);
            quickest = Some(quickest.map_or(took, |least: Duration| least.min(took)));
        }
        quickest
    }

    /// The answer; `None` if none came in time. An error means that nothing
    /// was sent.
    async fn unary<A, B>(
        &self,
        connection: &EtcdConnection,
        path: &'static str,
        request: A,
        until: Instant,
    ) -> Result<Option<Result<B, Status>>, StoreError>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = connection.grpc();
        let mut request = Request::new(request);
        connection.authenticate(&mut request);
        let sent = clock::boot();
        let left = until.since(sent);
        let asked = async {
            if let Err(error) = grpc.ready().await {
                return Err(StoreError::unavailable(classify::text(&error)));
            }
            let path = PathAndQuery::from_static(path);
            let codec: ProstCodec<A, B> = ProstCodec::default();
            Ok(grpc.unary(request, path, codec).await)
        };
        match tokio::time::timeout(left, asked).await {
            Ok(Ok(Ok(answer))) => {
                self.round_trips.record(clock::boot().since(sent));
                Ok(Some(Ok(answer.into_inner())))
            }
            Ok(Ok(Err(status))) => {
                if classify::is_suspect(&status) {
                    self.dialer.abandon(connection);
                }
                Ok(Some(Err(status)))
            }
            Ok(Err(error)) => {
                self.dialer.abandon(connection);
                Err(error)
            }
            Err(_) => {
                self.dialer.abandon(connection);
                Ok(None)
            }
        }
    }

    /// Asks for a stream of changes. The server answers the first request
    /// with the stream, so `requests` must begin with one.
    pub(super) async fn watch(
        &self,
        connection: &EtcdConnection,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>, StoreError> {
        let mut grpc = connection.grpc();
        grpc.ready()
            .await
            .map_err(|error| StoreError::unavailable(classify::text(&error)))?;
        let mut request = Request::new(requests);
        connection.authenticate(&mut request);
        // A server that is cut off from the others ends the stream instead
        // of keeping silent.
        let yes = AsciiMetadataValue::from_static("true");
        request.metadata_mut().insert("hasleader", yes);
        let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
        let path = PathAndQuery::from_static(WATCH);
        match grpc.streaming(request, path, codec).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(self.stream_broke(connection, &status)),
        }
    }

    /// What it means that a stream ended with this.
    pub(super) fn stream_broke(&self, connection: &EtcdConnection, status: &Status) -> StoreError {
        if classify::is_suspect(status) {
            self.dialer.abandon(connection);
        }
        classify::reading(&self.settings.to_string(), status)
    }

    /// The open connection, or a new one.
    pub(super) async fn connected(&self, until: Instant) -> Result<EtcdConnection, StoreError> {
        self.dialer.connected(until).await
    }
}

/// Does the whole handshake with one server, and times its last question.
async fn open(
    settings: &Settings,
    at: usize,
    round_trips: &RoundTripTimes,
) -> Result<EtcdConnection, StoreError> {
    let Some(endpoint) = settings.servers.get(at) else {
        return Err(StoreError::broken("expected a server of this number"));
    };
    let connected = endpoint.connect().await;
    let channel = connected.map_err(|error| StoreError::unavailable(classify::text(&error)))?;
    let mut connection = EtcdConnection {
        channel,
        token: None,
        identity: Arc::new(()),
    };
    if let Some((name, password)) = &settings.user {
        let request = AuthenticateRequest {
            name: name.to_owned(),
            password: password.to_owned(),
        };
        let answer: AuthenticateResponse =
            first_call(settings, &connection, AUTHENTICATE, request).await?;
        let token = AsciiMetadataValue::try_from(answer.token);
        let no_text = |_| StoreError::unavailable("the server's token is no text");
        connection.token = Some(token.map_err(no_text)?);
    }
    let asked = clock::boot();
    let _: RangeResponse =
        first_call(settings, &connection, RANGE, probe_request(settings)).await?;
    round_trips.record(clock::boot().since(asked));
    Ok(connection)
}

/// A read that a majority has to answer, and that brings next to nothing: one
/// key of ours at most.
fn probe_request(settings: &Settings) -> RangeRequest {
    let keyspace = KeySpace {
        prefix: &settings.prefix,
    };
    RangeRequest {
        limit: 1,
        keys_only: true,
        ..keyspace.list("", None)
    }
}

/// A call of a handshake.
async fn first_call<A, B>(
    settings: &Settings,
    connection: &EtcdConnection,
    path: &'static str,
    request: A,
) -> Result<B, StoreError>
where
    A: Message + Send + Sync + 'static,
    B: Message + Default + Send + Sync + 'static,
{
    let mut grpc = connection.grpc();
    grpc.ready()
        .await
        .map_err(|error| StoreError::unavailable(classify::text(&error)))?;
    let mut request = Request::new(request);
    connection.authenticate(&mut request);
    let codec: ProstCodec<A, B> = ProstCodec::default();
    let answer = grpc
        .unary(request, PathAndQuery::from_static(path), codec)
        .await;
    let answer = answer.map_err(|status| classify::reading(&settings.to_string(), &status))?;
    Ok(answer.into_inner())
}

impl EtcdConnection {
    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_MAX)
    }

    /// Says who asks.
    fn authenticate<T>(&self, request: &mut Request<T>) {
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
    }
}
