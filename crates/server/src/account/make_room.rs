//! Which connection makes room for a caller that holds little and finds none.
//!
//! A caller may hold as much as is free for all ([`CallerAccount::within`]). That leaves
//! room to those who hold little while others give back what they hold. It does not where
//! they never do: each new caller takes half of what the ones before it have left, and after
//! a dozen of them nothing is left. A client need only ask, give HTTP/2 no room for the
//! answers, and stay.
//!
//! So where a caller is refused because others hold so much, a connection is closed: of those
//! over which next to nothing was finished for a while ([`STALLED_AFTER`]) one of the caller
//! that holds most, and of that caller the one that holds most. Only a caller that holds more
//! than twice as much makes room. One connection goes at a time ([`LOOK_AGAIN`]), for what
//! it held is free a moment later.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_core::time::Instant;
use tenure_runtime::clock;

use super::{Account, CallerAccount, Connection, Full, Usage};

/// For how long next to nothing was finished over a connection that makes room.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// How soon another one makes room.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Less than one of so many parts of what a connection holds is next to nothing.
const PARTS: usize = 8;

/// What is held, and scarce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resource {
    Requests,
    /// Answers of calls and of exchanges.
    Answers,
}

impl Resource {
    pub(super) fn held(self, usage: &Usage) -> usize {
        match self {
            Self::Requests => usage.requests.load(std::sync::atomic::Ordering::Relaxed),
            Self::Answers => usage.answers.held(),
        }
    }
}

/// The connections of a server's clients.
#[derive(Debug, Default)]
pub(super) struct Connections {
    next: u64,
    known: HashMap<u64, Entry>,
    /// When one was looked for last.
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    connection: Weak<Connection>,
    /// How much had been finished, at which time.
    seen: Option<(usize, Instant)>,
}

impl Connections {
    /// The number of the next connection.
    pub(super) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn put(&mut self, connection: &Arc<Connection>) {
        let entry = Entry {
            connection: Arc::downgrade(connection),
            seen: None,
        };
        self.known.insert(connection.number, entry);
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.known.remove(&number);
    }

    /// Whether the connection holds so much and finishes next to nothing of it.
    fn is_stalled(&mut self, connection: &Connection, held: usize, now: Instant) -> bool {
        let Some(entry) = self.known.get_mut(&connection.number) else {
            return false;
        };
        let released = connection.usage.released();
        let (before, at) = *entry.seen.get_or_insert((released, now));
        if now.since(at) < STALLED_AFTER {
            return false;
        }
        if released.wrapping_sub(before) > held / PARTS {
            entry.seen = Some((released, now));
            return false;
        }
        true
    }
}

impl Account {
    pub(super) fn connections(&self) -> MutexGuard<'_, Connections> {
        let connections = self.connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a connection that makes room for `refused`, where others hold so much of
    /// what all may hold, `most`, that less is free than it holds itself.
    pub(super) fn make_room(&self, refused: &CallerAccount, resource: Resource, most: usize) {
        let own = resource.held(&refused.caller);
        let is_scarce = resource.held(refused.usage(Full::Server)) + own > most;
        if !is_scarce || refused.is_stranger() {
            return;
        }
        let now = clock::boot();
        let Some(connections) = self.to_look_at(now) else {
            return;
        };
        let mut held: Vec<_> = connections
            .iter()
            .map(|it| {
                let of_caller = resource.held(&it.last().caller);
                (of_caller, resource.held(&it.usage), it)
            })
            .filter(|(of_caller, held, _)| *of_caller / 2 > own && *held > 0)
            .collect();
        held.sort_by_key(|(of_caller, held, _)| Reverse((*of_caller, *held)));
        let mut known = self.connections();
        // Each is looked at, so that it is known later how much was finished meanwhile.
        let mut stalled = None;
        for (_, held, connection) in held {
            if known.is_stalled(connection, held, now) && stalled.is_none() {
                stalled = Some(connection);
            }
        }
        if let Some(connection) = stalled {
            known.remove(connection.number);
            connection.evicted.notify_one();
        }
        drop(known);
    }

    /// The connections, if it is time to look at them again. They are dropped without
    /// the lock, which a connection takes when it ends.
    fn to_look_at(&self, now: Instant) -> Option<Vec<Arc<Connection>>> {
        let mut connections = self.connections();
        let last = connections.looked_at;
        if last.is_some_and(|at| now.since(at) < LOOK_AGAIN) {
            return None;
        }
        connections.looked_at = Some(now);
        let known = connections.known.values();
        Some(known.filter_map(|it| it.connection.upgrade()).collect())
    }
}
