//! Sweeps over seeds, one run after the other, and what they found.

use std::fmt;

use super::run::{Verdict, Violation};
use super::stats::Counts;

/// What a sweep found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report<S, C> {
    /// The first seed.
    pub first_seed: u64,
    /// What happened, over all runs.
    pub stats: S,
    /// What was wrong, at most [`Report::VIOLATIONS_MAX`] of it.
    pub violations: Vec<Violation<C>>,
    /// How many runs failed.
    pub failed: u64,
}

impl<S: Counts, C> Report<S, C> {
    /// The most violations that are kept whole.
    pub const VIOLATIONS_MAX: usize = 10;

    /// No runs as yet.
    pub fn new(first_seed: u64) -> Self {
        Self {
            first_seed,
            stats: S::default(),
            violations: Vec::new(),
            failed: 0,
        }
    }

    /// Adds the report of other runs, for sweeps that were split.
    pub fn merge(&mut self, other: Self) {
        self.stats.add(&other.stats);
        self.failed += other.failed;
        self.violations.extend(other.violations);
        self.violations.sort_by_key(|violation| violation.seed);
        self.violations.truncate(Self::VIOLATIONS_MAX);
    }

    /// Whether nothing was wrong.
    pub const fn is_clean(&self) -> bool {
        self.failed == 0
    }
}

impl<S: Counts, C> fmt::Display for Report<S, C>
where
    Violation<C>: fmt::Display,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.stats)?;
        for violation in &self.violations {
            writeln!(f, "\n{violation}")?;
        }
        match self.failed {
            0 => write!(f, "nothing was violated, from seed {}", self.first_seed),
            failed => write!(f, "{failed} runs failed, from seed {}", self.first_seed),
        }
    }
}

/// Runs the seeds from `first_seed`, one after the other, until `go_on` says
/// no of what was found so far.
pub(crate) fn sweep<S: Counts, C>(
    first_seed: u64,
    runs: u64,
    run: impl Fn(u64) -> Verdict<S, C>,
    mut go_on: impl FnMut(&Report<S, C>) -> bool,
) -> Report<S, C> {
    let mut report = Report::new(first_seed);
    for number in 0..runs {
        let Verdict { stats, violation } = run(first_seed.wrapping_add(number));
        report.merge(Report {
            first_seed,
            stats,
            failed: u64::from(violation.is_some()),
            violations: violation.map(|it| *it).into_iter().collect(),
        });
        if !go_on(&report) {
            break;
        }
    }
    report
}
