//! The thread that owns the connection, and its group commit.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tenure_core::cas::Conflict;
use tenure_core::time::Instant;
use tokio::sync::oneshot;

use super::table;
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

/// A handle to the thread. Dropping it ends the thread after the calls that
/// are under way.
#[derive(Debug)]
pub(super) struct Worker {
    queue: SyncSender<(Instant, Job)>,
}

impl Worker {
    pub(super) fn start(path: &Path, hub: Arc<Hub>) -> Result<Self, StoreError> {
        let connection = table::open(path)?;
        let desk = Desk {
            connection,
            hub,
            file: File::at(path)?,
        };
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name("tenure-sqlite".into())
            .spawn(move || desk.serve(&jobs))
            .map_err(StoreError::unavailable)?;
        Ok(Self { queue })
    }

    pub(super) fn submit(&self, within: Duration, job: Job) -> Result<(), StoreError> {
        self.queue
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

/// Which file was opened, so that one put in its place is noticed: a rival
/// would use the new one.
struct File {
    path: PathBuf,
    identity: (u64, u64),
}

impl File {
    fn at(path: &Path) -> Result<Self, StoreError> {
        let identity = identity(path).map_err(StoreError::broken)?;
        Ok(Self {
            path: path.to_owned(),
            identity,
        })
    }

    fn check(&self) -> Result<(), String> {
        match identity(&self.path) {
            Ok(found) if found == self.identity => Ok(()),
            _ => Err(format!(
                "expected {} to be the file that was opened, found it deleted or replaced; \
                 restart this process to use the one that is there now",
                self.path.display()
            )),
        }
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

struct Desk {
    connection: Connection,
    hub: Arc<Hub>,
    file: File,
}

/// What became of a job inside a transaction that has yet to commit.
enum Done {
    Read(Reply<Reading>, Reading),
    Written(Reply<Written>, Key, Result<Register, Conflict>),
    Deleted(Reply<()>, Key, Version, Result<(), Conflict>),
    Listed(Reply<Page>, Page),
}

impl Desk {
    fn serve(mut self, jobs: &Receiver<(Instant, Job)>) {
        while let Ok(first) = jobs.recv() {
            let more = std::iter::from_fn(|| jobs.try_recv().ok()).take(BATCH_MAX - 1);
            let now = clock::boot();
            let due = std::iter::once(first).chain(more);
            // Whoever has given up must not be served: it may have told its
            // caller otherwise.
            let batch: Vec<_> = due
                .filter(|(until, _)| now < *until)
                .map(|(_, job)| job)
                .collect();
            self.batch(batch);
        }
    }

    fn batch(&mut self, jobs: Vec<Job>) {
        let writes = jobs
            .iter()
            .any(|job| matches!(job, Job::Write { .. } | Job::Delete { .. }));
        if let Err(gone) = self.file.check() {
            jobs.into_iter()
                .for_each(|job| job.refuse(&|| StoreError::broken(&gone)));
            return;
        }
        let behavior = if writes {
            TransactionBehavior::Immediate
        } else {
            TransactionBehavior::Deferred
        };
        let begun = match self.connection.transaction_with_behavior(behavior) {
            Ok(begun) => begun,
            Err(error) => {
                jobs.into_iter()
                    .for_each(|job| job.refuse(&|| not_done(&error)));
                return;
            }
        };
        let mut done = Vec::with_capacity(jobs.len());
        let mut jobs = jobs.into_iter();
        while let Some(job) = jobs.next() {
            match job.carry_out(&begun) {
                Ok(result) => done.push(result),
                Err((job, error)) => {
                    // The transaction may be half undone: undo all of it.
                    drop(begun);
                    let refuse = || not_done(&error);
                    done.into_iter().for_each(|done| done.refuse(&refuse));
                    std::iter::once(job)
                        .chain(jobs)
                        .for_each(|job| job.refuse(&refuse));
                    return;
                }
            }
        }
        match begun.commit() {
            Ok(()) => done.into_iter().for_each(|done| done.answer(&self.hub)),
            Err(error) => {
                let still_open = !self.connection.is_autocommit();
                if still_open {
                    let _ = self.connection.execute_batch("ROLLBACK");
                }
                done.into_iter()
                    .for_each(|done| done.refuse(&|| not_committed(&error)));
            }
        }
    }
}

impl Job {
    #[expect(
        clippy::result_large_err,
        reason = "the job is handed back to be refused"
    )]
    fn carry_out(self, connection: &Connection) -> Result<Done, (Self, rusqlite::Error)> {
        match self {
            Self::Read { key, reply } => match table::read(connection, &key) {
                Ok(register) => {
                    let now = clock::shared();
                    Ok(Done::Read(
                        reply,
                        Reading {
                            register,
                            now,
                            bound: false,
                        },
                    ))
                }
                Err(error) => Err((Self::Read { key, reply }, error)),
            },
            Self::Write { write, reply } => match table::write(connection, &write) {
                Ok(result) => Ok(Done::Written(reply, write.key, result)),
                Err(error) => Err((Self::Write { write, reply }, error)),
            },
            Self::Delete {
                key,
                expected,
                reply,
            } => match table::delete(connection, &key, &expected) {
                Ok(result) => Ok(Done::Deleted(reply, key, expected, result)),
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
            } => match table::list(connection, &prefix, after.as_ref()) {
                Ok(page) => Ok(Done::Listed(reply, page)),
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

impl Done {
    fn answer(self, hub: &Hub) {
        match self {
            Self::Read(reply, reading) => drop(reply.send(Ok(reading))),
            Self::Listed(reply, page) => drop(reply.send(Ok(page))),
            Self::Written(reply, key, Ok(register)) => {
                let version = register.version.clone();
                hub.publish(&key, register);
                drop(reply.send(Ok(Written {
                    version,
                    now: clock::shared(),
                })));
            }
            Self::Deleted(reply, key, version, Ok(())) => {
                hub.publish_gone(&key, version);
                drop(reply.send(Ok(())));
            }
            Self::Written(reply, _, Err(Conflict)) => drop(reply.send(Err(StoreError::Conflict))),
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

/// An error before the commit: nothing has happened.
fn not_done(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => full(error),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::broken(format!(
            "expected a database file that this user may write, found it read-only ({error})"
        )),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => StoreError::broken(format!(
            "expected a sound SQLite database, found a damaged one; restore it ({error})"
        )),
        _ => StoreError::unavailable(error),
    }
}

/// An error at the commit. A full disk cuts the log before its commit mark,
/// and a busy one never began; any other failure may have left the mark in
/// the log, where a later recovery would find it.
fn not_committed(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => full(error),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::unavailable(error),
        _ => StoreError::unknown(error),
    }
}

fn full(error: &rusqlite::Error) -> StoreError {
    StoreError::unavailable(format!(
        "expected room for a write, found the disk full; free some space ({error})"
    ))
}
