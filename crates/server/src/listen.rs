//! The port where clients come: gRPC and HTTP on one.
//!
//! Which of the two a connection speaks is seen from its first bytes, and
//! HTTP/2 carries both. A client that is slow to ask, or sends no headers at
//! all, or asks for nothing any more, is cut off after a while. Who may come at all, and who has to go when
//! there are too many, is the [`ConnectionLimit`]'s business.

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Version};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tenure_api::DESCRIPTOR;
use tenure_api::v1::cluster_server::{self, ClusterServer};
use tenure_api::v1::log_server::{self, LogServer};
use tenure_api::v1::pipeline_server::{self, PipelineServer};
use tenure_api::v1::registers_server::{self, RegistersServer};
use tenure_api::v1::sessions_server::{self, SessionsServer};
use tenure_api::v1::{self, Cause};
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::yield_now;
use tokio::time::timeout;
use tonic::service::Routes;

use super::account::{Account, CallerId, Charge, Connection, RequestCharge, StreamKind};
use super::body_limit::{self, MeteredBody};
use super::config::Config;
use super::connection_calls::{CallExecutor, Calls, Cut, Waiting};
use super::connection_limit::{
    ConnectionCapacity, ConnectionClass, ConnectionLimit, ConnectionPermit,
};
use super::counted_body::CountedBody;
use super::errors::error;
use super::given_up::{GivenUp, UNSEEN_MAX};
use super::grpc_body::{GrpcBody, MESSAGE_BYTES};
use super::grpc_status::status;
use super::handle::ServerHandle;
use super::handshakes::is_in;
use super::http;
use super::log_rate_limit::LogRateLimit;
use super::metrics::Closed;
use super::pages::PROBES;
use super::protocol_detection::{ConnectionInfoService, begin};
use super::shared::Shared;
use super::stream_rights::StreamRights;
use super::tokens::Caller;
use super::unsent_answers::UnsentAnswers;
use crate::transport::{Arrival, Demand, MaybeTlsStream, Tls};

/// How long the headers of a request may take.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How often a silent connection is asked whether its client is there, and how
/// long the answer may take.
const PING: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(10)];
/// Calls under way on one connection.
const STREAMS_MAX: u32 = 1_024;
/// The window of one HTTP/2 stream and of a connection, in bytes.
const WINDOW_BYTES: [u32; 2] = [4 * 1024 * 1024, 8 * 1024 * 1024];
/// What the HTTP library keeps of one answer beyond the piece that it sends.
const SEND_BYTES: usize = 64 * 1024;
/// Bytes of one connection that the system takes before the client has room
/// for them. Left to itself it takes megabytes, of each connection that is not
/// read, and to copy them keeps a thread from all others.
const UNSENT_BYTES: u32 = 32 * 1024;
/// Calls of one connection, as long as it lives, of which some of the body
/// comes after they were refused: each of them makes the HTTP library queue a
/// frame, which takes memory until the client reads it. One more closes the
/// connection, and a client that goes on makes another.
const REFUSED_MAX: usize = 8_192;
/// Connections by which no request has come yet, at most.
const NEWCOMERS_MAX: usize = 512;
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
pub(super) struct ListenerLimits {
    connections: usize,
    idle: Duration,
    tls: Option<Arc<Tls>>,
    demand: Demand,
    /// Since when it is listened for them.
    since: Instant,
}

impl ListenerLimits {
    pub(super) fn new(config: &Config, tls: Option<Arc<Tls>>, since: Instant) -> Self {
        let demand = if config.client_certificates {
            Demand::Certificate
        } else {
            Demand::Nothing
        };
        Self {
            connections: config.connections,
            idle: config.idle,
            tls,
            demand,
            since,
        }
    }
}

/// How long a client may take to prove itself, from its turn on.
const SECURE_WITHIN: Duration = Duration::from_secs(5);

async fn secure(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    demand: Demand,
) -> std::io::Result<MaybeTlsStream> {
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
    match tls {
        Some(tls) => timeout(SECURE_WITHIN, tls.accept(stream, demand)).await?,
        None => Ok(MaybeTlsStream::Plain(stream)),
    }
}

