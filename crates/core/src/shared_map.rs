//! A sorted map whose copies share what neither has changed.
//!
//! A backup is a copy of all registers at one moment. To copy each of a million
//! takes longer than an election timeout, and the thread that does it keeps a
//! leadership alive. So entries lie in chunks of up to 256, and a copy
//! takes a reference to each chunk: some thousands for a million entries. The first write
//! to a chunk that a copy holds as well makes that chunk anew.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::borrow::Borrow;
use core::ops::Bound;

/// Entries of one chunk, at most: so many are moved by an insertion, at worst,
/// and copied by the first write after a copy was taken.
const CHUNK: usize = 256;

/// A sorted map. Cloning it takes time by the chunk, not by the entry.
#[derive(Clone, Debug)]
pub struct SharedMap<K, V> {
    /// None is empty, and all keys of one are below those of the next.
    chunks: Vec<Arc<Vec<(K, V)>>>,
    len: usize,
}

/// Where a key is, or would be.
#[derive(Clone, Copy, Debug)]
enum Place {
    Found(usize, usize),
    /// In that chunk, before that entry; past the last chunk if there is none.
    Missing(usize, usize),
}

/// The place of one key, looked for once: to see what is there, and then to
/// change it.
#[derive(Debug)]
pub struct Entry<'map, K, V> {
    map: &'map mut SharedMap<K, V>,
    place: Place,
}

