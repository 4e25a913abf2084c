//! How a client behaves.

use std::time::Duration;

use tenure_runtime::tls::ClientTlsFiles;

use super::error::Error;
use super::token::Token;

/// How a client behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Connections to the leader, each with a session of its own, 1 to 16.
    /// Calls are spread over them; clones of a client take turns.
    pub connections: usize,
    /// How long a session outlives its client's last command, 1 s to a day.
    /// Within it, an interruption costs nothing but time.
    pub ttl: Duration,
    /// How long a call may take unless [`Client::with_timeout`](super::Client::with_timeout) says
    /// otherwise.
    pub timeout: Duration,
    /// Certificates, for servers that speak TLS. The files are read again
    /// when they change.
    pub tls: Option<ClientTlsFiles>,
    /// By what the client is known, for servers that want a token. Without
    /// one, servers on this machine are shown that the client can read the
    /// token of its user ([`OwnToken`](tenure_runtime::own_token::OwnToken)).
    pub token: Option<Token>,
    /// Whether elections on the store that is made of this client are held by
    /// sessions rather than renewed one by one (`?hold=session`).
    pub hold_by_session: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connections: 1,
            ttl: Duration::from_secs(60),
            timeout: Duration::from_secs(10),
            tls: None,
            token: None,
            hold_by_session: false,
        }
    }
}

impl Config {
    /// The same with this many connections.
    #[must_use]
    pub fn connections(self, connections: usize) -> Self {
        Self {
            connections,
            ..self
        }
    }

    /// The same with sessions that live this long.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// The same with calls that may take this long.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The same with TLS.
    #[must_use]
    pub fn tls(self, files: ClientTlsFiles) -> Self {
        Self {
            tls: Some(files),
            ..self
        }
    }

    /// The same with elections that are held by sessions.
    #[must_use]
    pub fn hold_by_session(self, hold_by_session: bool) -> Self {
        Self {
            hold_by_session,
            ..self
        }
    }

    /// The same with a token.
    #[must_use]
    pub fn token(self, token: Token) -> Self {
        Self {
            token: Some(token),
            ..self
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if !(1..=16).contains(&self.connections) {
            return Err(Error::invalid(format!(
                "expected 1 to 16 connections, found {}",
                self.connections
            )));
        }
        let range = Duration::from_secs(1)..=Duration::from_secs(86_400);
        if !range.contains(&self.ttl) {
            return Err(Error::invalid(format!(
                "expected sessions of 1s to 86400s, found {:?}",
                self.ttl
            )));
        }
        Ok(())
    }
}
