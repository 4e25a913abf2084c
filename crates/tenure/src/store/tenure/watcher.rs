//! Watches of registers of a cluster.
//!
//! A few registers are watched one by one, so that a cluster with a
//! hundred thousand elections tells each process of its own only; many share
//! one watch of what their names have in common.
//!
//! A watch may be served by a server that lags behind, so its news are taken
//! with care. A register that exists carries a version, which tells late news
//! from new; one that does *not* exist carries none, and is read from the
//! leader before it is told. So is what was there when a watch began.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_client::{Client, WatchEvent, WatchTarget};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::drive;
use crate::error::StoreError;
use crate::store::hub::Hub;
use crate::store::watcher::{StoreSignals, Watcher};
use crate::store::{Key, PAGE_MAX, Selector};

/// Above how many registers they share one watch.
const SINGLE_MAX: usize = 64;
/// How long a read may take.
const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// The pause after a read that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts the task.
pub(super) fn start(client: Client, hub: Arc<Hub>) -> Watcher {
    Watcher::start(|store| {
        let task = ClusterWatchTask {
            client,
            hub,
            store,
            states: Arc::default(),
        };
        task.serve()
    })
}

struct ClusterWatchTask {
    client: Client,
    hub: Arc<Hub>,
    store: StoreSignals,
    states: Arc<WatchStates>,
}

/// Which watches are up: the store is, if all of them are.
#[derive(Debug, Default)]
struct WatchStates {
    up: Mutex<BTreeMap<Selector, bool>>,
}

/// A watch under way, ended when this is dropped.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ClusterWatchTask {
    async fn serve(self) {
        let mut running: BTreeMap<Selector, Running> = BTreeMap::new();
        // What is read because nobody knows it yet, and by whom.
        let (mut fetching, mut being_fetched) = (JoinSet::new(), BTreeSet::new());
        loop {
            self.store.woken().await;
            // Many watches begin at once: they are looked at together.
            tokio::task::yield_now().await;
            while let Some(fetched) = fetching.try_join_next() {
                for key in fetched.unwrap_or_default() {
                    being_fetched.remove(&key);
                }
            }
            if self.store.is_closed() {
                return;
            }
            let wanted = self.hub.selectors(SINGLE_MAX);
            running.retain(|selector, _| {
                let keep = wanted.contains(selector);
                if !keep {
                    self.states.forget(selector, &self.hub);
                }
                keep
            });
            for selector in wanted {
                if running.contains_key(&selector) {
                    // A new watch of it knows nothing yet.
                    self.fetch_new(&selector, &mut fetching, &mut being_fetched);
                    continue;
                }
                self.states.set(&selector, false, &self.hub, None);
                let task = self.start_watch(selector.clone());
                running.insert(selector, Running(task.abort_handle()));
            }
        }
    }

    fn single_watch(&self, selector: &Selector) -> SingleWatch {
        SingleWatch {
            client: self.client.clone().with_timeout(FETCH_WITHIN),
            hub: Arc::clone(&self.hub),
            states: Arc::clone(&self.states),
            selector: selector.clone(),
        }
    }

    fn start_watch(&self, selector: Selector) -> JoinHandle<()> {
        drive::background().spawn(self.single_watch(&selector).serve())
    }

    /// Reads what is watched under `selector`, was never published, and is not
    /// being read.
    fn fetch_new(
        &self,
        selector: &Selector,
        fetching: &mut JoinSet<Vec<Key>>,
        being_fetched: &mut BTreeSet<Key>,
    ) {
        let interest = self.hub.interest();
        let unreported: Vec<Key> = interest
            .keys
            .into_iter()
            .filter(|followed| !followed.reported && selector.selects(&followed.key))
            .map(|followed| followed.key)
            .filter(|key| being_fetched.insert(key.clone()))
            .collect();
        let prefixes: Vec<String> = match selector {
            Selector::Prefix(prefix) => interest
                .prefixes
                .into_iter()
                .filter(|other| other.starts_with(prefix))
                .collect(),
            Selector::Key(_) => Vec::new(),
        };
        if unreported.is_empty() && prefixes.is_empty() {
            return;
        }
        let watch = self.single_watch(selector);
        fetching.spawn(async move {
            for key in &unreported {
                watch.fetch(key).await;
            }
            for prefix in prefixes {
                watch.fetch_all(&prefix).await;
            }
            unreported
        });
    }
}

