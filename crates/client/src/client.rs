//! The calls of a client.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tenure_alpo::MAX_ENTRY_BYTES;
use tenure_api::v1::{self, answer, command, request};
use tenure_core::cas::{MAX_VALUE_BYTES, Reading, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::sync::oneshot;

use super::connection::Connection;
use super::dialer::Dialer;
use super::error::{gone, oversized, strange};
use super::leader_discovery::LeaderDiscovery;
use super::pipeline::{Gather, Outcome, PendingRequest, Reply, RequestKind};
use super::session::Session;
use super::wire::swapped;
use super::{Config, Entry, Error, Listing, Swapped, address, wire};

/// Of many appends, how many are under way at once, and bytes of them.
const CHUNK: usize = 16_384;
const CHUNK_BYTES: usize = 16 * 1024 * 1024;

/// A client of a cluster. Clones share its connections; where there are
/// several, each clone prefers one of them, and the commands of one clone
/// take effect in the order in which they were first polled.
#[derive(Debug)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
    connection: usize,
    within: Duration,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) leader_discovery: Arc<LeaderDiscovery>,
    connections: Vec<Connection>,
    turn: AtomicUsize,
    hold_by_session: bool,
}

impl Shared {
    fn next_connection(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed) % self.connections.len()
    }
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            connection: self.shared.next_connection(),
            within: self.within,
        }
    }
}

impl Client {
    /// A client of the cluster whose servers, or some of them, are
    /// `h1:7400,h2:7400,h3:7400`. Connects at the first call.
    ///
    /// # Errors
    /// [`Error::Refused`] if the list or the configuration makes no sense, or
    /// a certificate's or the token's file cannot be used.
    pub fn new(servers: &str, config: &Config) -> Result<Self, Error> {
        config.check()?;
        Self::start(address::servers(servers)?, config)
    }

    /// The same from `tenure://h1:7400,h2:7400?connections=4&ttl=30s`; with
    /// `ca=FILE`, and `cert=FILE&key=FILE` if clients must prove themselves,
    /// over TLS; with `token_file=FILE` by a token.
    ///
    /// # Errors
    /// [`Error::Refused`] if the URL makes no sense, or a certificate's or
    /// the token's file cannot be used.
    pub fn open(url: &str) -> Result<Self, Error> {
        let (servers, config) = address::url(url)?;
        Self::start(servers, &config)
    }

    fn start(servers: Vec<Arc<str>>, config: &Config) -> Result<Self, Error> {
        let dialer = Dialer::new(config)?;
        let leader_discovery = Arc::new(LeaderDiscovery::new(servers, dialer));
        let connection = |_| Connection::start(config.ttl, Arc::clone(&leader_discovery));
        let connections = (0..config.connections).map(connection).collect();
        Ok(Self {
            shared: Arc::new(Shared {
                connections,
                leader_discovery,
                turn: AtomicUsize::new(1),
                hold_by_session: config.hold_by_session,
            }),
            connection: 0,
            within: config.timeout,
        })
    }

