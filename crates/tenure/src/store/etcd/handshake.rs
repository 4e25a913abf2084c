//! Opens a connection to a server: TLS, password and a first read. Then it compares the
//! server's cluster with the clusters of the others.
//!
//! etcd makes its ids from the initial token and the initial peer URLs, so two clusters
//! that were begun with etcd's defaults, or one and the copy of its data, have the same.
//! Where two servers of the URL say the same member id they are one server under two names
//! (a load balancer's and its own), or two clusters. A lease tells them apart: one that is
//! granted over one of them is known to every server of the same cluster. A lease has no
//! key, so it needs no right on one, and it ends by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::task::JoinSet;
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
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, Header, Ids, LEASE_GRANT,
    LEASE_TIME_TO_LIVE, LeaseGrantRequest, LeaseGrantResponse, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, RANGE, RangeRequest, RangeResponse, STATUS, StatusRequest,
    StatusResponse,
};
use crate::clock;
use crate::error::StoreError;
use crate::round_trip::RoundTripTimes;
use crate::store::dial::{OTHERS_WITHIN, answers_of, comparable};

/// How long a lease lives that tells servers apart: the least that a server grants with
/// its defaults. An answer counts if it came while the lease lived for certain.
const LEASE: Duration = Duration::from_secs(2);

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
        let settings = &self.settings;
        let mut connection = self.connect_as_user(at).await?;
        let asked = clock::boot();
        let answer: RangeResponse =
            first_call(settings, &connection, RANGE, probe_request(settings)).await?;
        self.round_trips.record(clock::boot().since(asked));
        let ids = Header::ids(answer.header());
        connection.cluster = ids.cluster;
        self.clusters.record(at, ids);
        let answered = answers_of(others, until).await.into_iter().collect();
        // As long again for what tells servers with equal ids apart.
        let until = clock::boot().max(until).after(OTHERS_WITHIN);
        self.compare(at, &connection, &answered, until).await;
        self.clusters.judge(at, &answered)?;
        Ok(connection)
    }

    async fn connect_as_user(&self, at: usize) -> Result<EtcdConnection, StoreError> {
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
        Ok(connection)
    }

    async fn connect(&self, at: usize) -> Result<Channel, StoreError> {
        let endpoint = self.settings.servers.get(at);
        let none = || StoreError::broken("expected a server of this number");
        let connected = endpoint.ok_or_else(none)?.connect().await;
        connected.map_err(|error| StoreError::unavailable(classify::text(&error)))
    }

    /// Asks each other server for its ids; those that answer.
    fn ask_others(&self, at: usize) -> JoinSet<Option<usize>> {
        let mut asks = JoinSet::new();
        for other in (0..self.settings.servers.len()).filter(|other| *other != at) {
            let handshakes = self.clone();
            asks.spawn(async move {
                // One that does not say it now counts as what it was before.
                let ids = handshakes.ask_ids(other).await;
                let ids = comparable(handshakes.clusters.name(other), ids)?;
                handshakes.clusters.record(other, ids);
                Some(other)
            });
        }
        asks
    }

    /// A question that a server answers by itself, and to anybody.
    async fn ask_ids(&self, at: usize) -> Result<Ids, StoreError> {
        let connection = EtcdConnection::new(self.connect(at).await?);
        let request = StatusRequest {};
        let answer: StatusResponse =
            first_call(&self.settings, &connection, STATUS, request).await?;
        Ok(Header::ids(answer.header()))
    }

    /// Compares this server by a lease with each other one whose ids do not tell whether
    /// both are of one cluster.
    async fn compare(
        &self,
        at: usize,
        connection: &EtcdConnection,
        answered: &BTreeSet<usize>,
        until: Instant,
    ) {
        let now = clock::boot();
        let mut comparisons = JoinSet::new();
        for other in self.clusters.in_doubt(at, answered, now) {
            let (handshakes, here) = (self.clone(), connection.clone());
            comparisons.spawn(async move {
                // One that cannot be asked (it is slow, it does not know leases) counts as
                // what it was before, too.
                let there = handshakes.connect_as_user(other).await.ok()?;
                let are_one = handshakes.are_one(&here, &there).await.ok()?;
                Some((other, are_one))
            });
        }
        let found = answers_of(comparisons, until).await;
        self.clusters.compared(at, &found, now);
    }

    /// Whether two servers are of one cluster. If they are not, neither knows the other's
    /// lease. One direction could fail by chance, when another server begins to lead the
    /// cluster between two questions.
    async fn are_one(
        &self,
        here: &EtcdConnection,
        there: &EtcdConnection,
    ) -> Result<bool, StoreError> {
        Ok(self.knows_lease_of(here, there).await? || self.knows_lease_of(there, here).await?)
    }

    /// Whether a lease that one server grants is known to another.
    async fn knows_lease_of(
        &self,
        granting: &EtcdConnection,
        asked: &EtcdConnection,
    ) -> Result<bool, StoreError> {
        let begun = clock::boot();
        let settings = &self.settings;
        // Numbers that servers draw are equal where their ids and clocks are.
        let drawn = getrandom::u64().map_err(StoreError::unavailable)?;
        let id = (drawn >> 1 | 1).cast_signed();
        let ttl = LEASE.as_secs().cast_signed();
        let request = LeaseGrantRequest { ttl, id };
        let _: LeaseGrantResponse = first_call(settings, granting, LEASE_GRANT, request).await?;
        // A server of the same cluster may be behind. This read waits until it has what was
        // done before, and so the lease.
        let probe = probe_request(settings);
        let _: RangeResponse = first_call(settings, asked, RANGE, probe).await?;
        let request = LeaseTimeToLiveRequest { id };
        let answer: LeaseTimeToLiveResponse =
            first_call(settings, asked, LEASE_TIME_TO_LIVE, request).await?;
        if answer.ttl < 0 && clock::boot().since(begun) >= LEASE {
            return Err(StoreError::unavailable("the lease may have ended"));
        }
        Ok(answer.ttl >= 0)
    }
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
