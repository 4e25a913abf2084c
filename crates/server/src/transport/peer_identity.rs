//! By what a server proves which one it is.
//!
//! **With TLS** by its certificate: it names the server's number as a DNS name,
//! `server-N.tenure.internal`, beside the hosts at which the server is reached.
//! (No host on the internet has a name below `.internal`.) The authority vouches for the
//! number as it does for the hosts, so a certificate of the same authority that
//! is a client's, or another server's, proves nothing.
//!
//! Certificates that earlier releases made name no number; while
//! [`ServerNames::any_server`] allows it they are taken for any server, but
//! only if they may be a server's at all (serverAuth), and never one that names
//! another number.
//!
//! **Without TLS** by a secret that all servers of the cluster share
//! ([`PeerSecret`]): an HMAC-SHA256 over what both sides have said, their
//! random bytes included ([`Transcript`](super::Transcript)). It proves that
//! the other side is one of the cluster's servers, and that the greeting is
//! its own; who can read and change what is on its way can still add to what
//! follows, since only TLS protects that.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};
use sha2::Sha256;
use tenure_alpo::ServerId;
use tenure_runtime::small;
use tenure_runtime::tls::{FilesError, read_in_time};

/// The shortest secret.
const SECRET_BYTES_MIN: usize = 16;
/// The longest.
const SECRET_BYTES_MAX: u64 = 4_096;
/// Below which name servers are numbered.
const BELOW: &str = ".tenure.internal";

/// The name by which a certificate says that it is of server `server`.
pub fn server_name(server: u64) -> String {
    format!("server-{server}{BELOW}")
}

/// What is expected of other servers' certificates.
#[derive(Debug)]
pub(super) struct ServerNames {
    pub(super) roots: Arc<RootCertStore>,
    /// Those that name no number are taken for any server.
    pub(super) any_server: bool,
}

impl ServerNames {
    /// Whether who shows these certificates, which were found to be of the
    /// authority, is server `server`.
    ///
    /// # Errors
    /// What was expected, what was found and what to do.
    pub(super) fn proves(
        &self,
        shown: Option<&[CertificateDer<'_>]>,
        server: ServerId,
    ) -> Result<(), String> {
        let server = server.get();
        let wanted = server_name(server);
        let found = match shown.and_then(<[_]>::split_first) {
            None => "none".to_owned(),
            Some((own, between)) => match self.names(own, &wanted) {
                Ok(None) => return Ok(()),
                Ok(Some(found)) if found.contains(BELOW) => format!("one for {found}"),
                Ok(Some(found)) if self.any_server => match self.is_a_servers(own, between) {
                    Ok(()) => return Ok(()),
                    Err(why) => format!("one for {found}, which is no server's ({why})"),
                },
                Ok(Some(found)) => format!("one for {found}"),
                Err(why) => format!("one that cannot be read ({why})"),
            },
        };
        Err(format!(
            "expected a certificate that names server {server} ({wanted}), found {found}; make one \
             by `tenure certs DIR --server {server} --host HOST`. Certificates of servers that were \
             made before these carried numbers are taken with --tls-any-server, for this release"
        ))
    }

    /// What the certificate is for, if not for `wanted`.
    fn names(&self, own: &CertificateDer<'_>, wanted: &str) -> Result<Option<String>, Error> {
        let certificate = ParsedCertificate::try_from(own)?;
        let name = ServerName::try_from(wanted).map_err(|_| Error::General(wanted.to_owned()))?;
        match verify_server_name(&certificate, &name) {
            Ok(()) => Ok(None),
            Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext {
                presented,
                ..
            })) if !presented.is_empty() => {
                Ok(Some(presented.join(", ").replace(char::is_control, " ")))
            }
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(Some("no name".to_owned())),
            Err(error) => Err(error),
        }
    }

    fn is_a_servers(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let algorithms = provider.signature_verification_algorithms.all;
        let certificate = ParsedCertificate::try_from(own)?;
        let now = UnixTime::now();
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            between,
            now,
            algorithms,
        )
    }
}

/// What the servers of a cluster share, and nobody else knows.
#[derive(Clone)]
pub struct PeerSecret {
    key: Arc<[u8]>,
    /// Servers that prove nothing are let in too.
    pub(crate) optional: bool,
}

impl fmt::Debug for PeerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerSecret")
    }
}

impl PeerSecret {
    /// Reads the secret from a file that only its owner, and at most a group,
    /// can read. Space around it does not count.
    ///
    /// # Errors
    /// What was expected of the file, and what was found; also if its file
    /// system does not answer in time.
    pub fn read(file: &Path) -> Result<Self, FilesError> {
        let path = file.to_owned();
        read_in_time("the secret", file, move || Self::read_at_once(&path))
    }

