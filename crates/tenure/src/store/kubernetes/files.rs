//! Files that an option of the URL, or a kubeconfig, names.

use std::path::Path;

use crate::error::StoreError;

/// What is in a file; `option` is what names it.
pub(super) fn read(option: &str, path: &Path) -> Result<Vec<u8>, StoreError> {
    crate::small::read(path).map_err(|error| {
        let path = path.display();
        StoreError::broken(format!("{option}: expected the file {path}: {error}"))
    })
}
