//! The port where clients come: gRPC and HTTP on one.
//!
//! Which of the two a connection speaks is seen from its first bytes, and
//! HTTP/2 carries both. A client that is slow to ask, or sends no headers at
//! all, is cut off after a while; connections beyond the limit are closed at
//! once.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::service::Routes;

use super::config::Config;
use super::door::Door;
use super::http;
use super::metrics::Closed;
use crate::api::DESCRIPTOR;
use crate::api::v1::cluster_server::ClusterServer;
use crate::api::v1::log_server::LogServer;
use crate::api::v1::pipeline_server::PipelineServer;
use crate::api::v1::registers_server::RegistersServer;
use crate::api::v1::sessions_server::SessionsServer;
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
/// The largest message that is read from a client.
const MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// Who is let in.
pub(super) struct Guard {
    connections: usize,
    tls: Option<Arc<Tls>>,
    demand: Demand,
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
        .initial_stream_window_size(WINDOW_BYTES[0])
        .initial_connection_window_size(WINDOW_BYTES[1]);
    let builder = Arc::new(builder);
    let open = Arc::new(Semaphore::new(guard.connections));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("a client's connection could not be taken: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&open).try_acquire_owned() else {
            shared.metrics.close(Closed::Full);
            continue;
        };
        let (builder, service) = (Arc::clone(&builder), service.clone());
        let shared = Arc::clone(&shared);
        let secured = secure(stream, guard.tls.clone(), guard.demand);
        tokio::spawn(async move {
            let _permit = permit;
            let line = match secured.await {
                Ok(line) => line,
                Err(error) => {
                    shared.metrics.close(Closed::Garbage);
                    return tracing::debug!("a client was not let in: {error}");
                }
            };
            let serving = builder.serve_connection(TokioIo::new(line), service);
            if let Err(error) = serving.await {
                tracing::debug!("a client's connection ended: {error}");
            }
        });
    }
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

/// Notes who calls, for the call itself to find.
async fn note(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let caller = door.caller(request.headers());
    request.extensions_mut().insert(caller);
    next.run(request).await
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
        health.set_service_status("", status).await;
        if standing.changed().await.is_err() {
            return;
        }
    }
}
