//! Registers in a SQLite file: every process of one machine, nothing to
//! install.
//!
//! One worker thread owns the connection that writes. Calls queue up while a
//! commit waits for the disk, and all that have queued up go into the next
//! transaction: **group commit**, a handful of syncs for many elections. A
//! comparison that fails does not undo its neighbours. Another thread reads,
//! so that reads do not wait for a foreign lock that only stops writers.
//!
//! The file has a rollback journal and `synchronous = FULL`: an acknowledged
//! write is in the file itself and survives a power cut. Its clock is the
//! machine's boot-time clock, which all processes share and which cannot
//! step, so a fresh candidate takes a long-dead election at once. Which file
//! that is, and what happens when it is not any more, is the matter of
//! `file_connection.rs`.
//!
//! Limits: 1,024 writes and as many reads wait in their queues (more are
//! refused as unavailable), 256 go into one transaction.
//!
//! Left out on purpose: files on network file systems. The locks and the
//! clock are one machine's, so all who open the file must be on it; file
//! systems that machines share are refused.

mod file_connection;
mod heartbeat_table;
pub(super) mod heartbeats;
mod identity;
mod journal_files;
mod open_files;
mod table;
mod watcher;
mod worker;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::file_connection::{DatabaseFile, FileConnection, Purpose};
use self::worker::{Job, Worker};
use super::hub::Hub;
use super::{
    BoxFuture, Clock, Features, FileMode, Key, Page, Reading, Selector, Store, Version, Watch,
    Write, Written, refuse_oversized,
};
use crate::error::{StoreError, about};

/// Registers in a SQLite file. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Sqlite {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: Arc<DatabaseFile>,
    worker: Worker,
    watcher: watcher::Watcher,
    hub: Arc<Hub>,
}

/// Refuses what other programs name a database in memory by. SQLite has one for each
/// connection, and a store has several.
pub(super) fn refuse_memory(path: &Path) -> Result<(), StoreError> {
    if path.as_os_str() != ":memory:" {
        return Ok(());
    }
    Err(StoreError::broken(
        "expected the path of a file, found :memory:, which SQLite opens as a new database for \
         each connection; use the store memory: for registers in this process, or ./:memory: \
         for a file of that name",
    ))
}

impl Sqlite {
    /// Opens the file, creating it and its table if they are missing. Blocks
    /// for as long as the disk takes, and a few seconds if an older release
    /// has the file open.
    ///
    /// What is missing later is not created again: calls fail as unavailable
    /// until the file is back.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if the file cannot be used as it is (no
    /// directory, no permission, a second name, not a database, a table of
    /// another shape), [`StoreError::Unavailable`] if it is locked, open in an
    /// older release, or the disk is full.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, FileMode::default())
    }

    /// The same, where a file that is made gets another mode.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, mode: FileMode) -> Result<Self, StoreError> {
        let file = Self::file(path, mode)?;
        let writer = FileConnection::open_or_create(&file)?;
        Self::start(file, writer)
    }

    /// Opens the file if there is one, and makes nothing: until there is one
    /// with a table, calls fail as unavailable. It is opened by the first
    /// call; who may only read it can call what reads.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if no thread can be started.
    pub fn existing(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        // It makes no file.
        let file = Self::file(path, FileMode::default())?;
        let writer = FileConnection::new(&file, Purpose::Write);
        Self::start(file, writer)
    }

    fn file(path: impl AsRef<Path>, mode: FileMode) -> Result<Arc<DatabaseFile>, StoreError> {
        refuse_memory(path.as_ref())?;
        let path = std::path::absolute(path.as_ref()).map_err(StoreError::broken)?;
        Ok(DatabaseFile::new(path, mode))
    }

    fn start(file: Arc<DatabaseFile>, writer: FileConnection) -> Result<Self, StoreError> {
        let hub = Arc::new(Hub::default());
        let worker = Worker::start(&file, writer, &hub)?;
        let watcher = watcher::Watcher::start(&file, Arc::clone(&hub))?;
        Ok(Self {
            shared: Arc::new(Shared {
                file,
                worker,
                watcher,
                hub,
            }),
        })
    }

    async fn call<T>(
        &self,
        within: Duration,
        job: impl FnOnce(worker::Reply<T>) -> Job,
        on_timeout: fn(String) -> StoreError,
    ) -> Result<T, StoreError> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.shared.worker.submit(within, job(reply))?;
        match tokio::time::timeout(within, answer).await {
            Ok(Ok(result)) => result,
            // The thread leaves out what is late before this notices it.
            Ok(Err(_)) | Err(_) => Err(on_timeout(format!(
                "{self} did not answer within {}",
                about(within)
            ))),
        }
    }
}

impl fmt::Display for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite://{}", self.shared.file.path().display())
    }
}

impl Store for Sqlite {
    fn features(&self) -> Features {
        Features {
            clock: Clock::CannotStep,
            judge_by_store_clock: false,
        }
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Reading, StoreError>> {
        let key = key.clone();
        let job = move |reply| Job::Read { key, reply };
        Box::pin(self.call(within, job, StoreError::unavailable))
    }

    fn compare_and_swap(
        &self,
        write: Write,
        within: Duration,
    ) -> BoxFuture<'_, Result<Written, StoreError>> {
        if let Err(error) = refuse_oversized(&write) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let job = move |reply| Job::Write { write, reply };
        Box::pin(self.call(within, job, StoreError::unknown))
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let (key, expected) = (key.clone(), expected.clone());
        let job = move |reply| Job::Delete {
            key,
            expected,
            reply,
        };
        Box::pin(self.call(within, job, StoreError::unknown))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        let job = move |reply| Job::List {
            prefix,
            after,
            reply,
        };
        Box::pin(self.call(within, job, StoreError::unavailable))
    }

    fn watch(&self, selector: Selector) -> Watch {
        let watch = self.shared.hub.subscribe(selector);
        self.shared.watcher.wake();
        watch
    }
}
