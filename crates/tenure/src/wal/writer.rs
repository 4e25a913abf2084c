//! A thread that writes, so that batches which come while it waits for the
//! disk share the next sync.
//!
//! Nobody decides how many batches are committed together: the thread takes
//! what has piled up while it was busy. On an idle server that is one batch
//! and the least delay; under load it is many and the most throughput.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tenure_core::alpo::{Batch, Entry};

use super::error::WalError;
use super::log::Wal;

/// How many go into one write.
const BATCHES_MAX: usize = 256;
/// After about how many bytes no further batch goes into the same write.
const WEIGHT_MAX: usize = 8 * 1024 * 1024;

/// A handle to the thread. Dropping it lets the thread finish what waits and
/// end.
#[derive(Debug)]
pub struct Writer {
    queue: Sender<Batch>,
    thread: JoinHandle<Wal>,
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
        let thread = std::thread::Builder::new()
            .name("tenure-wal".into())
            .spawn(move || serve(wal, batches, report))
            .map_err(|error| WalError::disk(directory, None, "start a thread for", error))?;
        Ok(Self { queue, thread })
    }

    /// Hands over a batch. It never waits, for whoever owns the machine must
    /// answer others while the disk is slow; what can be under way is bounded
    /// by the machine itself, in bytes.
    ///
    /// # Errors
    /// [`Ended`] if the log has failed.
    pub fn submit(&self, batch: Batch) -> Result<(), Ended> {
        self.queue
            .send(batch)
            .map_err(|refused| Ended(Box::new(refused.0)))
    }

    /// Waits until everything is written, or the log has failed, and gives
    /// the log back.
    pub fn finish(self) -> Wal {
        drop(self.queue);
        match self.thread.join() {
            Ok(wal) => wal,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn serve(
    mut wal: Wal,
    queue: Receiver<Batch>,
    mut report: impl FnMut(Result<u64, WalError>),
) -> Wal {
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
        if let Err(error) = wal.append(&batches) {
            // Whoever hears of the failure must find the door closed.
            drop(queue);
            report(Err(error));
            return wal;
        }
        report(Ok(number));
        batches.clear();
    }
    wal
}

fn weigh(batch: &Batch) -> usize {
    batch.entries.iter().map(Entry::weight).sum()
}
