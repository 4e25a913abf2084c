//! TLS to a server: whom it believes, and who it says we are.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use tenure_runtime::tls::{self, CertificateAndKey};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::error::StoreError;
use crate::store::system_authorities;

/// The files that a URL names.
#[derive(Default)]
pub(super) struct TlsFiles {
    pub(super) authorities: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl TlsFiles {
    pub(super) fn is_empty(&self) -> bool {
        let all = [&self.authorities, &self.certificate, &self.key];
        all.iter().all(|file| file.is_none())
    }
}

/// How to speak TLS.
#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    /// The file with the authorities that are believed; without one, the system's.
    authorities: Option<PathBuf>,
}

impl Tls {
    /// Reads the files.
    pub(super) fn open(files: TlsFiles) -> Result<Self, StoreError> {
        let roots = match &files.authorities {
            Some(file) => {
                tls::roots(file).map_err(|why| StoreError::broken(format!("ca={why}")))?
            }
            None => system_roots()?,
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier: Arc<dyn ServerCertVerifier> = verifier.build().map_err(|error| {
            StoreError::broken(format!(
                "expected authorities to check the server's certificate by, found: {error}; name \
                 a file with ca="
            ))
        })?;
        let own = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => {
                Some(CertificateAndKey::read(certificate, key).map_err(StoreError::broken)?)
            }
            (None, None) => None,
            _ => {
                return Err(StoreError::broken(
                    "expected cert= and key= together, found one of them",
                ));
            }
        };
        let config = tls::client(&verifier, own.as_ref()).map_err(StoreError::broken)?;
        Ok(Self {
            config: Arc::new(config),
            authorities: files.authorities,
        })
    }

    /// Does the handshake with the server at `address`, `host:port`.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        address: &str,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static, StoreError> {
        let connected = tls::connect(Arc::clone(&self.config), stream, address).await;
        let (stream, _) = connected.map_err(|error| self.explained(&error))?;
        Ok(stream)
    }

    fn explained(&self, error: &io::Error) -> StoreError {
        let ours = self.authorities.as_deref();
        let believed = ours.unwrap_or_else(|| Path::new("the system's certificates"));
        match tls::explain_tls_error(error, believed) {
            Some(why) => StoreError::broken(why),
            None => StoreError::unavailable(format!("expected TLS, found: {error}")),
        }
    }
}

/// What the system believes.
fn system_roots() -> Result<RootCertStore, StoreError> {
    system_authorities::check()?;
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    Ok(roots)
}
