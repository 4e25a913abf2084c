//! The side of a connection with TLS that connects.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use super::client_files::ClientTlsFiles;
use super::client_stream::ClientStream;
use super::files::{CertificateAndKey, client, roots};
use super::maybe_tls_stream::MaybeTlsStream;
use super::reloaded::{FilesError, Reloaded};
use super::revocation::RevocationLists;
use super::secured::{Judging, again};
use super::tls_error::explain_for_client;

/// Makes TLS of the connections of a client, which offers HTTP/2.
#[derive(Debug)]
pub struct ClientTls {
    files: Arc<ClientTlsFiles>,
    made: Reloaded<(Arc<ClientConfig>, Arc<dyn ServerCertVerifier>)>,
    judging: Judging,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that says which file, what was expected and what was found.
    pub fn open(files: ClientTlsFiles) -> Result<Self, FilesError> {
        let files = Arc::new(files);
        let named = Arc::clone(&files);
        let mut all = vec![files.authority.clone()];
        all.extend(files.revoked.clone());
        if let Some(own) = &files.own {
            all.extend([own.certificate.clone(), own.key.clone()]);
        }
        let make = move || {
            let roots = Arc::new(roots(&files.authority)?);
            let own = files.own.as_ref();
            let own = own.map(|own| CertificateAndKey::read(&own.certificate, &own.key));
            let own = own.transpose()?;
            let servers = RevocationLists::read(files.revoked.as_ref())?.server_verifier(&roots)?;
            let mut config = client(&servers, own.as_ref())?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            Ok((Arc::new(config), servers))
        };
        let made = Reloaded::open("certificates", all, make)?;
        Ok(Self {
            files: named,
            made,
            judging: Judging::default(),
        })
    }

    /// Connects to `address`, `host:port`.
    ///
    /// # Errors
    /// If the other side does not prove that it is that host, or speaks no
    /// TLS; the text says which, and what to do.
    pub async fn connect(&self, stream: TcpStream, address: &str) -> io::Result<ClientStream> {
        let made = self.made.current();
        match connect(Arc::clone(&made.0), stream, address).await {
            Ok((stream, host)) => {
                let is = |one: &(_, Arc<_>), other: &(_, Arc<_>)| Arc::ptr_eq(&one.1, &other.1);
                let judge = move |made: &(_, Arc<_>), shown: &_, as_of| {
                    verify_server_certificate(&*made.1, shown, &host, as_of)
                };
                let recheck = again((&self.made, &self.judging), made, is, judge);
                let line = MaybeTlsStream::secured(stream, recheck);
                Ok(ClientStream::new(line, Arc::clone(&self.files)))
            }
            Err(error) => {
                let text = explain_for_client(&error, &self.files);
                let text = text.unwrap_or_else(|| format!("expected TLS, found: {error}"));
                Err(io::Error::new(error.kind(), text))
            }
        }
    }
}

/// Judges the certificates that a server at `host` has shown, as of a time of
/// the calendar.
///
/// # Errors
/// Why it is not believed.
pub fn verify_server_certificate(
    verifier: &dyn ServerCertVerifier,
    shown: &[CertificateDer<'static>],
    host: &ServerName<'static>,
    as_of: UnixTime,
) -> Result<(), rustls::Error> {
    let Some((own, between)) = shown.split_first() else {
        return Ok(());
    };
    let judged = verifier.verify_server_cert(own, between, host, &[], as_of);
    judged.map(drop)
}

/// Does the client's part of a TLS handshake. Returns the stream and the host
/// name for which the server's certificate was judged.
///
/// # Errors
/// If the other side does not prove that it is that host.
pub async fn connect(
    config: Arc<ClientConfig>,
    stream: TcpStream,
    address: &str,
) -> io::Result<(TlsStream<TcpStream>, ServerName<'static>)> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let connecting = TlsConnector::from(config).connect(name.clone(), stream);
    Ok((connecting.await?.into(), name))
}
