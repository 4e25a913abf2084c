//! A deterministic simulator of elections.
//!
//! It drives the very machines that run in production (`tenure_election`'s
//! campaign and observer) through worlds in which messages are lost, late and
//! damaged, processes pause, crash and sleep, clocks drift and step, and the
//! store goes away; and it checks, in true time that no process can see, that
//! at most one leadership is valid at any instant, and a dozen things more. A
//! run is a function of its seed: the same seed gives the same trace, byte for
//! byte. `docs/evidence/simulation.md` tells the whole of it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`kernel`] | what the simulators share |
//! | `world`, `events` | true time, everybody in it, and what can happen |
//! | `swarm` | what kind of world, drawn from the seed |
//! | `simulated_process`, `process`, `leadership`, `application`, `guarded`, `confirming` | drivers, applications and guardians of their work |
//! | `simulated_store`, `store`, `sessions`, `clock` | the store behind its network; clocks |
//! | `lossy_store` | stores that forget, restore or fork |
//! | `faults`, `recovery_checks` | what goes wrong, and what must be right after |
//! | `checkers` | what must be true, a file each |
//! | [`cluster`], [`ha`] | the same for replicated logs, and for HA groups |
//! | [`linearize`] | what clients of a store may have been told |
//!
//! Left out: threads (a sweep is split by its caller), real time, and printing
//! (everything is handed back as a value).

mod application;
mod checkers;
mod clock;
pub mod cluster;
mod confirming;
mod events;
mod faults;
mod guarded;
pub mod ha;
pub mod kernel;
mod leadership;
pub mod linearize;
mod lossy_store;
mod options;
mod process;
mod recovery_checks;
mod sessions;
mod simulated_process;
mod simulated_store;
mod stats;
mod store;
mod swarm;
mod trace;
mod world;

use std::fmt;

pub use checkers::Check;
pub use options::{Error, Options};
pub use stats::Stats;
#[cfg(feature = "planted-bugs")]
pub use tenure_election::Bug;

use kernel::Counts;
use world::World;

/// Something that must be true was not.
pub type Violation = kernel::Violation<Check>;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}: {}", self.seed, self.check, self.text)?;
        writeln!(f, "{}", self.world)?;
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        write!(
            f,
            "to see it again: tenure sim --seed {} --runs 1",
            self.seed
        )
    }
}

/// How a run ended.
pub type Verdict = kernel::Verdict<Stats, Check>;

/// What a sweep found.
pub type Report = kernel::Report<Stats, Check>;

impl Report {
    /// The report as one JSON object on one line.
    pub fn to_json(&self) -> String {
        let (runs, ns) = (self.stats.runs, self.stats.simulated_ns);
        let counts = [("runs", "", runs), ("simulated_ns", "", ns)];
        let counts = counts.into_iter().chain(self.stats.fields());
        let counts: Vec<String> = counts.map(|(key, _, n)| format!("\"{key}\":{n}")).collect();
        let violations = self.violations.iter().map(|violation| {
            let lines = violation.trace.iter().map(|line| quoted(line));
            format!(
                "{{\"seed\":{},\"check\":{},\"at_ns\":{},\"text\":{},\"world\":{},\"trace\":[{}]}}",
                violation.seed,
                quoted(&violation.check.to_string()),
                violation.at_ns,
                quoted(&violation.text),
                quoted(&violation.world),
                lines.collect::<Vec<_>>().join(",")
            )
        });
        format!(
            "{{\"first_seed\":{},\"failed\":{},\"stats\":{{{}}},\"violations\":[{}]}}",
            self.first_seed,
            self.failed,
            counts.join(","),
            violations.collect::<Vec<_>>().join(",")
        )
    }
}

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

/// Runs the seeds from `first_seed`, one after the other, until `go_on` says
/// no of what happened so far.
pub fn sweep(
    first_seed: u64,
    runs: u64,
    options: &Options,
    mut go_on: impl FnMut(&Stats) -> bool,
) -> Report {
    let run = |seed| run(seed, options);
    kernel::sweep(first_seed, runs, run, |report| go_on(&report.stats))
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' => "\\\"".into(),
        '\\' => "\\\\".into(),
        '\n' => "\\n".into(),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}
