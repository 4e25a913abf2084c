//! Certificates and keys in the files that options of a URL name.

use std::fmt;
use std::path::Path;

#[cfg(any(feature = "etcd", feature = "postgres"))]
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
#[cfg(any(feature = "etcd", feature = "mysql"))]
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;

use crate::error::StoreError;
use crate::small;

/// The text of a file, which is a small one.
pub(super) fn text(option: &str, path: &Path) -> Result<Vec<u8>, StoreError> {
    small::read(path).map_err(|error| not_pem(option, path, &error))
}

/// The certificates in a file: one at least.
pub(super) fn certificates(
    option: &str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let text = text(option, path)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|why| not_pem(option, path, &why))?;
    if found.is_empty() {
        return Err(not_pem(option, path, &"no certificate"));
    }
    Ok(found)
}

/// The authorities in a file: one at least, and all of them can be read.
#[cfg(feature = "postgres")]
pub(super) fn authorities(option: &str, path: &Path) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(option, path)? {
        let added = roots.add(certificate);
        added.map_err(|why| not_pem(option, path, &why))?;
    }
    Ok(roots)
}

/// Fails unless one authority at least can be read from a file. This is for clients that
/// pass over the others, which a bundle of a system may have.
#[cfg(feature = "etcd")]
pub(super) fn check_authorities(option: &str, path: &Path) -> Result<(), StoreError> {
    let found = certificates(option, path)?;
    match RootCertStore::empty().add_parsable_certificates(found) {
        (0, _) => Err(not_pem(option, path, &"no certificate that can be read")),
        _ => Ok(()),
    }
}

/// The text of a file with a certificate, and of one with its key.
#[cfg(any(feature = "etcd", feature = "mysql"))]
pub(super) fn identity(certificate: &Path, key: &Path) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
    certificates("cert", certificate)?;
    let secret = text("key", key)?;
    PrivateKeyDer::from_pem_slice(&secret).map_err(|why| not_pem("key", key, &why))?;
    Ok((text("cert", certificate)?, secret))
}

fn not_pem(option: &str, path: &Path, found: &dyn fmt::Display) -> StoreError {
    StoreError::broken(format!(
        "{option}={}: expected a file in PEM, found: {found}",
        path.display()
    ))
}

#[cfg(all(test, feature = "etcd", feature = "postgres"))]
mod tests {
    use super::*;

    const JUNK: &str = "-----BEGIN CERTIFICATE-----\nanVuaw==\n-----END CERTIFICATE-----\n";

    #[test]
    fn a_file_without_certificates_is_none_of_authorities() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ca.pem");
        for (text, expected) in [
            ("", "found: no certificate"),
            ("junk\n", "found: no certificate"),
            (JUNK, "ca.pem: expected a file in PEM, found: "),
        ] {
            std::fs::write(&path, text).expect("written");
            let why = authorities("ca", &path).expect_err(text).to_string();
            assert!(why.contains(expected), "{text:?}: {why}");
            let why = check_authorities("ca", &path).expect_err(text).to_string();
            assert!(why.contains(expected), "{text:?}: {why}");
        }
        let made = rcgen::generate_simple_self_signed(["h".into()]).expect("a certificate");
        std::fs::write(&path, made.cert.pem()).expect("written");
        assert_eq!(authorities("ca", &path).expect("one").len(), 1);
        check_authorities("ca", &path).expect("one");
        // One of several.
        std::fs::write(&path, made.cert.pem() + JUNK).expect("written");
        check_authorities("ca", &path).expect("one");
        authorities("ca", &path).expect_err("the other is none");
    }
}
