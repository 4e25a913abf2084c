//! Elections held by sessions: which session holds which register, one
//! confirmation for all that share it, and what becomes of registers that no
//! campaign claims.
//!
//! A [`SessionPool`] has as many sessions as it takes, each with up to
//! [`MAX_BOUND`] registers. A campaign's [`SessionHold`] takes a [`SessionSlot`] in one of
//! them when it first binds its register, and keeps it until it releases it.
//!
//! # What must not go wrong
//!
//! * *A confirmation is of the session that holds the register.* A slot never
//!   moves to another session, and a session is never replaced.
//! * *A confirmation counts from before its keep-alive was sent.* The clock is
//!   read before the command is put into the pipeline, under the lock that
//!   others find it by.
//! * *Two campaigns of one election never share a session.* To the cluster a
//!   session is one writer, so it would let one of them write what the other
//!   holds. A session that has a slot for a register gives no other campaign
//!   one.
//! * *What no campaign claims is vacated.* The session lives on for the other
//!   registers, and would hold an abandoned one for ever. So a slot that was
//!   released is not free at once: first a command is done behind everything
//!   that was sent before (those of one session take effect in order); then the
//!   register is read, and if it is bound to this session all the same, it gets
//!   its on-expiry value.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_client::{Client, Error, MAX_BOUND, Session, Swapped};
use tenure_core::cas::Bytes;
use tenure_core::time::Instant;
use tokio::sync::watch;

use super::super::hub::Hub;
use super::super::{
    Bind, BoxFuture, Expect, Hold, Key, Register, Stamp, Write, Written, refuse_oversized,
};
use crate::error::StoreError;
use crate::{clock, drive};

/// The longest lease that a session can hold: with the drift of clocks, not
/// above the day that is the longest time to live.
pub(super) const LEASE_MAX: Duration = Duration::from_secs(12 * 3_600);
/// The shortest time to live that a cluster accepts.
const TTL_MIN: Duration = Duration::from_secs(1);
/// How long one step of clearing up may take, and the pause after one that
/// failed.
const VACATE_WITHIN: Duration = Duration::from_secs(10);
const VACATE_PAUSE: Duration = Duration::from_millis(200);

/// All sessions of a store that hold elections.
#[derive(Debug)]
pub(super) struct SessionPool {
    client: Client,
    hub: Arc<Hub>,
    sessions: Mutex<Vec<Arc<Shared>>>,
}

/// One session, and what those who share it know of it.
#[derive(Debug)]
struct Shared {
    session: Session,
    ttl: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The registers that have a slot here.
    keys: BTreeSet<Key>,
    /// When the latest keep-alive was sent that is confirmed.
    confirmed: Option<Instant>,
    /// The latest that is under way: when it was sent, and what became of it.
    in_flight: Option<InFlight>,
}

/// A keep-alive that is under way.
#[derive(Clone, Debug)]
struct InFlight {
    start: Instant,
    outcome: watch::Receiver<Option<Result<(), Error>>>,
}

/// A keep-alive that a grant may count from.
enum KeepAlive {
    /// Confirmed, and sent then.
    Confirmed(Instant),
    InFlight(InFlight),
}

/// A register's slot in a session.
#[derive(Debug)]
struct SessionSlot {
    shared: Arc<Shared>,
    key: Key,
    bindings: Mutex<Bindings>,
}

