//! The threads of a server, of which one at a time runs the event loop.
//!
//! The event loop writes a small batch itself: another thread would have to be
//! woken for it and to wake the event loop, which takes longer than a quick
//! disk takes to sync. But any sync may take seconds, in which a server must be
//! heard and must answer. So there are two threads.
//!
//! The one that is to write leaves the machine here first. If the write takes
//! longer than [`INLINE_WRITE_WITHIN`], the other thread takes the machine and
//! goes on with the event loop; the first reports its write as the log's own
//! thread does, and stands by in its turn.
//!
//! Why no write overtakes another: the log is locked before the machine can be
//! taken, and what is written later goes through the log's own thread, which
//! waits for that lock ([`InlineWrite::write`]). Why no write is begun here
//! beside another: as long as one is under way the disk counts as busy, and
//! after one that took long it counts as slow ([`Writer::here`]).
//!
//! The thread that stands by looks every [`CHECK_EVERY`] while batches are written
//! here. When none was for a while it sleeps, until the next one wakes it.
//!
//! [`InlineWrite::write`]: crate::wal::InlineWrite::write
//! [`Writer::here`]: crate::wal::Writer::here

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::ended::Ended;
use super::event_loop::{EventLoop, Step};
use super::inbox::{Event, Inbox};
use crate::transport::Tasks;
use crate::wal::{WalError, Writer};

/// How long a write may hold up the event loop.
const INLINE_WRITE_WITHIN: Duration = Duration::from_millis(10);
/// How long a server that ends waits for its disk.
const DISK_PATIENCE: Duration = Duration::from_secs(10);
/// How often the thread that stands by looks how long one takes.
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// After so many looks without a write it sleeps.
const CHECKS_MAX: u32 = 40;

/// What the threads of a server share.
pub(super) struct LoopThreads {
    state: Mutex<State>,
    changed: Condvar,
    /// What has its turn with the event loop.
    tasks: Tasks,
    inbox: Arc<Inbox>,
    tell: watch::Sender<Option<Arc<Ended>>>,
}

struct State {
    /// What drives the tasks; none after the end.
    runtime: Option<Arc<Runtime>>,
    /// The machine while its thread writes, and since when.
    left: Option<(Box<EventLoop>, Instant)>,
    /// How often it was left here.
    turn: u64,
    /// Threads that write.
    writing: usize,
    /// The thread that stands by sleeps.
    asleep: bool,
    over: bool,
}

