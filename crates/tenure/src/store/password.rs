//! A password in a file of its own (`password_file=`), instead of in the URL:
//! it stands on no command line, and in no variable.

use std::path::Path;

use crate::error::StoreError;
use crate::small;

/// The longest password that is read, in bytes.
const BYTES_MAX: u64 = 4_096;

/// The password in a file that holds nothing else; the end of its line does
/// not count.
///
/// # Errors
/// If the file cannot be read, others may read it, or it is empty.
pub(super) fn in_file(path: &Path) -> Result<String, StoreError> {
    let wrong = |why: String| StoreError::broken(format!("password_file=: {why}"));
    let bytes = small::read_secret(path, BYTES_MAX).map_err(wrong)?;
    let text = String::from_utf8(bytes).unwrap_or_default();
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        let path = path.display();
        return Err(wrong(format!(
            "{path}: expected a password in UTF-8, found none"
        )));
    }
    Ok(password.to_owned())
}
