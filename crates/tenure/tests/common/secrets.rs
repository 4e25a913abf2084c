//! Files of passwords and credentials.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Writes a file that only its owner may read.
pub(crate) fn secret_file(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("a mode");
}
