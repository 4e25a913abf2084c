//! A server that stands in for the API server of Kubernetes: Leases and ConfigMaps, as
//! far as the store uses them, and what can go wrong with it.
//!
//! *It is not Kubernetes.* It is one process in memory. What it does is what its writer
//! has read: "Kubernetes API Concepts" (resource versions, watches, bookmarks, 410,
//! chunked lists) and "API Conventions" (statuses) of the documentation, and the sources
//! of the API server: `apiserver/pkg/registry/generic/registry/store.go` (what a PUT and
//! a DELETE compare, and when a PUT makes what is not there), `pkg/registry/coordination/
//! lease/strategy.go` and `pkg/registry/core/configmap/strategy.go` (which of the two
//! may), `apiserver/pkg/storage/etcd3/store.go` (a write that changes nothing is none)
//! and `pkg/apis/coordination/validation`.
//!
//! Where there is a choice it does what is harder for a client: a PUT of a Lease that is
//! not there makes it if no `uid` is named, a version that is forgotten is told of in
//! the middle of a watch, and lists are cut where the client says so and forgotten when
//! the log is compacted.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::clock;
use tenure::core::time::Instant;

use super::stand_in::{Request, Service, Shared, StandIn};

/// All annotations of an object, and all data of a ConfigMap.
const ANNOTATIONS_MAX: usize = 256 * 1024;
const DATA_MAX: usize = 1024 * 1024;
/// The largest body of a request.
const BODY_MAX: usize = 3 * 1024 * 1024;

/// The plural of a kind, the namespace, and the name.
type Place = (String, String, String);

/// One change.
#[derive(Clone, Debug)]
struct Event {
    number: u64,
    place: Place,
    kind: &'static str,
    object: Value,
}

/// What is kept.
#[derive(Clone, Default, Debug)]
struct Store {
    number: u64,
    /// How many objects were ever made.
    made: u64,
    objects: BTreeMap<Place, Value>,
    events: Vec<Event>,
    /// Changes up to this one are forgotten.
    forgotten: u64,
    /// The next change is forgotten before watches are told of it.
    forgets_next: bool,
    /// The rest of each listing that was cut.
    rests: BTreeMap<String, (u64, Vec<Value>)>,
}

/// What a token may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum May {
    Nothing,
    Read,
    Write,
}

/// What is served.
#[derive(Debug)]
pub(crate) struct ApiServer {
    store: Store,
    namespaces: BTreeSet<String>,
    /// Tokens, where they are asked for.
    tokens: Option<BTreeMap<String, May>>,
    /// All requests are answered with this status, and with `Retry-After`.
    refuses: Option<(u16, u64)>,
    /// How long a watch lasts at most.
    watch_max: Option<Duration>,
    /// Each watch is told this code at once, and ends.
    fails_watches: Option<u16>,
    /// How many objects a page has at most.
    page_max: Option<usize>,
    counts: Counts,
}

/// Requests so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) reads: u64,
    pub(crate) lists: u64,
    pub(crate) watches: u64,
    pub(crate) writes: u64,
}

/// A stand-in on a port of its own.
pub(crate) type Kubernetes = StandIn<ApiServer>;

/// An answer: a status and a body.
pub(crate) type Answer = (u16, Value);

/// Which changes a watch tells of.
struct Watch {
    plural: String,
    namespace: String,
    selected: Selected,
    after: u64,
    bookmarks: bool,
    until: Instant,
}

/// A selector of labels, and one of a name.
#[derive(Clone, Default, Debug)]
struct Selected {
    labels: Option<String>,
    name: Option<String>,
}

impl Kubernetes {
    /// The store's URL, without TLS.
    pub(crate) fn url(&self) -> String {
        format!("kubernetes://{}/n?tls=off", self.host())
    }

    /// Asks for tokens from now on.
    pub(crate) fn ask_for_tokens(&self, tokens: &[(&str, May)]) {
        let tokens = tokens
            .iter()
            .map(|(token, may)| ((*token).to_owned(), *may));
        let tokens = tokens.collect();
        self.change(|state| state.tokens = Some(tokens));
    }

