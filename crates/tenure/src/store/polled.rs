//! A store from the calls of a system: what stores share is done here.
//!
//! Calls end in time and run where the connections live, values that are too large
//! are refused before anything is sent, this process's own writes are told to its
//! watches at once, and those of others are looked for ([`PollTimes`]).
//!
//! A system that tells of changes by itself has a watcher of its own, as those of
//! PostgreSQL and etcd are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::backend::Backend;
use super::hub::Hub;
use super::polling::{self, PollTimes};
use super::watcher::Watcher;
use super::{
    BoxFuture, Durability, Features, Key, Page, Reading, Register, Selector, Stamp, Store, Version,
    Watch, Write, Written, refuse_oversized,
};
use crate::error::StoreError;
use crate::round_trip::RoundTripTimes;
use crate::{clock, drive};

/// What is read to see how long that takes. It need not be there.
const PROBE: &str = "elections/";

/// A store made of a [`Backend`], whose changes are looked for. Clones are the
/// same store.
#[derive(Debug)]
pub struct Polled<B> {
    shared: Arc<Shared<B>>,
}

#[derive(Debug)]
struct Shared<B> {
    backend: Arc<B>,
    hub: Arc<Hub>,
    watcher: Watcher,
    round_trips: RoundTripTimes,
}

impl<B> Clone for Polled<B> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<B: Backend> Polled<B> {
    /// A store of these calls, with watches that look so often. Nothing is called
    /// before it is asked for.
    pub fn new(backend: B, times: PollTimes) -> Self {
        Self::watched_by(backend, |backend, hub| polling::start(backend, hub, times))
    }

    /// A store of these calls, with watches by what `start` begins.
    pub(super) fn watched_by(backend: B, start: impl FnOnce(Arc<B>, Arc<Hub>) -> Watcher) -> Self {
        let (backend, hub) = (Arc::new(backend), Arc::<Hub>::default());
        let watcher = start(Arc::clone(&backend), Arc::clone(&hub));
        Self {
            shared: Arc::new(Shared {
                backend,
                hub,
                watcher,
                round_trips: RoundTripTimes::default(),
            }),
        }
    }

    /// Carries out a call where the connections live; `late` makes the error of
    /// one that takes too long.
    async fn call<T, F>(
        &self,
        within: Duration,
        late: fn(String) -> StoreError,
        call: impl FnOnce(Arc<B>) -> F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (backend, round_trips) = (&self.shared.backend, &self.shared.round_trips);
        let call = timeout(within, call(Arc::clone(backend)));
        let asked = clock::boot();
        match drive::background().spawn(call).await {
            Ok(Ok(answer)) => {
                if answer.is_ok() {
                    round_trips.record(clock::boot().since(asked));
                }
                answer
            }
            Ok(Err(_)) => Err(late(round_trips.timeout_text(&backend.to_string(), within))),
            Err(panicked) => Err(late(format!("a call of {backend} has failed: {panicked}"))),
        }
    }
}

impl<B: Backend> fmt::Display for Polled<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.backend.fmt(f)
    }
}

impl<B: Backend> Store for Polled<B> {
    fn features(&self) -> Features {
        self.shared.backend.features()
    }

    fn durability(&self) -> Durability {
        self.shared.backend.durability()
    }

    fn max_clock_skew(&self) -> Option<Duration> {
        self.shared.backend.max_clock_skew()
    }

    fn max_lease(&self) -> Option<Duration> {
        self.shared.backend.max_lease()
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Reading, StoreError>> {
        let key = key.clone();
        Box::pin(
            self.call(within, StoreError::unavailable, |backend| async move {
                backend.read(&key).await
            }),
        )
    }

    fn compare_and_swap(
        &self,
        write: Write,
        within: Duration,
    ) -> BoxFuture<'_, Result<Written, StoreError>> {
        Box::pin(async move {
            refuse_oversized(&write)?;
            let (key, value, stamp) = (write.key.clone(), write.value.clone(), write.stamp);
            let swap = move |backend: Arc<B>| async move { backend.compare_and_swap(&write).await };
            let written = self.call(within, StoreError::unknown, swap).await?;
            // Of a write that leaves the stamp only the poller learns which it is.
            if stamp == Stamp::Now || written.now.is_none() {
                let register = Register {
                    value,
                    version: written.version.clone(),
                    stamp: written.now,
                };
                self.shared.hub.publish(&key, register);
            }
            Ok(written)
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let (of, version) = (key.clone(), expected.clone());
            let delete = |backend: Arc<B>| async move { backend.delete(&of, &version).await };
            self.call(within, StoreError::unknown, delete).await?;
            self.shared.hub.publish_gone(key, expected.clone());
            Ok(())
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        Box::pin(
            self.call(within, StoreError::unavailable, |backend| async move {
                backend.list(&prefix, after.as_ref()).await
            }),
        )
    }

    fn round_trip(&self, within: Duration) -> BoxFuture<'_, Option<Duration>> {
        const TRIPS: u32 = 3;
        Box::pin(async move {
            let until = clock::boot().after(within);
            let key = Key::new(PROBE).ok()?;
            let mut quickest: Option<Duration> = None;
            for _ in 0..TRIPS {
                let asked = clock::boot();
                self.read(&key, until.since(asked)).await.ok()?;
                let took = clock::boot().since(asked);
                quickest = Some(quickest.map_or(took, |least| least.min(took)));
            }
            quickest
        })
    }

    fn watch(&self, selector: Selector) -> Watch {
        let watch = self.shared.hub.subscribe(selector);
        self.shared.watcher.wake();
        watch
    }
}
