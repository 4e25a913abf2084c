//! How a cluster is reached, as a URL, a pod or a kubeconfig says it.

use std::path::Path;

use super::files::read;
use super::token::Token;
use crate::error::StoreError;

#[derive(Default)]
pub(super) struct Access {
    /// `scheme://host:port/path` of each server, without a slash at the end.
    pub(super) servers: Vec<String>,
    pub(super) namespace: Option<String>,
    pub(super) token: Token,
    /// Authorities in PEM; without any, the system's are believed.
    pub(super) authorities: Option<Pem>,
    /// Our own certificate and key in PEM.
    pub(super) own: Option<Pem>,
}

/// Certificates or keys, and where they come from, which errors tell.
pub(super) struct Pem {
    pub(super) bytes: Vec<u8>,
    pub(super) source: String,
}

impl Pem {
    /// What is in a file, which `option` names.
    pub(super) fn in_file(option: &str, path: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            bytes: read(option, path)?,
            source: format!("{option}={}", path.display()),
        })
    }

    /// A certificate and its key, of two sources.
    pub(super) fn with_key(mut self, key: &Self) -> Self {
        self.bytes.push(b'\n');
        self.bytes.extend(&key.bytes);
        self.source = format!("{}, {}", self.source, key.source);
        self
    }
}
