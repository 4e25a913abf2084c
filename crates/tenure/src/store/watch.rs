//! What a watch of a register looks like to its reader.
//!
//! A watch is a *hint that carries the news*: each sighting is a state the
//! register really had, in order, but some may be skipped (only the latest
//! unseen one of each key is kept, so a slow reader costs no memory), and
//! silence proves nothing (the connection may be dead). A caller that must be
//! sure reads the register.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::{Key, Register};

/// What to watch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Selector {
    /// One register.
    Key(Key),
    /// All registers whose key begins with this.
    Prefix(String),
}

impl Selector {
    /// Whether it selects `key`.
    pub fn selects(&self, key: &Key) -> bool {
        match self {
            Self::Key(wanted) => wanted == key,
            Self::Prefix(prefix) => key.as_str().starts_with(prefix.as_str()),
        }
    }
}

/// What a watch saw.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Sighting {
    /// The register of this key had this state (`None`: it did not exist).
    /// The first sighting of a key is its state when the watch began.
    State(Key, Option<Register>),
    /// The watch is up: changes will be reported within the store's usual
    /// delay.
    Live,
    /// The watch is down, and why. It is being mended; poll meanwhile.
    Down(String),
}

/// The reader's end of a watch. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
}

/// The store's end of a watch.
#[derive(Clone, Debug)]
pub struct Feed {
    selector: Selector,
    shared: Arc<Shared>,
    /// When it began, by the hub's time, if what was known then has yet to be
    /// sent.
    pub(super) replay_up_to: Option<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    /// `Some` when the watch has come up or gone down since that was last read.
    status: Option<Sighting>,
    states: BTreeMap<Key, Option<Register>>,
}

impl Watch {
    /// A watch and the store's end of it.
    pub fn new(selector: Selector) -> (Feed, Self) {
        let shared = Arc::new(Shared::default());
        (
            Feed {
                selector,
                shared: Arc::clone(&shared),
                replay_up_to: None,
            },
            Self { shared },
        )
    }

    /// The next sighting. Never ends; waits while there is no news.
    /// Cancelling it loses nothing.
    pub async fn next(&mut self) -> Sighting {
        loop {
            let arrived = self.shared.arrived.notified();
            if let Some(sighting) = self.take() {
                return sighting;
            }
            arrived.await;
        }
    }

    fn take(&self) -> Option<Sighting> {
        let mut pending = self
            .shared
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let status = pending.status.take();
        match status {
            Some(status) => Some(status),
            None => pending
                .states
                .pop_first()
                .map(|(key, register)| Sighting::State(key, register)),
        }
    }
}

impl Feed {
    /// What the reader wants to see.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Whether the reader has gone, so that the feed can be dropped.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// Reports a sighting. One of a key that is not selected is dropped.
    pub fn send(&self, sighting: Sighting) {
        let mut pending = self
            .shared
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match sighting {
            Sighting::State(key, register) if self.selector.selects(&key) => {
                pending.states.insert(key, register);
            }
            Sighting::State(..) => return,
            status => pending.status = Some(status),
        }
        drop(pending);
        self.shared.arrived.notify_one();
    }
}
