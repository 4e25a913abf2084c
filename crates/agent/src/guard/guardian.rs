//! The guardian: the parent of CMD, which ends it at its two lease times.
//!
//! It is a process of its own so that the supervisor's death, or a stop, or a
//! runtime that hangs, cannot keep CMD alive. It is small so that there is little
//! in it that could fail: one thread, one loop, no configuration, no network.
//! Each turn of the loop reads the supervisor's orders, reaps children that
//! ended, reads the boot-time clock, and sleeps until one of these has news.
//!
//! ```text
//!   Waiting ─Hello─► StandingBy ─Start─► Running ─drain_at, Stop─► Draining
//!      │                 │                  │                         │
//!      └── Kill, end of the channel, CMD has ended, kill_at ──────────┴─► Ending
//! ```
//!
//! Why it is safe:
//! * Nothing is started at or after `drain_at`, and the clock is read here, not
//!   where the order was given.
//! * Orders are read before the clock. So a renewal that was sent in time counts
//!   even if this process was not running when it came. An order holds times, not
//!   spans: one that grew old in the socket does no harm.
//! * `drain_at` and `kill_at` only ever move later, and not at all once the
//!   leader drains: the supervisor has told others that the leadership ends.
//! * The end of the channel, a message that does not parse, and CMD's own end all
//!   lead to Ending, which ends only when the kernel says that no child is left
//!   (ECHILD).
//! * A supervisor that is killed wakes a guardian that is stopped (the
//!   parent-death signal CONT).
//! * Signals meant for a whole cgroup (a service manager's TERM) are caught and
//!   ignored: the supervisor gets them too and decides.
//!
//! Left out: the guardian restarts nothing and serves one CMD at most.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal, setsid, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use tenure::clock;
use tenure::core::time::Instant;

use super::cgroup::Cgroup;
use super::channel::Channel;
use super::exit_status::{ExitStatus, StartError};
use super::launcher::{LAUNCHER, SELF};
use super::messages::{GuardianOrder, GuardianReport, StartOrder};
use super::poll::{self, Alarm};
use super::tree;

/// The hidden subcommand that makes this process a guardian.
pub(super) const GUARDIAN: &str = "__guardian";

/// How long to wait between rounds of killing that had no effect.
const RETRY: Duration = Duration::from_millis(5);

/// How many of the dead are reaped before orders and the clock are looked at
/// again: a millisecond's worth.
const REAPED_AT_ONCE: usize = 256;

/// What is left to reap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unfinished {
    /// No child: everything has ended.
    Nothing,
    /// Children that have not ended.
    Children,
    /// Perhaps children that have ended.
    Unreaped,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GuardPhase {
    /// For the supervisor's first message.
    Waiting,
    /// The launcher is there; the go-ahead is not.
    StandingBy,
    /// The go-ahead was given.
    Running,
    /// CMD has been asked to end.
    Draining,
    /// Everything is being killed.
    Ending,
}

struct Guardian {
    supervisor: Channel,
    /// Until it has become CMD, or failed to.
    launcher: Option<Channel>,
    /// The process that is, or will become, CMD; leads a group of that number.
    cmd: Option<Pid>,
    stdin: Option<OwnedFd>,
    cgroup: Option<Cgroup>,
    phase: GuardPhase,
    /// The leader drains: its times are final.
    final_times: bool,
    drain_at: Instant,
    kill_at: Instant,
    /// The end of a requested stop's grace.
    stop_by: Instant,
    /// The launcher was told to go on.
    launched: bool,
    /// The launcher has become CMD, and the supervisor was told.
    started: bool,
    /// CMD was not started, and the supervisor was told.
    refused: bool,
    fault: bool,
    /// Nothing was alive when everything was killed last.
    none_alive: bool,
}

/// Guards until nothing is left.
pub(super) fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // The supervisor sees the exit. This is for a person who runs the
            // hidden subcommand.
            use std::io::Write as _;
            let _ = writeln!(io::stderr(), "tenure: guardian: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> io::Result<u8> {
    let (children, _) = poll::child_signals()?;
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2] {
        // Caught, not ignored: what is ignored would be so in CMD too.
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    // Fails only for the leader of a group, whom no terminal signals reach
    // through the supervisor's group either.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    // If this process is stopped when the supervisor ends, the kernel wakes it,
    // and it sees the end of the channel. Not KILL: what CMD has started is
    // ended here.
    set_parent_process_death_signal(Some(Signal::CONT))?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;

    let mut alarm = Alarm::new()?;
    let mut guardian = Guardian::new(Channel::new(UnixStream::from(socket))?);
    loop {
        poll::drain(&children);
        guardian.read_supervisor();
        guardian.read_launcher();
        let unfinished = guardian.reap();
        guardian.check_deadlines(clock::boot());
        if guardian.phase == GuardPhase::Ending {
            if unfinished == Unfinished::Nothing {
                return Ok(guardian.finish());
            }
            guardian.kill();
        }
        if unfinished != Unfinished::Unreaped {
            guardian.sleep(&mut alarm, &children)?;
        }
    }
}

