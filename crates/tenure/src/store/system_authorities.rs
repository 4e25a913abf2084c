//! The system's authorities, for stores that check a server's certificate by them.

use crate::error::StoreError;

/// To be called before a library reads them: `SSL_CERT_FILE` may name a pipe, which never
/// opens.
pub(super) fn check() -> Result<(), StoreError> {
    tenure_runtime::system_authorities::check().map_err(StoreError::broken)
}
