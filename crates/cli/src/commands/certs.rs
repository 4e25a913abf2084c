//! `tenure certs`: an authority and certificates, in one command.
//!
//! For trying TLS, and for small clusters that have no authority of their
//! own. The authority's key stays in the directory: whoever has it can make
//! certificates that the cluster believes.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use crate::args::Certs;
use crate::failure::{Failure, usage};
use crate::{Context, config};

pub(crate) fn certs(context: &Context, args: &Certs) -> Result<ExitCode, Failure> {
    let valid = config::duration("--valid", &args.valid)?;
    if args.name == "ca" || args.name.contains(['/', '.']) || args.name.is_empty() {
        let found = &args.name;
        return Err(usage(format!(
            "--name: expected a name without dots and slashes, and not \"ca\", found {found:?}"
        )));
    }
    fs::create_dir_all(&args.dir)?;
    let issuer = authority(&args.dir)?;
    let hosts = if args.host.is_empty() {
        vec!["localhost".into(), "127.0.0.1".into(), "::1".into()]
    } else {
        args.host.clone()
    };
    let mut params = CertificateParams::new(hosts.clone()).map_err(|error| {
        usage(format!(
            "--host: expected names or addresses, found {error}"
        ))
    })?;
    params
        .distinguished_name
        .push(DnType::CommonName, &args.name);
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.not_before = SystemTime::now().into();
    params.not_after = (SystemTime::now() + valid).into();
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let files = [".key", ".pem"].map(|end| args.dir.join(format!("{}{end}", args.name)));
    write(&files[0], &key.serialize_pem(), 0o600)?;
    write(&files[1], &certificate.pem(), 0o644)?;
    let authority = args.dir.join("ca.pem");
    context.output.line(
        &format!(
            "--tls-cert {} --tls-key {} --tls-ca {}   (for {})",
            files[1].display(),
            files[0].display(),
            authority.display(),
            hosts.join(", ")
        ),
        &serde_json::json!({
            "certificate": files[1], "key": files[0], "authority": authority, "hosts": hosts,
        }),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The authority of the directory; made if there is none.
fn authority(dir: &Path) -> Result<Issuer<'static, KeyPair>, Failure> {
    let (pem, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    if pem.exists() || key.exists() {
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|error| {
                usage(format!(
                    "{}: expected both files of an authority, or none: {error}",
                    path.display()
                ))
            })
        };
        read(&pem)?;
        let key = KeyPair::from_pem(&read(&key)?)?;
        return Ok(Issuer::new(params()?, key));
    }
    let made = CertifiedIssuer::self_signed(params()?, KeyPair::generate()?)?;
    write(&key, &made.key().serialize_pem(), 0o600)?;
    write(&pem, &made.pem(), 0o644)?;
    let key = KeyPair::from_pem(&made.key().serialize_pem())?;
    Ok(Issuer::new(params()?, key))
}

/// What every authority that is made here says of itself, but for its key.
fn params() -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "Tenure authority");
    params.not_before = SystemTime::now().into();
    params.not_after = rcgen::date_time_ymd(2099, 1, 1);
    Ok(params)
}

/// Replaces a file by a new one that only its owner reads, if it is a key.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let unfinished = path.with_extension("tmp");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let mut file = options.open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    Ok(())
}