/// What may be bound.
#[derive(Debug, Default)]
struct Bindings {
    count: u64,
    /// Which of them are not known to have failed, or to be undone.
    open: BTreeSet<u64>,
    last: Option<Bytes>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SessionPool {
    pub(super) fn new(client: Client, hub: Arc<Hub>) -> Self {
        let sessions = Mutex::default();
        Self {
            client,
            hub,
            sessions,
        }
    }

    /// A slot for `key` in a session that lives so long after a keep-alive.
    fn slot(&self, key: &Key, ttl: Duration) -> Arc<SessionSlot> {
        let mut sessions = lock(&self.sessions);
        // Sessions that are over or empty go; but for one, for a campaign that
        // comes back.
        let mut spare = false;
        sessions.retain(|it| {
            let idle = lock(&it.state).keys.is_empty();
            !it.session.is_over() && (!idle || !std::mem::replace(&mut spare, true))
        });
        let fits = |it: &&Arc<Shared>| {
            let keys = &lock(&it.state).keys;
            it.ttl == ttl && keys.len() < MAX_BOUND && !keys.contains(key)
        };
        let found = sessions.iter().find(fits).map(Arc::clone);
        let shared = found.unwrap_or_else(|| {
            let shared = Arc::new(Shared {
                session: self.client.session(ttl),
                ttl,
                state: Mutex::default(),
            });
            sessions.push(Arc::clone(&shared));
            shared
        });
        lock(&shared.state).keys.insert(key.clone());
        Arc::new(SessionSlot {
            shared,
            key: key.clone(),
            bindings: Mutex::default(),
        })
    }

    /// Tells the watches of this process of a write of its own.
    fn publish(&self, key: &Key, value: Bytes, swapped: &Swapped) {
        if swapped.now.is_some() {
            let register = Register {
                value,
                version: swapped.version.clone(),
                stamp: swapped.now,
            };
            self.hub.publish(key, register);
        }
    }

    /// Sees that nothing stays bound through `slot`, then gives it up.
    fn vacate(self: &Arc<Self>, slot: Arc<SessionSlot>, from: Instant) {
        if slot.has_no_bindings() {
            return;
        }
        let pool = Arc::clone(self);
        drive::background().spawn(async move {
            tokio::time::sleep(from.since(clock::boot())).await;
            let mut settled = false;
            while !slot.shared.session.is_over() {
                match pool.vacate_once(&slot, &mut settled).await {
                    Ok(()) => return,
                    // A note came in between: it is read again.
                    Err(Error::Conflict) => {}
                    Err(error) => {
                        tracing::debug!(key = %slot.key, "vacating what no candidate claims: {error}");
                        tokio::time::sleep(VACATE_PAUSE).await;
                    }
                }
            }
        });
    }

    async fn vacate_once(&self, slot: &SessionSlot, settled: &mut bool) -> Result<(), Error> {
        let session = &slot.shared.session;
        if !*settled {
            // Behind everything that was sent before under this session.
            session.keep_alive(VACATE_WITHIN).await?;
            *settled = true;
        }
        let client = self.client.with_timeout(VACATE_WITHIN);
        let (reading, bound) = client.read_bound(&slot.key).await?;
        let last = lock(&slot.bindings).last.clone();
        let (Some(register), Some(last)) = (reading.register, last) else {
            return Ok(());
        };
        if bound.is_none() || bound != session.number() {
            return Ok(());
        }
        let write = Write {
            key: slot.key.clone(),
            expect: Expect::Version(register.version),
            value: last,
            stamp: Stamp::Now,
        };
        tracing::info!(key = %slot.key, "vacated: it was held for no candidate");
        session.swap(write, None, VACATE_WITHIN).await.map(|_| ())
    }
}

impl Shared {
    fn confirmed_from(&self, start: Instant) {
        let mut state = lock(&self.state);
        state.confirmed = state.confirmed.max(Some(start));
    }

    /// When a keep-alive was sent that is confirmed, or is being confirmed, if
    /// one was sent at `since` or later. Sends one if none was.
    fn shared_keep_alive(self: &Arc<Self>, since: Instant) -> KeepAlive {
        let mut state = lock(&self.state);
        if let Some(start) = state.confirmed.filter(|start| *start >= since) {
            return KeepAlive::Confirmed(start);
        }
        if let Some(in_flight) = state.in_flight.clone().filter(|it| it.start >= since) {
            return KeepAlive::InFlight(in_flight);
        }
        // First the clock, then the sending.
        let start = clock::boot();
        let asked = self.session.keep_alive(self.ttl);
        let (sender, outcome) = watch::channel(None);
        let in_flight = InFlight { start, outcome };
        state.in_flight = Some(in_flight.clone());
        drop(state);
        let shared = Arc::clone(self);
        drive::background().spawn(async move {
            let done = asked.await;
            if done.is_ok() {
                shared.confirmed_from(start);
            }
            // A caller that asks from now on is not to be told of an older
            // failure.
            let mut state = lock(&shared.state);
            state
                .in_flight
                .take_if(|in_flight| in_flight.start == start);
            drop(state);
            sender.send_replace(Some(done));
        });
        KeepAlive::InFlight(in_flight)
    }
}

impl SessionSlot {
    fn has_no_bindings(&self) -> bool {
        lock(&self.bindings).open.is_empty()
    }

    /// Sends a write that binds.
    fn bind(
        self: &Arc<Self>,
        write: Write,
        last: Bytes,
        within: Duration,
    ) -> impl Future<Output = Result<Swapped, Error>> + Send + use<> {
        let number = {
            let mut bindings = lock(&self.bindings);
            bindings.count += 1;
            let number = bindings.count;
            bindings.open.insert(number);
            bindings.last = Some(last.clone());
            number
        };
        let start = clock::boot();
        let asked = self.shared.session.swap(write, Some(last), within);
        let slot = Arc::clone(self);
        async move {
            let done = asked.await;
            match &done {
                Ok(_) => slot.shared.confirmed_from(start),
                // Perhaps is not no.
                Err(Error::Unknown(_)) => {}
                Err(_) => {
                    lock(&slot.bindings).open.remove(&number);
                }
            }
            done
        }
    }

