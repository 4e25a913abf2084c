//! Requests: to one server at a time, and to the next one when it becomes suspect.
//!
//! The library keeps connections and opens them as they are needed: one for each
//! request that is under way. A server is believed when it has answered a read of an
//! object, which need not be there, and is of the same cluster as the other servers
//! (`clusters.rs`). A request that is given up before its answer has come makes the
//! server suspect.
//!
//! A token that is not good any more (401) is read again, and the request sent once
//! more with another one: it was refused before anything was done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::task::JoinSet;

use super::classify::{self, Call, Status};
use super::clusters;
use super::names::Kind;
use super::object;
use super::settings::Settings;
use crate::clock;
use crate::error::StoreError;
use crate::store::bounded_json;
use crate::store::dial::{
    ConnectFn, Connection, Dialer, HANDSHAKE_WITHIN, OTHERS_WITHIN, answers_of, ask_others,
    comparable,
};
use crate::store::pace::Pace;

/// The largest answer about one object: etcd behind a server takes 1.5 MiB.
const OBJECT_MAX: usize = 2 * 1024 * 1024;
/// The most that one object costs to decode: with what each who has written it owns of it.
const OBJECT_COST: usize = 8_192;
/// The largest listing: a page of the largest registers, and all of its pages together.
const LISTING_MAX: usize = 64 * 1024 * 1024;
/// The most objects of all pages together.
const LISTED_MAX: usize = 250_000;
/// How many objects a server is asked for at once.
const LIMIT: usize = 100;
/// How often a listing begins again whose rest was forgotten.
const ATTEMPTS: usize = 5;
/// How long a server may tell of changes before it ends a watch.
const WATCH_SECONDS: u64 = 300;
/// The object by which a server is tried; there need not be such a one.
const PROBE: &str = "tenure.probe";

/// A failure, and when the server wants to be asked again if it said so.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: StoreError,
    pub(super) retry_after: Option<Duration>,
    /// Whether the server has forgotten the version that was asked for (410 Gone): all is
    /// listed again (relist).
    pub(super) is_forgotten: bool,
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            retry_after: None,
            is_forgotten: false,
        }
    }
}

impl From<Refused> for StoreError {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

/// Which objects are meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Selected {
    /// The one of this name.
    Name(String),
    /// Those with these labels, or all.
    Labels(Option<String>),
}

impl Selected {
    fn options(&self) -> String {
        match self {
            Self::Name(name) => format!("&fieldSelector=metadata.name%3D{name}"),
            Self::Labels(None) => String::new(),
            // All other characters of ours are fit for a URL.
            Self::Labels(Some(labels)) => {
                let labels = labels.replace('/', "%2F").replace('=', "%3D");
                format!("&labelSelector={labels}")
            }
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
struct Request {
    call: Call,
    kind: Kind,
    method: Method,
    path: String,
    body: Option<String>,
}

/// Carries out requests.
pub(super) struct KubernetesClient {
    link: Link,
    dialer: Dialer<Host>,
    pace: Arc<Pace>,
}

/// What a request needs beside a host.
#[derive(Clone)]
struct Link {
    settings: Arc<Settings>,
    http: reqwest::Client,
}

/// A server that has answered.
#[derive(Clone)]
struct Host {
    at: usize,
    /// Tells one time that it was believed from another.
    identity: Arc<()>,
}

impl Connection for Host {
    fn is_open(&self) -> bool {
        // That it is not shows with the next call, which leaves it.
        true
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }
}

impl fmt::Debug for KubernetesClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KubernetesClient({})", self.link.settings)
    }
}

impl KubernetesClient {
    pub(super) fn new(settings: &Arc<Settings>) -> Result<Self, StoreError> {
        let link = Link {
            settings: Arc::clone(settings),
            http: settings.http()?,
        };
        let dialled = link.clone();
        let connect_to: ConnectFn<Host> = Arc::new(move |at| {
            let link = dialled.clone();
            Box::pin(async move {
                let others = ask_others(&link.settings.servers, at, |other| {
                    let link = link.clone();
                    async move { link.published(other).await }
                });
                link.get(at, Kind::Lease, PROBE).await?;
                link.compare(at, others).await?;
                let identity = Arc::new(());
                Ok(Host { at, identity })
            })
        });
        let hosts = settings.servers.clone();
        Ok(Self {
            dialer: Dialer::new(settings.to_string(), hosts, 0, connect_to),
            link,
            pace: Arc::default(),
        })
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.link.settings
    }

