//! Noticing what other processes write, without asking all the time.
//!
//! The kernel tells (inotify) when somebody writes the write-ahead log. That
//! is a moment *before* the commit becomes visible: the log is still being
//! synced to disk, and the index in shared memory, which makes it visible,
//! makes no noise. So after each notice we look at `PRAGMA data_version` on a
//! short ladder of pauses, and fetch what has changed as soon as it moves. A
//! slow look every quarter of a second covers a notice that was lost.
//!
//! Where there is no inotify we look every 20 ms instead.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;

use super::table;
use crate::error::StoreError;
use crate::store::Key;
use crate::store::hub::{Hub, Interest};

/// The pauses after a notice: 70 ms in all, for a sync that takes its time.
const LADDER_MS: [u64; 10] = [0, 1, 1, 2, 2, 4, 8, 16, 16, 20];
const SLOW_LOOK: Duration = Duration::from_millis(250);
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
    pub(super) fn start(path: &Path, hub: Arc<Hub>) -> Result<Self, StoreError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).map_err(StoreError::unavailable)?;
        let bell = Arc::new(Bell {
            descriptor,
            ended: AtomicBool::new(false),
        });
        let desk = Desk {
            connection: table::open_to_watch(path)?,
            notices: notices(path),
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

/// Notices of writes to the log; `None` where the system has none to give.
fn notices(path: &Path) -> Option<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let notices = inotify::init(flags).ok()?;
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    inotify::add_watch(&notices, PathBuf::from(log), inotify::WatchFlags::MODIFY).ok()?;
    Some(notices)
}

struct Desk {
    connection: Connection,
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
        let mut rung = 0;
        loop {
            let (wait, ladder) = match (&self.notices, LADDER_MS.get(rung)) {
                (Some(_), Some(pause)) => (Duration::from_millis(*pause), true),
                (Some(_), None) => (SLOW_LOOK, false),
                (None, _) => (LOOK_WITHOUT_INOTIFY, false),
            };
            let woken = self.wait(wait);
            if self.bell.ended.load(Ordering::Acquire) {
                return;
            }
            if self.hub.is_idle() && woken != Woken::Bell {
                rung = LADDER_MS.len();
                continue;
            }
            let moved = self.look(woken == Woken::Bell);
            rung = match woken {
                Woken::Notice if !moved => 0,
                _ if ladder => rung + 1,
                _ => LADDER_MS.len(),
            };
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

    /// Fetches what has changed, if anything may have; says whether it had.
    fn look(&mut self, anyway: bool) -> bool {
        let version = self
            .connection
            .query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0));
        let moved = version.as_ref().ok() != self.seen.as_ref();
        if !moved && !anyway {
            return false;
        }
        match version.and_then(|version| Ok((version, self.fetch()?))) {
            Ok((version, settled)) => {
                self.seen = settled.then_some(version);
                self.hub.up();
            }
            Err(error) => {
                self.seen = None;
                self.hub.down(&error.to_string());
            }
        }
        moved
    }

    /// One statement for all that is followed. Whether it is settled: if not,
    /// something was written here meanwhile, and another look is due.
    fn fetch(&self) -> rusqlite::Result<bool> {
        let interest = self.hub.interest();
        let mut settled = true;
        let mut absent = Vec::new();
        let mut statement = self.connection.prepare_cached(
            "SELECT version, value, stamp_boot, stamp_namespace, stamp_ns \
             FROM tenure_register WHERE key = ?1 AND version IS NOT ?2",
        )?;
        let reading = self.connection.unchecked_transaction()?;
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
                    settled &= self.hub.fetched(&interest, &followed.key, Some(register));
                }
                None => absent.push(followed),
            }
        }
        for followed in absent {
            // Unchanged, or gone.
            if (followed.version.is_some() || !followed.told)
                && table::read(&reading, &followed.key)?.is_none()
            {
                settled &= self.hub.fetched(&interest, &followed.key, None);
            }
        }
        Ok(self.fetch_prefixes(&interest)? && settled)
    }

    fn fetch_prefixes(&self, interest: &Interest) -> rusqlite::Result<bool> {
        let mut settled = true;
        for prefix in &interest.prefixes {
            let mut after: Option<Key> = None;
            loop {
                let page = table::list(&self.connection, prefix, after.as_ref())?;
                for (key, register) in page.registers {
                    settled &= self.hub.fetched(interest, &key, Some(register));
                }
                after = page.more_after;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(settled)
    }
}
