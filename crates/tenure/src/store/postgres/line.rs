//! The connection that calls go over: opened when needed, shared by all,
//! closed when it becomes suspect.
//!
//! *One impatient call costs nobody else anything.* A call whose time is up
//! leaves; its answer is dropped when it comes. The connection is given up
//! when an answer is due and nothing at all has come for some seconds, when it
//! ends, and when its server has stopped to take writes: that one may have
//! become a standby, which lags behind what is acknowledged elsewhere.
//!
//! *A warning makes a write unknown.* Where a server waits for a standby and
//! that wait is cancelled, it says so in a warning and then answers as if all
//! were well: the commit is on its own disk alone, and is lost if the standby
//! takes over. The words of the warning are in the language of the server, so
//! any warning without a code of its own counts.
//!
//! Whoever does not know reads, and would find there what nobody may rely on
//! yet: a commit that is on one disk alone is seen as soon as its wait has
//! ended, however it ended, and whoever gave up waiting does not hear how. So
//! from each write of unknown outcome on (be it for a warning, for want of
//! time or for a broken connection) every reading waits for the standby as a
//! write does, until one such wait, of a reading or a write that was sent
//! after it, has ended as it should. What was committed before is then
//! replicated as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_postgres::SimpleQueryRow;
use tokio_postgres::error::SqlState;

use super::classify;
use super::connect::{self, Connected, Heard};
use super::lost::{self, Lost};
use super::settings::Settings;
use super::sql::{self, Change};
use super::table::{self, Found, Table};
use crate::distance::Distance;
use crate::error::StoreError;
use crate::store::dial::{Dialer, Reach};
use crate::{clock, drive};

/// A connection is given up when nothing has come over it between so many
/// looks in a row, so far apart, while an answer is due. Looks and not a
/// time: a process that was stopped for a minute finds one look overdue.
const LOOKS: u32 = 3;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many answers may be due; a call beyond that is refused unsent.
const DUE_MAX: usize = 4096;

/// Opens connections and carries out statements.
#[derive(Debug)]
pub(super) struct Line {
    settings: Arc<Settings>,
    dialer: Arc<Dialer<Connected>>,
    table: Arc<Found>,
    distance: Distance,
    due: Arc<AtomicUsize>,
    doubts: Arc<Doubts>,
    lost: Arc<Lost>,
}

/// Writes of which it is not known whether they were replicated.
#[derive(Default, Debug)]
struct Doubts {
    /// How many there were.
    raised: AtomicU64,
    /// How many of these were followed by a commit that was replicated.
    settled: AtomicU64,
}

impl Doubts {
    /// How many there are to settle for what is sent now.
    fn raised(&self) -> u64 {
        self.raised.load(Ordering::Acquire)
    }

    fn are_open(&self) -> bool {
        self.raised() > self.settled.load(Ordering::Acquire)
    }

    fn raise(&self) {
        self.raised.fetch_add(1, Ordering::AcqRel);
    }

    /// What was sent when so many had been raised was replicated.
    fn settle(&self, raised: u64) {
        self.settled.fetch_max(raised, Ordering::AcqRel);
    }
}

/// A write whose outcome is not known yet; in doubt if that never changes,
/// also because its caller has left.
struct Open<'a>(Option<&'a Doubts>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(doubts) = self.0 {
            doubts.raise();
        }
    }
}

/// What came of a call.
struct Answer {
    rows: Result<Vec<Vec<SimpleQueryRow>>, tokio_postgres::Error>,
    /// A warning came before it.
    warned: bool,
}

/// A call on its way.
struct Asked {
    answer: oneshot::Receiver<Answer>,
    /// Closed when what was sent behind it has been answered too.
    behind: oneshot::Receiver<()>,
}

/// Counts an answer that is due.
struct Due(Arc<AtomicUsize>);

impl Drop for Due {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Line {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let table = Arc::<Found>::default();
        let (all, found) = (Arc::clone(&settings), Arc::clone(&table));
        let reach: Reach<Connected> = Arc::new(move |at| {
            let (settings, found) = (Arc::clone(&all), Arc::clone(&found));
            Box::pin(async move {
                let server = settings
                    .servers
                    .get(at)
                    .ok_or_else(|| StoreError::broken("expected a server of this number"))?;
                let connected = connect::open(&settings, server).await?;
                table::find(&found, &settings, &connected).await?;
                Ok(connected)
            })
        });
        let labels = settings.servers.iter().map(|server| server.label.clone());
        let dialer = Dialer::new(
            settings.to_string(),
            labels.collect(),
            settings.first(),
            reach,
        );
        Self {
            settings,
            dialer: Arc::new(dialer),
            table,
            distance: Distance::default(),
            due: Arc::default(),
            doubts: Arc::default(),
            lost: Arc::default(),
        }
    }

