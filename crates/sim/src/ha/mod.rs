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

use crate::kernel;
use world::World;

/// Something that must be true was not.
pub type Violation = kernel::Violation<Check>;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f, "tenure sim ha")
    }
}

/// How a run ended.
pub type Verdict = kernel::Verdict<Stats, Check>;

/// What a sweep found.
pub type Report = kernel::Report<Stats, Check>;

/// Runs one world. The same seed and options give the same verdict.
pub fn run(seed: u64, options: &Options) -> Verdict {
    kernel::run(seed, options.trace, |trace| {
        World::live(seed, options, trace)
    })
}

/// The whole trace of a run.
pub fn trace(seed: u64, options: &Options) -> Vec<String> {
    World::live(seed, options, usize::MAX).trace.into_lines()
}

/// Runs the seeds from `first` on, until one breaks a rule or `go_on` says
/// no.
pub fn sweep(
    first: u64,
    runs: u64,
    options: &Options,
    mut go_on: impl FnMut(&Stats) -> bool,
) -> Report {
    let run = |seed| run(seed, options);
    kernel::sweep(first, runs, run, |report| {
        report.is_clean() && go_on(&report.stats)
    })
}
