//! The watchdog: a thread of the supervisor that notices a guardian that fails.
//!
//! It passes orders on, turns reports into events, and knows the same `kill_at`
//! as the guardian. At that time it wakes a guardian that is stopped, whereupon
//! the guardian ends everything. [`SLACK`] later it takes the guardian for hung:
//! it KILLs what is below the guardian, and then the guardian itself. Then the
//! kernel KILLs CMD (the parent-death signal) and hands everything that CMD has
//! started to this process, which is a subreaper too and ends it. The same follows
//! when the guardian dies on its own.
//!
//! So a guardian that hangs delays the end by [`SLACK`] and some milliseconds, and
//! one that was stopped or killed by some milliseconds. That is why `tenure run`
//! refuses a margin between `kill_at` and the end of the lease below
//! [`MARGIN_MIN`].
//!
//! It is a thread with plain poll(2), not a task, so that an application or a
//! runtime that hangs cannot hold it up.
//!
//! Why nothing else is killed: this process may have other children. Those that
//! were there before the first guardian (a shell's background jobs before `exec
//! tenure run`) are spared, and so is every guardian that lives, with all below
//! it. A child that was started otherwise and later would be taken for an orphan
//! of CMD: `tenure run` starts none, and neither does a shim.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process,
    set_child_subreaper, waitid, waitpid,
};
use tenure::clock;
use tenure::core::time::Instant;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

use super::cgroup::Cgroup;
use super::channel::Channel;
use super::event::GuardianEvent;
use super::exit_status::ExitStatus;
use super::guardian::GUARDIAN;
use super::messages::{GuardianOrder, GuardianReport};
use super::order_mailbox::OrderReceiver;
use super::poll::{self, Alarm};
use super::tree;

/// How long after `kill_at` a guardian is taken for hung. It needs a few
/// milliseconds.
pub const SLACK: Duration = Duration::from_millis(100);
/// The least margin between `kill_at` and the end of the lease: what a hung
/// guardian costs, and as much again for the killing itself. A guardian that
/// is woken and hangs *then* costs twice [`SLACK`]: with this margin the
/// killing takes from the time that the drift bound reserves.
pub const MARGIN_MIN: Duration = Duration::from_millis(200);
/// How long to wait between rounds of killing that had no effect.
const RETRY: Duration = Duration::from_millis(5);
/// How many dead a guardian may leave to us if it is killed.
const MANY_DEAD: usize = 1000;
/// How long a guardian may take to reap more than that, when nothing lives.
const REAPING_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that may wait for a guardian that does not read. Beyond that only
/// what matters is sent on: times and ends, not forwarded signals.
const BACKLOG: usize = 64 << 10;

/// Which children of this process are not orphans of a CMD.
#[derive(Default)]
struct Spared {
    other_children: Option<BTreeSet<i32>>,
    guardians: BTreeSet<i32>,
}

static SPARED: Mutex<Spared> = Mutex::new(Spared {
    other_children: None,
    guardians: BTreeSet::new(),
});

fn spared() -> MutexGuard<'static, Spared> {
    SPARED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spared {
    fn all(&self) -> BTreeSet<i32> {
        let other_children = self.other_children.iter().flatten();
        other_children.chain(&self.guardians).copied().collect()
    }
}

/// Starts a guardian; the first half of the handshake. What it and CMD print
/// goes to `output`, or where this process prints. The name beside it is for
/// people; no program reads it.
pub(super) fn spawn(program: &Path, output: Option<(OwnedFd, &str)>) -> io::Result<(Pid, Channel)> {
    // Held until the child is known: another watchdog must not take it for an
    // orphan.
    let mut spared = spared();
    set_child_subreaper(Some(getpid()))?;
    let mut other_children = spared.other_children.take();
    spared.other_children = Some(other_children.take().unwrap_or_else(|| {
        let children = tree::children(tree::me());
        children.into_iter().collect()
    }));
    let (ours, theirs) = UnixStream::pair()?;
    // Reaped by its number in `Watchdog`, together with what it leaves behind.
    let mut command = Command::new(program);
    command.arg0("tenure").arg(GUARDIAN);
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    if let Some((output, name)) = output {
        command.arg(name);
        command.stdout(output.try_clone()?).stderr(output);
    }
    let child = command.spawn()?;
    // With it goes this process's end of the output: only what writes holds it.
    drop(command);
    let raw = i32::try_from(child.id()).unwrap_or_default();
    let pid = Pid::from_raw(raw).ok_or_else(|| io::Error::other("a process without a number"))?;
    spared.guardians.insert(raw);
    let mut channel = Channel::new(ours)?;
    // A guardian that is dead already is noticed by the watchdog.
    let _ = channel.send_with(&GuardianOrder::Hello, io::stdin().as_fd());
    Ok((pid, channel))
}

