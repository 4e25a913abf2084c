//! Tasks that have their turn with the event loop.
//!
//! A runtime polls its tasks in the order in which they were woken. Clients
//! have tens of thousands of them, so what another server says would wait
//! behind all that clients ask, and a leader would hear of no majority for
//! longer than an election takes. So the connections between servers are no
//! tasks of the runtime. They are polled with the future that the runtime
//! drives ([`Tasks::beside`]), which has its turn after some tasks of clients,
//! however many of these wait.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::future::{AbortHandle, FutureExt as _, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt as _};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A set of tasks. Clones are the same set.
#[derive(Clone, Default, Debug)]
pub struct Tasks(Arc<Inner>);

#[derive(Default, Debug)]
struct Inner {
    set: Mutex<FuturesUnordered<Task>>,
    running: Mutex<Running>,
}

/// Tasks that were not polled yet: a task of the set may spawn others while
/// the set is polled.
#[derive(Default)]
struct Running {
    tasks: Vec<Task>,
    waker: Option<Waker>,
    over: bool,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tasks {
    /// Adds a task. It is dropped when it is over, when the handle says so, or
    /// with all others by [`clear`](Self::clear). If it panics it is over, as
    /// a task of the runtime would be.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let (task, handle) = abortable(task);
        let task = AssertUnwindSafe(task).catch_unwind().map(drop).boxed();
        let mut running = lock(&self.0.running);
        if running.over {
            drop(running);
            drop(task);
            return handle;
        }
        running.tasks.push(task);
        let waker = running.waker.take();
        drop(running);
        if let Some(waker) = waker {
            waker.wake();
        }
        handle
    }

    /// Drops all tasks, and all that are added from now on.
    pub fn clear(&self) {
        let mut running = lock(&self.0.running);
        running.over = true;
        let tasks = std::mem::take(&mut running.tasks);
        drop(running);
        drop(tasks);
        let set = std::mem::take(&mut *lock(&self.0.set));
        drop(set);
    }

    /// Polls the tasks beside `future`, to its end. Tasks come first, so that
    /// `future` learns at once what they have brought; and last, so that what
    /// it gave them leaves at once. `future` is polled even where the tasks
    /// have used up what the runtime lets one poll do.
    pub async fn beside<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(tokio::task::unconstrained(future));
        std::future::poll_fn(|context| {
            self.poll(context);
            let polled = future.as_mut().poll(context);
            if polled.is_pending() {
                self.poll(context);
            }
            polled
        })
        .await
    }

    fn poll(&self, context: &mut Context<'_>) {
        let mut set = lock(&self.0.set);
        let mut running = lock(&self.0.running);
        set.extend(running.tasks.drain(..));
        match &running.waker {
            Some(waker) if waker.will_wake(context.waker()) => {}
            _ => running.waker = Some(context.waker().clone()),
        }
        drop(running);
        while let Poll::Ready(Some(())) = set.poll_next_unpin(context) {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    const TASKS_IN_A_ROW: u32 = 16;

    fn runtime() -> Runtime {
        let mut builder = Builder::new_current_thread();
        builder.event_interval(TASKS_IN_A_ROW).enable_all();
        builder.build().expect("a runtime")
    }

    #[test]
    fn a_task_has_its_turn_however_many_tasks_the_runtime_has() {
        let polls = Arc::new(AtomicU64::new(0));
        let tasks = Tasks::default();
        let (tell, longest) = oneshot::channel();
        runtime().block_on(tasks.beside(async {
            for _ in 0..10_000 {
                let polls = Arc::clone(&polls);
                tokio::spawn(async move {
                    loop {
                        polls.fetch_add(1, Ordering::Relaxed);
                        yield_now().await;
                    }
                });
            }
            let polls = Arc::clone(&polls);
            tasks.spawn(async move {
                let mut longest = 0;
                let mut before = polls.load(Ordering::Relaxed);
                for _ in 0..1_000 {
                    yield_now().await;
                    let now = polls.load(Ordering::Relaxed);
                    longest = longest.max(now - before);
                    before = now;
                }
                tell.send(longest).expect("it is waited for");
            });
            let longest = longest.await.expect("it ends");
            assert!(longest > 0, "others have their turns, too");
            assert!(longest <= 2 * u64::from(TASKS_IN_A_ROW), "{longest}");
        }));
    }

    #[test]
    fn a_task_that_panics_ends_and_nothing_else_does() {
        let tasks = Tasks::default();
        let (tell, told) = oneshot::channel();
        runtime().block_on(tasks.beside(async {
            tasks.spawn(async { panic!("this is expected to be printed") });
            let spawner = tasks.clone();
            tasks.spawn(async move {
                spawner.spawn(async move { tell.send(()).expect("it is waited for") });
            });
            told.await.expect("a task that a task spawned has run");
        }));
    }

    #[test]
    fn tasks_are_dropped_when_they_are_aborted_and_when_all_are() {
        struct Told(Option<oneshot::Sender<()>>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.take().expect("once").send(());
            }
        }
        let held = || {
            let (tell, told) = oneshot::channel();
            let held = Told(Some(tell));
            let task = async move {
                let _held = held;
                std::future::pending::<()>().await;
            };
            (task, told)
        };
        let tasks = Tasks::default();
        let [(first, ended), (second, mut cleared), (third, mut late)] = [held(), held(), held()];
        runtime().block_on(tasks.beside(async {
            let handle = tasks.spawn(first);
            tasks.spawn(second);
            yield_now().await;
            handle.abort();
            ended.await.expect("it is dropped");
            cleared.try_recv().expect_err("the other is not");
        }));
        tasks.clear();
        cleared.try_recv().expect("it is dropped");
        tasks.spawn(third);
        late.try_recv().expect("it is dropped at once");
    }
}
