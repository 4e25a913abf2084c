//! The two threads that own a connection each, one for writes with its group
//! commit, one for reads: a read need not wait until a foreign process lets
//! go of the lock for writers.
//!
//! The store's clock is read before the rows that it is compared with. A
//! thread may be paused between the two, for as long as a lease; read after
//! the rows, the clock would then show a grant as over that was renewed
//! meanwhile. So a transaction that reads notes the time before it begins.
//! One that writes notes it when it has the lock for writers, for from then
//! on no other process changes a row.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use tenure_core::cas::Conflict;
use tenure_core::time::{Instant, StoreTime};
use tokio::sync::oneshot;

use super::file_connection::{self, BUSY_WAIT, DatabaseFile, FileConnection, Purpose};
use super::{journal_files, open_files, table};
use crate::clock;
use crate::error::StoreError;
use crate::store::hub::Hub;
use crate::store::{Key, Page, Reading, Register, Version, Write, Written};

/// How many calls may wait; more are refused as unavailable.
const QUEUE_MAX: usize = 1024;
/// How many calls go into one transaction.
const BATCH_MAX: usize = 256;

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// One call.
pub(super) enum Job {
    Read {
        key: Key,
        reply: Reply<Reading>,
    },
    Write {
        write: Write,
        reply: Reply<Written>,
    },
    Delete {
        key: Key,
        expected: Version,
        reply: Reply<()>,
    },
    List {
        prefix: String,
        after: Option<Key>,
        reply: Reply<Page>,
    },
}

/// A handle to the threads. Dropping it ends them after the calls that are
/// under way.
#[derive(Debug)]
pub(super) struct Worker {
    writes: SyncSender<(Instant, Job)>,
    reads: SyncSender<(Instant, Job)>,
}

impl Worker {
    /// Begins to serve; `writer` is the connection for writes, which need not
    /// be open.
    pub(super) fn start(
        file: &Arc<DatabaseFile>,
        writer: FileConnection,
        hub: &Arc<Hub>,
    ) -> Result<Self, StoreError> {
        let reader = FileConnection::new(file, Purpose::Read);
        Ok(Self {
            writes: serve("tenure-sqlite", Purpose::Write, writer, hub)?,
            reads: serve("tenure-sqlite-r", Purpose::Read, reader, hub)?,
        })
    }

    pub(super) fn submit(&self, within: Duration, job: Job) -> Result<(), StoreError> {
        let queue = match job {
            Job::Read { .. } | Job::List { .. } => &self.reads,
            Job::Write { .. } | Job::Delete { .. } => &self.writes,
        };
        queue
            .try_send((clock::boot().after(within), job))
            .map_err(|error| match error {
                TrySendError::Full(_) => {
                    StoreError::unavailable(format!("{QUEUE_MAX} calls are waiting already"))
                }
                TrySendError::Disconnected(_) => {
                    StoreError::unavailable("the store's thread has ended")
                }
            })
    }
}

fn serve(
    name: &str,
    purpose: Purpose,
    file_connection: FileConnection,
    hub: &Arc<Hub>,
) -> Result<SyncSender<(Instant, Job)>, StoreError> {
    let (queue, jobs) = sync_channel(QUEUE_MAX);
    let thread = WorkerThread {
        purpose,
        file_connection,
        hub: Arc::clone(hub),
    };
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || thread.serve(&jobs))
        .map_err(StoreError::unavailable)?;
    Ok(queue)
}

struct WorkerThread {
    purpose: Purpose,
    file_connection: FileConnection,
    hub: Arc<Hub>,
}

/// What became of a job inside a transaction that has yet to commit.
enum JobResult {
    Read(Reply<Reading>, Reading),
    Written(
        Reply<Written>,
        Key,
        Result<Register, Conflict>,
        Option<StoreTime>,
    ),
    Deleted(Reply<()>, Key, Version, Result<(), Conflict>),
    Listed(Reply<Page>, Page),
}

/// Why a batch came to nothing.
enum BatchError {
    /// Before its commit: nothing has happened. With the call that failed, if
    /// it was one of them.
    Before(StoreError, Option<Box<Job>>),
    /// The file has a write-ahead log.
    WalMode,
    /// At its commit.
    AtCommit(rusqlite::Error),
}

