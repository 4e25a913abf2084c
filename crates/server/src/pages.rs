//! Calls that a web page makes through the browser of a user who may call.
//!
//! A server without tokens serves everybody who reaches it, and a browser on
//! the same machine reaches it. Any page can have a browser send it requests:
//! the page may not read the answer, but the request has its effect
//! (CVE-2018-1098, found in etcd). With DNS rebinding, where the name of the
//! page's own site leads to the server, it reads the answers too
//! (CVE-2018-1099). Three things tell such calls from those of programs:
//!
//! - the browser names the page's site in `Origin`, which is not this server;
//! - a name that was rebound stands in `Host`, and is none of this server's.
//!   An IP address there is always right: a page of that origin came from that
//!   address;
//! - a page sends `application/json` to another site only if the server
//!   allows it (CORS), and this server never does.
//!
//! gRPC over HTTP/2 without an `Origin` is no page's: browsers send one with
//! each `POST`. The probes are open to everybody. With tokens nothing of this
//! is needed, since a page has none.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Version, header};
use tenure_api::v1::{self, Cause};
use tenure_runtime::error::cut;
use tenure_runtime::host_name;

use super::config::Config;
use super::errors::{error, invalid};
use super::metrics::{DeniedReason, Metrics};

/// What every client may ask, with a token or without.
pub(super) const PROBES: [&str; 3] = ["/healthz", "/readyz", "/leader"];

/// How the paths of gRPC begin: of our services, and of those that every
/// server has (health, reflection).
const GRPC: [&str; 2] = ["/tenure.v1.", "/grpc."];

/// What a server that has no tokens asks of calls over HTTP.
#[derive(Debug)]
pub(super) struct Pages {
    /// What this server is called, in lower case.
    names: BTreeSet<String>,
}

/// Why a call is refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: v1::Error,
    pub(super) status: StatusCode,
}

impl Pages {
    /// `None` if there are tokens.
    pub(super) fn new(config: &Config) -> Option<Self> {
        if config.asks_for_tokens() {
            return None;
        }
        let own = config.peers.get(&config.id).map(String::as_str);
        let addresses = [config.listen.as_str(), config.advertised()];
        let addresses = addresses.into_iter().chain(own);
        let hosts = addresses.map(|it| it.rsplit_once(':').map_or(it, |(host, _)| host));
        let names = hosts.chain(config.hosts.iter().map(String::as_str));
        let mut names: BTreeSet<String> = names.map(plain).collect();
        names.extend(["localhost".to_owned(), plain(&host_name())]);
        Some(Self { names })
    }

    /// Whether this call may be a program's.
    ///
    /// # Errors
    /// What a program would have sent, and what was found.
    pub(super) fn judge(&self, request: &Request, metrics: &Metrics) -> Result<(), Refused> {
        let result = self.check(request);
        if result.is_err() {
            metrics.bar(DeniedReason::CrossOrigin);
        }
        result
    }

    fn check(&self, request: &Request) -> Result<(), Refused> {
        let headers = request.headers();
        let origin = text(headers, &header::ORIGIN);
        let path = request.uri().path();
        let grpc = request.version() == Version::HTTP_2
            && GRPC.iter().any(|begin| path.starts_with(begin))
            && kind(headers, "application/grpc");
        if PROBES.contains(&path) || (grpc && origin.is_none()) {
            return Ok(());
        }
        let host = match request.uri().authority() {
            Some(authority) => Some(authority.as_str()),
            None => text(headers, &header::HOST),
        };
        match host {
            Some(host) => self.check_host(host)?,
            // Programs of before HTTP/1.1 send none; no browser is so old.
            None if request.version() == Version::HTTP_10 => {}
            None => return Err(denied("expected Host, found none".to_owned())),
        }
        if let Some(origin) = origin {
            check_origin(origin, host)?;
        }
        // A page may send three kinds of content to other sites unasked, and
        // a POST without any; JSON is not among them.
        if request.method() == Method::POST && !kind(headers, "application/json") {
            return Err(Refused {
                error: invalid(
                    "expected content-type: application/json with a POST, found another or none",
                ),
                status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            });
        }
        Ok(())
    }

    fn check_host(&self, host: &str) -> Result<(), Refused> {
        let own = match named(host) {
            Some(Named::Address) => true,
            Some(Named::Name(name)) => self.names.contains(&plain(name)),
            None => false,
        };
        if own {
            return Ok(());
        }
        let names: Vec<_> = self.names.iter().map(String::as_str).collect();
        Err(denied(format!(
            "expected Host to be an address or a name of this server ({}), found {:?}: a web page \
             could have sent this, and this server has no tokens. Give the server that name \
             (--host), or tokens",
            cut(&names.join(", ")),
            cut(host)
        )))
    }
}

/// What stands in `Host`, beside a port.
enum Named<'a> {
    Address,
    Name(&'a str),
}

/// `None` if it is neither an address nor a name, with a port or without.
fn named(host: &str) -> Option<Named<'_>> {
    let port = |it: &str| {
        it.is_empty()
            || it
                .strip_prefix(':')
                .is_some_and(|it| it.parse::<u16>().is_ok())
    };
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|it| it.split_once(']')) {
        let address = address.parse::<Ipv6Addr>().is_ok() && port(rest);
        return address.then_some(Named::Address);
    }
    let end = host.find(':').unwrap_or(host.len());
    let (name, rest) = host.split_at(end);
    if !port(rest) {
        return None;
    }
    match name.parse::<Ipv4Addr>() {
        Ok(_) => Some(Named::Address),
        Err(_) => Some(Named::Name(name)),
    }
}

