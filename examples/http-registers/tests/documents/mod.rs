//! A web server that keeps documents and honours `If-Match`, or is said to.

#![allow(dead_code, reason = "each test takes a part of it")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// How long a byte takes to arrive where that counts: 1 Gbit/s. Over the loopback a whole
/// document is there at once, most of the time.
const PER_BYTE: Duration = Duration::from_nanos(8);

/// What is wrong with a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// It carries out every change.
    IgnoresPreconditions,
    /// It looks whether a document is as expected, does something else, and then
    /// writes.
    ForgetsToLock,
    /// It looks whether a document is as expected before the new one has arrived, and
    /// writes when it has. A document arrives as over a network ([`PER_BYTE`]).
    LooksTooEarly,
    /// It acknowledges one write in a hundred that it does not do.
    LosesOneInAHundred,
    /// Every other reading is of a replica, which lags behind by a write.
    ReadsReplica,
    /// It begins anew, without documents and with the first tag, when this file
    /// is there; it takes the file away.
    Forgets(PathBuf),
}

/// Documents by name, with the tags that they have.
#[derive(Default, Debug)]
struct Documents {
    all: BTreeMap<String, (u64, Bytes)>,
    /// As they were before the last change.
    replica: BTreeMap<String, (u64, Bytes)>,
    writes: u64,
    readings: u64,
}

/// A server; it goes with the runtime.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// The URL of its store.
    pub(crate) url: String,
    fault: Fault,
    documents: Arc<Mutex<Documents>>,
}

impl Server {
    /// How many documents there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().all.len()
    }

    /// Its address with another scheme.
    pub(crate) fn as_scheme(&self, scheme: &str) -> String {
        self.url.replace("etags:", &format!("{scheme}:"))
    }

    fn lock(&self) -> MutexGuard<'_, Documents> {
        self.documents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What a document is, as a reading finds it.
    fn found(&self, name: &str) -> Option<(u64, Bytes)> {
        let mut documents = self.lock();
        documents.readings += 1;
        let late = self.fault == Fault::ReadsReplica && documents.readings.is_multiple_of(2);
        let of = if late {
            &documents.replica
        } else {
            &documents.all
        };
        of.get(name).cloned()
    }

    fn restart(&self) {
        if let Fault::Forgets(file) = &self.fault
            && std::fs::remove_file(file).is_ok()
        {
            *self.lock() = Documents::default();
        }
    }

    /// Whether it has looked before, and does not look again.
    fn has_looked(&self) -> bool {
        matches!(self.fault, Fault::ForgetsToLock | Fault::LooksTooEarly)
    }

    fn fits(&self, held: Option<&(u64, Bytes)>, headers: &HeaderMap) -> Option<bool> {
        let header = |name| headers.get(name).map(|it| it.to_str().unwrap_or_default());
        let fits = match (header(IF_MATCH), header(IF_NONE_MATCH)) {
            (Some(tag), None) => held.is_some_and(|(held, _)| quoted(*held) == tag),
            (None, Some("*")) => held.is_none(),
            _ => return None,
        };
        Some(fits || self.fault == Fault::IgnoresPreconditions)
    }
}

fn quoted(tag: u64) -> String {
    format!("\"{tag}\"")
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

async fn serve(State(server): State<Server>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let name = decode(head.uri.path().trim_start_matches('/'));
    if server.fault == Fault::LooksTooEarly && head.method != Method::GET {
        let held = server.lock().all.get(&name).cloned();
        if server.fits(held.as_ref(), &head.headers) == Some(false) {
            return StatusCode::PRECONDITION_FAILED.into_response();
        }
    }
    let Ok(body) = axum::body::to_bytes(body, 1 << 20).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    if server.fault == Fault::LooksTooEarly {
        arrive(body.len()).await;
    }
    server.restart();
    if head.method != Method::GET {
        return change(&server, &head.method, name, &head.headers, body).await;
    }
    if name.is_empty() {
        return names(&server, head.uri.query().unwrap_or_default()).into_response();
    }
    match server.found(&name) {
        Some((tag, body)) => ([(ETAG, quoted(tag))], body).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Waits for as long as so many bytes take to arrive, where a timer is that fine.
async fn arrive(bytes: usize) {
    let taking = PER_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX);
    if taking >= Duration::from_millis(1) {
        tokio::time::sleep(taking).await;
    }
}

/// A page of names.
fn names(server: &Server, query: &str) -> String {
    let option = |wanted: &str| {
        let mut pairs = query.split('&');
        let found = pairs.find_map(|it| it.strip_prefix(wanted));
        decode(found.unwrap_or_default())
    };
    let (prefix, after) = (option("prefix="), option("after="));
    let fits = |name: &&String| name.starts_with(&prefix) && **name > after;
    let encoded = |name| format!("{}\n", utf8_percent_encode(name, NON_ALPHANUMERIC));
    let documents = server.lock();
    let names = documents.all.keys().filter(fits).take(501);
    names.map(|name| encoded(name)).collect()
}

async fn change(
    server: &Server,
    method: &Method,
    name: String,
    headers: &HeaderMap,
    body: Bytes,
) -> Response {
    if server.fault == Fault::ForgetsToLock {
        let held = server.lock().all.get(&name).cloned();
        if server.fits(held.as_ref(), headers) == Some(false) {
            return StatusCode::PRECONDITION_FAILED.into_response();
        }
        // Others have their turn.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }
    let mut documents = server.lock();
    let fits = server.fits(documents.all.get(&name), headers);
    match fits {
        None => return StatusCode::PRECONDITION_REQUIRED.into_response(),
        Some(false) if !server.has_looked() => {
            return StatusCode::PRECONDITION_FAILED.into_response();
        }
        Some(_) => {}
    }
    documents.replica = documents.all.clone();
    if method == Method::DELETE {
        documents.all.remove(&name);
        return StatusCode::NO_CONTENT.into_response();
    }
    documents.writes += 1;
    let tag = documents.writes;
    if server.fault != Fault::LosesOneInAHundred || !tag.is_multiple_of(100) {
        documents.all.insert(name, (tag, body));
    }
    ([(ETAG, quoted(tag))], ()).into_response()
}

/// A server of documents with this fault.
pub(crate) async fn server(fault: Fault) -> Server {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = Server {
        url: format!("etags://{address}"),
        fault,
        documents: Arc::default(),
    };
    let router = Router::new().fallback(serve).with_state(server.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    server
}
