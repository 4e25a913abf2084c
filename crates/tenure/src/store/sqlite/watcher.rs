//! Noticing what other processes write, without asking all the time.
//!
//! The kernel tells (inotify) when somebody writes the file. That is a moment
//! *before* the commit becomes visible, but the writer holds the file's lock
//! from before it until then. So after each notice we look at `PRAGMA
//! data_version`, which waits for that lock, and fetch what has changed. A
//! slow look every quarter of a second covers a notice that was lost, a file
//! that was replaced, and one whose changes go to a write-ahead log, since an
//! older release has it open.
//!
//! Where there is no inotify we look every 20 ms instead.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;

use super::link::{self, BUSY_WAIT, Link, Place, Purpose};
use super::table;
use crate::clock;
use crate::error::StoreError;
use crate::store::Key;
use crate::store::hub::Hub;

const SLOW_LOOK: Duration = Duration::from_millis(250);
/// How soon to look again after a look that something overtook.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOK_WITHOUT_INOTIFY: Duration = Duration::from_millis(20);

/// A handle to the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Watcher {
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Bell {
    descriptor: OwnedFd,
    ended: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        // A counter that is full has been rung already.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }
}

impl Watcher {
    pub(super) fn start(place: &Arc<Place>, hub: Arc<Hub>) -> Result<Self, StoreError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).map_err(StoreError::unavailable)?;
        let bell = Arc::new(Bell {
            descriptor,
            ended: AtomicBool::new(false),
        });
        let desk = Desk {
            link: Link::new(place, Purpose::Read),
            opened: 0,
            notices: None,
            bell: Arc::clone(&bell),
            hub,
            seen: None,
        };
        std::thread::Builder::new()
            .name("tenure-sqlite-watch".into())
            .spawn(move || desk.serve())
            .map_err(StoreError::unavailable)?;
        Ok(Self { bell })
    }

    /// The interest has changed: fetch what is new in it.
    pub(super) fn wake(&self) {
        self.bell.ring();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.bell.ended.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// Notices of writes to the file; `None` where the system has none to give.
fn notices(path: &Path) -> Option<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let notices = inotify::init(flags).ok()?;
    inotify::add_watch(&notices, path, inotify::WatchFlags::MODIFY).ok()?;
    Some(notices)
}

struct Desk {
    link: Link,
    /// Which connection of the link the notices are of.
    opened: u64,
    notices: Option<OwnedFd>,
    bell: Arc<Bell>,
    hub: Arc<Hub>,
    /// The `data_version` when everything followed was last fetched.
    seen: Option<i64>,
}

/// Why the thread woke up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// Somebody began or ceased to follow.
    Bell,
    /// Somebody wrote, or is about to.
    Notice,
    /// Time has passed.
    Time,
}

impl Desk {
    fn serve(mut self) {
        let mut settled = true;
        loop {
            let woken = self.wait(match &self.notices {
                _ if !settled => LOOK_AGAIN,
                Some(_) => SLOW_LOOK,
                // Nothing to look at, or nobody to tell.
                None if self.link.is_closed() => SLOW_LOOK,
                None => LOOK_WITHOUT_INOTIFY,
            });
            if self.bell.ended.load(Ordering::Acquire) {
                return;
            }
            if self.hub.is_idle() && woken != Woken::Bell {
                settled = true;
                continue;
            }
            settled = self.look(woken == Woken::Bell);
        }
    }

    fn wait(&self, wait: Duration) -> Woken {
        let bell = PollFd::new(&self.bell.descriptor, PollFlags::IN);
        let mut polled = vec![bell];
        if let Some(notices) = &self.notices {
            polled.push(PollFd::from_borrowed_fd(notices.as_fd(), PollFlags::IN));
        }
        let wait = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        // An interrupted wait is a short one.
        let _ = poll(&mut polled, Some(&wait));
        let ready = |at: usize| polled.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (rung, noticed) = (ready(0), ready(1));
        let mut buffer = [0; 4096];
        if let (true, Some(notices)) = (noticed, &self.notices) {
            while rustix::io::read(notices, &mut buffer).is_ok_and(|read| read > 0) {}
        }
        if rung {
            let _ = rustix::io::read(&self.bell.descriptor, &mut buffer);
            return Woken::Bell;
        }
        if noticed { Woken::Notice } else { Woken::Time }
    }

    /// Fetches what has changed, if anything may have. Whether it is settled:
    /// if not, something was written here meanwhile, and another look is due.
    fn look(&mut self, anyway: bool) -> bool {
        link::wait_for_locks(clock::boot().after(BUSY_WAIT));
        match self.fetch(anyway) {
            Ok(None) => true,
            Ok(Some((version, settled))) => {
                self.seen = settled.then_some(version);
                self.hub.up();
                self.link.rest();
                settled
            }
            Err(error) => {
                self.seen = None;
                self.hub.down(&error.to_string());
                true
            }
        }
    }

    /// What was fetched, if there may be something: as of which
    /// `data_version`, and whether it is settled.
    fn fetch(&mut self, anyway: bool) -> Result<Option<(i64, bool)>, StoreError> {
        self.link.connection()?;
        if self.link.opened() != self.opened {
            self.opened = self.link.opened();
            // Each connection counts from a number of its own.
            self.seen = None;
            self.notices = notices(self.link.path());
        }
        let connection = self.link.connection()?;
        let version = connection
            .query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0))
            .map_err(StoreError::unavailable)?;
        if self.seen == Some(version) && !anyway {
            return Ok(None);
        }
        let settled = fetch(&self.hub, connection).map_err(StoreError::unavailable)?;
        Ok(Some((version, settled)))
    }
}

/// One statement for all that is followed. Whether it is settled: if not,
/// something was written here meanwhile, and another look is due.
fn fetch(hub: &Hub, connection: &Connection) -> rusqlite::Result<bool> {
    let interest = hub.interest();
    let now = clock::shared();
    let mut settled = true;
    let mut absent = Vec::new();
    let mut statement = connection.prepare_cached(
        "SELECT version, value, stamp_boot, stamp_namespace, stamp_ns \
         FROM tenure_register WHERE key = ?1 AND version IS NOT ?2",
    )?;
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
        if (followed.version.is_some() || !followed.told)
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
