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
//! | `dialer.rs`, `connector.rs` | connections, with TLS or without |
//! | `token.rs`, `channel.rs` | the client's token |
//! | `own_token_channel.rs` | the same where it was given no token, and the servers are on this machine |
//! | `watch.rs` | tails and watches, from any server |
//! | `session.rs` | a session of its own, to bind registers to |
//! | `cluster.rs` | status, members, backups |
//! | `sessions.rs` | all sessions, for operators |
//!
//! Left out: reading without asking the leader (a tail or a watch does that),
//! and transactions over several registers.

mod address;
mod channel;
mod client;
mod cluster;
mod config;
mod connection;
mod connector;
mod dialer;
mod error;
mod inline_tasks;
mod leader_discovery;
mod own_token_channel;
mod pipeline;
mod recent_answers;
mod results;
mod session;
mod sessions;
mod token;
mod watch;
mod wire;

pub use client::Client;
pub use cluster::{Backup, ServerStatus};
pub use config::Config;
pub use error::Error;
pub use results::{Entry, Listing, Swapped};
pub use session::Session;
#[doc(hidden)]
pub use tenure_alpo::MAX_BOUND;
pub use tenure_runtime::tls::{ClientTlsFiles, OwnFiles};
pub use token::Token;
pub use watch::{Tail, Watch, WatchEvent, WatchTarget};
