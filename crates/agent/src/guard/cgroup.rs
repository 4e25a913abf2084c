//! A cgroup for CMD, where one can be had: `cgroup.kill` ends all in it at
//! one stroke, even a program that forks faster than it can be killed.
//!
//! The cgroup is a child of the one that the guardian is in, and is named after
//! the guardian, so the supervisor finds it without a message. It is made while
//! standing by. A failure is not reported: no cgroup v2, not writable (nothing
//! delegated to this user), or a kernel before 5.14. The cgroup limits and
//! measures nothing. `TENURE_CGROUP=off` turns it off. The tree of processes
//! (`tree.rs`) is ended in any case, because a privileged CMD may leave its
//! cgroup.

use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup of our own; removed when dropped.
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes the cgroup of the guardian with this process id.
    pub(super) fn make(guardian: i32) -> Option<Self> {
        if std::env::var_os("TENURE_CGROUP").is_some_and(|value| value == "off") {
            return None;
        }
        let dir = path(guardian)?;
        fs::create_dir(&dir).ok()?;
        let cgroup = Self(dir);
        cgroup.0.join("cgroup.kill").exists().then_some(cgroup)
    }

    /// The one a guardian made, if it did.
    pub(super) fn find(guardian: i32) -> Option<Self> {
        let dir = path(guardian)?;
        dir.join("cgroup.kill").exists().then_some(Self(dir))
    }

    /// Moves a process, and all it will start, into the group.
    pub(super) fn add(&self, pid: i32) {
        let _ = fs::write(self.0.join("cgroup.procs"), pid.to_string());
    }

    /// KILLs everything in it.
    pub(super) fn kill(&self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Where the cgroup of a guardian is: below the one this process is in.
fn path(guardian: i32) -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let dir = mounts.lines().find_map(|line| below_mount(line, own))?;
    Some(dir.join(format!("tenure-{guardian}")))
}

/// Where `own` is, if this line of mountinfo ("ID PARENT DEV ROOT POINT
/// OPTIONS... - TYPE ...") is a mount of cgroup v2 that shows it.
fn below_mount(line: &str, own: &str) -> Option<PathBuf> {
    let (mount, kind) = line.split_once(" - ")?;
    if !kind.starts_with("cgroup2 ") {
        return None;
    }
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let rest = Path::new(own).strip_prefix(root).ok()?;
    let inside = !rest.components().any(|part| part.as_os_str() == "..");
    inside.then(|| Path::new(point).join(rest))
}
