//! A timer on the boot-time clock: it goes off on time even if the machine
//! has slept meanwhile, which the timers of the runtime do not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tenure_core::time::Instant;

/// Readable once its time has come.
#[derive(Debug)]
pub(super) struct Timer {
    descriptor: OwnedFd,
}

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            descriptor: timerfd_create(TimerfdClockId::Boottime, flags)?,
        })
    }

    /// Sets it to go off at `at`, once; never for `None`.
    pub(super) fn set(&self, at: Option<Instant>) -> io::Result<()> {
        // Zero would disarm it; the first nanosecond after boot is long past.
        let nanos = at.map_or(0, |at| at.as_nanos().max(1));
        let seconds = i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX);
        let value = Timespec {
            tv_sec: seconds,
            tv_nsec: (nanos % 1_000_000_000).cast_signed(),
        };
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let new = Itimerspec {
            it_interval: never,
            it_value: value,
        };
        timerfd_settime(&self.descriptor, TimerfdTimerFlags::ABSTIME, &new)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
