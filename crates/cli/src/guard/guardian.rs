//! The guardian's own life: one thread, no configuration, little memory.
//!
//! It waits on four descriptors (the control socket, its timer, a pipe that
//! tells of ended children) and does what is due. It exits when nothing of
//! the command is left.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, getpid, kill_process_group, set_child_subreaper, setsid};
use tenure::clock;

use super::cgroup::Group;
use super::end::{self, Left};
use super::shim;
use super::timer::Timer;
use super::wire::{self, Deadlines, Order, Report};

/// How often to look again for survivors while ending.
const SWEEP: std::time::Duration = std::time::Duration::from_millis(5);

pub(super) fn main(command: Vec<OsString>) -> ExitCode {
    match Guardian::new(command).and_then(Guardian::serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => {
            // Nothing may be left behind, whatever went wrong.
            while end::reap(|_, _| {}) == Left::Some {
                end::kill_all(None);
                std::thread::sleep(SWEEP);
            }
            ExitCode::FAILURE
        }
    }
}

struct Guardian {
    control: OwnedFd,
    timer: Timer,
    children: UnixStream,
    command: Vec<OsString>,
    group: Option<Group>,
    state: State,
    /// The supervisor is there to be told.
    heard: bool,
}

enum State {
    /// Waiting for the go-ahead.
    StandingBy,
    Running(Running),
    /// Killing whatever is left of it.
    Ending(Option<Pid>),
    Gone,
}

struct Running {
    pid: Pid,
    deadlines: Deadlines,
    told_to_stop: bool,
}

