//! How many backups are made at the same time, and which gives up its place.
//!
//! Each holds a copy of the state until it is read. Two that are not read, since
//! a file system hangs or a pager waits, would keep all others away without end.
//! So one that has been read for [`SLOW_AFTER`] at less than [`SLOW`] gives up
//! its place when another wants it, and its copy is freed at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::time::Instant;

/// Backups that are made at the same time.
pub(super) const BACKUPS_MAX: usize = 2;
/// From when on it counts how fast a backup is read.
const SLOW_AFTER: Duration = Duration::from_secs(60);
/// Bytes a second, on the average. Slower ones may lose their places.
const SLOW: u64 = 1024 * 1024;
/// How much of a backup goes into one message.
const PART_BYTES: usize = 256 * 1024;

/// The copy that a backup is read from.
#[derive(Debug)]
struct Copy {
    unread: Bytes,
    read: u64,
    /// When it could be read first.
    since: Instant,
}

impl Copy {
    /// Bytes a second that were read; `None` if it is too early to tell.
    fn rate(&self, now: Instant) -> Option<u64> {
        let took = now.since(self.since);
        (took >= SLOW_AFTER).then(|| self.read / took.as_secs())
    }
}

#[derive(Debug)]
enum Stage {
    /// The copy is being made.
    Making,
    Reading(Copy),
    /// Another backup has the place.
    GivenUp,
}

/// The places of all backups.
#[derive(Clone, Debug, Default)]
pub(super) struct BackupPlaces(Arc<Mutex<Vec<Arc<Mutex<Stage>>>>>);

impl BackupPlaces {
    /// A place, if one is free or given up.
    pub(super) fn take(&self, now: Instant) -> Option<BackupPlace> {
        let mut taken = lock(&self.0);
        if taken.len() == BACKUPS_MAX {
            let rate = |stage: &Arc<Mutex<Stage>>| match &*lock(stage) {
                Stage::Reading(copy) => copy.rate(now).filter(|rate| *rate < SLOW),
                Stage::Making | Stage::GivenUp => None,
            };
            let slow = taken.iter().enumerate();
            let slow = slow.filter_map(|(index, stage)| Some((rate(stage)?, index)));
            let (_, index) = slow.min()?;
            *lock(&taken.swap_remove(index)) = Stage::GivenUp;
        }
        let stage = Arc::new(Mutex::new(Stage::Making));
        taken.push(Arc::clone(&stage));
        Some(BackupPlace {
            stage,
            of: self.clone(),
        })
    }
}

/// The place of one backup, until it is dropped.
#[derive(Debug)]
pub(super) struct BackupPlace {
    stage: Arc<Mutex<Stage>>,
    of: BackupPlaces,
}

/// Another backup has the place.
#[derive(Debug, PartialEq)]
pub(super) struct GivenUp;

impl BackupPlace {
    /// The copy is made, and can be read from now on.
    pub(super) fn made(&self, unread: Bytes, now: Instant) {
        *lock(&self.stage) = Stage::Reading(Copy {
            unread,
            read: 0,
            since: now,
        });
    }

    /// The next part; `None` after the last.
    pub(super) fn next_part(&self) -> Option<Result<Bytes, GivenUp>> {
        match &mut *lock(&self.stage) {
            Stage::Making => None,
            Stage::GivenUp => Some(Err(GivenUp)),
            Stage::Reading(copy) if copy.unread.is_empty() => None,
            Stage::Reading(copy) => {
                let part = copy.unread.split_to(copy.unread.len().min(PART_BYTES));
                copy.read += part.len() as u64;
                Some(Ok(part))
            }
        }
    }
}

impl Drop for BackupPlace {
    fn drop(&mut self) {
        lock(&self.of.0).retain(|stage| !Arc::ptr_eq(stage, &self.stage));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn read(place: &BackupPlace, bytes: usize) {
        for _ in 0..bytes / PART_BYTES {
            place.next_part().expect("more").expect("its place");
        }
    }

    #[test]
    fn who_is_read_slowly_gives_up_its_place_when_another_wants_it() {
        let places = BackupPlaces::default();
        let [slow, fast] = [(); 2].map(|()| places.take(at(0)).expect("free"));
        assert!(places.take(at(1_000)).is_none(), "both are being made");
        for place in [&slow, &fast] {
            place.made(Bytes::from(vec![0; 200 * MIB]), at(1_000));
        }
        read(&slow, 59 * MIB);
        read(&fast, 60 * MIB);
        assert!(places.take(at(1_059)).is_none(), "too early");
        let third = places.take(at(1_060)).expect("the place of the slow one");
        assert_eq!(slow.next_part(), Some(Err(GivenUp)));
        assert!(places.take(at(1_060)).is_none(), "the third is being made");
        read(&fast, 140 * MIB);
        assert_eq!(fast.next_part(), None);
        drop(slow);
        assert!(places.take(at(1_060)).is_none(), "it had no place any more");
        drop((fast, third));
        assert!(places.0.lock().expect("unpoisoned").is_empty());
    }
}