impl LoopThreads {
    pub(super) fn new(
        runtime: Runtime,
        tasks: Tasks,
        inbox: Arc<Inbox>,
        tell: watch::Sender<Option<Arc<Ended>>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                runtime: Some(Arc::new(runtime)),
                left: None,
                turn: 0,
                writing: 0,
                asleep: false,
                over: false,
            }),
            changed: Condvar::new(),
            tasks,
            inbox,
            tell,
        })
    }

    /// What the first thread does: makes the machine, and runs it.
    pub(super) fn begin(&self, start: impl Future<Output = Result<EventLoop, Ended>>) {
        let _panics = Panics(self);
        match self.block_on(start) {
            Ok(event_loop) => self.drive(Box::new(event_loop)),
            Err(ended) => self.report(ended),
        }
        self.stand_by();
    }

    /// What the second thread does, and the first after it was relieved.
    pub(super) fn stand_by(&self) {
        let _panics = Panics(self);
        while let Some(event_loop) = self.take_over() {
            self.drive(event_loop);
        }
    }

    /// Runs the event loop until the server ends, or until the other thread
    /// has taken the machine.
    fn drive(&self, mut event_loop: Box<EventLoop>) {
        let mut wrote = None;
        loop {
            let here = match self.block_on(event_loop.run(wrote.take())) {
                Step::Write(here) => here,
                Step::End(ended) => return self.end(*event_loop, ended),
            };
            let number = here.number();
            let (mut turn, mut writing) = (0, None);
            let result = here.write(|| {
                turn = self.leave(event_loop);
                writing = Some(Writing(self));
            });
            let Some(back) = self.take_back(turn) else {
                self.inbox.put(Event::written(result.map(|()| number)));
                return;
            };
            match result {
                Ok(()) => (event_loop, wrote) = (back, Some(number)),
                Err(error) => {
                    drop(writing);
                    return self.end(*back, Ended::Disk(error));
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = self.lock().runtime.clone();
        runtime
            .expect("nothing runs after the end")
            .block_on(self.tasks.beside(future))
    }

    /// Leaves the machine to the thread that comes first, and gives the turn's
    /// number.
    fn leave(&self, event_loop: Box<EventLoop>) -> u64 {
        let now = clock::boot();
        let mut state = self.lock();
        state.left = Some((event_loop, now));
        state.turn += 1;
        state.writing += 1;
        let turn = state.turn;
        if std::mem::take(&mut state.asleep) {
            self.changed.notify_all();
        }
        turn
    }

    /// The machine, if it is still there from this turn.
    fn take_back(&self, turn: u64) -> Option<Box<EventLoop>> {
        let mut state = self.lock();
        let left = if state.turn == turn {
            state.left.take()
        } else {
            None
        };
        left.map(|(event_loop, _)| event_loop)
    }

    /// Waits until a write takes too long and gives the machine, or until the
    /// server has ended.
    fn take_over(&self) -> Option<Box<EventLoop>> {
        let mut state = self.lock();
        let (mut turn, mut checks) = (state.turn, 0);
        while !state.over {
            let late = |since: &Instant| clock::boot().since(*since) >= INLINE_WRITE_WITHIN;
            if let Some((event_loop, _)) = state.left.take_if(|(_, since)| late(since)) {
                return Some(event_loop);
            }
            if state.turn != turn || state.left.is_some() {
                (turn, checks) = (state.turn, 0);
            }
            checks += 1;
            state = if checks > CHECKS_MAX {
                state.asleep = true;
                checks = 0;
                let woken = self.changed.wait(state);
                woken.unwrap_or_else(PoisonError::into_inner)
            } else {
                let woken = self.changed.wait_timeout(state, CHECK_EVERY);
                woken.unwrap_or_else(PoisonError::into_inner).0
            };
        }
        None
    }

    fn end(&self, event_loop: EventLoop, mut ended: Ended) {
        let writer = self.block_on(async { event_loop.end(&ended) });
        // Connections close at once, however long the disk takes.
        self.shut();
        // What was handed over is written before the directory is free again.
        if !self.written(writer) {
            tracing::warn!(
                "the disk has not written within {DISK_PATIENCE:?} what waits for it: this server \
                 ends without. Nothing of that was counted as being on this disk. The directory \
                 stays locked until the disk has written or the process is gone"
            );
        }
        let mut events = Vec::new();
        self.inbox.take(&mut events);
        for event in events {
            if let (Ended::Stopped, Event::DiskFailed(error)) = (&ended, event) {
                ended = Ended::Disk(error);
            }
        }
        self.report(ended);
    }

    /// Waits until all is written; gives up after [`DISK_PATIENCE`]. Then the
    /// thread that writes has the directory, and with it its lock, until it is
    /// done.
    fn written(&self, writer: Writer) -> bool {
        let end = clock::boot().after(DISK_PATIENCE);
        let left = || end.since(clock::boot());
        let mut state = self.lock();
        while state.writing > 0 {
            if left().is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(state, left());
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        let (tell, done) = channel();
        let thread = std::thread::Builder::new().name("tenure-end".into());
        let finished = thread.spawn(move || {
            drop(writer.finish());
            let _ = tell.send(());
        });
        match (done.recv_timeout(left()), finished) {
            (Ok(()), _) => true,
            (Err(RecvTimeoutError::Disconnected), Ok(thread)) => {
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
                true
            }
            _ => false,
        }
    }

    fn report(&self, ended: Ended) {
        self.shut();
        self.tell.send_replace(Some(Arc::new(ended)));
    }

    /// Ends the thread that stands by, and gives what drives the tasks.
    fn close(&self) -> Option<Arc<Runtime>> {
        let mut state = self.lock();
        state.over = true;
        self.changed.notify_all();
        state.runtime.take()
    }

    /// Ends all tasks, and with them what they listen on. What a task has
    /// begun on a thread of its own is not waited for: it may hang on a disk.
    pub(super) fn shut(&self) {
        let runtime = self.close();
        self.tasks.clear();
        if let Some(runtime) = runtime.and_then(Arc::into_inner) {
            runtime.shutdown_background();
        }
    }
}

/// A write that began with [`LoopThreads::leave`], until it is over.
struct Writing<'a>(&'a LoopThreads);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.writing -= 1;
        if state.over {
            self.0.changed.notify_all();
        }
    }
}

/// A thread that panics ends the other one, and the server tells of the panic
/// at once.
struct Panics<'a>(&'a LoopThreads);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let loop_threads = self.0;
        loop_threads.lock().over = true;
        loop_threads.changed.notify_all();
        // The other may run the event loop, and wait for what is not written.
        let cause = "a thread panicked; this is a bug".to_owned();
        let failed = WalError::Poisoned { cause };
        loop_threads.inbox.put(Event::DiskFailed(failed));
        let fault = || Arc::new(Ended::Fault("its thread panicked; this is a bug".into()));
        loop_threads.tell.send_if_modified(|report| {
            let first = report.is_none();
            report.get_or_insert_with(fault);
            first
        });
    }
}
