//! A queue that grows without moving what it holds.
//!
//! A ring that doubles copies all of itself each time, and the operating
//! system gives it ever larger regions that were never touched: with some
//! hundred thousand entries that is tens of milliseconds at a stroke, in
//! which a server answers nobody. Here there are chunks of one size. A new
//! one costs what a small allocation costs, and so does it to give one back.
//!
//! Invariant: all chunks but the last are full, and none is empty.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Items in a chunk; a power of two, so that finding one takes no division.
/// Of this many, even the largest are less than what allocators get from the
/// operating system by itself.
const CHUNK: usize = 128;

/// The queue.
#[derive(Clone, Debug)]
pub(super) struct Chunks<T> {
    chunks: VecDeque<Vec<T>>,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self {
            chunks: VecDeque::new(),
        }
    }
}

impl<T> Chunks<T> {
    /// How many items there are.
    pub(super) fn len(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        full + self.chunks.back().map_or(0, Vec::len)
    }

    /// The item at `index` from the front.
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    /// The last item.
    pub(super) fn back(&self) -> Option<&T> {
        self.chunks.back()?.last()
    }

    /// Those from `from` on.
    pub(super) fn from(&self, from: usize) -> impl DoubleEndedIterator<Item = &T> {
        let skip = from % CHUNK;
        let chunks = self.chunks.range((from / CHUNK).min(self.chunks.len())..);
        let rest = move |(at, chunk)| {
            let chunk: &Vec<T> = chunk;
            let skip = if at == 0 { skip } else { 0 };
            chunk.get(skip..).unwrap_or_default()
        };
        chunks.enumerate().flat_map(rest)
    }

    /// How many items at the front are as `is_before` says, which holds for
    /// none after the first for which it does not.
    pub(super) fn partition_point(&self, is_before: impl Fn(&T) -> bool) -> usize {
        let whole = |chunk: &Vec<T>| chunk.last().is_some_and(&is_before);
        let whole = self.chunks.partition_point(whole);
        let rest = self.chunks.get(whole);
        let rest = rest.map_or(0, |chunk| chunk.partition_point(is_before));
        // The last chunk may be whole, and not full.
        self.len().min(whole * CHUNK + rest)
    }

    /// Whether the next item begins a chunk.
    pub(super) fn is_full(&self) -> bool {
        self.chunks.back().is_none_or(|last| last.len() == CHUNK)
    }

    /// One more item.
    pub(super) fn push(&mut self, item: T) {
        if self.is_full() {
            self.chunks.push_back(Vec::with_capacity(CHUNK));
        }
        if let Some(last) = self.chunks.back_mut() {
            last.push(item);
        }
    }

    /// Keeps the first `len` and drops the others, each after `each` saw it.
    pub(super) fn truncate(&mut self, len: usize, each: impl FnMut(&T)) {
        if len >= self.len() {
            return;
        }
        self.from(len).for_each(each);
        self.chunks.truncate(len.div_ceil(CHUNK));
        if let Some(last) = self
            .chunks
            .back_mut()
            .filter(|_| !len.is_multiple_of(CHUNK))
        {
            last.truncate(len % CHUNK);
        }
    }

    /// Takes whole chunks away from the front: none that has more than the
    /// first `len` items. To drop them is left to the caller.
    pub(super) fn take_front(&mut self, len: usize) -> Self {
        let rest = self.chunks.split_off(len.min(self.len()) / CHUNK);
        let chunks = core::mem::replace(&mut self.chunks, rest);
        Self { chunks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::rng::Rng;

    #[test]
    fn it_is_a_queue_whatever_is_done_to_it() {
        let mut rng = Rng::from_seed(1);
        for _ in 0..50 {
            let (mut chunks, mut model) = (Chunks::default(), VecDeque::new());
            for number in 0..600_u64 {
                match rng.below(80) {
                    0 => {
                        let len = rng.below(model.len() as u64 + 2) as usize;
                        let mut gone = Vec::new();
                        chunks.truncate(len, |item| gone.push(*item));
                        let expected = model.drain(len.min(model.len())..);
                        assert_eq!(gone, expected.collect::<Vec<_>>());
                    }
                    1 => {
                        let len = rng.below(model.len() as u64 + 2) as usize;
                        let front = chunks.take_front(len);
                        let taken = front.len();
                        assert!(taken <= len && taken.is_multiple_of(CHUNK));
                        assert!(front.from(0).eq(model.range(..taken)));
                        model.drain(..taken);
                    }
                    _ => {
                        for more in 0..rng.below(10) {
                            chunks.push(number * 10 + more);
                            model.push_back(number * 10 + more);
                        }
                    }
                }
                assert_eq!((chunks.len(), chunks.back()), (model.len(), model.back()));
                let from = rng.below(model.len() as u64 + 2) as usize;
                assert_eq!(chunks.get(from), model.get(from));
                let expected = model.range(from.min(model.len())..);
                assert!(chunks.from(from).eq(expected));
                let low = |item: &u64| *item < number * 5;
                assert_eq!(chunks.partition_point(low), model.partition_point(low));
            }
        }
    }
}
