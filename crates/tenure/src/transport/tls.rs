//! TLS on connections, read again when its files change.
//!
//! Servers prove themselves to each other with certificates of one authority,
//! in both directions; clients may have to as well. The files are looked at
//! when a connection is made, at most once a second: a renewed certificate is
//! in use a moment after it was written, without a restart and without a word
//! to the process. Files that cannot be used leave what was in use in use,
//! and a warning.
//!
//! Connections that are up stay as they are, so an authority that is taken
//! away takes effect on the next connection.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tenure_core::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::clock;

/// How often the files are looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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

/// What comes of the files.
#[derive(Clone)]
struct Made {
    stamps: [Option<SystemTime>; 3],
    /// Whoever connects must have a certificate.
    strict: Arc<ServerConfig>,
    /// Whoever connects may have one.
    lenient: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Makes TLS of connections.
pub struct Tls {
    files: TlsFiles,
    made: Mutex<(Instant, Made)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

/// Whether a client has to have a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// It must.
    Certificate,
    /// It may.
    Nothing,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that says which file, what was expected and what was found.
    pub fn open(files: TlsFiles) -> Result<Self, String> {
        let made = make(&files)?;
        Ok(Self {
            files,
            made: Mutex::new((clock::boot(), made)),
        })
    }

    /// What is in use now; reads the files again if they have changed.
    fn current(&self) -> Made {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::boot();
        if now.since(made.0) >= LOOK_EVERY {
            made.0 = now;
            if stamps(&self.files) != made.1.stamps {
                match make(&self.files) {
                    Ok(new) => {
                        tracing::info!("certificates were renewed");
                        made.1 = new;
                    }
                    Err(why) => tracing::warn!("the certificates stay as they were: {why}"),
                }
            }
        }
        made.1.clone()
    }

    /// The side that was connected to.
    ///
    /// # Errors
    /// If the other side does not prove itself, or speaks no TLS.
    pub async fn accept(&self, stream: TcpStream, demand: Demand) -> io::Result<Line> {
        let made = self.current();
        let config = match demand {
            Demand::Certificate => made.strict,
            Demand::Nothing => made.lenient,
        };
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        Ok(Line::Tls(Box::new(stream.into())))
    }

    /// The side that connects, to `address`, `host:port`.
    ///
    /// # Errors
    /// If the other side does not prove that it is that host.
    pub async fn connect(&self, stream: TcpStream, address: &str) -> io::Result<Line> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let connector = TlsConnector::from(self.current().client);
        let stream = connector.connect(name, stream).await?;
        Ok(Line::Tls(Box::new(stream.into())))
    }
}

fn stamps(files: &TlsFiles) -> [Option<SystemTime>; 3] {
    [&files.certificate, &files.key, &files.authority]
        .map(|file| std::fs::metadata(file).ok()?.modified().ok())
}

fn make(files: &TlsFiles) -> Result<Made, String> {
    // Before they are read: what changes in between is read again.
    let stamps = stamps(files);
    let (certificates, key) = (certificates(&files.certificate)?, key(files)?);
    let mut roots = RootCertStore::empty();
    for certificate in self::certificates(&files.authority)? {
        let added = roots.add(certificate);
        added.map_err(|error| found(&files.authority, "an authority's certificate", &error))?;
    }
    let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));
    let pair = |error: rustls::Error| found(&files.key, "the certificate's key", &error);
    let server = |optional: bool| {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let verifier = if optional {
            verifier.allow_unauthenticated()
        } else {
            verifier
        };
        let verifier = verifier
            .build()
            .map_err(|error| found(&files.authority, "an authority's certificate", &error))?;
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates.clone(), key.clone_key());
        let mut config = config.map_err(pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok::<_, String>(Arc::new(config))
    };
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(Arc::clone(&roots))
        .with_client_auth_cert(certificates.clone(), key.clone_key())
        .map_err(pair)?;
    Ok(Made {
        stamps,
        strict: server(false)?,
        lenient: server(true)?,
        client: Arc::new(client),
    })
}

fn found(file: &std::path::Path, expected: &str, found: &dyn std::fmt::Display) -> String {
    format!(
        "{}: expected {expected} in PEM, found: {found}",
        file.display()
    )
}

fn certificates(file: &std::path::Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(none) if none.is_empty() => Err(found(file, "certificates", &"none")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(found(file, "certificates", &error)),
    }
}

fn key(files: &TlsFiles) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(&files.key).map_err(|error| found(&files.key, "a key", &error))
}

/// A connection, with TLS or without.
#[derive(Debug)]
pub enum Line {
    /// Without.
    Plain(TcpStream),
    /// With.
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
