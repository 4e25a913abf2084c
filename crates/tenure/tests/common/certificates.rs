//! An authority of its own for each test, and certificates of it.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

pub(crate) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("an authority")
}

/// A certificate for this machine and its key, both in PEM. It is any
/// server's of a test's cluster.
pub(crate) fn certified(by: &Authority, expired: bool) -> [String; 2] {
    let servers = (1..=5).map(|number| format!("server-{number}.tenure.internal"));
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let names = names.into_iter().chain(servers).collect::<Vec<_>>();
    let mut params = CertificateParams::new(names).expect("parameters");
    if expired {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    }
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, by).expect("signed");
    [certificate.pem(), key.serialize_pem()]
}
