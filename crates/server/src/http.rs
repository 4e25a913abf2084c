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
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;
use serde_json::json;
use tenure_api::v1::{self, Cause};
use tenure_runtime::error::cut;
use tokio_stream::StreamExt as _;

use super::account::StreamKind;
use super::errors::{error, invalid};
use super::handle::ServerHandle;
use super::objects::Objects;
use super::tokens::Caller;
use tenure_alpo::Operation;

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
    let text = match ServerHandle::metrics(&handle, &caller).await {
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
    let request = match parse(&body) {
        Ok(request) => request,
        Err(error) => return failed(error),
    };
    let status = match ServerHandle::status(&handle, &caller, request).await {
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

fn respond<T: serde::Serialize>(result: Result<T, v1::Error>) -> Response {
    match result.map(|response| serde_json::to_value(&response)) {
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
fn lines<T: serde::Serialize + Send + 'static>(
    streams: StreamKind,
    messages: impl tokio_stream::Stream<Item = Result<T, v1::Error>> + Send + 'static,
) -> Response {
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

/// Which call of a service. A path that is no text leads nowhere; left to the
/// HTTP library it would be answered in another way than all other errors.
struct CallName(String);

impl<S: Send + Sync> FromRequestParts<S> for CallName {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(call)) => Ok(Self(call)),
            Err(_) => Err(nowhere(parts.uri.clone()).await),
        }
    }
}

/// Who calls, as `listen` has noted it.
type CallerExtension = Extension<Caller>;

async fn registers(
    State(handle): State<ServerHandle>,
    Extension(caller): CallerExtension,
    CallName(call): CallName,
    body: BodyResult,
) -> Response {
    match call.as_str() {
        "read" => match parse(&body) {
            Ok(request) => respond(ServerHandle::read(&handle, &caller, request).await),
            Err(error) => failed(error),
        },
        "compare_and_swap" => match parse(&body) {
            Ok(request) => respond(ServerHandle::compare_and_swap(&handle, &caller, request).await),
            Err(error) => failed(error),
        },
        "delete" => match parse(&body) {
            Ok(request) => respond(ServerHandle::delete(&handle, &caller, request).await),
            Err(error) => failed(error),
        },
        "list" => match parse(&body) {
            Ok(request) => respond(ServerHandle::list(&handle, &caller, request).await),
            Err(error) => failed(error),
        },
        "watch" => {
            let request = match parse(&body) {
                Ok(request) => request,
                Err(error) => return failed(error),
            };
            match ServerHandle::watch(&handle, caller, request).await {
                Ok(news) => lines(StreamKind::News, news),
                Err(error) => failed(error),
            }
        }
        other => unknown(
            "registers",
            other,
            "read, compare_and_swap, delete, list, watch",
        ),
    }
}

async fn log(
    State(handle): State<ServerHandle>,
    Extension(caller): CallerExtension,
    CallName(call): CallName,
    body: BodyResult,
) -> Response {
    match call.as_str() {
        "append" => match parse(&body) {
            Ok(request) => respond(ServerHandle::append(&handle, &caller, request).await),
            Err(error) => failed(error),
        },
        "read" => match parse(&body) {
            Ok(request) => respond(handle.read_log(&caller, request).await),
            Err(error) => failed(error),
        },
        "tail" => match parse::<v1::TailRequest>(&body) {
            Ok(request) => match ServerHandle::tail(&handle, caller, request.from).await {
                Ok(messages) => lines(StreamKind::Bulk, messages),
                Err(error) => failed(error),
            },
            Err(error) => failed(error),
        },
        other => unknown("log", other, "append, read, tail"),
    }
}

async fn sessions(
    State(handle): State<ServerHandle>,
    Extension(caller): CallerExtension,
    CallName(call): CallName,
    body: BodyResult,
) -> Response {
    let numbered = |operation| async {
        match parse::<v1::KeepAliveRequest>(&body) {
            Ok(request) => {
                let done = handle.session(&caller, request.numbered, operation).await;
                respond(done.map(|()| v1::KeepAliveResponse {}))
            }
            Err(error) => failed(error),
        }
    };
    match call.as_str() {
        "open" => match parse(&body) {
            Ok(request) => respond(ServerHandle::open(&handle, &caller, request).await),
            Err(error) => failed(error),
        },
        "keep_alive" => numbered(Operation::KeepAlive).await,
        "close" => numbered(Operation::Close).await,
        "list" => match parse(&body) {
            Ok(request) => respond(handle.list_sessions(&caller, request).await),
            Err(error) => failed(error),
        },
        "end" => match parse(&body) {
            Ok(request) => respond(handle.end_session(&caller, request).await),
            Err(error) => failed(error),
        },
        other => unknown("sessions", other, "open, keep_alive, close, list, end"),
    }
}

async fn cluster(
    State(handle): State<ServerHandle>,
    Extension(caller): CallerExtension,
    CallName(call): CallName,
    body: BodyResult,
) -> Response {
    match call.as_str() {
        "add_member" => match parse(&body) {
            Ok(request) => respond(ServerHandle::add_member(&handle, &caller, request).await),
            Err(error) => failed(error),
        },
        "promote_member" => match parse(&body) {
            Ok(request) => respond(ServerHandle::promote_member(&handle, &caller, request).await),
            Err(error) => failed(error),
        },
        "remove_member" => match parse(&body) {
            Ok(request) => respond(ServerHandle::remove_member(&handle, &caller, request).await),
            Err(error) => failed(error),
        },
        "transfer" => match parse::<v1::TransferRequest>(&body) {
            Ok(request) => respond(ServerHandle::transfer(&handle, &caller, request.to).await),
            Err(error) => failed(error),
        },
        "snapshot" => respond(ServerHandle::snapshot(&handle, &caller).await),
        "metrics" => respond(ServerHandle::metrics(&handle, &caller).await),
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
