//! What a cluster has given out that may be lost, and its backup.

use std::collections::BTreeSet;

use tenure_alpo::{Outcome, SessionId, State};
use tenure_core::ids::Version;
use tenure_core::rng::Rng;

/// What was given out to clients.
#[derive(Clone, Default)]
pub(super) struct HighestGiven {
    pub(super) versions: BTreeSet<Version>,
    pub(super) sessions: BTreeSet<SessionId>,
    pub(super) numbers: BTreeSet<u64>,
}

impl HighestGiven {
    pub(super) fn note(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Swapped(version) => drop(self.versions.insert(version.clone())),
            Outcome::Opened(session) => drop(self.sessions.insert(*session)),
            Outcome::Appended(number) => drop(self.numbers.insert(*number)),
            _ => {}
        }
    }

    pub(super) fn has(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Swapped(version) => self.versions.contains(version),
            Outcome::Opened(session) => self.sessions.contains(session),
            Outcome::Appended(number) => self.numbers.contains(number),
            _ => false,
        }
    }
}

/// What a run knows of its own loss.
pub(super) struct ClusterLoss {
    /// Apart from the run's, so that this changes nothing in it.
    pub(super) rng: Rng,
    pub(super) given_out: HighestGiven,
    pub(super) backup: Option<State>,
}

impl ClusterLoss {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::from_seed(seed ^ 0x7e57_04ed_0b5e_55ed),
            given_out: HighestGiven::default(),
            backup: None,
        }
    }
}
