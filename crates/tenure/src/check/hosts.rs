//! Which hosts a URL names, and the URL with others in their place.
//!
//! A connection can be sent through a proxy if the client goes where the URL says,
//! in plain text that is not about the host: a certificate is for a name, a signed
//! request is for a name, and servers that a client learns of are not in the URL.

/// Schemes of which it is known whether they go through a proxy.
const KNOWN: &[(&str, Rule)] = &[
    ("memory", Rule::No("it has no network")),
    ("sqlite", Rule::No("it has no network")),
    (
        "s3",
        Rule::No("its requests are signed for the name of the host"),
    ),
    (
        "az",
        Rule::No("its requests are signed for the name of the host"),
    ),
    ("gs", Rule::No(NAMELESS)),
    ("gcs", Rule::No(NAMELESS)),
    ("rediss", Rule::No(TLS)),
    ("redis+sentinel", Rule::No(DISCOVERED)),
    ("rediss+sentinel", Rule::No(DISCOVERED)),
    ("postgres", Rule::Port(5432)),
    ("postgresql", Rule::Port(5432)),
    ("mysql", Rule::Port(3306)),
    ("redis", Rule::Port(6379)),
    ("etcd", Rule::Port(2379)),
    ("tenure", Rule::Port(7400)),
];

const TLS: &str = "the certificate is for the server's name (TLS)";
const NAMELESS: &str = "the URL names a bucket and no host";
const DISCOVERED: &str = "the client is told by others where the server is";

#[derive(Clone, Copy)]
enum Rule {
    /// It does not: why.
    No(&'static str),
    /// It does, and a host without a port has this one.
    Port(u16),
}

/// A URL, taken apart at its hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hosts {
    before: String,
    /// Each with its port.
    pub(super) hosts: Vec<String>,
    after: String,
}

impl Hosts {
    /// The hosts of a URL, if connections to it can be sent through a proxy; else
    /// why they cannot.
    pub(super) fn of(url: &str) -> Result<Self, String> {
        let scheme = url.split(':').next().unwrap_or_default();
        let known = KNOWN.iter().find(|(name, _)| *name == scheme);
        let port = match known {
            Some((_, Rule::No(why))) => return Err((*why).to_owned()),
            Some((_, Rule::Port(port))) => Some(*port),
            // A store of another program: its URL has to say all.
            None => None,
        };
        let named = || "its URL does not name its hosts".to_owned();
        let (_, rest) = url.split_once("://").ok_or_else(named)?;
        if rest
            .split_once('?')
            .is_some_and(|(_, options)| speaks_tls(options))
        {
            return Err(TLS.to_owned());
        }
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let hosts = authority.rsplit('@').next().unwrap_or_default();
        let start = url.len() - rest.len() + authority.len() - hosts.len();
        let (before, after) = (url.get(..start), url.get(start + hosts.len()..));
        let (before, after) = before.zip(after).ok_or_else(named)?;
        let hosts: Option<Vec<_>> = hosts.split(',').map(|it| with_port(it, port)).collect();
        Ok(Self {
            before: before.to_owned(),
            hosts: hosts.ok_or_else(named)?,
            after: after.to_owned(),
        })
    }

    /// The URL with these in the place of its hosts.
    pub(super) fn through(&self, addresses: &[String]) -> String {
        format!("{}{}{}", self.before, addresses.join(","), self.after)
    }
}

/// Whether the options of a URL ask for TLS that checks the server's name, or may.
fn speaks_tls(options: &str) -> bool {
    options.split('&').any(|option| {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "ca" | "sslrootcert" => true,
            "tls" => value != "off",
            "sslmode" => value.starts_with("verify"),
            _ => false,
        }
    })
}

/// A host with its port.
fn with_port(host: &str, otherwise: Option<u16>) -> Option<String> {
    let bare = host.strip_prefix('[').map_or(host, |inside| {
        // The colons of an IPv6 address are not those of a port.
        inside.split_once(']').map_or(inside, |(_, after)| after)
    });
    let is_empty = host.is_empty() || host.starts_with(':');
    match bare.rsplit_once(':') {
        _ if is_empty => None,
        Some((_, port)) => port.parse::<u16>().ok().map(|_| host.to_owned()),
        None => otherwise.map(|port| format!("{host}:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_and_replaced() {
        for (url, hosts, through) in [
            (
                "postgres://u:p@h/db?table=t",
                "h:5432",
                "postgres://u:p@a,b/db?table=t",
            ),
            (
                "postgresql://h1:1,h2/db",
                "h1:1 h2:5432",
                "postgresql://a,b/db",
            ),
            ("etcd://[::1]:7,[::2]", "[::1]:7 [::2]:2379", "etcd://a,b"),
            (
                "mysql://u@h:3306/db?tls=off",
                "h:3306",
                "mysql://u@a,b/db?tls=off",
            ),
            ("redis://:p%40@h", "h:6379", "redis://:p%40@a,b"),
            ("etags://127.0.0.1:80", "127.0.0.1:80", "etags://a,b"),
        ] {
            let found = Hosts::of(url).expect(url);
            assert_eq!(found.hosts.join(" "), hosts);
            let addresses = ["a".to_owned(), "b".to_owned()];
            assert_eq!(found.through(&addresses), through);
        }
    }

    #[test]
    fn what_no_proxy_can_stand_for_is_told() {
        for (url, why) in [
            ("sqlite:///x.db", "no network"),
            ("s3://bucket", "signed"),
            ("gs://bucket?endpoint=http://h:1", "no host"),
            ("rediss://h", "TLS"),
            ("redis+sentinel://h/main", "told by others"),
            ("tenure://h:1?ca=/x.pem", "TLS"),
            ("etcd://h?tls=on", "TLS"),
            ("postgres://h/db?sslmode=verify-full", "TLS"),
            ("postgres:///db?host=h", "does not name"),
            ("etags://h", "does not name"),
            ("etags:x", "does not name"),
        ] {
            let refused = Hosts::of(url).expect_err(url);
            assert!(refused.contains(why), "{url}: {refused}");
        }
    }
}
