//! Counts what elections ask of a store, and times their writes.

#![allow(dead_code, reason = "each user takes a part of it")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure::clock;
use tenure::store::{Key, Reading, Selector, Store, Watch, Write, Written};

use super::intercepted::{Answer, Interceptor};

/// A store that counts, once it is [intercepted](super::intercepted).
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    /// When each write was sent, on the boot-time clock, and how long it took.
    timed: Mutex<Vec<(Duration, Duration)>>,
}

impl Counted {
    /// The writes that have ended since the last call: when each was sent, and how
    /// long it took.
    pub(crate) fn take_timed(&self) -> Vec<(Duration, Duration)> {
        let mut timed = self.timed.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut timed)
    }
}

impl Interceptor for Counted {
    fn read<'a>(
        &'a self,
        store: &'a dyn Store,
        key: &'a Key,
        within: Duration,
    ) -> Answer<'a, Reading> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        store.read(key, within)
    }

    fn swap<'a>(
        &'a self,
        store: &'a dyn Store,
        write: Write,
        within: Duration,
    ) -> Answer<'a, Written> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let sent = clock::boot();
            let written = store.compare_and_swap(write, within).await;
            let took = clock::boot().since(sent);
            let sent = Duration::from_nanos(sent.as_nanos());
            let mut timed = self.timed.lock().unwrap_or_else(PoisonError::into_inner);
            timed.push((sent, took));
            drop(timed);
            written
        })
    }

    fn watch(&self, store: &dyn Store, selector: Selector) -> Watch {
        store.watch(selector)
    }
}
