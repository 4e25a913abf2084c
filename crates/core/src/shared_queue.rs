//! A queue whose copies share what neither has changed.
//!
//! As in [`shared_map`](crate::shared_map), entries lie in chunks of up to
//! 256, and a copy takes a reference to each chunk. A queue grows at one end
//! and shrinks at the other, so all chunks between the first and the last are
//! full, and the place of an entry is found by dividing.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

/// Entries of one chunk, at most: so many are copied by the first change at
/// one end after a copy was taken.
const CHUNK: usize = 256;

/// A queue. Cloning it takes time by the chunk, not by the entry.
#[derive(Clone, Debug)]
pub struct SharedQueue<T> {
    /// None is empty, and all but the first and the last are full.
    chunks: VecDeque<Arc<VecDeque<T>>>,
    len: usize,
}

impl<T: Clone> SharedQueue<T> {
    /// No entries.
    pub const fn new() -> Self {
        Self {
            chunks: VecDeque::new(),
            len: 0,
        }
    }

    /// How many entries there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts an entry at the end.
    pub fn push_back(&mut self, entry: T) {
        self.len += 1;
        match self.chunks.back_mut() {
            // The first chunk, if it is the last one too, may have lost
            // entries: it takes no more than it has room for all the same.
            Some(last) if last.len() < CHUNK => Arc::make_mut(last).push_back(entry),
            _ => self.chunks.push_back(Arc::new(VecDeque::from([entry]))),
        }
    }

    /// Takes the oldest entry out.
    pub fn pop_front(&mut self) -> Option<T> {
        let first = Arc::make_mut(self.chunks.front_mut()?);
        let entry = first.pop_front();
        if first.is_empty() {
            self.chunks.pop_front();
        }
        self.len -= usize::from(entry.is_some());
        entry
    }

    /// All entries, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.iter_from(0)
    }

    /// All entries but the oldest `skip`.
    pub fn iter_from(&self, skip: usize) -> impl Iterator<Item = &T> {
        let first = self.chunks.front().map_or(0, |chunk| chunk.len());
        let (chunk, at) = match skip.checked_sub(first) {
            None => (0, skip),
            Some(rest) => (1 + rest / CHUNK, rest % CHUNK),
        };
        // Beyond the last chunk there is nothing.
        let chunks = self.chunks.range(chunk.min(self.chunks.len())..);
        let from = chunks.enumerate().map(move |(index, chunk)| {
            let skip = if index == 0 { at.min(chunk.len()) } else { 0 };
            chunk.range(skip..)
        });
        from.flatten()
    }
}

impl<T: Clone> Default for SharedQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone + PartialEq> PartialEq for SharedQueue<T> {
    /// The same entries, however they are divided into chunks.
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Clone + Eq> Eq for SharedQueue<T> {}

impl<T: Clone> FromIterator<T> for SharedQueue<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut queue = Self::new();
        for entry in entries {
            queue.push_back(entry);
        }
        queue
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::rng::Rng;

    /// The queue and its copies do what `VecDeque` does.
    #[test]
    fn it_is_a_queue_and_a_copy_stays_as_it_was() {
        let mut rng = Rng::from_seed(11);
        let (mut queue, mut model) = (SharedQueue::new(), VecDeque::new());
        let mut copies: Vec<(SharedQueue<u64>, VecDeque<u64>)> = Vec::new();
        for step in 0..40_000_u64 {
            // It grows to some thousands, and shrinks to nothing.
            let grows = step % 10_000 < 6_000;
            if grows == (rng.below(4) != 0) {
                queue.push_back(step);
                model.push_back(step);
            } else {
                assert_eq!(queue.pop_front(), model.pop_front());
            }
            assert_eq!(queue.len(), model.len());
            if step % 3_000 == 0 {
                copies.push((queue.clone(), model.clone()));
            }
            if step % 100 == 0 {
                let skip = usize::try_from(rng.below(8_000)).expect("small");
                let found = queue.iter_from(skip);
                assert!(found.eq(model.iter().skip(skip)), "from {skip}");
            }
        }
        for (copy, model) in copies {
            assert!(copy.iter().eq(model.iter()));
        }
    }

    #[test]
    fn a_copy_shares_all_but_the_ends_that_change() {
        let mut queue: SharedQueue<u32> = (0..10_000).collect();
        let copy = queue.clone();
        for entry in 0..10 {
            queue.pop_front();
            queue.push_back(entry);
        }
        let shared = queue.chunks.iter().zip(&copy.chunks);
        let anew = shared.filter(|(one, other)| !Arc::ptr_eq(one, other));
        assert_eq!(anew.count(), 2);
        assert!(copy.iter().copied().eq(0..10_000));
    }
}
