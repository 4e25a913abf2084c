//! The connections to one server. A connection carries one statement at a time.
//!
//! Up to eight writes and four readings are on their way at a time: a renewal does not
//! wait behind readings, and writes that wait for the disk share a sync of it.
//!
//! A call whose time is up leaves, and gives its turn to the next. Its statement goes on
//! in a task of its own, which gives the connection back when the answer has come: to
//! close it would not end the statement, and a server that is slow would be asked for a
//! handshake as well, with each call that is late. A new connection is opened by such a
//! task too; callers who can wait for less than a handshake takes would otherwise never
//! get one.
//!
//! When a connection breaks the others are closed too, because the server has
//! restarted as a rule. When nothing at all comes for some seconds while an answer is
//! due, the server is left for the next one. So it is where readings are answered and no
//! write is, as by a server that is locked for a backup, if the URL names another host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mysql_async::Conn;
use tenure_core::time::Instant;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::heartbeat_tables;
use super::session::{self, IDLE_SECONDS};
use super::settings::{Server, Settings};
use super::table::{self, FoundTable};
use super::writers;
use crate::clock;
use crate::error::StoreError;
use crate::store::dial::{self, Connection};
use crate::store::panics;

/// How many writes are on their way at a time; others wait for their turn.
const WRITES: usize = 8;
/// How many readings.
const READS: usize = 4;
/// How many connections there are: one for each turn, and some for the statements of
/// calls that have left.
const CONNECTIONS_MAX: usize = 16;
/// How long the answer to a statement is waited for, also when its caller has left.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// A connection that was idle for longer is not used again: the server may end it
/// while a statement is on its way.
const IDLE_MAX: Duration = Duration::from_secs(IDLE_SECONDS / 2);
/// How long nothing at all may come while an answer is due.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// How long no other connection is tried after one was refused.
const OPEN_AGAIN: Duration = Duration::from_secs(1);

/// What a turn is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
}

/// See the [module](self). Clones are the same connections.
#[derive(Clone)]
pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Arc<Settings>,
    server: Server,
    reads: Semaphore,
    writes: Semaphore,
    /// Told of each change of the state.
    changed: Notify,
    state: Mutex<State>,
}

struct State {
    idle: Vec<Idle>,
    /// How many there are, also those in use and the one that is being opened.
    count: usize,
    is_opening: bool,
    open_not_before: Instant,
    /// Since when an answer is due, if nothing has come since then.
    due_since: Option<Instant>,
    /// The same of answers to writes alone.
    write_due_since: Option<Instant>,
    /// Why none of them is used again.
    closed: Option<String>,
}

struct Idle {
    connection: Conn,
    since: Instant,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection for Pool {
    fn is_open(&self) -> bool {
        self.shared.state().closed.is_none()
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Pool {
    /// Opens the first connection to the server of this number, and finds the table there.
    pub(super) async fn open(
        settings: Arc<Settings>,
        at: usize,
        found: &FoundTable,
    ) -> Result<Self, StoreError> {
        let server = settings.servers.get(at).cloned();
        let server =
            server.ok_or_else(|| StoreError::broken("expected a server of this number"))?;
        let others = writers::ask_others(&settings, at);
        // Who only looks acknowledges nothing.
        let warns = settings.may_create && found.get().is_none();
        let mut connection = session::open(&settings, &server, warns).await?;
        // Before a table is looked for, and perhaps made.
        writers::judge(&server, &mut connection, others).await?;
        if settings.heartbeats.is_asked {
            heartbeat_tables::find(&settings, found, &mut connection).await?;
        } else {
            table::find(&settings, found, &mut connection).await?;
        }
        let now = clock::boot();
        let idle = Idle {
            connection,
            since: now,
        };
        let state = State {
            idle: vec![idle],
            count: 1,
            is_opening: false,
            open_not_before: now,
            due_since: None,
            write_due_since: None,
            closed: None,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                settings,
                server,
                reads: Semaphore::new(READS),
                writes: Semaphore::new(WRITES),
                changed: Notify::new(),
                state: Mutex::new(state),
            }),
        })
    }