    /// The server that is believed. The caller gives up when its own time is over, and
    /// the search goes on.
    async fn connected(&self) -> Result<Host, StoreError> {
        let until = clock::boot().after(HANDSHAKE_WITHIN);
        self.dialer.connected(until).await
    }

    /// Carries out what begins with a host.
    async fn with_host<T>(
        &self,
        ask: impl AsyncFnOnce(&Link, usize) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let host = self.connected().await?;
        let pending = self.dialer.pending(&host);
        let answer = ask(&self.link, host.at).await;
        pending.ended(answer.as_ref().err().is_none_or(keeps_host));
        answer
    }

    /// Reads an object, if it is there. It sees every write that was acknowledged.
    pub(super) async fn get(&self, kind: Kind, name: &str) -> Result<Option<Value>, StoreError> {
        let got = self.with_host(async |link, at| link.get(at, kind, name).await);
        Ok(got.await?)
    }

    /// Makes an object, or replaces the one that it names.
    pub(super) async fn put(&self, kind: Kind, object: &Value) -> Result<Value, StoreError> {
        let all = kind.path(&self.link.settings.namespace);
        let (method, path) = match object::metadata(object, "uid") {
            None => (Method::POST, all),
            Some(_) => {
                let name = object::metadata(object, "name").unwrap_or_default();
                (Method::PUT, format!("{all}/{name}"))
            }
        };
        let request = Request {
            call: Call::Write,
            kind,
            method,
            path,
            body: Some(object.to_string()),
        };
        let written = self.with_host(async |link, at| {
            let body = link.ask(at, &request, OBJECT_MAX).await?;
            // An answer that cannot be read says nothing of what was done.
            Ok(bounded_json::parse(&body, OBJECT_COST).map_err(StoreError::unknown)?)
        });
        Ok(written.await?)
    }

    /// Deletes an object, if it has this state.
    pub(super) async fn delete(
        &self,
        kind: Kind,
        name: &str,
        state: &object::State,
    ) -> Result<(), StoreError> {
        let body = serde_json::json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": { "uid": state.uid, "resourceVersion": state.number.to_string() },
        });
        let request = Request {
            call: Call::Write,
            kind,
            method: Method::DELETE,
            path: format!("{}/{name}", kind.path(&self.link.settings.namespace)),
            body: Some(body.to_string()),
        };
        let deleted = self.with_host(async |link, at| link.ask(at, &request, OBJECT_MAX).await);
        deleted.await?;
        Ok(())
    }

    /// What is kept of all objects that are selected, and the number of the version at
    /// which they were so. Of objects as they come no more than a page is held.
    pub(super) async fn list<T>(
        &self,
        kind: Kind,
        selected: &Selected,
        keep: impl Fn(&Value) -> Result<Option<T>, StoreError>,
    ) -> Result<(Vec<T>, u64), Refused> {
        self.with_host(async |link, at| link.list(at, kind, selected, &keep).await)
            .await
    }

    /// Is told of what happens after this version. It may be given up at any time: the
    /// host is suspect only if it fails.
    pub(super) async fn watch(
        &self,
        kind: Kind,
        selected: &Selected,
        after: u64,
    ) -> Result<Events, Refused> {
        let host = self.connected().await?;
        let path = kind.path(&self.link.settings.namespace);
        let options = selected.options();
        let request = Request {
            call: Call::Read,
            kind,
            method: Method::GET,
            path: format!(
                "{path}?watch=true&allowWatchBookmarks=true&resourceVersion={after}\
                 &timeoutSeconds={WATCH_SECONDS}{options}"
            ),
            body: None,
        };
        match self.link.answer(host.at, &request).await {
            Ok(answer) => Ok(Events::of(answer, Arc::clone(&self.pace))),
            Err(refused) => {
                if !keeps_host(&refused) {
                    self.dialer.abandon(&host);
                }
                Err(refused)
            }
        }
    }
}

