//! Waiting for several things at once, on the boot-time clock.
//!
//! poll(2) has a timeout of its own, but counts it on a clock that stands
//! still while the machine is suspended. A lease does not stand still, so
//! every deadline here is a timerfd on `CLOCK_BOOTTIME`: after a suspend that
//! outlasted it, it fires at the first step.

use std::io;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tenure::core::time::Instant;

/// A deadline one can poll.
pub(super) struct Alarm {
    timer: OwnedFd,
    at: Option<Instant>,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self { timer, at: None })
    }

    /// Rings at `at`, at once if that is past; never if `None`.
    pub(super) fn set(&mut self, at: Option<Instant>) -> io::Result<()> {
        if self.at == at {
            return Ok(());
        }
        let zero = Timespec::default();
        let value = at.map_or(zero, |at| {
            // Zero would mean "never".
            timespec(Duration::from_nanos(at.as_nanos().max(1)))
        });
        let spec = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        self.at = at;
        Ok(())
    }

    /// Takes note that it rang, so that the next wait does wait.
    fn clear(&mut self) {
        let mut count = [0; 8];
        if rustix::io::read(&self.timer, &mut count).is_ok() {
            self.at = None;
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// A stream that becomes readable with every SIGCHLD.
pub(super) fn child_signals() -> io::Result<(UnixStream, signal_hook::SigId)> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    let id = signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, write)?;
    Ok((read, id))
}

/// Empties a stream whose bytes mean nothing but "look again".
pub(super) fn drain(mut stream: &UnixStream) {
    let mut bytes = [0; 64];
    while matches!(stream.read(&mut bytes), Ok(n) if n > 0) {}
}

/// Sleeps until the alarm rings, one of `others` is ready for what is wanted
/// of it, or `timeout` (for retries only, never for deadlines) has passed.
pub(super) fn wait(
    alarm: &mut Alarm,
    others: &[(BorrowedFd<'_>, PollFlags)],
    timeout: Option<Duration>,
) -> io::Result<()> {
    let mut fds = Vec::with_capacity(others.len() + 1);
    fds.push(PollFd::new(&alarm.timer, PollFlags::IN));
    for (fd, flags) in others {
        fds.push(PollFd::from_borrowed_fd(*fd, *flags));
    }
    match rustix::event::poll(&mut fds, timeout.map(timespec).as_ref()) {
        // A signal is as good a reason to look again as any.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let rang = !fds[0].revents().is_empty();
    drop(fds);
    if rang {
        alarm.clear();
    }
    Ok(())
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    }
}
