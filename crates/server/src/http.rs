//! The services as HTTP and JSON, and the server's health.
//!
//! `POST /v1/<service>/<call>` takes and gives the messages of the interface
//! as JSON: names as there, byte strings in base64, numbers as numbers. What
//! streams in gRPC is an object a line here. Errors are
//! `{"error": {"cause": …, "message": …}}`.
//!
//! Three questions that are easily taken for one:
//!
//! | path | asks | 200 if |
//! |---|---|---|
//! | `/healthz` | should this process be restarted? | it does its work, leader or not, connected or not |
//! | `/readyz` | should it get traffic? | it leads, or follows a leader |
//! | `/leader` | does it lead? | it does |
//!
//! These three need no token, since who asks is no client. Where there are
//! tokens, who shows none that is known is told yes or no, and nothing of what
//! the cluster consists of.

use axum::Extension;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;
use serde_json::json;
use tenure_api::v1::{self, Cause};
use tenure_runtime::error::cut;
use tokio_stream::StreamExt as _;

use super::account::StreamKind;
use super::authorization::{Asks, Authorized};
use super::errors::{error, invalid};
use super::handle::ServerHandle;
use super::objects::Objects;
use super::steps::{Step, Steps};
use super::tokens::Caller;

/// The largest request that is read.
pub(super) const BODY_MAX: usize = 4 * 1024 * 1024;

/// All paths.
pub(super) fn routes(handle: ServerHandle) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/leader", get(leader))
        .route("/metrics", get(metrics))
        .route("/v1/cluster/status", get(status).post(status))
        .route("/v1/registers/{call}", post(registers))
        .route("/v1/log/{call}", post(log))
        .route("/v1/sessions/{call}", post(sessions))
        .route("/v1/cluster/{call}", post(cluster))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(axum::extract::DefaultBodyLimit::max(BODY_MAX))
        .with_state(handle)
}

fn answer(code: StatusCode, body: &serde_json::Value) -> Response {
    let content = [(header::CONTENT_TYPE, "application/json")];
    (code, content, format!("{body}\n")).into_response()
}

/// The answer to a probe: whether it is `so`, and for those who are known why.
fn probed(caller: &Caller, what: &str, so: bool, why: serde_json::Value) -> Response {
    let code = if so {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut body = if caller.is_known() { why } else { json!({}) };
    body[what] = so.into();
    answer(code, &body)
}

async fn health(
    State(handle): State<ServerHandle>,
    Extension(caller): CallerExtension,
) -> Response {
    let health_status = handle.shared.health_status.borrow().clone();
    let why = json!({ "why": health_status.waiting });
    probed(&caller, "alive", health_status.alive, why)
}

async fn ready(State(handle): State<ServerHandle>, Extension(caller): CallerExtension) -> Response {
    let health_status = handle.shared.health_status.borrow().clone();
    let why = json!({ "why": health_status.waiting, "full": health_status.full });
    probed(&caller, "ready", health_status.ready, why)
}

async fn leader(
    State(handle): State<ServerHandle>,
    Extension(caller): CallerExtension,
) -> Response {
    let health_status = handle.shared.health_status.borrow().clone();
    let known = handle.shared.leader(health_status.leader);
    let why = json!({
        "term": health_status.term.get(),
        "leader": known.as_ref().map(|(id, _)| id.get()),
        "leader_address": known.map(|(_, address)| address),
    });
    probed(&caller, "leads", health_status.leads, why)
}

async fn metrics(
    State(handle): State<ServerHandle>,
    Extension(caller): CallerExtension,
) -> Response {
    let asked = authorized(&handle, &caller, v1::MetricsRequest {});
    let text = match async { handle.metrics(asked?).await }.await {
        Ok(metrics) => metrics.text,
        Err(error) => return failed(error),
    };
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content)], text).into_response()
}

async fn status(
    State(handle): State<ServerHandle>,
    Extension(caller): CallerExtension,
    body: BodyResult,
) -> Response {
    let asked = parse(&body).and_then(|request| authorized(&handle, &caller, request));
    let status = match async { handle.status(asked?).await }.await {
        Ok(status) => status,
        Err(error) => return failed(error),
    };
    let role = v1::Role::try_from(status.role).unwrap_or_default();
    let role = role
        .as_str_name()
        .trim_start_matches("ROLE_")
        .to_lowercase();
    match serde_json::to_value(&status) {
        Ok(mut value) => {
            value["role"] = role.into();
            answer(StatusCode::OK, &value)
        }
        Err(why) => failed(invalid(why.to_string())),
    }
}