impl<K: Ord + Clone, V: Clone> Entry<'_, K, V> {
    /// What is there.
    pub fn value(&self) -> Option<&V> {
        self.map.at(self.place)
    }

    /// Puts a value there, and gives the one that was. The key is that of
    /// [`SharedMap::entry`].
    pub fn put(self, key: &K, value: V) -> Option<V> {
        self.map.put(self.place, || key.clone(), value)
    }

    /// Takes out what is there.
    pub fn remove(self) -> Option<V> {
        self.map.remove_at(self.place)
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// No entries.
    pub const fn new() -> Self {
        Self {
            chunks: Vec::new(),
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

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.at(self.place(key))
    }

    /// The place of a key, for what is done with what is there.
    pub fn entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Entry<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key);
        Entry { map: self, place }
    }

    /// The value of a key, to change it. A chunk that a copy holds as well is
    /// made anew first.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        match self.place(key) {
            Place::Found(chunk, at) => Some(&mut Arc::make_mut(&mut self.chunks[chunk])[at].1),
            Place::Missing(..) => None,
        }
    }

    /// All values, to change them, in the order of their keys.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let chunks = self.chunks.iter_mut().map(Arc::make_mut);
        chunks.flatten().map(|(_, value)| value)
    }

    /// Puts a value, and gives the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let place = self.place(&key);
        self.put(place, || key, value)
    }

    fn at(&self, place: Place) -> Option<&V> {
        match place {
            Place::Found(chunk, at) => Some(&self.chunks[chunk][at].1),
            Place::Missing(..) => None,
        }
    }

    /// A `key` that is there is not asked for.
    fn put(&mut self, place: Place, key: impl FnOnce() -> K, value: V) -> Option<V> {
        match place {
            Place::Found(chunk, at) => {
                let entry = &mut Arc::make_mut(&mut self.chunks[chunk])[at];
                Some(core::mem::replace(&mut entry.1, value))
            }
            Place::Missing(chunk, at) => {
                self.len += 1;
                let key = key();
                let Some(entries) = self.chunks.get_mut(chunk) else {
                    self.chunks.push(Arc::new(alloc::vec![(key, value)]));
                    return None;
                };
                let entries = Arc::make_mut(entries);
                if entries.len() < CHUNK {
                    entries.insert(at, (key, value));
                    return None;
                }
                // It is divided before it grows: it would keep room for twice
                // as many. In the order of keys they come at the end, and
                // chunks stay full; otherwise they are halved.
                let half = if at == CHUNK { CHUNK } else { CHUNK / 2 };
                let mut rest = entries.split_off(half);
                match at.checked_sub(half) {
                    Some(at) => rest.insert(at, (key, value)),
                    None => entries.insert(at, (key, value)),
                }
                self.chunks.insert(chunk + 1, Arc::new(rest));
                None
            }
        }
    }

    /// Takes a key out, and gives its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_at(self.place(key))
    }

    fn remove_at(&mut self, place: Place) -> Option<V> {
        let Place::Found(chunk, at) = place else {
            return None;
        };
        self.len -= 1;
        let entries = Arc::make_mut(&mut self.chunks[chunk]);
        let (_, value) = entries.remove(at);
        let left = entries.len();
        if left == 0 {
            self.chunks.remove(chunk);
        } else if left <= CHUNK / 4 {
            // Two that are small together become one, so that what was deleted
            // leaves no trail of small chunks, in whichever order it was.
            self.join(chunk);
            if let Some(before) = chunk.checked_sub(1) {
                self.join(before);
            }
        }
        Some(value)
    }

    /// Joins a chunk with the next if they are small together, and gives back
    /// what it has kept room for and does not use.
    fn join(&mut self, chunk: usize) {
        let small = |len: usize| len <= CHUNK / 2;
        let next = self.chunks.get(chunk + 1).map(|next| next.len());
        if next.is_some_and(|next| small(self.chunks[chunk].len() + next)) {
            let next = self.chunks.remove(chunk + 1);
            Arc::make_mut(&mut self.chunks[chunk]).extend(next.iter().cloned());
        }
        let entries = Arc::make_mut(&mut self.chunks[chunk]);
        if entries.capacity() > 4 * entries.len() {
            entries.shrink_to(2 * entries.len());
        }
    }

    /// All entries, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter());
        entries.map(|(key, value)| (key, value))
    }

    /// All entries from `from` on, sorted.
    pub fn range_from<'map, Q: Ord + ?Sized>(
        &'map self,
        from: Bound<&Q>,
    ) -> impl Iterator<Item = (&'map K, &'map V)> + use<'map, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let (chunk, at) = match from {
            Bound::Unbounded => (0, 0),
            Bound::Included(key) | Bound::Excluded(key) => match self.place(key) {
                Place::Found(chunk, at) if matches!(from, Bound::Excluded(_)) => (chunk, at + 1),
                Place::Found(chunk, at) | Place::Missing(chunk, at) => (chunk, at),
            },
        };
        let mut chunks = self.chunks.iter().skip(chunk);
        let first = chunks
            .next()
            .into_iter()
            .flat_map(move |it| it.iter().skip(at));
        let entries = first.chain(chunks.flat_map(|chunk| chunk.iter()));
        entries.map(|(key, value)| (key, value))
    }

    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Place
    where
        K: Borrow<Q>,
    {
        // The last chunk that begins at or before the key. What is below all
        // keys goes to the first, what is above all to the last.
        let after = self
            .chunks
            .partition_point(|chunk| chunk[0].0.borrow() <= key);
        let chunk = after.saturating_sub(1);
        let Some(entries) = self.chunks.get(chunk) else {
            return Place::Missing(0, 0);
        };
        match entries.binary_search_by(|(held, _)| held.borrow().cmp(key)) {
            Ok(at) => Place::Found(chunk, at),
            Err(at) => Place::Missing(chunk, at),
        }
    }
}

impl<K: Ord + Clone + PartialEq, V: Clone + PartialEq> PartialEq for SharedMap<K, V> {
    /// The same entries, however they are divided into chunks.
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Ord + Clone + Eq, V: Clone + Eq> Eq for SharedMap<K, V> {}

impl<K: Ord + Clone, V: Clone> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use super::*;
    use crate::rng::Rng;

