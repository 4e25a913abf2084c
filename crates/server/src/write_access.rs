//! Warns of files and directories that other users may write.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Warns if others than this user and root may write a file or a directory: by its mode, or
/// because it is theirs. `danger` is what a user who may write it can do.
pub fn warn_if_others_may_write(path: &Path, danger: &str) {
    let Ok(found) = std::fs::metadata(path) else {
        return;
    };
    let (mode, owner) = (found.mode() & 0o777, found.uid());
    let own = rustix::process::geteuid().as_raw();
    let path = path.display();
    let (found, mend) = if mode & 0o022 != 0 {
        (format!("mode {mode:04o}"), format!("chmod go-w {path}"))
    } else if owner != own && owner != 0 {
        (
            format!("its owner to be user {owner}"),
            format!("chown {own} {path}"),
        )
    } else {
        return;
    };
    tracing::warn!(
        "{path}: expected that only root or this user may write it, found {found}: a user who may \
         write it can {danger}; {mend}"
    );
}
