//! One run: a world that lives once, and what was wrong in it.

use std::fmt;

use super::stats::Counts;
use crate::clock::TrueTime;
use crate::trace::Trace;

/// Which checker objected, when, and what it found.
pub(crate) type Found<C> = (C, TrueTime, String);

/// What a world leaves behind.
pub(crate) struct Ended<S, C> {
    pub(crate) stats: S,
    /// What kind of world it was.
    pub(crate) world: String,
    pub(crate) found: Option<Found<C>>,
    pub(crate) trace: Trace,
}

/// Something that must be true was not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation<C> {
    /// The run, which `run` repeats.
    pub seed: u64,
    /// Which checker objected.
    pub check: C,
    /// When, in nanoseconds of true time.
    pub at_ns: u64,
    /// What it found.
    pub text: String,
    /// The world it happened in.
    pub world: String,
    /// The last lines of the trace.
    pub trace: Vec<String>,
}

impl<C: fmt::Display> Violation<C> {
    /// The world, the trace, what was violated, and which command shows it again.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>, command: &str) -> fmt::Result {
        let world = Some(&self.world).filter(|world| !world.is_empty());
        for line in world.into_iter().chain(&self.trace) {
            writeln!(f, "{line}")?;
        }
        let Self {
            seed, check, text, ..
        } = self;
        write!(
            f,
            "seed {seed} violates '{check}': {text}\n\
             again: {command} --runs 1 --seed {seed}"
        )
    }
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict<S, C> {
    /// What happened.
    pub stats: S,
    /// What was wrong, if anything.
    pub violation: Option<Box<Violation<C>>>,
}

/// Runs one world, by a function that keeps so many lines of its trace. A run
/// that failed shows `lines` of them.
pub(crate) fn run<S: Counts, C>(
    seed: u64,
    lines: usize,
    live: impl Fn(usize) -> Ended<S, C>,
) -> Verdict<S, C> {
    let mut ended = live(0);
    let stats = ended.stats;
    // Only a run that failed is worth the price of a trace.
    if ended.found.is_some() && lines > 0 {
        ended = live(lines);
    }
    let violation = ended.found.map(|(check, at_ns, text)| {
        Box::new(Violation {
            seed,
            check,
            at_ns,
            text,
            world: ended.world,
            trace: ended.trace.into_lines(),
        })
    });
    Verdict { stats, violation }
}
