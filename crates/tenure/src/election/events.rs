//! Telling every listener what happens, in order, without waiting for any.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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

/// The sender's side of all streams of one election.
#[derive(Debug, Default)]
pub(super) struct Fan {
    queues: Mutex<Vec<Weak<Queue>>>,
}

impl Events {
    /// The next event; `None` after [`Event::Stopped`]. Cancelling this loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let news = self.queue.news.notified();
            {
                let mut state = self
                    .queue
                    .state
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
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
        self.queue
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .missed
    }
}

impl Fan {
    pub(super) fn subscribe(&self) -> Events {
        let queue = Arc::new(Queue::default());
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Events { queue }
    }

    pub(super) fn send(&self, event: &Event) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues.iter().filter_map(Weak::upgrade) {
            let mut state = queue.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.events.len() >= EVENTS_MAX {
                state.events.pop_front();
                state.missed += 1;
            }
            state.ended |= matches!(event, Event::Stopped);
            state.events.push_back(event.clone());
            drop(state);
            queue.news.notify_one();
        }
    }
}