    /// Sends a write that lets the register go.
    fn unbind(
        self: &Arc<Self>,
        write: Write,
        within: Duration,
    ) -> impl Future<Output = Result<Swapped, Error>> + Send + use<> {
        let before = lock(&self.bindings).count;
        let asked = self.shared.session.swap(write, None, within);
        let slot = Arc::clone(self);
        async move {
            let done = asked.await;
            if done.is_ok() {
                // Whatever was sent before it under this session is undone.
                lock(&slot.bindings).open.retain(|number| *number > before);
            }
            done
        }
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        lock(&self.shared.state).keys.remove(&self.key);
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct SessionHold {
    pool: Arc<SessionPool>,
    key: Key,
    slot: Mutex<Option<Arc<SessionSlot>>>,
}

impl SessionHold {
    pub(super) fn new(pool: Arc<SessionPool>, key: Key) -> Self {
        let slot = Mutex::default();
        Self { pool, key, slot }
    }

    /// The slot it has, in a session that is not known to be over.
    fn current_slot(&self) -> Option<Arc<SessionSlot>> {
        let mut slot = lock(&self.slot);
        // What was bound to a session that is over is not any more.
        slot.take_if(|it| it.shared.session.is_over());
        slot.clone()
    }

    fn slot(&self, ttl: Duration) -> Arc<SessionSlot> {
        let ttl = whole_millis(ttl).max(TTL_MIN);
        if let Some(slot) = self.current_slot().filter(|it| it.shared.ttl >= ttl) {
            return slot;
        }
        let slot = self.pool.slot(&self.key, ttl);
        *lock(&self.slot) = Some(Arc::clone(&slot));
        slot
    }
}

/// As many milliseconds, rounded up: a session may live longer than asked.
fn whole_millis(span: Duration) -> Duration {
    let millis = span.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

impl Hold for SessionHold {
    fn write(
        &self,
        write: Write,
        bind: Option<Bind>,
        within: Duration,
    ) -> BoxFuture<'static, Result<Written, StoreError>> {
        if let Err(error) = refuse_oversized(&write) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let (pool, key, value) = (
            Arc::clone(&self.pool),
            self.key.clone(),
            write.value.clone(),
        );
        let publish = write.stamp == Stamp::Now;
        let asked: BoxFuture<'static, Result<Swapped, Error>> = match (bind, self.current_slot()) {
            (Some(bind), _) => Box::pin(self.slot(bind.ttl).bind(write, bind.last, within)),
            (None, Some(slot)) => Box::pin(slot.unbind(write, within)),
            (None, None) => {
                let client = self.pool.client.on_next_connection(within);
                Box::pin(async move { client.compare_and_swap(write).await })
            }
        };
        Box::pin(async move {
            let swapped = asked.await?;
            if publish {
                pool.publish(&key, value, &swapped);
            }
            Ok(Written {
                version: swapped.version,
                now: swapped.now,
            })
        })
    }

    fn confirm(
        &self,
        since: Instant,
        within: Duration,
    ) -> BoxFuture<'static, Result<Instant, StoreError>> {
        // In any case: a session that is over confirms nothing.
        let Some(slot) = self.current_slot() else {
            return Box::pin(std::future::ready(Err(StoreError::Conflict)));
        };
        let shared_keep_alive = slot.shared.shared_keep_alive(since);
        Box::pin(async move {
            let InFlight { start, mut outcome } = match shared_keep_alive {
                KeepAlive::Confirmed(start) => return Ok(start),
                KeepAlive::InFlight(in_flight) => in_flight,
            };
            let ended = outcome.wait_for(Option::is_some);
            let done = match tokio::time::timeout(within, ended).await {
                Ok(Ok(done)) => done.clone(),
                Ok(Err(_)) => None,
                Err(_) => return Err(StoreError::unknown("no answer in time")),
            };
            match done {
                Some(Ok(())) => Ok(start),
                // A session that is refused is given up, and why is worth more
                // than that it is over.
                Some(Err(error)) if error.is_denied() => Err(error.into()),
                _ if slot.shared.session.is_over() => Err(StoreError::Conflict),
                Some(Err(error)) => Err(error.into()),
                None => Err(StoreError::unknown("nobody waits for the answer")),
            }
        })
    }

    fn release(&self) {
        if let Some(slot) = lock(&self.slot).take() {
            self.pool.vacate(slot, Instant::ZERO);
        }
    }
}

impl Drop for SessionHold {
    fn drop(&mut self) {
        let Some(slot) = lock(&self.slot).take() else {
            return;
        };
        // A leader that believed in it, and was not asked, does so no longer
        // than the session would have lived.
        let confirmed = lock(&slot.shared.state).confirmed;
        let from = confirmed.map_or(Instant::ZERO, |start| start.after(slot.shared.ttl));
        self.pool.vacate(slot, from);
    }
}