    /// The map and its copies do what `BTreeMap` does.
    #[test]
    fn it_is_a_sorted_map_and_a_copy_stays_as_it_was() {
        let mut rng = Rng::from_seed(7);
        let (mut map, mut model) = (SharedMap::new(), BTreeMap::new());
        let mut copies: Vec<(SharedMap<u64, u64>, BTreeMap<u64, u64>)> = Vec::new();
        for step in 0..60_000_u64 {
            // It grows to some thousands, and shrinks to nothing.
            let grows = step % 20_000 < 12_000;
            let key = rng.below(6_000);
            if grows && rng.below(4) != 0 {
                let entry = map.entry(&key);
                assert_eq!(entry.value(), model.get(&key));
                let before = match step % 2 {
                    0 => entry.put(&key, step),
                    _ => map.insert(key, step),
                };
                assert_eq!(before, model.insert(key, step));
            } else if step % 2 == 0 {
                assert_eq!(map.entry(&key).remove(), model.remove(&key));
            } else {
                assert_eq!(map.remove(&key), model.remove(&key));
            }
            assert_eq!(map.get(&key), model.get(&key));
            if let Some(value) = map.get_mut(&key) {
                *value += 1;
            }
            model.entry(key).and_modify(|value| *value += 1);
            if step % 9_000 == 0 {
                map.values_mut().for_each(|value| *value ^= 1);
                model.values_mut().for_each(|value| *value ^= 1);
            }
            assert_eq!(map.len(), model.len());
            if step % 7_000 == 0 {
                copies.push((map.clone(), model.clone()));
            }
            if step % 500 == 0 {
                for from in [
                    Bound::Unbounded,
                    Bound::Included(&key),
                    Bound::Excluded(&key),
                ] {
                    let found: Vec<_> = map.range_from(from).collect();
                    let wanted: Vec<_> = model.range((from, Bound::Unbounded)).collect();
                    assert_eq!(found, wanted, "from {from:?}");
                }
                let most = map.chunks.iter().map(|chunk| chunk.len()).max();
                assert!(most <= Some(CHUNK) && map.chunks.iter().all(|it| !it.is_empty()));
            }
        }
        for (copy, model) in copies {
            assert!(copy.iter().eq(model.iter()));
        }
        for key in 0..6_000 {
            assert_eq!(map.remove(&key), model.remove(&key));
        }
        assert!(map.is_empty() && map.chunks.is_empty());
    }

    /// Every 256th entry stays, in whichever order the others go.
    #[test]
    fn what_was_deleted_leaves_no_room_behind() {
        let all: Vec<u32> = (0..100_000).collect();
        let down: Vec<u32> = all.iter().rev().copied().collect();
        for keys in [all, down] {
            let mut map: SharedMap<u32, u32> = (0..100_000).map(|key| (key, key)).collect();
            keys.iter().filter(|key| *key % 256 != 7).for_each(|key| {
                map.remove(key);
            });
            let room: usize = map.chunks.iter().map(|chunk| chunk.capacity()).sum();
            assert_eq!(map.len(), 391);
            assert!(room <= 4 * map.len() + CHUNK, "room for {room}");
            assert!(map.chunks.len() <= 8, "{} chunks", map.chunks.len());
        }
    }

    #[test]
    fn a_copy_shares_what_is_not_written() {
        let mut map: SharedMap<u32, u32> = (0..10_000).map(|key| (key, key)).collect();
        // In the order of keys chunks are full.
        assert_eq!(map.chunks.len(), 10_000_usize.div_ceil(CHUNK));
        let room = map.chunks.iter().map(|chunk| chunk.capacity()).max();
        assert_eq!(room, Some(CHUNK), "no chunk keeps room that it never uses");
        let copy = map.clone();
        map.insert(5_000, 1);
        let shared = map.chunks.iter().zip(&copy.chunks);
        let anew = shared.filter(|(one, other)| !Arc::ptr_eq(one, other));
        assert_eq!(anew.count(), 1);
        assert_eq!(
            (map.get(&5_000), copy.get(&5_000)),
            (Some(&1), Some(&5_000))
        );
    }
}
