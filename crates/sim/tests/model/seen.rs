//! What was reached: a check that never came to anything proves nothing.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::model::World;

/// The most of everything, over all states.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    term: AtomicU64,
    reigns: AtomicU64,
    committed: AtomicU64,
    log: AtomicU64,
    messages: AtomicU64,
    crashes: AtomicU64,
    lossy_crashes: AtomicU64,
}

impl Seen {
    pub(crate) fn note(&self, world: &World) {
        let most = |cell: &AtomicU64, value: u64| {
            if value > cell.load(Ordering::Relaxed) {
                cell.fetch_max(value, Ordering::Relaxed);
            }
        };
        for host in &world.hosts {
            most(&self.term, host.node.term().get());
            most(&self.log, host.node.log().last().id);
        }
        most(&self.reigns, world.past.count);
        most(&self.committed, world.past.committed() as u64);
        most(&self.messages, world.wire.len() as u64);
    }

    pub(crate) fn crashed(&self, lost: bool) {
        self.crashes.fetch_add(1, Ordering::Relaxed);
        self.lossy_crashes
            .fetch_add(u64::from(lost), Ordering::Relaxed);
    }

    /// The most entries that were committed in a state.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// The most leaderships that there were in a state's past.
    pub(crate) fn reigns(&self) -> u64 {
        self.reigns.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        write!(
            f,
            "up to term {}, {} reigns, {} entries in a log, {} committed, {} messages on the \
             wire; {} crashes, {} with loss",
            get(&self.term),
            get(&self.reigns),
            get(&self.log),
            get(&self.committed),
            get(&self.messages),
            get(&self.crashes),
            get(&self.lossy_crashes),
        )
    }
}