    fn read_at_once(file: &Path) -> Result<Self, String> {
        let bytes = small::read_secret(file, SECRET_BYTES_MAX)?;
        Self::new(&bytes).map_err(|why| format!("{}: {why}", file.display()))
    }

    /// A secret that is known already.
    ///
    /// # Errors
    /// If it is too short.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        let bytes = bytes.trim_ascii();
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(format!(
                "expected a secret of at least {SECRET_BYTES_MIN} bytes, found {}; make one by \
                 `head -c 32 /dev/urandom | base64`",
                bytes.len()
            ));
        }
        Ok(Self {
            key: bytes.into(),
            optional: false,
        })
    }

    /// The same; `optional` lets servers in too that prove nothing.
    #[must_use]
    pub fn or_none(self, optional: bool) -> Self {
        Self { optional, ..self }
    }

    fn mac(&self, bytes: &[u8]) -> Option<Hmac<Sha256>> {
        // A key of any length is taken.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).ok()?;
        mac.update(bytes);
        Some(mac)
    }

    /// The proof that belongs to these bytes.
    pub fn prove(&self, bytes: &[u8]) -> [u8; 32] {
        let mac = self.mac(bytes).map(|mac| mac.finalize().into_bytes());
        mac.map_or([0; 32], Into::into)
    }

    /// Whether `proof` belongs to these bytes. How long it takes does not
    /// tell how much of it is right.
    pub fn proves(&self, bytes: &[u8], proof: &[u8]) -> bool {
        let mac = self.mac(bytes);
        mac.is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa,
        KeyPair,
    };

    use super::*;

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        CertifiedIssuer::self_signed(params, key).expect("an authority")
    }

    fn certificate(
        by: &Authority,
        names: &[&str],
        usages: &[ExtendedKeyUsagePurpose],
    ) -> CertificateDer<'static> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("parameters");
        params.extended_key_usages = usages.to_vec();
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, by).expect("signed");
        certificate.der().clone()
    }

    fn id(number: u64) -> ServerId {
        ServerId::new(number).expect("a number")
    }

    #[test]
    fn a_certificate_proves_the_number_that_it_names() {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let by = authority();
        let mut roots = RootCertStore::empty();
        roots.add(by.der().clone()).expect("a root");
        let roots = Arc::new(roots);
        let strict = ServerNames {
            roots: Arc::clone(&roots),
            any_server: false,
        };
        let lenient = ServerNames {
            roots,
            any_server: true,
        };
        let both = [ServerAuth, ClientAuth];
        let second = certificate(&by, &["10.0.0.2", "server-2.tenure.internal"], &both);
        let old = certificate(&by, &["10.0.0.2"], &both);
        let client = certificate(&by, &["client"], &[ClientAuth]);
        for (shown, server, strictly, leniently) in [
            (Some(&second), 2, true, true),
            (Some(&second), 3, false, false),
            (Some(&second), 22, false, false),
            (Some(&old), 2, false, true),
            (Some(&client), 2, false, false),
            (None, 2, false, false),
        ] {
            let shown = shown.map(std::slice::from_ref);
            let proven = strict.proves(shown, id(server));
            assert_eq!(proven.is_ok(), strictly, "{proven:?}");
            let proven = lenient.proves(shown, id(server));
            assert_eq!(proven.is_ok(), leniently, "{proven:?}");
        }
        let said = strict.proves(Some(&[second]), id(3)).expect_err("another");
        for part in [
            "server 3 (server-3.tenure.internal)",
            "server-2.tenure.internal",
            "tenure certs DIR --server 3",
            "--tls-any-server",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn only_who_knows_the_secret_can_prove_it() {
        let secret = PeerSecret::new(b"0123456789abcdef\n").expect("long enough");
        let same = PeerSecret::new(b" 0123456789abcdef").expect("long enough");
        let other = PeerSecret::new(b"0123456789abcdeF").expect("long enough");
        let proof = same.prove(b"what was said");
        assert!(secret.proves(b"what was said", &proof));
        assert!(!secret.proves(b"what was sais", &proof));
        assert!(!other.proves(b"what was said", &proof));
        assert!(!secret.proves(b"what was said", &proof[..31]));
        assert!(!secret.proves(b"what was said", &[]));
        assert!(PeerSecret::new(b"0123456789abcde ").is_err());
        // Nothing that is printed has it.
        assert_eq!(format!("{secret:?}"), "PeerSecret");
    }

    #[test]
    fn a_secret_that_others_can_read_is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("secret");
        std::fs::write(&file, "0123456789abcdef\n").expect("written");
        for (mode, taken) in [(0o600, true), (0o640, true), (0o644, false), (0o660, false)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&file, permissions).expect("set");
            let read = PeerSecret::read(&file);
            assert_eq!(read.is_ok(), taken, "{mode:o}: {read:?}");
        }
    }
}
