//! Where the system lets us, a control group of the command's own.
//!
//! `cgroup.kill` ends all members at once, forks under way included; it is
//! the thorough way. It needs cgroup version 2 and a subtree that this user
//! may write (systemd's `Delegate=yes`, or root). Without it [`super::end`]
//! does the work by itself, so nothing here is ever an error.

use std::fs;
use std::path::{Path, PathBuf};

/// A group for one command; removed when dropped.
#[derive(Debug)]
pub(super) struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes a group below our own, if we may.
    pub(super) fn make() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))?
            .to_owned();
        let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .find(|root| Path::new(root).join("cgroup.procs").exists())?;
        let path = Path::new(root)
            .join(own)
            .join(format!("tenure-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Self { path };
        // Without the file the kernel is too old; the drop removes the group.
        group.path.join("cgroup.kill").exists().then_some(group)
    }

    /// Where it is, for the shim to join.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Kills every member.
    pub(super) fn kill(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// Moves this process into a group, if it can be.
pub(super) fn join(path: &Path) {
    let _ = fs::write(path.join("cgroup.procs"), "0");
}
