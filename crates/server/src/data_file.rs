//! One small file of a data directory.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::wal::WalError;

/// The first line of each.
pub(super) const VERSION: &str = "tenure 1";

pub(super) fn failed<'a>(
    path: &'a Path,
    doing: &'static str,
) -> impl Fn(std::io::Error) -> WalError + use<'a> {
    move |error| WalError::disk(path.to_owned(), None, doing, error)
}

/// Writes a small file so that it is there whole or not at all.
pub(super) fn write(dir: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let unfinished = dir.join(format!("{name}.tmp"));
    let mut private = fs::OpenOptions::new();
    private.write(true).create(true).truncate(true).mode(0o600);
    let mut file = private.open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    let path = dir.join(name);
    let before = fs::File::open(&path);
    fs::rename(&unfinished, path)?;
    fs::File::open(dir)?.sync_all()?;
    // The file system frees the file of before when its last handle is closed,
    // which takes it a millisecond: nothing has to wait for that.
    let _ = std::thread::Builder::new().spawn(move || drop(before));
    Ok(())
}
