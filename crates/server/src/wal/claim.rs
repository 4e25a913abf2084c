//! That a directory is this process's own, as long as it writes there.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// Which file it is that this process has open, and where it was found.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Place {
    pub(super) fn of(path: PathBuf, file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            path,
            device: found.dev(),
            inode: found.ino(),
        })
    }

    /// Fails where something else is at the path, or nothing, with what is there. A file
    /// that has lost this name may have others (hard links).
    pub(super) fn check(&self) -> Result<(), String> {
        match std::fs::metadata(&self.path) {
            Ok(it) if (it.dev(), it.ino()) == (self.device, self.inode) => Ok(()),
            Ok(_) => Err("another file".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// That a directory belongs to this process: the lock file at its path is the
/// one that this process has locked.
#[derive(Debug)]
pub(super) struct Claim(Place);

impl Claim {
    pub(super) fn of(path: PathBuf, lock: &File) -> io::Result<Self> {
        Place::of(path, lock).map(Self)
    }

    /// Fails where the directory was replaced by another one, or its lock was
    /// removed. What is written then goes to files that the next start does
    /// not find, or that another process writes too, so it must not be
    /// acknowledged.
    pub(super) fn check(&self) -> io::Result<()> {
        let Err(found) = self.0.check() else {
            return Ok(());
        };
        Err(io::Error::other(format!(
            "expected {} to be the file that this server has locked, found {found}: its data \
             directory was removed or replaced while it ran, or another process took the lock \
             away; end all servers that use it, and put the directory back that was there before",
            self.0.path.display()
        )))
    }
}
