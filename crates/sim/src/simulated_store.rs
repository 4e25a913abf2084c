//! The simulated store, and what is asked of it.

use std::collections::BTreeMap;

use tenure_core::cas::{Bytes, Registers, Stamp, Write};
use tenure_core::ids::Key;
use tenure_core::time::Instant;
use tenure_election::{Bind, Call};

use crate::clock::{DriftModel, TrueTime};
use crate::kernel::StoreDamage;

/// What is asked of a store.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Read,
    /// With what the register is to hold at the session's end, if it is to
    /// be bound to that.
    Write(Write, Option<Bind>),
    /// Whether the session lives; asked at this time of the asker's clock.
    Confirm(Instant),
    /// The same for other elections of the process.
    Keep(Instant),
}

/// A question on its way.
#[derive(Clone, Debug)]
pub(crate) struct StoreCall {
    pub(crate) p: usize,
    pub(crate) life: u32,
    pub(crate) call: Call,
    pub(crate) key: Key,
    pub(crate) op: Op,
    /// Under which session it is asked, if under one.
    pub(crate) session: Option<usize>,
    /// When its sender stops waiting.
    pub(crate) give_up_at: TrueTime,
    /// For a renewal: how many writes its sender has been shown.
    pub(crate) shown: Option<u64>,
    pub(crate) slow: bool,
}

impl StoreCall {
    /// A keep-alive for elections that nobody looks at.
    pub(crate) const fn of_neighbours(
        p: usize,
        life: u32,
        key: Key,
        session: usize,
        start: Instant,
    ) -> Self {
        Self {
            p,
            life,
            call: Call(0),
            key,
            op: Op::Keep(start),
            session: Some(session),
            give_up_at: TrueTime::MAX,
            shown: None,
            slow: false,
        }
    }
}

/// A line over which changes of one register are told to one process.
#[derive(Clone, Debug)]
pub(crate) struct StoreWatch {
    pub(crate) p: usize,
    pub(crate) election: usize,
    pub(crate) up: bool,
    /// News come in order.
    pub(crate) last: TrueTime,
}

impl StoreWatch {
    pub(crate) const fn new(p: usize, election: usize) -> Self {
        Self {
            p,
            election,
            up: false,
            last: 0,
        }
    }
}

/// The store.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) registers: Registers,
    pub(crate) keys: Vec<Key>,
    pub(crate) curve: DriftModel,
    /// By how much its clock has stepped.
    pub(crate) stepped: u64,
    pub(crate) lines: Vec<StoreWatch>,
    pub(crate) sessions: Sessions,
    /// What it has lost, and what it may give out again.
    pub(crate) store_damage: StoreDamage<()>,
    /// Until when it is down, and whether it says so.
    pub(crate) outage: Option<(TrueTime, bool)>,
    /// Until when it answers the writes of candidates with a conflict, whatever
    /// the register holds.
    pub(crate) refuses_until: TrueTime,
    /// The same for single processes.
    pub(crate) cuts: Vec<Option<(TrueTime, bool)>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionState {
    /// Nothing of it has reached the store yet.
    Unopened,
    /// Last heard of at this time of the store's clock.
    Open {
        heard: u64,
    },
    Over,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) ttl: u64,
    pub(crate) life: SessionState,
}

/// All sessions there have been, and what is bound to those that live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    pub(crate) all: Vec<Session>,
    pub(crate) bound: BTreeMap<Key, (usize, Bytes)>,
}

impl Sessions {
    /// A new one, which nothing has been asked under yet.
    pub(crate) fn draft(&mut self, ttl: u64) -> usize {
        let life = SessionState::Unopened;
        self.all.push(Session { ttl, life });
        self.all.len() - 1
    }

    /// When the session that holds `key` was last heard of, if one does.
    pub(crate) fn heard(&self, key: &Key) -> Option<u64> {
        let (session, _) = self.bound.get(key)?;
        match self.all[*session].life {
            SessionState::Open { heard } => Some(heard),
            SessionState::Unopened | SessionState::Over => None,
        }
    }

    /// Whether a write under `session`, or under none, may be done.
    pub(crate) fn allows(&self, session: Option<usize>, write: &Write) -> bool {
        let holder = self.bound.get(&write.key).map(|(holder, _)| *holder);
        holder.is_none() || holder == session || write.stamp == Stamp::Keep
    }

    /// A write that was allowed has been done.
    pub(crate) fn wrote(&mut self, session: Option<usize>, write: &Write, last: Option<Bytes>) {
        match (session, last) {
            (Some(session), Some(last)) => {
                self.bound.insert(write.key.clone(), (session, last));
            }
            _ if write.stamp == Stamp::Now => {
                self.bound.remove(&write.key);
            }
            _ => {}
        }
    }

    pub(crate) fn held(&self, session: usize) -> Vec<Key> {
        let held = self
            .bound
            .iter()
            .filter(|(_, (holder, _))| *holder == session);
        held.map(|(key, _)| key.clone()).collect()
    }
}
