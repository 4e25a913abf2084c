//! How a cluster is reached, as a URL, a pod or a kubeconfig says it.

use super::token::Token;

#[derive(Default)]
pub(super) struct Access {
    /// `scheme://host:port/path` of each server, without a slash at the end.
    pub(super) servers: Vec<String>,
    pub(super) namespace: Option<String>,
    pub(super) token: Token,
    /// Authorities in PEM; without any, the system's are believed.
    pub(super) authorities: Option<Vec<u8>>,
    /// Our own certificate and key in PEM.
    pub(super) own: Option<Vec<u8>>,
}