    /// The table, which is known once a connection has been opened.
    pub(super) fn table(&self) -> Result<&Table, StoreError> {
        let table = self.table.get();
        table.ok_or_else(|| StoreError::unavailable("no table was looked for yet"))
    }

    /// A connection of its own.
    pub(super) async fn apart(&self) -> Result<Connected, StoreError> {
        let dialer = Arc::clone(&self.dialer);
        // Connected on our own thread: the caller's executor may be blocked
        // when the answer comes.
        let opening = drive::background().spawn(async move { dialer.apart().await });
        opening.await.map_err(StoreError::unavailable)?
    }

    /// Carries out a statement that changes nothing.
    pub(super) async fn read(
        &self,
        statement: impl FnOnce(&Table) -> String,
        within: Duration,
    ) -> Result<Vec<SimpleQueryRow>, StoreError> {
        let until = clock::boot().after(within);
        let connected = self.connected(until).await?;
        let (raised, settles) = (self.doubts.raised(), self.doubts.are_open());
        let statement = sql::before_reading(settles) + &statement(self.table()?);
        let asked = self.send(&connected, statement, None)?;
        let Some(answer) = answer(asked.answer, until).await else {
            return Err(StoreError::unavailable(self.silence(within, until)));
        };
        let mut statements = answer.rows.map_err(|error| {
            self.leave_if_read_only(&connected, &error);
            classify::reading(&self.settings.to_string(), &error)
        })?;
        if answer.warned {
            // Of its own wait, or of a write that it may have read.
            return Err(StoreError::unavailable(self.doubt(&connected)));
        }
        let first = statements.first().and_then(|rows| rows.first());
        if first.and_then(|row| row.get("read_only")) == Some("on") {
            self.dialer.leave(&connected);
            return Err(StoreError::unavailable(format!(
                "expected {} to take writes, found that it does so no longer; looking for \
                 another",
                self.settings
            )));
        }
        if settles {
            self.doubts.settle(raised);
        }
        Ok(statements.pop().unwrap_or_default())
    }

    /// Carries out a change and, right behind it, tells others of it: in a
    /// transaction of its own, so that the lock under which a server takes
    /// notifications is not held while the disk and the standbys are waited
    /// for. What came of it is heeded before its notification comes round, as
    /// a rule, so that this process need not read what it wrote itself.
    pub(super) async fn write<T>(
        &self,
        change: impl FnOnce(&Table) -> Option<Change>,
        heed: impl FnOnce(&[SimpleQueryRow]) -> Result<T, StoreError>,
        within: Duration,
    ) -> Result<T, StoreError> {
        let until = clock::boot().after(within);
        let connected = self.connected(until).await?;
        let Some(change) = change(self.table()?) else {
            return Err(StoreError::Conflict);
        };
        let raised = self.doubts.raised();
        let asked = self.send(&connected, change.statement, Some(change.notification))?;
        let mut open = Open(Some(&self.doubts));
        let Some(answer) = answer(asked.answer, until).await else {
            return Err(StoreError::unknown(self.silence(within, until)));
        };
        let rows = self.outcome(&connected, answer, &mut open);
        let heeded = rows.and_then(|rows| {
            // What changed nothing has waited for nothing.
            if !rows.is_empty() {
                self.doubts.settle(raised);
            }
            heed(&rows)
        });
        // A process that ends when it has its answer takes its connection
        // along, and what the server has not read yet.
        let left = until.since(clock::boot());
        let _ = timeout(left, asked.behind).await;
        heeded
    }

    /// What came of a write. It stays in doubt unless that is certain.
    fn outcome(
        &self,
        connected: &Connected,
        answer: Answer,
        open: &mut Open<'_>,
    ) -> Result<Vec<SimpleQueryRow>, StoreError> {
        let mut statements = answer.rows.map_err(|error| {
            self.leave_if_read_only(connected, &error);
            let error = classify::writing(&self.settings.to_string(), &error);
            if !matches!(error, StoreError::Unknown(_)) {
                // It was rolled back.
                open.0 = None;
            }
            error
        })?;
        if answer.warned {
            return Err(StoreError::unknown(self.doubt(connected)));
        }
        open.0 = None;
        Ok(statements.pop().unwrap_or_default())
    }

