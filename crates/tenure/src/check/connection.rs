//! The store as trials see it: each call is counted against the budget, and what it
//! told of the store's clock is kept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::{Instant, StoreTime, WallTime};

use super::finding::{Fault, Finding};
use crate::clock;
use crate::error::StoreError;
use crate::store::{
    Durability, Expect, Features, Key, Page, Reading, Register, Stamp, Store, Version, Write,
    Written,
};

/// How many readings of a clock are kept.
const SAMPLES_MAX: usize = 4_096;

/// Why a trial goes no further.
#[derive(Debug)]
pub(super) enum Stop {
    /// The budget is used up.
    Budget,
    /// A call has failed.
    Failed(StoreError),
    /// The contract is broken.
    Found(Finding),
}

impl From<Finding> for Stop {
    fn from(finding: Finding) -> Self {
        Self::Found(finding)
    }
}

/// A reading of the store's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Before the call, on this machine's boot-time clock.
    pub(super) began: Instant,
    /// After its answer.
    pub(super) ended: Instant,
    /// This machine's calendar after the answer.
    pub(super) wall: WallTime,
    /// What the store said.
    pub(super) told: StoreTime,
}

/// What all connections of a check have used and seen.
#[derive(Debug)]
pub(super) struct Meter {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: u64,
    reads: u64,
    writes: u64,
    samples: Vec<Sample>,
}

impl Meter {
    pub(super) fn new(budget: u64) -> Arc<Self> {
        let state = State {
            left: budget,
            reads: 0,
            writes: 0,
            samples: Vec::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and writes so far.
    pub(super) fn used(&self) -> (u64, u64) {
        let state = self.lock();
        (state.reads, state.writes)
    }

    /// What is left of the budget.
    pub(super) fn left(&self) -> u64 {
        self.lock().left
    }

    /// Takes so much of the budget away, for another process.
    pub(super) fn set_aside(&self, requests: u64) -> u64 {
        let mut state = self.lock();
        let taken = requests.min(state.left);
        state.left -= taken;
        taken
    }

    /// Another process has used so much of what was set aside for it.
    pub(super) fn account(&self, set_aside: u64, reads: u64, writes: u64) {
        let mut state = self.lock();
        state.left += set_aside.saturating_sub(reads.saturating_add(writes));
        state.reads += reads;
        state.writes += writes;
    }

    /// The readings of the store's clock so far.
    pub(super) fn samples(&self) -> Vec<Sample> {
        self.lock().samples.clone()
    }

    fn charge(&self, reads: u64, writes: u64) -> Result<(), Stop> {
        let mut state = self.lock();
        state.left = state.left.checked_sub(reads + writes).ok_or(Stop::Budget)?;
        state.reads += reads;
        state.writes += writes;
        Ok(())
    }

    fn keep(&self, began: Instant, told: Option<StoreTime>) {
        let (ended, wall) = (clock::boot(), clock::wall());
        let mut state = self.lock();
        if let (Some(told), true) = (told, state.samples.len() < SAMPLES_MAX) {
            state.samples.push(Sample {
                began,
                ended,
                wall,
                told,
            });
        }
    }
}

/// A connection to the store. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    store: Arc<dyn Store>,
    meter: Arc<Meter>,
    within: Duration,
}

impl Connection {
    pub(super) fn new(store: Arc<dyn Store>, meter: Arc<Meter>, within: Duration) -> Self {
        Self {
            store,
            meter,
            within,
        }
    }

    pub(super) fn features(&self) -> Features {
        self.store.features()
    }

    pub(super) fn durability(&self) -> Durability {
        self.store.durability()
    }

    pub(super) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    pub(super) async fn read(&self, key: &Key) -> Result<Reading, Stop> {
        self.meter.charge(1, 0)?;
        let began = clock::boot();
        let reading = self.store.read(key, self.within).await;
        let reading = reading.map_err(Stop::Failed)?;
        self.meter.keep(began, reading.now);
        Ok(reading)
    }

    pub(super) async fn register(&self, key: &Key) -> Result<Option<Register>, Stop> {
        Ok(self.read(key).await?.register)
    }

    pub(super) async fn write(
        &self,
        key: &Key,
        expect: Expect,
        value: &[u8],
    ) -> Result<Written, Stop> {
        self.meter.charge(0, 1)?;
        let write = Write {
            key: key.clone(),
            expect,
            value: value.into(),
            stamp: Stamp::Now,
        };
        let began = clock::boot();
        let written = self.store.compare_and_swap(write, self.within).await;
        let written = written.map_err(Stop::Failed)?;
        self.meter.keep(began, written.now);
        Ok(written)
    }

    pub(super) async fn delete(&self, key: &Key, version: &Version) -> Result<(), Stop> {
        self.meter.charge(0, 1)?;
        let deleted = self.store.delete(key, version, self.within).await;
        deleted.map_err(Stop::Failed)
    }

    /// Makes a register that only this trial writes.
    pub(super) async fn create(&self, key: &Key, value: &[u8]) -> Result<Version, Stop> {
        let written = self.write(key, Expect::Absent, value).await;
        Ok(fits(written, "a register that was not there was to be created")?.version)
    }

    /// Writes a register that only this trial writes, over the version that it has.
    pub(super) async fn update(
        &self,
        key: &Key,
        version: &Version,
        value: &[u8],
    ) -> Result<Version, Stop> {
        let expect = Expect::Version(version.clone());
        let written = self.write(key, expect, value).await;
        Ok(fits(
            written,
            "a register was to be written over the version that it has",
        )?
        .version)
    }

    /// Deletes a register that only this trial writes, at the version that it has.
    pub(super) async fn remove(&self, key: &Key, version: &Version) -> Result<(), Stop> {
        let deleted = self.delete(key, version).await;
        fits(
            deleted,
            "a register was to be deleted at the version that it has",
        )
    }

    /// A page of a listing, which is counted and not held to the budget: what was
    /// made must go.
    pub(super) async fn page(&self, prefix: &str) -> Result<Page, StoreError> {
        let page = self.store.list(prefix, None, self.within).await?;
        let found = page.registers.len();
        self.meter.lock().reads += 1 + u64::try_from(found).unwrap_or(u64::MAX);
        Ok(page)
    }

    /// Deletes what a listing has shown; not held to the budget.
    pub(super) async fn clear(&self, key: &Key, version: &Version) -> Result<(), StoreError> {
        self.meter.lock().writes += 1;
        self.store.delete(key, version, self.within).await
    }
}

/// What nobody else can have changed must not be refused.
fn fits<T>(result: Result<T, Stop>, what: &str) -> Result<T, Stop> {
    match result {
        Err(Stop::Failed(StoreError::Conflict)) => {
            let text = format!(
                "{what}, which nobody else writes; expected it to be done, found a conflict (a \
                 client that sends a write again by itself causes one, and so does a stale read)"
            );
            Err(Finding::new(Fault::WrongAnswers, text).into())
        }
        other => other,
    }
}

/// What does not fit must be refused; `what` says what was asked for.
pub(super) fn refused<T>(result: Result<T, Stop>, what: &str) -> Result<(), Stop> {
    match result {
        Err(Stop::Failed(StoreError::Conflict)) => Ok(()),
        Ok(_) => {
            let text = format!("{what}: expected a conflict, found it done");
            Err(Finding::new(Fault::IgnoresPreconditions, text).into())
        }
        Err(other) => Err(other),
    }
}
