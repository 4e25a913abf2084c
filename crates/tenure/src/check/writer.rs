//! One of those who race: it counts up in a register by compare-and-swap, and writes
//! down of which count it was told that it has made it.

use std::time::Duration;

use tenure_core::time::Instant;

use super::connection::{Connection, Stop};
use crate::clock;
use crate::error::StoreError;
use crate::store::{Expect, Key, Register};

/// How long a writer waits after a call that certainly did nothing.
const PAUSE: Duration = Duration::from_millis(20);

/// What a writer is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Order {
    pub(super) key: Key,
    /// How many writes have to be acknowledged.
    pub(super) writes: u64,
    /// For how long it tries.
    pub(super) lasting: Duration,
    /// How long it waits after each write.
    pub(super) pause: Duration,
}

/// What a writer was told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Log {
    /// The counts that it has made, as it was told.
    pub(super) acknowledged: Vec<u64>,
    /// The counts of which it is not known.
    pub(super) unknown: Vec<u64>,
    /// Writes that were refused.
    pub(super) conflicts: u64,
    /// A count that was known when a read began, and the lower one that it showed.
    pub(super) stale: Option<(u64, u64)>,
    /// Why it ended before its time.
    pub(super) stopped: Option<String>,
}

/// What a register counts; nothing if there is none.
pub(super) fn count_in(register: Option<&Register>) -> u64 {
    let bytes = register.and_then(|held| held.value.as_ref().try_into().ok());
    bytes.map(u64::from_be_bytes).unwrap_or_default()
}

/// Counts up until all is done, time is over or `ended` says so.
pub(super) async fn count(store: &Connection, order: &Order, ended: impl Fn() -> bool) -> Log {
    let until = clock::boot().after(order.lasting);
    let mut log = Log::default();
    let mut known = 0;
    while u64::try_from(log.acknowledged.len()).unwrap_or(u64::MAX) < order.writes {
        if ended() {
            break;
        }
        if clock::boot() >= until {
            log.stopped = Some("its time was over".to_owned());
            break;
        }
        match step(store, &order.key, &mut log, &mut known).await {
            Ok(()) => pause(order.pause).await,
            Err(Stop::Failed(StoreError::Unavailable(_))) => wait(until).await,
            Err(Stop::Failed(error)) => {
                log.stopped = Some(error.to_string());
                break;
            }
            Err(Stop::Budget) => {
                log.stopped = Some("the budget was used up".to_owned());
                break;
            }
            Err(Stop::Found(finding)) => {
                log.stopped = Some(finding.text);
                break;
            }
        }
    }
    log
}

/// A timer is not set for no time: it would wait for a millisecond.
async fn pause(lasting: Duration) {
    if !lasting.is_zero() {
        tokio::time::sleep(lasting).await;
    }
}

async fn wait(until: Instant) {
    tokio::time::sleep(PAUSE.min(until.since(clock::boot()))).await;
}

/// One attempt. `known` is the highest count that this writer has seen or made.
async fn step(store: &Connection, key: &Key, log: &mut Log, known: &mut u64) -> Result<(), Stop> {
    let found = store.register(key).await?;
    let count = count_in(found.as_ref());
    if count < *known {
        log.stale.get_or_insert((*known, count));
    }
    *known = count.max(*known);
    let expect = found.map_or(Expect::Absent, |held| Expect::Version(held.version));
    let next = count + 1;
    match store.write(key, expect, &next.to_be_bytes()).await {
        Ok(_) => {
            log.acknowledged.push(next);
            *known = next.max(*known);
        }
        Err(Stop::Failed(StoreError::Conflict)) => log.conflicts += 1,
        Err(Stop::Failed(StoreError::Unknown(_))) => log.unknown.push(next),
        Err(other) => return Err(other),
    }
    Ok(())
}
