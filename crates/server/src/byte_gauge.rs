//! A number of bytes that many count, and who waits for it to fall.
//!
//! Counting locks nothing; only waiting, and waking a waiter, does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// A number of bytes, and who waits for it to fall.
#[derive(Debug, Default)]
pub(super) struct ByteGauge {
    held: AtomicUsize,
    waiters: AtomicUsize,
    waiting: Mutex<Waiters>,
}

/// For whom a waiter waits. Each kind has a bound of its own: where one may go on, another may
/// not. So each has turns of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaiterKind {
    /// A stream of a caller that holds little.
    Little,
    /// A stream of the log, or of a backup.
    Bulk,
    /// Any other stream.
    Other,
}

#[derive(Debug, Default)]
struct Waiters {
    next: u64,
    wakers: [BTreeMap<u64, Waker>; 3],
}

impl Waiters {
    fn len(&self) -> usize {
        self.wakers.iter().map(BTreeMap::len).sum()
    }
}

impl ByteGauge {
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::SeqCst);
    }

    pub(super) fn give(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::SeqCst);
        self.wake_one();
    }

    /// Wakes who has waited longest, of each kind. Who is woken and has no use for it wakes
    /// the next ([`FlowControl`](super::account::FlowControl)), so that none is
    /// forgotten.
    pub(super) fn wake_one(&self) {
        if self.waiters.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut waiting = self.lock();
        let first = waiting.wakers.each_mut().map(BTreeMap::pop_first);
        self.waiters.store(waiting.len(), Ordering::SeqCst);
        drop(waiting);
        for (_, waker) in first.into_iter().flatten() {
            waker.wake();
        }
    }

    /// Waits, under the number that is returned.
    pub(super) fn wait(&self, waker: &Waker, kind: WaiterKind) -> u64 {
        let mut waiting = self.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.wakers[kind as usize].insert(number, waker.clone());
        self.waiters.store(waiting.len(), Ordering::SeqCst);
        number
    }

    pub(super) fn forget(&self, number: u64) {
        let mut waiting = self.lock();
        for wakers in &mut waiting.wakers {
            wakers.remove(&number);
        }
        self.waiters.store(waiting.len(), Ordering::SeqCst);
    }
}
