//! Where the certificates of a server are.

use std::path::PathBuf;

/// Where certificates are, in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// This side's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// The key that belongs to it.
    pub key: PathBuf,
    /// The authorities whose certificates the other side may have.
    pub authority: PathBuf,
}
