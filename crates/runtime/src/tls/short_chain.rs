//! Chains of certificates that are too long are refused.
//!
//! TLS keeps the chain that the other side has shown for as long as the
//! connection is up, whatever is in it: 64 KiB of certificates that sign
//! nothing. A server has thousands of connections, and bounds what each makes
//! it hold.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

/// Certificates of one chain, with that of the other side itself.
const CERTIFICATES_MAX: usize = 8;
/// What they may take together.
const BYTES_MAX: usize = 16 << 10;

/// The other side has shown a chain that is too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "one with a chain of {certificates} certificates in {bytes} bytes, where at most \
     {CERTIFICATES_MAX} in {BYTES_MAX} bytes are taken"
)]
pub(super) struct LongChain {
    certificates: usize,
    bytes: usize,
}

/// Judges as `V` does, and chains that are short alone.
#[derive(Debug)]
pub(super) struct ShortChains<V: ?Sized>(pub(super) Arc<V>);

fn is_short(own: &CertificateDer<'_>, between: &[CertificateDer<'_>]) -> Result<(), Error> {
    let certificates = between.len() + 1;
    let bytes = own.len() + between.iter().map(|it| it.len()).sum::<usize>();
    if certificates <= CERTIFICATES_MAX && bytes <= BYTES_MAX {
        return Ok(());
    }
    let why = OtherError(Arc::new(LongChain {
        certificates,
        bytes,
    }));
    Err(Error::InvalidCertificate(CertificateError::Other(why)))
}

impl<V: ClientCertVerifier + ?Sized> ClientCertVerifier for ShortChains<V> {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        is_short(own, between)?;
        self.0.verify_client_cert(own, between, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

impl<V: ServerCertVerifier + ?Sized> ServerCertVerifier for ShortChains<V> {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        is_short(own, between)?;
        self.0.verify_server_cert(own, between, host, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
