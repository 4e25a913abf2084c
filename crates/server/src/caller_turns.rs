//! The turns that the connections of one caller have.
//!
//! A runtime gives each task its turn, and each connection is one. Between two looks
//! at the network, and two turns of the event loop, it runs so many tasks, however
//! long they take. A caller with hundreds of busy connections would fill all of
//! these: what others send is seen after ten milliseconds, and a read takes some ten
//! of such rounds. A leader with a timeout of 250 ms was deposed so.
//!
//! So the connections of one caller ([`CallerId`](super::account::CallerId)) have a
//! budget of time. When it is used up they wait here, in the order in which they
//! asked, until the runtime has looked at the network ([`Pauses`]); then the budget
//! is whole again. Others do not wait for them.
//!
//! The budget is one of work and not of a round: a caller that does little pauses
//! for one look when it has added up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::sync::Notify;
use tokio::task::yield_now;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The callers with connections that wait for a look at the network.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    callers: Mutex<Vec<Arc<CallerTurns>>>,
    due: Notify,
}

impl Pauses {
    /// Gives turns after each look, until it is dropped.
    pub(super) async fn give_turns(&self) {
        loop {
            self.due.notified().await;
            // Comes back when the runtime has looked.
            yield_now().await;
            let callers = std::mem::take(&mut *lock(&self.callers));
            for caller in callers {
                if caller.begin_round() {
                    self.add(caller);
                }
            }
        }
    }

    fn add(&self, caller: Arc<CallerTurns>) {
        lock(&self.callers).push(caller);
        self.due.notify_one();
    }
}

/// The turns of one caller.
#[derive(Debug)]
pub(super) struct CallerTurns {
    inner: Mutex<Inner>,
    budget: Duration,
    pauses: Arc<Pauses>,
}

#[derive(Debug, Default)]
struct Inner {
    /// How much of the budget is used.
    used: Duration,
    /// The connections that wait.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
    /// Whether it is one of those that wait for a look.
    pauses: bool,
}

impl CallerTurns {
    pub(super) fn new(budget: Duration, pauses: Arc<Pauses>) -> Self {
        Self {
            inner: Mutex::default(),
            budget,
            pauses,
        }
    }

    /// The runtime has looked: the first that waits has its turn. Whether others
    /// wait for the next look.
    fn begin_round(&self) -> bool {
        let mut inner = lock(&self.inner);
        inner.used = Duration::ZERO;
        let first = inner.waiting.pop_first();
        inner.pauses = !inner.waiting.is_empty();
        let pauses = inner.pauses;
        drop(inner);
        if let Some((_, first)) = first {
            first.wake();
        }
        pauses
    }

    /// A turn is over, which took so long; the next has its own, if the budget is
    /// not used up.
    fn pass_on(&self, taken: Duration) {
        let mut inner = lock(&self.inner);
        inner.used += taken;
        if inner.used >= self.budget {
            return;
        }
        let next = inner.waiting.pop_first();
        drop(inner);
        if let Some((_, next)) = next {
            next.wake();
        }
    }

    /// Whether there is a turn at once; if not, which place the connection has.
    fn ask(self: &Arc<Self>, waker: &Waker) -> Result<(), u64> {
        let mut inner = lock(&self.inner);
        if inner.waiting.is_empty() && inner.used < self.budget {
            return Ok(());
        }
        let place = inner.next;
        inner.next += 1;
        inner.waiting.insert(place, waker.clone());
        let begins = !std::mem::replace(&mut inner.pauses, true);
        drop(inner);
        if begins {
            self.pauses.add(Arc::clone(self));
        }
        Err(place)
    }
}

/// What one connection has of its caller's turns.
#[derive(Debug, Default)]
pub(super) struct Turn(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    /// It has asked, and has its turn when it does not wait any more.
    Asked(Arc<CallerTurns>, u64),
    /// It has its turn, since then.
    Given(Arc<CallerTurns>, Instant),
}

impl Turn {
    /// Asks for a turn among those of `turns`, which may be another caller's than
    /// the last time: a connection proves who it is on its way.
    pub(super) fn poll(
        &mut self,
        turns: impl FnOnce() -> Arc<CallerTurns>,
        context: &Context<'_>,
    ) -> Poll<()> {
        let given = match &self.0 {
            State::Given(..) => return Poll::Ready(()),
            State::Asked(turns, place) => {
                if let Some(waker) = lock(&turns.inner).waiting.get_mut(place) {
                    waker.clone_from(context.waker());
                    return Poll::Pending;
                }
                Arc::clone(turns)
            }
            State::None => {
                let turns = turns();
                if let Err(place) = turns.ask(context.waker()) {
                    self.0 = State::Asked(turns, place);
                    return Poll::Pending;
                }
                turns
            }
        };
        self.0 = State::Given(given, clock::boot());
        Poll::Ready(())
    }

