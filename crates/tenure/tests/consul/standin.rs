//! A server that stands in for Consul: what its documentation says of keys and values,
//! as far as the store uses it, and what can go wrong with it.
//!
//! *It is not Consul.* It is one process in memory, and what it does is what its
//! writer has read: the pages of the HTTP interface on keys and values, transactions,
//! blocking queries, consistency modes and the leader. Where the documentation leaves something
//! open, it does what is harder for a client: it does not count a write that changes
//! nothing, a deletion on a condition of what is not there succeeds, reads that are
//! not `consistent` are answered with the state before the last write, and dots and
//! double slashes in a path are redirected.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tenure::clock;

use super::stand_in::{Request, Service, Shared, StandIn, State};

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

/// What is served.
#[derive(Debug)]
pub(crate) struct Agent {
    store: Store,
    /// What reads see that are not consistent.
    before: Store,
    /// Tokens, where they are asked for.
    tokens: Option<BTreeMap<String, Policy>>,
    has_no_leader: bool,
    /// The leader's address; each stand-in is a datacenter of its own.
    leader: String,
    /// How long a query waits at most.
    wait_max: Option<Duration>,
    counts: Counts,
}

/// Requests so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) reads: u64,
    pub(crate) waits: u64,
    pub(crate) writes: u64,
}

/// A stand-in on a port of its own.
pub(crate) type Consul = StandIn<Agent>;

/// What is answered; `None` if nothing is.
type Response = Option<(u16, u64, Vec<u8>)>;

impl Consul {
    /// Takes away all that it has, and begins to count anew.
    pub(crate) fn empty(&self) {
        self.change(|state| {
            (state.store, state.before) = (Store::begun(), Store::begun());
        });
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

    /// Says that this server leads, from now on.
    pub(crate) fn follow(&self, leader: &str) {
        self.change(|state| leader.clone_into(&mut state.leader));
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

impl Default for Agent {
    fn default() -> Self {
        static AGENTS: AtomicU32 = AtomicU32::new(1);
        let number = AGENTS.fetch_add(1, Ordering::Relaxed);
        Self {
            leader: format!("{}:8300", Ipv4Addr::from(0x0a00_0000 + number)),
            store: Store::begun(),
            before: Store::begun(),
            tokens: None,
            has_no_leader: false,
            wait_max: None,
            counts: Counts::default(),
        }
    }
}

impl Service for Agent {
    const TOKEN: (&str, &str) = ("x-consul-token", "");

    fn answer(shared: &Shared<Self>, request: &Request, stream: &mut impl Write) -> io::Result<()> {
        let Some((status, index, body)) = answer(shared, request) else {
            return Err(io::ErrorKind::ConnectionAborted.into());
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
        stream.write_all(&[head.as_bytes(), b"\r\n", &body].concat())?;
        stream.flush()
    }
}

fn answer(shared: &Shared<Agent>, request: &Request) -> Response {
    let plain = |status: u16, words: &str| Some((status, 0, words.as_bytes().to_vec()));
    let mut state = shared.lock();
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
    if request.path == "/v1/status/leader" {
        return plain(200, &format!("{:?}", state.leader));
    }
    let name = request.path.strip_prefix("/v1/kv/");
    let response = match (request.method.as_str(), name) {
        ("GET", Some(name)) => read(shared, state, request, name),
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
        shared.changed.notify_all();
    }
    response
}

fn read(
    shared: &Shared<Agent>,
    mut state: MutexGuard<'_, State<Agent>>,
    request: &Request,
    name: &str,
) -> Response {
    if !state.may(&request.token, name, false) {
        // As a proxy that helps to find mistakes does.
        let token = &request.token;
        let words =
            format!("Permission denied: token {token} lacks permission 'key:read' on {name:?}");
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
        let waited = shared.changed.wait_timeout(state, left);
        state = waited.expect("no thread has panicked").0;
        if state.run != run {
            return None;
        }
    }
}

impl Agent {
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