pub(super) struct Watchdog {
    guardian: Pid,
    channel: Channel,
    channel_open: bool,
    orders: OrderReceiver,
    orders_open: bool,
    wake: UnixStream,
    children: UnixStream,
    children_id: signal_hook::SigId,
    alarm: Alarm,
    events: Sender<GuardianEvent>,
    confirmed: watch::Sender<Option<Instant>>,
    kill_at: Instant,
    stop_by: Instant,
    cmd: Option<i32>,
    exited: bool,
    gone: bool,
    /// It was stopped when it should have ended everything.
    woken: bool,
    /// And again after that.
    stopped_again: bool,
    /// It did not end everything in time, and was killed.
    hung: bool,
    /// What was below it when that was last looked at.
    below: BTreeSet<i32>,
}

impl Watchdog {
    pub(super) fn new(
        (guardian, channel): (Pid, Channel),
        orders: OrderReceiver,
        wake: UnixStream,
        events: Sender<GuardianEvent>,
        confirmed: watch::Sender<Option<Instant>>,
    ) -> io::Result<Self> {
        let (children, children_id) = poll::child_signals()?;
        wake.set_nonblocking(true)?;
        Ok(Self {
            guardian,
            channel,
            channel_open: true,
            orders,
            orders_open: true,
            wake,
            children,
            children_id,
            alarm: Alarm::new()?,
            events,
            confirmed,
            kill_at: Instant::MAX,
            stop_by: Instant::MAX,
            cmd: None,
            exited: false,
            gone: false,
            woken: false,
            stopped_again: false,
            hung: false,
            below: BTreeSet::new(),
        })
    }

    /// Watches until nothing is left, and reports that.
    pub(super) fn run(mut self) {
        let status = self.watch();
        if self.channel_open {
            self.read_guardian();
        }
        let orderly = status.is_some_and(|status| status.exit_status() == Some(0));
        let last = if self.gone && orderly && !self.woken {
            GuardianEvent::Gone
        } else {
            self.end_orphans();
            GuardianEvent::Lost {
                why: self.failure_text(status),
            }
        };
        signal_hook::low_level::unregister(self.children_id);
        self.send_event(last);
    }

    /// Watches until the guardian has ended. Returns how it ended.
    fn watch(&mut self) -> Option<WaitStatus> {
        loop {
            poll::drain(&self.children);
            poll::drain(&self.wake);
            self.forward_orders();
            if self.channel_open {
                self.read_guardian();
            }
            if let Some(ended) = self.reap_guardian() {
                return ended;
            }
            let now = clock::boot();
            self.check_deadlines(now);
            if self.sleep(now).is_err() {
                // Without a way to wait there is no way to keep time.
                self.hung = true;
                let _ = kill_process(self.guardian, Signal::KILL);
            }
        }
    }

    fn send_event(&self, event: GuardianEvent) {
        // A guardian causes fewer events than the queue has room for. Sending
        // fails only if the receiver is gone.
        let _ = self.events.try_send(event);
    }

    fn forward_orders(&mut self) {
        // Asked first: the last order of a handle that was dropped is taken below.
        self.orders_open = !self.orders.is_closed();
        while let Some(order) = self.orders.next() {
            match &order {
                GuardianOrder::Start(start) => self.kill_at = start.kill_at,
                GuardianOrder::Extend { kill_at, .. } if self.kill_at < Instant::MAX => {
                    self.kill_at = self.kill_at.max(*kill_at);
                }
                GuardianOrder::Stop { stop_by } => self.stop_by = self.stop_by.min(*stop_by),
                GuardianOrder::Kill => self.stop_by = self.stop_by.min(clock::boot()),
                GuardianOrder::Signal(_) if self.channel.backlog() > BACKLOG => continue,
                GuardianOrder::Signal(_) | GuardianOrder::Extend { .. } | GuardianOrder::Hello => {}
            }
            // A guardian that is gone is noticed when it is reaped.
            let _ = self.channel.send(&order);
        }
    }

    fn read_guardian(&mut self) {
        let flushed = self.channel.flush();
        let open = self.channel.fill().unwrap_or(false);
        self.channel_open = open && flushed.is_ok();
        loop {
            match self.channel.next() {
                Ok(Some(report)) => self.handle_report(report),
                Ok(None) => break,
                Err(_) => {
                    self.channel_open = false;
                    break;
                }
            }
        }
        if !self.channel_open {
            // It is about to end, or has failed.
            self.stop_by = self.stop_by.min(clock::boot());
        }
    }

    fn handle_report(&mut self, report: GuardianReport) {
        match report {
            GuardianReport::Ready => self.send_event(GuardianEvent::Ready),
            GuardianReport::Started(pid) => {
                self.cmd = Some(pid);
                self.send_event(GuardianEvent::Started { pid });
            }
            GuardianReport::Holds { kill_at } => drop(self.confirmed.send_replace(Some(kill_at))),
            GuardianReport::Refused(why) => self.send_event(GuardianEvent::Refused { why }),
            GuardianReport::Exited { status, asked } => {
                self.exited = true;
                self.send_event(GuardianEvent::Exited { status, asked });
            }
            GuardianReport::Gone => self.gone = true,
        }
    }

