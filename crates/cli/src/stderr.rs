//! What is said on stderr, by a thread that may wait for its reader.
//!
//! A log collector that hangs, a terminal after Ctrl-S, a pipe that is full:
//! then a write to stderr waits, for ever perhaps. The thread that waits with
//! it must not be the one that renews a leadership or tells a guardian to end
//! its command. So lines are put into a queue, and one thread writes them.
//!
//! * Nothing waits here but the main thread, and that only for a reader that
//!   goes on reading: what is merely slow loses nothing until [`QUEUE_MAX`]
//!   bytes wait, and from then on slows the main thread down.
//! * Once stderr has not moved for [`STALL_TIMEOUT`](crate::stall::STALL_TIMEOUT),
//!   lines are dropped and counted. What waits already is kept, in order. When
//!   stderr moves again, a line says how many are missing.
//! * At the end of the program what waits is written, for as long as stderr
//!   moves.
//!
//! "Moves" is not only a write that ends: the kernel may make room a page at a
//! time, which takes a slow reader long. So a change of what lies unread in a
//! pipe counts, too.
//!
//! Left out: making the descriptor non-blocking. It is shared with the command
//! and with the process that started us, and both expect it as it was.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure::clock;
use tenure::error::plain_json;

use crate::stall::StallDetector;

/// How many bytes of lines may wait. What comes on top is waited for by the
/// main thread, and dropped and counted on any other.
pub(crate) const QUEUE_MAX: usize = 4 << 20;
/// How often a thread that waits looks whether stderr still moves.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Makes the line that says how many are missing.
pub(crate) type Missing = fn(u64) -> String;

struct Queue {
    state: Mutex<State>,
    /// There is something to write.
    not_empty: Condvar,
    /// Something has been written.
    not_full: Condvar,
}

struct State {
    lines: VecDeque<Vec<u8>>,
    /// Of the lines above, and of the one that is being written.
    bytes: usize,
    writing: bool,
    stall: StallDetector,
    dropped: u64,
    missing: Missing,
}

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Begins to write; `missing` words what is said of dropped lines. Without a
/// thread from the operating system everything is written by who says it.
pub(crate) fn start(missing: Missing) {
    let queue = QUEUE.get_or_init(|| Queue {
        state: Mutex::new(State {
            lines: VecDeque::new(),
            bytes: 0,
            writing: false,
            stall: StallDetector::NONE,
            dropped: 0,
            missing,
        }),
        not_empty: Condvar::new(),
        not_full: Condvar::new(),
    });
    let writer = std::thread::Builder::new().name("tenure-stderr".into());
    WRITES.get_or_init(|| writer.spawn(|| queue.run()).is_ok());
}

/// Whether the thread was started.
static WRITES: OnceLock<bool> = OnceLock::new();

/// Says these bytes, a line or more of them, on stderr.
pub(crate) fn say(bytes: &[u8]) {
    match QUEUE.get().filter(|_| WRITES.get() == Some(&true)) {
        Some(queue) => queue.push(bytes),
        None => drop(io::stderr().lock().write_all(bytes)),
    }
}

/// Waits until all has been written, or stderr does not move any more.
pub(crate) fn finish() {
    if let Some(queue) = QUEUE.get().filter(|_| WRITES.get() == Some(&true)) {
        let mut state = queue.lock();
        while state.waits() && !state.is_stalled() {
            state = queue.wait_for_room(state);
        }
    }
}

/// Calls [`finish`] when it is dropped, also by a panic.
pub(crate) struct Finish;

impl Drop for Finish {
    fn drop(&mut self) {
        finish();
    }
}

/// A writer of log lines; each write is a whole one.
pub(crate) enum Lines {
    /// As they are.
    Plain,
    /// JSON, without characters that a terminal obeys.
    Json,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (self, std::str::from_utf8(bytes)) {
            (Self::Json, Ok(line)) => {
                say(format!("{}\n", plain_json(line.trim_end())).as_bytes());
            }
            _ => say(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl State {
    fn waits(&self) -> bool {
        self.writing || !self.lines.is_empty()
    }

    /// Whether lines wait and stderr does not move.
    fn is_stalled(&mut self) -> bool {
        self.waits() && self.stall.is_stalled(clock::boot(), unread)
    }

    fn note_progress(&mut self) {
        self.stall = StallDetector::at(clock::boot(), unread());
    }

    fn fits(&self, more: usize) -> bool {
        self.bytes == 0 || self.bytes + more <= QUEUE_MAX
    }

    fn queue(&mut self, line: Vec<u8>) {
        if !self.waits() {
            self.note_progress();
        }
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    /// Says how many lines are missing, in their place.
    fn queue_dropped_note(&mut self) {
        if self.dropped > 0 {
            let line = (self.missing)(std::mem::take(&mut self.dropped));
            self.queue(line.into_bytes());
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_room<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.not_full.wait_timeout(state, POLL_INTERVAL);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn push(&self, bytes: &[u8]) {
        let main = std::thread::current().name() == Some("main");
        let mut state = self.lock();
        loop {
            if state.is_stalled() {
                state.dropped += 1;
                return;
            }
            if state.fits(bytes.len()) {
                break;
            }
            if !main {
                state.dropped += 1;
                return;
            }
            state = self.wait_for_room(state);
        }
        state.queue_dropped_note();
        state.queue(bytes.to_vec());
        drop(state);
        self.not_empty.notify_one();
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            let Some(line) = state.lines.pop_front() else {
                let waited = self.not_empty.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.writing = true;
            drop(state);
            // A reader that has closed it does not want to hear about it.
            let _ = io::stderr().lock().write_all(&line);
            state = self.lock();
            state.writing = false;
            state.bytes -= line.len();
            state.note_progress();
            if state.lines.is_empty() {
                state.queue_dropped_note();
            }
            self.not_full.notify_all();
        }
    }
}

/// How many bytes of stderr nobody has read yet; `None` where the kernel does
/// not tell, and then only a write that ends is movement.
fn unread() -> Option<u64> {
    rustix::io::ioctl_fionread(io::stderr()).ok()
}