/// Whether the host need not be left: it has answered, or another would say the same.
fn keeps_host(refused: &Refused) -> bool {
    let is_busy = refused.retry_after.is_some();
    is_busy
        || !matches!(
            refused.error,
            StoreError::Unavailable(_) | StoreError::Unknown(_)
        )
}

impl Link {
    /// The uid of what a server's cluster publishes in the namespace, if it does.
    async fn published(&self, at: usize) -> Result<Option<String>, StoreError> {
        let found = self.get(at, Kind::ConfigMap, clusters::PUBLISHED).await?;
        let uid = found.as_ref().and_then(|it| object::metadata(it, "uid"));
        Ok(uid.map(str::to_owned))
    }

    /// Fails if another server is of another cluster than the one of this number, which
    /// has answered.
    async fn compare(
        &self,
        at: usize,
        others: JoinSet<Option<(String, String)>>,
    ) -> Result<(), StoreError> {
        if others.is_empty() {
            return Ok(());
        }
        let server = self.settings.servers.get(at).map_or("", String::as_str);
        let Some(own) = comparable(server, self.published(at).await).flatten() else {
            return Ok(());
        };
        let others = answers_of(others, clock::boot().after(OTHERS_WITHIN)).await;
        clusters::compare(server, &own, &others)
    }

    async fn get(&self, at: usize, kind: Kind, name: &str) -> Result<Option<Value>, Refused> {
        let request = Request {
            call: Call::Read,
            kind,
            method: Method::GET,
            path: format!("{}/{name}", kind.path(&self.settings.namespace)),
            body: None,
        };
        let answer = self.send(at, &request).await?;
        let status = answer.status();
        let retry_after = retry_after(&answer);
        let body = read_body(Call::Read, answer, OBJECT_MAX).await?;
        if status.is_success() {
            let object = bounded_json::parse(&body, OBJECT_COST).map_err(not_kubernetes)?;
            return Ok(Some(object));
        }
        let said = Status::parse(&self.settings.token.hidden(&body));
        if status == StatusCode::NOT_FOUND && said.is_absent(kind) {
            return Ok(None);
        }
        Err(refusal(&request, status, &said, retry_after))
    }

    async fn list<T>(
        &self,
        at: usize,
        kind: Kind,
        selected: &Selected,
        keep: &impl Fn(&Value) -> Result<Option<T>, StoreError>,
    ) -> Result<(Vec<T>, u64), Refused> {
        let mut forgotten = None;
        for _ in 0..ATTEMPTS {
            match self.pages(at, kind, selected, keep).await {
                Err(refused) if refused.is_forgotten => forgotten = Some(refused),
                other => return other,
            }
        }
        let late = || StoreError::unavailable("a listing was forgotten again and again").into();
        Err(forgotten.unwrap_or_else(late))
    }

    /// All pages of a listing, which are of one moment.
    async fn pages<T>(
        &self,
        at: usize,
        kind: Kind,
        selected: &Selected,
        keep: &impl Fn(&Value) -> Result<Option<T>, StoreError>,
    ) -> Result<(Vec<T>, u64), Refused> {
        let (path, options) = (kind.path(&self.settings.namespace), selected.options());
        let (mut kept, mut bytes, mut listed) = (Vec::new(), 0, 0);
        let mut rest = String::new();
        loop {
            let request = Request {
                call: Call::Read,
                kind,
                method: Method::GET,
                path: format!("{path}?limit={LIMIT}{options}{rest}"),
                body: None,
            };
            let body = self.ask(at, &request, LISTING_MAX - bytes).await?;
            bytes += body.len();
            let page = bounded_json::parse(&body, LIMIT * OBJECT_COST).map_err(not_kubernetes)?;
            let number = object::number(&page)?;
            let items = items_of(&page)?;
            listed += items.len();
            if listed > LISTED_MAX {
                return Err(too_many().into());
            }
            for item in items {
                kept.extend(keep(item)?);
            }
            match object::metadata(&page, "continue").filter(|token| !token.is_empty()) {
                Some(token) => rest = format!("&continue={}", escaped(token)),
                None => return Ok((kept, number)),
            }
        }
    }

