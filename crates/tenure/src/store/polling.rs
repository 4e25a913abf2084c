//! Noticing what other processes write to a store that does not tell: by looking.
//!
//! A register is read as often as it seems to change. The leader of an election
//! renews once an interval, so its register is read about twice in each, by the leader
//! itself about once: what this process wrote it knows. One that
//! has not changed for long is read less and less often, down to a limit. That an
//! election is over is never judged by a look of this kind: a candidate reads when
//! the time of a leader ends.
//!
//! Registers below a watched prefix are found by listing it, all prefixes at the
//! pace of the one that changes most.
//!
//! A store that tells of some changes ([`Backend::hints`]) is looked at all the same,
//! as often: a hint may be lost. It makes a register's next look due at once.
//!
//! This runs on the thread that keeps all leaderships of the process. A backend that
//! hints without ever waiting, or times of zero, must not keep that thread from the rest.
//! So there is a pause between two calls for hints, and one between two looks. Nor may a
//! backend that panics end the watches: a panic is a look that has failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::fnv::fnv1a;
use tenure_core::time::Instant;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::backend::Backend;
use super::hub::{Hub, Interest};
use super::watcher::{StoreSignals, Watcher};
use super::{Key, Register, Version, panics};
use crate::clock;
use crate::error::{StoreError, about};

/// How long a look may take.
const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// How many registers are read at the same time.
const READS_MAX: usize = 8;
/// How soon to look again after a look that something overtook.
const POLL_AGAIN: Duration = Duration::from_millis(10);
/// What passes at least between two looks, whatever the [`PollTimes`] say.
const FLOOR_MIN: Duration = Duration::from_millis(1);
/// What passes at least between the beginnings of two calls for hints.
const HINTS_PACE: Duration = Duration::from_millis(10);

/// How long after a panic hints are asked for again.
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// How often watches look for changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollTimes {
    /// At most so often, however often a register changes. Less than a millisecond
    /// counts as one.
    pub floor: Duration,
    /// At least so often, however long nothing has changed.
    pub ceiling: Duration,
}

impl Default for PollTimes {
    /// Between five times a second and once in five seconds.
    fn default() -> Self {
        Self {
            floor: Duration::from_millis(200),
            ceiling: Duration::from_secs(5),
        }
    }
}

impl PollTimes {
    /// How long to wait before the next look at what changed so long ago, and
    /// before that as long after the change before it.
    fn wait(&self, unchanged: Duration, gap: Option<Duration>) -> Duration {
        let wait = unchanged.max(gap.unwrap_or_default()) / 2;
        wait.clamp(self.floor, self.ceiling.max(self.floor))
    }
}

/// What is known of how often a register, or what is below any prefix, changes.
#[derive(Debug)]
struct Rhythm {
    seen: Option<Version>,
    changed: Instant,
    gap: Option<Duration>,
    due: Instant,
}

impl Rhythm {
    fn new(now: Instant) -> Self {
        Self {
            seen: None,
            changed: now,
            gap: None,
            due: now,
        }
    }

    /// Takes note of a look that has found this.
    fn looked(&mut self, found: Option<&Version>, now: Instant, times: &PollTimes) {
        if self.seen.as_ref() != found {
            // The first look tells nothing of when it changed.
            self.gap = self.seen.is_some().then(|| now.since(self.changed));
            self.changed = now;
            self.seen = found.cloned();
        }
        self.due = now.after(times.wait(now.since(self.changed), self.gap));
    }
}

/// Begins to look, for as long as the store is there.
pub(super) fn start<B: Backend>(backend: Arc<B>, hub: Arc<Hub>, times: PollTimes) -> Watcher {
    let floor = times.floor.max(FLOOR_MIN);
    let times = PollTimes { floor, ..times };
    Watcher::start(|signals| {
        let poller = Poller {
            backend,
            hub,
            times,
            signals,
            keys: BTreeMap::new(),
            prefixes: Rhythm::new(clock::boot()),
            listed: Vec::new(),
            hinted: BTreeSet::new(),
            hints_from: clock::boot(),
        };
        poller.serve()
    })
}

