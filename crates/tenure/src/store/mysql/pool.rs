//! The connections to one server, each of which carries one statement at a time.
//!
//! There are eight at most, opened as they are needed. Half of the turns are for
//! writes and half for readings, so that a renewal does not wait behind readings.
//!
//! A call whose time is up leaves, and its connection is closed: an answer may be on
//! its way over it. A new connection is opened by a task of its own, which goes on
//! when the call that has asked for it leaves; callers who can wait for less than a
//! handshake takes would otherwise never get one.
//!
//! When a connection breaks the others are closed too, because the server has
//! restarted as a rule. When nothing at all comes for some seconds while an answer is
//! due, the server is left for the next one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mysql_async::Conn;
use tenure_core::time::Instant;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::session::{self, IDLE_SECONDS};
use super::settings::{Server, Settings};
use super::table::{self, FoundTable};
use crate::clock;
use crate::error::StoreError;
use crate::store::dial::{self, Connection};

/// How many calls of a kind are on their way at a time; others wait for their turn.
const TURNS: usize = 4;
/// How many connections there are.
const CONNECTIONS_MAX: usize = 2 * TURNS;
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
    /// Opens the first connection to this server, and finds the table there.
    pub(super) async fn open(
        settings: Arc<Settings>,
        server: Server,
        found: &FoundTable,
    ) -> Result<Self, StoreError> {
        let warns = found.get().is_none();
        let mut connection = session::open(&settings, &server, warns).await?;
        table::find(&settings, found, &mut connection).await?;
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
            closed: None,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                settings,
                server,
                reads: Semaphore::new(TURNS),
                writes: Semaphore::new(TURNS),
                changed: Notify::new(),
                state: Mutex::new(state),
            }),
        })
    }

    /// Waits for a connection.
    pub(super) async fn lease(&self, kind: Kind) -> Result<Lease<'_>, StoreError> {
        let turns = match kind {
            Kind::Read => &self.shared.reads,
            Kind::Write => &self.shared.writes,
        };
        let turn = turns.acquire().await.map_err(StoreError::unavailable)?;
        let mut changed = std::pin::pin!(self.shared.changed.notified());
        loop {
            // From here on no change is missed.
            changed.as_mut().enable();
            let pause = match self.take_idle()? {
                Ok(connection) => {
                    return Ok(Lease {
                        pool: self,
                        connection: Some(connection),
                        _turn: turn,
                    });
                }
                Err(pause) => pause,
            };
            let _ = tokio::time::timeout(pause, changed.as_mut()).await;
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
        let handshake = session::open(settings, server, false);
        let opened = tokio::time::timeout(dial::HANDSHAKE_WITHIN, handshake).await;
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
    pub(super) fn is_due(&self) {
        let mut state = self.shared.state();
        state.due_since.get_or_insert_with(clock::boot);
    }

    /// Takes note that one has come.
    pub(super) fn has_come(&self) {
        self.shared.state().due_since = None;
    }

    /// Whether nothing has come for so long that the server is left.
    pub(super) fn is_mute(&self) -> bool {
        let since = self.shared.state().due_since;
        since.is_some_and(|since| clock::boot().since(since) >= SILENCE_MAX)
    }
}

/// A connection for one call. It is closed when this is dropped, unless it was given
/// back.
pub(super) struct Lease<'a> {
    pool: &'a Pool,
    connection: Option<Conn>,
    _turn: SemaphorePermit<'a>,
}

impl Lease<'_> {
    /// The connection.
    pub(super) fn connection(&mut self) -> Result<&mut Conn, StoreError> {
        let gone = || StoreError::unavailable("the connection was given back");
        self.connection.as_mut().ok_or_else(gone)
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

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.shared.state().count -= 1;
            drop(connection);
            self.pool.shared.changed.notify_waiters();
        }
    }
}
