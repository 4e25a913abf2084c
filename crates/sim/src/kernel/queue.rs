//! Everything that will happen in a world, in one queue.
//!
//! What comes first is first in true time; of events at one time, the one that
//! was put there first. So a run depends on nothing but its seed.

use std::collections::BTreeMap;

use crate::clock::TrueTime;

/// Everything that will happen, in order.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    events: BTreeMap<(TrueTime, u64), E>,
    /// Numbers the events as they come.
    sequence: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            events: BTreeMap::new(),
            sequence: 0,
        }
    }
}

impl<E> Queue<E> {
    pub(crate) fn push(&mut self, at: TrueTime, event: E) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    pub(crate) fn pop(&mut self) -> Option<(TrueTime, E)> {
        let ((at, _), event) = self.events.pop_first()?;
        Some((at, event))
    }

    /// When the next event is due.
    pub(crate) fn next_at(&self) -> Option<TrueTime> {
        self.events.keys().next().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_put() {
        let mut queue = Queue::default();
        for (at, event) in [(2, 'd'), (1, 'a'), (2, 'e'), (1, 'b'), (1, 'c')] {
            queue.push(at, event);
        }
        assert_eq!(queue.next_at(), Some(1));
        let order = std::iter::from_fn(|| queue.pop());
        assert_eq!(order.map(|(_, event)| event).collect::<String>(), "abcde");
        assert_eq!(queue.next_at(), None);
    }
}
