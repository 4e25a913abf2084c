//! How a server is started.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tenure_alpo::{Config as NodeConfig, Limits, MAX_MEMBERS, ServerId};
use tenure_api::v1::Protection;

use super::audit::AuditTo;
use crate::transport::{MAX_ADDRESS_BYTES, OwnToken, PeerRules, PeerSecret, TlsFiles};
use crate::wal;

/// The settings of one server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its number in the cluster.
    pub id: ServerId,
    /// Where servers reach each other, `host:port`, its own address included.
    /// On the first start these are the servers that found the cluster; later
    /// only where to begin looking.
    pub peers: BTreeMap<ServerId, String>,
    /// Where it listens for other servers, `host:port`, if that is not its
    /// own address in `peers`: behind a forwarder, or on all interfaces.
    pub listen_peers: Option<String>,
    /// Where it keeps what it must not forget; made if it is not there.
    pub data: PathBuf,
    /// Where clients come, `host:port`.
    pub listen: String,
    /// What clients are told to connect to, if that is not `listen`.
    pub advertise: Option<String>,
    /// What else this server is called, beside its addresses, the name of its
    /// machine and `localhost`. Without tokens, HTTP is answered under these
    /// names alone: web pages cannot take one of them.
    pub hosts: Vec<String>,
    /// How the protocol is set; the same on all servers of a cluster where it
    /// matters.
    pub node: NodeConfig,
    /// How the log is kept.
    pub wal: wal::Options,
    /// The certificates for both ports; `None` for connections that are
    /// neither encrypted nor authenticated.
    pub tls: Option<TlsFiles>,
    /// The authorities of other servers, if those have some of their own;
    /// else they are those of `tls`.
    pub peer_authority: Option<PathBuf>,
    /// Whether certificates that name no server's number, as earlier releases
    /// made them, are taken for those of any server.
    pub any_server: bool,
    /// Lists of revoked certificates (CRLs) of servers and of clients, one of
    /// each authority; `None` if none is revoked.
    pub revoked: Option<PathBuf>,
    /// What servers without TLS know each other by; `None` lets a program that
    /// reaches their port and says that it is one of them be one.
    pub peer_secret: Option<PeerSecret>,
    /// Whether clients, too, must have a certificate of the authority.
    pub client_certificates: bool,
    /// The file of the tokens that clients need. `None` asks them for
    /// `own_token`, and if that is `None` too, lets everybody do everything.
    pub tokens: Option<PathBuf>,
    /// The token that the servers of this user share, which clients of the
    /// same user on this machine find by themselves; only without `tokens`.
    pub own_token: Option<OwnToken>,
    /// Whether `own_token` was done without on purpose. Its status says so;
    /// what it does stays the same.
    pub no_token: bool,
    /// Where it notes who changed what; nowhere if `None`.
    pub audit: Option<AuditTo>,
    /// Whether it was allowed to listen without TLS on addresses that other
    /// machines reach. Its status says so; what it does stays the same.
    pub insecure: bool,
    /// Requests of clients that may be under way; more are refused with BUSY.
    pub requests: usize,
    /// Sessions that one token may have, or without tokens one address; one
    /// more is refused with `TOO_MANY_SESSIONS`. A token with the right admin
    /// has no such bound.
    pub sessions_each: u64,
    /// Bytes that the keys and values of all registers may have together; a
    /// write that needs more is refused while this server leads.
    pub quota_bytes: u64,
    /// How many registers there may be; the same.
    pub quota_registers: u64,
    /// Connections of clients, of which three quarters are kept for tokens that
    /// are known, a 64th of all for those with the right admin among them. One more takes the
    /// place of another, or is closed.
    pub connections: usize,
    /// A connection of a client without a call for so long is closed, within
    /// twice as long. 5 minutes if nothing else is said.
    pub idle: Duration,
    /// Watches and tails under way; one more is refused with BUSY.
    pub watches: usize,
    /// How long a message of a client may take from its first byte to its
    /// last; one that takes longer fails. 30 s if nothing else is said.
    pub message_within: Duration,
    /// In which span its thread logs: for a program that runs several servers
    /// in one process, to tell which of them speaks.
    pub span: tracing::Span,
}

