//! What a certificate in a file says of itself, and whether an authority has
//! signed it: for those who revoke it.
//!
//! An authority revokes by serial numbers, and any number may be on its list.
//! A list with that of another authority's certificate revokes nothing. So who
//! makes a list has to know of whom a certificate is.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, Error, RootCertStore};

use super::revocation::judge;
use crate::error::without_bytes;

/// A certificate of a file.
#[derive(Debug)]
pub struct Issued {
    der: CertificateDer<'static>,
    /// Its serial number: the bytes, the highest first, without zeros before
    /// them.
    pub serial: Vec<u8>,
    /// What it calls who has signed it.
    pub issuer: String,
}

impl Issued {
    /// The first certificate in PEM.
    ///
    /// # Errors
    /// What was expected and what was found.
    pub fn parse(pem: &[u8]) -> Result<Self, String> {
        let der = CertificateDer::from_pem_slice(pem);
        let der = der.map_err(|error| {
            let found = without_bytes(&error.to_string());
            format!("expected a certificate in PEM, found: {found}")
        })?;
        let (serial, issuer) = serial_and_issuer(&der)
            .ok_or("expected a certificate with a serial number, found none")?;
        Ok(Self {
            der,
            serial,
            issuer,
        })
    }

    /// Whether the authority with this certificate (in DER) has signed it, by
    /// itself. It may have expired.
    ///
    /// # Errors
    /// What was expected and what was found.
    pub fn is_of(&self, authority: &[u8]) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        let added = roots.add(authority.to_vec().into());
        added.map_err(|error| format!("expected an authority's certificate, found: {error}"))?;
        let roots = Arc::new(roots);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms.all;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider);
        let verifier = verifier.build().map_err(|error| error.to_string())?;
        let shown = [self.der.clone()];
        let of_either = |as_of| match judge(&*verifier, &shown, as_of) {
            // It may be for servers alone.
            Err(Error::InvalidCertificate(
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
            )) => {
                let parsed = ParsedCertificate::try_from(&self.der)?;
                verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], as_of, algorithms)
            }
            judged => judged,
        };
        let judged = match of_either(UnixTime::now()) {
            Err(Error::InvalidCertificate(
                CertificateError::ExpiredContext { not_after: at, .. }
                | CertificateError::NotValidYetContext { not_before: at, .. },
            )) => of_either(UnixTime::since_unix_epoch(Duration::from_secs(
                at.as_secs(),
            ))),
            judged => judged,
        };
        judged.map_err(|why| match why {
            Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => format!(
                "expected a certificate of this authority, found one of another, {:?}",
                self.issuer
            ),
            _ => format!(
                "expected a certificate that this authority has made for a server or a client, \
                 found one of {:?} that is none ({why})",
                self.issuer
            ),
        })
    }
}

const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;

fn serial_and_issuer(der: &[u8]) -> Option<(Vec<u8>, String)> {
    let (_, certificate, _) = element(der)?;
    let (_, signed, _) = element(certificate)?;
    let (tag, first, rest) = element(signed)?;
    // Before the number may stand which version of X.509 it has.
    let (tag, number, rest) = match tag {
        VERSION => element(rest)?,
        other => (other, first, rest),
    };
    let begin = number.iter().position(|byte| *byte != 0)?;
    let number = (tag == INTEGER).then(|| number[begin..].to_vec())?;
    let (_, _algorithm, rest) = element(rest)?;
    let (_, issuer, _) = element(rest)?;
    Some((number, name(issuer)))
}

/// The values of a name, whatever they are of.
fn name(mut parts: &[u8]) -> String {
    let mut values = Vec::new();
    while let Some((_, part, rest)) = element(parts) {
        parts = rest;
        let value = element(part).and_then(|(_, pair, _)| {
            let (_, _type, rest) = element(pair)?;
            element(rest)
        });
        values.extend(value.map(|(_, it, _)| String::from_utf8_lossy(it).into_owned()));
    }
    values.join(", ")
}

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
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
        IsCa, KeyPair, SerialNumber,
    };

    use super::*;

    #[test]
    fn a_serial_number_is_found_in_its_certificate() {
        for number in [vec![1], vec![0x80, 2], vec![0x7f; 20], vec![0xff; 20]] {
            let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("parameters");
            params.serial_number = Some(SerialNumber::from(number.clone()));
            let key = KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("signed");
            let issued = Issued::parse(certificate.pem().as_bytes()).expect("it has one");
            assert_eq!(issued.serial, number);
            let der = certificate.der();
            for end in 0..der.len().min(40) {
                assert_eq!(element(&der[..end]), None, "{end} bytes");
            }
        }
        let none = Issued::parse(b"none").expect_err("it is none");
        assert!(none.contains("in PEM"), "{none}");
    }

    fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        CertifiedIssuer::self_signed(params, key).expect("an authority")
    }

    #[test]
    fn a_certificate_is_of_who_has_signed_it_whatever_it_is_for_and_when() {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let (ours, theirs, namesake) = (authority("ours"), authority("theirs"), authority("ours"));
        for purpose in [ClientAuth, ServerAuth] {
            for years in [(2001, 2002), (2001, 2098), (2097, 2098)] {
                let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("parameters");
                params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
                params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
                params.extended_key_usages = vec![purpose.clone()];
                let key = KeyPair::generate().expect("a key");
                let of = |by: &CertifiedIssuer<'static, KeyPair>| {
                    let pem = params.signed_by(&key, by).expect("signed").pem();
                    let issued = Issued::parse(pem.as_bytes()).expect("a certificate");
                    issued.is_of(ours.der())
                };
                assert_eq!(of(&ours), Ok(()));
                let other = of(&theirs).expect_err("it is of another");
                assert!(other.contains("another, \"theirs\""), "{other}");
                let other = of(&namesake).expect_err("it is of another");
                assert!(other.contains("another, \"ours\""), "{other}");
            }
        }
        let own = Issued::parse(ours.pem().as_bytes()).expect("a certificate");
        let own = own.is_of(ours.der()).expect_err("it is the authority");
        assert!(own.contains("for a server or a client"), "{own}");
    }
}
