//! The connection that calls go over: opened when needed, shared by all,
//! closed when it becomes suspect.
//!
//! *One impatient call costs other calls nothing.* A call whose time is up
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
//! A caller that does not know the outcome reads, and would find there what it
//! may not rely on yet: a commit that is on one disk alone is seen as soon as
//! its wait has ended, however it ended, and a caller that gave up waiting does
//! not hear how. So from each write of unknown outcome on (be it for a warning,
//! for want of time or for a broken connection) every reading waits for the
//! standby as a write does, until one such wait, of a reading or a write that
//! was sent after it, has ended as it should. What was committed before is then
//! replicated as well.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_postgres::SimpleQueryRow;
use tokio_postgres::error::SqlState;

use super::answers::{Answer, IN_FLIGHT_MAX, InFlightGuard};
use super::batches::{QueuedWrite, WriteQueue};
use super::classify;
use super::connect::{self, PgConnection, ReceivedCounts};
use super::error_text::{self, PgError};
use super::heartbeat_sql::Tables;
use super::heartbeat_tables::{self, ResolvedTables};
use super::histories;
use super::resolved_table::Table;
use super::settings::Settings;
use super::sql::{self, Change};
use super::table::{self, ResolvedTable};
use super::unsent_notifications::{self, UnsentNotifications};
use crate::error::StoreError;
use crate::round_trip::RoundTripTimes;
use crate::store::Key;
use crate::store::dial::{self, ConnectFn, Dialer};
use crate::{clock, drive};

/// A connection is given up when nothing has come over it between so many
/// looks in a row, so far apart, while an answer is due. Looks and not a
/// time: a process that was stopped for a minute finds one look overdue.
const SILENT_CHECKS: u32 = 3;
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long queued writes wait for a connection; then they are refused unsent. Dialling
/// goes on.
const QUEUED_WITHIN: Duration = Duration::from_secs(5);

/// Opens connections and carries out statements. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct PgClient {
    settings: Arc<Settings>,
    dialer: Arc<Dialer<PgConnection>>,
    table: Arc<ResolvedTable>,
    /// In its place, where heartbeats are kept.
    heartbeats: Arc<ResolvedTables>,
    round_trips: RoundTripTimes,
    in_flight: Arc<AtomicUsize>,
    uncertain: Arc<UncertainWrites>,
    /// Those of all connections of the store, this one among them.
    all_uncertain: Arc<AllUncertainWrites>,
    unsent: Arc<UnsentNotifications>,
    queue: Arc<WriteQueue>,
}

/// The uncertain writes of each connection of a store.
#[derive(Default, Debug)]
struct AllUncertainWrites(Mutex<Vec<Arc<UncertainWrites>>>);

impl AllUncertainWrites {
    /// Of one connection more.
    fn of_another(&self) -> Arc<UncertainWrites> {
        let another = Arc::<UncertainWrites>::default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::clone(&another));
        another
    }

    /// Whether one is pending on any connection. A reading over another one sees it
    /// as well.
    fn any_pending(&self) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|it| it.any_pending())
    }
}

/// Writes of which it is not known whether they were replicated.
#[derive(Default, Debug)]
struct UncertainWrites {
    /// How many there were.
    added: AtomicU64,
    /// How many of these were followed by a commit that was replicated.
    confirmed: AtomicU64,
}

impl UncertainWrites {
    /// How many there are to settle for what is sent now.
    fn added(&self) -> u64 {
        self.added.load(Ordering::Acquire)
    }

    fn any_pending(&self) -> bool {
        self.added() > self.confirmed.load(Ordering::Acquire)
    }

    fn add(&self) {
        self.added.fetch_add(1, Ordering::AcqRel);
    }

    /// What was sent when so many had been raised was replicated.
    fn confirm(&self, added: u64) {
        self.confirmed.fetch_max(added, Ordering::AcqRel);
    }
}

/// A write whose outcome is not known yet; it counts as uncertain if that never
/// changes, also because its caller has left.
struct UncertainGuard<'a> {
    uncertain: &'a UncertainWrites,
    /// Where it waits, if it may still do so, and under which number.
    queued: Option<(&'a WriteQueue, u64)>,
    is_settled: bool,
}

impl UncertainGuard<'_> {
    /// Whether it was not sent, and never will be. That settles it.
    fn leave_unsent(&mut self) -> bool {
        let unsent = self.queued.is_some_and(|(queue, it)| queue.leave(it));
        self.is_settled |= unsent;
        unsent
    }
}

