//! Noticing what other processes write, without asking all the time.
//!
//! The kernel tells (inotify) when a process writes the file. That is a moment
//! *before* the commit becomes visible, but the writer holds the file's lock
//! from before it until then. So after each notice we look at `PRAGMA
//! data_version`, which waits for that lock, and fetch what has changed. A
//! slow look every quarter of a second covers a notice that was lost, a file
//! that was replaced, and one whose changes go to a write-ahead log, since an
//! older release has it open.
//!
//! Where there is no inotify we look every 20 ms instead.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::file_connection::{self, BUSY_WAIT, DatabaseFile, FileConnection, Purpose};
use super::table;
use crate::clock;
use crate::error::StoreError;
use crate::store::Key;
use crate::store::file_notices::{Events, Notices, Signal, WakeUp};
use crate::store::hub::Hub;

const POLL_SLOWLY: Duration = Duration::from_millis(250);
/// How soon to look again after a look that something overtook.
const POLL_AGAIN: Duration = Duration::from_millis(1);
const POLL_WITHOUT_INOTIFY: Duration = Duration::from_millis(20);

/// A handle to the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Watcher {
    wake_signal: Arc<Signal>,
}

impl Watcher {
    pub(super) fn start(file: &Arc<DatabaseFile>, hub: Arc<Hub>) -> Result<Self, StoreError> {
        let wake_signal = Arc::new(Signal::new()?);
        let thread = SqliteWatchThread {
            file_connection: FileConnection::new(file, Purpose::Read),
            times_opened: 0,
            notices: None,
            wake_signal: Arc::clone(&wake_signal),
            hub,
            seen: None,
        };
        std::thread::Builder::new()
            .name("tenure-sqlite-watch".into())
            .spawn(move || thread.serve())
            .map_err(StoreError::unavailable)?;
        Ok(Self { wake_signal })
    }

    /// The interest has changed: fetch what is new in it.
    pub(super) fn wake(&self) {
        self.wake_signal.wake();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.wake_signal.end();
    }
}

struct SqliteWatchThread {
    file_connection: FileConnection,
    /// Which connection of the link the notices are of.
    times_opened: u64,
    notices: Option<Notices>,
    wake_signal: Arc<Signal>,
    hub: Arc<Hub>,
    /// The `data_version` when everything watched was last fetched.
    seen: Option<i64>,
}

impl SqliteWatchThread {
    fn serve(mut self) {
        let mut settled = true;
        loop {
            let wait = match &self.notices {
                _ if !settled => POLL_AGAIN,
                Some(_) => POLL_SLOWLY,
                // Nothing to look at, or nobody to tell.
                None if self.file_connection.is_closed() => POLL_SLOWLY,
                None => POLL_WITHOUT_INOTIFY,
            };
            let wake_up = self.wake_signal.wait(self.notices.as_ref(), wait);
            if self.wake_signal.has_ended() {
                return;
            }
            if self.hub.is_idle() && wake_up != WakeUp::Signal {
                settled = true;
                continue;
            }
            settled = self.check(wake_up == WakeUp::Signal);
        }
    }

    /// Fetches what has changed, if anything may have. Whether it is settled:
    /// if not, something was written here meanwhile, and another look is due.
    fn check(&mut self, force: bool) -> bool {
        file_connection::set_lock_deadline(clock::boot().after(BUSY_WAIT));
        match self.fetch(force) {
            Ok(None) => true,
            Ok(Some((version, settled))) => {
                self.seen = settled.then_some(version);
                self.hub.mark_up();
                self.file_connection.close_if_wal();
                settled
            }
            Err(error) => {
                self.seen = None;
                self.hub.mark_down(&error.to_string());
                true
            }
        }
    }

    /// What was fetched, if there may be something: as of which
    /// `data_version`, and whether it is settled.
    fn fetch(&mut self, force: bool) -> Result<Option<(i64, bool)>, StoreError> {
        self.file_connection.current()?;
        if self.file_connection.times_opened() != self.times_opened {
            self.times_opened = self.file_connection.times_opened();
            // Each connection counts from a number of its own.
            self.seen = None;
            self.notices = Notices::of(self.file_connection.path(), Events::Writes);
        }
        let connection = self.file_connection.current()?;
        let version = connection
            .query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0))
            .map_err(StoreError::unavailable)?;
        if self.seen == Some(version) && !force {
            return Ok(None);
        }
        let settled = fetch(&self.hub, connection).map_err(StoreError::unavailable)?;
        Ok(Some((version, settled)))
    }
}

/// One statement for all that is watched. Whether it is settled: if not,
/// something was written here meanwhile, and another look is due.
fn fetch(hub: &Hub, connection: &Connection) -> rusqlite::Result<bool> {
    let interest = hub.interest();
    let now = clock::shared();
    let mut settled = true;
    let mut absent = Vec::new();
    let changed = format!("{} WHERE key = ?1 AND version IS NOT ?2", table::SELECT);
    let mut statement = connection.prepare_cached(&changed)?;
    let reading = connection.unchecked_transaction()?;
    for followed in &interest.keys {
        let known = followed
            .version
            .as_ref()
            .and_then(crate::store::Version::to_u64);
        let known = known.map(u64::cast_signed);
        let mut rows = statement.query(rusqlite::params![followed.key.as_str(), known])?;
        match rows.next()? {
            Some(row) => {
                let register = table::register(row)?;
                settled &= hub.fetched(&interest, &followed.key, Some(register));
            }
            None => absent.push(followed),
        }
    }
    for followed in absent {
        // Unchanged, or gone.
        if (followed.version.is_some() || !followed.reported)
            && table::read(&reading, &followed.key)?.is_none()
        {
            settled &= hub.fetched(&interest, &followed.key, None);
        }
    }
    for prefix in &interest.prefixes {
        let mut after: Option<Key> = None;
        loop {
            let page = table::list(connection, prefix, after.as_ref(), now)?;
            for (key, register) in page.registers {
                settled &= hub.fetched(&interest, &key, Some(register));
            }
            after = page.more_after;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(settled)
}
