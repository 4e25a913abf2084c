//! Where the servers are, and how to speak to them:
//! `tenure://h1:7400,h2:7400,h3:7400?ca=ca.pem`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Config, Error, Token};
use tenure_runtime::tls::{ClientTlsFiles, OwnFiles};

/// The most servers that may be named.
const SERVERS_MAX: usize = 16;

/// Reads a list of servers.
pub(super) fn servers(text: &str) -> Result<Vec<Arc<str>>, Error> {
    let servers: Result<Vec<Arc<str>>, Error> = text.split(',').map(server).collect();
    let servers = servers?;
    if servers.len() > SERVERS_MAX {
        return Err(Error::invalid(format!(
            "expected at most {SERVERS_MAX} servers, found {}",
            servers.len()
        )));
    }
    Ok(servers)
}

/// The text without what a user's name and password may be, which are not
/// repeated in an error.
fn without_user(text: &str) -> String {
    let after = text.rsplit_once('@').map(|(_, after)| after);
    after.map_or_else(|| text.to_owned(), |after| format!("…@{after}"))
}

fn server(text: &str) -> Result<Arc<str>, Error> {
    let text = text.trim();
    let fail = || {
        let found = without_user(text);
        Error::invalid(format!(
            "expected servers as host:port, separated by commas, e.g. h1:7400,h2:7400,h3:7400, \
             found {found:?}"
        ))
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(fail)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let named = !host.is_empty() && host.chars().all(plain);
    let port: u16 = port.parse().map_err(|_| fail())?;
    if port == 0 || !(named || bracketed) {
        return Err(fail());
    }
    Ok(text.into())
}

/// The files that a URL names.
#[derive(Default)]
struct Files {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    crl: Option<PathBuf>,
}

impl Files {
    fn tls(self) -> Result<Option<ClientTlsFiles>, Error> {
        let wrong = |found: &str| {
            Err(Error::invalid(format!(
                "expected ca= for TLS, and cert= and key= beside it if the servers ask for a \
                 client's certificate, found {found}"
            )))
        };
        let own = match (self.cert, self.key) {
            (Some(certificate), Some(key)) => Some(OwnFiles { certificate, key }),
            (None, None) => None,
            (Some(_), None) => return wrong("cert= without key="),
            (None, Some(_)) => return wrong("key= without cert="),
        };
        match (self.ca, own) {
            (Some(authority), own) => Ok(Some(ClientTlsFiles {
                authority,
                own,
                revoked: self.crl,
            })),
            (None, None) if self.crl.is_none() => Ok(None),
            (None, None) => wrong("crl= without ca="),
            (None, Some(_)) => wrong("cert= and key= without ca="),
        }
    }
}

/// The path of a file, in which `%` and two hexadecimal digits stand for a
/// byte.
fn path(text: &str) -> Option<PathBuf> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let byte = u8::from_str_radix(digits, 16)
            .ok()
            .filter(|_| hexadecimal)?;
        bytes.push(byte);
        bytes.extend_from_slice(rest.as_bytes());
    }
    let path = String::from_utf8(bytes).ok()?;
    Some(PathBuf::from(path)).filter(|_| !text.is_empty())
}

/// Reads `tenure://h1:7400,h2:7400?connections=4&ttl=30s&ca=ca.pem`.
pub(super) fn url(url: &str) -> Result<(Vec<Arc<str>>, Config), Error> {
    let rest = url.strip_prefix("tenure://").ok_or_else(|| {
        Error::invalid(format!(
            "expected tenure://host:port,host:port,…, found {:?}",
            without_user(url)
        ))
    })?;
    let (list, options) = rest.split_once('?').unwrap_or((rest, ""));
    let list = list.strip_suffix('/').unwrap_or(list);
    let (mut config, mut files) = (Config::default(), Files::default());
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let fail = |expected: &str| {
            Error::invalid(format!("{name}=: expected {expected}, found {value:?}"))
        };
        let file = || {
            let file = path(value).map(Some);
            file.ok_or_else(|| fail("a file, with %20 for a space, %25 for % and so on"))
        };
        match name {
            "connections" => {
                config.connections = value.parse().map_err(|_| fail("1 to 16"))?;
            }
            "ttl" => config.ttl = seconds(value).ok_or_else(|| fail("1s to 86400s"))?,
            "hold" => {
                config.hold_by_session = match value {
                    "session" => true,
                    "lease" => false,
                    _ => return Err(fail("session or lease")),
                };
            }
            "ca" => files.ca = file()?,
            "cert" => files.cert = file()?,
            "key" => files.key = file()?,
            "crl" => files.crl = file()?,
            "token_file" => config.token = file()?.map(Token::File),
            _ => {
                // What stands before an @ may be the end of a password.
                let found = without_user(name);
                return Err(Error::invalid(format!(
                    "expected the options connections=, ttl=, hold=, ca=, cert=, key=, crl= or \
                     token_file=, found {found:?}"
                )));
            }
        }
    }
    config.tls = files.tls()?;
    config.check()?;
    Ok((servers(list)?, config))
}

