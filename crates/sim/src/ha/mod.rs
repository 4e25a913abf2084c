//! A deterministic simulator of groups whose workloads move off dead
//! machines.
//!
//! It drives the very node that runs in production ([`tenure_group`])
//! through worlds in which messages are lost, late and damaged, agents pause
//! and crash, machines reboot, clocks drift, the store goes away, registers
//! are deleted by hand, and users deploy, move, undeploy and drain all the
//! time; and it checks, in true time, that no workload ever runs twice. A run
//! is a function of its seed. `docs/design/groups.md` tells the whole of it.

mod agent;
mod checkers;
mod contents;
mod events;
mod faults;
mod lossy_store;
mod machine_clocks;
mod options;
mod recovery_checks;
mod scenario;
mod simulated_agent;
mod simulated_store;
mod stats;
mod store;
mod swarm;
mod tickets;
mod users;
mod world;

use std::fmt;

pub use checkers::Check;
pub use options::Options;
pub use scenario::Scenario;
pub use stats::Stats;
#[cfg(feature = "planted-bugs")]
pub use tenure_group::Bug;
use world::World;

/// Something that must be true was not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The run, which [`run`] repeats.
    pub seed: u64,
    /// Which checker objected.
    pub check: Check,
    /// When, in nanoseconds of true time.
    pub at_ns: u64,
    /// What it found.
    pub text: String,
    /// The world it happened in.
    pub world: String,
    /// The last lines of the trace.
    pub trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.world)?;
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        let Self {
            seed, check, text, ..
        } = self;
        write!(
            f,
            "seed {seed} violates '{check}': {text}\n\
             again: tenure sim ha --runs 1 --seed {seed}"
        )
    }
}

/// How a run ended, or many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// What happened.
    pub stats: Stats,
    /// What was wrong, if anything: the run with the lowest seed.
    pub violation: Option<Box<Violation>>,
}

/// Runs one world. The same seed and options give the same report.
pub fn run(seed: u64, options: &Options) -> Report {
    let (stats, violation) = live(seed, options, 0);
    // Only a run that failed is worth the price of a trace.
    let violation = violation.and_then(|_| live(seed, options, options.trace).1);
    Report { stats, violation }
}

/// The whole trace of a run.
pub fn trace(seed: u64, options: &Options) -> Vec<String> {
    let mut world = World::new(seed, options, usize::MAX);
    world.run();
    world.trace.into_lines()
}

fn live(seed: u64, options: &Options, trace: usize) -> (Stats, Option<Box<Violation>>) {
    let mut world = World::new(seed, options, trace);
    world.run();
    let (stats, described) = (world.stats, world.swarm.to_string());
    let violation = world.found.map(|(check, at_ns, text)| {
        Box::new(Violation {
            seed,
            check,
            at_ns,
            text,
            world: described,
            trace: world.trace.into_lines(),
        })
    });
    (stats, violation)
}

/// Runs the seeds from `first` on, until one breaks a rule or `go_on` says
/// no.
pub fn sweep(
    first: u64,
    runs: u64,
    options: &Options,
    mut go_on: impl FnMut(&Stats) -> bool,
) -> Report {
    let mut stats = Stats::default();
    for number in 0..runs {
        let report = run(first.wrapping_add(number), options);
        stats.add(&report.stats);
        if report.violation.is_some() || !go_on(&stats) {
            let violation = report.violation;
            return Report { stats, violation };
        }
    }
    Report {
        stats,
        violation: None,
    }
}
