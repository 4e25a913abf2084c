//! Certificates that were revoked before they expire.
//!
//! An authority signs lists of them (CRLs). Their file is read again with the
//! certificates, and what is on a list makes no new connection. Connections
//! that are up are judged again by the new lists (`secured.rs`).
//!
//! A certificate of an authority without a list is refused, as if it were
//! revoked: that is not known. Lists are found by the name of their authority, so
//! two authorities of one name cannot both have one. A list that has expired stays in use, with a warning
//! (`life`): an authority that is late must not end a cluster.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, Error, RootCertStore};

use super::short_chain::{LongChain, ShortChains};
use crate::error::without_bytes;
use crate::small;

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
            "{}: expected lists of revoked certificates (CRLs) in PEM, found: {}",
            self.file.display(),
            without_bytes(&found.to_string())
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
        let built = verifier.build().map_err(|error| self.wrong(&error))?;
        Ok(Arc::new(ShortChains(built)))
    }

    /// Judges to whom this side connects.
    pub fn server_verifier(
        &self,
        roots: &Arc<RootCertStore>,
    ) -> Result<Arc<dyn ServerCertVerifier>, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider)
            .with_crls(self.lists.iter().cloned());
        let built = verifier.build().map_err(|error| self.wrong(&error))?;
        Ok(Arc::new(ShortChains(built)))
    }

    /// Refuses lists by which nobody could tell whether this side's own
    /// certificate is good: all others would be refused with it. And a chain
    /// that other sides refuse, since it is too long.
    pub fn check_own_certificate(
        &self,
        verifier: &dyn ClientCertVerifier,
        own: &[CertificateDer<'_>],
        file: &Path,
    ) -> Result<(), String> {
        match judge(verifier, own, UnixTime::now()) {
            Err(
                why @ (Error::InvalidCertificate(CertificateError::UnknownRevocationStatus)
                | Error::InvalidCertRevocationList(_)),
            ) => Err(format!(
                "{}: expected a list of revoked certificates of each authority that the \
                 certificate in {} is of, found: {why}",
                self.file.display(),
                file.display()
            )),
            Err(Error::InvalidCertificate(CertificateError::Other(why))) => {
                match why.0.downcast_ref::<LongChain>() {
                    Some(why) => Err(format!(
                        "{}: expected the certificate of this side and those between it and its \
                         authority, found {why}",
                        file.display()
                    )),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Judges the certificates that the side that connects has shown, as of a time
/// of the calendar.
pub fn judge(
    verifier: &dyn ClientCertVerifier,
    shown: &[CertificateDer<'_>],
    as_of: UnixTime,
) -> Result<(), Error> {
    let Some((own, between)) = shown.split_first() else {
        return Ok(());
    };
    verifier.verify_client_cert(own, between, as_of).map(drop)
}

#[cfg(test)]
pub(super) mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
        DnType, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    };

    use super::*;

    pub(in crate::tls) type Authority = CertifiedIssuer<'static, KeyPair>;

    pub(in crate::tls) fn authority(name: &str) -> Authority {
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
            match judge(&*verifier, &own, UnixTime::now()) {
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

    /// What is shown beside a certificate is kept as long as the connection.
    #[test]
    fn a_chain_that_is_too_long_is_refused_on_both_sides() {
        let [ours, other] = ["ours", "other"].map(authority);
        let mut roots = RootCertStore::empty();
        roots.add(ours.der().clone()).expect("a root");
        let roots = Arc::new(roots);
        let lists = RevocationLists::read(None).expect("none");
        let clients = lists.client_verifier(&roots, (false, false));
        let clients = clients.expect("a verifier");
        let servers = lists.server_verifier(&roots).expect("a verifier");
        let certificate = |names: usize| {
            let name = |number| format!("host-{number}.example");
            let names = (0..names).map(name).collect::<Vec<_>>();
            let params = CertificateParams::new(names).expect("parameters");
            let key = KeyPair::generate().expect("a key");
            let signed = params.signed_by(&key, &ours).expect("signed");
            signed.der().clone()
        };
        let host = rustls::pki_types::ServerName::try_from("host-0.example").expect("a name");
        let judged = |own: usize, between: usize| {
            let mut shown = vec![certificate(own)];
            shown.resize(1 + between, other.der().clone());
            let now = UnixTime::now();
            let client = judge(&*clients, &shown, now);
            let server = servers.verify_server_cert(&shown[0], &shown[1..], &host, &[], now);
            let fits = lists.check_own_certificate(&*clients, &shown, Path::new("own.pem"));
            assert_eq!(fits.is_ok(), client.is_ok(), "{fits:?}");
            // Errors of this kind are equal to no other.
            assert_eq!(format!("{client:?}"), format!("{:?}", server.map(drop)));
            client
        };
        assert_eq!(judged(1, 0), Ok(()));
        assert_eq!(judged(1, 7), Ok(()));
        for (own, between, found) in [(1, 8, "9 certificates in "), (1_000, 0, "1 certificates")] {
            let Err(Error::InvalidCertificate(why)) = judged(own, between) else {
                panic!("it is too long: {own} names, {between} more");
            };
            let (text, advice) = crate::tls::describe_certificate_error(&why);
            assert!(text.contains(found), "{text}");
            assert!(text.contains("at most 8 in 16384 bytes"), "{text}");
            assert!(advice.contains("between it and its authority"), "{advice}");
        }
    }
}