fn seconds(text: &str) -> Option<Duration> {
    let number = text.strip_suffix('s')?;
    number.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_hosts_and_ports() {
        for good in [
            "h1:7400",
            "h1:7400, 10.0.0.2:7401,[::1]:7402",
            "a-b.example:1",
        ] {
            let found = servers(good).expect(good);
            assert_eq!(found.len(), good.split(',').count());
        }
        for bad in [
            "",
            "h1",
            "h1:",
            ":7400",
            "h1:0",
            "h1:70000",
            "h1:7400,",
            "h 1:7400",
            "user@h1:7400",
            "::1:7400",
            "[h1]:7400",
            "http://h1:7400",
        ] {
            let error = servers(bad).expect_err(bad).to_string();
            assert!(error.contains("h1:7400,h2:7400"), "{bad}: {error}");
        }
        assert!(servers(&["h:1"; 17].join(",")).is_err());
        for secret in ["tenure://u:secret@h1:7400", "tenure:u:secret@h1:7400"] {
            let error = url(secret).expect_err(secret).to_string();
            assert!(error.contains("…@h1:7400"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn options_are_in_the_query() {
        let (servers, config) = url("tenure://a:1,b:2/?connections=4&ttl=30s").expect("a URL");
        assert_eq!(servers.len(), 2);
        assert_eq!(
            (config.connections, config.ttl),
            (4, Duration::from_secs(30))
        );
        assert!(!config.hold_by_session);
        let (_, config) = url("tenure://a:1?hold=session").expect("a URL");
        assert!(config.hold_by_session);
        for bad in [
            "tenure:a:1",
            "tenure://a:1?hold=",
            "tenure://a:1?hold=sessions",
            "tenure://a:1?connections=0",
            "tenure://a:1?connections=17",
            "tenure://a:1?ttl=0s",
            "tenure://a:1?ttl=86401s",
            "tenure://a:1?ttl=5",
            "tenure://a:1?prefix=x",
            "tenure://a:1?ca=",
            "tenure://a:1?token_file=",
            "tenure://a:1?ca=x%2",
            "tenure://a:1?ca=x%zz",
            "tenure://a:1?ca=x%+1",
            "tenure://a:1?ca=x%ff",
            "tenure://a:1?cert=x&key=y",
            "tenure://a:1?ca=x&cert=y",
            "tenure://a:1?ca=x&key=y",
        ] {
            let error = url(bad).expect_err(bad).to_string();
            assert!(
                error.contains("expected") && error.contains("found"),
                "{error}"
            );
        }
    }

    #[test]
    fn certificates_are_named_in_the_query() {
        let tls = |options: &str| {
            let (_, config) = url(&format!("tenure://a:1?{options}")).expect(options);
            config.tls
        };
        let authority = PathBuf::from("/etc/a b/ca&.pem");
        let mut files = ClientTlsFiles {
            authority,
            own: None,
            revoked: None,
        };
        assert_eq!(tls("ttl=5s"), None);
        assert_eq!(tls("ca=/etc/a%20b/ca%26.pem").as_ref(), Some(&files));
        files.own = Some(OwnFiles {
            certificate: "c.pem".into(),
            key: "c.key".into(),
        });
        let all = "key=c.key&ca=/etc/a b/ca%26.pem&ttl=5s&cert=c.pem";
        assert_eq!(tls(all), Some(files.clone()));
        files.revoked = Some("c.crl".into());
        assert_eq!(tls(&format!("{all}&crl=c.crl")), Some(files));
        let (_, config) = url("tenure://a:1?token_file=/run/to%20ken").expect("a URL");
        assert_eq!(config.token, Some(Token::File("/run/to ken".into())));
    }
}