    /// `Some` once the guardian has ended; within, how, if that can be known.
    fn reap_guardian(&mut self) -> Option<Option<WaitStatus>> {
        let mut spared = spared();
        let ended = match waitpid(Some(self.guardian), WaitOptions::NOHANG) {
            Ok(None) | Err(rustix::io::Errno::INTR) => return None,
            Ok(Some((_, status))) => Some(status),
            Err(_) => None,
        };
        spared
            .guardians
            .remove(&self.guardian.as_raw_nonzero().get());
        Some(ended)
    }

    fn check_deadlines(&mut self, now: Instant) {
        if self.hung || now < self.due_at() {
            return;
        }
        if self.is_stopped() {
            // Awake it ends everything at once, and reaps what it has let lie.
            self.stopped_again |= self.woken;
            self.woken = true;
            let _ = kill_process(self.guardian, Signal::CONT);
        }
        if now >= self.give_up_at() && self.take_over(now) {
            self.hung = true;
            let _ = kill_process(self.guardian, Signal::KILL);
        }
    }

    /// KILLs what is below a guardian that has not done so in time; true if it
    /// is its own turn.
    ///
    /// Not before it: what it has not reaped would come to us in one step of
    /// the kernel's, whose time grows with the square of the number (15 s for
    /// 16,000) and in which nothing else can be found or killed.
    fn take_over(&mut self, now: Instant) -> bool {
        let killed_below = tree::kill_descendants_of(self.guardian.as_raw_nonzero().get());
        let late = now.since(self.give_up_at());
        let over = !killed_below.alive && killed_below.below.is_subset(&self.below);
        self.below = killed_below.below;
        if over {
            self.below.len() < MANY_DEAD || late >= REAPING_TIMEOUT
        } else {
            late >= SLACK
        }
    }

    /// When the guardian is to end everything.
    fn due_at(&self) -> Instant {
        self.kill_at.min(self.stop_by)
    }

    fn give_up_at(&self) -> Instant {
        let slack = self.due_at().after(SLACK);
        // A guardian that was woken may have much to end. It is done sooner if
        // this process does not look through the same thousands of processes.
        if self.woken {
            slack.after(SLACK)
        } else {
            slack
        }
    }

    fn is_stopped(&self) -> bool {
        let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(self.guardian), look), Ok(Some(_)))
    }

    /// Ends what the guardian left to us.
    fn end_orphans(&mut self) {
        tree::raise_priority();
        let cgroup = Cgroup::find(self.guardian.as_raw_nonzero().get());
        loop {
            if let Some(cgroup) = &cgroup {
                cgroup.kill();
            }
            poll::drain(&self.children);
            let mut cmd_status = None;
            let unfinished = {
                let spared = spared();
                tree::end_adopted(&spared.all(), |pid, status| {
                    if Some(pid) == self.cmd {
                        cmd_status = ExitStatus::of(status);
                    }
                })
            };
            if let (Some(status), false) = (cmd_status, self.exited) {
                self.exited = true;
                // The kernel killed it along with the guardian.
                let asked = true;
                self.send_event(GuardianEvent::Exited { status, asked });
            }
            if !unfinished {
                return;
            }
            let fds = [(self.children.as_fd(), PollFlags::IN)];
            let _ = poll::wait(&mut self.alarm, &fds, Some(RETRY));
        }
    }

    fn failure_text(&self, status: Option<WaitStatus>) -> String {
        match status.and_then(ExitStatus::of) {
            _ if self.hung => "the guardian did not answer in time and was killed".into(),
            _ if self.woken => {
                "the guardian was stopped beyond its time and had to be woken".into()
            }
            Some(status) => format!("the guardian {status}"),
            None => "the guardian was reaped by another part of this process".into(),
        }
    }

    /// Until there is news since `now`, when the clock was looked at.
    fn sleep(&mut self, now: Instant) -> io::Result<()> {
        // A stop between the two causes a SIGCHLD.
        let late = now >= self.give_up_at();
        let at = if now < self.due_at() {
            self.due_at()
        } else {
            self.give_up_at()
        };
        let at = Some(at).filter(|at| *at < Instant::MAX && !late);
        self.alarm.set(at)?;
        let mut fds = vec![(self.children.as_fd(), PollFlags::IN)];
        if self.orders_open {
            fds.push((self.wake.as_fd(), PollFlags::IN));
        }
        if self.channel_open {
            fds.push(self.channel.interest());
        }
        let retry = (late && !self.hung).then_some(RETRY);
        poll::wait(&mut self.alarm, &fds, retry)
    }
}