    /// Answers all requests with this status, and that many seconds to wait.
    pub(crate) fn refuse_all(&self, with: Option<(u16, u64)>) {
        self.change(|state| state.refuses = with);
    }

    pub(crate) fn watch_at_most(&self, longest: Duration) {
        self.change(|state| state.watch_max = Some(longest));
    }

    /// Ends each watch at once, with an event that has this code.
    pub(crate) fn fail_watches(&self, code: u16) {
        self.change(|state| state.fails_watches = Some(code));
    }

    pub(crate) fn cut_pages_at(&self, most: usize) {
        self.change(|state| state.page_max = Some(most));
    }

    /// Removes the namespace `n`, with all that is in it.
    pub(crate) fn remove_namespace(&self) {
        self.change(|state| {
            state.namespaces.clear();
            let gone: Vec<_> = state.store.objects.keys().cloned().collect();
            gone.into_iter().for_each(|place| state.store.delete(place));
        });
    }

    /// Makes the namespace `n` again.
    pub(crate) fn make_namespace(&self) {
        self.change(|state| state.namespaces.insert("n".to_owned()));
    }

    /// Takes away all that a stopped one has, and begins to count anew.
    pub(crate) fn empty(&self) {
        self.change(|state| state.store = Store::begun());
    }

    /// Forgets all changes so far, and the rests of listings, as etcd's compaction
    /// makes the server do.
    pub(crate) fn compact(&self) {
        self.change(|state| state.store.compact());
    }

    /// The same right after the next write, before watches are told of it.
    pub(crate) fn compact_with_next_write(&self) {
        self.change(|state| state.store.forgets_next = true);
    }

    /// Carries out a request of another client; what is answered.
    pub(crate) fn call(&self, method: &str, path: &str, body: &Value) -> Answer {
        let request = Request {
            method: method.to_owned(),
            path: path.to_owned(),
            options: BTreeMap::new(),
            token: String::new(),
            body: body.to_string().into_bytes(),
        };
        let answer = self.change(|state| state.answer(&request));
        answer.unwrap_or_else(|_| panic!("{path} is no watch"))
    }

    /// Writes an object as a person would, with `kubectl replace`.
    pub(crate) fn set(&self, plural: &str, name: &str, object: Value) {
        let place = (plural.to_owned(), "n".to_owned(), name.to_owned());
        self.change(|state| state.store.write(place, object));
    }

    /// Publishes what each cluster has in each namespace, with this uid.
    pub(crate) fn publish(&self, uid: &str) {
        let [plural, namespace, name] = ["configmaps", "n", "kube-root-ca.crt"];
        let place = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.change(|state| {
            let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {} });
            state.store.write(place.clone(), object);
            let published = state.store.objects.get_mut(&place).expect("it is there");
            published["metadata"]["uid"] = uid.into();
        });
    }

    /// The names of all objects of a kind.
    pub(crate) fn names(&self, plural: &str) -> Vec<String> {
        let state = self.shared.lock();
        let all = state.store.objects.keys();
        let of_kind = all.filter(|place| place.0 == plural);
        of_kind.map(|place| place.2.clone()).collect()
    }

    pub(crate) fn object(&self, plural: &str, name: &str) -> Option<Value> {
        let place = (plural.to_owned(), "n".to_owned(), name.to_owned());
        self.shared.lock().store.objects.get(&place).cloned()
    }

    /// Runs something, and puts back what there was before, versions and all.
    pub(crate) async fn restored_after(&self, work: impl Future<Output = ()>) {
        let kept = self.shared.lock().store.clone();
        work.await;
        self.stop();
        self.change(|state| state.store = kept);
        self.launch();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.shared.lock().counts
    }
}

fn status(code: u16, reason: &str, kind: &str, message: &str) -> Answer {
    let details = json!({ "kind": kind });
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": reason, "message": message, "details": details,
    });
    (code, body)
}

