//! Standing only while other elections are led by this candidate's namesake
//! (§4.8).
//!
//! Each of them is followed like an own one, by watch or by reading, and
//! judged by the same rules; an outage is not news. The candidate may stand
//! while all of them are led under its name.

use alloc::vec::Vec;

use tenure_core::call::Pending;
use tenure_core::ids::{Key, Name};
use tenure_core::time::{Instant, Now};

use crate::{Config, LeaseJudge, LeaseState};

/// One other election whose leader must have this candidate's name.
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
    /// Those that are configured.
    pub(super) fn all(config: &Config, now: Now) -> Vec<Self> {
        let others = config.affinity.iter();
        others
            .map(|election| Self::new(election, config, now))
            .collect()
    }

    fn new(election: &Name, config: &Config, now: Now) -> Self {
        Self {
            key: Key::of_election(election),
            config: Config {
                election: election.clone(),
                affinity: Vec::new(),
                ..config.clone()
            },
            judge: LeaseJudge::new(),
            pending: None,
            read_at: now.boot,
            failed: false,
        }
    }

    /// Whether a candidate of this name may stand, as far as this election goes.
    pub(super) fn is_led_by(&self, name: &Name) -> bool {
        let leader = self.judge.leader();
        leader.is_some_and(|leader| leader.name == *name)
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