impl Guardian {
    fn new(supervisor: Channel) -> Self {
        Self {
            supervisor,
            launcher: None,
            cmd: None,
            stdin: None,
            cgroup: Cgroup::make(tree::me()),
            phase: GuardPhase::Waiting,
            final_times: false,
            drain_at: Instant::MAX,
            kill_at: Instant::MAX,
            stop_by: Instant::MAX,
            launched: false,
            started: false,
            refused: false,
            fault: false,
            none_alive: false,
        }
    }

    fn send_report(&mut self, report: GuardianReport) {
        if self.supervisor.send(&report).is_err() {
            self.phase = GuardPhase::Ending;
        }
    }

    fn read_supervisor(&mut self) {
        if self.phase == GuardPhase::Ending {
            let _ = self.supervisor.flush();
            return;
        }
        let result = self.follow_orders();
        // A supervisor that is gone, or sends nonsense, does not lead any more.
        if !matches!(result, Ok(true)) {
            self.fault |= result.is_err();
            self.phase = GuardPhase::Ending;
        }
    }

    fn follow_orders(&mut self) -> io::Result<bool> {
        self.supervisor.flush()?;
        let open = self.supervisor.fill()?;
        while open && let Some(order) = self.supervisor.next()? {
            match order {
                GuardianOrder::Hello => self.start_launcher()?,
                GuardianOrder::Start(start) => self.start(&start)?,
                GuardianOrder::Extend { drain_at, kill_at } => self.extend(drain_at, kill_at),
                GuardianOrder::Stop { stop_by } => self.stop(stop_by),
                GuardianOrder::Kill => self.phase = GuardPhase::Ending,
                GuardianOrder::Signal(number) => self.forward(number),
            }
        }
        Ok(open)
    }

