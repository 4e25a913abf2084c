//! Never two works of one election at one true instant, and none after the
//! `kill_at` of the latest grant its guardian knows.
//!
//! Work on a suspended machine does not run; it is looked at again when the
//! machine wakes.

use tenure_core::ids::Term;

use super::Finding;
use crate::clock::TrueTime;

#[derive(Clone, Copy, Debug)]
struct Running {
    election: usize,
    term: Term,
}

/// The works of all processes.
#[derive(Clone, Debug)]
pub(crate) struct Works {
    running: Vec<Option<Running>>,
}

impl Works {
    pub(crate) fn new(processes: usize) -> Self {
        Self {
            running: vec![None; processes],
        }
    }

    /// Work begins, or goes on after a suspend.
    pub(crate) fn runs(&mut self, process: usize, election: usize, term: Term) -> Finding {
        let mut others = self.running.iter().enumerate();
        let rival = others.find_map(|(who, running)| {
            running.filter(|running| who != process && running.election == election)
        });
        let before = self.running[process].replace(Running { election, term });
        match rival.or(before) {
            None => Ok(()),
            Some(rival) => Err(format!(
                "work of term {term} runs while work of term {} does",
                rival.term
            )),
        }
    }

    /// Work has ended, or its machine is suspended.
    pub(crate) fn rests(&mut self, process: usize) {
        self.running[process] = None;
    }

    /// Work that ended at `now` should have by `kill_at`, both in true time.
    pub(crate) fn ended(term: Term, now: TrueTime, kill_at: TrueTime) -> Finding {
        if now <= kill_at {
            return Ok(());
        }
        Err(format!(
            "work of term {term} ran until {now} ns, past its end at {kill_at} ns"
        ))
    }
}
