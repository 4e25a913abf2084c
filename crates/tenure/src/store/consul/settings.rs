//! The URL: which hosts, which prefix and datacenter, who we are, how far to trust,
//! and what may be shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Identity};

use super::kv::KeySpace;
use crate::error::StoreError;
use crate::store::resolver::Resolver;
use crate::store::{causes, password, system_authorities, url_options};

/// What the names of keys begin with, if nothing else is asked for.
const PREFIX: &str = "tenure/";
/// How many hosts a URL may name.
const HOSTS_MAX: usize = 16;
/// The port of a host that none is named for, without TLS and with it.
const PORT: u16 = 8500;
const TLS_PORT: u16 = 8501;
/// The variable with the token, as Consul's own tools read it.
const TOKEN: &str = "CONSUL_HTTP_TOKEN";
/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a connection is kept that nothing uses. A write that meets one that has
/// been closed is of unknown outcome.
const KEPT_IDLE: Duration = Duration::from_secs(4);
/// How often a silent connection is asked whether it lives.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// What a URL says.
#[derive(Clone)]
pub(super) struct Settings {
    /// `host:port` of each, in the order of the URL: the first that answers is used.
    pub(super) hosts: Vec<String>,
    /// Our token, if we have one.
    pub(super) token: Option<HeaderValue>,
    tls: Option<Tls>,
    prefix: String,
    datacenter: Option<String>,
    /// What may be shown of it.
    shown: String,
}

/// How to speak TLS.
#[derive(Clone)]
struct Tls {
    /// Without any, the system's are believed.
    authorities: Vec<Certificate>,
    own: Option<Identity>,
}

/// The options of a URL.
#[derive(Default)]
struct Options {
    tls: Option<bool>,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    token_file: Option<PathBuf>,
    prefix: Option<String>,
    datacenter: Option<String>,
}

fn wrong(found: impl fmt::Display) -> StoreError {
    StoreError::broken(format!(
        "expected consul://host:port[,host:port…][?prefix=tenure/], perhaps with token_file=, \
         dc=, tls=on, ca=, cert= and key=, found {found}"
    ))
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url
            .strip_prefix("consul://")
            .ok_or_else(|| wrong("no // after consul:"))?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let address = address.strip_suffix('/').unwrap_or(address);
        // Not repeated: it may be a secret.
        if address.contains('@') {
            return Err(wrong(format_args!(
                "a URL with an @; a token is given by token_file= or ${TOKEN}"
            )));
        }
        let options = Options::parse(query)?;
        let tls = options.tls()?;
        let port = if tls.is_some() { TLS_PORT } else { PORT };
        let with_port = |host| {
            let whole = url_options::with_port(host, port);
            whole.ok_or_else(|| wrong(format_args!("the host {host:?}")))
        };
        let hosts = address.split(',').map(with_port);
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        if hosts.len() > HOSTS_MAX {
            return Err(wrong(format_args!("{} hosts", hosts.len())));
        }
        let token = token(options.token_file.as_deref())?;
        let prefix = checked_prefix(options.prefix)?;
        let datacenter = options.datacenter.map(checked_datacenter).transpose()?;
        let mut shown = format!("consul://{}", hosts.join(","));
        let mut next = '?';
        let others = [
            ("prefix", (prefix != PREFIX).then_some(&prefix)),
            ("dc", datacenter.as_ref()),
        ];
        for (name, value) in others {
            if let Some(value) = value {
                shown += &format!("{next}{name}={value}");
                next = '&';
            }
        }
        Ok(Self {
            hosts,
            token,
            tls,
            prefix,
            datacenter,
            shown,
        })
    }

    pub(super) fn keyspace(&self) -> KeySpace<'_> {
        let prefix = self.prefix.as_str();
        KeySpace { prefix }
    }

    /// Where a request to the host of this number goes.
    pub(super) fn url(&self, at: usize, path: &str, options: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let host = self.hosts.get(at).map_or("", String::as_str);
        let mut url = format!("{scheme}://{host}{path}?{options}");
        if let Some(datacenter) = &self.datacenter {
            url += &format!("&dc={datacenter}");
        }
        url
    }

    /// The client: it follows no redirect, uses no proxy and sends each request once.
    pub(super) fn http(&self) -> Result<reqwest::Client, StoreError> {
        let mut client = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_WITHIN)
            .dns_resolver(Arc::new(Resolver))
            .pool_idle_timeout(KEPT_IDLE)
            .tcp_keepalive(KEEPALIVE_EVERY)
            .tcp_nodelay(true);
        client = match &self.tls {
            // Nothing is verified, so the system's authorities are not looked for.
            None => client.tls_certs_only([]),
            Some(tls) if tls.authorities.is_empty() => {
                system_authorities::check()?;
                client
            }
            Some(tls) => client.tls_certs_only(tls.authorities.clone()),
        };
        if let Some(own) = self.tls.as_ref().and_then(|tls| tls.own.clone()) {
            client = client.identity(own);
        }
        client.build().map_err(|error| {
            let why = causes::text(&error);
            StoreError::broken(format!(
                "{self}: expected certificates and a key in PEM behind ca=, cert= and key=: {why}"
            ))
        })
    }
}