impl Config {
    /// A server with everything else as it usually is.
    pub fn new(
        id: ServerId,
        peers: BTreeMap<ServerId, String>,
        data: impl Into<PathBuf>,
        listen: impl Into<String>,
    ) -> Self {
        Self {
            id,
            peers,
            listen_peers: None,
            data: data.into(),
            listen: listen.into(),
            advertise: None,
            hosts: Vec::new(),
            node: NodeConfig {
                checksum: crc32c::crc32c_append,
                election_timeout: Duration::from_millis(250),
                heartbeat: Duration::from_millis(50),
                ..NodeConfig::default()
            },
            wal: wal::Options::default(),
            tls: None,
            peer_authority: None,
            any_server: false,
            revoked: None,
            peer_secret: None,
            client_certificates: true,
            tokens: None,
            own_token: None,
            no_token: false,
            audit: None,
            insecure: false,
            requests: 65_536,
            sessions_each: 4_096,
            quota_bytes: 2 * 1024 * 1024 * 1024,
            quota_registers: 1_048_576,
            connections: 1_536,
            idle: Duration::from_secs(300),
            watches: 65_536,
            message_within: Duration::from_secs(30),
            span: tracing::Span::none(),
        }
    }

    /// Whether clients need a token, of a file or the user's own.
    pub const fn asks_for_tokens(&self) -> bool {
        self.tokens.is_some() || self.own_token.is_some()
    }

    /// What keeps strangers from it, for its status.
    pub(super) const fn protection(&self) -> Protection {
        Protection {
            tls: self.tls.is_some(),
            tokens: self.asks_for_tokens(),
            insecure: self.insecure,
            own_token: self.tokens.is_none() && self.own_token.is_some(),
            no_token: self.no_token,
        }
    }

    /// What is expected of other servers' certificates, and of its own.
    pub(super) fn rules(&self) -> PeerRules {
        PeerRules {
            authority: self.peer_authority.clone(),
            any_server: self.any_server,
            own: Some(self.id),
            revoked: self.revoked.clone(),
        }
    }

    /// What people are to know of how servers know each other, if that is not
    /// as it should be.
    pub(super) fn concern(&self) -> Option<&'static str> {
        if self.tls.is_some() {
            return self.any_server.then_some(
                "--tls-any-server: every certificate of the authority that may be a server's, and \
                 names no number, passes for any server. Make new ones by `tenure certs DIR \
                 --server N --host HOST`, and leave the flag out; the next release has none",
            );
        }
        match &self.peer_secret {
            Some(secret) if !secret.optional => None,
            Some(_) => Some(
                "--peer-secret-optional: servers that do not know the secret are let in. Leave the \
                 flag out as soon as all servers have the secret",
            ),
            None => Some(
                "servers prove nothing to each other: a program that reaches their ports, and knows the \
                 cluster's id, can pass for one of them. Give all of them certificates (--tls-cert \
                 and the like), or a secret that they share (--peer-secret-file)",
            ),
        }
    }

    /// What clients are told to connect to.
    pub fn advertised(&self) -> &str {
        self.advertise.as_deref().unwrap_or(&self.listen)
    }

    /// Where it listens for other servers. Its own number must be in `peers`
    /// ([`validate`](Self::validate)).
    pub fn listens_for_peers(&self) -> &str {
        let own = || self.peers.get(&self.id).map_or("", String::as_str);
        self.listen_peers.as_deref().unwrap_or_else(own)
    }

    /// Checks that the settings make sense.
    ///
    /// # Errors
    /// A sentence that says what was expected and what was found.
    pub fn validate(&self) -> Result<(), String> {
        self.node.validate().map_err(|error| error.to_string())?;
        if !self.peers.contains_key(&self.id) {
            let known: Vec<_> = self.peers.keys().map(|id| id.get().to_string()).collect();
            return Err(format!(
                "expected --peers to name this server too (id {}), found only {}",
                self.id.get(),
                known.join(", ")
            ));
        }
        let count = self.peers.len();
        if count > MAX_MEMBERS {
            return Err(format!(
                "expected at most {MAX_MEMBERS} servers in --peers, found {count}"
            ));
        }
        let mut places = BTreeMap::new();
        for (id, address) in &self.peers {
            check_address("--peers", address)?;
            if let Some(other) = places.insert(address, id) {
                return Err(format!(
                    "expected an address for each server, found {address} for both {} and {}",
                    other.get(),
                    id.get()
                ));
            }
        }
        check_address("--listen", &self.listen)?;
        for (flag, address) in [
            ("--listen-peers", &self.listen_peers),
            ("--advertise", &self.advertise),
        ] {
            let address = address.as_deref();
            address.map_or(Ok(()), |address| check_address(flag, address))?;
        }
        let odd = |host: &&String| {
            let plain = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
            host.is_empty() || !host.chars().all(plain)
        };
        if let Some(host) = self.hosts.iter().find(odd) {
            return Err(format!(
                "--host: expected the name of a host, without scheme and port, found {host:?}"
            ));
        }
        // With port 0 each is given one of its own.
        if self.listen == self.listens_for_peers() && !self.listen.ends_with(":0") {
            return Err(format!(
                "expected a port for clients (--listen) and another one for servers (this one's \
                 entry in --peers, or --listen-peers), found {} for both",
                self.listen
            ));
        }
        Ok(())
    }
}

