//! Whether files lie where the locks of one machine reach all who use them.
//!
//! Stores of files coordinate processes by locks of the kernel, and date grants by
//! its boot-time clock. On a file system that several machines (or a host and its
//! guests) mount, each kernel may keep locks of its own, and two would lead. So such
//! file systems are told from local ones by their kind, and what is refused, and in
//! which words, each store says.
//!
//! Some are **cluster file systems**: their locks are the same for all machines, and
//! a machine that falls silent is cut off from the disk *before* what it held is
//! given to another (fencing of nodes, a blocklist of clients). NFS and SMB do not
//! have that: a client that was silent for too long loses its locks, wakes up in
//! the middle of a write, and is let go on with it.
//!
//! FUSE is the one kind that says nothing by itself: a local encrypted
//! directory has it and so has a directory shared with a host. There the name
//! in the table of mounts decides, and an unknown name is let pass.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// File systems that machines share, by the number that statfs(2) gives.
const SHARED: [(u64, &str); 13] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x4750_4653, "GPFS"),
    (0x786f_4256, "a shared folder of VirtualBox"),
];

const FUSE: u64 = 0x6573_5546;

/// The same among those of FUSE's number, by their name among the mounts.
const SHARED_FUSE: [&str; 12] = [
    "virtiofs",
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.s3fs",
    "fuse.rclone",
    "fuse.gcsfuse",
    "fuse.juicefs",
    "fuse.mfs",
    "fuse.vmhgfs-fuse",
    "fuse.grpcfuse",
];

/// Those of them whose machines are cut off before their locks are given away.
const FENCED: [&str; 4] = ["Ceph", "GFS2", "OCFS2", "GPFS"];

/// A file system that machines share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedFilesystem {
    /// What it is called.
    pub name: String,
}

impl SharedFilesystem {
    /// Whether a machine that falls silent is cut off before its locks are given
    /// to another.
    pub fn is_fenced(&self) -> bool {
        FENCED.contains(&self.name.as_str())
    }
}

/// The file system of a path, or of its directory if nothing is there yet, if
/// machines share it. What cannot be found out is left to those who open the file,
/// who fail in words of their own.
pub fn shared_at(path: &Path) -> Option<SharedFilesystem> {
    let exists = [Some(path), path.parent()].into_iter().flatten();
    let (at, kind) = exists
        .filter_map(|at| Some((at, rustix::fs::statfs(at).ok()?.f_type)))
        .next()?;
    // A number of 32 bits, whose sign differs between architectures.
    let kind = u64::try_from(i128::from(kind) & 0xffff_ffff).unwrap_or_default();
    let mounts = || {
        let device = fs::metadata(at).ok()?.dev();
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        mounted_as(&mounts, device).map(str::to_owned)
    };
    let name = shared(kind, mounts)?;
    Some(SharedFilesystem { name })
}

/// What it is called if machines share it; `mounted` finds the name among the
/// mounts.
fn shared(kind: u64, mounted: impl FnOnce() -> Option<String>) -> Option<String> {
    if kind == FUSE {
        return mounted().filter(|name| SHARED_FUSE.contains(&name.as_str()));
    }
    let found = SHARED.iter().find(|(number, _)| *number == kind);
    found.map(|(_, name)| (*name).to_owned())
}

/// The type of the file system on this device, in a text like
/// `/proc/self/mountinfo`.
fn mounted_as(mounts: &str, device: u64) -> Option<&str> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = format!("{major}:{minor}");
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some(device.as_str()))?;
    line.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
35 21 0:41 / /shared rw - virtiofs host rw
36 21 0:42 / /secret rw shared:3 - fuse.gocryptfs /cipher rw
";

    fn judged(kind: u64, device: u64) -> Option<String> {
        shared(kind, || mounted_as(MOUNTS, device).map(str::to_owned))
    }

    #[test]
    fn file_systems_that_machines_share_are_told_from_local_ones() {
        let (disk, host, secret) = (
            rustix::fs::makedev(8, 1),
            rustix::fs::makedev(0, 41),
            rustix::fs::makedev(0, 42),
        );
        let (ext4, tmpfs, overlay, nfs) = (0xef53, 0x0102_1994, 0x794c_7630, 0x6969);
        for local in [ext4, tmpfs, overlay] {
            assert_eq!(judged(local, disk), None);
        }
        assert_eq!(judged(nfs, disk).as_deref(), Some("NFS"));
        assert_eq!(judged(0xff53_4d42, disk).as_deref(), Some("CIFS"));
        assert_eq!(judged(0x0102_1997, disk).as_deref(), Some("9p"));
        assert_eq!(judged(FUSE, host).as_deref(), Some("virtiofs"));
        assert_eq!(judged(FUSE, secret), None);
        assert_eq!(judged(FUSE, rustix::fs::makedev(0, 99)), None);
    }

    #[test]
    fn a_temporary_directory_will_do() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(shared_at(&directory.path().join("tenure.db")), None);
    }

    #[test]
    fn cluster_file_systems_are_told_from_those_that_let_a_late_client_go_on() {
        let fenced = |kind| {
            let name = shared(kind, || None).expect("a shared one");
            SharedFilesystem { name }.is_fenced()
        };
        for cluster in [0x00c3_6400, 0x0116_1970, 0x7461_636f, 0x4750_4653] {
            assert!(fenced(cluster), "{cluster:x}");
        }
        for other in [0x6969, 0xff53_4d42, 0x0102_1997, 0x0bd0_0bd0, 0x5346_414f] {
            assert!(!fenced(other), "{other:x}");
        }
    }
}