impl Guardian {
    fn new(command: Vec<OsString>) -> io::Result<Self> {
        // A session of its own: what the terminal sends is the supervisor's.
        // It fails only if we lead a session already.
        let _ = setsid();
        set_child_subreaper(Some(getpid()))?;
        let (children, told) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, told)?;
        children.set_nonblocking(true)?;
        Ok(Self {
            control: io::stdin().as_fd().try_clone_to_owned()?,
            timer: Timer::new()?,
            children,
            command,
            group: None,
            state: State::StandingBy,
            heard: true,
        })
    }

    fn serve(mut self) -> io::Result<()> {
        while !matches!(self.state, State::Gone) {
            self.timer.set(self.wake_at())?;
            let [spoken, ended] = self.wait()?;
            if ended {
                self.reap();
            }
            if spoken {
                self.listen();
            }
            self.advance();
        }
        if self.heard {
            // It may have gone away meanwhile; then nobody waits for this.
            let _ = wire::send_report(&self.control, &Report::Gone);
        }
        Ok(())
    }

    fn wake_at(&self) -> Option<tenure_core::time::Instant> {
        match &self.state {
            State::StandingBy | State::Gone => None,
            State::Running(running) if running.told_to_stop => Some(running.deadlines.kill_at),
            State::Running(running) => Some(running.deadlines.drain_at),
            State::Ending(_) => Some(clock::boot().after(SWEEP)),
        }
    }

    /// Waits; says whether the supervisor has spoken and a child has ended.
    fn wait(&mut self) -> io::Result<[bool; 2]> {
        let mut polled = vec![
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.children, PollFlags::IN),
        ];
        if self.heard {
            polled.push(PollFd::new(&self.control, PollFlags::IN));
        }
        match poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |at: usize| polled.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (ended, spoken) = (ready(1), ready(2));
        drop(polled);
        if ended {
            let mut buffer = [0; 64];
            while rustix::io::read(&self.children, &mut buffer).is_ok_and(|read| read > 0) {}
        }
        Ok([spoken, ended])
    }

    fn listen(&mut self) {
        match wire::receive_order(&self.control) {
            Ok(Some((order, descriptor))) => self.obey(order, descriptor),
            // The supervisor has gone, or talks nonsense: end it all, now.
            Ok(None) | Err(_) => {
                self.heard = false;
                self.end();
            }
        }
    }

    fn obey(&mut self, order: Order, stdin: Option<OwnedFd>) {
        match (order, &mut self.state) {
            (Order::Start { deadlines, env }, State::StandingBy) => {
                self.start(deadlines, env, stdin);
            }
            (Order::Extend(later), State::Running(running)) => {
                // Only ever later: what was promised to rivals stands.
                let now = &mut running.deadlines;
                now.kill_at = now.kill_at.max(later.kill_at);
                if !running.told_to_stop {
                    now.drain_at = now.drain_at.max(later.drain_at);
                }
            }
            (Order::Stop(grace), State::Running(running)) => {
                let by = clock::boot().after(grace);
                running.deadlines.kill_at = running.deadlines.kill_at.min(by);
                running.ask_to_stop();
            }
            (Order::Signal(signal), State::Running(running)) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    let _ = kill_process_group(running.pid, signal);
                }
            }
            (Order::Kill | Order::Stop(_), State::StandingBy) => self.state = State::Gone,
            (Order::Kill, State::Running(_)) => self.end(),
            // Orders that have been overtaken.
            (Order::Start { .. }, _)
            | (Order::Extend(_) | Order::Signal(_), State::StandingBy)
            | (_, State::Ending(_) | State::Gone) => {}
        }
    }

    fn start(&mut self, deadlines: Deadlines, env: Vec<(String, String)>, stdin: Option<OwnedFd>) {
        let now = clock::boot();
        if now >= deadlines.drain_at {
            let late = now.since(deadlines.drain_at);
            return self.refuse(format!("the go-ahead came {late:?} too late"));
        }
        if let Some(Err(why)) = self.command.first().map(|program| shim::find(program)) {
            return self.refuse(why);
        }
        self.group = Group::make();
        let own = getpid().as_raw_nonzero().get();
        let mut shim = shim::command(own, self.group.as_ref().map(Group::path), &self.command);
        shim.process_group(0).envs(env);
        shim.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
        // Spawned by the only thread there is: the parent-death signal goes
        // off when the spawning *thread* ends.
        let spawned = shim.spawn().map_err(|error| error.to_string());
        let pid = spawned.and_then(|child| {
            i32::try_from(child.id())
                .ok()
                .and_then(Pid::from_raw)
                .ok_or_else(|| "no pid".into())
        });
        match pid {
            Ok(pid) => {
                self.state = State::Running(Running {
                    pid,
                    deadlines,
                    told_to_stop: false,
                });
                self.report(&Report::Started(pid.as_raw_nonzero().get()));
            }
            Err(why) => self.refuse(format!("expected to start the command: {why}")),
        }
    }

    fn refuse(&mut self, why: String) {
        self.report(&Report::Refused(why));
        self.state = State::Gone;
    }

    fn report(&self, report: &Report) {
        if self.heard {
            // If it has gone, the end of the socket says so.
            let _ = wire::send_report(&self.control, report);
        }
    }

    fn reap(&mut self) {
        let running = match &self.state {
            State::Running(running) => Some(running.pid),
            _ => None,
        };
        let mut exited = None;
        end::reap(|pid, status| {
            if Some(pid) == running {
                exited = end::code(status);
            }
        });
        if let Some(code) = exited {
            self.report(&Report::Exited(code));
            // What it forked away ends with it: the next leader's command
            // must not meet it.
            self.end();
        }
    }

    fn end(&mut self) {
        self.state = match &self.state {
            State::StandingBy | State::Gone => State::Gone,
            State::Running(running) => State::Ending(Some(running.pid)),
            State::Ending(group) => State::Ending(*group),
        };
    }

    fn advance(&mut self) {
        let now = clock::boot();
        if let State::Running(running) = &mut self.state {
            if now >= running.deadlines.kill_at {
                self.end();
            } else if now >= running.deadlines.drain_at {
                running.ask_to_stop();
            }
        }
        if let State::Ending(pid) = self.state {
            if let Some(group) = &self.group {
                group.kill();
            }
            end::kill_all(pid);
            if end::reap(|_, _| {}) == Left::None {
                self.group = None;
                self.state = State::Gone;
            }
        }
    }
}

impl Running {
    /// TERM to the group, once; and CONT, so that one that was stopped hears.
    fn ask_to_stop(&mut self) {
        if !std::mem::replace(&mut self.told_to_stop, true) {
            let _ = kill_process_group(self.pid, Signal::TERM);
            let _ = kill_process_group(self.pid, Signal::CONT);
        }
    }
}
