//! The output of a workload, in files of bounded size.
//!
//! Each instance writes into a pipe, whose other end is a thread here: it
//! copies what comes into `N.log`, and when that is full renames it to
//! `N.log.1`, and so on; the oldest is deleted. So an instance that floods its
//! output takes a bounded part of the disk and slows itself down, not the
//! agent: the pipe is full when the disk is slow. If the disk is full the
//! output is dropped, and how much is said when there is room again.
//!
//! It is a thread and not a task because files block, and a disk that hangs
//! must hang nothing but this.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::wire::LogLimits;

/// The most workloads whose output is kept after they have gone.
const KEPT: usize = 256;

/// The file of an instance.
pub(crate) fn file(logs: &Path, instance: u32) -> PathBuf {
    logs.join(format!("{instance}.log"))
}

/// The same one, so many rotations ago.
pub(crate) fn older(path: &Path, age: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{age}"));
    name.into()
}

/// Begins to keep the output of an instance; returns where it is to write.
pub(super) fn begin(logs: &Path, instance: u32, limits: LogLimits) -> io::Result<OwnedFd> {
    let mut directory = fs::DirBuilder::new();
    directory.recursive(true).mode(0o700).create(logs)?;
    let mut spool = Spool::open(file(logs, instance), limits)?;
    let (read, write) = io::pipe()?;
    std::thread::Builder::new()
        .name("tenure-output".into())
        .spawn(move || spool.copy(read))?;
    Ok(write.into())
}

/// Deletes the output of workloads that ended longest ago, beyond [`KEPT`].
pub(super) fn prune(directory: &Path, live: impl Fn(&Path) -> bool) {
    let entries = fs::read_dir(directory.join("logs")).into_iter().flatten();
    let mut old: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| !live(path))
        .map(|path| {
            let changed = fs::metadata(&path).and_then(|found| found.modified());
            (changed.ok(), path)
        })
        .collect();
    old.sort();
    let surplus = old.len().saturating_sub(KEPT);
    for (_, path) in old.drain(..surplus) {
        let _ = fs::remove_dir_all(path);
    }
}

struct Spool {
    path: PathBuf,
    limits: LogLimits,
    file: File,
    size: u64,
    lost: u64,
}

impl Spool {
    fn open(path: PathBuf, limits: LogLimits) -> io::Result<Self> {
        let file = Self::file(&path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            path,
            limits,
            file,
            size,
            lost: 0,
        })
    }

    fn file(path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).open(path)
    }

    fn copy(&mut self, mut from: io::PipeReader) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            match from.read(&mut bytes) {
                Ok(0) => return,
                Ok(count) => self.keep(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.lost > 0 {
            let note = format!("\ntenure: {} bytes of output were lost\n", self.lost);
            if self.write(note.as_bytes()).is_ok() {
                self.lost = 0;
            }
        }
        if self.write(bytes).is_err() {
            self.lost += bytes.len() as u64;
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.limits.bytes.saturating_sub(self.size);
            if room == 0 {
                self.rotate()?;
                continue;
            }
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let (part, after) = rest.split_at(rest.len().min(room));
            self.file.write_all(part)?;
            self.size += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for age in (0..self.limits.files).rev() {
            let from = if age == 0 {
                self.path.clone()
            } else {
                older(&self.path, age)
            };
            match fs::rename(from, older(&self.path, age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.limits.files == 0 {
            self.file.set_len(0)?;
        } else {
            self.file = Self::file(&self.path)?;
        }
        self.size = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_takes_a_bounded_part_of_the_disk_and_its_end_is_kept() {
        for files in [0, 1, 3] {
            let directory = tempfile::tempdir().expect("a directory");
            let limits = LogLimits {
                bytes: 1_000,
                files,
            };
            let path = file(directory.path(), 0);
            let mut spool = Spool::open(path.clone(), limits).expect("a file");
            for line in 0..2_000 {
                spool.keep(format!("line {line}\n").as_bytes());
            }
            let sizes = fs::read_dir(directory.path())
                .expect("a directory")
                .flatten();
            let sizes: Vec<u64> = sizes
                .map(|entry| entry.metadata().expect("a file").len())
                .collect();
            assert_eq!(sizes.len(), usize::try_from(files).expect("few") + 1);
            assert!(sizes.iter().all(|size| *size <= 1_000), "{sizes:?}");
            let last = fs::read_to_string(&path).expect("text");
            assert!(last.ends_with("line 1999\n"), "{last:?}");
            // What is there is one piece: nothing between two files is lost.
            if files > 0 {
                let before = fs::read_to_string(older(&path, 1)).expect("text");
                assert_eq!(before.len(), 1_000);
            }
            // Whoever comes next goes on where this one ended.
            let again = Spool::open(path, limits).expect("a file");
            assert_eq!(again.size, spool.size);
        }
    }
}
