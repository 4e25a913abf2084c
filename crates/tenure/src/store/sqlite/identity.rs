//! Which file it is, and whether it goes by one name.
//!
//! SQLite coordinates processes by locks of the kernel, which belong to the
//! *inode*, and by a journal that lies beside the *name*. Two processes that
//! reach one inode by two names exclude each other, and see each other's
//! writes; but if one of them dies in the middle of a write, its journal lies
//! beside its own name, and a process that comes by the other name takes half a
//! write for a whole one. So a file with a second name is refused when it is
//! opened: one with a second hard link, and one that is itself a mount point,
//! as `docker run -v x.db:/y.db` makes it. A directory that is mounted brings
//! the journal along and is all right.
//!
//! A file that is moved, with a symbolic link in its old place, is one inode under two
//! names as well: who had it open goes on with the journal beside the old name. So the
//! name that links lead to is part of what a file is known by.
//!
//! What can be seen of a path is seen by stat(2) alone. A file that was
//! opened here outside SQLite would have to be closed here, and closing any
//! descriptor of a file drops all POSIX locks that this process has on it,
//! those of SQLite among them. For the same reason a new file is made without
//! opening it (`FileMode::create`).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// Device, inode, and the name without symbolic links. A file system gives the inode
/// number of a file to no other while the file is open. So equal identities are one file
/// as long as a connection is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    name: PathBuf,
}

/// What a path leads to.
#[derive(Clone, Debug)]
pub(super) struct FileInfo {
    pub(super) identity: Identity,
    /// How many names the file has.
    pub(super) hard_links: u64,
    /// It is a plain file.
    plain: bool,
}

/// What the path leads to now.
pub(super) fn stat(path: &Path) -> io::Result<FileInfo> {
    let file = fs::metadata(path)?;
    let identity = Identity {
        device: file.dev(),
        inode: file.ino(),
        name: fs::canonicalize(path)?,
    };
    Ok(FileInfo {
        identity,
        hard_links: file.nlink(),
        plain: file.is_file(),
    })
}

/// Refuses what is no plain file, and a file that goes by a second name.
pub(super) fn refuse_second_name(path: &Path, found: &FileInfo) -> Result<(), StoreError> {
    let place = path.display();
    if !found.plain {
        return Err(StoreError::broken(format!(
            "expected {place} to be a plain file, or nothing yet, found a directory, a device or \
             a pipe; name another path"
        )));
    }
    if found.hard_links > 1 {
        return Err(StoreError::broken(format!(
            "expected {place} to have one name, found {} hard links to it: SQLite would look for \
             its journal beside another name, and take half a write for a whole one; copy the \
             file, or remove the other names",
            found.hard_links
        )));
    }
    if is_mount_point(path) {
        return Err(StoreError::broken(format!(
            "expected {place} in a directory that is mounted as a whole, found the file mounted \
             alone: SQLite would look for its journal beside another name; mount the directory"
        )));
    }
    Ok(())
}

/// Whether the file itself is where something is mounted.
fn is_mount_point(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
        let said = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS);
        if let Ok(said) = said
            && said
                .stx_attributes_mask
                .contains(StatxAttributes::MOUNT_ROOT)
        {
            return said.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        }
    }
    // Linux before 5.8 does not say it there.
    let (Ok(path), Ok(mounts)) = (
        fs::canonicalize(path),
        fs::read_to_string("/proc/self/mountinfo"),
    ) else {
        return false;
    };
    is_listed(&mounts, &path)
}

/// Whether a text like `/proc/self/mountinfo` has this mount point. There
/// white space and backslashes are written as octal numbers.
fn is_listed(mounts: &str, path: &Path) -> bool {
    let mut escaped = Vec::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => {
                escaped.extend_from_slice(format!("\\{byte:03o}").as_bytes());
            }
            byte => escaped.push(*byte),
        }
    }
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.any(|point| point.as_bytes() == escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_in_the_table() {
        let mounts = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
35 21 8:1 /host.db /data/my\\040app.db rw - ext4 /dev/sda1 rw
";
        assert!(is_listed(mounts, Path::new("/data/my app.db")));
        assert!(is_listed(mounts, Path::new("/")));
        assert!(!is_listed(mounts, Path::new("/data/my")));
        assert!(!is_listed(mounts, Path::new("/host.db")));
    }

    #[test]
    fn what_is_no_plain_file_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("within")).expect("a directory");
        for path in [directory.path(), Path::new("/dev/null")] {
            let found = stat(path).expect("it is there");
            let refused = refuse_second_name(path, &found).expect_err("no file");
            assert!(refused.to_string().contains("plain file"), "{refused}");
        }
    }

    #[test]
    fn a_file_that_was_moved_behind_a_link_is_another() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, moved) = (directory.path().join("a.db"), directory.path().join("b.db"));
        fs::write(&path, "").expect("a file");
        let before = stat(&path).expect("a file").identity;
        fs::rename(&path, &moved).expect("moved");
        std::os::unix::fs::symlink(&moved, &path).expect("a link");
        let after = stat(&path).expect("a file").identity;
        assert_ne!(before, after);
        assert_eq!(after, stat(&moved).expect("a file").identity);
    }

    #[test]
    fn a_second_hard_link_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.db");
        fs::write(&path, "").expect("a file");
        let one = stat(&path).expect("a file");
        refuse_second_name(&path, &one).expect("one name");
        fs::hard_link(&path, directory.path().join("b.db")).expect("a link");
        let two = stat(&path).expect("a file");
        assert_eq!(one.identity, two.identity);
        let refused = refuse_second_name(&path, &two).expect_err("two names");
        assert!(refused.to_string().contains("2 hard links"), "{refused}");
    }
}
