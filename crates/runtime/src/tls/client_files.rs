//! Where a client's certificates are.

use std::path::PathBuf;

/// Where a client's certificates are, in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientTlsFiles {
    /// The authorities whose certificates servers may have.
    pub authority: PathBuf,
    /// By what the client proves itself; `None` for servers that let anybody
    /// in.
    pub own: Option<OwnFiles>,
    /// Lists of revoked certificates (CRLs), one of each authority; `None` if
    /// none is revoked.
    pub revoked: Option<PathBuf>,
}

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnFiles {
    /// The certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// The key that belongs to it.
    pub key: PathBuf,
}
