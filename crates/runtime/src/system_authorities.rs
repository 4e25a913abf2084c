//! The files of the system's authorities, looked at before a library reads them.
//!
//! Each library of TLS reads what `SSL_CERT_FILE` and `SSL_CERT_DIR` name by itself, without
//! a bound, on the thread that makes a connection. A pipe there never opens, and a device
//! never ends: a leader would hang beyond every time-out, or fill the memory. So these are
//! looked at first, as other files are read: plain ones of bounded size are taken.
//!
//! Not looked at is where the system itself has them, if neither variable is set: a user
//! who may put a pipe there may do anything.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use crate::small;

/// How many entries of all directories are looked at.
const ENTRIES_MAX: usize = 10_000;

/// Refuses what would hang its reader, or fill the memory, behind `SSL_CERT_FILE` and
/// `SSL_CERT_DIR`. What is missing, or cannot be read by this user, is left to the
/// libraries, which take it for no authority.
///
/// # Errors
/// A sentence that names the variable, what was expected and what was found.
pub fn check() -> Result<(), String> {
    let value = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(file) = value("SSL_CERT_FILE") {
        check_file("SSL_CERT_FILE", Path::new(&file))?;
    }
    value("SSL_CERT_DIR").map_or(Ok(()), |directories| check_directories(&directories))
}

fn check_file(variable: &str, file: &Path) -> Result<(), String> {
    match small::read(file) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(format!(
            "{variable}={}: {error}; name a file of authorities in PEM, or none",
            file.display()
        )),
        _ => Ok(()),
    }
}

fn check_directories(directories: &OsStr) -> Result<(), String> {
    let mut seen = 0;
    for directory in std::env::split_paths(directories) {
        let entries = std::fs::read_dir(&directory);
        for entry in entries.into_iter().flatten().flatten() {
            seen += 1;
            if seen > ENTRIES_MAX {
                return Err(format!(
                    "SSL_CERT_DIR={}: expected at most {ENTRIES_MAX} files, found more",
                    directory.display()
                ));
            }
            // Directories below are passed over by the libraries, too.
            if !entry.path().is_dir() {
                check_file("SSL_CERT_DIR", &entry.path())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn what_would_hang_its_reader_is_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("plain"), "text").expect("a file");
        std::fs::create_dir(path("below")).expect("a directory");
        for fine in ["plain", "missing"] {
            check_file("SSL_CERT_FILE", &path(fine)).expect(fine);
        }
        let all = directory.path().as_os_str();
        check_directories(all).expect("plain files");
        check_directories(OsStr::new("/missing:")).expect("nothing");
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
        for wrong in [path("pipe"), "/dev/zero".into()] {
            let why = check_file("SSL_CERT_FILE", &wrong).expect_err("no plain file");
            assert!(why.starts_with("SSL_CERT_FILE=/"), "{why}");
            assert!(why.contains("expected a plain file"), "{why}");
        }
        let why = check_directories(all).expect_err("a pipe");
        assert!(why.starts_with("SSL_CERT_DIR=/"), "{why}");
        assert!(why.contains("/pipe: expected a plain file"), "{why}");
    }
}
