//! The URL: which servers, which prefix, how far to trust, and what may be
//! shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::classify;
use crate::error::StoreError;
use crate::store::dial::HANDSHAKE_WITHIN;
use crate::store::{password, pem_files, system_authorities, url_options};

/// What registers' keys begin with in etcd, if nothing else is asked for.
const PREFIX: &str = "tenure/";
/// How many servers a URL may name.
const SERVERS_MAX: usize = 16;
/// The port of a server that none is named for.
const PORT: u16 = 2379;

/// How long the addresses of a name have together to take a connection: half of a handshake,
/// so that the rest has time too.
const CONNECT_WITHIN: Duration = Duration::from_secs(HANDSHAKE_WITHIN.as_secs() / 2);
/// How often a silent connection is asked whether it lives. A server answers
/// more than one such question in five seconds by hanging up.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
/// How long it may take to say so.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a URL says.
#[derive(Clone)]
pub(super) struct Settings {
    /// In the order of the URL: the first that answers is used.
    pub(super) servers: Vec<Endpoint>,
    /// The user's name and password.
    pub(super) user: Option<(String, String)>,
    /// What a register's key is put behind.
    pub(super) prefix: String,
    /// What may be shown of it.
    shown: String,
}

/// What the options say about TLS.
#[derive(Default)]
struct Tls {
    on: Option<bool>,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

fn wrong(found: impl fmt::Display) -> StoreError {
    StoreError::broken(format!(
        "expected etcd://[user[:password]@]host:port[,host:port…][?prefix=tenure/], perhaps with \
         password_file=, tls=on, ca=, cert= and key=, found {found}"
    ))
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url
            .strip_prefix("etcd://")
            .ok_or_else(|| wrong("no // after etcd:"))?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let address = address.strip_suffix('/').unwrap_or(address);
        let (user, hosts) = match address.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, address),
        };
        let (mut prefix, mut tls, mut file) = (PREFIX.to_owned(), Tls::default(), None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescape(value)?;
            match name {
                "prefix" => prefix = url_options::prefix(value)?,
                "tls" => tls.on = Some(url_options::on(name, &value)?),
                "ca" => tls.authorities = Some(value.into()),
                "cert" => tls.certificate = Some(value.into()),
                "key" => tls.key = Some(value.into()),
                "password_file" => file = Some(PathBuf::from(value)),
                _ => return Err(wrong(format_args!("the unknown option {name:?}"))),
            }
        }
        let hosts = hosts.split(',').map(with_port);
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        if hosts.len() > SERVERS_MAX {
            return Err(wrong(format_args!("{} hosts", hosts.len())));
        }
        let config = tls.config()?;
        let servers = hosts.iter().map(|host| endpoint(host, config.as_ref()));
        let mut shown = format!("etcd://{}", hosts.join(","));
        if prefix != PREFIX {
            shown += &format!("/?prefix={prefix}");
        }
        Ok(Self {
            servers: servers.collect::<Result<_, _>>()?,
            user: parse_user(user, file.as_deref())?,
            prefix,
            shown,
        })
    }
}

/// The user's name and password, which may be in a file.
fn parse_user(
    text: Option<&str>,
    file: Option<&Path>,
) -> Result<Option<(String, String)>, StoreError> {
    let parts = text.map(|text| {
        text.split_once(':')
            .map_or((text, None), |(a, b)| (a, Some(b)))
    });
    let (name, password) = match (parts, file) {
        (None, None) => return Ok(None),
        (Some((name, Some(password))), None) => (name, unescape(password)?),
        (Some((name, None)), Some(file)) => (name, password::in_file(file)?),
        (Some((_, None)), None) => return Err(wrong("a user without a password")),
        (Some((_, Some(_))), Some(_)) => return Err(wrong("two passwords, one in a file")),
        (None, Some(_)) => return Err(wrong("a password_file= without a user before @")),
    };
    Ok(Some((unescape(name)?, password)))
}

fn with_port(host: &str) -> Result<String, StoreError> {
    let whole = url_options::with_port(host, PORT);
    whole.ok_or_else(|| wrong(format_args!("the host {host:?}")))
}

/// Text in which `%` and two hexadecimal digits stand for a byte.
fn unescape(text: &str) -> Result<String, StoreError> {
    url_options::unescape(text).map_err(wrong)
}