impl WatchStates {
    fn set(&self, selector: &Selector, is_up: bool, hub: &Hub, why: Option<&str>) {
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        up.insert(selector.clone(), is_up);
        if up.values().all(|up| *up) {
            hub.mark_up();
        } else if let Some(why) = why {
            hub.mark_down(why);
        }
    }

    fn forget(&self, selector: &Selector, hub: &Hub) {
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        up.remove(selector);
        if !up.is_empty() && up.values().all(|up| *up) {
            hub.mark_up();
        }
    }
}

/// One watch.
struct SingleWatch {
    client: Client,
    hub: Arc<Hub>,
    states: Arc<WatchStates>,
    selector: Selector,
}

impl SingleWatch {
    async fn serve(self) {
        let target = match &self.selector {
            Selector::Key(key) => WatchTarget::Key(key.clone()),
            Selector::Prefix(prefix) => WatchTarget::Prefix(prefix.clone()),
        };
        let mut changes = self.client.watch(target);
        loop {
            match changes.next().await {
                WatchEvent::Began(_) => {
                    // First up, then published: a watch that begins in between
                    // is sent what is known, or what is read then.
                    self.states.set(&self.selector, true, &self.hub, None);
                    self.fetch_selected().await;
                }
                WatchEvent::Changed(key, Some(register)) => {
                    self.hub.publish(&key, register);
                }
                WatchEvent::Changed(key, None) => self.fetch(&key).await,
                WatchEvent::Live => self.states.set(&self.selector, true, &self.hub, None),
                WatchEvent::Down(why) => {
                    self.states
                        .set(&self.selector, false, &self.hub, Some(&why));
                }
                // Whatever it is: what there is now is no older.
                _ => self.fetch_selected().await,
            }
        }
    }

    /// What is there now, and what was known and is there no more.
    async fn fetch_selected(&self) {
        match &self.selector {
            Selector::Key(key) => self.fetch(key).await,
            Selector::Prefix(prefix) => self.fetch_all(prefix).await,
        }
    }

    /// Reads a register until it is read, and tells of it.
    async fn fetch(&self, key: &Key) {
        loop {
            let moment = self.hub.current_interest();
            match self.client.read(key).await {
                Ok(reading) => {
                    if self.hub.fetched(&moment, key, reading.register) {
                        return;
                    }
                }
                Err(error) => self.report_down(error.into()).await,
            }
        }
    }

    async fn fetch_all(&self, prefix: &str) {
        let interest = self.hub.interest();
        let mut unsure = Vec::new();
        let mut gone: Vec<&Key> = interest
            .keys
            .iter()
            .map(|followed| &followed.key)
            .filter(|key| key.as_str().starts_with(prefix))
            .collect();
        let mut after: Option<Key> = None;
        loop {
            let most = u32::try_from(PAGE_MAX).unwrap_or(u32::MAX);
            let page = match self.client.list(prefix, after.as_ref(), most).await {
                Ok(page) => page,
                Err(error) => {
                    self.report_down(error.into()).await;
                    continue;
                }
            };
            after = page.registers.last().map(|(key, _)| key.clone());
            for (key, register) in page.registers {
                gone.retain(|other| **other != key);
                if !self.hub.fetched(&interest, &key, Some(register)) {
                    unsure.push(key);
                }
            }
            if !page.more {
                break;
            }
        }
        for key in gone.into_iter().chain(&unsure) {
            self.fetch(key).await;
        }
    }

    async fn report_down(&self, error: StoreError) {
        self.states
            .set(&self.selector, false, &self.hub, Some(&error.to_string()));
        tokio::time::sleep(PAUSE).await;
        // The watch itself is well; if the next read is not, it says so.
        self.states.set(&self.selector, true, &self.hub, None);
    }
}