/// Takes connections of clients until it is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    handle: ServerHandle,
    listener_limits: ListenerLimits,
) {
    let shared = Arc::clone(&handle.shared);
    let handshakes = Arc::clone(&shared.client_handshakes);
    tokio::spawn(async move { handshakes.give_turns().await });
    let account = Arc::clone(&handle.account);
    let service = TowerToHyperService::new(routes(handle));
    let served = Arc::new(ConnectionTask {
        service,
        tls: listener_limits.tls,
        demand: listener_limits.demand,
        idle: listener_limits.idle,
        account,
        waiting: Waiting::default(),
        log_rate_limit: LogRateLimit::default(),
        closing: Mutex::default(),
    });
    let capacity = ConnectionCapacity::of_clients(NEWCOMERS_MAX, listener_limits.connections);
    let connection_limit = ConnectionLimit::new(capacity);
    for scheduler in connection_limit.turn_schedulers() {
        tokio::spawn(async move { scheduler.give_turns().await });
    }
    loop {
        let (stream, address) = match listener.accept().await {
            Ok((stream, from)) => (stream, from.ip()),
            Err(error) => {
                tracing::warn!("a client's connection could not be taken: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // It has gone.
        let Ok(to) = stream.local_addr() else {
            continue;
        };
        let arrival = Arrival {
            to,
            at: clock::boot(),
            since: listener_limits.since,
        };
        let is_known = is_known(&shared, address);
        let permit = connection_limit.enter(CallerId::address(address), is_known);
        let permit = Arc::new(permit);
        let (served, shared) = (Arc::clone(&served), Arc::clone(&shared));
        tokio::spawn(async move {
            let connection = async {
                let handshakes = &shared.client_handshakes;
                if served.tls.is_some() && !handshakes.turn(address, is_known).await {
                    return Some(Closed::Full);
                }
                served.connection((stream, address), arrival, &permit).await
            };
            let closed = tokio::select! {
                closed = connection => closed,
                () = permit.evicted() => Some(Closed::Full),
            };
            if let Some(reason) = closed {
                shared.metrics.close(reason);
            }
        });
    }
}

/// Whether the address belongs here.
fn is_known(shared: &Shared, address: IpAddr) -> bool {
    let is_member = || is_in(&shared.local_server().address_book, address);
    shared.client_handshakes.is_known(address, is_member)
}

/// What a connection is served by, which leaves its calls there.
fn builder(begun: CallExecutor) -> auto::Builder<CallExecutor> {
    let mut builder = auto::Builder::new(begun);
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
        .max_send_buf_size(SEND_BYTES)
        .max_pending_accept_reset_streams(UNSEEN_MAX)
        .max_local_error_reset_streams(REFUSED_MAX)
        .initial_stream_window_size(WINDOW_BYTES[0])
        .initial_connection_window_size(WINDOW_BYTES[1]);
    builder
}

/// What every connection is served by.
struct ConnectionTask {
    service: TowerToHyperService<axum::Router>,
    tls: Option<Arc<Tls>>,
    demand: Demand,
    idle: Duration,
    account: Arc<Account>,
    /// Calls that wait for their first turn.
    waiting: Waiting,
    /// What was said of clients, by their addresses.
    log_rate_limit: LogRateLimit,
    /// It takes milliseconds to drop a connection with a thousand calls. Where
    /// hundreds of those end at once they are dropped one at a time, and other
    /// tasks have their turns in between.
    closing: Mutex<()>,
}

impl ConnectionTask {
    /// Serves one connection to its end, and says why it was closed, if it
    /// was.
    async fn connection(
        &self,
        (stream, address): (TcpStream, IpAddr),
        arrival: Arrival,
        permit: &Arc<ConnectionPermit>,
    ) -> Option<Closed> {
        let line = match secure(stream, self.tls.clone(), self.demand).await {
            Ok(line) => line,
            Err(error) => {
                tracing::debug!("a client was not let in: {error}");
                let tls = self.tls.as_deref();
                if tls.is_some_and(|tls| tls.explain_tls_error(&error).is_some()) {
                    return Some(Closed::Untrusted);
                }
                return Some(blame(error.kind() == std::io::ErrorKind::TimedOut));
            }
        };
        let waiting = self.waiting.of_another();
        let connection = self.account.connection(address);
        let begun = begin(line, waiting.clone(), Arc::clone(connection.unsent()));
        let begun = match timeout(HEADERS_WITHIN, begun).await {
            Ok(Ok(begun)) => begun,
            // It has gone.
            Ok(Err(_)) => return None,
            Err(_) => return Some(Closed::Slow),
        };
        let service = ConnectionInfoService {
            service: self.service.clone(),
            permit: Arc::clone(permit),
            connection: Arc::clone(&connection),
            arrival,
            given_up: GivenUp::new(),
        };
        let unsent = UnsentAnswers::new(connection);
        let mut calls = Calls::new(waiting, unsent, Arc::clone(permit));
        let builder = builder(calls.executor());
        let mut serving = Box::pin(builder.serve_connection(TokioIo::new(begun), service));
        let served = tokio::select! {
            served = calls.beside(serving.as_mut()) => served,
            () = permit.is_idle(self.idle) => {
                serving.as_mut().graceful_shutdown();
                // A client that does not heed it is cut off.
                let _ = timeout(PING[1], calls.beside(serving.as_mut())).await;
                return Some(Closed::Idle);
            }
        };
        if calls.are_many() {
            let turn = self.closing.lock().await;
            drop((calls, serving));
            yield_now().await;
            drop(turn);
        }
        self.closed(address, served, permit)
    }

    /// Why a connection was closed, if it was: so it ended.
    fn closed(
        &self,
        address: IpAddr,
        served: Result<Result<(), BoxError>, Cut>,
        permit: &ConnectionPermit,
    ) -> Option<Closed> {
        let error = match served {
            Ok(served) => served.err()?,
            Err(Cut::Unknown) => return None,
            Err(Cut::Unread(held)) => {
                self.warn_of(
                    address,
                    UNREAD,
                    &format!("it does not read its answers: {}", held.message),
                );
                return Some(Closed::Unread);
            }
        };
        tracing::debug!("a client's connection ended: {error}");
        let known = error.downcast_ref::<hyper::Error>();
        let slow = known.is_some_and(hyper::Error::is_timeout);
        if known.is_some_and(too_much_for_nothing) {
            self.warn_of(address, FLOOD, &format!(
                "it sent too much that is given up, refused or empty (HTTP/2 ENHANCE_YOUR_CALM: \
                 more than {UNSEEN_MAX} calls that were given up before this server came to \
                 them, {REFUSED_MAX} whose bodies came after they were refused, or a flood of \
                 empty or continued frames)"
            ));
            return Some(Closed::GivenUp);
        }
        (!permit.is_proven()).then(|| blame(slow))
    }

    /// Tells of a connection that was closed, once of an address until a minute
    /// passes without.
    fn warn_of(&self, address: IpAddr, what: &'static str, why: &str) {
        if self.log_rate_limit.should_log(address, what, clock::boot()) {
            tracing::warn!(
                %address,
                "a client's connection was closed: {why}; said again of this address after a \
                 minute without"
            );
        }
    }
}

/// What is wrong with a client that sends too much for nothing, as it is
/// remembered that it was said.
const FLOOD: &str = "flood";
/// The same of one that does not read its answers.
const UNREAD: &str = "unread";

/// Whether the HTTP/2 library closed the connection since the client gave too
/// many calls up, or sent too many frames that are empty or go on without an
/// end. For these it tells the other side to calm down.
fn too_much_for_nothing(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error);
    let cause = cause.and_then(|it| it.downcast_ref::<h2::Error>());
    cause.is_some_and(|it| it.is_library() && it.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM))
}

const fn blame(slow: bool) -> Closed {
    if slow { Closed::Slow } else { Closed::Garbage }
}

fn routes(handle: ServerHandle) -> axum::Router {
    let (health, healthy) = tonic_health::server::health_reporter();
    let health_status = handle.shared.health_status.subscribe();
    tokio::spawn(report(health, health_status));
    let mut routes = Routes::builder();
    routes
        .add_service(RegistersServer::new(handle.clone()).max_decoding_message_size(MESSAGE_BYTES))
        .add_service(LogServer::new(handle.clone()).max_decoding_message_size(MESSAGE_BYTES))
        .add_service(SessionsServer::new(handle.clone()))
        .add_service(ClusterServer::new(handle.clone()))
        .add_service(PipelineServer::new(handle.clone()).max_decoding_message_size(MESSAGE_BYTES))
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
    noted(http::routes(handle.clone()).merge(grpc), handle)
}

/// The same calls, of which each is noted before anything else.
pub(super) fn noted(routes: axum::Router, handle: ServerHandle) -> axum::Router {
    routes.layer(axum::middleware::from_fn_with_state(handle, note))
}

/// Notes who calls, for the call itself to find, and what is given up; turns
/// away before its body is read who is not known, or for what there is no
/// room; and counts what the call makes the server hold.
async fn note(State(handle): State<ServerHandle>, mut request: Request, next: Next) -> Response {
    let permit = request.extensions_mut().remove::<Arc<ConnectionPermit>>();
    let under_way = permit.as_ref().map(ConnectionPermit::begin);
    let Some(connection) = request.extensions_mut().remove::<Arc<Connection>>() else {
        let unknown = error(
            Cause::Unspecified,
            "internal error: the connection is missing",
        );
        return turn_away(&request, None, unknown);
    };
    let given_up = request.extensions_mut().remove::<Arc<GivenUp>>();
    let call = given_up
        .map(|it| it.begin(&handle.shared.metrics.given_up))
        .transpose();
    let call = match call {
        Ok(call) => call,
        Err(refused) => return turn_away(&request, Some(&connection), refused),
    };
    if let Some(pages) = &handle.pages
        && let Err(refused) = pages.judge(&request, &handle.shared.metrics)
    {
        let mut response = http::failed(refused.error);
        *response.status_mut() = refused.status;
        read_on(request, &connection);
        return refusal(response, &connection);
    }
    let (caller, request_charge) =
        match admit(&handle, &mut request, &connection, permit.as_deref()) {
            Ok(admitted) => admitted,
            Err(refused) => {
                let answer = turn_away(&request, Some(&connection), refused);
                read_on(request, &connection);
                return answer;
            }
        };
    request.extensions_mut().insert(caller.clone());
    let grpc = is_grpc(&request);
    let request = metered(request, Arc::clone(&request_charge), handle.message_within);
    let mut response = next.run(request).await;
    let streams = response.extensions_mut().remove::<StreamKind>();
    let written = response.extensions_mut().remove::<GrpcBody>();
    let (parts, body) = response.into_parts();
    let body = written.and_then(|it| it.take()).unwrap_or(body);
    let mut body = CountedBody::new(body, (request_charge, under_way), streams);
    poll_fn(|context| {
        body.take(context);
        Poll::Ready(())
    })
    .await;
    if let Some(call) = call {
        call.answered();
    }
    let body = match streams {
        Some(_) => {
            let known = move || caller.granted().map(drop);
            Body::new(StreamRights::new(Body::new(body), known, grpc))
        }
        None => Body::new(body),
    };
    Response::from_parts(parts, body)
}

/// The request with its body counted. The body of an exchange is put where
/// the call itself finds it.
fn metered(request: Request, request_charge: Arc<RequestCharge>, within: Duration) -> Request {
    let keeps = request.uri().path() != EXCHANGE;
    let read_on = is_read_on(&request);
    let (mut parts, body) = request.into_parts();
    let mut body = MeteredBody::new(body, &parts.headers, request_charge, within, keeps);
    body.read_on = read_on;
    let mut body = Body::new(body);
    if !keeps {
        let body = std::mem::take(&mut body);
        parts.extensions.insert(GrpcBody::new(body));
    }
    Request::from_parts(parts, body)
}

/// The one call that sends more than one message.
const EXCHANGE: &str = "/tenure.v1.Pipeline/Exchange";

/// Whether what is left of a request's body is read although it was answered:
/// over HTTP/2 the stream would be reset after the answer, and clients such as
/// curl take that for a failure. gRPC's do not.
fn is_read_on(request: &Request) -> bool {
    request.version() == Version::HTTP_2 && !is_grpc(request)
}

/// Reads the body of a refused call, beside its answer.
fn read_on(request: Request, connection: &Connection) {
    if !request.body().is_end_stream() {
        connection.unsent().reset();
    }
    if is_read_on(&request)
        && let Ok(counted) = RequestCharge::begin(connection.alone(), 0, false)
    {
        body_limit::read_on(request.into_body(), counted);
    }
}

fn turn_away(
    request: &Request,
    connection: Option<&Arc<Connection>>,
    refused: v1::Error,
) -> Response {
    if is_grpc(request) {
        return status(refused).into_http();
    }
    let response = http::failed(refused);
    match connection {
        Some(connection) => refusal(response, connection),
        None => response,
    }
}

/// What a call of a service that the gRPC library brings costs beyond others: 8 KiB
/// are kept for its message before that has come.
const FOREIGN_BYTES: usize = 6 * 1024;

/// About what a call costs that was refused, until its answer has gone.
const REFUSED_BYTES: usize = 4 * 1024;

/// The answer to a refused call, counted until it has gone. A client that gives
/// HTTP/2 no room for bodies would have a server keep any number of them: where
/// there is no room for its answers, this one has no body, which needs none.
fn refusal(response: Response, connection: &Connection) -> Response {
    let place = connection.alone();
    if place.room(false).is_err() {
        let (mut parts, _) = response.into_parts();
        parts.headers.remove(CONTENT_LENGTH);
        parts.headers.remove(CONTENT_TYPE);
        return Response::from_parts(parts, Body::empty());
    }
    let mut charge = Some(place.charge(REFUSED_BYTES, None));
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            frame.map_data(|bytes| match charge.take() {
                Some(charge) => Bytes::from_owner(Refused {
                    bytes,
                    _charge: charge,
                }),
                None => bytes,
            })
        }))
    })
}

