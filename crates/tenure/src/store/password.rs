//! A password in a file of its own (`password_file=`), instead of in the URL:
//! it stands on no command line, and in no variable.

use std::path::Path;

use crate::error::StoreError;
use crate::small;

/// The longest password, or token, that is read, in bytes.
pub(super) const BYTES_MAX: u64 = 4_096;

/// The password in a file that holds nothing else; the end of its line does
/// not count.
///
/// # Errors
/// If the file cannot be read, others may read it, or it is empty.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
pub(super) fn in_file(path: &Path) -> Result<String, StoreError> {
    secret("password_file", "a password", path, BYTES_MAX)
}

/// The secret in a file that this option names.
///
/// # Errors
/// The same.
pub(super) fn secret(
    option: &str,
    what: &str,
    path: &Path,
    bytes_max: u64,
) -> Result<String, StoreError> {
    let wrong = |why: String| StoreError::broken(format!("{option}=: {why}"));
    let bytes = small::read_secret(path, bytes_max).map_err(wrong)?;
    let text = String::from_utf8(bytes).unwrap_or_default();
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() {
        let path = path.display();
        return Err(wrong(format!(
            "{path}: expected {what} in UTF-8, found none"
        )));
    }
    Ok(secret.to_owned())
}
