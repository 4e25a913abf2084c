//! How many connections there may be, and who goes when there are too many.
//!
//! Anybody who reaches a port can open connections and say nothing. If such
//! connections counted like any other, some thousands of them would keep
//! everybody out. So a connection is a *newcomer* until it has said something
//! that makes sense: a greeting, a request. Of newcomers there may be only so
//! many, and one more takes the place of the oldest; of those that have proven
//! themselves there may be so many too, and then no more are let in.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Counts the connections of one port.
#[derive(Debug)]
pub(super) struct Gate {
    inner: Mutex<Inner>,
    newcomers_max: usize,
    proven_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    /// Oldest first, and how each is told that its place was taken.
    newcomers: BTreeMap<u64, Arc<Notify>>,
    proven: usize,
}

/// One connection, for as long as it is held.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    number: u64,
    proven: AtomicBool,
    gone: Arc<Notify>,
}

impl Gate {
    pub(super) fn new(newcomers_max: usize, proven_max: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            newcomers_max,
            proven_max,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a newcomer in, in place of the oldest if there are too many.
    pub(super) fn enter(self: &Arc<Self>) -> Pass {
        let gone = Arc::new(Notify::new());
        let mut inner = self.lock();
        if inner.newcomers.len() >= self.newcomers_max
            && let Some((_, oldest)) = inner.newcomers.pop_first()
        {
            oldest.notify_one();
        }
        let number = inner.next;
        inner.next += 1;
        inner.newcomers.insert(number, Arc::clone(&gone));
        drop(inner);
        Pass {
            gate: Arc::clone(self),
            number,
            proven: AtomicBool::new(false),
            gone,
        }
    }
}

impl Pass {
    /// It has said something that makes sense. Whether it may stay: its place
    /// was not taken meanwhile, and not too many have come before.
    pub(super) fn prove(&self) -> bool {
        if self.is_proven() {
            return true;
        }
        let mut inner = self.gate.lock();
        let room = inner.proven < self.gate.proven_max;
        let stays = room && inner.newcomers.remove(&self.number).is_some();
        if stays {
            inner.proven += 1;
            self.proven.store(true, Ordering::Relaxed);
        } else {
            self.gone.notify_one();
        }
        stays
    }

    /// Whether it has proven itself.
    pub(super) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// Waits until the place of this newcomer is taken by another, or there
    /// was none for it when it proved itself.
    pub(super) async fn ousted(&self) {
        self.gone.notified().await;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inner = self.gate.lock();
        if self.is_proven() {
            inner.proven -= 1;
        } else {
            inner.newcomers.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_gone(pass: &Pass) -> bool {
        let soon = std::time::Duration::ZERO;
        tokio::time::timeout(soon, pass.ousted()).await.is_ok()
    }

    #[tokio::test]
    async fn the_oldest_newcomer_goes_and_the_proven_stay() {
        let gate = Gate::new(2, 2);
        let first = gate.enter();
        assert!(first.prove() && first.prove());
        let [old, newer, newest] = [gate.enter(), gate.enter(), gate.enter()];
        assert!(is_gone(&old).await && !old.prove());
        assert!(!is_gone(&newer).await && !is_gone(&first).await);
        assert!(newest.prove(), "there is room for two");
        assert!(!newer.prove() && is_gone(&newer).await, "and no more");
        drop(first);
        assert!(gate.enter().prove());
        drop((old, newer, newest));
        let inner = gate.lock();
        assert_eq!((inner.proven, inner.newcomers.len()), (0, 0));
    }
}
