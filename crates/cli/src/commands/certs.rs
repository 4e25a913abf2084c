//! `tenure certs`: an authority and certificates, in one command.
//!
//! For trying TLS, and for small clusters that have no authority of their own.
//! The authority's key stays in the directory: a user who has it can make
//! certificates that the cluster believes.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};

use tenure::small;
use tenure_server::transport::server_name;
use tenure_server::warn_if_others_may_write;

use super::authority::{authority, write};
use super::revoke::{self, earlier};
use crate::args::Certs;
use crate::failure::{Failure, usage};
use crate::{Context, config};

/// Longer names are not allowed in certificates (RFC 5280, `ub-common-name`).
const NAME_CHARS: usize = 64;

/// For longer no certificate is made.
const VALID_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3_600);

pub(crate) fn certs(context: &Context, args: &Certs) -> Result<ExitCode, Failure> {
    if !args.revoke.is_empty() {
        return revoke::revoke(context, args);
    }
    let valid = valid(&args.valid)?;
    let is_client = args.server.is_empty();
    let usual = if is_client { "client" } else { "server" };
    let name = args.name.as_deref().unwrap_or(usual);
    if !is_name(name) {
        return Err(usage(format!(
            "--name: expected up to {NAME_CHARS} printable characters without dots and slashes, \
             and not \"ca\", found {name:?}"
        )));
    }
    let hosts = hosts(args)?;
    // Other users must not be able to write here under any umask.
    let mut directory = fs::DirBuilder::new();
    let made = directory.recursive(true).mode(0o755).create(&args.dir);
    made.with_context(|| args.dir.display().to_string())?;
    warn_if_others_may_write(&args.dir, "put another authority there");
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
    let kept = keep(&files[1])?;
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
    let text = kept.iter().fold(text, |text, kept| {
        let kept = kept.display();
        format!(
            "{text}\nthe certificate of before is {kept}, and stays good until it expires; \
             `--revoke {kept}` ends that"
        )
    });
    context.output.line(
        &text,
        &serde_json::json!({
            "certificate": files[1], "key": files[0], "authority": authority, "hosts": hosts,
            "servers": args.server, "before": kept,
        }),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a certificate may have this name, and files that are called so.
fn is_name(text: &str) -> bool {
    let wrong = |it: char| it.is_control() || matches!(it, '/' | '.');
    text != "ca" && (1..=NAME_CHARS).contains(&text.chars().count()) && !text.contains(wrong)
}

/// Keeps the certificate that is about to be replaced, under a name of its own:
/// to revoke it takes its serial number. Its file stays there for who reads it.
fn keep(file: &Path) -> Result<Option<PathBuf>, Failure> {
    if !file.exists() {
        return Ok(None);
    }
    let pem = small::read_text(file).map_err(|error| {
        usage(format!(
            "{}: expected the certificate of before, which is kept so that it can be revoked: \
             {error}",
            file.display()
        ))
    })?;
    let mut free = (1_u64..).map(|number| earlier(file, number));
    let kept = free.find(|it| !it.exists());
    let kept = kept.ok_or_else(|| usage("too many certificates of that name".to_owned()))?;
    write(&kept, &pem, 0o644)?;
    Ok(Some(kept))
}

fn valid(text: &str) -> Result<Duration, Failure> {
    match config::duration("--valid", text)? {
        valid if valid <= VALID_MAX => Ok(valid),
        _ => Err(usage(format!(
            "--valid: expected at most 100y, found {text:?}"
        ))),
    }
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
    let is_odd = |it: &&String| it.is_empty() || it.contains(|it: char| !it.is_ascii_graphic());
    if let Some(odd) = hosts.iter().find(is_odd) {
        return Err(usage(format!(
            "--host: expected names or addresses, found {odd:?}"
        )));
    }
    hosts.extend(args.server.iter().map(|server| server_name(*server)));
    Ok(hosts)
}
