//! That a directory is this process's own, as long as it writes there.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// That a directory belongs to this process: the lock file at its path is the
/// one that this process has locked.
#[derive(Debug)]
pub(super) struct Claim {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Claim {
    pub(super) fn of(path: PathBuf, lock: &File) -> io::Result<Self> {
        let found = lock.metadata()?;
        Ok(Self {
            path,
            device: found.dev(),
            inode: found.ino(),
        })
    }

    /// Fails where the directory was replaced by another one, or its lock was
    /// removed. What is written then goes to files that the next start does
    /// not find, or that another process writes too, so it must not be
    /// acknowledged.
    pub(super) fn check(&self) -> io::Result<()> {
        let found = std::fs::metadata(&self.path);
        if matches!(&found, Ok(it) if (it.dev(), it.ino()) == (self.device, self.inode)) {
            return Ok(());
        }
        let found = match found {
            Ok(_) => "another file".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(io::Error::other(format!(
            "expected {} to be the file that this server has locked, found {found}: its data \
             directory was removed or replaced while it ran, or another process took the lock \
             away; end all servers that use it, and put the directory back that was there before",
            self.path.display()
        )))
    }
}