    /// Starts the launcher: all that can be done before the go-ahead.
    fn start_launcher(&mut self) -> io::Result<()> {
        if self.phase != GuardPhase::Waiting {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.stdin = self.supervisor.passed();
        let (ours, theirs) = UnixStream::pair()?;
        let launcher = Command::new(SELF)
            .args([LAUNCHER, &tree::me().to_string()])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .spawn();
        self.phase = GuardPhase::StandingBy;
        match launcher {
            Ok(child) => {
                self.cmd = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                self.launcher = Some(Channel::new(ours)?);
            }
            Err(error) => self.refuse(StartError::System(error.raw_os_error().unwrap_or(0))),
        }
        if let (Some(cgroup), Some(cmd)) = (&self.cgroup, self.cmd) {
            cgroup.add(cmd.as_raw_nonzero().get());
        }
        Ok(())
    }

    fn start(&mut self, start: &StartOrder) -> io::Result<()> {
        if self.phase != GuardPhase::StandingBy {
            // Stopped or refused before it was started, or started twice. The
            // latter would be a fault; the former is a harmless race.
            return match self.phase {
                GuardPhase::Ending => Ok(()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
        self.kill_at = start.kill_at;
        self.drain_at = start.drain_at.min(start.kill_at);
        if clock::boot() >= self.drain_at {
            self.refuse(StartError::Late);
            return Ok(());
        }
        let (Some(launcher), Some(stdin)) = (&mut self.launcher, self.stdin.take()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        // A launcher that has died is noticed when it is reaped.
        let _ = launcher.send_with(&GuardianOrder::Start(start.clone()), stdin.as_fd());
        self.launched = true;
        self.phase = GuardPhase::Running;
        Ok(())
    }

    fn extend(&mut self, drain_at: Instant, kill_at: Instant) {
        let held = matches!(self.phase, GuardPhase::Running | GuardPhase::Draining);
        if held && !self.final_times {
            self.kill_at = self.kill_at.max(kill_at);
            self.drain_at = self.drain_at.max(drain_at).min(self.kill_at);
            self.confirm();
        }
    }

    /// Says by which time CMD is held. Not before CMD runs, and not once it
    /// has been told to end: the supervisor's next renewal waits for this
    /// word, and a leadership is renewed for a CMD that runs.
    fn confirm(&mut self) {
        if self.started && self.phase == GuardPhase::Running && !self.final_times {
            let kill_at = self.kill_at;
            self.send_report(GuardianReport::Holds { kill_at });
        }
    }

    fn stop(&mut self, stop_by: Instant) {
        match self.phase {
            GuardPhase::Waiting | GuardPhase::StandingBy => self.phase = GuardPhase::Ending,
            GuardPhase::Running | GuardPhase::Draining => {
                self.stop_by = self.stop_by.min(stop_by);
                if self.phase == GuardPhase::Running {
                    self.drain();
                }
            }
            GuardPhase::Ending => {}
        }
    }

    fn forward(&mut self, number: i32) {
        let running = matches!(self.phase, GuardPhase::Running | GuardPhase::Draining);
        if let (true, Some(signal)) = (running, Signal::from_named_raw(number)) {
            self.signal(signal);
        }
    }

    /// Signals CMD's group, which is CMD's to name until CMD is reaped.
    fn signal(&self, signal: Signal) {
        if let Some(cmd) = self.cmd {
            let _ = kill_process_group(cmd, signal);
        }
    }

    fn drain(&mut self) {
        self.phase = GuardPhase::Draining;
        self.signal(Signal::TERM);
        // A stopped CMD can only hear it when it goes on.
        self.signal(Signal::CONT);
    }

    fn refuse(&mut self, why: StartError) {
        self.refused = true;
        self.send_report(GuardianReport::Refused(why));
        self.phase = GuardPhase::Ending;
    }

    fn check_deadlines(&mut self, now: Instant) {
        if !matches!(self.phase, GuardPhase::Running | GuardPhase::Draining) {
            return;
        }
        self.final_times |= now >= self.drain_at;
        if now >= self.kill_at.min(self.stop_by) {
            self.phase = GuardPhase::Ending;
        } else if self.phase == GuardPhase::Running && now >= self.drain_at {
            self.drain();
        }
    }

    /// What the launcher says. The end of its channel without a word means that
    /// it is CMD now (or was killed on the way, which its status will tell).
    fn read_launcher(&mut self) {
        let Some(mut launcher) = self.launcher.take() else {
            return;
        };
        let open = launcher.flush().is_ok() & launcher.fill().unwrap_or(false);
        while let Ok(Some(report)) = launcher.next() {
            match report {
                GuardianReport::Ready => self.send_report(GuardianReport::Ready),
                GuardianReport::Refused(why) => return self.refuse(why),
                GuardianReport::Started(_)
                | GuardianReport::Holds { .. }
                | GuardianReport::Exited { .. }
                | GuardianReport::Gone => {}
            }
        }
        if open {
            self.launcher = Some(launcher);
        } else if let (true, Some(cmd)) = (self.launched, self.cmd) {
            self.started = true;
            self.send_report(GuardianReport::Started(cmd.as_raw_nonzero().get()));
            self.confirm();
        }
    }

    /// Reaps what has ended, but not so much that orders or the clock would
    /// wait for it: after a stop there may be thousands.
    fn reap(&mut self) -> Unfinished {
        let most = if self.none_alive {
            usize::MAX
        } else {
            REAPED_AT_ONCE
        };
        for _ in 0..most {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.cmd => self.cmd_ended(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Unfinished::Children,
                Err(_) => return Unfinished::Nothing,
            }
        }
        Unfinished::Unreaped
    }

    fn cmd_ended(&mut self, status: WaitStatus) {
        // Its last reports are in the socket already, and say whether it was
        // CMD that ended or a launcher.
        self.read_launcher();
        self.cmd = None;
        if self.refused {
            // Said already.
        } else if let (true, Some(status)) = (self.started, ExitStatus::of(status)) {
            // Only this process knows at drain_at who was first: CMD, which
            // ended, or the TERM. The supervisor may have stood still.
            let asked = matches!(self.phase, GuardPhase::Draining | GuardPhase::Ending);
            self.send_report(GuardianReport::Exited { status, asked });
        } else if self.phase != GuardPhase::Ending {
            self.refuse(StartError::System(0));
        }
        // What CMD leaves behind is not CMD: it ends with it.
        self.phase = GuardPhase::Ending;
    }

    fn kill(&mut self) {
        tree::raise_priority();
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        self.signal(Signal::KILL);
        self.none_alive = !tree::kill_below(&BTreeSet::new()).alive();
    }

    fn sleep(&mut self, alarm: &mut Alarm, children: &UnixStream) -> io::Result<()> {
        let ending = self.phase == GuardPhase::Ending;
        alarm.set(match self.phase {
            GuardPhase::Running => Some(self.drain_at.min(self.stop_by)),
            GuardPhase::Draining => Some(self.kill_at.min(self.stop_by)),
            GuardPhase::Waiting | GuardPhase::StandingBy | GuardPhase::Ending => None,
        })?;
        let mut fds = vec![(children.as_fd(), PollFlags::IN)];
        if !ending {
            fds.push(self.supervisor.interest());
            fds.extend(self.launcher.as_ref().map(Channel::interest));
        }
        poll::wait(alarm, &fds, ending.then_some(RETRY))
    }

    /// Sends the last report. The supervisor may be gone.
    fn finish(mut self) -> u8 {
        self.cgroup = None;
        self.send_report(GuardianReport::Gone);
        u8::from(self.fault)
    }
}
