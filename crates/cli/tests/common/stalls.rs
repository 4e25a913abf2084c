//! Disks and files that hang, for one process: strace holds up its calls.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::poll_until;
use super::servers::SOON;

/// Longer than any test waits.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(3_600);

/// Holds up the syncs of a process until it is dropped.
pub(crate) struct Stall(Child);

impl Stall {
    pub(crate) fn of(pid: u32, span: Duration) -> Self {
        Self::of_some(pid, span, "1+")
    }

    /// Of each thread's syncs those that `which` names, as strace does.
    pub(crate) fn of_some(pid: u32, span: Duration, which: &str) -> Self {
        Self::by(held_up(span, which), pid)
    }

    /// Of the syncs those of these files, which hang for ever.
    pub(crate) fn of_syncs_of(pid: u32, files: &[PathBuf]) -> Self {
        let mut strace = held_up(FOR_EVER, "1+");
        for file in files {
            strace.arg("-P").arg(file);
        }
        Self::by(strace, pid)
    }

    /// What looks at this file, or reads it, hangs.
    pub(crate) fn of_file(pid: u32, file: &Path) -> Self {
        let mut strace = Command::new("strace");
        strace.args(Self::words(file));
        Self::by(strace, pid)
    }

    /// A command for which this file hangs from its start on. It is a child of
    /// the test, and not of strace.
    pub(crate) fn from_the_start(file: &Path, command: &Command) -> Command {
        let mut strace = Command::new("strace");
        strace.arg("-D").args(Self::words(file));
        strace.arg(command.get_program()).args(command.get_args());
        strace
    }

    /// The arguments of strace that make every access to this file hang.
    pub(crate) fn words(file: &Path) -> Vec<String> {
        let inject = format!("inject=%file:delay_enter={}", FOR_EVER.as_micros());
        let file = file.display().to_string();
        let words = [
            "-f",
            "-q",
            "-o",
            "/dev/null",
            "-e",
            "trace=%file",
            "-e",
            &inject,
            "-P",
            &file,
        ];
        words.map(str::to_owned).into()
    }

    pub(crate) fn by(mut strace: Command, pid: u32) -> Self {
        strace.args(["-p", &pid.to_string()]).stderr(Stdio::null());
        let strace = strace.spawn();
        let stall = Self(strace.expect("strace"));
        let attached = poll_until(SOON, || is_traced(pid).then_some(()));
        attached.expect("strace has attached");
        stall
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        // It lets go of the server, which must go on.
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let _ = kill_process(pid.expect("a process id"), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Waits until a process has ended whose tracer sleeps, for as long as its file
/// hangs, and ends the tracer: only then its end is known to its parent.
pub(crate) fn gone(pid: u32) {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let tracer = status(&process, "TracerPid:").expect("it runs");
    let ended = || status(&process, "State:").filter(|it| it.starts_with('Z'));
    poll_until(SOON, ended).expect("it ends");
    let tracer = tracer.parse().ok().and_then(Pid::from_raw).expect("strace");
    kill_process(tracer, Signal::KILL).expect("strace");
}

/// What holds up syncs, of the log (`fdatasync`) and of small files (`fsync`).
pub(crate) fn held_up(span: Duration, which: &str) -> Command {
    let span = span.as_micros();
    let inject = format!("inject=fsync,fdatasync:delay_enter={span}:when={which}");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-q", "-o", "/dev/null"]).args([
        "-e",
        "trace=fsync,fdatasync",
        "-e",
        &inject,
    ]);
    strace
}

/// Whether all threads of a process are traced.
fn is_traced(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let mut threads = threads.filter_map(Result::ok);
    threads.all(|thread| status(&thread.path(), "TracerPid:").is_some_and(|pid| pid != "0"))
}

/// What the system says of a process or a thread.
pub(crate) fn status(of: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(of.join("status")).ok()?;
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.map(|it| it.trim().to_owned())
}

/// Whether a process can be traced here.
pub(crate) fn traceable() -> bool {
    let strace = Command::new("strace")
        .args(["-f", "-q", "--seccomp-bpf", "-o", "/dev/null", "true"])
        .stderr(Stdio::null())
        .status();
    strace.is_ok_and(|status| status.success()) && Path::new("/proc/self/task").exists()
}
