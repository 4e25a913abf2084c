//! Certificates that were revoked before they expire.
//!
//! An authority signs lists of them (CRLs). Their file is read again with the
//! certificates, and what is on a list makes no new connection. One that is up
//! is asked again: before anything passes over it, in either direction, it
//! looks whether the lists have changed, at most once in `CHECK_EVERY`. So
//! what was revoked is good for nothing after that, and a connection over which
//! nothing passes costs nothing.
//!
//! A certificate of an authority without a list is refused, as if it were
//! revoked: nobody knows. Lists are found by the name of their authority, so
//! two authorities of one name cannot both have one. A list that has expired stays in use, with a warning
//! (`life`): an authority that is late must not end a cluster.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, Error, RootCertStore};
use tenure_core::time::Instant;
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::reloaded::Reloaded;
use crate::{clock, small};

/// How often a connection that is up is asked again, at most. It may be the
/// first to have the file looked at, and hears of that the next time.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The lists of a file.
pub struct RevocationLists {
    file: PathBuf,
    lists: Vec<CertificateRevocationListDer<'static>>,
}

impl RevocationLists {
    /// Reads the file; without one nothing is revoked.
    pub fn read(file: Option<&PathBuf>) -> Result<Self, String> {
        let mut found = Self {
            file: file.cloned().unwrap_or_default(),
            lists: Vec::new(),
        };
        let Some(file) = file else {
            return Ok(found);
        };
        let text = small::read(file).map_err(|error| found.wrong(&error))?;
        for list in CertificateRevocationListDer::pem_slice_iter(&text) {
            let list = list.map_err(|error| found.wrong(&error))?;
            found.lists.push(list);
        }
        if found.lists.is_empty() {
            return Err(found.wrong(&"none"));
        }
        Ok(found)
    }

    /// Whether there are any.
    pub const fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    fn wrong(&self, found: &dyn fmt::Display) -> String {
        format!(
            "{}: expected lists of revoked certificates (CRLs) in PEM, found: {found}",
            self.file.display()
        )
    }

    /// Judges who connects by these authorities. One that must `optional`ly
    /// show a certificate need not; one that is to warn in time (`strictly`)
    /// does not take lists that have expired.
    pub fn client_verifier(
        &self,
        roots: &Arc<RootCertStore>,
        (optional, strictly): (bool, bool),
    ) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider)
            .with_crls(self.lists.iter().cloned());
        if optional {
            verifier = verifier.allow_unauthenticated();
        }
        if strictly {
            verifier = verifier.enforce_revocation_expiration();
        }
        verifier.build().map_err(|error| self.wrong(&error))
    }

    /// Judges to whom this side connects.
    pub fn server_verifier(
        &self,
        roots: &Arc<RootCertStore>,
    ) -> Result<Arc<WebPkiServerVerifier>, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider)
            .with_crls(self.lists.iter().cloned());
        verifier.build().map_err(|error| self.wrong(&error))
    }

    /// Refuses lists by which nobody could tell whether this side's own
    /// certificate is good: all others would be refused with it.
    pub fn check_own_certificate(
        &self,
        verifier: &dyn ClientCertVerifier,
        own: &[CertificateDer<'_>],
        file: &Path,
    ) -> Result<(), String> {
        match verify_client_certificate(verifier, own) {
            Err(
                why @ (Error::InvalidCertificate(CertificateError::UnknownRevocationStatus)
                | Error::InvalidCertRevocationList(_)),
            ) => Err(format!(
                "{}: expected a list of revoked certificates of each authority that the \
                 certificate in {} is of, found: {why}",
                self.file.display(),
                file.display()
            )),
            _ => Ok(()),
        }
    }
}