    /// Waits for a turn.
    pub(super) async fn turn(&self, kind: Kind) -> Result<SemaphorePermit<'_>, StoreError> {
        let turns = match kind {
            Kind::Read => &self.shared.reads,
            Kind::Write => &self.shared.writes,
        };
        turns.acquire().await.map_err(StoreError::unavailable)
    }

    /// Waits for a connection, in one's turn.
    pub(super) async fn lease(&self) -> Result<Lease, StoreError> {
        let mut changed = std::pin::pin!(self.shared.changed.notified());
        loop {
            // From here on no change is missed.
            changed.as_mut().enable();
            let pause = match self.take_idle()? {
                Ok(connection) => {
                    return Ok(Lease {
                        pool: self.clone(),
                        connection: Some(connection),
                    });
                }
                Err(pause) => pause,
            };
            let _ = timeout(pause, changed.as_mut()).await;
            changed.set(self.shared.changed.notified());
        }
    }

    /// One that is idle. If there is none, opens another, and says how long to wait
    /// for a change.
    fn take_idle(&self) -> Result<Result<Conn, Duration>, StoreError> {
        let now = clock::boot();
        let mut state = self.shared.state();
        if let Some(why) = &state.closed {
            return Err(StoreError::unavailable(why));
        }
        while let Some(idle) = state.idle.pop() {
            if now.since(idle.since) <= IDLE_MAX {
                return Ok(Ok(idle.connection));
            }
            state.count -= 1;
        }
        if state.is_opening || state.count >= CONNECTIONS_MAX {
            return Ok(Err(OPEN_AGAIN));
        }
        let pause = state.open_not_before.since(now);
        if pause.is_zero() {
            state.is_opening = true;
            state.count += 1;
            let pool = self.clone();
            tokio::spawn(async move { pool.open_another().await });
            return Ok(Err(OPEN_AGAIN));
        }
        Ok(Err(pause))
    }

    async fn open_another(&self) {
        let Shared {
            settings, server, ..
        } = &*self.shared;
        let handshake = panics::caught(session::open(settings, server, false));
        let opened = timeout(dial::HANDSHAKE_WITHIN, handshake).await;
        let opened = opened.unwrap_or_else(|_| Err(StoreError::unavailable("no answer in time")));
        {
            let mut state = self.shared.state();
            let now = clock::boot();
            state.is_opening = false;
            match opened {
                Ok(_) if state.closed.is_some() => state.count -= 1,
                Ok(connection) => {
                    state.due_since = None;
                    state.idle.push(Idle {
                        connection,
                        since: now,
                    });
                }
                Err(error) => {
                    tracing::debug!("{server}: another connection was refused: {error}");
                    state.count -= 1;
                    state.open_not_before = now.after(OPEN_AGAIN);
                    // The others go on; without any, the next call finds another server.
                    if state.count == 0 {
                        state.closed = Some(dial::reason(&error));
                    }
                }
            }
        }
        self.shared.changed.notify_waiters();
    }

    /// Uses none of the connections again.
    pub(super) fn close(&self, why: &str) {
        let idle = {
            let mut state = self.shared.state();
            state.closed.get_or_insert_with(|| why.to_owned());
            std::mem::take(&mut state.idle)
        };
        drop(idle);
        self.shared.changed.notify_waiters();
    }

    /// Takes note that an answer is due.
    pub(super) fn is_due(&self, kind: Kind) {
        let mut state = self.shared.state();
        state.due_since.get_or_insert_with(clock::boot);
        if kind == Kind::Write {
            state.write_due_since.get_or_insert_with(clock::boot);
        }
    }

    /// Takes note that one has come.
    pub(super) fn has_come(&self, kind: Kind) {
        let mut state = self.shared.state();
        state.due_since = None;
        if kind == Kind::Write {
            state.write_due_since = None;
        }
    }

    /// Whether nothing has come for so long that the server is left.
    pub(super) fn is_mute(&self) -> bool {
        let state = self.shared.state();
        let has_others = self.shared.settings.servers.len() > 1;
        let of_writes = state.write_due_since.filter(|_| has_others);
        let now = clock::boot();
        let is_long = |since: Instant| now.since(since) >= SILENCE_MAX;
        [state.due_since, of_writes]
            .into_iter()
            .flatten()
            .any(is_long)
    }
}

/// A connection for one statement. It is closed when this is dropped, unless it was
/// given back.
pub(super) struct Lease {
    pool: Pool,
    connection: Option<Conn>,
}

impl Lease {
    /// Asks something over the connection; `None` if nothing has come of it, because
    /// the pool was closed or for want of time.
    pub(super) async fn ask<T>(&mut self, ask: impl AsyncFnOnce(&mut Conn) -> T) -> Option<T> {
        let connection = self.connection.as_mut()?;
        let shared = Arc::clone(&self.pool.shared);
        let closed = async {
            let mut changed = std::pin::pin!(shared.changed.notified());
            loop {
                changed.as_mut().enable();
                if shared.state().closed.is_some() {
                    return;
                }
                changed.as_mut().await;
                changed.set(shared.changed.notified());
            }
        };
        tokio::select! {
            biased;
            answer = timeout(ANSWER_WITHIN, ask(connection)) => answer.ok(),
            () = closed => None,
        }
    }

    /// Gives it back: its last answer has come as a whole.
    pub(super) fn give_back(mut self) {
        {
            let mut state = self.pool.shared.state();
            if state.closed.is_some() {
                return;
            }
            // Where it is taken it is not counted out.
            let since = clock::boot();
            let idle = self.connection.take();
            state
                .idle
                .extend(idle.map(|connection| Idle { connection, since }));
        }
        self.pool.shared.changed.notify_waiters();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.shared.state().count -= 1;
            drop(connection);
            self.pool.shared.changed.notify_waiters();
        }
    }
}
