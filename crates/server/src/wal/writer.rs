//! Group commit: a thread that writes, so that batches which come while it waits
//! for the disk share the next sync.
//!
//! Nothing decides how many batches are committed together: the thread takes
//! what has piled up while it was busy. On an idle server that is one batch
//! and the least delay; under load it is many and the most throughput.
//!
//! Waking a thread and being woken by it takes as long as a quick disk takes
//! to sync. The event loop may therefore write on its own thread, as
//! long as nothing waits and the disk has been quick: see [`Writer::here`].

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure_alpo::{Batch, Entry};
use tenure_runtime::clock;

use super::error::WalError;
use super::log::Wal;
use super::snapshot_files::SnapshotWriter;

/// How many go into one write.
const BATCHES_MAX: usize = 256;
/// After about how many bytes no further batch goes into the same write.
const WEIGHT_MAX: usize = 8 * 1024 * 1024;

/// A sync that takes no longer was quick.
const QUICK: Duration = Duration::from_millis(2);
/// So many must have been, one after the other, before the event loop
/// waits for the next one itself.
const QUICK_BEFORE: u32 = 64;

/// A handle to the thread. Dropping it lets the thread finish what waits and
/// end.
#[derive(Debug)]
pub struct Writer {
    queue: Sender<Batch>,
    thread: JoinHandle<()>,
    shared: Arc<Shared>,
    snapshots: Option<SnapshotWriter>,
}

/// The log, and what went wrong with it.
#[derive(Debug)]
struct Log {
    wal: Wal,
    /// After one failure nothing is written, whichever thread had it: what
    /// comes later would make the event loop count what failed as durable.
    failed: Option<String>,
}

/// What the thread and the event loop share.
#[derive(Debug)]
struct Shared {
    log: Mutex<Log>,
    /// Batches that were handed over and not reported yet.
    waiting: AtomicUsize,
    /// How many syncs in a row were quick.
    quick: AtomicU32,
}

/// A batch that is to be written on the thread of the event loop.
#[derive(Debug)]
#[must_use = "the disk counts as busy until it is written"]
pub struct InlineWrite {
    batch: Batch,
    shared: Arc<Shared>,
}

/// The thread has ended, because the log failed: the batch is handed back.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the log failed, and its thread has ended")]
pub struct Ended(pub Box<Batch>);

