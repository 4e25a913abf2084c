//! Whether files lie where the locks of one machine reach all who use them.
//!
//! Stores of files coordinate processes by locks of the kernel, and date grants by
//! its boot-time clock. A server locks its data directory, and `tenure fence` the mark.
//! On a file system that several machines (or a host and its guests) mount, each kernel
//! may keep locks of its own, and two would lead. This module tells such file systems
//! from local ones by their kind. Each caller decides what it refuses, and with which
//! error.
//!
//! Some are **cluster file systems**: their locks are the same for all machines, and
//! a machine that falls silent is cut off from the disk *before* what it held is
//! given to another (fencing of nodes, a blocklist of clients). NFS and SMB do not
//! have that: a client that was silent for too long loses its locks, wakes up in
//! the middle of a write, and is let go on with it.
//!
//! FUSE is the one kind that says nothing by itself. A local encrypted directory has
//! it. So has a network file system, and a second view of a local directory, whose
//! locks the directory does not see. There the name in the table of mounts decides.
//! A name passes if it is known to be that of a local file system with one view of
//! its files. Any other name does not, and neither does a mount that the table lacks.
//!
//! Left out: the program that mounts chooses the name, and may lie. One encrypted
//! directory that is mounted twice has two views.

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

/// What a host shares with its guests. It has FUSE's number.
const VIRTIOFS: &str = "virtiofs";

/// FUSE file systems of one machine with one view of their files, by their names
/// among the mounts. One on a block device may have the name of its program after it.
const LOCAL_FUSE: [&str; 6] = [
    "fuseblk",
    "fuse.fuse-overlayfs",
    "fuse.gocryptfs",
    "fuse.cryfs",
    "fuse.encfs",
    "fuse.securefs",
];

/// What a FUSE file system is called that is not among the mounts.
const NOT_LISTED: &str = "a FUSE file system that /proc/self/mountinfo does not list";

/// Those of them whose machines are cut off before their locks are given away.
const FENCED: [&str; 4] = ["Ceph", "GFS2", "OCFS2", "GPFS"];

/// A file system whose locks may not reach all who use its files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedFilesystem {
    /// What it is called.
    pub name: String,
    /// It is one of FUSE: virtiofs, or one that is not known to be local.
    pub is_fuse: bool,
}

impl SharedFilesystem {
    /// Whether a machine that falls silent is cut off before its locks are given
    /// to another.
    pub fn is_fenced(&self) -> bool {
        FENCED.contains(&self.name.as_str())
    }

    /// Whether machines share it. Else that is not known.
    pub fn is_between_machines(&self) -> bool {
        !self.is_fuse || self.name == VIRTIOFS
    }

    /// What an error says was found: its name, and what is wrong with it.
    pub fn found(&self) -> String {
        let name = &self.name;
        if self.is_between_machines() {
            return format!("{name}, which machines share");
        }
        format!("{name}, of which it is not known that all who use its files share locks")
    }
}

/// The file system of a path, or of the directory above it that is there, if its
/// locks may not reach all who use it. What cannot be found out is left to those who
/// open the file, who fail in words of their own.
pub fn shared_at(path: &Path) -> Option<SharedFilesystem> {
    let named = path.ancestors().map(|at| match at.as_os_str().is_empty() {
        true => Path::new("."),
        false => at,
    });
    let (at, kind) = named
        .filter_map(|at| Some((at, rustix::fs::statfs(at).ok()?.f_type)))
        .next()?;
    // A number of 32 bits, whose sign differs between architectures.
    let kind = u64::try_from(i128::from(kind) & 0xffff_ffff).unwrap_or_default();
    let mounts = || {
        let device = fs::metadata(at).ok()?.dev();
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        mounted_as(&mounts, device).map(str::to_owned)
    };
    shared(kind, mounts)
}

/// The file system if its locks may not reach all; `mounted` finds the name among the
/// mounts.
fn shared(kind: u64, mounted: impl FnOnce() -> Option<String>) -> Option<SharedFilesystem> {
    if kind == FUSE {
        let name = mounted().unwrap_or_else(|| NOT_LISTED.to_owned());
        let is_fuse = true;
        return (!is_local_fuse(&name)).then_some(SharedFilesystem { name, is_fuse });
    }
    let found = SHARED.iter().find(|(number, _)| *number == kind);
    found.map(|(_, name)| SharedFilesystem {
        name: (*name).to_owned(),
        is_fuse: false,
    })
}

fn is_local_fuse(name: &str) -> bool {
    LOCAL_FUSE.contains(&name) || name.starts_with("fuseblk.")
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
37 21 0:43 / /again rw - fuse /real rw,user_id=0
38 21 0:44 / /weed rw - fuse.seaweedfs seaweedfs:8888:/ rw
39 21 8:17 / /usb rw - fuseblk.ext4 /dev/sdb1 rw
";

    fn judged(kind: u64, device: u64) -> Option<String> {
        let found = shared(kind, || mounted_as(MOUNTS, device).map(str::to_owned));
        found.map(|it| it.name)
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
    }

    #[test]
    fn a_fuse_file_system_is_taken_if_it_is_known_to_be_local() {
        for (major, minor, refused) in [
            (0, 43, Some("fuse")),
            (0, 44, Some("fuse.seaweedfs")),
            (8, 17, None),
            (0, 99, Some(NOT_LISTED)),
        ] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(judged(FUSE, device).as_deref(), refused);
        }
        for (name, is_local) in [
            ("fuseblk", true),
            ("fuse.fuse-overlayfs", true),
            ("fuse.cryfs", true),
            ("fuse.encfs", true),
            ("fuse.securefs", true),
            ("fuse.bindfs", false),
            ("fuse.sshfs", false),
            ("fuse.gocryptfs2", false),
            ("fuseblkx", false),
            ("", false),
        ] {
            let found = shared(FUSE, || Some(name.to_owned()));
            assert_eq!(found.is_none(), is_local, "{name}");
        }
    }

    #[test]
    fn it_is_said_whether_machines_share_it_or_that_is_not_known() {
        let found = |name: &str| {
            let found = shared(FUSE, || Some(name.to_owned()));
            found.expect("it is refused").found()
        };
        assert_eq!(found("virtiofs"), "virtiofs, which machines share");
        let unknown =
            "fuse.bindfs, of which it is not known that all who use its files share locks";
        assert_eq!(found("fuse.bindfs"), unknown);
    }

    #[test]
    fn a_temporary_directory_will_do() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(shared_at(&directory.path().join("tenure.db")), None);
    }

    #[test]
    fn cluster_file_systems_are_told_from_those_that_let_a_late_client_go_on() {
        let fenced = |kind| {
            let found = shared(kind, || None).expect("a shared one");
            found.is_fenced()
        };
        for cluster in [0x00c3_6400, 0x0116_1970, 0x7461_636f, 0x4750_4653] {
            assert!(fenced(cluster), "{cluster:x}");
        }
        for other in [0x6969, 0xff53_4d42, 0x0102_1997, 0x0bd0_0bd0, 0x5346_414f] {
            assert!(!fenced(other), "{other:x}");
        }
    }
}
