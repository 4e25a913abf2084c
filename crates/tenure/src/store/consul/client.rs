//! Requests: to one agent or server at a time, and to the next one of the URL when it
//! becomes suspect.
//!
//! The library keeps connections and opens them as they are needed: one for each
//! request that is under way. A host is believed when it has answered a consistent
//! read, which takes the leader and a majority, and follows the same leader as the other
//! hosts (`datacenters.rs`). A request that is given up before its answer has come makes
//! the host suspect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::classify::{self, Call};
use super::datacenters;
use super::kv::{self, ENTRIES_MAX, Entry};
use super::settings::Settings;
use crate::clock;
use crate::error::StoreError;
use crate::store::dial::{
    ConnectFn, Connection, Dialer, HANDSHAKE_WITHIN, OTHERS_WITHIN, answers_of, ask_others,
    comparable,
};
use crate::store::{Key, MAX_VALUE_BYTES, PAGE_MAX, password};

/// The largest answer about one key: the largest value that Consul takes (512 KiB unless
/// it is configured otherwise), in Base64.
const ONE_MAX: usize = 1024 * 1024;
/// The largest answer about all keys behind a prefix: a full page of the largest registers,
/// and as much again for the form that Consul gives them.
const ALL_MAX: usize = 2 * PAGE_MAX * (MAX_VALUE_BYTES + Key::MAX_BYTES);
/// The largest answer about the leader.
const LEADER_MAX: usize = 1024;
/// How long a server may wait for a change.
const WAIT: Duration = Duration::from_secs(30);
/// How much longer its answer may take. A server waits up to a sixteenth longer, so
/// that not all answers come at once.
const WAIT_SLACK: Duration = Duration::from_secs(10);
/// The key by which a host is tried; there need not be such a one.
const PROBE: &str = "=probe";
/// The header with the index at which a read was answered.
const INDEX: &str = "X-Consul-Index";
/// The header with our token.
const TOKEN: &str = "X-Consul-Token";

/// Carries out requests.
pub(super) struct ConsulClient {
    settings: Arc<Settings>,
    http: reqwest::Client,
    dialer: Dialer<Host>,
}

/// A host that has answered.
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

/// What is read.
#[derive(Clone, Debug)]
pub(super) struct Query {
    /// The name of a key, or what names begin with.
    name: String,
    is_prefix: bool,
    /// Waits until something has changed after this index.
    after: Option<u64>,
}

impl Query {
    pub(super) fn key(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_prefix: false,
            after: None,
        }
    }

    /// All keys whose names begin so.
    pub(super) fn below(name: &str) -> Self {
        Self {
            is_prefix: true,
            ..Self::key(name)
        }
    }

    /// The same, once something has changed after this index; at once if it is 0.
    pub(super) fn after(mut self, index: u64) -> Self {
        self.after = (index > 0).then_some(index);
        self
    }
}

/// What was read.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) entries: Vec<Entry>,
    /// The index at which this was so; 0 if the server does not say.
    pub(super) index: u64,
}

impl fmt::Debug for ConsulClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConsulClient({})", self.settings)
    }
}

