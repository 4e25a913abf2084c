//! At most one leadership is valid at any instant of true time.
//!
//! A leadership becomes valid, or valid for longer, only when its campaign says
//! so; so it is enough to look at those moments, at the *whole* of what lies
//! ahead. A process that is paused or suspended counts (what it did last may
//! still act on its word), one that has crashed does not.

use tenure_core::ids::Term;
use tenure_core::time::Instant;

use super::Finding;
use crate::clock::TrueTime;

/// A leadership as the world sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) election: usize,
    pub(crate) term: Term,
    /// On its holder's clock.
    pub(crate) valid_until: Instant,
    /// The same in true time.
    pub(crate) until: TrueTime,
}

/// The leaderships of all processes.
#[derive(Clone, Debug)]
pub(crate) struct Exclusivity {
    held: Vec<Option<Held>>,
}

impl Exclusivity {
    pub(crate) fn new(processes: usize) -> Self {
        Self {
            held: vec![None; processes],
        }
    }

    /// What `process` holds.
    pub(crate) fn of(&self, process: usize) -> Option<Held> {
        self.held[process]
    }

    /// `process` holds another grant than before, or none.
    pub(crate) fn note(&mut self, process: usize, now: TrueTime, held: Option<Held>) -> Finding {
        self.held[process] = held;
        let Some(mine) = held.filter(|held| held.until > now) else {
            return Ok(());
        };
        let rival = self
            .valid(mine.election, now)
            .find(|(who, _)| *who != process);
        match rival {
            None => Ok(()),
            Some((_, rival)) => Err(format!(
                "two valid leaderships at once: term {} until {} ns and term {} until {} ns of true \
                 time",
                rival.term, rival.until, mine.term, mine.until
            )),
        }
    }

    /// Who holds a valid leadership in `election` at `now`.
    pub(crate) fn valid(
        &self,
        election: usize,
        now: TrueTime,
    ) -> impl Iterator<Item = (usize, Held)> {
        self.held.iter().enumerate().filter_map(move |(who, held)| {
            let held = held.filter(|held| held.election == election && held.until > now)?;
            Some((who, held))
        })
    }
}
