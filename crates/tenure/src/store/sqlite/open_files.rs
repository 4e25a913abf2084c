//! Telling a file that cannot be opened from a process that can open no file.
//!
//! SQLite says *unable to open database file* of both. The first is for a person to
//! mend. The second passes when the process closes other files, and what to do about it
//! is something else. SQLite keeps the number of the system's error with a connection,
//! and there is none when the opening itself failed. So `/dev/null` is opened, which
//! anybody may open: if that fails as well, the limit is the cause.

use std::fs::File;
use std::io;
use std::path::Path;

use rusqlite::ErrorCode;
use rustix::io::Errno;

use crate::error::StoreError;

/// What to say where SQLite could not open the file, or one beside it, if no other file can
/// be opened either.
pub(super) fn exhausted(path: &Path, error: &rusqlite::Error) -> Option<StoreError> {
    if error.sqlite_error_code() != Some(ErrorCode::CannotOpen) {
        return None;
    }
    told(path, &File::open("/dev/null").err()?)
}

fn told(path: &Path, error: &io::Error) -> Option<StoreError> {
    let (found, advice) = match Errno::from_io_error(error)? {
        Errno::MFILE => (
            "as many files open as this process may have",
            "close some, or raise the limit (`ulimit -n`, LimitNOFILE= of systemd)",
        ),
        Errno::NFILE => (
            "as many files open as this machine may have",
            "end a process that has many, or raise the limit (`sysctl fs.file-max`)",
        ),
        _ => return None,
    };
    Some(StoreError::unavailable(format!(
        "expected to open {} or a file beside it, found {found}: {advice}",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(errno: Errno) -> Option<String> {
        let error = io::Error::from(errno);
        Some(told(Path::new("/a.db"), &error)?.to_string())
    }

    #[test]
    fn a_limit_on_open_files_is_told_as_what_it_is() {
        let of_process = of(Errno::MFILE).expect("a limit");
        assert!(of_process.contains("this process may have"), "{of_process}");
        let of_machine = of(Errno::NFILE).expect("a limit");
        assert!(of_machine.contains("this machine may have"), "{of_machine}");
        assert_eq!(of(Errno::ACCESS), None);
        let unopened = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
        let unopened = rusqlite::Error::SqliteFailure(unopened, None);
        assert!(exhausted(Path::new("/a.db"), &unopened).is_none());
    }
}
