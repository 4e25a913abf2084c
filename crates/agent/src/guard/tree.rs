//! Ends a whole tree of processes, even if they try to survive.
//!
//! A process that detaches itself (setsid, fork twice) leaves its group and
//! its session, but not the tree of a *subreaper*: when its parent ends, it
//! becomes the subreaper's child. So "everything CMD started" is exactly the
//! descendants of the process that calls [`kill_below`], and killing and
//! reaping them until no child is left is the end of it all: a descendant
//! that is not a child has an ancestor that is.
//!
//! Each round KILLs our own children before all others, piece by piece as the
//! kernel lists them, and in each piece the newest first: one that forks a
//! successor and ends lives for a fraction of a millisecond. With each it KILLs
//! the process *group* of that child. The kernel does that at one stroke, which
//! no fork can slip through, and what has ended but was not reaped still names
//! its group: a process that flees within a session is caught by the dead it
//! leaves.
//!
//! Last come those below children that live, from the top down: a process under
//! KILL forks no more, so the children read *after* the signal are all it will
//! ever have; those it leaves turn up one level higher in the next round.
//! (Stopping the tree first would add nothing: STOP is no faster than KILL.)
//!
//! The dead cost a system call or two each, and are reaped when nothing lives
//! any more; before that only a few in each round. A guardian that was stopped
//! leaves thousands of them, and to look below each, or to reap them first,
//! gave those that live seconds.
//!
//! A number from /proc may belong to another process by the time it is used. A
//! child of our own keeps its number until we reap it; any other process is
//! held by a pidfd, and only then asked whether its parent is still the one
//! seen. No stranger is hit.
//!
//! Groups are KILLed only in sessions other than our own: those were begun by
//! what is below us, so no stranger is in them. Their numbers are not free for
//! others as long as the child that names them is not reaped.
//!
//! Left out: a program that forks faster than it can be read and killed, with a
//! session for each process, could keep ahead in theory (a cgroup ends even
//! that); a process in uninterruptible sleep ends when the kernel lets it;
//! without /proc only CMD's own group is reached.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpgid, getsid, kill_process,
    kill_process_group, pidfd_open, pidfd_send_signal, setpriority_process, waitid, waitpid,
};

/// How many of the dead are reaped in a round that saw something alive: about
/// a millisecond's worth.
const REAPED_BESIDE: usize = 256;

/// What a round of killing has seen.
pub(super) struct KillRound {
    /// Our children, in no order.
    children: Vec<i32>,
    /// Those of them that had ended, and wait to be reaped.
    dead: Vec<i32>,
}

impl KillRound {
    pub(super) fn alive(&self) -> bool {
        self.dead.len() < self.children.len()
    }
}

/// KILLs everything below this process, except the children in `spare` and what
/// is below those.
pub(super) fn kill_below(spare: &BTreeSet<i32>) -> KillRound {
    let children = kill_children(me(), spare);
    let (dead, alive): (Vec<_>, Vec<_>) = children.iter().partition(|pid| has_ended(**pid));
    let mut seen: BTreeSet<i32> = alive.iter().copied().collect();
    let mut queue = alive;
    while let Some(parent) = queue.pop() {
        for child in self::children(parent) {
            if seen.insert(child) {
                kill_if_child(child, parent);
                queue.push(child);
            }
        }
    }
    KillRound { children, dead }
}

/// KILLs and reaps everything this process has adopted, except `spare`, once.
/// False when there was nothing left to do; else what could be reaped is
/// handed to `reaped`.
pub(super) fn end_adopted(
    spare: &BTreeSet<i32>,
    mut reaped: impl FnMut(i32, rustix::process::WaitStatus),
) -> bool {
    let mut seen = kill_below(spare);
    if seen.children.is_empty() {
        // The quick way to list children may miss one that moves between two
        // of our threads; the slow way cannot, since a child that has ended
        // stays listed until it is reaped, which only we do.
        let missed = scan(me()).into_iter().filter(|pid| !spare.contains(pid));
        seen.children = missed.inspect(|pid| kill_child(*pid)).collect();
        seen.dead.clone_from(&seen.children);
    }
    let most = if seen.alive() {
        REAPED_BESIDE
    } else {
        usize::MAX
    };
    for pid in seen.dead.iter().take(most) {
        let status = waitpid(Pid::from_raw(*pid), WaitOptions::NOHANG);
        if let Ok(Some((_, status))) = status {
            reaped(*pid, status);
        }
    }
    !seen.children.is_empty()
}

/// What was seen below another process.
pub(super) struct KilledBelow {
    /// All of it, the dead included.
    pub(super) below: BTreeSet<i32>,
    pub(super) alive: bool,
}

/// KILLs everything below `root`, a subreaper that does not do so itself. If
/// nothing was alive, and nothing new is seen the next time, nothing is left:
/// what lives below `root` is its child, or has an ancestor that is and lives.
pub(super) fn kill_descendants_of(root: i32) -> KilledBelow {
    let mut below = BTreeSet::new();
    let mut alive = false;
    let mut queue = vec![root];
    while let Some(parent) = queue.pop() {
        let newest_first = children(parent).into_iter().rev();
        for child in newest_first.filter(|pid| *pid != root) {
            if below.insert(child) && kill_if_child(child, parent) {
                alive = true;
                queue.push(child);
            }
        }
    }
    KilledBelow { below, alive }
}