struct Poller<B> {
    backend: Arc<B>,
    hub: Arc<Hub>,
    times: PollTimes,
    signals: StoreSignals,
    keys: BTreeMap<Key, Rhythm>,
    prefixes: Rhythm,
    /// The prefixes that were listed last.
    listed: Vec<String>,
    /// What was hinted at, and not read since.
    hinted: BTreeSet<Key>,
    /// When hints may be asked for again.
    hints_from: Instant,
}

impl<B: Backend> Poller<B> {
    async fn serve(mut self) {
        loop {
            if self.signals.is_closed() {
                return;
            }
            if self.hub.is_idle() {
                self.signals.woken().await;
                continue;
            }
            let wait = match self.look().await {
                Ok(settled) => {
                    self.hub.mark_up();
                    if settled {
                        self.next_look()
                    } else {
                        POLL_AGAIN
                    }
                }
                Err(error) => {
                    self.hub.mark_down(&error.to_string());
                    self.times.floor
                }
            };
            self.wait(wait).await;
        }
    }

    /// Waits for so long, for a new watch, or for a hint of what is watched.
    async fn wait(&mut self, wait: Duration) {
        let until = sleep(wait);
        tokio::pin!(until);
        loop {
            let hints = tokio::select! {
                // In this order, or hints that are always there could hide the rest.
                biased;
                () = &mut until => return,
                () = self.signals.woken() => return,
                hints = next_hints(&*self.backend, &mut self.hints_from) => hints,
            };
            // A backend that blocks for longer than the pace gets no pause.
            yield_now().await;
            // What this process wrote itself is known already.
            let unknown = |(key, version): &(Key, Option<Version>)| {
                let none = Version::from_bytes(b"");
                self.hub.concerns(key, version.as_ref().unwrap_or(&none))
            };
            let unknown = hints.into_iter().filter(unknown);
            let unknown: Vec<_> = unknown.map(|(key, _)| key).collect();
            if !unknown.is_empty() {
                self.hinted.extend(unknown);
                return;
            }
        }
    }

    /// How long until something is due.
    fn next_look(&self) -> Duration {
        let all = self.keys.values().map(|rhythm| rhythm.due);
        let next = all.chain([self.prefixes.due]).min();
        next.map_or(self.times.ceiling, |due| due.since(clock::boot()))
    }

    /// Fetches what is due. Whether it is settled: if not, something was written
    /// here meanwhile, and another look is due.
    async fn look(&mut self) -> Result<bool, StoreError> {
        let interest = self.hub.interest();
        let now = clock::boot();
        let mut settled = true;
        let below = |key: &Key| {
            let mut prefixes = interest.prefixes.iter();
            prefixes.any(|prefix| key.as_str().starts_with(prefix.as_str()))
        };
        let watched: BTreeSet<_> = interest.keys.iter().map(|it| &it.key).collect();
        self.keys
            .retain(|key, _| watched.contains(key) && !below(key));
        let mut due = Vec::new();
        for watched in interest.keys.iter().filter(|it| !below(&it.key)) {
            let rhythm = self.keys.entry(watched.key.clone());
            let rhythm = rhythm.or_insert_with(|| Rhythm::new(now));
            if watched.reported && rhythm.seen != watched.version {
                // Written here, so it need not be read to be known.
                rhythm.looked(watched.version.as_ref(), now, &self.times);
            }
            if !watched.reported || rhythm.due <= now {
                due.push(watched.key.clone());
            }
        }
        let hinted = std::mem::take(&mut self.hinted);
        let of_prefixes = hinted.into_iter().filter(|key| {
            if let Some(rhythm) = self.keys.get(key) {
                return rhythm.due > now && !due.contains(key);
            }
            below(key)
        });
        let of_prefixes: Vec<_> = of_prefixes.collect();
        due.extend(of_prefixes);
        for (key, register) in self.read_all(due).await? {
            let version = register.as_ref().map(|held| &held.version);
            if let Some(rhythm) = self.keys.get_mut(&key) {
                rhythm.looked(version, clock::boot(), &self.times);
            }
            settled &= self.hub.fetched(&interest, &key, register);
        }
        if interest.prefixes.is_empty() {
            self.prefixes.due = clock::boot().after(self.times.ceiling);
        } else if self.prefixes.due <= clock::boot() || self.listed != interest.prefixes {
            settled &= self.list_all(&interest).await?;
            self.listed.clone_from(&interest.prefixes);
        }
        Ok(settled)
    }

