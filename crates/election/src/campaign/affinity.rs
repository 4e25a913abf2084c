//! Standing only while another election is led by this candidate's namesake
//! (§4.8).
//!
//! The other election is followed like an own one, by watch or by reading,
//! and judged by the same rules; an outage is not news.

use tenure_core::call::Pending;
use tenure_core::ids::Key;
use tenure_core::time::{Instant, Now};

use crate::{Config, LeaseJudge, LeaseState};

/// The other election whose leader must have this candidate's name.
#[derive(Clone, Debug)]
pub(super) struct Affinity {
    pub(super) key: Key,
    pub(super) config: Config,
    pub(super) judge: LeaseJudge,
    pub(super) pending: Option<Pending>,
    pub(super) read_at: Instant,
    /// The last look failed: do not look again before `read_at`.
    pub(super) failed: bool,
}

impl Affinity {
    /// The one that is configured, if any.
    pub(super) fn new(config: &Config, now: Now) -> Option<Self> {
        let election = config.affinity.clone()?;
        Some(Self {
            key: Key::of_election(&election),
            config: Config {
                election,
                affinity: None,
                ..config.clone()
            },
            judge: LeaseJudge::new(),
            pending: None,
            read_at: now.boot,
            failed: false,
        })
    }

    pub(super) const fn key(&self) -> &Key {
        &self.key
    }

    /// Looks as soon as possible, unless the store is in trouble anyway.
    pub(super) const fn look(&mut self, now: Instant) {
        if !self.failed {
            self.read_at = now;
        }
    }

    pub(super) fn due(&self) -> Instant {
        match self.judge.lease_state() {
            LeaseState::Held { expires_at } if !self.failed => self.read_at.min(expires_at),
            _ => self.read_at,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        let due = || self.due();
        self.pending.map_or_else(due, |pending| pending.give_up_at)
    }
}
