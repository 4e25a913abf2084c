//! A server that stands in for Consul: what its documentation says of keys and values,
//! as far as the store uses it, and what can go wrong with it.
//!
//! *It is not Consul.* It is one process in memory, and what it does is what its
//! writer has read: the pages of the HTTP interface on keys and values, transactions,
//! blocking queries and consistency modes. Where the documentation leaves something
//! open, it does what is harder for a client: it does not count a write that changes
//! nothing, a deletion on a condition of what is not there succeeds, reads that are
//! not `consistent` are answered with the state before the last write, and dots and
//! double slashes in a path are redirected.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use tenure::clock;

use crate::ports;

/// How long a query waits if it says nothing of it, and at most.
const WAIT: Duration = Duration::from_secs(300);

/// A key.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    value: Vec<u8>,
    flags: u64,
    created: u64,
    modified: u64,
}

/// What is kept.
#[derive(Clone, Default, Debug)]
struct Store {
    /// The index of the last change of all.
    index: u64,
    entries: BTreeMap<String, Entry>,
    /// Deleted keys, and the index of that.
    gone: BTreeMap<String, u64>,
}

/// What a token may do with the keys that begin so.
#[derive(Clone, Debug)]
struct Policy {
    prefix: String,
    may_write: bool,
}

#[derive(Default, Debug)]
struct State {
    store: Store,
    /// What reads see that are not consistent.
    before: Store,
    /// Tokens, where they are asked for.
    tokens: Option<BTreeMap<String, Policy>>,
    has_no_leader: bool,
    /// Requests are taken, and nothing is answered.
    is_mute: bool,
    /// Writes are carried out, and nothing is answered.
    loses_answers: bool,
    /// How long a query waits at most.
    wait_max: Option<Duration>,
    counts: Counts,
    /// Whether it serves; by which number of its starts.
    run: Option<u64>,
    runs: u64,
    connections: Vec<TcpStream>,
}

/// Requests so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) reads: u64,
    pub(crate) waits: u64,
    pub(crate) writes: u64,
}

/// A stand-in on a port of its own.
pub(crate) struct Consul {
    shared: Arc<Shared>,
    port: u16,
    tls: Option<Arc<ServerConfig>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What a request says.
struct Request {
    method: String,
    path: String,
    options: BTreeMap<String, String>,
    token: String,
    body: Vec<u8>,
}

/// What is answered; `None` if nothing is.
type Response = Option<(u16, u64, Vec<u8>)>;

impl Consul {
    /// One that serves.
    pub(crate) fn start() -> Self {
        let server = Self::prepared(None);
        server.launch();
        server
    }

