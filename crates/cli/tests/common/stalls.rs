//! Disks and files that hang, for one process: strace holds up its calls.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::Path;
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

    /// What looks at this file, or reads it.
    pub(crate) fn of_file(pid: u32, span: Duration, file: &Path) -> Self {
        let inject = format!("inject=%file:delay_enter={}", span.as_micros());
        let mut strace = Command::new("strace");
        strace
            .args([
                "-f",
                "-q",
                "-o",
                "/dev/null",
                "-e",
                "trace=%file",
                "-e",
                &inject,
                "-P",
            ])
            .arg(file);
        Self::by(strace, pid)
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