    /// The same client with other time for its calls.
    #[must_use]
    pub fn with_timeout(&self, within: Duration) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            connection: self.connection,
            within,
        }
    }

    /// The same client on the connection whose turn it is: for callers that
    /// share one client without cloning it.
    #[doc(hidden)]
    pub fn on_next_connection(&self, within: Duration) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            connection: self.shared.next_connection(),
            within,
        }
    }

    /// A session of its own, that lives for `ttl` after its last command, 1 s
    /// to a day: for registers that are to be bound to it. Opened by its first
    /// command, over a connection of its own.
    pub fn session(&self, ttl: Duration) -> Session {
        Session::new(Connection::once(
            ttl,
            Arc::clone(&self.shared.leader_discovery),
        ))
    }

    /// Whether elections on this client's registers are to be held by
    /// sessions ([`Config::hold_by_session`]).
    #[doc(hidden)]
    pub fn holds_by_session(&self) -> bool {
        self.shared.hold_by_session
    }

    /// Why a call that had so long was not answered, if its servers are too
    /// far away for that.
    #[doc(hidden)]
    pub fn explain_timeout(&self, within: Duration) -> Option<String> {
        self.shared
            .leader_discovery
            .round_trips()
            .explain_timeout(within)
    }

    pub(super) const fn time(&self) -> Duration {
        self.within
    }

    pub(super) fn deadline(&self) -> Instant {
        clock::boot().after(self.within)
    }

    /// The servers that are asked: as configured, then as learnt.
    pub fn servers(&self) -> Vec<String> {
        let addresses = self.shared.leader_discovery.addresses();
        addresses.iter().map(ToString::to_string).collect()
    }

    /// Ends this client's sessions and waits for that, a second at most. It is
    /// a courtesy: a session whose client has gone expires. A client that is
    /// dropped ends its sessions too, if its process lives on for a moment.
    pub async fn close(&self) {
        for connection in &self.shared.connections {
            connection.close().await;
        }
    }

    fn submit(&self, what: RequestKind) -> impl Future<Output = Outcome> + Send + 'static {
        let (waiter, answer) = oneshot::channel();
        self.shared.connections[self.connection].submit(PendingRequest {
            what,
            deadline: self.deadline(),
            reply: Reply::One(waiter),
        });
        // The last client is gone, and its connection with it.
        async { answer.await.unwrap_or_else(|_| Err(gone())) }
    }

    /// Connects to the leader and opens the session of the commands to come:
    /// over a long distance the first of them would be late for that.
    #[doc(hidden)]
    pub async fn prepare(&self) {
        // Where it fails, the command says so.
        let _ = self
            .submit(RequestKind::Change(command::Operation::KeepAlive(true)))
            .await;
    }

    /// Appends one entry to the log, once, and says its number.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it may or may not be (or come to be) in the log;
    /// any other: it is not.
    pub async fn append(&self, data: impl Into<Bytes>) -> Result<u64, Error> {
        let data = data.into();
        check_entry(&data)?;
        match self
            .submit(RequestKind::Change(command::Operation::Append(data)))
            .await?
        {
            answer::What::Appended(number) => Ok(number),
            _ => Err(strange()),
        }
    }

    /// Appends many entries, each once, in this order; other clients' may
    /// come in between. Gives their numbers in the same order.
    ///
    /// # Errors
    /// [`Error::Unknown`] if any of them may be in the log; any other: none
    /// of them is.
    pub async fn append_many<T: Into<Bytes>>(
        &self,
        entries: impl IntoIterator<Item = T>,
    ) -> Result<Vec<u64>, Error> {
        let entries: Vec<Bytes> = entries.into_iter().map(Into::into).collect();
        entries.iter().try_for_each(check_entry)?;
        let mut numbers = Vec::with_capacity(entries.len());
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let mut bytes = 0;
            let mut chunk = Vec::new();
            while let Some(data) = entries.next_if(|_| chunk.len() < CHUNK && bytes < CHUNK_BYTES) {
                bytes += data.len();
                chunk.push(data);
            }
            match self.append_chunk(chunk).await {
                Ok(more) => numbers.extend(more),
                // Some are in the log: a caller that hears "no" would append
                // all again.
                Err(error) if !numbers.is_empty() => {
                    return Err(Error::Unknown(format!(
                        "the first {} entries were appended; of the others: {error}",
                        numbers.len()
                    )));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(numbers)
    }

    async fn append_chunk(&self, entries: Vec<Bytes>) -> Result<Vec<u64>, Error> {
        let (gather, numbers) = Gather::new(entries.len());
        let (gather, deadline) = (Arc::new(gather), self.deadline());
        let requests = entries
            .into_iter()
            .enumerate()
            .map(|(index, data)| PendingRequest {
                what: RequestKind::Change(command::Operation::Append(data)),
                deadline,
                reply: Reply::Part(Arc::clone(&gather), index),
            });
        self.shared.connections[self.connection].submit_all(requests);
        drop(gather);
        numbers.await.unwrap_or_else(|_| Err(gone()))
    }

    /// At most `limit` entries from number `from` on; fewer if they are
    /// large, none if there are none yet. Sees all that were acknowledged
    /// before.
    ///
    /// # Errors
    /// [`Error::Compacted`] if the first of them are kept no more,
    /// [`Error::Restored`] if `from` is a number that a cluster may have given
    /// which is lost.
    pub async fn read_log(&self, from: u64, limit: u32) -> Result<Vec<Entry>, Error> {
        let read = v1::ReadLogRequest {
            from,
            limit,
            stale: false,
        };
        match self
            .submit(RequestKind::Query(request::What::ReadLog(read)))
            .await?
        {
            answer::What::Log(log) => Ok(log.entries.into_iter().map(entry).collect()),
            _ => Err(wire::garbled()),
        }
    }

    /// Reads one register: what is true at some moment between call and
    /// answer.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no leader answers in time.
    pub async fn read(&self, key: &Key) -> Result<Reading, Error> {
        self.read_bound(key).await.map(|(reading, _)| reading)
    }

    /// The same, with the session that the register is bound to, if it is.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_bound(&self, key: &Key) -> Result<(Reading, Option<u64>), Error> {
        let read = v1::ReadRequest {
            key: key.as_str().to_owned(),
            stale: false,
        };
        match self
            .submit(RequestKind::Query(request::What::Read(read)))
            .await?
        {
            answer::What::Read(read) => {
                let session = read.bound.as_ref().map(|bound| bound.session);
                Ok((wire::reading(read), session))
            }
            _ => Err(wire::garbled()),
        }
    }

    /// Writes one register if it is as expected.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it is not; [`Error::Unknown`] if it may or may
    /// not have been written.
    pub async fn compare_and_swap(&self, write: Write) -> Result<Swapped, Error> {
        if write.value.len() > MAX_VALUE_BYTES {
            return Err(oversized(&write));
        }
        let Some(swap) = wire::swap(write) else {
            return Err(Error::Conflict);
        };
        swapped(
            self.submit(RequestKind::Change(command::Operation::Swap(swap)))
                .await?,
        )
    }

    /// Deletes one register if it has this version.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it has not; [`Error::Unknown`] if it may or may
    /// not have been deleted.
    pub async fn delete(&self, key: &Key, expect: &Version) -> Result<(), Error> {
        let Some(expect) = expect.to_u64() else {
            return Err(Error::Conflict);
        };
        let delete = v1::DeleteCommand {
            key: key.as_str().to_owned(),
            expect,
        };
        match self
            .submit(RequestKind::Change(command::Operation::Delete(delete)))
            .await?
        {
            answer::What::Deleted(done) if done.deleted => Ok(()),
            answer::What::Deleted(_) => Err(Error::Conflict),
            _ => Err(strange()),
        }
    }

    /// A page of at most `limit` registers whose keys begin with `prefix`,
    /// after the key `after`; 0 for as many as fit into an answer.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no leader answers in time.
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Listing, Error> {
        let list = v1::ListRequest {
            prefix: prefix.to_owned(),
            after: after.map(|after| after.as_str().to_owned()),
            limit,
            stale: false,
        };
        match self
            .submit(RequestKind::Query(request::What::List(list)))
            .await?
        {
            answer::What::List(list) => wire::listing(list),
            _ => Err(wire::garbled()),
        }
    }
}

pub(super) fn entry(entry: v1::LogEntry) -> Entry {
    Entry {
        number: entry.number,
        data: entry.data,
    }
}

fn check_entry(data: &Bytes) -> Result<(), Error> {
    if data.len() <= MAX_ENTRY_BYTES {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "expected an entry of at most {MAX_ENTRY_BYTES} bytes, found {}",
        data.len()
    )))
}
