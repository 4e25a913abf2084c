//! Who changed what: a line of JSON for each change of members, of rights and
//! of leaderships, and for each session that another caller closed.
//!
//! A line says what was done (`event`), by whom (`by`: the name of a token,
//! and the address that the call came from), about what, and what came of it
//! (`result`): `done`, `conflict` (another client was first), `refused` (with
//! its `cause` and `message`), or `unknown` (the caller has gone, or the leader
//! changed: it may be done). What another server has to be asked for is noted
//! there. `docs/reference/audit.md` has the fields of each event.
//!
//! Lines go by a queue to a thread of its own, since a disk may be full or
//! hang, and nothing else may wait for it. What finds the queue full, and what
//! cannot be written, is lost: it is counted, in `tenure_audit_lost_total` and
//! in a line of the file (`lost`) as soon as one can be written again. Lines of
//! the server itself and of operators have a room of their own in the queue:
//! who may campaign can fill the other as fast as a connection carries it.
//!
//! What changed nothing (`conflict`, `refused`) can be asked for as fast as a
//! connection carries it, and must not push out what others did. So each token
//! has [`IDLE_LINES`] such lines in [`FOLD_EVERY`]; more are counted, and said
//! in one line (`repeated`).
//!
//! What is done with the file itself: `audit/sink.rs`.

mod entry;
mod sink;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use serde_json::{Map, Value, json};
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tenure_runtime::error::plain_json;

pub(super) use self::entry::{Entry, end};
pub use self::sink::AuditTo;
use self::sink::{Sink, is_operators};

/// Characters of one text in a line, longer than any name, and values of one
/// list.
const TEXT_MAX: usize = 1_024;
const VALUES_MAX: usize = 64;
/// Lines that wait to be written, in bytes: of operators, and as many of all
/// others.
const QUEUE_BYTES: usize = 1 << 20;
/// How long a start waits until the file is open.
const OPENED_WITHIN: Duration = Duration::from_secs(2);
/// Lines of one token about what changed nothing, in so long.
const IDLE_LINES: u64 = 100;
const FOLD_EVERY: Duration = Duration::from_secs(10);

/// Where changes are noted; nowhere, if the audit is off. Clones are the
/// same one.
#[derive(Clone, Default)]
pub(super) struct Audit(Option<Arc<Handle>>);

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Audit")
    }
}

/// Ends the thread when it is dropped.
struct Handle(Arc<Trail>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().shut = true;
        self.0.news.notify_all();
    }
}

struct Trail {
    server: u64,
    state: Mutex<State>,
    /// There is something to write.
    news: Condvar,
    /// All is written.
    done: Condvar,
    lost: Counter,
}

/// One line that waits to be written.
struct QueuedLine {
    text: String,
    /// How many are lost with it: `repeated` stands for others.
    count: u64,
    room: Room,
}

/// Where a line finds room to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// With those of all callers.
    Clients,
    /// With those of the server itself, and of callers with the right admin.
    Operators,
}

struct State {
    lines: VecDeque<QueuedLine>,
    /// Of the lines above, and of the one that is being written, by their room.
    bytes: [usize; 2],
    writing: bool,
    /// Lines that are not in the file, since it was last said there.
    lost: u64,
    /// Lines about what changed nothing, by token.
    idle: BTreeMap<String, u64>,
    /// When the first of these came.
    idle_since: Instant,
    shut: bool,
}

impl Audit {
    /// Begins to note what is done on this server. A file whose disk hangs is
    /// opened when it answers.
    ///
    /// # Errors
    /// If the file cannot be opened, or has something else in it.
    pub(super) fn start(to: Option<AuditTo>, server: u64) -> Result<Self, String> {
        let Some(to) = to else {
            return Ok(Self(None));
        };
        let trail = Arc::new(Trail::new(server));
        let (tell, opened) = mpsc::channel();
        let (writes, span) = (Arc::clone(&trail), tracing::Span::current());
        let thread = std::thread::Builder::new().name("tenure-audit".into());
        let (mut sink, named) = (Sink::new(to.clone()), to);
        let begun = thread.spawn(move || {
            let _speaks = span.entered();
            drop(tell.send(sink.open()));
            writes.write_all_to(&mut sink);
        });
        begun.map_err(|error| format!("--audit: no thread: {error}"))?;
        // Ends the thread, unless it is kept.
        let handle = Arc::new(Handle(trail));
        match (opened.recv_timeout(OPENED_WITHIN), named) {
            (Ok(Err(error)), AuditTo::File(file)) => {
                let why = match error.kind() {
                    io::ErrorKind::InvalidData => error.to_string(),
                    _ => format!("expected a file that can be written, found: {error}"),
                };
                return Err(format!("--audit {}: {why}", file.display()));
            }
            (Err(mpsc::RecvTimeoutError::Timeout), AuditTo::File(file)) => tracing::warn!(
                "--audit {}: the file system has not answered for {OPENED_WITHIN:?}; what is to be \
                 noted waits for it, and what finds no room is counted",
                file.display()
            ),
            _ => {}
        }
        Ok(Self(Some(handle)))
    }

    /// How many lines were lost.
    pub(super) fn lost(&self) -> Counter {
        let counter = self.0.as_ref().map(|handle| handle.0.lost.clone());
        counter.unwrap_or_default()
    }

