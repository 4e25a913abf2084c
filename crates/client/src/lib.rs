//! The client of a cluster: its log, its registers, its servers.
//!
//! A [`Client`] finds the leader and follows it wherever it goes. What it is
//! asked to do takes effect once, however often a connection or a leader is
//! lost on the way: it opens a session through the log, numbers its commands,
//! and sends them again unchanged until they are answered. What it cannot
//! know in time is [`Error::Unknown`], never "failed".
//!
//! ```no_run
//! # async fn demo() -> Result<(), tenure_client::Error> {
//! let client = tenure_client::Client::open("tenure://h1:7400,h2:7400,h3:7400")?;
//! let number = client.append("an order").await?;
//! println!("entry {number}");
//! let mut tail = client.tail(1);
//! while let Some(entry) = tail.next().await {
//!     let entry = entry?;
//!     println!("{}: {} bytes", entry.number, entry.data.len());
//! }
//! # Ok(()) }
//! ```
//!
//! It can be used from any executor: connections live on the background
//! thread of [`drive`](tenure_runtime::drive). Calls that run at the same time share
//! messages, so a client with many callers does far more per second than one
//! caller with many clients.
//!
//! | file | what it holds |
//! |---|---|
//! | `pipeline/` | numbering, sending again, running out of time: a value without a socket |
//! | `connection.rs` | one connection, fed from a pipeline |
//! | `leader_discovery.rs` | who leads |
//! | `recent_answers.rs` | whether the servers that are alive can be of one cluster |
//! | `dialer.rs` | connections, with TLS or without |
//! | `token.rs` | the client's token |
//! | `own_token_channel.rs` | the same where it was given no token, and the servers are on this machine |
//! | `watch.rs` | tails and watches, from any server |
//! | `session.rs` | a session of its own, to bind registers to |
//! | `cluster.rs` | status, members, backups |
//! | `sessions.rs` | all sessions, for operators |
//!
//! Left out: reading without asking the leader (a tail or a watch does that),
//! and transactions over several registers.

mod address;
mod client;
mod cluster;
mod connection;
mod dialer;
mod error;
mod leader_discovery;
mod own_token_channel;
mod pipeline;
mod recent_answers;
mod session;
mod sessions;
mod token;
mod watch;
mod wire;

use std::time::Duration;

use bytes::Bytes;
use tenure_core::cas::Register;
use tenure_core::ids::{Key, Version};
use tenure_core::time::StoreTime;

pub use client::Client;
pub use cluster::{Backup, ServerStatus};
pub use error::Error;
pub use session::Session;
#[doc(hidden)]
pub use tenure_alpo::MAX_BOUND;
pub use tenure_runtime::tls::{ClientTlsFiles, OwnFiles};
pub use token::Token;
pub use watch::{Tail, Watch, WatchEvent, WatchTarget};

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
    /// How long a call may take unless [`Client::within`] says otherwise.
    pub within: Duration,
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
            within: Duration::from_secs(10),
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
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
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

    fn check(&self) -> Result<(), Error> {
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

/// One entry of the plain log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place, from 1 without gaps.
    pub number: u64,
    /// What was appended.
    pub data: Bytes,
}

/// A register was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swapped {
    /// To be expected by the next write.
    pub version: Version,
    /// The log's time of the write. `None` if the command had to be asked for
    /// again and the server remembers only that it was done.
    pub now: Option<StoreTime>,
}

/// A page of registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// In the order of their keys.
    pub registers: Vec<(Key, Register)>,
    /// Whether there are more after the last of them.
    pub more: bool,
    /// The log's time when it was read.
    pub now: Option<StoreTime>,
}
