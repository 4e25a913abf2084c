//! Certificates, keys and authorities in their files, in PEM.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::without_bytes;
use crate::small;

/// A certificate and its key as they were read.
pub struct CertificateAndKey<'a> {
    /// The certificate, and those between it and the authority.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The key that belongs to it.
    pub key: PrivateKeyDer<'static>,
    file: &'a Path,
}

impl<'a> CertificateAndKey<'a> {
    /// Reads both.
    ///
    /// # Errors
    /// Which file, what was expected and what was found.
    pub fn read(certificate: &Path, key: &'a Path) -> Result<Self, String> {
        let text = small::read(key).map_err(|error| found(key, "a key", &error))?;
        let read = PrivateKeyDer::from_pem_slice(&text);
        Ok(Self {
            certificates: certificates(certificate)?,
            key: read.map_err(|error| found(key, "a key", &error))?,
            file: key,
        })
    }

    /// What it means that the two do not fit.
    pub fn key_mismatch(&self, error: &rustls::Error) -> String {
        found(self.file, "the certificate's key", error)
    }
}

/// The authorities in a file.
///
/// # Errors
/// Which file, what was expected and what was found.
pub fn roots(authority: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        let added = roots.add(certificate);
        added.map_err(|error| found(authority, "an authority's certificate", &error))?;
    }
    Ok(roots)
}

/// How a client speaks TLS to servers that `verifier` judges.
///
/// # Errors
/// If its certificate and its key do not fit.
pub fn client(
    verifier: &Arc<dyn ServerCertVerifier>,
    own: Option<&CertificateAndKey<'_>>,
) -> Result<ClientConfig, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(verifier));
    match own {
        None => Ok(config.with_no_client_auth()),
        Some(own) => config
            .with_client_auth_cert(own.certificates.clone(), own.key.clone_key())
            .map_err(|error| own.key_mismatch(&error)),
    }
}

fn found(file: &Path, expected: &str, found: &dyn std::fmt::Display) -> String {
    let found = without_bytes(&found.to_string());
    let file = file.display();
    format!("{file}: expected {expected} in PEM, found: {found}")
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = small::read(file).map_err(|error| found(file, "certificates", &error))?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match read {
        Ok(none) if none.is_empty() => Err(found(file, "certificates", &"none")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(found(file, "certificates", &error)),
    }
}
