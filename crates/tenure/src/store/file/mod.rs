//! Registers in a directory, a file for each: every process of one machine, nothing to
//! install, and nothing that cannot be read by `cat`.
//!
//! A write happens under the lock of the directory (`directory.rs`): the new file is
//! written beside the old one, synced, and renamed over it (`files.rs`), and the
//! directory is synced before the answer (`registers.rs` says what a crash leaves at
//! each step). Reads need no lock. What a file has in it is in `record.rs`.
//!
//! Two threads use the directory (`worker.rs`), and a third one watches it
//! (`watcher.rs`), so that no executor waits for a disk or a lock. A call that they
//! have not begun when its time is over certainly did not happen (`call.rs`).
//!
//! The clock is the machine's boot-time clock, which all processes share and which
//! cannot step. Where several machines share a cluster file system each has its own,
//! and a stamp of another one proves nothing: then silence is judged.
//!
//! Limits: 1,024 writes and as many reads wait in their queues (more are refused as
//! unavailable), 16 writes go under one lock. Each look at what is watched reads all
//! of it: the store is for some hundreds of registers, and a database for more.

mod call;
mod directory;
mod files;
mod record;
mod registers;
mod settings;
mod synced_states;
mod watcher;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::call::{Call, call};
use self::directory::{Directory, Place};
use self::settings::Settings;
use self::synced_states::SyncedStates;
use self::watcher::Watcher;
use self::worker::{Change, Look, Worker};
use super::hub::Hub;
use super::{
    BoxFuture, Clock, Features, Key, Page, Reading, Selector, Store, Version, Watch, Write,
    Written, refuse_oversized,
};
use crate::drive;
use crate::error::{StoreError, about};

/// How long opening may take: a little longer than a lock is waited for.
const OPEN_WITHIN: Duration = Duration::from_secs(8);

/// Opens the directory that a URL names. If `make`, what is missing of it is made;
/// else calls fail as unavailable until it is there.
///
/// # Errors
/// [`StoreError::Broken`] if the URL is wrong or the directory cannot be used as it is,
/// [`StoreError::Unavailable`] if it is locked, its disk full, or does not answer.
pub(super) async fn open(url: &str, make: bool) -> Result<FileStore, StoreError> {
    let settings = Settings::parse(url)?;
    let path = settings.path.display().to_string();
    // Not on the caller's executor, which need not be tokio's either.
    let opening = drive::background().spawn_blocking(move || FileStore::open(settings, make));
    let opening = async { tokio::time::timeout(OPEN_WITHIN, opening).await };
    let opened = drive::background().spawn(opening).await;
    match opened.map_err(StoreError::unavailable)? {
        Ok(opened) => opened.map_err(StoreError::unavailable)?,
        Err(_) => Err(StoreError::unavailable(format!(
            "{path} could not be opened within {}: the disk is slow or hangs",
            about(OPEN_WITHIN)
        ))),
    }
}

/// Registers in a directory. Clones are the same store.
#[derive(Clone, Debug)]
pub(super) struct FileStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    place: Arc<Place>,
    worker: Worker,
    watcher: Watcher,
    hub: Arc<Hub>,
}

impl FileStore {
    fn open(settings: Settings, make: bool) -> Result<Self, StoreError> {
        let place = Place::new(settings);
        let writer = if make {
            Directory::open_or_make(&place)?
        } else {
            Directory::new(&place)
        };
        let (settled, hub) = (Arc::<SyncedStates>::default(), Arc::<Hub>::default());
        let worker = Worker::start(&place, writer, &settled, &hub)?;
        let watcher = Watcher::start(&place, settled, Arc::clone(&hub))?;
        Ok(Self {
            shared: Arc::new(Shared {
                place,
                worker,
                watcher,
                hub,
            }),
        })
    }

    async fn change<T>(
        &self,
        within: Duration,
        change: impl FnOnce(Call<T>) -> Change,
    ) -> Result<T, StoreError> {
        let (call, pending) = call(within);
        self.shared.worker.change(change(call))?;
        pending.answer(&self.to_string(), StoreError::unknown).await
    }

    async fn look<T>(
        &self,
        within: Duration,
        look: impl FnOnce(Call<T>) -> Look,
    ) -> Result<T, StoreError> {
        let (call, pending) = call(within);
        self.shared.worker.look(look(call))?;
        let place = self.to_string();
        pending.answer(&place, StoreError::unavailable).await
    }
}

impl fmt::Display for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file://{}", self.shared.place.path().display())
    }
}

impl Store for FileStore {
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
        Box::pin(self.look(within, |call| Look::Read(key, call)))
    }

    fn compare_and_swap(
        &self,
        write: Write,
        within: Duration,
    ) -> BoxFuture<'_, Result<Written, StoreError>> {
        Box::pin(async move {
            refuse_oversized(&write)?;
            self.change(within, |call| Change::Write(write, call)).await
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let (key, expected) = (key.clone(), expected.clone());
        Box::pin(self.change(within, |call| Change::Delete(key, expected, call)))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        Box::pin(self.look(within, |call| Look::List(prefix, after, call)))
    }

    fn watch(&self, selector: Selector) -> Watch {
        let watch = self.shared.hub.subscribe(selector);
        self.shared.watcher.wake();
        watch
    }
}
