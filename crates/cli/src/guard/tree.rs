//! Ending a whole tree of processes, whatever it does to survive.
//!
//! A process that detaches itself (setsid, fork twice) leaves its group and
//! its session, but not the tree of a *subreaper*: when its parent ends, it
//! becomes the subreaper's child. So "everything CMD started" is exactly the
//! descendants of the process that calls [`kill_below`], and killing and
//! reaping them until no child is left is the end of it all: a descendant
//! that is not a child has an ancestor that is.
//!
//! Each round KILLs from the top down: a process under KILL forks no more, so
//! the children read *after* the signal are all it will ever have; those it
//! leaves turn up one level higher in the next round. (Stopping the tree
//! first would add nothing: STOP is no faster than KILL.)
//!
//! A number from /proc may belong to somebody else by the time it is used. A
//! child of our own keeps its number until we reap it; any other process is
//! held by a pidfd, and only then asked whether its parent is still the one
//! seen. No stranger is hit.
//!
//! Left out: a program that forks faster than it can be read and killed
//! could keep ahead in theory (a cgroup ends even that); a process in
//! uninterruptible sleep ends when the kernel lets it; without /proc only
//! CMD's own group is reached.

use std::collections::BTreeSet;
use std::fs;
use std::sync::OnceLock;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};

/// KILLs everything below process `root`, which is this one, except the
/// children in `spare` and what is below those. Returns the children.
pub(super) fn kill_below(root: i32, spare: &BTreeSet<i32>) -> Vec<i32> {
    let mut top = children(root);
    top.retain(|pid| !spare.contains(pid));
    let mut seen: BTreeSet<i32> = top.iter().copied().collect();
    let mut queue: Vec<(i32, i32)> = top.iter().map(|pid| (root, *pid)).collect();
    while let Some((parent, pid)) = queue.pop() {
        if parent == root {
            // Gone or not ours to kill (set-user-ID): the next round will see.
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        } else {
            kill_held(pid, parent);
        }
        let below = children(pid).into_iter().filter(|pid| seen.insert(*pid));
        queue.extend(below.map(|child| (pid, child)));
    }
    top
}

/// KILLs and reaps everything this process has adopted, except `spare`, once.
/// False when there was nothing left to do; else what could be reaped is
/// handed to `reaped`.
pub(super) fn end_adopted(
    spare: &BTreeSet<i32>,
    mut reaped: impl FnMut(i32, rustix::process::WaitStatus),
) -> bool {
    let me = me();
    let mut left = kill_below(me, spare);
    if left.is_empty() {
        // The quick way to list children may miss one that moves between two
        // of our threads; the slow way cannot, since a child that has ended
        // stays listed until it is reaped, which only we do.
        left = scan(me);
        left.retain(|pid| !spare.contains(pid));
    }
    for pid in &left {
        let status = waitpid(Pid::from_raw(*pid), WaitOptions::NOHANG);
        if let Ok(Some((_, status))) = status {
            reaped(*pid, status);
        }
    }
    !left.is_empty()
}

/// This process.
pub(super) fn me() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// KILLs `pid` if it is still a child of `parent`.
fn kill_held(pid: i32, parent: i32) {
    let Some(held) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return;
    };
    if parent_of(pid) == Some(parent) {
        let _ = pidfd_send_signal(&held, Signal::KILL);
    }
}

/// The children of a process; none if it is gone.
pub(super) fn children(of: i32) -> Vec<i32> {
    static LISTED: OnceLock<bool> = OnceLock::new();
    if !*LISTED.get_or_init(|| fs::exists("/proc/thread-self/children").unwrap_or(false)) {
        return scan(of);
    }
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{of}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(
            list.split_ascii_whitespace()
                .filter_map(|pid| pid.parse::<i32>().ok()),
        );
    }
    found
}

/// The same by asking every process of the machine for its parent: for
/// kernels that keep no lists of children, and to make sure.
fn scan(of: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(of)).collect()
}

/// The parent, from `/proc/PID/stat`: "PID (NAME) STATE PARENT ...", where the
/// name may hold anything, closing brackets included.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}