/// What is to be said of the certificates of who has connected.
pub fn verify_client_certificate(
    verifier: &dyn ClientCertVerifier,
    shown: &[CertificateDer<'_>],
) -> Result<(), Error> {
    let Some((own, between)) = shown.split_first() else {
        return Ok(());
    };
    let now = UnixTime::now();
    verifier.verify_client_cert(own, between, now).map(drop)
}

/// Whether what the other side has shown is revoked by now.
pub type RevocationCheck = Box<dyn FnMut(&[CertificateDer<'static>]) -> bool + Send + Sync>;

/// Asks again whenever the files have changed since they made `seen`.
pub fn recheck<T: Clone + Send + Sync + 'static>(
    files: &Reloaded<T>,
    mut seen: T,
    same: fn(&T, &T) -> bool,
    judge: impl Fn(&T, &[CertificateDer<'static>]) -> Result<(), Error> + Send + Sync + 'static,
) -> RevocationCheck {
    let files = files.clone();
    Box::new(move |shown| {
        // On the event loop, for each connection: not even for a moment.
        let made = files.latest();
        if same(&made, &seen) {
            return false;
        }
        seen = made;
        let judged = judge(&seen, shown);
        matches!(
            judged,
            Err(Error::InvalidCertificate(CertificateError::Revoked))
        )
    })
}

/// A connection with TLS.
pub struct CheckedTlsStream {
    stream: TlsStream<TcpStream>,
    check: Option<RevocationCheck>,
    last_check: Instant,
    revoked: bool,
}

impl CheckedTlsStream {
    /// Asks by `check`, if there is anything to ask.
    pub fn new(stream: TlsStream<TcpStream>, check: Option<RevocationCheck>) -> Self {
        Self {
            stream,
            check,
            last_check: clock::boot(),
            revoked: false,
        }
    }

    /// The connection, as long as the other side is believed.
    pub fn checked(&mut self) -> io::Result<Pin<&mut TlsStream<TcpStream>>> {
        if let Some(check) = &mut self.check {
            let now = clock::boot();
            if !self.revoked && now.since(self.last_check) >= CHECK_EVERY {
                self.last_check = now;
                let shown = self.stream.get_ref().1.peer_certificates();
                self.revoked = shown.is_some_and(check);
                if self.revoked {
                    let from = self.stream.get_ref().0.peer_addr();
                    let from = from.map_or_else(|_| String::new(), |it| it.to_string());
                    tracing::warn!(from, "a connection ends: its certificate was revoked");
                }
            }
        }
        if self.revoked {
            return Err(io::Error::other(
                "expected a certificate that is good, found that it was revoked",
            ));
        }
        Ok(Pin::new(&mut self.stream))
    }

    /// The connection, to end it.
    pub fn stream(&mut self) -> Pin<&mut TlsStream<TcpStream>> {
        Pin::new(&mut self.stream)
    }
}

impl Deref for CheckedTlsStream {
    type Target = TlsStream<TcpStream>;

    fn deref(&self) -> &Self::Target {
        &self.stream
    }
}

impl fmt::Debug for CheckedTlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

/// The serial number of a certificate in PEM, by which an authority revokes
/// it: the bytes of the number, the highest first, without zeros before them.
///
/// # Errors
/// What was expected and what was found.
pub fn serial_number(pem: &[u8]) -> Result<Vec<u8>, String> {
    let certificate = CertificateDer::from_pem_slice(pem);
    let certificate =
        certificate.map_err(|error| format!("expected a certificate in PEM, found: {error}"))?;
    let number = || {
        let (_, certificate, _) = element(&certificate)?;
        let (_, signed, _) = element(certificate)?;
        let (tag, first, rest) = element(signed)?;
        // Before it may stand which version of X.509 it has.
        let (tag, number) = match tag {
            VERSION => element(rest).map(|(tag, number, _)| (tag, number))?,
            other => (other, first),
        };
        let begin = number.iter().position(|byte| *byte != 0)?;
        (tag == INTEGER).then(|| number[begin..].to_vec())
    };
    number().ok_or_else(|| "expected a certificate with a serial number, found none".into())
}

const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;

/// The first element of DER: its tag, what is in it, and what follows.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            let add = |sum: usize, digit: &u8| (sum << 8) | usize::from(*digit);
            (digits.iter().fold(0, add), rest)
        }
        _ => return None,
    };
    let (inside, after) = rest.split_at_checked(length)?;
    Some((*tag, inside, after))
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
        DnType, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    };

    use super::*;

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        CertifiedIssuer::self_signed(params, key).expect("an authority")
    }

    /// The list of an authority, to be renewed by the beginning of that year.
    fn list(by: &Authority, year: i32, revoked: &[u8]) -> RevocationLists {
        let revoked = revoked.iter().map(|number| RevokedCertParams {
            serial_number: SerialNumber::from(vec![*number]),
            revocation_time: rcgen::date_time_ymd(2001, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2001, 1, 1),
            next_update: rcgen::date_time_ymd(year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ca.crl");
        let pem = list.signed_by(by).expect("signed").pem().expect("text");
        std::fs::write(&file, pem).expect("written");
        RevocationLists::read(Some(&file)).expect("a list")
    }

    #[test]
    fn a_certificate_is_judged_by_the_list_of_its_authority() {
        use CertificateError::{ExpiredRevocationListContext, Revoked, UnknownRevocationStatus};
        let [ours, theirs, namesake] = ["ours", "theirs", "ours"].map(authority);
        let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("parameters");
        params.serial_number = Some(SerialNumber::from(vec![7]));
        let key = KeyPair::generate().expect("a key");
        let own = params.signed_by(&key, &ours).expect("signed");
        let own = [own.der().clone()];
        let mut roots = RootCertStore::empty();
        roots.add(ours.der().clone()).expect("a root");
        let roots = Arc::new(roots);
        let judged = |lists: &RevocationLists, strictly: bool| {
            let verifier = lists.client_verifier(&roots, (false, strictly));
            let verifier = verifier.expect("a verifier");
            let fits = lists.check_own_certificate(&*verifier, &own, Path::new("own.pem"));
            match verify_client_certificate(&*verifier, &own) {
                Ok(()) => (None, fits),
                Err(Error::InvalidCertificate(why)) => (Some(why), fits),
                Err(other) => (None, fits.map_err(|why| format!("{why}: {other}"))),
            }
        };
        assert_eq!(judged(&list(&ours, 2099, &[6, 8]), true), (None, Ok(())));
        let (why, fits) = judged(&list(&ours, 2099, &[6, 7]), false);
        assert_eq!((why, fits), (Some(Revoked), Ok(())));
        // One that nobody has renewed stays in use, and is warned of.
        let old = list(&ours, 2002, &[6]);
        assert_eq!(judged(&old, false), (None, Ok(())));
        let (why, _) = judged(&old, true);
        assert!(matches!(why, Some(ExpiredRevocationListContext { .. })));
        assert_eq!(judged(&list(&ours, 2002, &[7]), false).0, Some(Revoked));
        // By that of another authority nobody can tell.
        let (why, fits) = judged(&list(&theirs, 2099, &[]), false);
        assert_eq!(why, Some(UnknownRevocationStatus));
        let fits = fits.expect_err("all would be refused");
        assert!(fits.contains("of each authority"), "{fits}");
        assert!(fits.contains("own.pem"), "{fits}");
        let (_, fits) = judged(&list(&namesake, 2099, &[]), false);
        let fits = fits.expect_err("its signature is another's");
        assert!(fits.contains("BadSignature"), "{fits}");
    }

    #[test]
    fn a_serial_number_is_found_in_its_certificate() {
        for number in [vec![1], vec![0x80, 2], vec![0x7f; 20], vec![0xff; 20]] {
            let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("parameters");
            params.serial_number = Some(SerialNumber::from(number.clone()));
            let key = KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("signed");
            assert_eq!(serial_number(certificate.pem().as_bytes()), Ok(number));
            let der = certificate.der();
            for end in 0..der.len().min(40) {
                assert_eq!(element(&der[..end]), None, "{end} bytes");
            }
        }
        let none = serial_number(b"none").expect_err("it is none");
        assert!(none.contains("in PEM"), "{none}");
    }
}