    /// How long a round trip takes: the quickest of some.
    pub(super) async fn round_trip(&self, within: Duration) -> Option<Duration> {
        const TRIPS: u32 = 3;
        let until = clock::boot().after(within);
        self.connected(until).await.ok()?;
        let mut quickest = None;
        for _ in 0..TRIPS {
            let asked = clock::boot();
            let left = until.since(asked);
            self.read(|_| "SELECT 1".into(), left).await.ok()?;
            let took = clock::boot().since(asked);
            quickest = Some(quickest.map_or(took, |least: Duration| least.min(took)));
        }
        quickest
    }

    /// Why there is no answer: its time is up, or the connection has gone.
    fn silence(&self, within: Duration, until: Instant) -> String {
        if clock::boot() < until {
            return format!(
                "the connection to {} ended before the answer",
                self.settings
            );
        }
        self.distance.silence(&self.settings.to_string(), within)
    }

    fn doubt(&self, connected: &Connected) -> String {
        format!(
            "{} warned that a commit may not have been replicated ({}); expected its standbys to \
             confirm: see to them, or to synchronous_standby_names",
            self.settings,
            connected.heard.last_warning()
        )
    }

    /// Leaves a server that does not take writes any more.
    fn leave_if_read_only(&self, connected: &Connected, error: &tokio_postgres::Error) {
        if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
            self.dialer.leave(connected);
        }
    }

    /// The open connection, or a new one.
    async fn connected(&self, until: Instant) -> Result<Connected, StoreError> {
        self.dialer.connected(until).await
    }

    /// Sends statements, and others right behind them. What is sent is
    /// answered in a task of its own, which goes on when the caller leaves:
    /// it is there that a connection is found to be mute.
    fn send(
        &self,
        connected: &Connected,
        statements: String,
        behind: Option<String>,
    ) -> Result<Asked, StoreError> {
        let due = Due(Arc::clone(&self.due));
        if due.0.fetch_add(1, Ordering::AcqRel) >= DUE_MAX {
            return Err(StoreError::unavailable(format!(
                "expected at most {DUE_MAX} calls that wait for {}, found as many; nothing was \
                 sent",
                self.settings
            )));
        }
        let (tell, answer) = oneshot::channel();
        let (ended, is_behind) = oneshot::channel();
        let (connected, dialer) = (connected.clone(), Arc::clone(&self.dialer));
        let (distance, doubts) = (self.distance.clone(), Arc::clone(&self.doubts));
        let lost = Arc::clone(&self.lost);
        drive::background().spawn(async move {
            let _held = (due, ended);
            let warnings = connected.heard.warnings();
            let first = async {
                let asked = clock::boot();
                let rows = connected.ask(&statements).await;
                distance.took(clock::boot().since(asked));
                let warned = connected.heard.warnings() != warnings;
                if warned {
                    // Of a write whose caller has left, perhaps.
                    doubts.raise();
                }
                let _ = tell.send(Answer { rows, warned });
            };
            let second = async {
                if let Some(behind) = behind
                    && let Err(error) = connected.ask(&behind).await
                {
                    tracing::debug!("telling of a change: {}", classify::text(&error));
                    if lost::is_late(&error) {
                        lost.take_in(behind, &dialer);
                    }
                }
            };
            // Each sends when it is first polled: one behind the other.
            let both = async { tokio::join!(first, second) };
            // Left before the callers hear that no answer comes: their next
            // call must find that it is gone.
            let gives_up = async {
                silence(&connected.heard).await;
                let quiet = LOOK_EVERY * LOOKS;
                tracing::warn!("the database has said nothing for {quiet:?}; connecting again");
                dialer.leave(&connected);
                connected.end();
            };
            tokio::select! {
                biased;
                _ = both => {}
                () = gives_up => {}
            }
        });
        Ok(Asked {
            answer,
            behind: is_behind,
        })
    }
}

/// The answer; `None` if none came in time.
async fn answer(asked: oneshot::Receiver<Answer>, until: Instant) -> Option<Answer> {
    let left = until.since(clock::boot());
    timeout(left, asked).await.ok()?.ok()
}

/// Returns when nothing has come for too long.
async fn silence(heard: &Heard) {
    let (mut before, mut looks) = (heard.messages(), 0);
    while looks < LOOKS {
        sleep(LOOK_EVERY).await;
        let now = heard.messages();
        looks = if now == before { looks + 1 } else { 0 };
        before = now;
    }
}
