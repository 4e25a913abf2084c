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
//! | `kernel` | what the simulators share |
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
mod kernel;
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// What happened.
    pub stats: Stats,
    /// What was wrong, if anything.
    pub violation: Option<Box<Violation>>,
}

/// Runs one world. The same seed and options give the same verdict.
pub fn run(seed: u64, options: &Options) -> Verdict {
    let (stats, violation) = live(seed, options, 0);
    // Only a run that failed is worth the price of a trace.
    let violation = violation.and_then(|_| live(seed, options, options.trace).1);
    Verdict { stats, violation }
}

/// The whole trace of a run.
pub fn trace(seed: u64, options: &Options) -> Vec<String> {
    match World::new(seed, options, usize::MAX) {
        Err(error) => vec![error.to_string()],
        Ok(mut world) => {
            world.run();
            world.trace.into_lines()
        }
    }
}

fn live(seed: u64, options: &Options, trace: usize) -> (Stats, Option<Box<Violation>>) {
    let mut world = match World::new(seed, options, trace) {
        Ok(world) => world,
        Err(error) => {
            let violation = Violation {
                seed,
                check: Check::Liveness,
                at_ns: 0,
                text: error.to_string(),
                world: String::new(),
                trace: Vec::new(),
            };
            return (Stats::default(), Some(Box::new(violation)));
        }
    };
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

/// What a sweep found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The first seed.
    pub first_seed: u64,
    /// What happened, over all runs.
    pub stats: Stats,
    /// What was wrong, at most [`Report::VIOLATIONS_MAX`] of it.
    pub violations: Vec<Violation>,
    /// How many runs failed.
    pub failed: u64,
}

impl Report {
    /// The most violations that are kept whole.
    pub const VIOLATIONS_MAX: usize = 10;

    /// Adds the report of other runs, for sweeps that were split.
    pub fn merge(&mut self, other: Self) {
        self.first_seed = self.first_seed.min(other.first_seed);
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

    /// The report as one JSON object on one line.
    pub fn to_json(&self) -> String {
        let counts = self.stats.fields();
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.stats)?;
        for violation in &self.violations {
            writeln!(f, "\n{violation}")?;
        }
        match self.failed {
            0 => write!(f, "nothing was violated, from seed {}", self.first_seed),
            failed => write!(f, "{failed} runs failed, from seed {}", self.first_seed),
        }
    }
}

/// Runs the seeds from `first_seed`, one after the other. After each run
/// `on_progress` hears how many there were and says whether to go on.
pub fn sweep(
    first_seed: u64,
    runs: u64,
    options: &Options,
    mut on_progress: impl FnMut(u64) -> bool,
) -> Report {
    let mut report = Report {
        first_seed,
        ..Report::default()
    };
    for number in 0..runs {
        let verdict = run(first_seed.wrapping_add(number), options);
        report.stats.add(&verdict.stats);
        if let Some(violation) = verdict.violation {
            report.failed += 1;
            if report.violations.len() < Report::VIOLATIONS_MAX {
                report.violations.push(*violation);
            }
        }
        if !on_progress(number + 1) {
            break;
        }
    }
    report
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