impl WorkerThread {
    fn serve(mut self, jobs: &Receiver<(Instant, Job)>) {
        while let Ok(first) = jobs.recv() {
            let more = std::iter::from_fn(|| jobs.try_recv().ok()).take(BATCH_MAX - 1);
            let now = clock::boot();
            let due = std::iter::once(first).chain(more);
            // A call whose time is up must not be served: its caller may have
            // been told otherwise.
            let batch: Vec<_> = due.filter(|(until, _)| now < *until).collect();
            let Some(last) = batch.iter().map(|(until, _)| *until).max() else {
                continue;
            };
            // A little less than the callers wait, so that they hear which lock
            // it was, and that nothing has happened.
            let lock_timeout = last.since(now).min(BUSY_WAIT);
            file_connection::set_lock_deadline(now.after(lock_timeout - lock_timeout / 8));
            self.batch(batch.into_iter().map(|(_, job)| job).collect());
        }
    }

    /// Carries out some calls in one transaction, and answers them if, after
    /// it, the path leads to the file still.
    fn batch(&mut self, jobs: Vec<Job>) {
        let mut done = Vec::with_capacity(jobs.len());
        let (mut jobs, mut culprit) = (jobs.into_iter(), None);
        let carried_out = self.carry_out(&mut jobs, &mut done);
        let refused: Option<Box<dyn Fn() -> StoreError>> = match carried_out {
            Ok(()) if self.file_connection.is_current() => None,
            Ok(()) => {
                let file = self.file_connection.path().display().to_string();
                let purpose = self.purpose;
                self.file_connection.close();
                Some(Box::new(move || file_replaced(purpose, &file)))
            }
            Err(BatchError::Before(error, job)) => {
                culprit = job;
                // SQLite itself refuses to begin on a file that was moved.
                let error = self.file_connection.why_not_current().unwrap_or(error);
                Some(Box::new(move || clone_error(&error)))
            }
            Err(BatchError::AtCommit(error)) => Some(Box::new(move || error_at_commit(&error))),
            Err(BatchError::WalMode) => {
                self.file_connection.close();
                let error = self.file_connection.wal_mode_error();
                Some(Box::new(move || clone_error(&error)))
            }
        };
        // Before the answers: who hears one may write at once, and that takes
        // the lock that a reader of such a file keeps from writers.
        if self.purpose == Purpose::Read {
            self.file_connection.close_if_wal();
        }
        match refused {
            None => done.into_iter().for_each(|done| done.answer(&self.hub)),
            Some(refused) => {
                done.into_iter().for_each(|done| done.refuse(&*refused));
                let culprit = culprit.map(|job| *job);
                jobs.chain(culprit).for_each(|job| job.refuse(&*refused));
            }
        }
    }

    /// Carries out `jobs` in one transaction; what came of them is in `done`,
    /// and means nothing unless all went well.
    fn carry_out(
        &mut self,
        jobs: &mut std::vec::IntoIter<Job>,
        done: &mut Vec<JobResult>,
    ) -> Result<(), BatchError> {
        let purpose = self.purpose;
        let path = self.file_connection.path().to_owned();
        let before = |error: rusqlite::Error| {
            BatchError::Before(error_of_call(purpose, &path, &error), None)
        };
        let connection = self.file_connection.current();
        let connection = connection.map_err(|error| BatchError::Before(error, None))?;
        let asked = clock::shared();
        let (begun, now) = match purpose {
            Purpose::Read => {
                let begun = connection.transaction_with_behavior(TransactionBehavior::Deferred);
                (begun.map_err(before)?, asked)
            }
            Purpose::Write => {
                let begun = file_connection::begin_to_write(connection).map_err(before)?;
                (begun.ok_or(BatchError::WalMode)?, clock::shared())
            }
        };
        for job in jobs {
            match job.carry_out(&begun, now) {
                Ok(result) => done.push(result),
                // The transaction may be half undone: undo all of it, by
                // dropping it.
                Err((job, error)) => {
                    let failed = error_of_call(purpose, &path, &error);
                    return Err(BatchError::Before(failed, Some(Box::new(job))));
                }
            }
        }
        commit(begun).map_err(BatchError::AtCommit)
    }
}

/// A transaction whose commit failed is not left open.
pub(super) fn commit(mut begun: Transaction<'_>) -> rusqlite::Result<()> {
    begun.set_drop_behavior(rusqlite::DropBehavior::Rollback);
    begun.execute_batch("COMMIT")
}

