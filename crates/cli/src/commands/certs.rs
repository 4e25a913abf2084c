//! `tenure certs`: an authority and certificates, in one command.
//!
//! For trying TLS, and for small clusters that have no authority of their own.
//! The authority's key stays in the directory: a user who has it can make
//! certificates that the cluster believes.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use tenure_server::transport::server_name;

use super::revoke;
use crate::args::Certs;
use crate::failure::{Failure, usage};
use crate::{Context, config};

pub(crate) fn certs(context: &Context, args: &Certs) -> Result<ExitCode, Failure> {
    if !args.revoke.is_empty() {
        return revoke::revoke(context, args);
    }
    let valid = config::duration("--valid", &args.valid)?;
    let is_client = args.server.is_empty();
    let usual = if is_client { "client" } else { "server" };
    let name = args.name.as_deref().unwrap_or(usual);
    if name == "ca" || name.contains(['/', '.']) || name.is_empty() {
        let found = name;
        return Err(usage(format!(
            "--name: expected a name without dots and slashes, and not \"ca\", found {found:?}"
        )));
    }
    let hosts = hosts(args)?;
    fs::create_dir_all(&args.dir)?;
    let issuer = authority(&args.dir)?;
    revoke::begin(&args.dir, &issuer)?;
    let mut params = CertificateParams::new(hosts.clone()).map_err(|error| {
        usage(format!(
            "--host: expected names or addresses, found {error}"
        ))
    })?;
    params.distinguished_name.push(DnType::CommonName, name);
    // A client's certificate is never taken for a server's, not even by
    // servers that do not ask for a number.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !is_client {
        let both = &mut params.extended_key_usages;
        both.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.not_before = SystemTime::now().into();
    params.not_after = (SystemTime::now() + valid).into();
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let files = [".key", ".pem"].map(|end| args.dir.join(format!("{name}{end}")));
    write(&files[0], &key.serialize_pem(), 0o600)?;
    write(&files[1], &certificate.pem(), 0o644)?;
    let authority = args.dir.join("ca.pem");
    let (certificate, key) = (files[1].display(), files[0].display());
    let text = if is_client {
        format!("ca={}&cert={certificate}&key={key}", authority.display())
    } else {
        format!(
            "--tls-cert {certificate} --tls-key {key} --tls-ca {}   (for {})",
            authority.display(),
            hosts.join(", ")
        )
    };
    context.output.line(
        &text,
        &serde_json::json!({
            "certificate": files[1], "key": files[0], "authority": authority, "hosts": hosts,
            "servers": args.server,
        }),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// What the certificate is for: where a server is reached, and its number.
fn hosts(args: &Certs) -> Result<Vec<String>, Failure> {
    if args.server.is_empty() {
        return if args.host.is_empty() {
            Ok(Vec::new())
        } else {
            Err(usage(
                "expected --server N with --host (a server's certificate carries its number), or \
                 neither for a client, found --host alone",
            ))
        };
    }
    if args.server.contains(&0) {
        return Err(usage("--server: expected a number from 1, found 0"));
    }
    let mut hosts = if args.host.is_empty() {
        vec!["localhost".into(), "127.0.0.1".into(), "::1".into()]
    } else {
        args.host.clone()
    };
    hosts.extend(args.server.iter().map(|server| server_name(*server)));
    Ok(hosts)
}

/// The authority of the directory; made if there is none.
pub(super) fn authority(dir: &Path) -> Result<Issuer<'static, KeyPair>, Failure> {
    let (pem, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    if pem.exists() || key.exists() {
        let read = |path: &Path| {
            tenure::small::read_text(path).map_err(|error| {
                usage(format!(
                    "{}: expected both files of an authority, or none: {error}",
                    path.display()
                ))
            })
        };
        let certificate = read(&pem)?;
        let key = KeyPair::from_pem(&read(&key)?)?;
        let own = name_of(&key);
        // Those that earlier releases made have one name.
        let name = if is_called(&certificate, &own) {
            &own
        } else {
            NAME
        };
        return Ok(Issuer::new(params(name)?, key));
    }
    let fresh = KeyPair::generate()?;
    let name = name_of(&fresh);
    let made = CertifiedIssuer::self_signed(params(&name)?, fresh)?;
    write(&key, &made.key().serialize_pem(), 0o600)?;
    write(&pem, &made.pem(), 0o644)?;
    let key = KeyPair::from_pem(&made.key().serialize_pem())?;
    Ok(Issuer::new(params(&name)?, key))
}

const NAME: &str = "Tenure authority";

/// What an authority with this key is called: each another name, by which the
/// list of what it has revoked is found.
fn name_of(key: &KeyPair) -> String {
    let print = tenure_server::fingerprint(&key.public_key_pem());
    format!("{NAME} {}", &print[..16])
}

/// Whether a certificate in PEM has that name in it.
fn is_called(certificate: &str, name: &str) -> bool {
    let lines = certificate.lines().map(str::trim);
    let body: String = lines.filter(|line| !line.starts_with('-')).collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(body);
    let mut windows = bytes.iter().flat_map(|bytes| bytes.windows(name.len()));
    windows.any(|window| window == name.as_bytes())
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
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let mut file = options.open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    Ok(())
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
    }
}