    /// Reads these, some at a time.
    async fn read_all(&self, keys: Vec<Key>) -> Result<Vec<(Key, Option<Register>)>, StoreError> {
        let mut keys = keys.into_iter();
        let (mut under_way, mut found) = (JoinSet::new(), Vec::new());
        loop {
            while under_way.len() < READS_MAX
                && let Some(key) = keys.next()
            {
                let backend = Arc::clone(&self.backend);
                under_way.spawn(in_time(async move {
                    let reading = backend.read(&key).await?;
                    Ok((key, reading.register))
                }));
            }
            match under_way.join_next().await {
                None => return Ok(found),
                Some(Ok(read)) => found.push(read?),
                Some(Err(panicked)) => return Err(StoreError::unavailable(panicked)),
            }
        }
    }

    /// Lists what has a watched prefix.
    async fn list_all(&mut self, interest: &Interest) -> Result<bool, StoreError> {
        let (mut settled, mut digest) = (true, 0_u64);
        let mut absent: BTreeSet<_> = interest.keys.iter().map(|it| &it.key).collect();
        absent.retain(|key| {
            let mut prefixes = interest.prefixes.iter();
            prefixes.any(|prefix| key.as_str().starts_with(prefix.as_str()))
        });
        for prefix in &interest.prefixes {
            let mut after: Option<Key> = None;
            loop {
                // A backend may panic before there is a future.
                let listing = async { self.backend.list(prefix, after.as_ref()).await };
                let page = in_time(listing).await?;
                for (key, register) in page.registers {
                    absent.remove(&key);
                    let parts = [key.as_str().as_bytes(), register.version.as_bytes()];
                    let before = digest.to_be_bytes();
                    digest = fnv1a(before.into_iter().chain(parts.concat()));
                    settled &= self.hub.fetched(interest, &key, Some(register));
                }
                after = page.more_after;
                if after.is_none() {
                    break;
                }
            }
        }
        for key in absent {
            settled &= self.hub.fetched(interest, key, None);
        }
        let all = Version::from_u64(digest);
        let now = clock::boot();
        self.prefixes.looked(Some(&all), now, &self.times);
        Ok(settled)
    }
}

/// Waits until `from`, then for hints, and moves `from` to when the next call is allowed. If
/// the backend panics, there are no hints, and the next call is [`AFTER_PANIC`] later.
async fn next_hints<B: Backend>(backend: &B, from: &mut Instant) -> Vec<(Key, Option<Version>)> {
    let pause = from.since(clock::boot());
    if !pause.is_zero() {
        sleep(pause).await;
    }
    *from = clock::boot().after(HINTS_PACE);
    let hints = panics::caught(async { Ok(backend.hints().await) }).await;
    hints.unwrap_or_else(|_| {
        // The panic has printed what it is.
        *from = clock::boot().after(AFTER_PANIC);
        Vec::new()
    })
}

/// Runs a call of a backend. A panic is an error, and so is no answer within
/// [`FETCH_WITHIN`].
async fn in_time<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = || {
        let within = about(FETCH_WITHIN);
        StoreError::unavailable(format!("no answer within {within}"))
    };
    timeout(FETCH_WITHIN, panics::caught(call))
        .await
        .unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_register_is_read_twice_for_each_change_and_less_often_when_it_rests() {
        let times = PollTimes::default();
        let start = Instant::from_nanos(1_000_000_000);
        let mut rhythm = Rhythm::new(start);
        let version = Version::from_u64;
        rhythm.looked(Some(&version(1)), start, &times);
        assert_eq!(rhythm.due, start.after(times.floor), "nothing is known yet");
        // Renewed every two seconds.
        let second = start.after(ms(2_000));
        rhythm.looked(Some(&version(2)), second, &times);
        assert_eq!(rhythm.due, second.after(ms(1_000)));
        // No change: half of what has passed, and no less than that.
        let later = second.after(ms(1_000));
        rhythm.looked(Some(&version(2)), later, &times);
        assert_eq!(rhythm.due, later.after(ms(1_000)));
        let long_after = second.after(ms(60_000));
        rhythm.looked(Some(&version(2)), long_after, &times);
        assert_eq!(rhythm.due, long_after.after(times.ceiling));
        // A deletion is a change.
        rhythm.looked(None, long_after.after(ms(10)), &times);
        assert_eq!(rhythm.gap, Some(ms(60_010)));
    }
}
