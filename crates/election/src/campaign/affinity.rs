//! Standing only while another election is led by this candidate's namesake
//! (§4.8).
//!
//! The other election is followed like an own one, by watch or by reading,
//! and judged by the same rules; an outage is not news.

use tenure_core::cas::Register;
use tenure_core::ids::Key;
use tenure_core::time::{Instant, Now};

use super::context::Context;
use super::types::Pending;
use super::{Answer, Call};
use crate::{Config, Leader, LeaseJudge, LeaseState, News};

/// The other election whose leader must have this candidate's name.
#[derive(Clone, Debug)]
pub(super) struct Affinity {
    key: Key,
    config: Config,
    judge: LeaseJudge,
    pending: Option<Pending>,
    read_at: Instant,
    /// The last look failed: do not look again before `read_at`.
    failed: bool,
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

    fn due(&self) -> Instant {
        match self.judge.lease_state() {
            LeaseState::Held { expires_at } if !self.failed => self.read_at.min(expires_at),
            _ => self.read_at,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.pending
            .as_ref()
            .map_or_else(|| self.due(), |pending| pending.give_up_at)
    }
}

impl Context {
    /// Whether this candidate may stand: it has no affinity, or the other
    /// election is led by its namesake.
    pub(super) fn may_stand(&self) -> bool {
        let namesake = |leader: Leader| leader.name == self.config.name;
        let stands = |other: &Affinity| other.judge.leader().is_some_and(namesake);
        self.affinity.as_ref().is_none_or(stands)
    }

    pub(super) fn affinity_answer(&mut self, call: Call, answer: &Answer) -> bool {
        let (now, look) = (self.now, self.next_look(false));
        let Some(other) = &mut self.affinity else {
            return false;
        };
        let Some(pending) = other.pending.take_if(|pending| pending.call == call) else {
            return false;
        };
        other.read_at = look;
        other.failed = !matches!(answer, Answer::Read(Ok(_)));
        if let Answer::Read(Ok(reading)) = answer {
            other.judge.read(&other.config, now, pending.asked, reading);
        }
        true
    }

    pub(super) fn affinity_seen(&mut self, key: &Key, register: Option<&Register>) -> bool {
        let now = self.now;
        let Some(other) = self.affinity.as_mut().filter(|other| other.key == *key) else {
            return false;
        };
        if other.judge.hint(&other.config, now, register) == News::Unplaced {
            other.read_at = now.boot;
        }
        true
    }

    pub(super) fn affinity_advance(&mut self) {
        let now = self.now.boot;
        let Some(other) = &mut self.affinity else {
            return;
        };
        if other
            .pending
            .as_ref()
            .is_some_and(|pending| pending.is_given_up(now))
        {
            other.pending = None;
            other.failed = true;
            other.read_at = now;
        }
        if other.pending.is_some() || now < other.due() {
            return;
        }
        let key = other.key.clone();
        let pending = self.request_read_of(key);
        if let Some(other) = &mut self.affinity {
            other.pending = Some(pending);
            other.read_at = Instant::MAX;
        }
    }
}