/// The origin is this server, under the name that the call itself uses.
fn check_origin(origin: &str, host: Option<&str>) -> Result<(), Refused> {
    let site = origin.split_once("://").map(|(_, site)| site);
    let own = site
        .zip(host)
        .is_some_and(|(site, host)| site.eq_ignore_ascii_case(host));
    if own {
        return Ok(());
    }
    Err(denied(format!(
        "expected no Origin, or this server's, found {:?}: calls from web pages of other sites \
         are refused by a server without tokens",
        cut(origin)
    )))
}

fn denied(why: String) -> Refused {
    Refused {
        error: error(Cause::Denied, why),
        status: StatusCode::FORBIDDEN,
    }
}

/// A header that is there once; what cannot be read counts as empty, which is
/// never right.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    let only = values.next().is_none();
    Some(value.to_str().ok().filter(|_| only).unwrap_or_default())
}

/// Whether the content is of this kind, or of one that begins so (`+proto`).
fn kind(headers: &HeaderMap, wanted: &str) -> bool {
    let found = text(headers, &header::CONTENT_TYPE).unwrap_or_default();
    let begin = found.get(..wanted.len());
    let more = found.get(wanted.len()..).unwrap_or_default();
    begin.is_some_and(|it| it.eq_ignore_ascii_case(wanted))
        && (more.is_empty() || more.starts_with([';', ' ', '+']))
}

/// A name as it is compared: in lower case, without the dot that may end it.
fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tenure_alpo::ServerId;

    use super::*;

    fn pages() -> Pages {
        let id = ServerId::new(1).expect("a number");
        let peers = [(id, "db-1.internal:7500".to_owned())].into();
        let mut config = Config::new(id, peers, "/tmp/x", "0.0.0.0:7400");
        config.hosts = vec!["Payroll.Example.".into()];
        Pages::new(&config).expect("there are no tokens")
    }

    /// The status that a call with these headers is refused with.
    fn judged(method: &str, path: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::builder().method(method).uri(path);
        if headers.iter().any(|(_, value)| value.contains("grpc")) {
            request = request.version(Version::HTTP_2);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        pages().check(&request).err().map(|it| it.status.as_u16())
    }

    #[test]
    fn programs_are_told_from_pages() {
        let json = ("content-type", "application/json; charset=utf-8");
        let post = |headers: &[(&str, &str)]| judged("POST", "/v1/log/append", headers);
        for host in [
            "localhost",
            "LOCALHOST:7400",
            "127.0.0.1:7400",
            "[::1]:7400",
            "192.168.7.1",
            "db-1.internal:7400",
            "payroll.example",
            "payroll.example.:7400",
            &host_name(),
        ] {
            assert_eq!(post(&[("host", host), json]), None, "{host}");
            let origin = format!("http://{host}");
            assert_eq!(post(&[("host", host), ("origin", &origin), json]), None);
            for origin in ["null", "", "http://evil.example", "http://127.0.0.1:8000"] {
                let refused = post(&[("host", host), ("origin", origin), json]);
                assert_eq!(refused, Some(403), "{host} {origin}");
            }
        }
        for host in [
            "evil.example",
            "evil.example:7400",
            "localhost.evil.example",
            "",
            "a b",
            "x@",
            "localhost@evil.example",
            "localhost:7400.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:7400.evil.example",
            "[::1].evil.example",
            "[::1]:7400.evil.example",
            "[::1",
            "::1",
            "localhost:",
            "localhost:99999",
        ] {
            assert_eq!(post(&[("host", host), json]), Some(403), "{host}");
            let status = judged("GET", "/v1/cluster/status", &[("host", host)]);
            assert_eq!(status, Some(403), "{host}");
            assert_eq!(judged("GET", "/leader", &[("host", host)]), None, "{host}");
        }
        let host = ("host", "localhost:7400");
        for kind in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonx",
            "",
        ] {
            assert_eq!(post(&[host, ("content-type", kind)]), Some(415), "{kind}");
        }
        assert_eq!(post(&[host]), Some(415), "a POST without content");
        assert_eq!(post(&[host, host, json]), Some(403), "two hosts");
        assert_eq!(post(&[json]), Some(403), "no host");
    }

    #[test]
    fn grpc_is_not_judged_but_for_an_origin() {
        let path = "/tenure.v1.Log/Append";
        for kind in ["application/grpc", "application/grpc+proto"] {
            let kind = ("content-type", kind);
            assert_eq!(judged("POST", path, &[kind, ("host", "any.example")]), None);
            let headers = [
                kind,
                ("host", "evil.example"),
                ("origin", "http://evil.example"),
            ];
            assert_eq!(judged("POST", path, &headers), Some(403));
            // What only says that it is gRPC is judged as any other.
            for path in ["/v1/log/append", "/v1/cluster/status", "/metrics"] {
                let evil = [kind, ("host", "evil.example")];
                assert_eq!(judged("POST", path, &evil), Some(403), "{path}");
            }
        }
    }
}