/// KILLs our children and their groups, each as soon as it is read.
fn kill_children(me: i32, spare: &BTreeSet<i32>) -> Vec<i32> {
    let mut groups = Groups::new();
    let mut found = Vec::new();
    let mut kill = |pid: i32| {
        if !spare.contains(&pid) {
            kill_child(pid);
            groups.kill(pid);
            found.push(pid);
        }
    };
    if lists_children() {
        for list in list_files(me) {
            let _ = for_each_piece(list, |pids| pids.into_iter().rev().for_each(&mut kill));
        }
    } else {
        scan(me).into_iter().for_each(kill);
    }
    found
}

/// KILLs a child of ours, which keeps its number until we reap it. One that is
/// not ours to kill (set-user-ID) is seen again in the next round.
fn kill_child(pid: i32) {
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
}

/// The groups of our children.
struct Groups {
    /// Our session. `None` if it cannot be seen from this PID namespace: those
    /// of children cannot be asked for then.
    own: Option<i32>,
    seen: BTreeSet<i32>,
}

impl Groups {
    fn new() -> Self {
        Self {
            own: session_of("self").filter(|session| *session != 0),
            seen: BTreeSet::new(),
        }
    }

    /// KILLs the group of a child that was KILLed: it changes its group no
    /// more.
    fn kill(&mut self, child: i32) {
        let (Some(own), Some(child)) = (self.own, Pid::from_raw(child)) else {
            return;
        };
        if let Ok(group) = getpgid(Some(child))
            && self.seen.insert(group.as_raw_nonzero().get())
            && getsid(Some(child)).is_ok_and(|session| session.as_raw_nonzero().get() != own)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Whether a child of ours has ended, with all its threads, and waits to be
/// reaped: then nothing is below it any more.
fn has_ended(pid: i32) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let pid = Pid::from_raw(pid);
    pid.is_some_and(|pid| matches!(waitid(WaitId::Pid(pid), look), Ok(Some(_))))
}

/// Takes the highest priority from now on, where that is allowed: what is to be
/// killed may keep all processors busy. Only for a thread that starts nothing
/// any more, which would inherit it.
pub(super) fn raise_priority() {
    let _ = setpriority_process(None, -20);
}

/// This process.
pub(super) fn me() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// KILLs `pid` if it is still a child of `parent`; false if it has ended.
fn kill_if_child(pid: i32, parent: i32) -> bool {
    let Some(held) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return false;
    };
    // Readable once it has ended: quicker asked than what its parent is.
    let mut ended = [PollFd::new(&held, PollFlags::IN)];
    if !matches!(poll(&mut ended, Some(&Timespec::default())), Ok(0)) {
        return false;
    }
    if parent_of(pid) == Some(parent) {
        let _ = pidfd_send_signal(&held, Signal::KILL);
    }
    true
}

/// The children of a process; none if it is gone.
pub(super) fn children(of: i32) -> Vec<i32> {
    if !lists_children() {
        return scan(of);
    }
    let mut found = Vec::new();
    for list in list_files(of) {
        let _ = for_each_piece(list, |pids| found.extend(pids));
    }
    found
}

/// Whether this kernel keeps lists of children.
fn lists_children() -> bool {
    static LISTED: OnceLock<bool> = OnceLock::new();
    *LISTED.get_or_init(|| fs::exists("/proc/thread-self/children").unwrap_or(false))
}

/// The lists of the children of each thread of a process.
fn list_files(of: i32) -> impl Iterator<Item = fs::File> {
    let tasks = fs::read_dir(format!("/proc/{of}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.filter_map(|task| fs::File::open(task.path().join("children")).ok())
}

/// Hands over a list of children piece by piece, each as soon as the kernel
/// gives it, the oldest first.
fn for_each_piece(mut list: impl io::Read, mut take: impl FnMut(Vec<i32>)) -> io::Result<()> {
    let mut bytes = [0; 4096];
    let mut kept = 0;
    loop {
        let count = list.read(&mut bytes[kept..])?;
        let filled = kept + count;
        // Each number is followed by a space.
        let whole = bytes[..filled].iter().rposition(|byte| *byte == b' ');
        let whole = whole.map_or(0, |space| space + 1);
        let text = std::str::from_utf8(&bytes[..whole]).unwrap_or_default();
        let pids = text.split_ascii_whitespace();
        take(pids.filter_map(|pid| pid.parse().ok()).collect());
        if count == 0 {
            return Ok(());
        }
        bytes.copy_within(whole..filled, 0);
        kept = filled - whole;
    }
}

/// The same by asking every process of the machine for its parent: for
/// kernels that keep no lists of children, and to make sure.
fn scan(of: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(of)).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    stat(&pid.to_string(), 1)
}

fn session_of(process: &str) -> Option<i32> {
    stat(process, 3)
}

/// A field of `/proc/PID/stat`: "PID (NAME) STATE PARENT GROUP SESSION ...",
/// counted from STATE, because the name may hold anything, closing brackets
/// included.
fn stat(process: &str, field: usize) -> Option<i32> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(field)?.parse().ok()
}