pub(super) fn failed(error: v1::Error) -> Response {
    let code = match error.cause() {
        Cause::NotLeader | Cause::NotReady | Cause::Interrupted => StatusCode::SERVICE_UNAVAILABLE,
        Cause::Busy | Cause::TooManySessions | Cause::Window | Cause::TooSlow => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Cause::SessionExpired | Cause::TooOld | Cause::Compacted | Cause::Restored => {
            StatusCode::GONE
        }
        Cause::OutOfOrder
        | Cause::OtherContent
        | Cause::Members
        | Cause::NotHandedOver
        | Cause::Held => StatusCode::CONFLICT,
        Cause::TooLarge if error.quota => StatusCode::INSUFFICIENT_STORAGE,
        Cause::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Cause::Invalid => StatusCode::BAD_REQUEST,
        Cause::Denied | Cause::NotOwner => StatusCode::FORBIDDEN,
        Cause::Unauthenticated => StatusCode::UNAUTHORIZED,
        Cause::Unspecified => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut body = json!({ "error": {
        "cause": error.cause().as_str_name(),
        "message": error.message,
    }});
    if let Some(leader) = error.leader {
        body["error"]["leader"] = leader.into();
        body["error"]["leader_address"] = error.leader_address.into();
    }
    if error.quota {
        body["error"]["quota"] = true.into();
    }
    if error.expected > 0 {
        body["error"]["expected"] = error.expected.into();
    }
    let mut response = answer(code, &body);
    if code == StatusCode::UNAUTHORIZED {
        let headers = response.headers_mut();
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

async fn respond<T: serde::Serialize>(
    call: impl Future<Output = Result<T, v1::Error>>,
) -> Response {
    match call.await.map(|response| serde_json::to_value(&response)) {
        Ok(Ok(value)) => answer(StatusCode::OK, &value),
        Ok(Err(why)) => failed(invalid(why.to_string())),
        Err(error) => failed(error),
    }
}

/// The body of a request, or why there is none: too large, or its connection
/// broke.
type BodyResult = Result<Bytes, BytesRejection>;

fn parse<T: DeserializeOwned>(body: &BodyResult) -> Result<T, v1::Error> {
    let body = match body {
        Ok(body) => body,
        Err(why) if why.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let text = format!("expected a request of at most {BODY_MAX} bytes, found more");
            return Err(error(Cause::TooLarge, text));
        }
        Err(why) => return Err(invalid(format!("the request: {why}"))),
    };
    let body: &[u8] = if body.is_empty() { b"{}" } else { body };
    let invalid = |why: serde_json::Error| {
        // It quotes a field's name, or a value, as long as that is.
        let (line, column) = (why.line(), why.column());
        let why = why.to_string();
        invalid(format!(
            "the request's JSON, at line {line} and column {column}: {}",
            cut(&why)
        ))
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let message = T::deserialize(Objects(&mut json));
    message
        .and_then(|message| json.end().map(|()| message))
        .map_err(invalid)
}

/// Messages of a stream, an object a line.
async fn lines<T>(
    streams: StreamKind,
    call: impl Future<Output = Result<Steps<T>, v1::Error>>,
) -> Response
where
    T: Step + Unpin,
    T::Message: serde::Serialize + Send,
{
    let messages = match call.await {
        Ok(messages) => messages,
        Err(error) => return failed(error),
    };
    let lines = messages.map(|message| {
        let value = match message {
            Ok(message) => serde_json::to_value(&message).unwrap_or_default(),
            Err(error) => json!({ "error": {
                "cause": error.cause().as_str_name(),
                "message": error.message,
            }}),
        };
        Ok::<_, std::convert::Infallible>(format!("{value}\n"))
    });
    let content = [(header::CONTENT_TYPE, "application/x-ndjson")];
    let mut response = (content, Body::from_stream(lines)).into_response();
    response.extensions_mut().insert(streams);
    response
}

/// Who calls, as `listen` has noted it.
type CallerExtension = Extension<Caller>;

/// What is asked, if its caller may ask it.
fn authorized<Q: Asks>(
    handle: &ServerHandle,
    caller: &Caller,
    request: Q,
) -> Result<Authorized<Q>, v1::Error> {
    Authorized::of(caller.clone(), request, &handle.shared.audit)
}

/// A call of a service, as it has come.
struct Incoming {
    handle: ServerHandle,
    caller: Caller,
    call: String,
    body: BodyResult,
}

impl FromRequest<ServerHandle> for Incoming {
    type Rejection = Response;

    async fn from_request(request: Request, handle: &ServerHandle) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let caller = CallerExtension::from_request_parts(&mut parts, handle).await;
        let Extension(caller) = caller.map_err(IntoResponse::into_response)?;
        // A path that is no text leads nowhere; left to the HTTP library it
        // would be answered in another way than all other errors.
        let Ok(Path(call)) = Path::from_request_parts(&mut parts, handle).await else {
            return Err(nowhere(parts.uri).await);
        };
        let body = Bytes::from_request(Request::from_parts(parts, body), handle).await;
        Ok(Self {
            handle: handle.clone(),
            caller,
            call,
            body,
        })
    }
}

impl Incoming {
    /// What the body asks, if its caller may ask it.
    fn asked<Q: Asks + DeserializeOwned>(&self) -> Result<Authorized<Q>, v1::Error> {
        self.asks(parse(&self.body)?)
    }

    fn asks<Q: Asks>(&self, request: Q) -> Result<Authorized<Q>, v1::Error> {
        authorized(&self.handle, &self.caller, request)
    }
}

async fn registers(from: Incoming) -> Response {
    let handle = &from.handle;
    match from.call.as_str() {
        "read" => respond(async { handle.read(from.asked()?).await }).await,
        "compare_and_swap" => respond(async { handle.compare_and_swap(from.asked()?).await }).await,
        "delete" => respond(async { handle.delete(from.asked()?).await }).await,
        "list" => respond(async { handle.list(from.asked()?).await }).await,
        "watch" => {
            lines(StreamKind::News, async {
                handle.watch(from.asked()?).await
            })
            .await
        }
        other => unknown(
            "registers",
            other,
            "read, compare_and_swap, delete, list, watch",
        ),
    }
}

async fn log(from: Incoming) -> Response {
    let handle = &from.handle;
    match from.call.as_str() {
        "append" => respond(async { handle.append(from.asked()?).await }).await,
        "read" => respond(async { handle.read_log(from.asked()?).await }).await,
        "tail" => lines(StreamKind::Bulk, async { handle.tail(from.asked()?).await }).await,
        other => unknown("log", other, "append, read, tail"),
    }
}

async fn sessions(from: Incoming) -> Response {
    let handle = &from.handle;
    match from.call.as_str() {
        "open" => respond(async { handle.open(from.asked()?).await }).await,
        "keep_alive" => respond(async { handle.keep_alive(from.asked()?).await }).await,
        "close" => respond(async { handle.close(from.asked()?).await }).await,
        "list" => respond(async { handle.list_sessions(from.asked()?).await }).await,
        "end" => respond(async { handle.end_session(from.asked()?).await }).await,
        other => unknown("sessions", other, "open, keep_alive, close, list, end"),
    }
}

async fn cluster(from: Incoming) -> Response {
    let handle = &from.handle;
    match from.call.as_str() {
        "add_member" => respond(async { handle.add_member(from.asked()?).await }).await,
        "promote_member" => respond(async { handle.promote_member(from.asked()?).await }).await,
        "remove_member" => respond(async { handle.remove_member(from.asked()?).await }).await,
        "transfer" => respond(async { handle.transfer(from.asked()?).await }).await,
        // Of these two the body is not looked at.
        "snapshot" => {
            respond(async { handle.snapshot(from.asks(v1::SnapshotRequest {})?).await }).await
        }
        "metrics" => {
            respond(async { handle.metrics(from.asks(v1::MetricsRequest {})?).await }).await
        }
        other => unknown(
            "cluster",
            other,
            "status, add_member, promote_member, remove_member, transfer, snapshot, metrics",
        ),
    }
}

/// What is asked for at a path where there is nothing.
async fn nowhere(uri: Uri) -> Response {
    let text = format!(
        "expected /v1/registers/…, /v1/log/…, /v1/sessions/…, /v1/cluster/…, /healthz, /readyz, \
         /leader or /metrics, found {:?}",
        cut(uri.path())
    );
    let mut response = failed(invalid(text));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// What is asked for in another way than it is answered.
async fn not_so(method: Method, uri: Uri) -> Response {
    let wanted = if uri.path().starts_with("/v1/") {
        "POST"
    } else {
        "GET"
    };
    let text = format!(
        "expected {wanted} {}, found {}",
        cut(uri.path()),
        cut(method.as_str())
    );
    let mut response = failed(invalid(text));
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}

fn unknown(service: &str, found: &str, expected: &str) -> Response {
    let found = cut(found);
    let text = format!("expected one of {expected} after /v1/{service}/, found {found:?}");
    let mut response = failed(invalid(text));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}
