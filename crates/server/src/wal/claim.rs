//! That a directory is this process's own, as long as it writes there.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Which file it is that this process has open, and where it was found.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    held: FileStat,
}

/// What tells a file from others, and from one that was cut off.
#[derive(Debug)]
struct FileStat {
    device: u64,
    inode: u64,
    bytes: u64,
}

impl FileStat {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
        }
    }

    /// What is at a path. It asks for no times: since Linux 6.13 a file whose times were
    /// asked for gets a new time at its next write, and a sync writes that too. Asked after
    /// each sync, that is one more write to the disk for each sync.
    fn at(path: &Path) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
            let wanted = StatxFlags::INO | StatxFlags::SIZE;
            if let Ok(found) = statx(CWD, path, AtFlags::empty(), wanted) {
                return Ok(Self {
                    device: makedev(found.stx_dev_major, found.stx_dev_minor),
                    inode: found.stx_ino,
                    bytes: found.stx_size,
                });
            }
        }
        // Other systems, and those where statx is not allowed. It fails as statx failed.
        std::fs::metadata(path).map(|it| Self::of(&it))
    }
}

impl Place {
    pub(super) fn of(path: PathBuf, file: &File) -> io::Result<Self> {
        let held = FileStat::of(&file.metadata()?);
        Ok(Self { path, held })
    }

    /// Fails, with what was found, if the path has no file, another file, or a shorter one. A
    /// file that has lost this name may have others (hard links).
    pub(super) fn check(&self) -> Result<(), String> {
        let (held, found) = (&self.held, FileStat::at(&self.path));
        let found = found.map_err(|error| error.to_string())?;
        if (found.device, found.inode) != (held.device, held.inode) {
            return Err("another file".to_owned());
        }
        if found.bytes < held.bytes {
            let (bytes, of) = (found.bytes, held.bytes);
            return Err(format!("it cut to {bytes} of {of} bytes"));
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn another_file_at_the_path_is_noticed_and_so_is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("1.wal");
        let file = File::create(&path).expect("created");
        let place = Place::of(path.clone(), &file).expect("found");
        place.check().expect("it is there");
        std::fs::rename(&path, dir.path().join("2.wal")).expect("renamed");
        place.check().expect_err("nothing is there");
        File::create(&path).expect("created");
        assert_eq!(place.check().expect_err("another"), "another file");
    }

    #[test]
    fn a_file_that_was_cut_off_is_noticed_also_when_it_was_written_since() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("1.wal");
        let file = File::create(&path).expect("created");
        file.set_len(4_096).expect("room");
        let place = Place::of(path.clone(), &file).expect("found");
        file.set_len(8_192).expect("room");
        place.check().expect("more is no loss");
        File::create(&path).expect("cut off");
        file.write_all_at(b"entry", 512).expect("written");
        assert_eq!(
            place.check().expect_err("cut off"),
            "it cut to 517 of 4096 bytes"
        );
    }

    /// A write after a check that asked for times has a time of its own, by the exact clock.
    /// Otherwise it has the time of the last write that had one, or of the last tick, some
    /// milliseconds ago. Systems before Linux 6.13 have the latter alone.
    #[test]
    fn a_check_makes_no_later_write_change_the_times_of_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let make = |name: &str| {
            let path = dir.path().join(name);
            let file = File::create(&path).expect("created");
            (Place::of(path, &file).expect("found"), file)
        };
        let ((place, file), (_, other)) = (make("1.wal"), make("other"));
        let write = |file: &File| file.write_all_at(b"entry", 0).expect("written");
        let time = |file: &File| {
            let metadata = file.metadata().expect("it is open");
            (metadata.mtime(), metadata.mtime_nsec())
        };
        let own_times = (0..200)
            .filter(|_| {
                write(&file);
                place.check().expect("it is there");
                time(&other);
                write(&other);
                let before = time(&other);
                write(&file);
                time(&file) > before
            })
            .count();
        assert!(own_times < 100, "{own_times} of 200 writes had one");
    }
}