impl Job {
    #[expect(
        clippy::result_large_err,
        reason = "the job is handed back to be refused"
    )]
    fn carry_out(
        self,
        connection: &Connection,
        now: Option<StoreTime>,
    ) -> Result<JobResult, (Self, rusqlite::Error)> {
        match self {
            Self::Read { key, reply } => match table::read(connection, &key) {
                Ok(register) => Ok(JobResult::Read(
                    reply,
                    Reading {
                        register,
                        now,
                        bound: None,
                    },
                )),
                Err(error) => Err((Self::Read { key, reply }, error)),
            },
            Self::Write { write, reply } => match table::write(connection, &write, now) {
                Ok(result) => Ok(JobResult::Written(reply, write.key, result, now)),
                Err(error) => Err((Self::Write { write, reply }, error)),
            },
            Self::Delete {
                key,
                expected,
                reply,
            } => match table::delete(connection, &key, &expected) {
                Ok(result) => Ok(JobResult::Deleted(reply, key, expected, result)),
                Err(error) => Err((
                    Self::Delete {
                        key,
                        expected,
                        reply,
                    },
                    error,
                )),
            },
            Self::List {
                prefix,
                after,
                reply,
            } => match table::list(connection, &prefix, after.as_ref(), now) {
                Ok(page) => Ok(JobResult::Listed(reply, page)),
                Err(error) => Err((
                    Self::List {
                        prefix,
                        after,
                        reply,
                    },
                    error,
                )),
            },
        }
    }

    // An answer that nobody waits for any more is dropped, here and below.
    fn refuse(self, error: &dyn Fn() -> StoreError) {
        match self {
            Self::Read { reply, .. } => drop(reply.send(Err(error()))),
            Self::Write { reply, .. } => drop(reply.send(Err(error()))),
            Self::Delete { reply, .. } => drop(reply.send(Err(error()))),
            Self::List { reply, .. } => drop(reply.send(Err(error()))),
        }
    }
}

impl JobResult {
    fn answer(self, hub: &Hub) {
        match self {
            Self::Read(reply, reading) => drop(reply.send(Ok(reading))),
            Self::Listed(reply, page) => drop(reply.send(Ok(page))),
            Self::Written(reply, key, Ok(register), now) => {
                let version = register.version.clone();
                hub.publish(&key, register);
                drop(reply.send(Ok(Written { version, now })));
            }
            Self::Deleted(reply, key, version, Ok(())) => {
                hub.publish_gone(&key, version);
                drop(reply.send(Ok(())));
            }
            Self::Written(reply, _, Err(Conflict), _) => {
                drop(reply.send(Err(StoreError::Conflict)));
            }
            Self::Deleted(reply, _, _, Err(Conflict)) => {
                drop(reply.send(Err(StoreError::Conflict)));
            }
        }
    }

    fn refuse(self, error: &dyn Fn() -> StoreError) {
        match self {
            Self::Read(reply, _) => drop(reply.send(Err(error()))),
            Self::Written(reply, ..) => drop(reply.send(Err(error()))),
            Self::Deleted(reply, ..) => drop(reply.send(Err(error()))),
            Self::Listed(reply, _) => drop(reply.send(Err(error()))),
        }
    }
}

/// The same error once more: each call of a batch is told.
fn clone_error(error: &StoreError) -> StoreError {
    match error {
        StoreError::Conflict => StoreError::Conflict,
        StoreError::Unavailable(why) => StoreError::unavailable(why),
        StoreError::Unknown(why) => StoreError::unknown(why),
        StoreError::Broken(why) => StoreError::broken(why),
    }
}

/// The path leads to another file than the one that was used, or to none. A
/// write may be found there all the same, if the file is put back.
pub(super) fn file_replaced(purpose: Purpose, file: &str) -> StoreError {
    let why = format!(
        "expected {file} to be the file that was opened, found it deleted or replaced while it \
         was used"
    );
    match purpose {
        Purpose::Write => StoreError::unknown(why),
        Purpose::Read => StoreError::unavailable(why),
    }
}

/// An error before the commit: nothing has happened.
pub(super) fn error_before_commit(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => disk_full(error),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::broken(format!(
            "expected a database file that this user may write, found it read-only ({error})"
        )),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => StoreError::broken(format!(
            "expected a sound SQLite database, found a damaged one; restore it ({error})"
        )),
        _ => StoreError::unavailable(error),
    }
}

/// The same of a call that may be made to read.
fn error_of_call(purpose: Purpose, path: &Path, error: &rusqlite::Error) -> StoreError {
    if let Some(exhausted) = open_files::exhausted(path, error) {
        return exhausted;
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen) if purpose == Purpose::Read => {
            file_connection::unreadable(path, error)
        }
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => {
            journal_files::unwritable(path).unwrap_or_else(|| error_before_commit(error))
        }
        _ => error_before_commit(error),
    }
}

/// An error at the commit. It takes effect when the journal is ended, after
/// everything else. A full disk and a foreign lock are met before that: the
/// journal is whole, and brings back what was there. Any other failure may
/// have come after it.
pub(super) fn error_at_commit(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => disk_full(error),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::unavailable(error),
        _ => StoreError::unknown(error),
    }
}

fn disk_full(error: &rusqlite::Error) -> StoreError {
    StoreError::unavailable(format!(
        "expected room for a write, found the disk full; free some space ({error})"
    ))
}