fn endpoint(host: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint, StoreError> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
        .map_err(|error| wrong(format_args!("{host:?}: {}", classify::text(&error))))?
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    match tls {
        None => Ok(endpoint),
        Some(config) => endpoint.tls_config(config.clone()).map_err(|error| {
            StoreError::broken(format!(
                "expected certificates and a key in PEM behind ca=, cert= and key=: {}",
                classify::text(&error)
            ))
        }),
    }
}

impl Tls {
    /// The configuration, if TLS is asked for; naming a file asks for it.
    fn config(&self) -> Result<Option<ClientTlsConfig>, StoreError> {
        let files = [
            ("ca", self.authorities.is_some()),
            ("cert", self.certificate.is_some()),
            ("key", self.key.is_some()),
        ];
        if !url_options::tls(self.on, &files)? {
            return Ok(None);
        }
        let mut config = ClientTlsConfig::new();
        config = match &self.authorities {
            Some(path) => {
                // The client passes over what it cannot read.
                pem_files::check_authorities("ca", path)?;
                config.ca_certificate(Certificate::from_pem(pem_files::text("ca", path)?))
            }
            None => {
                system_authorities::check()?;
                config.with_native_roots()
            }
        };
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let (certificate, key) = pem_files::identity(certificate, key)?;
                Ok(Some(config.identity(Identity::from_pem(certificate, key))))
            }
            (None, None) => Ok(Some(config)),
            _ => Err(wrong("one of cert= and key= without the other")),
        }
    }
}

/// Without the password.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::url_options::PREFIX_MAX;

    #[test]
    fn urls_say_servers_prefix_and_user() {
        let parsed =
            Settings::parse("etcd://u%40x:p%3Aw@h1,[::1]:99/?prefix=a%2Fb").expect("a URL");
        assert_eq!(parsed.user, Some(("u@x".into(), "p:w".into())));
        assert_eq!(parsed.prefix, "a/b");
        // What is shown has no password.
        assert_eq!(parsed.to_string(), "etcd://h1:2379,[::1]:99/?prefix=a/b");
        let plain = Settings::parse("etcd://h:1/").expect("a URL");
        assert_eq!((plain.prefix.as_str(), plain.user), (PREFIX, None));
        assert_eq!(plain.servers.len(), 1);
    }

    #[test]
    fn a_password_may_be_in_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("password");
        let file = path.display();
        std::fs::write(&path, "p:w @\n").expect("written");
        let mode = |mode| {
            let wanted = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, wanted).expect("a mode");
        };
        mode(0o600);
        let parsed = Settings::parse(&format!("etcd://u@h?password_file={file}")).expect("a URL");
        assert_eq!(parsed.user, Some(("u".into(), "p:w @".into())));
        for url in [
            format!("etcd://u:p@h?password_file={file}"),
            format!("etcd://h?password_file={file}"),
            format!("etcd://u@h?password_file={file}.none"),
        ] {
            assert!(Settings::parse(&url).is_err(), "{url}");
        }
        mode(0o644);
        let refused = Settings::parse(&format!("etcd://u@h?password_file={file}"));
        let why = refused.expect_err("others may read it").to_string();
        assert!(why.contains("found mode 644"), "{why}");
    }

    #[test]
    fn wrong_urls_say_what_was_expected() {
        let long = format!("etcd://h?prefix={}", "x".repeat(PREFIX_MAX + 1));
        let many = format!("etcd://{}", vec!["h"; SERVERS_MAX + 1].join(","));
        for url in [
            "etcd:h",
            "etcd://",
            "etcd://h,,g",
            "etcd://h:port",
            "etcd://h:70000",
            "etcd://user@h",
            "etcd://h?prefx=x",
            "etcd://h?prefix=%0a",
            "etcd://h?prefix=%g0",
            "etcd://h?prefix=%ff",
            "etcd://h?tls=maybe",
            "etcd://h?tls=off&ca=/x",
            "etcd://h?cert=/x&key=/y&tls=off",
            "etcd://h?cert=/none",
            "etcd://h?ca=/does/not/exist",
            &long,
            &many,
        ] {
            let refused = Settings::parse(url);
            let Err(StoreError::Broken(why)) = refused else {
                panic!("{url} was taken: {refused:?}");
            };
            let why = why.to_string();
            assert!(why.contains("expected"), "{url}: {why}");
            assert_eq!(
                url.contains("tls=off"),
                why.contains("found tls=off"),
                "{why}"
            );
        }
    }
}
