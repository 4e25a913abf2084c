//! How a disk is made to be small, full or slow, or to fail, and a clock to be
//! elsewhere, on a machine on which nothing is wrong with either.
//!
//! A small disk is a file system in memory, which only a room of the test's
//! own can mount. It is full when it is made no larger than what is in it.
//! Slow and failing ones are made by `strace`, which holds up a server's
//! `fdatasync`, or answers it with an error, from the server's start on or for
//! as long as it is attached: the server is the released one and knows nothing
//! of it. Clocks are elsewhere by namespaces of the kernel's.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::room::{can, sh, try_sh};
use crate::servers::{Servers, until};

/// What is traced of a server, for whatever is to be done to its syncs.
const SYNCS: &str = "trace=fdatasync";

/// A file system of this size for a server's data.
pub(crate) fn small_disk(servers: &mut Servers, server: u64, size: &str) {
    let place = PathBuf::from(format!("/mnt/{server}"));
    if server == 1 {
        // Of its own, to make directories in.
        sh("mount -t tmpfs none /mnt");
    }
    let path = place.display();
    sh(&format!(
        "mkdir -p {path}; mount -t tmpfs -o size={size} full {path}"
    ));
    servers.keep_data_in(server, place.join("data"));
}

pub(crate) fn resize(server: u64, size: &str) {
    sh(&format!("mount -o remount,size={size} /mnt/{server}"));
}

/// Takes all the room that is left, as somebody else's data would. Whether
/// that was done: it is not if the server takes some in the same moment.
pub(crate) fn fill_up(server: u64) -> bool {
    let used = "stat -f -c 'block=%S all=%b free=%f'";
    can(&format!(
        "eval $({used} /mnt/{server}); \
         mount -o remount,size=$((block * (all - free))) /mnt/{server}"
    ))
}

/// What `strace` does to each sync of a server, from its next start on.
pub(crate) fn strace(servers: &mut Servers, server: u64, inject: &str) {
    let inject = format!("inject=fdatasync:{inject}");
    let prefix = ["strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null"];
    let prefix = [&prefix[..], &["-e", SYNCS, "-e", &inject]].concat();
    servers.wrap(server, &prefix, &[]);
}

/// Whether a process can be traced here.
pub(crate) fn traceable() -> bool {
    can(&format!(
        "strace -D -f --seccomp-bpf -o /dev/null -e {SYNCS} true"
    ))
}

/// A `strace` that does something to the syncs of a server that runs.
pub(crate) struct Tracer {
    child: Child,
    /// Whose syncs.
    pub(crate) pid: u32,
    /// What it writes down: a line for each sync.
    lines: PathBuf,
}

impl Tracer {
    pub(crate) fn attach(pid: u32, inject: &str, lines: &Path) -> Self {
        let child = Command::new("strace")
            .args(["-f", "-q", "-p", &pid.to_string()])
            .args(["-e", SYNCS, "-e", &format!("inject=fdatasync:{inject}")])
            .arg("-o")
            .arg(lines)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("strace");
        Self {
            child,
            pid,
            lines: lines.to_owned(),
        }
    }

    /// Whether it has ended, as it does with the process that it traces.
    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Lets the server go; to how many syncs something was done.
    pub(crate) async fn detach(mut self) -> usize {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // It may have ended by itself.
        let _ = kill_process(pid.expect("a process id"), Signal::TERM);
        until("the end of strace", async || {
            self.child.try_wait().expect("a child")
        })
        .await;
        let lines = std::fs::read_to_string(&self.lines).unwrap_or_default();
        let done = |line: &&str| line.contains("(DELAYED)") || line.contains("(INJECTED)");
        lines.lines().filter(done).count()
    }
}

/// What stands before the command of a server whose clock since boot is so
/// many seconds ahead.
pub(crate) fn ahead_by(seconds: u64) -> Vec<String> {
    let seconds = seconds.to_string();
    let words = ["unshare", "--time", "--monotonic", &seconds];
    let words = [&words[..], &["--boottime", &seconds]].concat();
    words.into_iter().map(str::to_owned).collect()
}

/// Whether clocks can be moved here.
pub(crate) fn clocks_move() -> bool {
    can("unshare --time --boottime 1000 true")
}

/// How far a process' clock is ahead of this process', by what a program in
/// its namespace reads; none if it has ended.
pub(crate) fn ahead(pid: u32) -> Option<f64> {
    let seconds = |text: String| text.split(' ').next().and_then(|it| it.parse::<f64>().ok());
    let theirs = try_sh(&format!(
        "nsenter --time=/proc/{pid}/ns/time cat /proc/uptime"
    ));
    let ours = sh("cat /proc/uptime");
    Some(seconds(theirs?)? - seconds(ours)?)
}

/// What a server's calendar is off is in this file, if its command has
/// [`calendar_hook`] before it.
pub(crate) fn set_calendar(file: &Path, days: i64) {
    const DAY_MILLIS: i64 = 86_400_000;
    let new = file.with_extension("new");
    std::fs::write(&new, (days * DAY_MILLIS).to_string()).expect("a file");
    std::fs::rename(&new, file).expect("the new one in its place");
}

/// Has a debug build look into that file whenever it looks at its calendar.
pub(crate) fn calendar_hook(file: &Path) -> [String; 2] {
    let hook = format!("TENURE_TEST_CALENDAR_FILE={}", file.display());
    ["env".to_owned(), hook]
}

/// The date in so many days, and a minute before or after that.
pub(crate) fn date(days: i64, minutes: i64) -> String {
    let text = sh(&format!("date -u -d '{days} days {minutes} minutes' +%F"));
    text.trim().to_owned()
}
