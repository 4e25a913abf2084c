//! What came of a check.

use super::advice::Advice;
use super::clock_trial::ClockSeen;
use super::finding::Finding;
use super::latency::Latencies;

/// What came of a trial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// No breach: what was tried.
    Passed(String),
    /// Breaches.
    Found(Vec<Finding>),
    /// It was not tried, or not to its end: why.
    NotTried(String),
    /// It does not apply to this store, or was not asked for: why.
    LeftOut(String),
}

/// A trial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trial {
    /// Its name, a word.
    pub name: &'static str,
    /// What came of it.
    pub outcome: Outcome,
}

/// Whether elections may be kept in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No trial found a breach.
    Fit,
    /// A trial found one.
    Unfit,
    /// No breach was found, and a trial could not be made.
    Incomplete,
}

impl Verdict {
    /// A word for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fit => "fit",
            Self::Unfit => "unfit",
            Self::Incomplete => "incomplete",
        }
    }
}

/// What came of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// The store, without its password.
    pub store: String,
    /// What the keys of all registers of the check begin with.
    pub prefix: String,
    /// The trials, in their order.
    pub trials: Vec<Trial>,
    /// How long calls took, if that was measured.
    pub latencies: Option<Latencies>,
    /// The store's clock, if it has one and it was looked at.
    pub clock: Option<ClockSeen>,
    /// Which lease would do.
    pub advice: Option<Advice>,
    /// How many reads were made; a listing counts each register.
    pub reads: u64,
    /// How many writes and deletions were asked for.
    pub writes: u64,
    /// What the check itself cost, in US dollars by Amazon's list price, of an
    /// object store of Amazon.
    pub dollars: Option<f64>,
    /// What could not be deleted in the end, if anything, and why.
    pub left_behind: Option<String>,
    /// Whether it was told to stop.
    pub interrupted: bool,
}

impl Report {
    /// All breaches.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.trials.iter().flat_map(|trial| match &trial.outcome {
            Outcome::Found(findings) => findings.as_slice(),
            _ => &[],
        })
    }

    /// Whether elections may be kept in the store.
    pub fn verdict(&self) -> Verdict {
        let undone = |trial: &Trial| matches!(trial.outcome, Outcome::NotTried(_));
        if self.findings().next().is_some() {
            Verdict::Unfit
        } else if self.interrupted || self.trials.iter().any(undone) {
            Verdict::Incomplete
        } else {
            Verdict::Fit
        }
    }
}
