//! For how long a server's own certificate is good.
//!
//! A certificate that expires takes a server out of its cluster at an hour
//! that no person has chosen, and the others only ever see that it does not
//! prove itself. So the server looks at its own as the others will, with the
//! same verifier, when it reads it and now and then after that.
//!
//! The verifier does not tell until when a certificate is valid, unless it is
//! not valid; so it is asked about the beginning and the end of all times.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, Error};
use std::sync::Arc;

use super::tls_files::TlsFiles;
use tenure_runtime::tls::{date, describe_certificate_error};

/// The first second of the year 10,000, when every certificate is over.
const NEVER: u64 = 253_402_300_800;
/// A warning is given so long before the end, or when only this part of the
/// certificate's life is left: some live for a day and are renewed each night.
const SOON: u64 = 14 * 86_400;
const PART: u64 = 4;

/// What a server shows of itself.
#[derive(Debug)]
pub(super) struct OwnCertificate {
    files: TlsFiles,
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// What there is to say of it.
#[derive(PartialEq, Eq, Debug)]
enum ExpiryMessage {
    Good(String),
    Bad(String),
}

impl OwnCertificate {
    pub(super) fn new(
        files: TlsFiles,
        certificates: Vec<CertificateDer<'static>>,
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> Self {
        Self {
            files,
            certificates,
            verifier,
        }
    }

    /// Says to the log until when it is good, and warns if that is soon or
    /// over.
    pub(super) fn log(&self) {
        match self.expiry_message(UnixTime::now().as_secs()) {
            Some(ExpiryMessage::Bad(text)) => tracing::warn!("{text}"),
            Some(ExpiryMessage::Good(text)) => tracing::info!("{text}"),
            None => {}
        }
    }

    fn verify(&self, seconds: u64) -> Result<(), CertificateError> {
        let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let Some((own, between)) = self.certificates.split_first() else {
            return Ok(());
        };
        match self.verifier.verify_client_cert(own, between, at) {
            Err(Error::InvalidCertificate(why)) => Err(why),
            // Nothing that others could find wrong with it.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn expiry_message(&self, now: u64) -> Option<ExpiryMessage> {
        let file = self.files.certificate.display();
        if let Err(why) = self.verify(now) {
            let (found, advice) = describe_certificate_error(&why);
            return Some(ExpiryMessage::Bad(format!(
                "{file}: expected a certificate that other servers believe, of an authority in \
                 {}, found {found}; {advice}",
                self.files.authority.display()
            )));
        }
        let Err(CertificateError::ExpiredContext { not_after, .. }) = self.verify(NEVER) else {
            return None;
        };
        let begins = match self.verify(0) {
            Err(CertificateError::NotValidYetContext { not_before, .. }) => not_before.as_secs(),
            _ => 0,
        };
        let ends = not_after.as_secs();
        let text = format!("{file}: the certificate expires on {}", date(ends));
        let lifetime = ends.saturating_sub(begins);
        if ends.saturating_sub(now) >= SOON.min(lifetime / PART) {
            return Some(ExpiryMessage::Good(text));
        }
        let advice = "renew it before that; its file is read again by itself";
        Some(ExpiryMessage::Bad(format!("{text}; {advice}")))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::RootCertStore;
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::server::WebPkiClientVerifier;

    use super::*;

    /// A certificate that is good from the first of January 2030 for so many
    /// days, of an authority that is believed.
    fn shown(days: u8) -> OwnCertificate {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("parameters");
        params.not_before = rcgen::date_time_ymd(2030, 1, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 1 + days);
        let key = KeyPair::generate().expect("a key");
        let own = params.signed_by(&key, &authority).expect("signed");
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).expect("a root");
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().expect("a verifier");
        let files = TlsFiles {
            certificate: "own.pem".into(),
            key: "own.key".into(),
            authority: "ca.pem".into(),
        };
        OwnCertificate::new(files, vec![own.der().clone()], verifier)
    }

    #[test]
    fn an_end_that_is_near_is_warned_of_in_time() {
        const DAY: u64 = 86_400;
        const BEGINS: u64 = 1_893_456_000;
        let at = |days: u8, now: u64| shown(days).expiry_message(BEGINS + now).expect("a remark");
        // A quarter of 28 days, and of a day.
        let good = "own.pem: the certificate expires on 2030-01-29 00:00 UTC";
        assert_eq!(at(28, 0), ExpiryMessage::Good(good.into()));
        assert_eq!(at(28, 20 * DAY), ExpiryMessage::Good(good.into()));
        let near = format!("{good}; renew it before that; its file is read again by itself");
        assert_eq!(at(28, 22 * DAY), ExpiryMessage::Bad(near));
        assert!(matches!(at(1, DAY / 2), ExpiryMessage::Good(_)));
        assert!(matches!(at(1, DAY * 4 / 5), ExpiryMessage::Bad(_)));
        let expired = "own.pem: expected a certificate that other servers believe, of an authority \
                       in ca.pem, found one that has expired on 2030-01-02 00:00 UTC; renew it; \
                       its file is read again by itself";
        assert_eq!(at(1, 2 * DAY), ExpiryMessage::Bad(expired.into()));
    }
}
