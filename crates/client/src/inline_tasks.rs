//! What the HTTP library spawns for a connection, run by the task that uses it.
//!
//! The library has a future for the connection itself, one for each request's
//! body, and one that queues requests. As tasks of the runtime each of them
//! would be woken by the one before it: a request would pass two and its answer
//! two before anybody had it. Here one task polls them all.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::rt::Executor;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The futures of one connection. They end with it.
#[derive(Default)]
pub(super) struct InlineTasks {
    executor: InlineExecutor,
    running: FuturesUnordered<Task>,
}

/// Where the library leaves its futures.
#[derive(Clone, Default)]
pub(super) struct InlineExecutor(Arc<Mutex<Spawned>>);

#[derive(Default)]
struct Spawned {
    tasks: Vec<Task>,
    /// The task that polls them. A connection may be made by another one.
    waker: Option<Waker>,
    /// Nobody polls them any more.
    ended: bool,
}

impl InlineExecutor {
    fn lock(&self) -> MutexGuard<'_, Spawned> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Executor<Task> for InlineExecutor {
    fn execute(&self, task: Task) {
        let mut spawned = self.lock();
        if spawned.ended {
            return;
        }
        spawned.tasks.push(task);
        let waker = spawned.waker.take();
        drop(spawned);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl InlineTasks {
    /// What the library is given to spawn by.
    pub(super) fn executor(&self) -> InlineExecutor {
        self.executor.clone()
    }

    /// Does `work`, and what is spawned meanwhile.
    pub(super) async fn beside<W: Future>(&mut self, work: W) -> W::Output {
        let mut work = pin!(work);
        poll_fn(|context| {
            // First what may bring an answer, then what takes it.
            self.poll(context);
            work.as_mut().poll(context)
        })
        .await
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        loop {
            let mut spawned = self.executor.lock();
            let tasks = std::mem::take(&mut spawned.tasks);
            if tasks.is_empty() {
                spawned.waker = Some(context.waker().clone());
            }
            drop(spawned);
            let none = tasks.is_empty();
            self.running.extend(tasks);
            while let Poll::Ready(Some(())) = self.running.poll_next_unpin(context) {}
            if none {
                return;
            }
        }
    }
}

impl Drop for InlineTasks {
    fn drop(&mut self) {
        let mut spawned = self.executor.lock();
        spawned.ended = true;
        // They hold the executor, and it would hold them.
        let tasks = std::mem::take(&mut spawned.tasks);
        drop(spawned);
        drop(tasks);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_is_spawned_runs_beside_the_work_and_ends_with_it() {
        let mut tasks = InlineTasks::default();
        let executor = tasks.executor();
        let (ping, pinged) = oneshot::channel();
        let (pong, ponged) = oneshot::channel();
        let inner = executor.clone();
        let work = async {
            executor.execute(Box::pin(async move {
                // One that spawns another.
                inner.execute(Box::pin(async move {
                    let _ = pong.send(pinged.await);
                }));
            }));
            ping.send(7).expect("somebody waits");
            ponged.await
        };
        assert_eq!(tasks.beside(work).await, Ok(Ok(7)));
        let dropped = Arc::new(AtomicBool::new(false));
        let held = DropFlag(Arc::clone(&dropped));
        let keeps = executor.clone();
        executor.execute(Box::pin(async move {
            let _held = (held, keeps);
            std::future::pending::<()>().await;
        }));
        drop(tasks);
        assert!(dropped.load(Ordering::SeqCst), "it ends with them");
        let late = DropFlag(Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&late.0);
        executor.execute(Box::pin(async move { drop(late) }));
        assert!(seen.load(Ordering::SeqCst), "nobody would run it");
    }

    #[tokio::test]
    async fn what_another_task_spawns_is_run() {
        let mut tasks = InlineTasks::default();
        let executor = tasks.executor();
        let (done, told) = oneshot::channel();
        let spawning = tokio::spawn(async move {
            tokio::task::yield_now().await;
            executor.execute(Box::pin(async move {
                let _ = done.send(());
            }));
        });
        assert_eq!(tasks.beside(told).await, Ok(()));
        spawning.await.expect("it spawned");
    }

    struct DropFlag(Arc<AtomicBool>);

    impl Drop for DropFlag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}
