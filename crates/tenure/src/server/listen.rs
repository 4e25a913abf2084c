//! The port where clients come: gRPC and HTTP on one.
//!
//! Which of the two a connection speaks is seen from its first bytes, and
//! HTTP/2 carries both. A client that is slow to ask, or sends no headers at
//! all, is cut off after a while. Who may come at all, and who has to go when
//! there are too many, is the [`Gate`]'s business.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tonic::service::Routes;

use super::budget::Budget;
use super::config::Config;
use super::door::Door;
use super::gate::{Gate, Pass};
use super::given_up::{GivenUp, UNSEEN_MAX};
use super::knock::{Address, Proving, begin};
use super::metrics::Closed;
use super::{grpc, http};
use crate::api::DESCRIPTOR;
use crate::api::v1::cluster_server::{self, ClusterServer};
use crate::api::v1::log_server::{self, LogServer};
use crate::api::v1::pipeline_server::{self, PipelineServer};
use crate::api::v1::registers_server::{self, RegistersServer};
use crate::api::v1::sessions_server::{self, SessionsServer};
use crate::transport::{Demand, Line, Tls};

/// How long the headers of a request may take.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How often a silent connection is asked whether anybody is there, and how
/// long the answer may take.
const PING: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(10)];
/// Calls under way on one connection.
const STREAMS_MAX: u32 = 1_024;
/// The window of one HTTP/2 stream and of a connection, in bytes.
const WINDOW_BYTES: [u32; 2] = [4 * 1024 * 1024, 8 * 1024 * 1024];
/// Connections by which no request has come yet, at most.
const NEWCOMERS_MAX: usize = 1_024;
/// The largest message that is read from a client.
const MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// What gRPC's health service knows: the server as a whole, and each service,
/// since some who ask do so by name. All of them stand as the server does.
const HEALTH_OF: [&str; 6] = [
    "",
    registers_server::SERVICE_NAME,
    log_server::SERVICE_NAME,
    sessions_server::SERVICE_NAME,
    cluster_server::SERVICE_NAME,
    pipeline_server::SERVICE_NAME,
];

/// Who is let in.
pub(super) struct Guard {
    connections: usize,
    tls: Option<Arc<Tls>>,
    demand: Demand,
    message_within: Duration,
}

impl Guard {
    pub(super) fn new(config: &Config, tls: Option<Arc<Tls>>) -> Self {
        let demand = if config.client_certificates {
            Demand::Certificate
        } else {
            Demand::Nothing
        };
        Self {
            connections: config.connections,
            tls,
            demand,
            message_within: config.message_within,
        }
    }
}

/// How long a client may take to prove itself.
const SECURE_WITHIN: Duration = Duration::from_secs(5);

async fn secure(stream: TcpStream, tls: Option<Arc<Tls>>, demand: Demand) -> std::io::Result<Line> {
    stream.set_nodelay(true)?;
    match tls {
        Some(tls) => timeout(SECURE_WITHIN, tls.accept(stream, demand)).await?,
        None => Ok(Line::Plain(stream)),
    }
}

/// Takes connections of clients until it is dropped.
pub(super) async fn serve(listener: TcpListener, door: Door, guard: Guard) {
    let shared = Arc::clone(&door.shared);
    let service = TowerToHyperService::new(routes(door));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING[0])
        .keep_alive_timeout(PING[1])
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(UNSEEN_MAX)
        .initial_stream_window_size(WINDOW_BYTES[0])
        .initial_connection_window_size(WINDOW_BYTES[1]);
    let served = Arc::new(Served {
        builder,
        service,
        tls: guard.tls,
        demand: guard.demand,
        budget: Budget::new(guard.message_within),
    });
    let gate = Gate::new(NEWCOMERS_MAX.min(guard.connections), guard.connections);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("a client's connection could not be taken: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let pass = Arc::new(gate.enter());
        let (served, shared) = (Arc::clone(&served), Arc::clone(&shared));
        tokio::spawn(async move {
            let closed = tokio::select! {
                closed = served.connection(stream, &pass) => closed,
                () = pass.ousted() => Some(Closed::Full),
            };
            if let Some(reason) = closed {
                shared.metrics.close(reason);
            }
        });
    }
}

/// What every connection is served by.
struct Served {
    builder: auto::Builder<TokioExecutor>,
    service: TowerToHyperService<axum::Router>,
    tls: Option<Arc<Tls>>,
    demand: Demand,
    budget: Budget,
}