    /// The turn is over.
    pub(super) fn end(&mut self) {
        match std::mem::take(&mut self.0) {
            State::None => {}
            State::Asked(turns, place) => {
                // If it does not wait any more, it was given its turn.
                let waited = lock(&turns.inner).waiting.remove(&place).is_some();
                if !waited {
                    turns.pass_on(Duration::ZERO);
                }
            }
            State::Given(turns, since) => turns.pass_on(clock::boot().since(since)),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::ready;

    use futures_util::task::noop_waker_ref;

    use super::*;

    const TURN: Duration = Duration::from_micros(250);

    fn asks(turn: &mut Turn, turns: &Arc<CallerTurns>) -> bool {
        let context = Context::from_waker(noop_waker_ref());
        turn.poll(|| Arc::clone(turns), &context).is_ready()
    }

    #[test]
    fn a_caller_that_has_used_its_budget_waits_for_a_look_in_order() {
        // It is always used up: each look gives one turn.
        let turns = Arc::new(CallerTurns::new(Duration::ZERO, Arc::default()));
        let mut all: Vec<Turn> = (0..4).map(|_| Turn::default()).collect();
        let have = |all: &mut Vec<Turn>| -> Vec<bool> {
            all.iter_mut().map(|it| asks(it, &turns)).collect()
        };
        for next in (0..4).cycle().take(8) {
            // The one that has had its turn asks again, behind all others.
            assert_eq!(have(&mut all), [false; 4]);
            assert!(turns.begin_round());
            let now = have(&mut all);
            let first = now.iter().position(|it| *it);
            assert_eq!(
                (first, now.iter().filter(|it| **it).count()),
                (Some(next), 1)
            );
            all[next].end();
        }
    }

    #[test]
    fn a_connection_that_ends_takes_no_turn_along() {
        let pauses = Arc::<Pauses>::default();
        let turns = Arc::new(CallerTurns::new(TURN, Arc::clone(&pauses)));
        lock(&turns.inner).used = TURN;
        let [mut told, mut gone, mut waits] = <[Turn; 3]>::default();
        for turn in [&mut told, &mut gone, &mut waits] {
            assert!(!asks(turn, &turns));
        }
        assert_eq!(lock(&pauses.callers).len(), 1, "it waits once");
        drop(gone);
        assert!(turns.begin_round());
        // Given to one that ends before it takes it.
        drop(told);
        assert!(asks(&mut waits, &turns));
        drop(waits);
        assert!(lock(&turns.inner).waiting.is_empty());
        assert!(!turns.begin_round());
    }

    /// Two connections of a caller always have something to do.
    #[tokio::test]
    async fn turns_pause_until_the_runtime_has_looked_at_the_network() {
        let pauses = Arc::<Pauses>::default();
        let turns = Arc::new(CallerTurns::new(TURN * 4, Arc::clone(&pauses)));
        let giver = tokio::spawn(async move { pauses.give_turns().await });
        let count = Arc::new(AtomicU32::new(0));
        let busy = [(); 2].map(|()| {
            let (turns, count) = (Arc::clone(&turns), Arc::clone(&count));
            let mut turn = Turn::default();
            tokio::spawn(poll_fn(move |context| {
                ready!(turn.poll(|| Arc::clone(&turns), context));
                let since = clock::boot();
                while clock::boot().since(since) < TURN {
                    std::hint::spin_loop();
                }
                count.fetch_add(1, Ordering::Relaxed);
                turn.end();
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            }))
        });
        let (mut most, mut before) = (0, 0);
        for _ in 0..50 {
            // Comes back when the runtime has looked.
            yield_now().await;
            let now = count.load(Ordering::Relaxed);
            most = most.max(now - before);
            before = now;
        }
        busy.iter().for_each(tokio::task::JoinHandle::abort);
        giver.abort();
        // Without pauses as many as tasks run in a row, which are 61 here.
        assert!((2..=8).contains(&most), "{most}");
        assert!(before >= 50, "{before}");
    }
}