/// Whether others can be told of an address.
pub(super) fn check_address(flag: &str, address: &str) -> Result<(), String> {
    if address.len() > MAX_ADDRESS_BYTES || address.contains(char::is_control) {
        let begin: String = address.chars().take(80).collect();
        return Err(format!(
            "{flag}: expected HOST:PORT of at most {MAX_ADDRESS_BYTES} bytes, found {} that begin \
             with {begin:?}",
            address.len()
        ));
    }
    let parts = address.rsplit_once(':');
    match parts {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(format!("{flag}: expected HOST:PORT, found {address:?}")),
    }
}

/// How much the replicated state may hold. Not a setting: a server with other
/// limits than the rest would come to another state from the same log.
pub(super) fn limits() -> Limits {
    Limits::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ServerId {
        ServerId::new(number).expect("a number")
    }

    fn config(peers: &[(u64, &str)], own: u64, listen: &str) -> Config {
        let peers = peers.iter().map(|(n, address)| (id(*n), (*address).into()));
        Config::new(id(own), peers.collect(), "/tmp/x", listen)
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_was_found() {
        for (bad, said) in [
            (config(&[(1, "a:1")], 2, "b:1"), "found only 1"),
            (config(&[(1, "a")], 1, "b:1"), "found \"a\""),
            (config(&[(1, "a:1"), (2, "a:1")], 1, "b:1"), "both 1 and 2"),
            (config(&[(1, "a:1")], 1, ":1"), "found \":1\""),
            (config(&[(1, "a:99999")], 1, "b:1"), "a:99999"),
            (config(&[(1, "a:1")], 1, "a:1"), "found a:1 for both"),
        ] {
            let error = bad.validate().expect_err("it makes no sense");
            assert!(error.contains(said), "{error}");
        }
        let mut behind = config(&[(1, "a:1")], 1, "b:1");
        behind.listen_peers = Some("0.0.0.0".into());
        let error = behind.validate().expect_err("a port is missing");
        assert!(error.contains("found \"0.0.0.0\""), "{error}");
        let many: Vec<_> = (1..=32).map(|n| (n, "a:1")).collect();
        let error = config(&many, 1, "b:1").validate();
        let error = error.expect_err("too many");
        assert!(
            error.contains("at most 31") && error.contains("found 32"),
            "{error}"
        );
        assert_eq!(config(&[(1, "[::1]:1")], 1, "b:1").validate(), Ok(()));
    }
}
