//! Telling every listener what happens, in order, without waiting for any.
//!
//! A listener has a queue of its own that keeps the latest events; one that is
//! too slow loses the oldest and can see how many. So a machine never waits for
//! an application, and no application can make a machine grow.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

/// How many events wait for a listener. When another comes the oldest is
/// dropped and counted ([`Events::missed`]); nothing safe depends on events.
pub const EVENTS_MAX: usize = 256;

/// How many events wait in a stream that nobody has asked for yet. A process may
/// have ten thousand machines, and listen to none.
const UNCLAIMED_EVENTS_MAX: usize = 32;

/// A stream of events: delivered in order, never concurrently. It ends after
/// the last one, which says that the machine has stopped.
pub struct Events<E> {
    queue: Arc<Queue<E>>,
}

struct Queue<E>(Mutex<State<E>>);

struct State<E> {
    events: VecDeque<E>,
    /// How many of them are kept.
    most: usize,
    missed: u64,
    ended: bool,
    /// Of the listener, if it waits: there is one.
    waker: Option<Waker>,
}

impl<E> Queue<E> {
    fn new(ended: bool, most: usize) -> Self {
        Self(Mutex::new(State {
            events: VecDeque::new(),
            most,
            missed: 0,
            ended,
            waker: None,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sender's side of all streams of one machine. Dropping it ends them.
pub struct EventBroadcaster<E: Clone + PartialEq> {
    /// After this event nothing is sent any more.
    last: E,
    listeners: Mutex<Listeners<E>>,
}

struct Listeners<E> {
    queues: Vec<Weak<Queue<E>>>,
    ended: bool,
}

impl<E> Events<E> {
    /// The next event; `None` after the last one, which says that the machine
    /// has stopped. Cancelling this loses nothing.
    pub async fn next(&mut self) -> Option<E> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Option<E>> {
        let mut state = self.queue.lock();
        match state.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if state.ended => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Keeps up to [`EVENTS_MAX`] events from now on.
    #[must_use]
    pub fn claimed(self) -> Self {
        self.queue.lock().most = EVENTS_MAX;
        self
    }

    /// How many events were dropped because this listener was too slow.
    pub fn missed(&self) -> u64 {
        self.queue.lock().missed
    }
}

impl<E> Stream for Events<E> {
    type Item = E;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<E>> {
        self.poll(context)
    }
}

impl<E> fmt::Debug for Events<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.queue.lock().events.len();
        f.debug_struct("Events").field("waiting", &waiting).finish()
    }
}

impl<E: Clone + PartialEq> EventBroadcaster<E> {
    /// Without listeners. The event `last` ends all streams.
    pub const fn new(last: E) -> Self {
        let listeners = Listeners {
            queues: Vec::new(),
            ended: false,
        };
        Self {
            last,
            listeners: Mutex::new(listeners),
        }
    }

    /// A stream of what is sent from now on; one that has ended already if
    /// the last event was sent.
    pub fn subscribe(&self) -> Events<E> {
        self.subscribe_for(EVENTS_MAX)
    }

    /// The same with room for the latest few events alone, until the stream is
    /// [claimed](Events::claimed).
    pub fn subscribe_unclaimed(&self) -> Events<E> {
        self.subscribe_for(UNCLAIMED_EVENTS_MAX)
    }

    fn subscribe_for(&self, most: usize) -> Events<E> {
        let mut listeners = self.lock();
        let queue = Arc::new(Queue::new(listeners.ended, most));
        listeners.queues.retain(|queue| queue.strong_count() > 0);
        listeners.queues.push(Arc::downgrade(&queue));
        Events { queue }
    }

    /// Sends an event to every listener, unless the last one was sent before.
    pub fn send(&self, event: &E) {
        let mut listeners = self.lock();
        if listeners.ended {
            return;
        }
        listeners.ended = *event == self.last;
        for queue in listeners.queues.iter().filter_map(Weak::upgrade) {
            let mut state = queue.lock();
            if state.events.len() >= state.most {
                state.events.pop_front();
                state.missed += 1;
            }
            state.ended = listeners.ended;
            state.events.push_back(event.clone());
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Listeners<E>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Clone + PartialEq> fmt::Debug for EventBroadcaster<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listeners = self.lock().queues.len();
        f.debug_struct("EventBroadcaster")
            .field("listeners", &listeners)
            .finish()
    }
}

impl<E: Clone + PartialEq> Drop for EventBroadcaster<E> {
    fn drop(&mut self) {
        // Nothing more is sent, also when the sender has panicked.
        self.send(&self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_that_nobody_has_asked_for_keeps_few_events_and_then_as_many_as_any() {
        let events = EventBroadcaster::new(u64::MAX);
        let unclaimed = events.subscribe_unclaimed();
        for number in 0..1_000 {
            events.send(&number);
        }
        let mut claimed = unclaimed.claimed();
        let few = UNCLAIMED_EVENTS_MAX as u64;
        assert_eq!(claimed.missed(), 1_000 - few);
        for number in 1_000..1_000 + EVENTS_MAX as u64 - few {
            events.send(&number);
        }
        assert_eq!(claimed.missed(), 1_000 - few);
        assert_eq!(claimed.next().await, Some(1_000 - few));
    }
}
