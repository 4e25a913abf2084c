//! `tenure certs --revoke`: the list of what an authority believes no more.
//!
//! What was revoked is kept as text beside the authority's key (`ca.revoked`,
//! a serial number, a time and a file a line), and the signed list (`ca.crl`)
//! is made of that each time. A directory has a list from its beginning, so
//! that servers can be started with it before anything is revoked.
//!
//! A certificate is revoked by its serial number, which is in its file. So the
//! file of one that is renewed is kept (`NAME.before-1.pem` and so on): the key
//! that was stolen may be that of an earlier one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};
use tenure::error::plain;
use tenure::{clock, small};
use tenure_runtime::tls::Issued;

use super::authority::{authority, own_certificate, write};
use crate::Context;
use crate::args::Certs;
use crate::failure::{Failure, usage};

/// The most that one authority revokes: servers read lists of up to 1 MiB.
const REVOKED_MAX: usize = 10_000;

/// Revokes certificates and signs the list anew.
pub(super) fn revoke(context: &Context, args: &Certs) -> Result<ExitCode, Failure> {
    let dir = &args.dir;
    if !dir.join("ca.key").exists() {
        return Err(usage(format!(
            "{}: expected the directory of an authority, found no ca.key there",
            dir.display()
        )));
    }
    let issuer = authority(dir)?;
    let mut revoked = read(dir)?;
    let mut said = Vec::new();
    for file in &args.revoke {
        let serial = serial_number(file, dir)?;
        let shown = file.display();
        if is_revoked(&revoked, &serial) {
            said.push(format!("{shown} was revoked before"));
            continue;
        }
        said.push(format!("revoked {shown}"));
        let what = plain(&shown.to_string());
        revoked.push(Revoked {
            serial,
            at: clock::wall().as_millis() / 1_000,
            what: what.chars().take(40).collect(),
        });
    }
    if revoked.len() > REVOKED_MAX {
        return Err(usage(format!(
            "expected at most {REVOKED_MAX} revoked certificates, found {}; make another authority",
            revoked.len()
        )));
    }
    let text: String = revoked.iter().map(Revoked::line).collect();
    write(&dir.join("ca.revoked"), &text, 0o644)?;
    let list = sign(dir, &issuer, &revoked)?;
    let good = still_good(&args.revoke, dir, &revoked);
    said.extend(good.iter().map(|file| {
        format!(
            "not revoked: {}, another certificate of that name",
            file.display()
        )
    }));
    let count = revoked.len();
    said.push(format!("--tls-crl {}   (revoked: {count})", list.display()));
    let said: Vec<_> = said.iter().map(|line| plain(line)).collect();
    context.output.line(
        &said.join("\n"),
        &serde_json::json!({ "revoked": count, "list": list, "not_revoked": good }),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn is_revoked(revoked: &[Revoked], serial: &[u8]) -> bool {
    revoked.iter().any(|known| known.serial == serial)
}

/// By what the authority of the directory revokes the certificate in a file. On
/// its list the number of another authority's would revoke nothing.
fn serial_number(file: &Path, dir: &Path) -> Result<Vec<u8>, Failure> {
    let wrong = |why: String| usage(format!("--revoke {}: {}", file.display(), plain(&why)));
    let pem = small::read(file).map_err(|error| wrong(error.to_string()))?;
    let issued = Issued::parse(&pem).map_err(wrong)?;
    let of = issued.is_of(&own_certificate(dir)?);
    of.map_err(|why| {
        let dir = dir.display();
        wrong(format!(
            "{why}. Nothing was revoked: the authority in {dir} revokes its own alone"
        ))
    })?;
    Ok(issued.serial)
}

/// What a certificate is called that another of its name has replaced.
pub(super) fn earlier(file: &Path, number: u64) -> PathBuf {
    file.with_extension(format!("before-{number}.pem"))
}

/// The other certificates of these names which are not revoked: those that were
/// replaced, and those that have replaced them.
fn still_good(files: &[PathBuf], dir: &Path, revoked: &[Revoked]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str());
        let Some((name, _)) = name.and_then(|name| name.split_once('.')) else {
            continue;
        };
        let begins = format!("{name}.");
        for place in file.parent().into_iter().chain([dir]) {
            let beside = fs::read_dir(place).into_iter().flatten().flatten();
            let names = beside.filter_map(|it| it.file_name().into_string().ok());
            let same = names.filter(|it| it.starts_with(&begins) && it.ends_with(".pem"));
            found.extend(same.map(|it| place.join(it)));
        }
    }
    found.retain(|file| {
        let serial = serial_number(file, dir);
        serial.is_ok_and(|serial| !is_revoked(revoked, &serial))
    });
    found
}

/// Makes the list of an authority that has none.
pub(super) fn begin(dir: &Path, issuer: &Issuer<'_, KeyPair>) -> Result<(), Failure> {
    if dir.join("ca.crl").exists() {
        return Ok(());
    }
    sign(dir, issuer, &read(dir)?).map(drop)
}

/// A certificate that was revoked.
struct Revoked {
    serial: Vec<u8>,
    /// When, in seconds after 1970.
    at: u64,
    /// In which file it was, for people.
    what: String,
}

impl Revoked {
    fn line(&self) -> String {
        let digits: String = self.serial.iter().map(|it| format!("{it:02x}")).collect();
        format!("{digits} {} {}\n", self.at, self.what)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ' ');
        let (digits, at) = (parts.next()?, parts.next()?);
        let whole = digits.len() % 2 == 0 && digits.bytes().all(|it| it.is_ascii_hexdigit());
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let serial: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        Some(Self {
            serial: serial.filter(|it| whole && !it.is_empty())?,
            at: at.parse().ok()?,
            what: parts.next().unwrap_or_default().to_owned(),
        })
    }
}

fn read(dir: &Path) -> Result<Vec<Revoked>, Failure> {
    let path = dir.join("ca.revoked");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let wrong = |why: String| usage(format!("{}: {why}", path.display()));
    let text = small::read_text(&path).map_err(|error| wrong(error.to_string()))?;
    let parse = |(at, line)| {
        Revoked::parse(line).ok_or_else(|| {
            wrong(format!(
                "line {}: expected a serial number in hexadecimal digits, a time and a name, found \
                 something else",
                at + 1
            ))
        })
    };
    text.lines().enumerate().map(parse).collect()
}

fn sign(dir: &Path, issuer: &Issuer<'_, KeyPair>, revoked: &[Revoked]) -> Result<PathBuf, Failure> {
    let since = |seconds| (SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).into();
    let now = clock::wall().as_millis() / 1_000;
    let one = |it: &Revoked| RevokedCertParams {
        serial_number: SerialNumber::from(it.serial.clone()),
        revocation_time: since(it.at),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: since(now),
        // As the authority itself: each new list replaces the one before.
        next_update: rcgen::date_time_ymd(2099, 1, 1),
        crl_number: SerialNumber::from(now),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(one).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let path = dir.join("ca.crl");
    write(&path, &list.signed_by(issuer)?.pem()?, 0o644)?;
    Ok(path)
}
