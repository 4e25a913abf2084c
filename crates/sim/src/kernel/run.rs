//! One run: a world that lives once, and what was wrong in it.

use std::fmt;

use super::stats::Counts;
use crate::clock::TrueTime;
use crate::trace::Trace;

/// A kind of worlds, each of which is a function of its seed and its options.
pub(crate) trait Simulation: Sized {
    type Options;
    type Stats: Counts;
    type Check;

    /// The world of this seed, which keeps so many lines of its trace; or a
    /// mistake in the simulator itself.
    fn begin(
        seed: u64,
        options: &Self::Options,
        trace: usize,
    ) -> Result<Self, (Self::Check, String)>;

    /// Lives until the end, or until a checker objects.
    fn live(&mut self);

    fn end(self) -> Ended<Self>;

    /// How many lines of the trace a violation shows.
    fn trace_lines(options: &Self::Options) -> usize;
}

/// Which checker objected, when, and what it found.
pub(crate) type Found<C> = (C, TrueTime, String);

/// What a world leaves behind.
pub(crate) struct Ended<W: Simulation> {
    pub(crate) stats: W::Stats,
    /// What kind of world it was.
    pub(crate) world: String,
    pub(crate) found: Option<Found<W::Check>>,
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

fn live<W: Simulation>(seed: u64, options: &W::Options, trace: usize) -> Ended<W> {
    match W::begin(seed, options, trace) {
        Ok(mut world) => {
            world.live();
            world.end()
        }
        Err((check, text)) => {
            let mut told = Trace::new(1);
            told.note(0, "*", None, &text);
            Ended {
                stats: W::Stats::default(),
                world: String::new(),
                found: Some((check, 0, text)),
                trace: told,
            }
        }
    }
}

/// Runs one world. The same seed and options give the same verdict.
pub(crate) fn run<W: Simulation>(seed: u64, options: &W::Options) -> Verdict<W::Stats, W::Check> {
    let (mut ended, lines) = (live::<W>(seed, options, 0), W::trace_lines(options));
    let stats = ended.stats;
    // Only a run that failed is worth the price of a trace.
    if ended.found.is_some() && lines > 0 {
        ended = live::<W>(seed, options, lines);
    }
    let Ended {
        world,
        found,
        trace,
        ..
    } = ended;
    let violation = found.map(|(check, at_ns, text)| {
        Box::new(Violation {
            seed,
            check,
            at_ns,
            text,
            world,
            trace: trace.into_lines(),
        })
    });
    Verdict { stats, violation }
}

/// The whole trace of a run.
pub(crate) fn trace<W: Simulation>(seed: u64, options: &W::Options) -> Vec<String> {
    live::<W>(seed, options, usize::MAX).trace.into_lines()
}
