//! The connection that calls go over: opened when needed, shared by all,
//! closed when it becomes suspect.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage, SimpleQueryRow};

use super::settings::Settings;
use super::{classify, sql, tls};
use crate::error::{StoreError, about};
use crate::store::no_store;
use crate::{clock, drive};

/// How many notices wait for the watcher. When more come the line is closed,
/// and what was missed is fetched after it has been opened again.
const NOTICES_MAX: usize = 4096;

/// Opens connections and carries out statements.
#[derive(Debug)]
pub(super) struct Line {
    settings: Arc<Settings>,
    open: Mutex<Option<Connected>>,
    /// The table has been found to be as it should.
    checked: AtomicBool,
}

/// An open connection.
#[derive(Clone, Debug)]
pub(super) struct Connected {
    client: Arc<Client>,
    task: Arc<Task<()>>,
}

/// Ends a task when it is dropped. A task whose handle is merely forgotten
/// goes on: a server that accepts and says nothing would be left with one
/// more connection for every call that ran out of time.
#[derive(Debug)]
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What comes over a connection unasked.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) payload: String,
}

impl Line {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            open: Mutex::new(None),
            checked: AtomicBool::new(false),
        }
    }

    /// Carries out a statement that changes nothing.
    pub(super) async fn read(
        &self,
        statement: &str,
        within: Duration,
    ) -> Result<Vec<SimpleQueryRow>, StoreError> {
        let until = clock::boot().after(within);
        let connected = self.connected(until).await?;
        match self.ask(&connected, statement, until).await {
            Some(Ok(rows)) => Ok(rows),
            Some(Err(error)) => Err(classify::reading(&self.settings.to_string(), &error)),
            None => Err(StoreError::unavailable(self.silence(within))),
        }
    }

    /// Carries out a statement that may change something.
    pub(super) async fn write(
        &self,
        statement: &str,
        within: Duration,
    ) -> Result<Vec<SimpleQueryRow>, StoreError> {
        let until = clock::boot().after(within);
        let connected = self.connected(until).await?;
        match self.ask(&connected, statement, until).await {
            Some(Ok(rows)) => Ok(rows),
            Some(Err(error)) => Err(classify::writing(&self.settings.to_string(), &error)),
            None => Err(StoreError::unknown(self.silence(within))),
        }
    }

    fn silence(&self, within: Duration) -> String {
        format!("{} did not answer within {}", self.settings, about(within))
    }

    /// The rows of the last statement; `None` if no answer came in time, and
    /// then the connection is given up.
    async fn ask(
        &self,
        connected: &Connected,
        statement: &str,
        until: Instant,
    ) -> Option<Result<Vec<SimpleQueryRow>, tokio_postgres::Error>> {
        let left = until.since(clock::boot());
        let asked = connected.client.simple_query(statement);
        let Ok(answer) = tokio::time::timeout(left, asked).await else {
            self.give_up(connected).await;
            return None;
        };
        Some(answer.map(last_rows))
    }

    /// The open connection, or a new one.
    async fn connected(&self, until: Instant) -> Result<Connected, StoreError> {
        let left = until.since(clock::boot());
        let connected = async {
            let mut open = self.open.lock().await;
            if let Some(connected) = open.as_ref().filter(|open| !open.client.is_closed()) {
                return Ok(connected.clone());
            }
            *open = None;
            let (connected, _) = self.connect().await?;
            self.check_table(&connected).await?;
            *open = Some(connected.clone());
            Ok(connected)
        };
        let late = || {
            let waited = format!("no connection to {} within {}", self.settings, about(left));
            Err(StoreError::unavailable(waited))
        };
        tokio::time::timeout(left, connected)
            .await
            .unwrap_or_else(|_| late())
    }

    async fn give_up(&self, suspect: &Connected) {
        let mut open = self.open.lock().await;
        if open
            .as_ref()
            .is_some_and(|open| Arc::ptr_eq(&open.client, &suspect.client))
        {
            *open = None;
        }
        // Others that wait on it learn at once that it is gone.
        suspect.task.0.abort();
    }

    /// Opens a connection of its own, with what comes over it unasked.
    pub(super) async fn connect(&self) -> Result<(Connected, mpsc::Receiver<Notice>), StoreError> {
        let server = self.settings.to_string();
        let tls = tls::connector(&self.settings.trust)?;
        let config = self.settings.config.clone();
        let (send, notices) = mpsc::channel(NOTICES_MAX);
        // Connected and served on our own thread: the caller's executor may
        // be blocked when the answer comes.
        let connecting = async move { config.connect(tls).await };
        let mut connecting = Task(drive::background().spawn(connecting));
        let connected = (&mut connecting.0).await.map_err(StoreError::unavailable)?;
        let (client, mut connection) =
            connected.map_err(|error| classify::connecting(&server, &error))?;
        let serve = async move {
            loop {
                match poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(notice))) => {
                        let payload = notice.payload().to_owned();
                        if send.try_send(Notice { payload }).is_err() && !send.is_closed() {
                            return tracing::warn!("too many notices; opening the line again");
                        }
                    }
                    Some(Ok(AsyncMessage::Notice(notice))) => {
                        tracing::warn!("the database says: {}", notice.message());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        return tracing::debug!("the line broke: {}", classify::text(&error));
                    }
                    None => return,
                }
            }
        };
        let task = Arc::new(Task(drive::background().spawn(serve)));
        Ok((
            Connected {
                client: Arc::new(client),
                task,
            },
            notices,
        ))
    }

    /// Makes the table, or sees that it is as it should be; once.
    async fn check_table(&self, connected: &Connected) -> Result<(), StoreError> {
        if self.checked.load(Ordering::Acquire) {
            return Ok(());
        }
        let table = &self.settings.table;
        let server = self.settings.to_string();
        for may_create in [true, false] {
            let found = connected.client.simple_query(&sql::describe(table)).await;
            let found = found.map_err(|error| classify::reading(&server, &error))?;
            let rows = last_rows(found);
            let columns = rows.first().and_then(|row| row.get(0));
            match columns {
                Some(columns) if columns == sql::COLUMNS => break,
                Some(columns) => {
                    return Err(StoreError::broken(format!(
                        "expected table {} with columns {}, found {columns}; it belongs to \
                         something else: name another with ?table=",
                        table.name,
                        sql::COLUMNS
                    )));
                }
                None if !self.settings.may_create => {
                    return Err(StoreError::unavailable(no_store(format!(
                        "{server}: no table {}",
                        table.name
                    ))));
                }
                None if may_create => self.create_table(connected).await?,
                None => {
                    return Err(StoreError::unavailable(format!(
                        "table {} was made and is not there",
                        table.name
                    )));
                }
            }
        }
        self.checked.store(true, Ordering::Release);
        Ok(())
    }

    async fn create_table(&self, connected: &Connected) -> Result<(), StoreError> {
        let table = &self.settings.table;
        let created = connected.client.simple_query(&sql::create(table)).await;
        created.map(|_| ()).map_err(|error| {
            match classify::writing(&self.settings.to_string(), &error) {
                StoreError::Broken(why) => StoreError::broken(format!(
                    "expected table {}, found none, and could not create it: {why}; have \
                     somebody who may run:\n{};",
                    table.name,
                    sql::migration(&table.name)
                )),
                other => other,
            }
        })
    }
}

impl Connected {
    /// Carries out a statement on this very connection.
    pub(super) async fn ask(&self, statement: &str) -> Result<(), tokio_postgres::Error> {
        self.client.simple_query(statement).await.map(|_| ())
    }
}

/// The rows of the last statement of several.
fn last_rows(messages: Vec<SimpleQueryMessage>) -> Vec<SimpleQueryRow> {
    let mut statements = vec![Vec::new()];
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                if let Some(rows) = statements.last_mut() {
                    rows.push(row);
                }
            }
            SimpleQueryMessage::CommandComplete(_) => statements.push(Vec::new()),
            _ => {}
        }
    }
    // The last completion opened one more, which stayed empty.
    statements.pop();
    statements.pop().unwrap_or_default()
}
