//! The calls of one connection, which have their turns together.
//!
//! Over HTTP/2 a connection has up to a thousand calls under way. As tasks of
//! the runtime each of them would have a turn of its own, and the client that
//! sends the most calls would have nearly all turns: a probe, and the one call
//! of another connection, would wait behind tens of thousands. So the calls of
//! a connection run in the task of that connection, [`IN_A_ROW`] of them in one
//! turn, and each connection has the same turn, however much it asks for. The
//! connections of one caller share its turns ([`CallerTurns`](super::caller_turns)).
//!
//! A call that has begun and was not polled yet is counted nowhere else: it is
//! neither refused nor charged to its caller. A caller that resets each call
//! right away may begin any number of them. So a connection is not read as
//! long as [`Waiting`] says that too many of its calls wait for their first
//! turn. They get it in any case, so reading goes on.
//!
//! A call that is a stream is dropped where it does not end by itself though
//! its caller is not known any more ([`CallWatch`]): over HTTP/2 it is reset.
//! Over HTTP/1 the call is one with its connection, which ends then.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::rt::Executor;

use tenure_api::v1;

use super::caller_turns::Turn;
use super::connection_limit::ConnectionPermit;
use super::stream_rights::CallWatch;
use super::unsent_answers::UnsentAnswers;

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
}

impl Waiting {
    /// Those of another connection of the same server.
    pub(super) fn of_another(&self) -> Self {
        Self {
            own: Arc::default(),
            all: Arc::clone(&self.all),
        }
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
        FirstTurn(self.clone())
    }
}

/// Counts a call until its first turn; dropped then, or with the call.
struct FirstTurn(Waiting);

impl Drop for FirstTurn {
    fn drop(&mut self) {
        self.0.own.fetch_sub(1, Ordering::Relaxed);
        self.0.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The calls that are under way on one connection. They end with it.
pub(super) struct Calls {
    begun: CallExecutor,
    running: FuturesUnordered<PolledCall>,
    left: Arc<AtomicU32>,
    /// Of the call that is one with the connection.
    watch: CallWatch,
    unsent: UnsentAnswers,
    permit: Arc<ConnectionPermit>,
    turn: Turn,
}

/// Why a connection has to end.
pub(super) enum Cut {
    /// The caller of the call that is one with it is not known any more.
    Unknown,
    /// Its answers are not read, and there is no room for more.
    Unread(v1::Error),
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
    pub(super) fn new(
        waiting: Waiting,
        unsent: UnsentAnswers,
        permit: Arc<ConnectionPermit>,
    ) -> Self {
        Self {
            begun: CallExecutor {
                calls: Arc::default(),
                waiting,
            },
            running: FuturesUnordered::new(),
            left: Arc::default(),
            watch: CallWatch::new(),
            unsent,
            permit,
            turn: Turn::default(),
        }
    }

    /// What the HTTP library starts calls by.
    pub(super) fn executor(&self) -> CallExecutor {
        self.begun.clone()
    }

    /// Runs the calls beside their connection, until it ends.
    ///
    /// # Errors
    /// It has to end.
    pub(super) async fn beside<C>(&mut self, mut connection: Pin<&mut C>) -> Result<C::Output, Cut>
    where
        C: std::future::Future,
    {
        std::future::poll_fn(|context| {
            let permit = &self.permit;
            ready!(self.turn.poll(|| permit.turns(), context));
            let polled = self.poll_both(connection.as_mut(), context);
            self.turn.end();
            polled
        })
        .await
    }

    /// The turn of the connection and its calls.
    fn poll_both<C>(
        &mut self,
        connection: Pin<&mut C>,
        context: &mut Context<'_>,
    ) -> Poll<Result<C::Output, Cut>>
    where
        C: std::future::Future,
    {
        let end = self.watch.end();
        self.unsent.begin();
        if let Poll::Ready(output) = end.scope(|| connection.poll(context)) {
            return Poll::Ready(Ok(output));
        }
        self.unsent.written();
        self.poll(context);
        if let Err(unread) = self.unsent.fits() {
            return Poll::Ready(Err(Cut::Unread(unread)));
        }
        self.watch.poll(context).map(|()| Err(Cut::Unknown))
    }

    /// Whether it takes long to drop them and their connection.
    pub(super) fn are_many(&self) -> bool {
        let begun = self.begun.lock().len();
        begun + self.running.len() + self.unsent.held() > IN_A_ROW as usize
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        let left = &self.left;
        let begun = std::mem::take(&mut *self.begun.lock());
        self.running
            .extend(begun.into_iter().map(|(call, first)| PolledCall {
                call,
                left: Arc::clone(left),
                first: Some(first),
                watch: CallWatch::new(),
            }));
        left.store(IN_A_ROW, Ordering::Relaxed);
        // Those that are left over have woken themselves, of which the set
        // finds two, and has its next turn after that of others.
        while let Poll::Ready(Some(())) = self.running.poll_next_unpin(context) {
            self.unsent.end();
        }
    }
}

impl Drop for Calls {
    /// Calls that began when the connection ended have not moved from its executor.
    /// Each holds that executor (hyper begins upgrades by it), and so itself.
    fn drop(&mut self) {
        let begun = std::mem::take(&mut *self.begun.lock());
        drop(begun);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::task::noop_waker_ref;
    use prometheus_client::metrics::family::Family;

    use super::super::account::{Account, CallerId};
    use super::super::connection_limit::{ConnectionCapacity, ConnectionLimit};
    use super::*;

    fn calls() -> (Calls, Arc<ConnectionLimit>) {
        let account = Account::new(Family::default(), false);
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let connection = account.connection(address);
        let limit = ConnectionLimit::new(ConnectionCapacity::of_clients(1, 1));
        let permit = Arc::new(limit.enter(CallerId::address(address), false));
        let unsent = UnsentAnswers::new(connection);
        (Calls::new(Waiting::default(), unsent, permit), limit)
    }

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
            let (mut calls, limit) = calls();
            for scheduler in limit.turn_schedulers() {
                tokio::spawn(async move { scheduler.give_turns().await });
            }
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

    /// Also those that began in the turn in which it ended.
    #[test]
    fn calls_end_with_their_connection() {
        for are_polled in [true, false] {
            let (mut calls, _limit) = calls();
            let held = Arc::new(());
            // As a call of hyper does, it holds what it was begun by.
            let inner = (Arc::clone(&held), calls.executor());
            calls.executor().execute(async move {
                let _inner = inner;
                std::future::pending::<()>().await;
            });
            if are_polled {
                calls.poll(&mut Context::from_waker(noop_waker_ref()));
            }
            assert_eq!(Arc::strong_count(&held), 2);
            drop(calls);
            assert_eq!(Arc::strong_count(&held), 1);
        }
    }
}
