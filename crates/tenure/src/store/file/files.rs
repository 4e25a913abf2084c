//! Files of an open directory: read whole, and replaced in one step.
//!
//! A file is written under the name `=new`, synced, and renamed to its own; the
//! rename is on disk when the directory is synced. So under its own name a file is
//! whole at each instant, whatever is killed or loses its power. Only who holds the
//! lock writes, so one name for what is new will do: what a process left there that
//! was killed is removed by the next.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::record::FILE_MAX;
use crate::error::StoreError;
use crate::store::FileMode;

/// The file of the directory itself. No key has such a name.
pub(super) const STORE: &str = "=store";
/// What is being written. No key has such a name.
pub(super) const NEW: &str = "=new";

/// Its owner or its mode has to change. Its content may be whole.
const UNREADABLE: &str = "a file that this user may not read";

/// What is under a name.
#[derive(Debug)]
pub(super) enum Read {
    Absent,
    /// The bytes of a file; of one that is too long, the first.
    Bytes(Vec<u8>),
    /// Something that is no file of ours.
    Odd(&'static str),
}

/// Why a file was not put in its place.
#[derive(Debug)]
pub(super) enum Failed {
    /// Certainly nothing has changed.
    Before(io::Error),
    /// It may be there.
    Unknown(io::Error),
}

impl Failed {
    /// The error itself.
    pub(super) fn into_error(self) -> io::Error {
        match self {
            Self::Before(error) | Self::Unknown(error) => error,
        }
    }
}

/// Reads a file. It is the same whole file from its first byte to its last, since
/// what is renamed over it is another.
pub(super) fn read(directory: &File, name: &str) -> io::Result<Read> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = match rustix::fs::openat(directory.as_fd(), name, flags, Mode::empty()) {
        Ok(opened) => File::from(opened),
        Err(Errno::NOENT) => return Ok(Read::Absent),
        Err(Errno::LOOP) => return Ok(Read::Odd("a symbolic link")),
        Err(Errno::NXIO) => return Ok(Read::Odd("a socket or a device")),
        Err(Errno::ACCESS) => return Ok(Read::Odd(UNREADABLE)),
        Err(error) => return Err(error.into()),
    };
    if !opened.metadata()?.is_file() {
        return Ok(Read::Odd("a directory, a device or a pipe"));
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(FILE_MAX).unwrap_or(u64::MAX);
    opened.take(most + 1).read_to_end(&mut bytes)?;
    Ok(Read::Bytes(bytes))
}

/// The names of all that is in the directory.
pub(super) fn names(directory: &File) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory.as_fd())? {
        let entry = entry?;
        // None of ours has other characters.
        let Ok(name) = entry.file_name().to_str() else {
            names.push(String::from_utf8_lossy(entry.file_name().to_bytes()).into_owned());
            continue;
        };
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Puts a file in its place, under the lock. It is durable when the directory is
/// synced.
pub(super) fn put(
    directory: &File,
    name: &str,
    bytes: &[u8],
    mode: FileMode,
) -> Result<(), Failed> {
    let written = write_new(directory, bytes, mode);
    if let Err(error) = written {
        // Room for the next attempt.
        let _ = remove(directory, NEW);
        return Err(Failed::Before(error));
    }
    match rustix::fs::renameat(directory.as_fd(), NEW, directory.as_fd(), name) {
        Ok(()) => Ok(()),
        Err(error) => {
            let _ = remove(directory, NEW);
            // A disk or a server that failed may have failed after it.
            let unknown = matches!(error, Errno::IO | Errno::INTR | Errno::TIMEDOUT);
            Err(if unknown {
                Failed::Unknown(error.into())
            } else {
                Failed::Before(error.into())
            })
        }
    }
}

fn write_new(directory: &File, bytes: &[u8], mode: FileMode) -> io::Result<()> {
    remove(directory, NEW).map_err(|error| {
        let why =
            format!("{NEW}, which no write can take the place of, has to be removed: {error}");
        io::Error::new(error.kind(), why)
    })?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let owner = Mode::from_raw_mode(0o600);
    let mut file = File::from(rustix::fs::openat(directory.as_fd(), NEW, flags, owner)?);
    if mode != FileMode::Owner {
        // Whatever the umask is.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode.bits()))?;
    }
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a file, if it is there.
pub(super) fn remove(directory: &File, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(directory.as_fd(), name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What is wrong with a file that is there and has to be `wanted`, and how it is mended.
pub(super) fn broken(file: &Path, wanted: &str, found: &str, mend: &str) -> StoreError {
    let file = file.display();
    let mend = match found {
        UNREADABLE => "chown it, or run as its owner",
        _ => mend,
    };
    StoreError::broken(format!(
        "expected {file} to {wanted}, found {found}; {mend}"
    ))
}

/// An error of the file system before anything changed.
pub(super) fn unavailable(path: &Path, error: &io::Error) -> StoreError {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::unavailable(format!(
                "expected room for a write in {path}, found the disk full; free some space \
                 ({error})"
            ))
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::broken(format!(
                "{path}: expected a directory that this user may write, found it read-only \
                 ({error})"
            ))
        }
        _ => StoreError::unavailable(format!("{path}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_rights_is_not_to_be_replaced() {
        let said = |found| broken(Path::new("/a"), "be a", found, "move it away").to_string();
        assert!(said(UNREADABLE).contains("chown"), "{}", said(UNREADABLE));
        assert!(!said(UNREADABLE).contains("move it away"));
        assert!(said("a symbolic link").ends_with("found a symbolic link; move it away"));
    }
}
