//! Which connection makes room for a caller that holds little and finds none.
//!
//! A caller may hold as much as is free for all. That leaves room to those who hold
//! little while others give back what they hold. It does not where they never do: each
//! new caller takes half of what the ones before it have left, and after a dozen of them
//! nothing is left. A client need only ask, give HTTP/2 no room for the answers, and stay.
//!
//! So where a caller is refused because others hold so much, a connection is closed: of those
//! over which next to nothing was finished for a while ([`STALLED_AFTER`]) one of the caller
//! that holds most, and of that caller the one that holds most. Only a caller that holds more
//! than twice as much makes room. One connection goes at a time ([`LOOK_AGAIN`]), for what
//! it held is free a moment later.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::sync::Notify;

use super::usage::{Resource, Usage};

/// For how long next to nothing was finished over a connection that makes room.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// How soon another one makes room.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Less than one of so many parts of what a connection holds is next to nothing.
const PARTS: usize = 8;

/// A connection, as far as it may have to make room.
#[derive(Debug)]
pub(super) struct HeldConnection {
    pub(super) usage: Arc<Usage>,
    /// That of the caller who called last.
    caller: Mutex<Arc<Usage>>,
    evicted: Notify,
    /// How much had been finished, at which time.
    seen: Mutex<Option<(usize, Instant)>>,
}

impl HeldConnection {
    /// This caller has called.
    pub(super) fn called_by(&self, caller: &Arc<Usage>) {
        *lock(&self.caller) = Arc::clone(caller);
    }

    /// Waits until it has to make room.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    fn held_by_caller(&self, resource: Resource) -> usize {
        lock(&self.caller).held(resource)
    }

    /// Whether it finishes next to nothing of so much that it holds, since it was
    /// looked at before.
    fn is_stalled(&self, held: usize, now: Instant) -> bool {
        let released = self.usage.released.load(Ordering::Relaxed);
        let mut seen = lock(&self.seen);
        let (before, at) = *seen.get_or_insert((released, now));
        if now.since(at) < STALLED_AFTER {
            return false;
        }
        let is_stalled = released.wrapping_sub(before) <= held / PARTS;
        if !is_stalled {
            *seen = Some((released, now));
        }
        is_stalled
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections of a server's clients.
#[derive(Debug, Default)]
pub(super) struct HeldConnections {
    known: Vec<Weak<HeldConnection>>,
    /// How many there may be before those that have gone are looked for.
    sweep_at: usize,
    /// When one was looked for last.
    looked_at: Option<Instant>,
}

impl HeldConnections {
    /// One more, from which this caller may call.
    pub(super) fn begin(&mut self, caller: Arc<Usage>) -> Arc<HeldConnection> {
        let connection = Arc::new(HeldConnection {
            usage: Arc::default(),
            caller: Mutex::new(caller),
            evicted: Notify::new(),
            seen: Mutex::default(),
        });
        if self.known.len() >= self.sweep_at {
            self.known.retain(|it| it.strong_count() > 0);
            self.sweep_at = 2 * self.known.len() + 64;
        }
        self.known.push(Arc::downgrade(&connection));
        connection
    }

    /// Closes a connection that makes room for a caller that holds `own`.
    pub(super) fn make_room(&mut self, own: usize, resource: Resource, now: Instant) {
        let is_soon = |at| now.since(at) < LOOK_AGAIN;
        if self.looked_at.is_some_and(is_soon) {
            return;
        }
        self.looked_at = Some(now);
        let known = self.known.iter().filter_map(Weak::upgrade);
        // Each is looked at, so that it is known later how much was finished meanwhile.
        let stalled = known.filter_map(|it| {
            let (held, of_caller) = (it.usage.held(resource), it.held_by_caller(resource));
            let goes = held > 0 && of_caller / 2 > own && it.is_stalled(held, now);
            goes.then_some((Reverse((of_caller, held)), it))
        });
        let Some((_, first)) = stalled.min_by_key(|(order, _)| *order) else {
            return;
        };
        self.known.retain(|it| it.as_ptr() != Arc::as_ptr(&first));
        first.evicted.notify_one();
    }
}
