//! Who may use a store of files beside its owner.

#[cfg(feature = "sqlite")]
use std::fs::{OpenOptions, Permissions};
#[cfg(feature = "sqlite")]
use std::io;
#[cfg(feature = "sqlite")]
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::error::StoreError;

/// The mode of a file that a store makes.
///
/// Who may read the file may also lock it, and keep everybody from leading; so
/// nobody but its owner may, unless the URL says otherwise. A directory of registers
/// has the same mode, and may be searched by those who may read it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FileMode {
    /// 0600: its owner alone reads and writes.
    #[default]
    Owner,
    /// 0640: its group reads.
    GroupReads,
    /// 0660: its group reads and writes.
    GroupWrites,
}

impl FileMode {
    /// What stands in a URL, `0600`, `0640` or `0660`.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if it is something else.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "0600" => Ok(Self::Owner),
            "0640" => Ok(Self::GroupReads),
            "0660" => Ok(Self::GroupWrites),
            _ => Err(StoreError::broken(format!(
                "expected mode=0600, mode=0640 or mode=0660, found mode={text}"
            ))),
        }
    }

    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::GroupReads => 0o640,
            Self::GroupWrites => 0o660,
        }
    }

    /// The same for a directory: 0700, 0750 or 2770, in which files get its group.
    #[cfg(feature = "file")]
    pub(super) const fn directory_bits(self) -> u32 {
        match self {
            Self::Owner => 0o700,
            Self::GroupReads => 0o750,
            Self::GroupWrites => 0o2770,
        }
    }

    /// Makes a file of this mode under any umask. Fails if one is there.
    ///
    /// Another thread may open the file as a database as soon as it is there. Closing a
    /// descriptor of it here would then drop the POSIX locks of that connection. So on
    /// Linux the file is made by mknod(2), which opens nothing. Where that fails, or
    /// there is no `/proc` by which to give another mode, it is made by open(2), and its
    /// descriptor stays open until the process ends.
    #[cfg(feature = "sqlite")]
    pub(super) fn create(self, path: &Path) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if (self == Self::Owner || unopened::can_set_mode()) && unopened::make(path).is_ok() {
            return match self {
                Self::Owner => Ok(()),
                _ => unopened::set_mode(path, self.bits()),
            };
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(path)?;
        let result = match self {
            Self::Owner => Ok(()),
            _ => file.set_permissions(Permissions::from_mode(self.bits())),
        };
        std::mem::forget(file);
        result
    }

    /// Says so if others may use the file who are not meant to.
    pub(super) fn warn_if_wider(self, path: &Path) {
        let found = std::fs::metadata(path).map_or(0, |it| it.permissions().mode() & 0o777);
        let wanted = if path.is_dir() {
            self.bits() | (self.bits() & 0o444) >> 2
        } else {
            self.bits()
        };
        if found & !wanted & 0o077 != 0 {
            let path = path.display();
            tracing::warn!(
                "{path}: expected mode {wanted:04o}, found {found:04o}: other accounts of this \
                 machine can read it, and who can read it can keep everybody from leading; chmod \
                 {wanted:04o} {path}, or say who shall ({path}?mode=0640 or ?mode=0660)"
            );
        }
    }
}

/// A file that is made and changed while no descriptor of it is opened whose closing
/// drops locks.
#[cfg(all(feature = "sqlite", target_os = "linux"))]
mod unopened {
    use std::fs::Permissions;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::path::Path;
    use std::{fs, io};

    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};

    /// Makes an empty file of mode 0600. Fails if anything has that name.
    pub(super) fn make(path: &Path) -> io::Result<()> {
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(mknodat(CWD, path, FileType::RegularFile, mode, 0)?)
    }

    /// Whether `/proc` is there, which names a file without opening it.
    pub(super) fn can_set_mode() -> bool {
        Path::new("/proc/self/fd").is_dir()
    }

    /// Gives the mode to the file that has this name now, and to none that a symbolic
    /// link leads to. The kernel drops no locks when a descriptor of `O_PATH` is closed:
    /// it refers to a place and is no open file.
    pub(super) fn set_mode(path: &Path, bits: u32) -> io::Result<()> {
        let place = open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
        let link = format!("/proc/self/fd/{}", place.as_raw_fd());
        let found = fs::metadata(&link)?;
        // Another user of the directory may have put another name of a file of ours there.
        if !found.is_file() || found.nlink() != 1 {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::set_permissions(&link, Permissions::from_mode(bits))
    }

    #[cfg(test)]
    mod tests {
        use rustix::fs::{FlockOperation, fcntl_lock};

        use super::*;

        /// Whether a lock is held on the file.
        fn is_locked(path: &Path) -> bool {
            let inode = format!(":{} ", fs::metadata(path).expect("a file").ino());
            let locks = fs::read_to_string("/proc/locks").expect("what the kernel tells");
            locks.lines().any(|line| line.contains(&inode))
        }

        #[test]
        fn a_mode_is_given_without_dropping_the_locks_of_this_process() {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("a.db");
            make(&path).expect("a new file");
            let locked = fs::File::options().write(true).open(&path);
            let locked = locked.expect("the file");
            fcntl_lock(&locked, FlockOperation::LockExclusive).expect("a lock");
            set_mode(&path, 0o640).expect("another mode");
            assert!(is_locked(&path));
            let mode = fs::metadata(&path).expect("a file").mode();
            assert_eq!(mode & 0o777, 0o640);
            // That is what must not happen.
            drop(fs::File::open(&path).expect("the file"));
            assert!(!is_locked(&path));
        }

        #[test]
        fn what_is_there_is_neither_made_again_nor_followed() {
            let directory = tempfile::tempdir().expect("a directory");
            let (path, link) = (directory.path().join("a"), directory.path().join("b"));
            fs::write(&path, "held").expect("a file");
            std::os::unix::fs::symlink(&path, &link).expect("a link");
            let before = fs::metadata(&path).expect("a file").mode();
            for name in [&path, &link] {
                let refused = make(name).expect_err("something is there");
                assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            }
            set_mode(&link, 0o666).expect_err("a link");
            fs::hard_link(&path, directory.path().join("c")).expect("another name");
            set_mode(&path, 0o666).expect_err("a file with two names");
            assert_eq!(fs::metadata(&path).expect("a file").mode(), before);
            assert_eq!(fs::read(&path).expect("a file"), b"held");
        }
    }
}
