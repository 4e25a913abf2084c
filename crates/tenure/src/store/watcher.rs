//! What a store and the task that watches its backend tell each other.
//!
//! The task outlives no store: it looks now and then whether its own is still
//! there. And it waits for its server most of the time, so a new watch wakes
//! it. The store has one end, a [`Watcher`]; the task has the other,
//! [`StoreSignals`]. (SQLite's is a thread, which waits for a file; it has ways
//! of its own.)

use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use crate::drive;

/// The store's end. Dropping it ends the task.
#[derive(Debug)]
pub(super) struct Watcher {
    wake_signal: Arc<Notify>,
    /// Always there, but for the last moment.
    alive: Option<Arc<()>>,
}

impl Watcher {
    /// Runs, in the background, the task that `task` makes.
    pub(super) fn start<T>(task: impl FnOnce(StoreSignals) -> T) -> Self
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let (wake_signal, alive) = (Arc::new(Notify::new()), Arc::new(()));
        let signals = StoreSignals {
            wake_signal: Arc::clone(&wake_signal),
            alive: Arc::downgrade(&alive),
        };
        drive::background().spawn(task(signals));
        Self {
            wake_signal,
            alive: Some(alive),
        }
    }

    /// What is watched has changed: fetch what is new in it.
    pub(super) fn wake(&self) {
        self.wake_signal.notify_one();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // First that, or the task could wake, see the store and sleep again.
        self.alive = None;
        self.wake_signal.notify_one();
    }
}

/// The task's end.
#[derive(Debug)]
pub(super) struct StoreSignals {
    wake_signal: Arc<Notify>,
    alive: Weak<()>,
}

impl StoreSignals {
    /// Waits until what is watched may have changed, or the store is gone. A
    /// signal that came while the task did not wait ends its next wait.
    pub(super) async fn woken(&self) {
        self.wake_signal.notified().await;
    }

    /// Whether the store is gone, and the task is to end.
    pub(super) fn is_closed(&self) -> bool {
        self.alive.strong_count() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_task_ends_with_its_store() {
        for _ in 0..1_000 {
            let (ended, end_of_task) = oneshot::channel();
            let watcher = Watcher::start(|signals| async move {
                while !signals.is_closed() {
                    signals.woken().await;
                }
                let _ = ended.send(());
            });
            watcher.wake();
            drop(watcher);
            let ended = timeout(Duration::from_secs(20), end_of_task).await;
            ended.expect("the task to end").expect("no panic");
        }
    }
}