    /// The body of an answer that is a success.
    async fn ask(
        &self,
        at: usize,
        request: &Request,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Refused> {
        let answer = self.answer(at, request).await?;
        read_body(request.call, answer, bytes_max).await
    }

    /// An answer that is a success.
    async fn answer(&self, at: usize, request: &Request) -> Result<reqwest::Response, Refused> {
        let answer = self.send(at, request).await?;
        let (status, retry_after) = (answer.status(), retry_after(&answer));
        if status.is_success() {
            return Ok(answer);
        }
        let body = read_body(request.call, answer, OBJECT_MAX).await?;
        let said = Status::parse(&self.settings.token.hidden(&body));
        Err(refusal(request, status, &said, retry_after))
    }

    /// An answer, of any status.
    async fn send(&self, at: usize, request: &Request) -> Result<reqwest::Response, Refused> {
        let token = self.settings.token.header().await;
        let answer = self.send_as(at, request, token.clone()).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        match self.settings.token.after(token.as_ref()).await {
            None => Ok(answer),
            other => self.send_as(at, request, other).await,
        }
    }

    async fn send_as(
        &self,
        at: usize,
        request: &Request,
        token: Option<HeaderValue>,
    ) -> Result<reqwest::Response, Refused> {
        let server = self.settings.servers.get(at).map_or("", String::as_str);
        let url = format!("{server}{}", request.path);
        let mut call = self.http.request(request.method.clone(), url);
        call = call.header("Accept", "application/json");
        if let Some(token) = token {
            call = call.header("Authorization", token);
        }
        if let Some(body) = &request.body {
            call = call.header("Content-Type", "application/json");
            call = call.body(body.clone());
        }
        let lost = |error| classify::unanswered(request.call, error);
        Ok(call.send().await.map_err(lost)?)
    }
}

fn refusal(
    request: &Request,
    status: StatusCode,
    said: &Status,
    retry_after: Option<Duration>,
) -> Refused {
    Refused {
        error: classify::refused(request.call, request.kind, status, said),
        retry_after: retry_after.or(said.retry_after),
        is_forgotten: status == StatusCode::GONE,
    }
}

/// When the server wants to be asked again.
fn retry_after(answer: &reqwest::Response) -> Option<Duration> {
    let seconds = answer.headers().get("Retry-After")?.to_str().ok()?;
    let seconds = seconds.parse().ok().filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds))
}

/// The objects of a page.
fn items_of(page: &Value) -> Result<&[Value], Refused> {
    match page.get("items") {
        Some(Value::Array(items)) if items.len() <= LIMIT => Ok(items),
        Some(Value::Array(items)) => Err(not_kubernetes(format!(
            "a page of {} objects in place of {LIMIT} at most",
            items.len()
        ))),
        None | Some(Value::Null) => Ok(&[]),
        Some(_) => Err(not_kubernetes("another list")),
    }
}