impl Drop for UncertainGuard<'_> {
    fn drop(&mut self) {
        if !self.is_settled && !self.leave_unsent() {
            self.uncertain.add();
        }
    }
}

/// A call on its way.
struct PendingCall {
    /// The answer, or why nothing was sent.
    answer: oneshot::Receiver<Result<Answer, String>>,
    /// Closed when what was sent behind it has been answered too.
    follow_up: oneshot::Receiver<()>,
}

impl PgClient {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let (table, heartbeats) = (Arc::default(), Arc::default());
        Self::of(settings, table, heartbeats, Arc::default(), Arc::default())
    }

    /// Another connection to the same table.
    pub(super) fn beside(&self) -> Self {
        let (table, heartbeats) = (Arc::clone(&self.table), Arc::clone(&self.heartbeats));
        let (unsent, uncertain) = (Arc::clone(&self.unsent), Arc::clone(&self.all_uncertain));
        let settings = Arc::clone(&self.settings);
        Self::of(settings, table, heartbeats, unsent, uncertain)
    }

    fn of(
        settings: Arc<Settings>,
        table: Arc<ResolvedTable>,
        heartbeats: Arc<ResolvedTables>,
        unsent: Arc<UnsentNotifications>,
        all_uncertain: Arc<AllUncertainWrites>,
    ) -> Self {
        let (all, found) = (Arc::clone(&settings), Arc::clone(&table));
        let beats = Arc::clone(&heartbeats);
        let connect_to: ConnectFn<PgConnection> = Arc::new(move |at| {
            let (settings, found) = (Arc::clone(&all), Arc::clone(&found));
            let beats = Arc::clone(&beats);
            Box::pin(async move {
                let server = settings
                    .servers
                    .get(at)
                    .ok_or_else(|| StoreError::broken("expected a server of this number"))?;
                let others = histories::ask_others(&settings, at);
                let connected = connect::open(&settings, server).await?;
                // Before a table is looked for, and perhaps made.
                histories::judge(&server.label, &connected, others).await?;
                if settings.heartbeats.is_asked {
                    heartbeat_tables::find(&beats, &settings, &connected).await?;
                } else {
                    table::find(&found, &settings, &connected).await?;
                }
                Ok(connected)
            })
        });
        let labels = settings.servers.iter().map(|server| server.label.clone());
        let dialer = Dialer::new(
            settings.to_string(),
            labels.collect(),
            settings.first(),
            connect_to,
        );
        Self {
            settings,
            dialer: Arc::new(dialer),
            table,
            heartbeats,
            round_trips: RoundTripTimes::default(),
            in_flight: Arc::default(),
            uncertain: all_uncertain.of_another(),
            all_uncertain,
            unsent,
            queue: Arc::default(),
        }
    }

    /// The table, which is known once a connection has been opened.
    pub(super) fn table(&self) -> Result<&Table, StoreError> {
        let table = self.table.get();
        table.ok_or_else(|| StoreError::unavailable("no table was looked for yet"))
    }

    fn heartbeats(&self) -> Result<&Tables, StoreError> {
        let tables = self.heartbeats.get();
        tables.ok_or_else(|| StoreError::unavailable("no table was looked for yet"))
    }

    /// A connection of its own.
    pub(super) async fn dedicated(&self) -> Result<PgConnection, StoreError> {
        let dialer = Arc::clone(&self.dialer);
        // Connected on our own thread: the caller's executor may be blocked
        // when the answer comes.
        let opening = drive::background().spawn(async move { dialer.dedicated().await });
        opening.await.map_err(StoreError::unavailable)?
    }

    /// Carries out a statement that changes nothing.
    pub(super) async fn read(
        &self,
        statement: impl FnOnce(&Table) -> String,
        within: Duration,
    ) -> Result<Vec<SimpleQueryRow>, StoreError> {
        self.read_by(|| self.table().map(statement), within).await
    }

    /// The same on the tables of heartbeats.
    pub(super) async fn read_heartbeats(
        &self,
        statement: impl FnOnce(&Tables) -> String,
        within: Duration,
    ) -> Result<Vec<SimpleQueryRow>, StoreError> {
        self.read_by(|| self.heartbeats().map(statement), within)
            .await
    }

    async fn read_by(
        &self,
        statement: impl FnOnce() -> Result<String, StoreError>,
        within: Duration,
    ) -> Result<Vec<SimpleQueryRow>, StoreError> {
        let until = clock::boot().after(within);
        let connected = self.connected(until).await?;
        let (added, waits_for_standby) = (self.uncertain.added(), self.all_uncertain.any_pending());
        let statement = sql::before_reading(waits_for_standby) + &statement()?;
        let pending = self.send(&connected, statement, None)?;
        let Some(answer) = answer(pending.answer, until).await else {
            return Err(StoreError::unavailable(self.timeout_text(within, until)));
        };
        let answer = answer.map_err(StoreError::unavailable)?;
        let mut statements = answer.rows.map_err(|error| {
            self.leave_if_read_only(&connected, &error);
            classify::reading(&self.settings.to_string(), &error)
        })?;
        if answer.warned {
            // Of its own wait, or of a write that it may have read.
            return Err(StoreError::unavailable(self.warning_text(&connected)));
        }
        let first = statements.first().and_then(|rows| rows.first());
        if first.and_then(|row| row.get("read_only")) == Some("on") {
            self.dialer.abandon(&connected);
            return Err(StoreError::unavailable(format!(
                "expected {} to take writes, found that it does so no longer; looking for \
                 another",
                self.settings
            )));
        }
        if waits_for_standby {
            self.uncertain.confirm(added);
        }
        Ok(statements.pop().unwrap_or_default())
    }

    /// Carries out a change of a register and, right behind it, tells others of it: in
    /// a transaction of its own, so that the lock under which a server takes
    /// notifications is not held while the disk and the standbys are waited
    /// for. What came of it is heeded before its notification comes round, as
    /// a rule, so that this process need not read what it wrote itself.
    ///
    /// Changes that come while others are under way go together ([`super::batches`]).
    pub(super) async fn swap<T>(
        &self,
        key: &Key,
        change: impl FnOnce(&Table) -> Change,
        on_rows: impl FnOnce(&[SimpleQueryRow]) -> Result<T, StoreError>,
        within: Duration,
    ) -> Result<T, StoreError> {
        let change = || self.table().map(change).map(Some);
        self.write_by(Some(key), change, on_rows, within).await
    }

    /// Carries out another change, in a transaction of its own.
    pub(super) async fn write<T>(
        &self,
        change: impl FnOnce(&Table) -> Option<Change>,
        on_rows: impl FnOnce(&[SimpleQueryRow]) -> Result<T, StoreError>,
        within: Duration,
    ) -> Result<T, StoreError> {
        let change = || self.table().map(change);
        self.write_by(None, change, on_rows, within).await
    }

    /// The same on the tables of heartbeats.
    pub(super) async fn write_heartbeats<T>(
        &self,
        change: impl FnOnce(&Tables) -> Change,
        on_rows: impl FnOnce(&[SimpleQueryRow]) -> Result<T, StoreError>,
        within: Duration,
    ) -> Result<T, StoreError> {
        let change = || self.heartbeats().map(change).map(Some);
        self.write_by(None, change, on_rows, within).await
    }

    async fn write_by<T>(
        &self,
        queued_as: Option<&Key>,
        change: impl FnOnce() -> Result<Option<Change>, StoreError>,
        on_rows: impl FnOnce(&[SimpleQueryRow]) -> Result<T, StoreError>,
        within: Duration,
    ) -> Result<T, StoreError> {
        let until = clock::boot().after(within);
        let connected = self.connected(until).await?;
        let Some(change) = change()? else {
            return Err(StoreError::Conflict);
        };
        let added = self.uncertain.added();
        let (pending, number) = match queued_as {
            Some(key) => {
                let (pending, number) = self.enqueue(key, change)?;
                (pending, Some(number))
            }
            None => {
                let told = Some(change.notification).filter(|it| !it.is_empty());
                (self.send(&connected, change.statement, told)?, None)
            }
        };
        let mut guard = UncertainGuard {
            uncertain: &self.uncertain,
            queued: number.map(|number| (&*self.queue, number)),
            is_settled: false,
        };
        let Some(answer) = answer(pending.answer, until).await else {
            let why = self.timeout_text(within, until);
            return Err(if guard.leave_unsent() {
                StoreError::unavailable(format!("{why}; the write was not sent"))
            } else {
                StoreError::unknown(why)
            });
        };
        let rows = self.outcome(answer, &mut guard);
        let heeded = rows.and_then(|rows| {
            // What changed nothing has waited for nothing.
            if !rows.is_empty() {
                self.uncertain.confirm(added);
            }
            on_rows(&rows)
        });
        // A process that ends when it has its answer takes its connection
        // along, and what the server has not read yet.
        let left = until.since(clock::boot());
        let _ = timeout(left, pending.follow_up).await;
        heeded
    }

    /// What came of a write. It stays uncertain unless the server's answer
    /// settles it.
    fn outcome(
        &self,
        answer: Result<Answer, String>,
        guard: &mut UncertainGuard<'_>,
    ) -> Result<Vec<SimpleQueryRow>, StoreError> {
        let answer = answer.map_err(|why| {
            guard.is_settled = true;
            StoreError::unavailable(why)
        })?;
        let mut statements = answer.rows.map_err(|error| {
            self.leave_if_read_only(&answer.connected, &error);
            let error = classify::writing(&self.settings.to_string(), &error);
            // Otherwise it was rolled back.
            guard.is_settled = !matches!(error, StoreError::Unknown(_));
            error
        })?;
        if answer.warned {
            return Err(StoreError::unknown(self.warning_text(&answer.connected)));
        }
        guard.is_settled = true;
        Ok(statements.pop().unwrap_or_default())
    }

    /// Takes in a write, to be sent as soon as few others are under way.
    fn enqueue(&self, key: &Key, change: Change) -> Result<(PendingCall, u64), StoreError> {
        let in_flight = self.in_flight()?;
        let ((tell, answer), (ended, follow_up)) = (oneshot::channel(), oneshot::channel());
        let (number, begins) = self.queue.push(QueuedWrite {
            key: key.clone(),
            change,
            answer: tell,
            ended,
            in_flight,
            is_alone: false,
        });
        if begins {
            let client = self.clone();
            drive::background().spawn(async move { client.send_queued().await });
        }
        Ok((PendingCall { answer, follow_up }, number))
    }

    /// Sends what is queued, until nothing is. To be called on the background thread.
    async fn send_queued(&self) {
        while self.queue.goes_on() {
            match self.connected(clock::boot().after(QUEUED_WITHIN)).await {
                Ok(connected) => self.send_batch(&connected).await,
                Err(error) => {
                    let why = dial::reason(&error);
                    for write in self.queue.drain() {
                        let _ = write.answer.send(Err(why.clone()));
                    }
                }
            }
        }
    }

    /// Sends some of what is queued, and hands out what came of it.
    async fn send_batch(&self, connected: &PgConnection) {
        let sent = self.queue.send_next(|batch| {
            let all = |text: fn(&Change) -> &str| {
                let texts: Vec<_> = batch.iter().map(|(_, it)| text(&it.change)).collect();
                texts.join("; ")
            };
            let told = all(|change| &change.notification);
            self.send(connected, all(|change| &change.statement), Some(told))
        });
        let (batch, pending) = match sent {
            Some((batch, Ok(pending))) => (batch, pending),
            Some((batch, Err(error))) => {
                let why = dial::reason(&error);
                for (_, write) in batch {
                    let _ = write.answer.send(Err(why.clone()));
                }
                return;
            }
            None => return,
        };
        let Ok(Ok(answer)) = pending.answer.await else {
            // Their callers hear that the connection has ended.
            return;
        };
        let ended = self.hand_out(batch, answer);
        drive::background().spawn(async move {
            let _ = pending.follow_up.await;
            drop(ended);
        });
    }

    /// Gives each write of a transaction its part of the answer. Returns what has to
    /// live until the notifications were answered.
    fn hand_out(
        &self,
        batch: Vec<(u64, QueuedWrite)>,
        answer: Answer,
    ) -> Vec<(oneshot::Sender<()>, InFlightGuard)> {
        let is_certain = |error| {
            let error = classify::writing("", error);
            !answer.warned && !matches!(error, StoreError::Unknown(_))
        };
        let parts = match answer.rows {
            Ok(rows) if rows.len() == batch.len() * sql::RESULTS_OF_WRITE => {
                let mut rows = rows.into_iter();
                let mut part = || Ok(rows.by_ref().take(sql::RESULTS_OF_WRITE).collect());
                batch.iter().map(|_| part()).collect()
            }
            // It went alone.
            Err(error) if batch.len() == 1 => vec![Err(error)],
            Err(error) if is_certain(&error) => {
                self.leave_if_read_only(&answer.connected, &error);
                self.queue.put_back(batch);
                return Vec::new();
            }
            // Of unknown outcome: their callers get no answer.
            Ok(_) | Err(_) => return Vec::new(),
        };
        let mut kept = Vec::new();
        for ((_, write), rows) in batch.into_iter().zip(parts) {
            let (warned, connected) = (answer.warned, answer.connected.clone());
            let _ = write.answer.send(Ok(Answer {
                rows,
                warned,
                connected,
            }));
            kept.push((write.ended, write.in_flight));
        }
        kept
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
    fn timeout_text(&self, within: Duration, until: Instant) -> String {
        if clock::boot() < until {
            return format!(
                "the connection to {} ended before the answer",
                self.settings
            );
        }
        self.round_trips
            .timeout_text(&self.settings.to_string(), within)
    }

    fn warning_text(&self, connected: &PgConnection) -> String {
        format!(
            "{} warned that a commit may not have been replicated ({}); expected its standbys to \
             confirm: see to them, or to synchronous_standby_names",
            self.settings,
            connected.received.last_warning()
        )
    }

    /// Leaves a server that does not take writes any more.
    fn leave_if_read_only(&self, connected: &PgConnection, error: &PgError) {
        if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
            self.dialer.abandon(connected);
        }
    }

    /// The open connection, or a new one.
    async fn connected(&self, until: Instant) -> Result<PgConnection, StoreError> {
        self.dialer.connected(until).await
    }

    /// Counts one answer more that is due.
    fn in_flight(&self) -> Result<InFlightGuard, StoreError> {
        InFlightGuard::of(&self.in_flight).ok_or_else(|| {
            StoreError::unavailable(format!(
                "expected at most {IN_FLIGHT_MAX} calls that wait for {}, found as many; nothing \
                 was sent",
                self.settings
            ))
        })
    }

    /// Sends statements, and others right behind them. What is sent is
    /// answered in a task of its own, which goes on when the caller leaves:
    /// it is there that a connection is found to be mute.
    fn send(
        &self,
        connected: &PgConnection,
        statements: String,
        follow_up: Option<String>,
    ) -> Result<PendingCall, StoreError> {
        let in_flight = self.in_flight()?;
        let (tell, answer) = oneshot::channel();
        let (ended, is_behind) = oneshot::channel();
        let (connected, dialer) = (connected.clone(), Arc::clone(&self.dialer));
        let (round_trips, uncertain) = (self.round_trips.clone(), Arc::clone(&self.uncertain));
        let unsent = Arc::clone(&self.unsent);
        drive::background().spawn(async move {
            let _held = (in_flight, ended);
            let warnings = connected.received.warnings();
            let first = async {
                let asked = clock::boot();
                let rows = connected.query(&statements).await;
                round_trips.record(clock::boot().since(asked));
                let warned = connected.received.warnings() != warnings;
                if warned {
                    // Of a write whose caller has left, perhaps.
                    uncertain.add();
                }
                let connected = connected.clone();
                let _ = tell.send(Ok(Answer {
                    rows,
                    warned,
                    connected,
                }));
            };
            let second = async {
                if let Some(follow_up) = follow_up
                    && let Err(error) = connected.query(&follow_up).await
                {
                    tracing::debug!("telling of a change: {}", error_text::text(&error));
                    if unsent_notifications::is_lock_timeout(&error) {
                        unsent.resend(follow_up, &dialer);
                    }
                }
            };
            // Each sends when it is first polled: one behind the other.
            let both = async { tokio::join!(first, second) };
            // Left before the callers hear that no answer comes: their next
            // call must find that it is gone.
            let gives_up = async {
                until_silent(&connected.received).await;
                let quiet = CHECK_EVERY * SILENT_CHECKS;
                tracing::warn!("the database has said nothing for {quiet:?}; connecting again");
                dialer.abandon(&connected);
                connected.end();
            };
            tokio::select! {
                biased;
                _ = both => {}
                () = gives_up => {}
            }
        });
        Ok(PendingCall {
            answer,
            follow_up: is_behind,
        })
    }
}

/// The answer; `None` if none came in time.
async fn answer<T>(asked: oneshot::Receiver<T>, until: Instant) -> Option<T> {
    let left = until.since(clock::boot());
    timeout(left, asked).await.ok()?.ok()
}

/// Returns when nothing has come for too long.
async fn until_silent(received: &ReceivedCounts) {
    let (mut before, mut checks) = (received.messages(), 0);
    while checks < SILENT_CHECKS {
        sleep(CHECK_EVERY).await;
        let now = received.messages();
        checks = if now == before { checks + 1 } else { 0 };
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reading_waits_for_uncertain_writes_of_other_connections() {
        let settings = Settings::parse("postgres://u@h/d").expect("a URL");
        let one = PgClient::new(Arc::new(settings));
        let other = one.beside();
        assert!(!one.all_uncertain.any_pending());
        other.uncertain.add();
        assert!(one.all_uncertain.any_pending(), "of the other connection");
        // What the one has confirmed says nothing of it.
        one.uncertain.confirm(1);
        assert!(one.all_uncertain.any_pending());
        other.uncertain.confirm(1);
        assert!(!one.all_uncertain.any_pending());
    }
}
