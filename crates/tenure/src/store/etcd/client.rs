//! The connection that calls go over: to one server at a time, opened when
//! needed, shared by all calls, left for the next server when it becomes
//! suspect.
//!
//! The servers are tried in the order of the URL, each with a whole handshake:
//! connection, TLS, password and a first read, which takes a majority to
//! answer, and a look whether the others are of its cluster. Which of them
//! answers makes no difference to what is true (every read asks a majority),
//! only to how long it takes: the leader need not forward.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Instant;
use tokio_stream::Stream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Status, Streaming};

use super::bounded::{Answer, Asked, Bound, BoundedCodec};
use super::classify;
use super::clusters::Clusters;
use super::connection::EtcdConnection;
use super::handshake::{Handshakes, probe_request};
use super::settings::Settings;
use super::wire::{RANGE, RangeResponse, WATCH, WatchRequest, WatchResponse};
use crate::clock;
use crate::error::StoreError;
use crate::round_trip::RoundTripTimes;
use crate::store::dial::{ConnectFn, Dialer};

/// Opens connections and carries out calls.
#[derive(Debug)]
pub(super) struct EtcdClient {
    settings: Arc<Settings>,
    dialer: Dialer<EtcdConnection>,
    round_trips: RoundTripTimes,
}

impl EtcdClient {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let round_trips = RoundTripTimes::default();
        let hosts = settings.servers.iter();
        let hosts = hosts.map(|server| {
            server
                .uri()
                .authority()
                .map_or_else(String::new, ToString::to_string)
        });
        let hosts: Vec<_> = hosts.collect();
        let handshakes = Handshakes {
            settings: Arc::clone(&settings),
            round_trips: round_trips.clone(),
            clusters: Arc::new(Clusters::new(hosts.clone())),
        };
        let connect_to: ConnectFn<EtcdConnection> = Arc::new(move |at| {
            let handshakes = handshakes.clone();
            Box::pin(async move { handshakes.open(at).await })
        });
        Self {
            dialer: Dialer::new(settings.to_string(), hosts, 0, connect_to),
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
        A: Asked,
        B: Answer,
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
        A: Asked,
        B: Answer,
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
        A: Asked,
        B: Answer,
    {
        let bound = request.bound();
        let mut grpc = connection.grpc(bound);
        let mut request = Request::new(request);
        connection.authenticate(&mut request);
        let sent = clock::boot();
        let left = until.since(sent);
        let asked = async {
            if let Err(error) = grpc.ready().await {
                return Err(StoreError::unavailable(classify::text(&error)));
            }
            let path = PathAndQuery::from_static(path);
            let codec: BoundedCodec<A, B> = BoundedCodec::new(bound);
            Ok(grpc.unary(request, path, codec).await)
        };
        match tokio::time::timeout(left, asked).await {
            Ok(Ok(Ok(answer))) => {
                self.round_trips.record(clock::boot().since(sent));
                let answer = answer.into_inner();
                let checked = connection.check_cluster(answer.header());
                if checked.is_err() {
                    self.dialer.abandon(connection);
                }
                Ok(Some(checked.map(|()| answer)))
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
        let mut grpc = connection.grpc(Bound::CHANGES);
        grpc.ready()
            .await
            .map_err(|error| StoreError::unavailable(classify::text(&error)))?;
        let mut request = Request::new(requests);
        connection.authenticate(&mut request);
        // A server that is cut off from the others ends the stream instead
        // of keeping silent (clientv3: `WithRequireLeader`).
        let yes = AsciiMetadataValue::from_static("true");
        request.metadata_mut().insert("hasleader", yes);
        let codec: BoundedCodec<WatchRequest, WatchResponse> = BoundedCodec::new(Bound::CHANGES);
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