    /// One that serves by TLS alone, with this certificate and key.
    pub(crate) fn start_encrypted(certificate: &str, key: &str) -> Self {
        use rustls::pki_types::pem::PemObject as _;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.expect("a certificate")], key);
        let server = Self::prepared(Some(Arc::new(config.expect("a certificate and its key"))));
        server.launch();
        server
    }

    /// One that does not serve yet.
    pub(crate) fn prepared(tls: Option<Arc<ServerConfig>>) -> Self {
        let port = ports::free();
        let state = State {
            store: Store::begun(),
            ..State::default()
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                changed: Condvar::new(),
            }),
            port,
            tls,
        }
    }

    /// Begins to serve what it has.
    pub(crate) fn launch(&self) {
        let listener = ports::listen(self.port);
        let run = self.change(|state| {
            state.runs += 1;
            state.run = Some(state.runs);
            state.runs
        });
        let (shared, tls) = (Arc::clone(&self.shared), self.tls.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let mut state = shared.lock();
                if state.run != Some(run) {
                    return;
                }
                state
                    .connections
                    .push(stream.try_clone().expect("a handle"));
                drop(state);
                let (shared, tls) = (Arc::clone(&shared), tls.clone());
                thread::spawn(move || shared.serve(stream, tls));
            }
        });
    }

    /// Stops serving, and keeps what it has.
    pub(crate) fn stop(&self) {
        self.change(|state| {
            state.run = None;
            for connection in state.connections.drain(..) {
                let _ = connection.shutdown(Shutdown::Both);
            }
        });
        // Wakes the thread that waits for connections, which closes the port.
        while TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
            thread::yield_now();
        }
    }

    /// Takes away all that it has, and begins to count anew.
    pub(crate) fn empty(&self) {
        self.change(|state| {
            (state.store, state.before) = (Store::begun(), Store::begun());
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let done = change(&mut self.shared.lock());
        self.shared.changed.notify_all();
        done
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        format!("consul://{}", self.host())
    }

    /// Asks for tokens from now on: of each the keys, by what they begin with, and
    /// whether it may write them.
    pub(crate) fn ask_for_tokens(&self, tokens: &[(&str, &str, bool)]) {
        let policy = |(token, prefix, may_write): &(&str, &str, bool)| {
            let policy = Policy {
                prefix: (*prefix).to_owned(),
                may_write: *may_write,
            };
            ((*token).to_owned(), policy)
        };
        let tokens = tokens.iter().map(policy).collect();
        self.change(|state| state.tokens = Some(tokens));
    }

    pub(crate) fn lose_the_leader(&self, is_lost: bool) {
        self.change(|state| state.has_no_leader = is_lost);
    }

    pub(crate) fn keep_silent(&self, is_mute: bool) {
        self.change(|state| state.is_mute = is_mute);
    }

    pub(crate) fn lose_answers(&self, loses: bool) {
        self.change(|state| state.loses_answers = loses);
    }

    pub(crate) fn wait_at_most(&self, wait: Duration) {
        self.change(|state| state.wait_max = Some(wait));
    }

    /// Sets a key, as a person would; its index.
    pub(crate) fn set(&self, name: &str, value: &[u8]) -> u64 {
        self.change(|state| {
            state.before = state.store.clone();
            let next = state.store.index + 1;
            let set = state.store.set(name, value.to_vec(), 0, next);
            state.store.index = next;
            set
        })
    }

    /// The names of all keys.
    pub(crate) fn names(&self) -> Vec<String> {
        let state = self.shared.lock();
        state.store.entries.keys().cloned().collect()
    }

    pub(crate) fn value(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.shared.lock();
        state
            .store
            .entries
            .get(name)
            .map(|entry| entry.value.clone())
    }

    /// Runs something, and puts back what there was before, index and all.
    pub(crate) async fn restored_after(&self, work: impl Future<Output = ()>) {
        let kept = self.shared.lock().store.clone();
        work.await;
        self.change(|state| {
            state.before = kept.clone();
            state.store = kept;
        });
    }

    pub(crate) fn counts(&self) -> Counts {
        self.shared.lock().counts
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        if self.shared.lock().run.is_some() {
            self.stop();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread has panicked")
    }

    fn serve(&self, stream: TcpStream, tls: Option<Arc<ServerConfig>>) {
        let _ = stream.set_nodelay(true);
        let ended = stream.try_clone().expect("a handle");
        match tls {
            None => self.serve_requests(stream),
            Some(config) => {
                let connection = ServerConnection::new(config).expect("a configuration");
                self.serve_requests(StreamOwned::new(connection, stream));
            }
        }
        // Another handle of it is kept.
        let _ = ended.shutdown(Shutdown::Both);
    }

    /// Answers requests until the connection ends.
    fn serve_requests(&self, stream: impl Read + Write) {
        let mut stream = BufReader::new(stream);
        while let Some(request) = Request::read(&mut stream) {
            let Some((status, index, body)) = self.answer(&request) else {
                return;
            };
            let reason = if status == 200 { "OK" } else { "Another" };
            let mut head = format!(
                "HTTP/1.1 {status} {reason}\r\nContent-Length: {}\r\n",
                body.len()
            );
            if index > 0 {
                head += &format!("X-Consul-Index: {index}\r\n");
            }
            if status == 301 {
                head += "Location: /elsewhere\r\n";
            }
            let answer = [head.as_bytes(), b"\r\n", &body].concat();
            let sent = stream.get_mut().write_all(&answer);
            if sent.and_then(|()| stream.get_mut().flush()).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: &Request) -> Response {
        let plain = |status: u16, words: &str| Some((status, 0, words.as_bytes().to_vec()));
        let mut state = self.lock();
        while state.is_mute {
            state = self.changed.wait(state).expect("no thread has panicked");
            // If it does not run, its connection has been closed.
            state.run?;
        }
        let segments: Vec<_> = request.path.split('/').skip(1).collect();
        let (last, above) = segments.split_last().expect("a segment");
        let is_dots = |it: &str| it == "." || it == "..";
        if is_dots(last) || above.iter().any(|it| it.is_empty() || is_dots(it)) {
            return plain(301, "");
        }
        let is_write = request.method != "GET";
        if is_write {
            state.counts.writes += 1;
        } else if request.options.contains_key("index") {
            state.counts.waits += 1;
        } else {
            state.counts.reads += 1;
        }
        if state.has_no_leader {
            return plain(500, "No cluster leader");
        }
        let name = request.path.strip_prefix("/v1/kv/");
        let response = match (request.method.as_str(), name) {
            ("GET", Some(name)) => self.read(state, request, name),
            ("PUT", None) if request.path == "/v1/txn" => {
                let response = state.transact(request);
                if state.loses_answers {
                    return None;
                }
                response
            }
            _ => plain(404, "page not found"),
        };
        if is_write {
            self.changed.notify_all();
        }
        response
    }

    fn read(&self, mut state: MutexGuard<'_, State>, request: &Request, name: &str) -> Response {
        if !state.may(&request.token, name, false) {
            let words = format!("Permission denied: token lacks permission 'key:read' on {name:?}");
            return Some((403, 0, words.into_bytes()));
        }
        let number = |option: &str| request.options.get(option)?.parse::<u64>().ok();
        let after = number("index").unwrap_or(0);
        let wait = request.options.get("wait").map_or(WAIT, |wait| {
            let seconds = wait.strip_suffix('s').and_then(|it| it.parse().ok());
            Duration::from_secs(seconds.expect("so many seconds"))
        });
        let wait = wait.min(state.wait_max.unwrap_or(WAIT));
        let until = clock::boot().after(wait);
        let (run, is_prefix) = (state.run, request.options.contains_key("recurse"));
        loop {
            let is_consistent = request.options.contains_key("consistent");
            let seen = if is_consistent {
                &state.store
            } else {
                &state.before
            };
            let (index, found) = seen.find(name, is_prefix);
            let left = until.since(clock::boot());
            if after == 0 || index > after || index < after || left.is_zero() {
                let status = if found.is_empty() { 404 } else { 200 };
                let body = match found.is_empty() {
                    true => Vec::new(),
                    false => Value::Array(found).to_string().into_bytes(),
                };
                return Some((status, index, body));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.expect("no thread has panicked").0;
            if state.run != run {
                return None;
            }
        }
    }
}

impl State {
    /// Whether a token may read, or write, this key.
    fn may(&self, token: &str, name: &str, write: bool) -> bool {
        let Some(tokens) = &self.tokens else {
            return true;
        };
        let policy = tokens.get(token);
        policy.is_some_and(|it| name.starts_with(&it.prefix) && (it.may_write || !write))
    }

    /// Carries out a transaction, or nothing of it.
    fn transact(&mut self, request: &Request) -> Response {
        let steps: Value = serde_json::from_slice(&request.body).expect("JSON");
        let steps = steps.as_array().expect("steps");
        // As its documentation says.
        if request.body.len() > 512 * 1_024 || steps.len() > 128 {
            return Some((413, 0, b"Request body too large".to_vec()));
        }
        let (mut next, mut results, mut errors) = (self.store.clone(), Vec::new(), Vec::new());
        next.index += 1;
        for (at, step) in steps.iter().enumerate() {
            let step = &step["KV"];
            let name = step["Key"].as_str().expect("a key");
            let done = if self.may(&request.token, name, step["Verb"] != "check-index") {
                next.carry_out(step, name)
            } else {
                Err("Permission denied".to_owned())
            };
            match done {
                Ok(result) => results.extend(result),
                Err(what) => errors.push(json!({ "OpIndex": at, "What": what })),
            }
        }
        if !errors.is_empty() {
            let body = json!({ "Results": null, "Errors": errors });
            return Some((409, 0, body.to_string().into_bytes()));
        }
        self.before = std::mem::replace(&mut self.store, next);
        let body = json!({ "Results": results, "Errors": null, "Index": self.store.index });
        Some((200, 0, body.to_string().into_bytes()))
    }
}

impl Store {
    /// What a new one has. The first index of a real one is above 1, too.
    fn begun() -> Self {
        Self {
            index: 10,
            ..Self::default()
        }
    }

    /// Sets a key; its index. A write that changes nothing is none.
    fn set(&mut self, name: &str, value: Vec<u8>, flags: u64, index: u64) -> u64 {
        let before = self.entries.get(name);
        if let Some(same) = before.filter(|it| it.value == value && it.flags == flags) {
            return same.modified;
        }
        let created = before.map_or(index, |before| before.created);
        let entry = Entry {
            value,
            flags,
            created,
            modified: index,
        };
        self.entries.insert(name.to_owned(), entry);
        index
    }

    fn carry_out(&mut self, step: &Value, name: &str) -> Result<Option<Value>, String> {
        let (expected, index) = (step["Index"].as_u64(), self.index);
        let held = self.entries.get(name).map(|entry| entry.modified);
        match step["Verb"].as_str().expect("a verb") {
            "cas" => {
                let is_as_expected = match expected.expect("an index") {
                    0 => held.is_none(),
                    expected => held == Some(expected),
                };
                if !is_as_expected {
                    return Err(format!("failed to set key {name:?}, index is stale"));
                }
                let value = STANDARD.decode(step["Value"].as_str().expect("a value"));
                let flags = step["Flags"].as_u64().expect("flags");
                let modified = self.set(name, value.expect("base64"), flags, index);
                let created = self.entries.get(name).map(|entry| entry.created);
                Ok(Some(json!({ "KV": {
                    "LockIndex": 0, "Key": name, "Flags": flags, "Value": null,
                    "CreateIndex": created, "ModifyIndex": modified,
                } })))
            }
            "check-index" => match held {
                None => Err(format!("failed index check, key {name:?} doesn't exist")),
                Some(held) if Some(held) != expected => Err(format!(
                    "failed index check for key {name:?}, current modify index {held} is another"
                )),
                Some(_) => Ok(Some(json!({ "KV": { "Key": name, "ModifyIndex": held } }))),
            },
            "delete" => {
                if self.entries.remove(name).is_some() {
                    self.gone.insert(name.to_owned(), index);
                }
                Ok(None)
            }
            other => panic!("the verb {other}"),
        }
    }

    /// What is there, and at which index.
    fn find(&self, name: &str, is_prefix: bool) -> (u64, Vec<Value>) {
        let is_meant = |other: &String| match is_prefix {
            true => other.starts_with(name),
            false => other == name,
        };
        let found: Vec<_> = self.entries.iter().filter(|(it, _)| is_meant(it)).collect();
        let gone = self.gone.iter().filter(|(it, _)| is_prefix && is_meant(it));
        let indexes = found.iter().map(|(_, entry)| entry.modified);
        // Of a key that is not there it is that of the whole.
        let index = indexes.chain(gone.map(|(_, at)| *at)).max();
        let index = index.unwrap_or(self.index);
        let shown = found.into_iter().map(|(name, entry)| {
            let value = match entry.value.is_empty() {
                true => Value::Null,
                false => Value::from(STANDARD.encode(&entry.value)),
            };
            json!({
                "LockIndex": 0, "Key": name, "Flags": entry.flags, "Value": value,
                "CreateIndex": entry.created, "ModifyIndex": entry.modified,
            })
        });
        (index, shown.collect())
    }
}

impl Request {
    fn read(stream: &mut BufReader<impl Read + Write>) -> Option<Self> {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (mut length, mut token) = (0, String::new());
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim_end().split_once(':') else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().ok()?,
                "x-consul-token" => value.trim().clone_into(&mut token),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let options = query.split('&').filter(|option| !option.is_empty());
        let options = options.map(|option| {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            (name.to_owned(), value.to_owned())
        });
        Some(Self {
            method,
            path: path.to_owned(),
            options: options.collect(),
            token,
            body,
        })
    }
}