/// A body; that of a refusal is cut where it is too long.
async fn read_body(
    call: Call,
    mut answer: reqwest::Response,
    bytes_max: usize,
) -> Result<Vec<u8>, Refused> {
    let lost = |error| classify::unanswered(call, error);
    let is_refusal = !answer.status().is_success();
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(lost)? {
        if body.len() + part.len() > bytes_max {
            // Its beginning says why.
            if is_refusal {
                break;
            }
            return Err(match call {
                Call::Read => too_long(),
                // It may have been carried out.
                Call::Write => call.lost(too_long()),
            }
            .into());
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

fn too_long() -> StoreError {
    StoreError::broken(format!(
        "expected objects of at most {OBJECT_MAX} bytes and listings of at most {LISTING_MAX}, \
         found a longer answer; keep fewer objects in the namespace"
    ))
}

fn too_many() -> StoreError {
    StoreError::broken(format!(
        "expected listings of at most {LISTED_MAX} objects, found a longer one; keep fewer objects \
         in the namespace"
    ))
}

fn not_kubernetes(found: impl fmt::Display) -> Refused {
    let why = format!("expected an object of Kubernetes, found another answer: {found}");
    StoreError::broken(why).into()
}

/// A token of the server's as a part of a URL.
fn escaped(token: &str) -> String {
    let mut text = String::with_capacity(token.len());
    for byte in token.bytes() {
        match byte {
            b'-' | b'_' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// What a server tells of changes: one event a line.
pub(super) struct Events {
    answer: reqwest::Response,
    lines: Lines,
    /// Shared by all watches of the store.
    pace: Arc<Pace>,
}

impl Events {
    fn of(answer: reqwest::Response, pace: Arc<Pace>) -> Self {
        Self {
            answer,
            lines: Lines::default(),
            pace,
        }
    }

    /// The next event; `None` if the server has ended the watch.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, StoreError> {
        loop {
            if let Some(line) = self.lines.next() {
                let event = bounded_json::parse(line, OBJECT_COST);
                // What is not asked for waits at the server: renewals and writes go first.
                self.pace.take(line.len()).await;
                return event.map(Some).map_err(StoreError::unavailable);
            }
            if self.lines.rest().len() > OBJECT_MAX {
                return Err(too_long());
            }
            let lost = |error| classify::unanswered(Call::Read, error);
            match self.answer.chunk().await.map_err(lost)? {
                Some(part) => {
                    self.lines.push(&part);
                    self.pace.take(part.len()).await;
                }
                None => return Ok(None),
            }
        }
    }
}

/// Lines that are put together of parts. Each byte is looked at twice at most.
/// Empty lines are skipped in bulk.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Where what was not handed on begins.
    begin: usize,
    /// Up to where that has no end of a line.
    searched: usize,
}

impl Lines {
    fn push(&mut self, part: &[u8]) {
        // Once a part, and not once a line: what is left is moved to the front.
        self.bytes.drain(..self.begin);
        self.searched -= self.begin;
        self.begin = 0;
        self.bytes.extend_from_slice(part);
    }

    /// What was not handed on.
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.begin..).unwrap_or_default()
    }

    /// The next line that is not empty, if all of it has come.
    fn next(&mut self) -> Option<&[u8]> {
        let rest = self.rest();
        let blank = rest.iter().position(|byte| !byte.is_ascii_whitespace());
        self.begin += blank.unwrap_or(rest.len());
        self.searched = self.searched.max(self.begin);
        let new = self.bytes.get(self.searched..).unwrap_or_default();
        let Some(length) = new.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let (begin, end) = (self.begin, self.searched + length);
        self.begin = end + 1;
        self.searched = self.begin;
        self.bytes.get(begin..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(parts: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for part in parts {
            lines.push(part);
            while let Some(line) = lines.next() {
                found.push(String::from_utf8_lossy(line).into_owned());
            }
        }
        assert!(lines.searched >= lines.begin, "{lines:?}");
        found
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut() {
        let text = b"\n\n{\"a\": 1}\r\n \n\t{}\n{\"b\n\nrest";
        let whole = all(&[text]);
        assert_eq!(whole, ["{\"a\": 1}\r", "{}", "{\"b"]);
        for at in 0..text.len() {
            let (first, second) = text.split_at(at);
            assert_eq!(all(&[first, second]), whole, "cut at {at}");
        }
        assert_eq!(all(&text.chunks(1).collect::<Vec<_>>()), whole);
    }

    /// 3 MB of them a second took all of a processor, and the leader its command.
    #[test]
    fn empty_lines_cost_next_to_nothing() {
        let began = clock::boot();
        let blank = vec![b'\n'; 1_000_000];
        assert_eq!(all(&[&blank, b"{}\n", &blank]), ["{}"]);
        let took = clock::boot().since(began);
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
