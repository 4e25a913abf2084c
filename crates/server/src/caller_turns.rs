//! The turns that the connections of one caller have.
//!
//! A runtime gives each task its turn, and each connection is one. A caller with a
//! thousand busy connections would have a thousand turns for one of anybody else's,
//! and of the event loop's: half a second in which a leader gives no heartbeat. So
//! of one caller ([`CallerId`](super::account::CallerId)) only so many connections
//! are about to have a turn at the same time. Others wait here, in the order in
//! which they asked, and cost a look when they are woken.
//!
//! A connection that may have a turn has been woken, so it takes it; what it holds
//! goes to the next one at the end of that turn, or with the connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The turns of one caller.
#[derive(Debug)]
pub(super) struct CallerTurns {
    inner: Mutex<Inner>,
    /// How many connections are about to have a turn at the same time.
    at_once: usize,
}

#[derive(Debug, Default)]
struct Inner {
    /// How many connections may have a turn now.
    given: usize,
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

impl CallerTurns {
    pub(super) fn new(at_once: usize) -> Self {
        Self {
            inner: Mutex::default(),
            at_once,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn is over; the next connection has one.
    fn pass_on(&self) {
        let mut inner = self.lock();
        match inner.waiting.pop_first() {
            Some((_, next)) => {
                drop(inner);
                next.wake();
            }
            None => inner.given -= 1,
        }
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
    /// It has its turn.
    Given(Arc<CallerTurns>),
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
            State::Given(_) => return Poll::Ready(()),
            State::Asked(turns, number) => {
                if let Some(waker) = turns.lock().waiting.get_mut(number) {
                    waker.clone_from(context.waker());
                    return Poll::Pending;
                }
                Arc::clone(turns)
            }
            State::None => {
                let turns = turns();
                let mut inner = turns.lock();
                if inner.given >= turns.at_once {
                    let number = inner.next;
                    inner.next += 1;
                    inner.waiting.insert(number, context.waker().clone());
                    drop(inner);
                    self.0 = State::Asked(turns, number);
                    return Poll::Pending;
                }
                inner.given += 1;
                drop(inner);
                turns
            }
        };
        self.0 = State::Given(given);
        Poll::Ready(())
    }

    /// The turn is over.
    pub(super) fn end(&mut self) {
        match std::mem::take(&mut self.0) {
            State::None => {}
            State::Asked(turns, number) => {
                // If it does not wait any more, it was given its turn.
                let waited = turns.lock().waiting.remove(&number).is_some();
                if !waited {
                    turns.pass_on();
                }
            }
            State::Given(turns) => turns.pass_on(),
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
    use futures_util::task::noop_waker_ref;

    use super::*;

    fn asks(turn: &mut Turn, turns: &Arc<CallerTurns>) -> bool {
        let context = Context::from_waker(noop_waker_ref());
        turn.poll(|| Arc::clone(turns), &context).is_ready()
    }

    #[test]
    fn connections_of_a_caller_have_turns_in_the_order_in_which_they_asked() {
        let turns = Arc::new(CallerTurns::new(2));
        let mut all: Vec<Turn> = (0..5).map(|_| Turn::default()).collect();
        let have: Vec<bool> = all.iter_mut().map(|it| asks(it, &turns)).collect();
        assert_eq!(have, [true, true, false, false, false]);
        all[0].end();
        // One that asks again comes after all others.
        assert!(!asks(&mut all[0], &turns));
        assert!(!asks(&mut all[3], &turns));
        assert!(asks(&mut all[2], &turns));
        all[1].end();
        all[2].end();
        let have: Vec<bool> = all[3..].iter_mut().map(|it| asks(it, &turns)).collect();
        assert_eq!(have, [true, true]);
        assert!(!asks(&mut all[0], &turns));
        // A caller of its own does not wait.
        assert!(asks(&mut all[1], &Arc::new(CallerTurns::new(1))));
    }

    #[test]
    fn a_connection_that_ends_takes_no_turn_along() {
        let turns = Arc::new(CallerTurns::new(1));
        let [mut has, mut told, mut waits] = <[Turn; 3]>::default();
        assert!(asks(&mut has, &turns));
        assert!(!asks(&mut told, &turns) && !asks(&mut waits, &turns));
        drop(has);
        // Given to one that ends before it takes it.
        drop(told);
        assert!(asks(&mut waits, &turns));
        drop(waits);
        let inner = turns.lock();
        assert_eq!((inner.given, inner.waiting.len()), (0, 0));
    }
}