impl Options {
    fn parse(query: &str) -> Result<Self, StoreError> {
        let mut options = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = url_options::unescape(value).map_err(wrong)?;
            match name {
                "prefix" => options.prefix = Some(value),
                "dc" => options.datacenter = Some(value),
                "tls" => options.tls = Some(url_options::on(name, &value)?),
                "ca" => options.authorities = Some(value.into()),
                "cert" => options.certificate = Some(value.into()),
                "key" => options.key = Some(value.into()),
                "token_file" => options.token_file = Some(value.into()),
                _ => return Err(wrong(format_args!("the unknown option {name:?}"))),
            }
        }
        Ok(options)
    }

    /// How to speak TLS, if it is asked for; naming a file asks for it.
    fn tls(&self) -> Result<Option<Tls>, StoreError> {
        let files = [
            ("ca", self.authorities.is_some()),
            ("cert", self.certificate.is_some()),
            ("key", self.key.is_some()),
        ];
        if !url_options::tls(self.tls, &files)? {
            return Ok(None);
        }
        let authorities = match &self.authorities {
            Some(file) => authorities(file)?,
            None => Vec::new(),
        };
        let own = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let mut both = pem("cert", certificate)?;
                both.push(b'\n');
                both.extend(pem("key", key)?);
                Some(Identity::from_pem(&both).map_err(|error| {
                    let why = causes::text(&error);
                    StoreError::broken(format!(
                        "cert=, key=: expected a certificate and its key in PEM: {why}"
                    ))
                })?)
            }
            (None, None) => None,
            _ => return Err(wrong("one of cert= and key= without the other")),
        };
        Ok(Some(Tls { authorities, own }))
    }
}

/// What a path of a URL takes as it is, so that names are in Consul what they are here.
fn checked_prefix(prefix: Option<String>) -> Result<String, StoreError> {
    let Some(prefix) = prefix else {
        return Ok(PREFIX.to_owned());
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let segment = |text: &str| {
        !text.is_empty() && text.bytes().all(fits) && text.bytes().any(|byte| byte != b'.')
    };
    let whole = prefix.strip_suffix('/').unwrap_or(&prefix);
    let is_empty = prefix.is_empty();
    if prefix.len() <= url_options::PREFIX_MAX && (is_empty || whole.split('/').all(segment)) {
        return Ok(prefix);
    }
    Err(StoreError::broken(format!(
        "prefix=: expected at most {} letters, digits, -, _ and ., with single slashes between \
         them, found {prefix:?}",
        url_options::PREFIX_MAX
    )))
}

fn checked_datacenter(name: String) -> Result<String, StoreError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(name);
    }
    Err(StoreError::broken(format!(
        "dc=: expected the name of a datacenter, found {name:?}"
    )))
}

/// The token of a file, or of the environment.
fn token(file: Option<&Path>) -> Result<Option<HeaderValue>, StoreError> {
    let (source, token) = match file {
        Some(file) => {
            let token = password::secret("token_file", "a token", file, password::BYTES_MAX)?;
            ("token_file=", token)
        }
        None => match std::env::var(TOKEN) {
            Ok(token) if !token.is_empty() => (TOKEN, token),
            _ => return Ok(None),
        },
    };
    // Not repeated: it is a secret.
    let wrong = |_| StoreError::broken(format!("{source}: expected a token, found other text"));
    let mut token = HeaderValue::from_str(token.trim()).map_err(wrong)?;
    token.set_sensitive(true);
    Ok(Some(token))
}

