//! The calls of one connection, which have their turns together.
//!
//! Over HTTP/2 a connection has up to a thousand calls under way. As tasks of
//! the runtime each of them would have a turn of its own, and the client that
//! sends the most calls would have nearly all turns: a probe, and the one call
//! of another connection, would wait behind tens of thousands. So the calls of
//! a connection run in the task of that connection, [`IN_A_ROW`] of them in one
//! turn, and each connection has the same turn, however much it asks for.
//!
//! A call that has begun and was not polled yet is counted nowhere else: it is
//! neither refused nor charged to its caller. A caller that resets each call
//! right away may begin any number of them. So a connection is not read as
//! long as [`Waiting`] says that too many of its calls wait for their first
//! turn. They get it as soon as what was written before has gone, so reading
//! goes on.
//!
//! A client that reads nothing would have answers queued in the HTTP library,
//! which bounds them by nothing: an answer without a body, as refusals are,
//! needs no window, and its call is over when it is queued. So only
//! [`UNREAD_CALLS`] begin while the connection takes nothing more. Those that
//! have begun go on: they are counted, and their bodies wait for the client.
//!
//! A call that is a stream is dropped where it does not end by itself though
//! its caller is not known any more ([`CallWatch`]): over HTTP/2 it is reset.
//! Over HTTP/1 the call is one with its connection, which ends then.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::rt::Executor;

use super::stream_rights::CallWatch;

/// How many calls of one connection are polled in one of its turns.
const IN_A_ROW: u32 = 16;

type Future = Pin<Box<dyn std::future::Future<Output = ()> + Send>>;

/// How many calls of one connection may wait for their first turn before the
/// connection is read no further. As many as it may have under way: an honest
/// client gives up hundreds at once, and what is not read cannot be seen to be
/// given up.
const WAITING_MAX: u32 = 1_024;
/// The same of all connections together. Each call takes 20 KiB or so before its
/// first turn. A connection of which no call waits is read all the same, a
/// little at a time.
const WAITING_MAX_OF_ALL: u32 = 4_096;

/// How many calls wait for their first turn: of one connection, and of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    own: Arc<AtomicU32>,
    all: Arc<AtomicU32>,
    /// Those of all that are held back until their client reads.
    held_back: Arc<AtomicU32>,
    unread: Arc<Unread>,
}

/// Whether a client reads what is written to it.
#[derive(Debug, Default)]
struct Unread {
    /// The connection takes nothing more.
    is_blocked: AtomicBool,
    /// Calls that have begun since it took [`UNREAD_BYTES`], and what it took.
    calls: AtomicU32,
    bytes: AtomicU32,
}

/// How many calls begin on a connection that takes nothing more, and again each
/// time when it has taken so many bytes: more than their refusals are.
const UNREAD_CALLS: u32 = 16;
const UNREAD_BYTES: u32 = 16 * 1024;
/// How many calls of all connections are held back. Others are reset.
const HELD_BACK_MAX: u32 = 4_096;

impl Waiting {
    /// Those of another connection of the same server.
    pub(super) fn of_another(&self) -> Self {
        Self {
            own: Arc::default(),
            all: Arc::clone(&self.all),
            held_back: Arc::clone(&self.held_back),
            unread: Arc::default(),
        }
    }

    /// The connection took so many bytes, or none and has to wait for its client.
    pub(super) fn wrote(&self, bytes: Option<usize>) {
        let unread = &self.unread;
        unread.is_blocked.store(bytes.is_none(), Ordering::Relaxed);
        let bytes = u32::try_from(bytes.unwrap_or(0)).unwrap_or(UNREAD_BYTES);
        let before = unread.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) >= UNREAD_BYTES {
            unread.bytes.store(0, Ordering::Relaxed);
            unread.calls.store(0, Ordering::Relaxed);
        }
    }

    /// How many calls may begin now.
    pub(super) fn may_begin(&self) -> usize {
        if !self.unread.is_blocked.load(Ordering::Relaxed) {
            return usize::MAX;
        }
        UNREAD_CALLS.saturating_sub(self.unread.calls.load(Ordering::Relaxed)) as usize
    }

    fn begins(&self, calls: usize) {
        let calls = u32::try_from(calls).unwrap_or(UNREAD_CALLS);
        self.unread.calls.fetch_add(calls, Ordering::Relaxed);
    }

    /// Whether the connection is to be read no further for now.
    pub(super) fn is_full(&self) -> bool {
        let own = self.own.load(Ordering::Relaxed);
        own >= WAITING_MAX || own > 0 && self.is_full_of_all()
    }

    /// Whether so many wait that each connection is read a little at a time.
    pub(super) fn is_full_of_all(&self) -> bool {
        self.all.load(Ordering::Relaxed) >= WAITING_MAX_OF_ALL
    }

    fn begin(&self) -> FirstTurn {
        self.own.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
        FirstTurn {
            waiting: self.clone(),
            is_held_back: false,
        }
    }
}

/// Counts a call until its first turn; dropped then, or with the call.
struct FirstTurn {
    waiting: Waiting,
    is_held_back: bool,
}

impl FirstTurn {
    /// The call waits for its client; whether it may.
    fn hold_back(&mut self) -> bool {
        if self.is_held_back {
            return true;
        }
        let held_back = &self.waiting.held_back;
        self.is_held_back = held_back.fetch_add(1, Ordering::Relaxed) < HELD_BACK_MAX;
        if self.is_held_back {
            // It keeps no other connection from being read.
            self.waiting.all.fetch_sub(1, Ordering::Relaxed);
        } else {
            held_back.fetch_sub(1, Ordering::Relaxed);
        }
        self.is_held_back
    }
}

