//! Telling every listener what happens, in order, without waiting for any.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tenure_core::election::Event;
use tokio::sync::Notify;

/// How many events wait for a listener. When another comes the oldest is
/// dropped and counted ([`Events::missed`]); nothing safe depends on events.
pub const EVENTS_MAX: usize = 256;

/// A stream of events: delivered in order, never concurrently.
#[derive(Debug)]
pub struct Events {
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    missed: u64,
    ended: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sender's side of all streams of one election. Dropping it ends them.
#[derive(Debug, Default)]
pub(super) struct Fan {
    listeners: Mutex<Listeners>,
}

#[derive(Debug, Default)]
struct Listeners {
    queues: Vec<Weak<Queue>>,
    ended: bool,
}

impl Events {
    /// The next event; `None` after [`Event::Stopped`]. Cancelling this loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let news = self.queue.news.notified();
            {
                let mut state = self.queue.lock();
                match state.events.pop_front() {
                    Some(event) => return Some(event),
                    None if state.ended => return None,
                    None => {}
                }
            }
            news.await;
        }
    }

    /// How many events were dropped because this listener was too slow.
    pub fn missed(&self) -> u64 {
        self.queue.lock().missed
    }
}

impl Fan {
    pub(super) fn subscribe(&self) -> Events {
        let mut listeners = self.lock();
        let queue = Arc::new(Queue::default());
        queue.lock().ended = listeners.ended;
        listeners.queues.retain(|queue| queue.strong_count() > 0);
        listeners.queues.push(Arc::downgrade(&queue));
        Events { queue }
    }

    /// Tells everybody; [`Event::Stopped`] is the last one that is told.
    pub(super) fn send(&self, event: &Event) {
        let mut listeners = self.lock();
        if listeners.ended {
            return;
        }
        listeners.ended = matches!(event, Event::Stopped);
        for queue in listeners.queues.iter().filter_map(Weak::upgrade) {
            let mut state = queue.lock();
            if state.events.len() >= EVENTS_MAX {
                state.events.pop_front();
                state.missed += 1;
            }
            state.ended = listeners.ended;
            state.events.push_back(event.clone());
            drop(state);
            queue.news.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Fan {
    fn drop(&mut self) {
        // Nothing more is sent, also when the sender has panicked.
        self.send(&Event::Stopped);
    }
}
