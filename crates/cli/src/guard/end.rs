//! Ending a command with everything it has become.
//!
//! Killing the group is not enough: a daemon makes its own session and forks
//! twice, and is in nobody's group. But we are a *subreaper*: whatever loses
//! its parent becomes our child. So the descendants of this process, found
//! through `/proc`, are all there is. We kill them, reap, look again, and are
//! done when the kernel says that we have no children (`ECHILD`). What forks
//! faster than we look loses in the end: whoever has been killed forks no
//! more.

use std::collections::BTreeMap;
use std::fs;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, pidfd_open,
    pidfd_send_signal, wait,
};

/// Sends KILL to the group and to every descendant of this process, once.
pub(super) fn kill_all(group: Option<Pid>) {
    if let Some(group) = group {
        // It may be gone, which is the point.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let own = getpid().as_raw_nonzero().get();
    for (pid, known_parent) in descendants() {
        // Held by descriptor and looked at again, so that a number that was
        // given to a stranger meanwhile is not killed for it.
        let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let now = parent(pid.as_raw_nonzero().get());
        if now == Some(known_parent) || now == Some(own) {
            let _ = pidfd_send_signal(held, Signal::KILL);
        }
    }
}

/// What is left of our children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    Some,
    None,
}

/// Reaps whoever has ended, and tells of each.
pub(super) fn reap(mut ended: impl FnMut(Pid, WaitStatus)) -> Left {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended(pid, status),
            Ok(None) => return Left::Some,
            Err(Errno::INTR) => {}
            Err(_) => return Left::None,
        }
    }
}

/// A process's exit code as shells give it: 128 + n if signal n killed it.
pub(super) fn code(status: WaitStatus) -> Option<i32> {
    let killed = || status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or_else(killed)
}

/// Every descendant of this process and its parent, nearest first.
fn descendants() -> Vec<(Pid, i32)> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in numbers {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok());
        let Some(pid) = number else { continue };
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found: Vec<(Pid, i32)> = Vec::new();
    let mut next = getpid().as_raw_nonzero().get();
    for at in 0.. {
        let own = children.remove(&next).unwrap_or_default();
        found.extend(
            own.into_iter()
                .filter_map(|pid| Some((Pid::from_raw(pid)?, next))),
        );
        let Some((pid, _)) = found.get(at) else { break };
        next = pid.as_raw_nonzero().get();
    }
    found
}

/// The parent of a process that is alive (a zombie has nothing to kill).
fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything, parentheses too.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z").then_some(parent)
}