/// The text of a file that an option names.
fn pem(option: &str, path: &Path) -> Result<Vec<u8>, StoreError> {
    crate::small::read(path).map_err(|error| {
        StoreError::broken(format!(
            "{option}={}: expected a file in PEM: {error}",
            path.display()
        ))
    })
}

/// The certificates in a file.
fn authorities(path: &Path) -> Result<Vec<Certificate>, StoreError> {
    let expected = format!(
        "ca={}: expected a file of certificates in PEM",
        path.display()
    );
    let found = Certificate::from_pem_bundle(&pem("ca", path)?);
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(StoreError::broken(format!("{expected}, found none"))),
        Err(error) => Err(StoreError::broken(format!("{expected}: {error}"))),
    }
}

/// Without the token.
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

    #[test]
    fn urls_say_hosts_prefix_and_datacenter() {
        let url = "consul://h1,[::1]:99/?prefix=a/b.c&dc=east-1&tls=on";
        let all = Settings::parse(url).expect("a URL");
        assert_eq!(all.hosts, ["h1:8501", "[::1]:99"]);
        assert_eq!(all.keyspace().prefix, "a/b.c");
        assert_eq!(
            all.url(1, "/v1/kv/x", "consistent"),
            "https://[::1]:99/v1/kv/x?consistent&dc=east-1"
        );
        assert_eq!(
            all.to_string(),
            "consul://h1:8501,[::1]:99?prefix=a/b.c&dc=east-1"
        );
        let plain = Settings::parse("consul://h").expect("a URL");
        assert_eq!(plain.to_string(), "consul://h:8500");
        assert_eq!(plain.url(0, "/v1/txn", ""), "http://h:8500/v1/txn?");
        let bare = Settings::parse("consul://h?prefix=").expect("a URL");
        assert_eq!(bare.keyspace().prefix, "");
    }

    #[test]
    fn a_token_is_in_a_file_that_others_cannot_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let url = format!("consul://h?token_file={}", path.display());
        std::fs::write(&path, "hunter2\n").expect("written");
        let mode = |mode| {
            let wanted = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, wanted).expect("a mode");
        };
        mode(0o600);
        let parsed = Settings::parse(&url).expect("a URL");
        assert_eq!(parsed.token, Some(HeaderValue::from_static("hunter2")));
        let shown = format!("{parsed} {parsed:?} {:?}", parsed.token);
        assert!(!shown.contains("hunter2"), "{shown}");
        mode(0o644);
        let why = Settings::parse(&url)
            .expect_err("others may read it")
            .to_string();
        assert!(why.contains("found mode 644"), "{why}");
    }

    #[test]
    fn wrong_urls_say_what_was_expected() {
        let many = format!("consul://{}", vec!["h"; HOSTS_MAX + 1].join(","));
        let long = format!(
            "consul://h?prefix={}",
            "x".repeat(url_options::PREFIX_MAX + 1)
        );
        for url in [
            "consul:h",
            "consul://",
            "consul://h,,g",
            "consul://h:port",
            "consul://h/path",
            "consul://hunter2@h",
            "consul://h?token=hunter2",
            "consul://h?prefix=/a",
            "consul://h?prefix=a//b",
            "consul://h?prefix=../a",
            "consul://h?prefix=a%20b",
            "consul://h?dc=",
            "consul://h?dc=a/b",
            "consul://h?tls=maybe",
            "consul://h?tls=off&ca=/x",
            "consul://h?cert=/x&key=/y&tls=off",
            "consul://h?ca=/does/not/exist",
            "consul://h?ca=/dev/null",
            "consul://h?cert=/none",
            "consul://h?token_file=/does/not/exist",
            &many,
            &long,
        ] {
            let refused = Settings::parse(url);
            let Err(StoreError::Broken(why)) = refused else {
                panic!("{url} was taken: {refused:?}");
            };
            let why = why.to_string();
            assert!(why.contains("expected"), "{url}: {why}");
            assert!(!why.contains("hunter2"), "{why}");
            assert_eq!(
                url.contains("tls=off"),
                why.contains("found tls=off"),
                "{why}"
            );
        }
    }
}