impl Drop for FirstTurn {
    fn drop(&mut self) {
        let Waiting {
            own,
            all,
            held_back,
            ..
        } = &self.waiting;
        own.fetch_sub(1, Ordering::Relaxed);
        let counted = if self.is_held_back { held_back } else { all };
        counted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The calls that are under way on one connection. They end with it.
pub(super) struct Calls {
    begun: CallExecutor,
    running: FuturesUnordered<PolledCall>,
    left: Arc<AtomicU32>,
    /// Calls were held back, and so perhaps was reading.
    held_back: bool,
    /// Of the call that is one with the connection.
    watch: CallWatch,
}

/// Where the HTTP library leaves calls that begin: it finds them while it is
/// polled, and so right before they are polled for the first time.
#[derive(Clone, Default)]
pub(super) struct CallExecutor {
    calls: Arc<Mutex<Vec<(Future, FirstTurn)>>>,
    waiting: Waiting,
}

impl CallExecutor {
    fn lock(&self) -> MutexGuard<'_, Vec<(Future, FirstTurn)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Executor<F> for CallExecutor
where
    F: std::future::Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        let first = self.waiting.begin();
        self.lock().push((Box::pin(call), first));
    }
}

/// A call that is polled as long as some are left in this turn.
struct PolledCall {
    call: Future,
    left: Arc<AtomicU32>,
    first: Option<FirstTurn>,
    watch: CallWatch,
}

impl std::future::Future for PolledCall {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let left = self.left.load(Ordering::Relaxed);
        let Some(left) = left.checked_sub(1) else {
            context.waker().wake_by_ref();
            return Poll::Pending;
        };
        self.left.store(left, Ordering::Relaxed);
        self.first = None;
        let this = &mut *self;
        let polled = this.watch.end().scope(|| this.call.as_mut().poll(context));
        if polled.is_ready() {
            return polled;
        }
        this.watch.poll(context)
    }
}

impl Calls {
    /// Those of a connection that reads no further while `waiting` is full.
    pub(super) fn new(waiting: Waiting) -> Self {
        Self {
            begun: CallExecutor {
                calls: Arc::default(),
                waiting,
            },
            running: FuturesUnordered::new(),
            left: Arc::default(),
            held_back: false,
            watch: CallWatch::new(),
        }
    }

    /// What the HTTP library starts calls by.
    pub(super) fn executor(&self) -> CallExecutor {
        self.begun.clone()
    }

    /// Runs the calls beside their connection, until it ends, or has to: then
    /// there is no output.
    pub(super) async fn beside<C>(&mut self, mut connection: Pin<&mut C>) -> Option<C::Output>
    where
        C: std::future::Future,
    {
        std::future::poll_fn(|context| {
            let end = self.watch.end();
            if let Poll::Ready(output) = end.scope(|| connection.as_mut().poll(context)) {
                return Poll::Ready(Some(output));
            }
            self.poll(context);
            self.watch.poll(context).map(|()| None)
        })
        .await
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        let left = &self.left;
        let waiting = &self.begun.waiting;
        let mut begun = self.begun.lock();
        let may_begin = begun.len().min(waiting.may_begin());
        let begins: Vec<_> = begun.drain(..may_begin).collect();
        let reset = begun.extract_if(.., |(_, first)| !first.hold_back());
        let reset: Vec<_> = reset.collect();
        let held_back = std::mem::replace(&mut self.held_back, !begun.is_empty());
        drop(begun);
        // The library resets a call whose future goes.
        drop(reset);
        waiting.begins(may_begin);
        if held_back && !self.held_back {
            // Nothing else has the connection read on.
            context.waker().wake_by_ref();
        }
        self.running
            .extend(begins.into_iter().map(|(call, first)| PolledCall {
                call,
                left: Arc::clone(left),
                first: Some(first),
                watch: CallWatch::new(),
            }));
        left.store(IN_A_ROW, Ordering::Relaxed);
        // Those that are left over have woken themselves, of which the set
        // finds two, and has its next turn after that of others.
        while let Poll::Ready(Some(())) = self.running.poll_next_unpin(context) {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::task::noop_waker_ref;

    use super::*;

    /// A connection that never ends, and calls that each count their polls.
    fn begun(calls: &Calls, count: usize, turns: usize) -> Arc<AtomicUsize> {
        let polls = Arc::new(AtomicUsize::new(0));
        for _ in 0..count {
            let polls = Arc::clone(&polls);
            calls.executor().execute(async move {
                for _ in 0..turns {
                    polls.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            });
        }
        polls
    }

    #[test]
    fn a_connection_polls_so_many_calls_in_a_row_and_all_of_them_in_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(async {
            let mut calls = Calls::new(Waiting::default());
            let polls = begun(&calls, 1_000, 1);
            let mut connection = std::pin::pin!(std::future::pending::<()>());
            let mut before = 0;
            for _ in 0..200 {
                let mut turn = std::pin::pin!(calls.beside(connection.as_mut()));
                std::future::poll_fn(|context| {
                    assert!(turn.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                let now = polls.load(Ordering::Relaxed);
                assert!(now - before <= IN_A_ROW as usize, "{}", now - before);
                before = now;
                // What the runtime defers comes after this turn.
                tokio::task::yield_now().await;
            }
            assert_eq!(before, 1_000, "each had its turn");
            assert!(calls.running.is_empty(), "each has ended");
        });
    }

    #[test]
    fn calls_end_with_their_connection() {
        let mut calls = Calls::new(Waiting::default());
        let held = Arc::new(());
        let inner = Arc::clone(&held);
        calls.executor().execute(async move {
            let _inner = inner;
            std::future::pending::<()>().await;
        });
        let context = &mut Context::from_waker(noop_waker_ref());
        calls.poll(context);
        assert_eq!(Arc::strong_count(&held), 2);
        drop(calls);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
