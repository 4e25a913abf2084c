//! One connection to one host: the whole handshake, and what is known of the
//! connection afterwards.
//!
//! The handshake is done when the server has answered a first question: that
//! it takes writes, and which table is meant. What comes over a connection is
//! counted, because a connection is given up when nothing at all has come for
//! some seconds, and because a warning that arrives before the answer of a
//! write may say that its commit was not replicated.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage, SimpleQueryRow};
use tokio_stream::StreamExt as _;

use super::error_text::{self, PgError};
use super::hints::NotificationInbox;
use super::settings::{Server, Settings};
use super::socket::{self, PgStream};
use super::{classify, notices, tls};
use crate::drive;
use crate::error::{StoreError, quoted};
use crate::store::addresses::addresses;
use crate::store::dial::{self, Connection, Repeats};

/// An open connection.
#[derive(Clone, Debug)]
pub(super) struct PgConnection {
    client: Arc<Client>,
    task: Arc<ConnectionTask>,
    pub(super) received: Arc<ReceivedCounts>,
    /// What comes unasked.
    pub(super) inbox: Arc<NotificationInbox>,
}

/// Ends a task when it is dropped. A task whose handle is merely forgotten
/// goes on, and keeps its connection.
#[derive(Debug)]
struct ConnectionTask(JoinHandle<()>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Tells a listener of the end of its connection, however it comes.
struct EndNotice(Arc<NotificationInbox>);

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What has come over a connection.
#[derive(Default, Debug)]
pub(super) struct ReceivedCounts {
    messages: AtomicU64,
    warnings: AtomicU64,
    last_warning: Mutex<String>,
    /// How the connection broke, once it has.
    end: OnceLock<String>,
}

impl ReceivedCounts {
    /// How many messages of any kind have come.
    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Acquire)
    }

    /// How many warnings have come that may tell of a commit.
    pub(super) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::Acquire)
    }

    pub(super) fn last_warning(&self) -> String {
        let last = self.last_warning.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count_message(&self) {
        self.messages.fetch_add(1, Ordering::AcqRel);
    }

    fn count_warning(&self, warning: &DbError) {
        // 01000 has no meaning of its own, and the words are in any language.
        // So every such warning counts; that may be one too many.
        let code = warning.code().code();
        // But for the one of a queue of notifications that fills, which anybody
        // may bring about; the name of the routine is the same in all languages.
        let of_the_queue = warning.routine() == Some("asyncQueueFillWarning");
        let may_tell = (code == "01000" && !of_the_queue) || code.starts_with("57");
        if may_tell && warning.parsed_severity() == Some(Severity::Warning) {
            let mut last = self
                .last_warning
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *last = quoted(warning.message());
            drop(last);
            self.warnings.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Connection for PgConnection {
    fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.client, &other.client)
    }
}

impl PgConnection {
    /// Ends the connection; those who wait on it learn at once.
    pub(super) fn end(&self) {
        self.task.0.abort();
    }

    /// Carries out some statements; the rows of each. Sends at the first
    /// poll, and counts what comes.
    pub(super) async fn query(
        &self,
        statements: &str,
    ) -> Result<Vec<Vec<SimpleQueryRow>>, PgError> {
        let failed = |error| PgError::new(error, self.received.end.get().cloned());
        let answer = self.client.simple_query_raw(statements).await;
        let mut answer = pin!(answer.map_err(failed)?);
        let (mut all, mut rows) = (Vec::new(), Vec::new());
        while let Some(message) = answer.next().await {
            self.received.count_message();
            match message.map_err(failed)? {
                SimpleQueryMessage::Row(row) => rows.push(row),
                SimpleQueryMessage::CommandComplete(_) => all.push(std::mem::take(&mut rows)),
                _ => {}
            }
        }
        Ok(all)
    }
}

/// Connects to one host, over the first of its addresses that answers. On the
/// background thread: the caller's executor may be blocked when the answer
/// comes.
pub(super) async fn open(settings: &Settings, server: &Server) -> Result<PgConnection, StoreError> {
    let addresses = addresses_of(server).await?;
    let (mut is_broken, mut reasons) = (false, Vec::new());
    let only = |address: Option<IpAddr>| {
        let (server, trust) = (server.clone(), settings.trust.clone());
        async move { connect(&server, address, tls::connector(&trust)?).await }
    };
    let opened = dial::race(addresses.into_iter(), Repeats::Never, only, |_, error| {
        if let Some(error) = error {
            is_broken |= matches!(error, StoreError::Broken(_));
            reasons.push(dial::reason(error));
        }
    });
    if let Some((_, connected)) = opened.await {
        return Ok(connected);
    }
    reasons.dedup();
    let why = reasons.join("; ");
    Err(if is_broken {
        StoreError::broken(why)
    } else {
        StoreError::unavailable(why)
    })
}

/// The addresses of a host; one that is `None` for what needs no looking up.
async fn addresses_of(server: &Server) -> Result<Vec<Option<IpAddr>>, StoreError> {
    let (Host::Tcp(name), None) = (&server.host, server.address) else {
        return Ok(vec![server.address]);
    };
    let found = addresses(name, (name.as_str(), server.port)).await?;
    Ok(found.into_iter().map(|found| Some(found.ip())).collect())
}

async fn connect(
    server: &Server,
    address: Option<IpAddr>,
    tls: tls::Connector,
) -> Result<PgConnection, StoreError> {
    let (label, config) = (server.label.as_str(), server.config_at(address));
    let failed =
        |error| StoreError::unavailable(format!("{label}: error connecting to server: {error}"));
    let name = match &server.host {
        Host::Tcp(name) => Some(name.as_str()),
        Host::Unix(_) => None,
    };
    let handshake = tls.handshake(name.unwrap_or_default()).map_err(failed)?;
    let stream = socket::open(server, address, &config)
        .await
        .map_err(failed)?;
    let connected = config.connect_raw(stream, handshake).await;
    let (client, connection) = connected.map_err(|error| classify::connecting(label, &error))?;
    let (received, inbox) = (
        Arc::<ReceivedCounts>::default(),
        Arc::<NotificationInbox>::default(),
    );
    let serving = serve(connection, Arc::clone(&received), Arc::clone(&inbox));
    let connected = PgConnection {
        client: Arc::new(client),
        task: Arc::new(ConnectionTask(drive::background().spawn(serving))),
        received,
        inbox,
    };
    expect_writes(label, &connected).await?;
    Ok(connected)
}

/// Refuses a server that takes no writes: what a standby says may be old.
async fn expect_writes(label: &str, connected: &PgConnection) -> Result<(), StoreError> {
    let answer = connected.query("SHOW transaction_read_only").await;
    let statements = answer.map_err(|error| classify::reading(label, &error))?;
    let row = statements.first().and_then(|rows| rows.first());
    match row.and_then(|row| row.get(0)) {
        Some("off") => Ok(()),
        found => Err(StoreError::unavailable(format!(
            "{label}: expected a server that takes writes, found transaction_read_only: {}",
            quoted(found.unwrap_or("none"))
        ))),
    }
}

/// Takes what comes over a connection for as long as it lives.
async fn serve(
    mut connection: tokio_postgres::Connection<PgStream, impl TlsStream + Unpin>,
    counts: Arc<ReceivedCounts>,
    inbox: Arc<NotificationInbox>,
) {
    let EndNotice(inbox) = &EndNotice(inbox);
    loop {
        let message = poll_fn(|context| connection.poll_message(context)).await;
        counts.count_message();
        match message {
            Some(Ok(AsyncMessage::Notification(notice))) => {
                inbox.put(notice.payload());
                // A flood of them leaves the thread to others in between.
                tokio::task::consume_budget().await;
            }
            Some(Ok(AsyncMessage::Notice(notice))) => {
                // Counted before the messages after it are handed out: a
                // caller that gets the answer of a write finds its warning.
                counts.count_warning(&notice);
                notices::log(notice.message());
                tokio::task::consume_budget().await;
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                // Before the connection goes, and with it what calls wait for.
                let why = counts.end.get_or_init(|| error_text::causes(&error));
                return tracing::debug!("the connection broke: {why}");
            }
            None => return,
        }
    }
}
