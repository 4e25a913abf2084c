//! What a thread that watches files waits for: a signal of its own process, or a
//! notice of the kernel (inotify) that another process has changed something.
//!
//! A notice is a hint. It may be lost, and the kernel gives none of what another
//! machine writes; who watches looks by itself now and then, too.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;

use crate::error::StoreError;

/// What is to be noticed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Events {
    /// Somebody writes into the file.
    #[cfg(feature = "sqlite")]
    Writes,
    /// A file of the directory gets a new name or is removed, or the directory
    /// gets another name: then another one may be in its place.
    #[cfg(feature = "file")]
    Names,
}

/// Notices of the kernel.
#[derive(Debug)]
pub(super) struct Notices {
    descriptor: OwnedFd,
}

impl Notices {
    /// Of what happens to this file or in this directory; `None` where the system
    /// has none to give.
    pub(super) fn of(path: &Path, events: Events) -> Option<Self> {
        let events = match events {
            #[cfg(feature = "sqlite")]
            Events::Writes => inotify::WatchFlags::MODIFY,
            #[cfg(feature = "file")]
            Events::Names => {
                inotify::WatchFlags::MOVED_TO
                    | inotify::WatchFlags::DELETE
                    | inotify::WatchFlags::MOVE_SELF
            }
        };
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let descriptor = inotify::init(flags).ok()?;
        inotify::add_watch(&descriptor, path, events).ok()?;
        Some(Self { descriptor })
    }
}

/// How a process wakes or ends its watching thread.
#[derive(Debug)]
pub(super) struct Signal {
    descriptor: OwnedFd,
    ended: AtomicBool,
}

/// Why the thread woke up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WakeUp {
    /// A watch began, or was dropped.
    Signal,
    /// Another process wrote, or is about to.
    Notice,
    /// Time has passed.
    Time,
}

impl Signal {
    pub(super) fn new() -> Result<Self, StoreError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).map_err(StoreError::unavailable)?;
        Ok(Self {
            descriptor,
            ended: AtomicBool::new(false),
        })
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        // A counter that is full has signalled already.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Tells the thread to end.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the thread is to end.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits for a signal or a notice, and no longer than this.
    pub(super) fn wait(&self, notices: Option<&Notices>, wait: Duration) -> WakeUp {
        let mut polled = vec![PollFd::new(&self.descriptor, PollFlags::IN)];
        if let Some(notices) = notices {
            polled.push(PollFd::from_borrowed_fd(
                notices.descriptor.as_fd(),
                PollFlags::IN,
            ));
        }
        let wait = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        // An interrupted wait is a short one.
        let _ = poll(&mut polled, Some(&wait));
        let ready = |at: usize| polled.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (signalled, noticed) = (ready(0), ready(1));
        let mut buffer = [0; 4096];
        if let (true, Some(notices)) = (noticed, notices) {
            while rustix::io::read(&notices.descriptor, &mut buffer).is_ok_and(|read| read > 0) {}
        }
        if signalled {
            let _ = rustix::io::read(&self.descriptor, &mut buffer);
            return WakeUp::Signal;
        }
        if noticed {
            WakeUp::Notice
        } else {
            WakeUp::Time
        }
    }
}