fn conflict(plural: &str, why: &str) -> Answer {
    let message = format!("Operation cannot be fulfilled on {plural}: {why}");
    status(409, "Conflict", plural, &message)
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

/// With the namespace `n`.
impl Default for ApiServer {
    fn default() -> Self {
        Self {
            store: Store::begun(),
            namespaces: BTreeSet::from(["n".to_owned()]),
            tokens: None,
            refuses: None,
            watch_max: None,
            fails_watches: None,
            page_max: None,
            counts: Counts::default(),
        }
    }
}

impl Service for ApiServer {
    const TOKEN: (&str, &str) = ("authorization", "Bearer ");

    fn answer(shared: &Shared<Self>, request: &Request, stream: &mut impl Write) -> io::Result<()> {
        let mut state = shared.lock();
        let (run, answered) = (state.run, state.answer(request));
        let is_write = request.method != "GET";
        if is_write {
            shared.changed.notify_all();
        }
        if is_write && state.loses_answers {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let wait = body_wait(&state);
        drop(state);
        match answered {
            Ok((code, body)) => {
                let body = body.to_string();
                let head = format!(
                    "HTTP/1.1 {code} Answer\r\nContent-Type: application/json\r\n{wait}\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(head.as_bytes())?;
                stream.flush()
            }
            Err(watch) => tell(shared, stream, &watch, run),
        }
    }
}

/// Tells of changes until the watch is over.
fn tell(
    shared: &Shared<ApiServer>,
    stream: &mut impl Write,
    watch: &Watch,
    run: Option<u64>,
) -> io::Result<()> {
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    stream.flush()?;
    let mut after = watch.after;
    let mut state = shared.lock();
    loop {
        if state.run != run {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let mut lines = String::new();
        let is_over = state.news(watch, &mut after, &mut lines);
        let is_late = clock::boot() >= watch.until;
        if is_late && watch.bookmarks && !is_over {
            // What the documentation says of a watch that ends.
            let mark = json!({"metadata": {"resourceVersion": state.store.number.to_string()}});
            lines += &format!("{}\n", json!({"type": "BOOKMARK", "object": mark}));
        }
        if !lines.is_empty() {
            drop(state);
            // Lines are cut anywhere.
            let (one, other) = lines.as_bytes().split_at(lines.len() / 2);
            for part in [one, other].into_iter().filter(|part| !part.is_empty()) {
                write!(stream, "{:x}\r\n", part.len())?;
                stream.write_all(part)?;
                stream.write_all(b"\r\n")?;
                stream.flush()?;
            }
            state = shared.lock();
        }
        if is_over || is_late {
            drop(state);
            stream.write_all(b"0\r\n\r\n")?;
            return stream.flush();
        }
        if !lines.is_empty() {
            continue;
        }
        let left = watch.until.since(clock::boot());
        let waited = shared.changed.wait_timeout(state, left);
        state = waited.expect("no thread has panicked").0;
    }
}

/// The header that says when to ask again.
fn body_wait(state: &ApiServer) -> String {
    match state.refuses {
        Some((_, seconds)) if seconds > 0 => format!("Retry-After: {seconds}\r\n"),
        _ => String::new(),
    }
}

impl ApiServer {
    /// The lines of what has happened; whether the watch is over.
    fn news(&self, watch: &Watch, after: &mut u64, lines: &mut String) -> bool {
        if let Some(code) = self.fails_watches {
            let (_, failed) = status(code, "Failed", "", "the test says so");
            *lines += &format!("{}\n", json!({"type": "ERROR", "object": failed}));
            return true;
        }
        if *after < self.store.forgotten {
            let (_, gone) = status(410, "Expired", "", "too old resource version");
            *lines += &format!("{}\n", json!({"type": "ERROR", "object": gone}));
            return true;
        }
        for event in &self.store.events {
            let (plural, namespace, _) = &event.place;
            if event.number <= *after {
                continue;
            }
            *after = event.number;
            let is_meant = *plural == watch.plural && *namespace == watch.namespace;
            if is_meant && watch.selected.selects(&event.object) {
                let line = json!({"type": event.kind, "object": event.object});
                *lines += &format!("{line}\n");
            }
        }
        false
    }

    fn answer(&mut self, request: &Request) -> Result<Answer, Watch> {
        if let Some((code, _)) = self.refuses {
            return Ok(status(code, "Refused", "", "the test says so"));
        }
        let segments: Vec<_> = request.path.split('/').skip(1).collect();
        let (namespace, plural, name) = match segments[..] {
            [
                "apis",
                "coordination.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "leases",
            ] => (namespace, "leases", None),
            [
                "apis",
                "coordination.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "leases",
                name,
            ] => (namespace, "leases", Some(name)),
            ["api", "v1", "namespaces", namespace, "configmaps"] => (namespace, "configmaps", None),
            ["api", "v1", "namespaces", namespace, "configmaps", name] => {
                (namespace, "configmaps", Some(name))
            }
            _ => return Ok((404, "404 page not found".into())),
        };
        if let Some(refused) = self.unauthorized(request, plural) {
            return Ok(refused);
        }
        let place = |name: &str| (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let is_watch = request.options.get("watch").is_some_and(|it| it == "true");
        match (request.method.as_str(), name) {
            ("GET", None) if is_watch => {
                self.counts.watches += 1;
                Err(self.watch(request, plural, namespace))
            }
            ("GET", None) => {
                self.counts.lists += 1;
                Ok(self.list(request, plural, namespace))
            }
            ("GET", Some(name)) => {
                self.counts.reads += 1;
                assert_eq!(
                    request.options.get("resourceVersion"),
                    None,
                    "it may be stale"
                );
                Ok(match self.store.objects.get(&place(name)) {
                    Some(object) => (200, object.clone()),
                    None => not_found(plural, name),
                })
            }
            ("POST", None) => {
                self.counts.writes += 1;
                Ok(self.create(request, plural, namespace))
            }
            ("PUT", Some(name)) => {
                self.counts.writes += 1;
                Ok(self.replace(request, place(name)))
            }
            ("DELETE", Some(name)) => {
                self.counts.writes += 1;
                Ok(self.delete(request, place(name)))
            }
            _ => Ok(status(405, "MethodNotAllowed", plural, "no such method")),
        }
    }

    fn unauthorized(&self, request: &Request, plural: &str) -> Option<Answer> {
        let tokens = self.tokens.as_ref()?;
        let Some(may) = tokens.get(&request.token) else {
            // As a proxy that helps to find mistakes does.
            let words = format!("Unauthorized: Bearer {}", request.token);
            return Some(status(401, "Unauthorized", "", &words));
        };
        let is_read = request.method == "GET";
        let is_allowed = *may == May::Write || *may == May::Read && is_read;
        let token = &request.token;
        let words = format!("{plural} is forbidden: User \"u\" cannot do that, with {token}");
        (!is_allowed).then(|| status(403, "Forbidden", plural, &words))
    }

    fn watch(&self, request: &Request, plural: &str, namespace: &str) -> Watch {
        let number = |option: &str| request.options.get(option)?.parse::<u64>().ok();
        let longest = Duration::from_secs(number("timeoutSeconds").unwrap_or(1_800));
        let longest = longest.min(self.watch_max.unwrap_or(longest));
        Watch {
            plural: plural.to_owned(),
            namespace: namespace.to_owned(),
            selected: Selected::of(request),
            after: number("resourceVersion").expect("a version to go on from"),
            bookmarks: request.options.contains_key("allowWatchBookmarks"),
            until: clock::boot().after(longest),
        }
    }

    fn list(&mut self, request: &Request, plural: &str, namespace: &str) -> Answer {
        let store = &mut self.store;
        let (number, mut items) = match request.options.get("continue") {
            Some(token) => match store.rests.remove(token) {
                Some(rest) => rest,
                None => return status(410, "Expired", plural, "The provided continue is too old"),
            },
            None => {
                let selected = Selected::of(request);
                let all = store.objects.iter();
                let found = all.filter(|(place, object)| {
                    place.0 == plural && place.1 == namespace && selected.selects(object)
                });
                (
                    store.number,
                    found.map(|(_, object)| object.clone()).collect(),
                )
            }
        };
        let limit = request.options.get("limit").and_then(|it| it.parse().ok());
        let limit = limit
            .unwrap_or(usize::MAX)
            .min(self.page_max.unwrap_or(usize::MAX));
        let mut metadata = json!({"resourceVersion": number.to_string()});
        if items.len() > limit {
            let rest = items.split_off(limit);
            // What it is made of is nobody's business; it is to be escaped.
            let token = format!("{number}/{}+{}=", rest.len(), store.rests.len());
            metadata["continue"] = token.as_str().into();
            store.rests.insert(token, (number, rest));
        }
        let body =
            json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items});
        (200, body)
    }

    fn create(&mut self, request: &Request, plural: &str, namespace: &str) -> Answer {
        let object = match checked(request, plural) {
            Ok(object) => object,
            Err(refused) => return refused,
        };
        if !self.namespaces.contains(namespace) {
            return not_found("namespaces", namespace);
        }
        let name = text(&object, "name").to_owned();
        if !text(&object, "resourceVersion").is_empty() {
            let words = "resourceVersion should not be set on objects to be created";
            return status(400, "BadRequest", plural, words);
        }
        let place = (plural.to_owned(), namespace.to_owned(), name);
        if self.store.objects.contains_key(&place) {
            return status(409, "AlreadyExists", plural, "already exists");
        }
        (201, self.store.write(place, object))
    }

    fn replace(&mut self, request: &Request, place: Place) -> Answer {
        let plural = place.0.as_str();
        let object = match checked(request, plural) {
            Ok(object) => object,
            Err(refused) => return refused,
        };
        if text(&object, "name") != place.2 {
            return status(400, "BadRequest", plural, "another name in the object");
        }
        let (uid, version) = (text(&object, "uid"), text(&object, "resourceVersion"));
        let Some(held) = self.store.objects.get(&place) else {
            if plural != "leases" {
                return not_found(plural, &place.2);
            }
            if !uid.is_empty() {
                return conflict(
                    plural,
                    "Precondition failed: UID in precondition, none there",
                );
            }
            if !self.namespaces.contains(&place.1) {
                return not_found("namespaces", &place.1);
            }
            // A Lease is made by a PUT, whatever version it names.
            return (201, self.store.write(place, object));
        };
        if !uid.is_empty() && uid != text(held, "uid") {
            return conflict(plural, "Precondition failed: UID in precondition");
        }
        if version.is_empty() && plural == "leases" {
            return status(422, "Invalid", plural, "must be specified for an update");
        }
        if !version.is_empty() && version != text(held, "resourceVersion") {
            return conflict(plural, "the object has been modified");
        }
        (200, self.store.write(place, object))
    }

    fn delete(&mut self, request: &Request, place: Place) -> Answer {
        let plural = place.0.clone();
        let options: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let Some(held) = self.store.objects.get(&place) else {
            return not_found(&plural, &place.2);
        };
        for name in ["uid", "resourceVersion"] {
            let wanted = options["preconditions"][name].as_str();
            if wanted.is_some_and(|wanted| wanted != text(held, name)) {
                return conflict(&plural, &format!("Precondition failed: {name}"));
            }
        }
        self.store.delete(place);
        (
            200,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
        )
    }
}

fn not_found(plural: &str, name: &str) -> Answer {
    let message = format!("{plural} {name:?} not found");
    status(404, "NotFound", plural, &message)
}

/// The object in a body, if the server takes it.
fn checked(request: &Request, plural: &str) -> Result<Value, Answer> {
    let invalid = |why: &str| status(422, "Invalid", plural, why);
    if request.body.len() > BODY_MAX {
        return Err(status(413, "RequestEntityTooLarge", "", "limit is 3145728"));
    }
    let object: Value = serde_json::from_slice(&request.body)
        .map_err(|error| status(400, "BadRequest", plural, &error.to_string()))?;
    let expected = match plural {
        "leases" => ("coordination.k8s.io/v1", "Lease"),
        _ => ("v1", "ConfigMap"),
    };
    let found = (object["apiVersion"].as_str(), object["kind"].as_str());
    if found != (Some(expected.0), Some(expected.1)) {
        return Err(status(400, "BadRequest", plural, "another kind"));
    }
    let name = text(&object, "name");
    let fits = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || "-.".contains(it);
    let ends = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit();
    if name.is_empty() || name.len() > 253 || !name.chars().all(fits) || !name.starts_with(ends) {
        return Err(invalid("metadata.name: a lowercase RFC 1123 subdomain"));
    }
    for (part, most) in [("labels", 63), ("annotations", ANNOTATIONS_MAX)] {
        let all = object["metadata"][part].as_object();
        let mut bytes = 0;
        for (name, value) in all.into_iter().flatten() {
            let value = value.as_str().ok_or_else(|| invalid("a text"))?;
            bytes += name.len() + value.len();
            if part == "labels" && value.len() > most {
                return Err(invalid("metadata.labels: at most 63 characters"));
            }
        }
        if part == "annotations" && bytes > most {
            return Err(invalid("metadata.annotations: Too long"));
        }
    }
    let spec = &object["spec"];
    if spec["leaseDurationSeconds"]
        .as_i64()
        .is_some_and(|it| it <= 0)
    {
        return Err(invalid("spec.leaseDurationSeconds: must be greater than 0"));
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|it| it < 0) {
        return Err(invalid(
            "spec.leaseTransitions: must be greater than or equal to 0",
        ));
    }
    let data = object["binaryData"].as_object();
    let sizes = data
        .into_iter()
        .flatten()
        .map(|(_, it)| it.as_str().map_or(0, str::len) / 4 * 3);
    if sizes.sum::<usize>() > DATA_MAX {
        return Err(invalid("data: Too long: must have at most 1048576 bytes"));
    }
    Ok(object)
}

impl Store {
    /// What a new one has. A cluster has written much before anybody asks it.
    fn begun() -> Self {
        Self {
            number: 1_000,
            ..Self::default()
        }
    }

    /// Writes an object; what it is then. A write that changes nothing is none.
    fn write(&mut self, place: Place, mut object: Value) -> Value {
        let held = self.objects.get(&place).cloned();
        let kept = |name: &str| held.as_ref().map(|held| held["metadata"][name].clone());
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.retain(|_, value| !value.is_null());
        }
        if held.is_none() {
            self.made += 1;
        }
        let uid = format!("{:08}-aaaa", self.made);
        let metadata = &mut object["metadata"];
        metadata["name"] = place.2.as_str().into();
        metadata["namespace"] = place.1.as_str().into();
        metadata["uid"] = kept("uid").unwrap_or_else(|| uid.into());
        metadata["resourceVersion"] = kept("resourceVersion").unwrap_or_default();
        if held.as_ref() == Some(&object) {
            return object;
        }
        self.number += 1;
        object["metadata"]["resourceVersion"] = self.number.to_string().into();
        let kind = if held.is_some() { "MODIFIED" } else { "ADDED" };
        self.objects.insert(place.clone(), object.clone());
        self.log(place, kind, object.clone());
        object
    }

    fn delete(&mut self, place: Place) {
        let Some(mut object) = self.objects.remove(&place) else {
            return;
        };
        self.number += 1;
        object["metadata"]["resourceVersion"] = self.number.to_string().into();
        self.log(place, "DELETED", object);
    }

    fn log(&mut self, place: Place, kind: &'static str, object: Value) {
        self.events.push(Event {
            number: self.number,
            place,
            kind,
            object,
        });
        if std::mem::take(&mut self.forgets_next) {
            self.compact();
        }
    }

    fn compact(&mut self) {
        self.forgotten = self.number;
        self.events.clear();
        self.rests.clear();
    }
}

impl Selected {
    fn of(request: &Request) -> Self {
        let name = request.options.get("fieldSelector").map(|selector| {
            let name = selector.strip_prefix("metadata.name=");
            name.expect("a name").to_owned()
        });
        let labels = request.options.get("labelSelector").cloned();
        Self { labels, name }
    }

    fn selects(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let by_label = self
            .labels
            .as_ref()
            .is_none_or(|selector| match selector.split_once('=') {
                Some((label, value)) => labels[label].as_str() == Some(value),
                None => labels[selector.as_str()].is_string(),
            });
        by_label
            && self
                .name
                .as_ref()
                .is_none_or(|name| text(object, "name") == name)
    }
}
