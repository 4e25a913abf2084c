//! The authority of a directory of `tenure certs`: its certificate (`ca.pem`)
//! and its key (`ca.key`), and how files are written beside them.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Context as _;
use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::failure::{Failure, usage};

/// The authority of the directory; made if there is none.
pub(super) fn authority(dir: &Path) -> Result<Issuer<'static, KeyPair>, Failure> {
    let (pem, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    if pem.exists() || key.exists() {
        let (name, key) = read(dir)?;
        return Ok(Issuer::new(params(&name)?, key));
    }
    let fresh = KeyPair::generate()?;
    let name = name_of(&fresh);
    let made = CertifiedIssuer::self_signed(params(&name)?, fresh)?;
    write(&key, &made.key().serialize_pem(), 0o600)?;
    if let Err(error) = write(&pem, &made.pem(), 0o644) {
        // A key without its certificate would refuse the next attempt.
        let _ = fs::remove_file(&key);
        return Err(error);
    }
    let key = KeyPair::from_pem(&made.key().serialize_pem())?;
    Ok(Issuer::new(params(&name)?, key))
}

/// The certificate of the directory's authority, made anew, in DER: it has the
/// name and the key by which others are judged. In `ca.pem` there may be those of
/// other authorities, too.
pub(super) fn own_certificate(dir: &Path) -> Result<Vec<u8>, Failure> {
    let (name, key) = read(dir)?;
    Ok(params(&name)?.self_signed(&key)?.der().to_vec())
}

/// What the authority of the directory is called, and its key.
fn read(dir: &Path) -> Result<(String, KeyPair), Failure> {
    let text = |name: &str| {
        let path = dir.join(name);
        tenure::small::read_text(&path).map_err(|error| {
            usage(format!(
                "{}: expected both files of an authority, or none: {error}",
                path.display()
            ))
        })
    };
    let certificates = text("ca.pem")?;
    let key = KeyPair::from_pem(&text("ca.key")?).map_err(|error| {
        let found = tenure::error::without_bytes(&error.to_string());
        let path = dir.join("ca.key");
        let path = path.display();
        usage(format!(
            "{path}: expected a private key in PEM, found: {found}"
        ))
    })?;
    let own = name_of(&key);
    // Those that earlier releases made have one name.
    let name = if is_called(&certificates, &own) {
        own
    } else {
        NAME.to_owned()
    };
    Ok((name, key))
}

const NAME: &str = "Tenure authority";

/// What an authority with this key is called: each another name, by which the
/// list of what it has revoked is found.
fn name_of(key: &KeyPair) -> String {
    let print = tenure_server::fingerprint(&key.public_key_pem());
    format!("{NAME} {}", &print[..16])
}

/// Whether one of these certificates in PEM has that name in it.
fn is_called(certificates: &str, name: &str) -> bool {
    certificates.split("-----BEGIN").any(|certificate| {
        let lines = certificate.lines().map(str::trim);
        let body: String = lines.filter(|line| !line.contains('-')).collect();
        let bytes = base64::engine::general_purpose::STANDARD.decode(body);
        let mut windows = bytes.iter().flat_map(|bytes| bytes.windows(name.len()));
        windows.any(|window| window == name.as_bytes())
    })
}

/// What every authority that is made here says of itself, but for its key.
fn params(name: &str) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = SystemTime::now().into();
    params.not_after = rcgen::date_time_ymd(2099, 1, 1);
    Ok(params)
}

/// Replaces a file by a new one that only its owner reads, if it is a key.
pub(super) fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let unfinished = path.with_extension("tmp");
    let replaced = write_unfinished(&unfinished, text, mode)
        .and_then(|()| fs::rename(&unfinished, path))
        .with_context(|| path.display().to_string());
    if replaced.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    Ok(replaced?)
}

fn write_unfinished(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether what the authority of the directory signs names it so.
    fn signs_as(dir: &Path, name: &str) -> bool {
        let issuer = authority(dir).expect("an authority");
        let client = CertificateParams::new(Vec::new()).expect("parameters");
        let key = KeyPair::generate().expect("a key");
        let signed = client.signed_by(&key, &issuer).expect("signed");
        is_called(&signed.pem(), name)
    }

    #[test]
    fn each_authority_has_a_name_of_its_own_and_those_of_before_keep_theirs() {
        let dirs = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
        let [one, two, old] = dirs.each_ref().map(tempfile::TempDir::path);
        let made = CertifiedIssuer::self_signed(
            params(NAME).expect("parameters"),
            KeyPair::generate().expect("a key"),
        );
        let made = made.expect("an authority");
        write(&old.join("ca.pem"), &made.pem(), 0o644).expect("written");
        write(&old.join("ca.key"), &made.key().serialize_pem(), 0o600).expect("written");
        assert!(signs_as(old, NAME) && !signs_as(old, &name_of(made.key())));
        let named = |dir: &Path| {
            drop(authority(dir).expect("made"));
            let key = fs::read_to_string(dir.join("ca.key")).expect("text");
            let name = name_of(&KeyPair::from_pem(&key).expect("a key"));
            assert!(signs_as(dir, &name), "{name}");
            name
        };
        assert_ne!(named(one), named(two));
        // While an authority is changed its file may have both.
        let file = |dir: &Path| fs::read_to_string(dir.join("ca.pem")).expect("text");
        let both = file(two) + &file(one);
        write(&one.join("ca.pem"), &both, 0o644).expect("written");
        assert_ne!(named(one), named(two));
    }
}