/// What a refused call is told, until it has gone.
struct Refused {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Refused {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Lets a call in: its connection has a place, its caller is known if it has
/// to be, and there is room.
fn admit(
    handle: &ServerHandle,
    request: &mut Request,
    connection: &Connection,
    permit: Option<&ConnectionPermit>,
) -> Result<(Caller, Arc<RequestCharge>), v1::Error> {
    let arrival = request.extensions_mut().remove::<Arrival>();
    let mut caller = handle.caller(request.headers(), connection.address(), arrival);
    connection.recognise(&mut caller);
    let was_known = permit.is_none_or(ConnectionPermit::is_known);
    let path = request.uri().path();
    let caller_id = || caller.caller_id();
    let has_place = permit.is_none_or(|it| {
        if asks_for_health(path) {
            it.prove_or_keep(caller.class(), caller_id)
        } else {
            it.prove(caller.class(), caller_id)
        }
    });
    if !has_place {
        // It ends at once.
        return Err(error(
            Cause::Busy,
            "there are as many connections as there may be",
        ));
    }
    if !was_known && caller.class() >= ConnectionClass::Known {
        handle
            .shared
            .client_handshakes
            .remember(connection.address());
    }
    let ours = ["/tenure.v1.", "/v1/", "/metrics", "/grpc.reflection."];
    if ours.iter().any(|it| path.starts_with(it)) {
        caller.granted()?;
    }
    let kept = has_room_kept(handle, path, &caller);
    let mut head = path.len() + weight(request.headers());
    if path.starts_with("/grpc.") {
        head += FOREIGN_BYTES;
    }
    let place = connection.place(&caller);
    let request_charge = if PROBES.contains(&path) && request.body().is_end_stream() {
        RequestCharge::begin_probe(Arc::clone(&place), head)?
    } else {
        RequestCharge::begin(Arc::clone(&place), head, kept)?
    };
    Ok((caller.seated(place, kept), request_charge))
}

/// Whether a call is let in where others are not any more: probes, and what
/// operators ask for. Without tokens, or with one for all, these are told by
/// what they call.
fn has_room_kept(handle: &ServerHandle, path: &str, caller: &Caller) -> bool {
    let operates = ["/tenure.v1.Cluster/", "/v1/cluster/", "/metrics"];
    let all_alike = !handle.protection.tokens || handle.protection.own_token;
    asks_for_health(path)
        || (all_alike && operates.iter().any(|it| path.starts_with(it)))
        || caller.is_admin()
}

/// Whether a call asks for nothing but health, and is answered at once.
fn asks_for_health(path: &str) -> bool {
    PROBES.contains(&path) || path == "/grpc.health.v1.Health/Check"
}

/// About what the headers of a call take.
fn weight(headers: &HeaderMap) -> usize {
    let weight = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
        name.as_str().len() + value.len() + 64
    };
    headers.iter().map(weight).sum()
}

fn is_grpc(request: &Request) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Keeps gRPC's own health service true: serving means ready.
async fn report(
    health: tonic_health::server::HealthReporter,
    mut health_status: tokio::sync::watch::Receiver<super::HealthStatus>,
) {
    use tonic_health::ServingStatus::{NotServing, Serving};
    loop {
        let ready = health_status.borrow_and_update().ready;
        let status = if ready { Serving } else { NotServing };
        for service in HEALTH_OF {
            health.set_service_status(service, status).await;
        }
        if health_status.changed().await.is_err() {
            return;
        }
    }
}
