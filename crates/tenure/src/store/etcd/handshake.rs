//! Opens a connection to a server: TLS, password and a first read. Then it compares the
//! server's cluster with the clusters of the others.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Request;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;

use super::bounded::{Answer, Asked, BoundedCodec};
use super::classify;
use super::clusters::Clusters;
use super::connection::EtcdConnection;
use super::kv::KeySpace;
use super::settings::Settings;
use super::wire::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, RANGE, RangeRequest, RangeResponse,
    STATUS, StatusRequest, StatusResponse,
};
use crate::clock;
use crate::error::StoreError;
use crate::round_trip::RoundTripTimes;

/// How long a handshake waits for what the other servers say of their cluster. They are
/// asked while it goes on, so it takes longer only where one of them is silent.
const OTHERS_WITHIN: Duration = Duration::from_millis(500);

/// What all handshakes of a store need.
#[derive(Clone, Debug)]
pub(super) struct Handshakes {
    pub(super) settings: Arc<Settings>,
    pub(super) round_trips: RoundTripTimes,
    pub(super) clusters: Arc<Clusters>,
}

impl Handshakes {
    /// Does the whole handshake with one server, and times its last question.
    pub(super) async fn open(&self, at: usize) -> Result<EtcdConnection, StoreError> {
        let until = clock::boot().after(OTHERS_WITHIN);
        let others = self.ask_others(at);
        let mut connection = EtcdConnection::new(self.connect(at).await?);
        let settings = &self.settings;
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
        let answer: RangeResponse =
            first_call(settings, &connection, RANGE, probe_request(settings)).await?;
        self.round_trips.record(clock::boot().since(asked));
        connection.cluster = answer.header().map_or(0, |header| header.cluster_id);
        self.clusters.record(at, connection.cluster);
        wait_for(others, until).await;
        self.clusters.judge(at)?;
        Ok(connection)
    }

    async fn connect(&self, at: usize) -> Result<Channel, StoreError> {
        let endpoint = self.settings.servers.get(at);
        let none = || StoreError::broken("expected a server of this number");
        let connected = endpoint.ok_or_else(none)?.connect().await;
        connected.map_err(|error| StoreError::unavailable(classify::text(&error)))
    }

    /// Asks each other server for its cluster.
    fn ask_others(&self, at: usize) -> JoinSet<()> {
        let mut asks = JoinSet::new();
        for other in (0..self.settings.servers.len()).filter(|other| *other != at) {
            let handshakes = self.clone();
            asks.spawn(async move {
                // One that does not say it now counts as what it was before.
                if let Ok(cluster) = handshakes.ask_cluster(other).await {
                    handshakes.clusters.record(other, cluster);
                }
            });
        }
        asks
    }

    /// A question that a server answers by itself, and to anybody.
    async fn ask_cluster(&self, at: usize) -> Result<u64, StoreError> {
        let connection = EtcdConnection::new(self.connect(at).await?);
        let request = StatusRequest {};
        let answer: StatusResponse =
            first_call(&self.settings, &connection, STATUS, request).await?;
        Ok(answer.header().map_or(0, |header| header.cluster_id))
    }
}

async fn wait_for(mut asks: JoinSet<()>, until: Instant) {
    let all = async { while asks.join_next().await.is_some() {} };
    // Who has not answered is not waited for.
    let _ = timeout(until.since(clock::boot()), all).await;
}

/// A read that a majority has to answer, and that brings next to nothing: one
/// key of ours at most.
pub(super) fn probe_request(settings: &Settings) -> RangeRequest {
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
async fn first_call<A: Asked, B: Answer>(
    settings: &Settings,
    connection: &EtcdConnection,
    path: &'static str,
    request: A,
) -> Result<B, StoreError> {
    let bound = request.bound();
    let mut grpc = connection.grpc(bound);
    grpc.ready()
        .await
        .map_err(|error| StoreError::unavailable(classify::text(&error)))?;
    let mut request = Request::new(request);
    connection.authenticate(&mut request);
    let codec: BoundedCodec<A, B> = BoundedCodec::new(bound);
    let answer = grpc
        .unary(request, PathAndQuery::from_static(path), codec)
        .await;
    let answer = answer.map_err(|status| classify::reading(&settings.to_string(), &status))?;
    Ok(answer.into_inner())
}