    /// Notes a change that no caller asked for.
    pub(super) fn note(&self, event: &str, about: Value, result: Result<(), &str>) {
        if let Some(handle) = &self.0 {
            let mut line = handle.0.line(event, Value::Null, about);
            match result {
                Ok(()) => drop(line.insert("result".into(), "done".into())),
                Err(why) => {
                    line.insert("result".into(), "refused".into());
                    line.insert("message".into(), why.into());
                }
            }
            handle.0.put(line, Room::Operators);
        }
    }

    /// Waits until all is written, for so long at most.
    pub(super) fn finish(&self, within: Duration) {
        if let Some(handle) = &self.0 {
            handle.0.fold(&mut handle.0.lock());
            handle.0.news.notify_one();
            let waits = |state: &mut State| state.writing || !state.lines.is_empty();
            let waited = handle
                .0
                .done
                .wait_timeout_while(handle.0.lock(), within, waits);
            drop(waited);
        }
    }
}

/// Cuts what a caller has said: a refused request may be of megabytes, and its
/// line would push out what others did.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(TEXT_MAX) {
                text.truncate(end);
                text.push('…');
            }
        }
        Value::Array(values) => {
            values.truncate(VALUES_MAX);
            values.iter_mut().for_each(shorten);
        }
        Value::Object(values) => values.values_mut().for_each(shorten),
        _ => {}
    }
}

/// A line as it stands in the file.
fn written(line: Map<String, Value>) -> String {
    let mut line = Value::Object(line);
    shorten(&mut line);
    format!("{}\n", plain_json(&line.to_string()))
}

impl Trail {
    fn new(server: u64) -> Self {
        Self {
            server,
            state: Mutex::new(State {
                lines: VecDeque::new(),
                bytes: [0; 2],
                writing: false,
                lost: 0,
                idle: BTreeMap::new(),
                idle_since: clock::boot(),
                shut: false,
            }),
            news: Condvar::new(),
            done: Condvar::new(),
            lost: Counter::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all lines say; the time is that of the beginning.
    fn line(&self, event: &str, by: Value, about: Value) -> Map<String, Value> {
        let mut line = Map::new();
        line.insert("at_ms".into(), clock::wall().as_millis().into());
        line.insert("server".into(), self.server.into());
        line.insert("event".into(), event.into());
        line.insert("by".into(), by);
        line.insert("about".into(), about);
        line
    }

    /// Counts a line about what changed nothing, and says whether it is
    /// written.
    fn is_told(&self, line: &Map<String, Value>) -> bool {
        // Where there are no tokens all callers are one.
        let token = line["by"]["token"].as_str().unwrap_or_default();
        let mut state = self.lock();
        self.fold_in_time(&mut state);
        if state.idle.is_empty() {
            state.idle_since = clock::boot();
        }
        let count = state.idle.entry(token.to_owned()).or_default();
        *count += 1;
        *count <= IDLE_LINES
    }

    fn fold_in_time(&self, state: &mut State) {
        if clock::boot().since(state.idle_since) >= FOLD_EVERY {
            self.fold(state);
        }
    }

    /// Says how many lines were counted and not written, and counts anew.
    fn fold(&self, state: &mut State) {
        for (token, count) in std::mem::take(&mut state.idle) {
            if let Some(more @ 1..) = count.checked_sub(IDLE_LINES) {
                let by = json!({ "token": (!token.is_empty()).then_some(token) });
                let mut line = self.line("repeated", by, json!({ "lines": more }));
                line.insert("result".into(), "done".into());
                self.queue(state, (written(line), Room::Clients), more);
            }
        }
    }

    fn put(&self, line: Map<String, Value>, room: Room) {
        let room = if is_operators(&line) {
            Room::Operators
        } else {
            room
        };
        let text = written(line);
        self.queue(&mut self.lock(), (text, room), 1);
        self.news.notify_one();
    }

    fn queue(&self, state: &mut State, (text, room): (String, Room), count: u64) {
        if state.shut {
            return;
        }
        // One that is longer by itself goes alone.
        let bytes = &mut state.bytes[room as usize];
        if *bytes > 0 && *bytes + text.len() > QUEUE_BYTES {
            state.lost += count;
            self.lost.inc_by(count);
            return;
        }
        *bytes += text.len();
        state.lines.push_back(QueuedLine { text, count, room });
    }

    /// Waits for something to write, or until it is time to say what was
    /// counted.
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.idle.is_empty() {
            let waited = self.news.wait(state);
            return waited.unwrap_or_else(PoisonError::into_inner);
        }
        let waited = self.news.wait_timeout(state, FOLD_EVERY);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.fold_in_time(&mut state);
        state
    }

    /// Writes until the server has gone and nothing waits.
    fn write_all_to(&self, sink: &mut Sink) {
        let mut state = self.lock();
        loop {
            let Some(QueuedLine { text, count, room }) = state.lines.pop_front() else {
                self.done.notify_all();
                if state.shut {
                    return;
                }
                state = self.wait(state);
                continue;
            };
            state.writing = true;
            let before = state.lost;
            drop(state);
            let missing = (before > 0).then(|| {
                let about = json!({ "lines": before });
                let mut line = self.line("lost", Value::Null, about);
                line.insert("result".into(), "done".into());
                format!("{}\n", Value::Object(line))
            });
            let missing = missing.unwrap_or_default();
            let written = sink.write(&format!("{missing}{text}"));
            state = self.lock();
            state.writing = false;
            state.bytes[room as usize] -= text.len();
            match written {
                Ok(()) => state.lost -= before,
                Err(error) => {
                    state.lost += count;
                    self.lost.inc_by(count);
                    sink.complain(&error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
