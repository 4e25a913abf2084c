//! Registers in a SQLite file: every process of one machine, nothing to
//! install.
//!
//! One worker thread owns the connection that reads and writes. Calls queue
//! up while a commit waits for the disk, and all that have queued up go into
//! the next transaction: **group commit**, one `fsync` for many elections. A
//! comparison that fails does not undo its neighbours.
//!
//! The file is in WAL mode with `synchronous = FULL`: an acknowledged write
//! survives a power cut. Its clock is the machine's boot-time clock, which
//! all processes share and which cannot step, so a fresh candidate takes a
//! long-dead office at once.
//!
//! Limits: 1,024 calls wait in the queue (more are refused as unavailable),
//! 256 go into one transaction.
//!
//! Left out on purpose: files on network file systems. WAL mode needs shared
//! memory between all who open the file, so they must be on one machine;
//! file systems that machines share are refused.

mod place;
mod table;
mod watcher;
mod worker;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::worker::{Job, Worker};
use super::hub::Hub;
use super::{
    BoxFuture, Clock, Features, Key, Page, Reading, Selector, Store, Version, Watch, Write,
    Written, refuse_oversized,
};
use crate::error::{StoreError, about};

/// Registers in a SQLite file. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Sqlite {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    worker: Worker,
    watcher: watcher::Watcher,
    hub: Arc<Hub>,
}

impl Sqlite {
    /// Opens the file, creating it and its table if they are missing. Blocks
    /// for as long as the disk takes.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if the file cannot be used as it is (no
    /// directory, no permission, not a database, a table of another shape),
    /// [`StoreError::Unavailable`] if it is locked or the disk is full.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = std::path::absolute(path.as_ref()).map_err(StoreError::broken)?;
        let hub = Arc::new(Hub::default());
        let worker = Worker::start(&path, Arc::clone(&hub))?;
        let watcher = watcher::Watcher::start(&path, Arc::clone(&hub))?;
        Ok(Self {
            shared: Arc::new(Shared {
                path,
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
        late: fn(String) -> StoreError,
    ) -> Result<T, StoreError> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.shared.worker.submit(within, job(reply))?;
        match tokio::time::timeout(within, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::unknown("the store's thread has ended")),
            Err(_) => Err(late(format!(
                "{self} did not answer within {}",
                about(within)
            ))),
        }
    }
}

impl fmt::Display for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite://{}", self.shared.path.display())
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
        let watch = self.shared.hub.follow(selector);
        self.shared.watcher.wake();
        watch
    }
}
