//! Commands under the sessions of others.

use std::collections::{BTreeMap, BTreeSet};

use tenure_alpo::{ClientRequest, Command, SessionId};
use tenure_core::rng::Rng;

/// What was asked by somebody else.
#[derive(Clone, Debug)]
pub(super) enum Intruder {
    Stranger(Command),
    /// Its number in the history.
    Copy(ClientRequest, usize),
}

/// Those who use sessions that others opened.
#[derive(Debug)]
pub(super) struct SharedSessions {
    pub(super) rng: Rng,
    pub(super) asked: BTreeMap<u64, Intruder>,
    /// Sessions that a copy has used.
    pub(super) copied: BTreeSet<SessionId>,
    pub(super) made: u64,
}

impl SharedSessions {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::from_seed(!seed),
            asked: BTreeMap::new(),
            copied: BTreeSet::new(),
            made: 0,
        }
    }
}
