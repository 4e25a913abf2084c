//! The supervisor's handle to its guardian.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open, set_child_subreaper};
use tenure::clock;
use tenure_core::time::Instant;
use tokio::sync::mpsc;

use super::end::{self, Left};
use super::timer::Timer;
use super::wire::{self, Deadlines, Order, Report};

/// Reports that wait to be heard; there are five kinds and each comes once.
const EVENTS_MAX: usize = 8;
/// How long after `kill_at` a guardian that says nothing is given up.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often to look again for survivors.
const SWEEP: Duration = Duration::from_millis(5);

/// What became of a guardian and its command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// The command runs.
    Started(i32),
    /// The command was not started, and why.
    Refused(String),
    /// The command has ended by itself or was ended: its exit code.
    Exited(i32),
    /// Nothing of it runs any more; the handle is used up.
    Gone,
    /// The guardian itself has died or was given up. Nothing of it or of the
    /// command runs any more; the handle is used up.
    Lost,
}

/// A guardian and the command it keeps, for one reign at most. Dropping it
/// ends both.
#[derive(Debug)]
pub(crate) struct Guardian {
    line: Arc<Line>,
    events: mpsc::Receiver<Event>,
    /// When everything must have ended: by the grant, and as we asked.
    kill_at: Option<Instant>,
    stop_by: Option<Instant>,
}

/// What the handle and its listening thread share.
#[derive(Debug)]
struct Line {
    control: OwnedFd,
    timer: Timer,
}

/// The thread that listens to the guardian and outlives its deadlines. A
/// thread, so that a runtime that is starved does not keep it from ending a
/// guardian that has stopped.
struct Listener {
    line: Arc<Line>,
    process: Child,
    death: OwnedFd,
    /// The command's group, once it runs.
    group: Option<Pid>,
    events: mpsc::Sender<Event>,
}

/// Makes this process adopt what a guardian that was killed leaves behind.
pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

impl Guardian {
    /// Starts a guardian for `command`, which waits for the go-ahead: when
    /// the office is won nothing has to be loaded any more.
    pub(crate) fn stand_by(command: &[OsString]) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let process = Command::new("/proc/self/exe")
            .arg(super::GUARDIAN)
            .args(command)
            .stdin(Stdio::from(theirs))
            .spawn()?;
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("no process id"))?;
        let death = pidfd_open(pid, PidfdFlags::empty())?;
        let line = Arc::new(Line {
            control: ours,
            timer: Timer::new()?,
        });
        let (send, events) = mpsc::channel(EVENTS_MAX);
        let listener = Listener {
            line: Arc::clone(&line),
            process,
            death,
            group: None,
            events: send,
        };
        std::thread::Builder::new()
            .name("tenure-guard".into())
            .spawn(move || listener.listen())?;
        Ok(Self {
            line,
            events,
            kill_at: None,
            stop_by: None,
        })
    }

    /// Gives the go-ahead, with our standard input. The guardian refuses it
    /// if `drain_at` has passed.
    pub(crate) fn start(
        &mut self,
        deadlines: Deadlines,
        env: Vec<(String, String)>,
    ) -> io::Result<()> {
        self.expect_end_by(deadlines.kill_at)?;
        let stdin = io::stdin();
        self.order(&Order::Start { deadlines, env }, Some(stdin.as_fd()))
    }

    /// Moves the deadlines later; earlier ones are ignored.
    pub(crate) fn extend(&mut self, deadlines: Deadlines) -> io::Result<()> {
        self.expect_end_by(deadlines.kill_at)?;
        self.order(&Order::Extend(deadlines), None)
    }

    /// TERM now, KILL after `grace` or at `kill_at`, whichever comes first.
    pub(crate) fn stop(&mut self, grace: Duration) -> io::Result<()> {
        self.expect_end_within(grace)?;
        self.order(&Order::Stop(grace), None)
    }

    /// KILL now.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.expect_end_within(Duration::ZERO)?;
        self.order(&Order::Kill, None)
    }

    /// Sends a signal to the command's group.
    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        self.order(&Order::Signal(signal), None)
    }

    fn order(&self, order: &Order, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        wire::send_order(&self.line.control, order, descriptor)
    }

    /// A guardian that is stopped does not keep its deadlines; we do.
    fn expect_end_by(&mut self, kill_at: Instant) -> io::Result<()> {
        self.kill_at = self.kill_at.max(Some(kill_at));
        self.set_timer()
    }

    fn expect_end_within(&mut self, grace: Duration) -> io::Result<()> {
        let by = clock::boot().after(grace);
        self.stop_by = Some(self.stop_by.map_or(by, |known| known.min(by)));
        self.set_timer()
    }

    fn set_timer(&self) -> io::Result<()> {
        let by = [self.kill_at, self.stop_by].into_iter().flatten().min();
        self.line.timer.set(by.map(|by| by.after(PATIENCE)))
    }

    /// What happens next. Cancelling this loses nothing.
    pub(crate) async fn event(&mut self) -> Event {
        // The thread ends only after it has said how.
        self.events.recv().await.unwrap_or(Event::Lost)
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Both ends hear of it, and end what is left.
        let _ = shutdown(&self.line.control, Shutdown::Both);
    }
}

impl Listener {
    fn listen(mut self) {
        let last = loop {
            match self.wait() {
                Woken::Spoken => match wire::receive_report(&self.line.control) {
                    Ok(Some(Report::Started(pid))) => {
                        self.group = Pid::from_raw(pid);
                        self.tell(Event::Started(pid));
                    }
                    Ok(Some(Report::Refused(why))) => self.tell(Event::Refused(why)),
                    Ok(Some(Report::Exited(code))) => self.tell(Event::Exited(code)),
                    Ok(Some(Report::Gone)) => break Event::Gone,
                    // The end of the socket, or nonsense.
                    Ok(None) | Err(_) => break Event::Lost,
                },
                Woken::Died | Woken::Overdue => break Event::Lost,
            }
        };
        if last == Event::Lost {
            self.end();
        }
        // After saying that all is gone it exits by itself.
        let _ = self.process.wait();
        self.tell(last);
    }

    fn tell(&self, event: Event) {
        // Nobody listens any more if the handle was dropped.
        let _ = self.events.blocking_send(event);
    }

    fn wait(&self) -> Woken {
        let mut polled = [
            PollFd::new(&self.line.control, PollFlags::IN),
            PollFd::new(&self.death, PollFlags::IN),
            PollFd::new(&self.line.timer, PollFlags::IN),
        ];
        while let Err(rustix::io::Errno::INTR) = poll(&mut polled, None) {}
        let [spoken, died, _] = polled.map(|fd| !fd.revents().is_empty());
        // What it said before it died comes first.
        match (spoken, died) {
            (true, _) => Woken::Spoken,
            (false, true) => Woken::Died,
            (false, false) => Woken::Overdue,
        }
    }

    /// Ends the guardian, and everything that comes to us when it dies.
    fn end(&mut self) {
        // Ours to reap, so the number is still its.
        let _ = self.process.kill();
        let _ = self.process.wait();
        while end::reap(|_, _| {}) == Left::Some {
            end::kill_all(self.group);
            std::thread::sleep(SWEEP);
        }
    }
}

enum Woken {
    Spoken,
    Died,
    Overdue,
}