impl ConsulClient {
    pub(super) fn new(settings: &Arc<Settings>) -> Result<Self, StoreError> {
        let http = settings.http()?;
        let (all, client) = (Arc::clone(settings), http.clone());
        let connect_to: ConnectFn<Host> = Arc::new(move |at| {
            let (settings, http) = (Arc::clone(&all), client.clone());
            Box::pin(async move {
                let others = ask_others(&settings.hosts, at, |other| {
                    let (settings, http) = (Arc::clone(&settings), http.clone());
                    async move {
                        probe(&settings, &http, other).await?;
                        leader(&settings, &http, other).await
                    }
                });
                probe(&settings, &http, at).await?;
                compare(&settings, &http, at, others).await?;
                let identity = Arc::new(());
                Ok(Host { at, identity })
            })
        });
        let hosts = settings.hosts.clone();
        Ok(Self {
            dialer: Dialer::new(settings.to_string(), hosts, 0, connect_to),
            settings: Arc::clone(settings),
            http,
        })
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The host that is believed. The caller gives up when its own time is over, and
    /// the search goes on.
    async fn connected(&self) -> Result<Host, StoreError> {
        let until = clock::boot().after(HANDSHAKE_WITHIN);
        self.dialer.connected(until).await
    }

    /// Reads at once.
    pub(super) async fn read(&self, query: &Query) -> Result<Answer, StoreError> {
        let host = self.connected().await?;
        let pending = self.dialer.pending(&host);
        let answer = read(&self.settings, &self.http, host.at, query).await;
        pending.ended(keeps_host(&answer));
        answer
    }

    /// Reads once something has changed, or the server has waited for long. This may be
    /// given up at any time: the host is suspect only if it fails.
    pub(super) async fn wait(&self, query: &Query) -> Result<Answer, StoreError> {
        let host = self.connected().await?;
        let within = WAIT + WAIT / 16 + WAIT_SLACK;
        let reading = timeout(within, read(&self.settings, &self.http, host.at, query));
        let late = || {
            let settings = &self.settings;
            StoreError::unavailable(format!("{settings}: no answer to a query that waits"))
        };
        let answer = reading.await.unwrap_or_else(|_| Err(late()));
        if !keeps_host(&answer) {
            self.dialer.abandon(&host);
        }
        answer
    }

    /// Carries out a transaction; what was answered.
    pub(super) async fn transact(&self, steps: &Value) -> Result<Value, StoreError> {
        let host = self.connected().await?;
        let pending = self.dialer.pending(&host);
        let url = self.settings.url(host.at, "/v1/txn", "");
        let request = self.http.request(Method::PUT, url).body(steps.to_string());
        let answered = ask(&self.settings, request, Call::Write, ONE_MAX).await;
        let answer = answered.and_then(|answer| {
            if !answer.status.is_success() {
                let (status, body) = (answer.status, &answer.body);
                return Err(classify::refused(Call::Write, status, body));
            }
            kv::parse(&answer.body).map_err(StoreError::unknown)
        });
        pending.ended(keeps_host(&answer));
        answer
    }
}

/// Reads what takes a leader and a majority.
async fn probe(settings: &Settings, http: &reqwest::Client, at: usize) -> Result<(), StoreError> {
    let probe = settings.keyspace().prefix.to_owned() + PROBE;
    read(settings, http, at, &Query::key(&probe)).await?;
    Ok(())
}

/// The address of the leader that a host follows, if it has one.
async fn leader(
    settings: &Settings,
    http: &reqwest::Client,
    at: usize,
) -> Result<Option<String>, StoreError> {
    let url = settings.url(at, "/v1/status/leader", "");
    let request = http.request(Method::GET, url);
    let answer = ask(settings, request, Call::Read, LEADER_MAX).await?;
    if !answer.status.is_success() {
        return Err(classify::refused(Call::Read, answer.status, &answer.body));
    }
    let leader: String = serde_json::from_slice(&answer.body).map_err(StoreError::unavailable)?;
    Ok(Some(leader).filter(|leader| !leader.is_empty()))
}

/// Fails if another host is of another datacenter than the one of this number, which has
/// answered.
async fn compare(
    settings: &Settings,
    http: &reqwest::Client,
    at: usize,
    others: JoinSet<Option<(String, String)>>,
) -> Result<(), StoreError> {
    if others.is_empty() {
        return Ok(());
    }
    let host = settings.hosts.get(at).map_or("", String::as_str);
    let Some(own) = comparable(host, leader(settings, http, at).await).flatten() else {
        return Ok(());
    };
    let others = answers_of(others, clock::boot().after(OTHERS_WITHIN)).await;
    datacenters::compare(host, &own, &others)
}

/// Whether the host need not be left: it has answered, or another would say the same.
fn keeps_host<T>(answer: &Result<T, StoreError>) -> bool {
    !matches!(
        answer,
        Err(StoreError::Unavailable(_) | StoreError::Unknown(_))
    )
}

/// An answer, of any status.
struct Raw {
    status: StatusCode,
    index: u64,
    body: Vec<u8>,
}

async fn read(
    settings: &Settings,
    http: &reqwest::Client,
    at: usize,
    query: &Query,
) -> Result<Answer, StoreError> {
    let mut options = "consistent".to_owned();
    if query.is_prefix {
        options += "&recurse";
    }
    if let Some(after) = query.after {
        options += &format!("&index={after}&wait={}s", WAIT.as_secs());
    }
    let url = settings.url(at, &format!("/v1/kv/{}", query.name), &options);
    let (bytes_max, entries_max) = match query.is_prefix {
        true => (ALL_MAX, ENTRIES_MAX),
        false => (ONE_MAX, 1),
    };
    let request = http.request(Method::GET, url);
    let answer = ask(settings, request, Call::Read, bytes_max).await?;
    let entries = match answer.status {
        StatusCode::OK => Entry::parse_all(&answer.body, entries_max)?,
        // Consul says nothing more of a key that is not there, and says its index.
        StatusCode::NOT_FOUND if answer.index > 0 => Vec::new(),
        status => return Err(classify::refused(Call::Read, status, &answer.body)),
    };
    Ok(Answer {
        entries,
        index: answer.index,
    })
}

async fn ask(
    settings: &Settings,
    mut request: reqwest::RequestBuilder,
    call: Call,
    bytes_max: usize,
) -> Result<Raw, StoreError> {
    if let Some(token) = &settings.token {
        request = request.header(TOKEN, token.clone());
    }
    let lost = |error| classify::unanswered(call, error);
    let mut answer = request.send().await.map_err(lost)?;
    let index = answer.headers().get(INDEX);
    let index = index.and_then(|index| index.to_str().ok()?.parse().ok());
    let (status, index) = (answer.status(), index.unwrap_or(0));
    let bytes_max = if status.is_success() {
        bytes_max
    } else {
        ONE_MAX
    };
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(lost)? {
        if body.len() + part.len() > bytes_max {
            // Its beginning says why.
            if !status.is_success() {
                break;
            }
            let why = format!(
                "{settings}: expected an answer of at most {bytes_max} bytes, found a longer one; \
                 keep fewer and smaller values behind one prefix"
            );
            return Err(match call {
                Call::Read => StoreError::broken(why),
                // It may have been carried out.
                Call::Write => call.lost(why),
            });
        }
        body.extend_from_slice(&part);
    }
    if let Some(token) = settings.token.as_ref().filter(|_| !status.is_success()) {
        body = password::hidden(&body, token.as_bytes());
    }
    Ok(Raw {
        status,
        index,
        body,
    })
}