impl Writer {
    /// Starts the thread. `report` is called on it, with the number of the
    /// last batch that is durable after each sync, or once with the error
    /// that ended the thread.
    ///
    /// # Errors
    /// [`WalError::Disk`] if there is no thread to be had.
    pub fn start(
        wal: Wal,
        report: impl FnMut(Result<u64, WalError>) + Send + 'static,
    ) -> Result<Self, WalError> {
        let (queue, batches) = channel();
        let directory = wal.directory();
        let snapshots = wal.snapshot_writer();
        let shared = Arc::new(Shared {
            log: Mutex::new(Log { wal, failed: None }),
            waiting: AtomicUsize::new(0),
            quick: AtomicU32::new(0),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tenure-wal".into())
            .spawn(move || serve(&own, batches, report))
            .map_err(|error| WalError::disk(directory, None, "start a thread for", error))?;
        Ok(Self {
            queue,
            thread,
            shared,
            snapshots,
        })
    }

    /// Writes snapshots' files on other threads, so that a batch with one is
    /// written as quickly as any other. None if the disk has no such files.
    pub(crate) fn snapshot_writer(&self) -> Option<SnapshotWriter> {
        self.snapshots.clone()
    }

    /// Hands over a batch. It never waits, for the thread that owns the machine
    /// must answer others while the disk is slow; what can be under way is
    /// bounded by the machine itself, in bytes.
    ///
    /// # Errors
    /// [`Ended`] if the log has failed.
    pub fn submit(&self, batch: Batch) -> Result<(), Ended> {
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        self.queue
            .send(batch)
            .map_err(|refused| Ended(Box::new(refused.0)))
    }

    /// Whether [`here`](Self::here) would give a batch back now.
    pub fn is_quick(&self) -> bool {
        self.shared.is_quick()
    }

    /// Makes a batch ready to be written on this thread, if that is likely to
    /// take no longer than to have it done: nothing else waits, and the last
    /// 64 syncs took at most 2 ms each. Otherwise the log's thread has it, like
    /// by [`submit`](Self::submit). After one slow sync the thread has the next
    /// 64, so that a disk which has become slow holds the event loop up once.
    ///
    /// # Errors
    /// [`Ended`] if the log has failed.
    pub fn here(&self, batch: Batch) -> Result<Option<InlineWrite>, Ended> {
        if !self.is_quick() {
            return self.submit(batch).map(|()| None);
        }
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        let shared = Arc::clone(&self.shared);
        Ok(Some(InlineWrite { batch, shared }))
    }

    /// Waits until everything is written, or the log has failed, and gives
    /// the log back.
    pub fn finish(self) -> Wal {
        drop(self.queue);
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
        let shared = Arc::into_inner(self.shared).expect("the thread has ended");
        let log = shared.log.into_inner();
        log.unwrap_or_else(PoisonError::into_inner).wal
    }
}

impl InlineWrite {
    /// The number of the batch.
    pub const fn number(&self) -> u64 {
        self.batch.number
    }

    /// Writes the batch and waits until it is durable. `locked` is called when
    /// nothing else can be written before it any more.
    ///
    /// # Errors
    /// [`WalError`] if the log has failed, before or now.
    pub fn write(self, locked: impl FnOnce()) -> Result<(), WalError> {
        let written = self.shared.write(&[self.batch], locked);
        self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        written
    }
}

impl Shared {
    fn is_quick(&self) -> bool {
        let waiting = self.waiting.load(Ordering::Acquire);
        waiting == 0 && self.quick.load(Ordering::Acquire) >= QUICK_BEFORE
    }

    fn write(&self, batches: &[Batch], locked: impl FnOnce()) -> Result<(), WalError> {
        let poisoned = |cause: String| WalError::Poisoned { cause };
        let panicked = |_| poisoned("a thread panicked while it wrote".into());
        let mut log = self.log.lock().map_err(panicked)?;
        locked();
        if let Some(cause) = &log.failed {
            return Err(poisoned(cause.clone()));
        }
        let began = clock::boot();
        let written = log.wal.append(batches);
        if let Err(error) = &written {
            log.failed = Some(error.to_string());
        }
        // While the log is locked, or one thread's word would undo another's.
        if written.is_ok() && clock::boot().since(began) <= QUICK {
            self.quick.fetch_add(1, Ordering::AcqRel);
        } else {
            self.quick.store(0, Ordering::Release);
        }
        written
    }
}

/// Reports a panic of the thread as a failure of the log. Without the report the event loop
/// would wait for its batches for ever, and remain leader.
struct Reporter<R: FnMut(Result<u64, WalError>)>(R);

impl<R: FnMut(Result<u64, WalError>)> Drop for Reporter<R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let cause = "the thread that writes panicked; this is a bug".to_owned();
            (self.0)(Err(WalError::Poisoned { cause }));
        }
    }
}

fn serve(shared: &Shared, queue: Receiver<Batch>, report: impl FnMut(Result<u64, WalError>)) {
    let mut reporter = Reporter(report);
    // Bound after the reporter, so that a panic drops it first: a caller that hears of the
    // failure finds the queue closed.
    let queue = queue;
    let mut batches = Vec::new();
    while let Ok(first) = queue.recv() {
        let mut weight = weigh(&first);
        batches.push(first);
        while batches.len() < BATCHES_MAX
            && weight < WEIGHT_MAX
            && let Ok(next) = queue.try_recv()
        {
            weight += weigh(&next);
            batches.push(next);
        }
        let number = batches.last().map_or(0, |batch| batch.number);
        if let Err(error) = shared.write(&batches, || ()) {
            // A caller that hears of the failure must find the queue closed.
            drop(queue);
            return (reporter.0)(Err(error));
        }
        (reporter.0)(Ok(number));
        // Only now: what is written elsewhere comes after it.
        shared.waiting.fetch_sub(batches.len(), Ordering::AcqRel);
        batches.clear();
    }
}

fn weigh(batch: &Batch) -> usize {
    batch.entries.iter().map(Entry::weight).sum()
}
