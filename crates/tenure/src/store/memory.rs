//! Registers in this process's memory: [`tenure_core::cas`] behind a lock.
//!
//! For tests, examples, and programs whose candidates are threads. It forgets
//! everything when the process ends, terms included.
//!
//! The clock is read before the register that it is compared with: a thread
//! that is paused between the two must not show a grant as over that was
//! renewed meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::cas::{Change, Registers};
use tenure_core::ids::Name;

use super::hub::Hub;
use super::{
    BoxFuture, CandidateRegistration, Clock, Features, Key, PAGE_MAX, Page, Reading, Selector,
    Store, Version, Watch, Write, Written, refuse_oversized,
};
use crate::clock;
use crate::error::StoreError;

/// Registers in memory. Clones are the same store.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    registers: Mutex<Registers>,
    hub: Hub,
    /// Who stands in which election, and how often.
    candidates: Mutex<BTreeMap<(Name, Name), usize>>,
}

impl Shared {
    fn candidates(&self) -> MutexGuard<'_, BTreeMap<(Name, Name), usize>> {
        self.candidates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A candidate's place in the list.
struct Place {
    shared: Arc<Shared>,
    /// Its election and its name.
    of: (Name, Name),
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut candidates = self.shared.candidates();
        if let Some(count) = candidates.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                candidates.remove(&self.of);
            }
        }
    }
}

impl Memory {
    /// No registers yet.
    pub fn new() -> Self {
        let hub = Hub::default();
        hub.mark_up();
        // Watches are told of every change as it happens: no log is needed.
        let registers = Mutex::new(Registers::new(1));
        Self {
            shared: Arc::new(Shared {
                registers,
                hub,
                candidates: Mutex::default(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registers> {
        self.shared
            .registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the last change, in the order of effect: the lock is still
    /// held.
    fn publish_last(&self, registers: &Registers) {
        let last = registers.revision().saturating_sub(1);
        let Ok(mut changes) = registers.changes_after(last) else {
            return;
        };
        let at = Version::from_u64(registers.revision());
        match changes.next() {
            Some(Change {
                key,
                register: Some(register),
                ..
            }) => self.shared.hub.publish(key, register.clone()),
            Some(Change { key, .. }) => self.shared.hub.publish_gone(key, at),
            None => true,
        };
    }

    fn swap(&self, write: Write) -> Result<Written, StoreError> {
        refuse_oversized(&write)?;
        let now = clock::shared();
        let mut registers = self.lock();
        let version = registers
            .compare_and_swap(write, now)
            .map_err(|_| StoreError::Conflict)?;
        self.publish_last(&registers);
        Ok(Written { version, now })
    }

    fn remove(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let mut registers = self.lock();
        registers
            .delete(key, expected)
            .map_err(|_| StoreError::Conflict)?;
        self.publish_last(&registers);
        Ok(())
    }

    fn held(&self, key: &Key) -> Reading {
        let now = clock::shared();
        let register = self.lock().read(key).cloned();
        Reading {
            register,
            now,
            bound: None,
        }
    }

    fn page(&self, prefix: &str, after: Option<&Key>) -> Page {
        let now = clock::shared();
        let registers = self.lock();
        let mut left = registers
            .list(prefix)
            .filter(|(key, _)| after.is_none_or(|after| *key > after))
            .map(|(key, register)| (key.clone(), register.clone()));
        let page: Vec<_> = left.by_ref().take(PAGE_MAX).collect();
        let more_after = left
            .next()
            .and_then(|_| page.last())
            .map(|(key, _)| key.clone());
        Page {
            registers: page,
            more_after,
            now,
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}

impl Store for Memory {
    fn features(&self) -> Features {
        Features {
            clock: Clock::CannotStep,
            judge_by_store_clock: false,
        }
    }

    fn register_candidate(&self, election: &Name, name: &Name) -> Option<CandidateRegistration> {
        let of = (election.clone(), name.clone());
        *self.shared.candidates().entry(of.clone()).or_default() += 1;
        let shared = Arc::clone(&self.shared);
        Some(Box::new(Place { shared, of }))
    }

    fn candidates(&self, election: &Name) -> Option<BTreeSet<Name>> {
        let candidates = self.shared.candidates();
        let standing = candidates.keys().filter(|(of, _)| of == election);
        Some(standing.map(|(_, name)| name.clone()).collect())
    }

    fn read<'a>(&'a self, key: &'a Key, _: Duration) -> BoxFuture<'a, Result<Reading, StoreError>> {
        Box::pin(std::future::ready(Ok(self.held(key))))
    }

    fn compare_and_swap(
        &self,
        write: Write,
        _: Duration,
    ) -> BoxFuture<'_, Result<Written, StoreError>> {
        Box::pin(std::future::ready(self.swap(write)))
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        _: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(std::future::ready(self.remove(key, expected)))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        _: Duration,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(std::future::ready(Ok(self.page(prefix, after))))
    }

    fn watch(&self, selector: Selector) -> Watch {
        // Under the lock, so that no change falls between follow and fetch.
        let registers = self.lock();
        let watch = self.shared.hub.subscribe(selector.clone());
        let hub = &self.shared.hub;
        match &selector {
            Selector::Key(key) => {
                match registers.read(key) {
                    Some(register) => hub.publish(key, register.clone()),
                    None => hub.publish_gone(key, Version::from_u64(registers.revision())),
                };
            }
            Selector::Prefix(prefix) => {
                for (key, register) in registers.list(prefix) {
                    hub.publish(key, register.clone());
                }
            }
        }
        watch
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::time::StoreTime;

    use super::*;

    /// Reads while another holds the lock; whether the clock shows a time
    /// before the other let go.
    fn is_read_before(read: impl Fn(&Memory) -> Option<StoreTime> + Sync) -> bool {
        let memory = Memory::new();
        (1..=20).any(|attempt| {
            std::thread::scope(|scope| {
                let registers = memory.lock();
                let reading = scope.spawn(|| read(&memory));
                // Until it waits for the lock; if it does not yet, once more.
                std::thread::sleep(Duration::from_millis(5 * attempt));
                let before = clock::shared().expect("a clock").nanos;
                drop(registers);
                let now = reading.join().expect("no panic");
                now.expect("a clock").nanos < before
            })
        })
    }

    #[tokio::test]
    async fn it_conforms() {
        let store: Arc<dyn Store> = Arc::new(Memory::new());
        crate::store::conformance::all(&store, "try/").await;
    }

    #[test]
    fn the_clock_is_read_before_the_register() {
        let key = Key::new("key").expect("a key");
        assert!(is_read_before(|memory| memory.held(&key).now));
        assert!(is_read_before(|memory| memory.page("", None).now));
    }
}