impl Served {
    /// Serves one connection to its end, and says why it was closed, if it
    /// was.
    async fn connection(&self, stream: TcpStream, pass: &Arc<Pass>) -> Option<Closed> {
        // Without one it has gone.
        let address = stream.peer_addr().ok()?.ip();
        let line = match secure(stream, self.tls.clone(), self.demand).await {
            Ok(line) => line,
            Err(error) => {
                tracing::debug!("a client was not let in: {error}");
                let tls = self.tls.as_deref();
                if tls.is_some_and(|tls| tls.distrust(&error).is_some()) {
                    return Some(Closed::Untrusted);
                }
                return Some(blame(error.kind() == std::io::ErrorKind::TimedOut));
            }
        };
        let begun = match timeout(HEADERS_WITHIN, begin(line)).await {
            Ok(Ok(begun)) => begun,
            // It has gone.
            Ok(Err(_)) => return None,
            Err(_) => return Some(Closed::Slow),
        };
        let service = Proving {
            service: self.service.clone(),
            pass: Arc::clone(pass),
            budget: self.budget.connection(),
            given_up: GivenUp::new(),
            address: Address(address),
        };
        let serving = self.builder.serve_connection(TokioIo::new(begun), service);
        let error = serving.await.err()?;
        tracing::debug!("a client's connection ended: {error}");
        let known = error.downcast_ref::<hyper::Error>();
        let slow = known.is_some_and(hyper::Error::is_timeout);
        if known.is_some_and(too_many_given_up) {
            tracing::warn!(
                "a client's connection was closed: expected at most {UNSEEN_MAX} calls to be given \
                 up before this server came to them, found more"
            );
            return Some(Closed::GivenUp);
        }
        (!pass.is_proven()).then(|| blame(slow))
    }
}

/// Whether the HTTP/2 library closed the connection for that. Nothing else
/// here makes it tell the other side to calm down.
fn too_many_given_up(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error);
    let cause = cause.and_then(|it| it.downcast_ref::<h2::Error>());
    cause.is_some_and(|it| it.is_library() && it.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM))
}

const fn blame(slow: bool) -> Closed {
    if slow { Closed::Slow } else { Closed::Garbage }
}

fn routes(door: Door) -> axum::Router {
    let (health, healthy) = tonic_health::server::health_reporter();
    let standing = door.shared.standing.subscribe();
    tokio::spawn(report(health, standing));
    let mut routes = Routes::builder();
    routes
        .add_service(RegistersServer::new(door.clone()).max_decoding_message_size(MESSAGE_BYTES))
        .add_service(LogServer::new(door.clone()).max_decoding_message_size(MESSAGE_BYTES))
        .add_service(SessionsServer::new(door.clone()))
        .add_service(ClusterServer::new(door.clone()))
        .add_service(PipelineServer::new(door.clone()).max_decoding_message_size(MESSAGE_BYTES))
        .add_service(healthy);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTOR)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();
    match reflection {
        Ok(reflection) => {
            routes.add_service(reflection);
        }
        Err(error) => tracing::warn!("no reflection: {error}"),
    }
    // What is no gRPC call falls through to the paths of HTTP.
    let grpc = routes.routes().into_axum_router().reset_fallback();
    let known = axum::middleware::from_fn_with_state(door.clone(), note);
    http::routes(door).merge(grpc).layer(known)
}

/// Notes who calls, for the call itself to find, and what is given up.
async fn note(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let given_up = request.extensions_mut().remove::<Arc<GivenUp>>();
    let call = given_up
        .map(|it| it.begin(&door.shared.metrics.given_up))
        .transpose();
    let call = match call {
        Ok(call) => call,
        Err(refused) if is_grpc(&request) => return grpc::status(refused).into_http(),
        Err(refused) => return http::failed(refused),
    };
    if let Some(pages) = &door.pages
        && let Err(refused) = pages.judge(&request, &door.shared.metrics)
    {
        let mut response = http::failed(refused.error);
        *response.status_mut() = refused.status;
        return response;
    }
    let address = request.extensions().get::<Address>();
    let address = address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |it| it.0);
    let caller = door.caller(request.headers(), address);
    request.extensions_mut().insert(caller);
    let response = next.run(request).await;
    if let Some(call) = call {
        call.answered();
    }
    response
}

fn is_grpc(request: &Request) -> bool {
    let kind = request.headers().get(axum::http::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Keeps gRPC's own health service true: serving means ready.
async fn report(
    health: tonic_health::server::HealthReporter,
    mut standing: tokio::sync::watch::Receiver<super::Standing>,
) {
    use tonic_health::ServingStatus::{NotServing, Serving};
    loop {
        let ready = standing.borrow_and_update().ready;
        let status = if ready { Serving } else { NotServing };
        for service in HEALTH_OF {
            health.set_service_status(service, status).await;
        }
        if standing.changed().await.is_err() {
            return;
        }
    }
}
