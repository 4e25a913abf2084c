//! A deterministic simulator of clusters.
//!
//! It drives the very node that runs in production (`tenure_alpo`)
//! with 1 to 7 servers, clients, disks and a network of which everything can
//! go wrong, and checks after every step what no server can see. A run is a
//! function of its seed. `docs/evidence/simulation.md` tells the whole of it.
//!
//! | module | what it holds |
//! |---|---|
//! | `world`, `events` | true time, everybody in it, and what can happen |
//! | `swarm` | what kind of world, drawn from the seed |
//! | `host`, `process`, `network` | machines and what joins them |
//! | `disk`, `files` | a server's log, and the files that lose it |
//! | `set_back_disks` | disks that are set back to an earlier copy |
//! | `cloned_processes` | two live processes with one disk |
//! | `copied_disks` | what is planned of both, and remembered |
//! | `bootstrap` | how a cluster begins |
//! | `removed_disks` | disks that were removed and live on |
//! | `client`, `client_calls` | who asks for things, and how |
//! | `shared_sessions`, `intruders` | who uses a session that another client opened |
//! | `readers`, `reader_state` | pages, the user log, stale reads, watches |
//! | `restore_from_backup`, `given_out` | the cluster is lost, and restored from a backup |
//! | `settings_rollout`, `former_settings` | settings that change in turn, disks that stall |
//! | `faults`, `recovery_checks` | what goes wrong, and what must be right after |
//! | `delayed_messages` | messages that come in a later leadership |
//! | `fault_sequences` | faults that only matter in a row |
//! | `lasting_partitions` | networks that are broken in part, for long |
//! | `checkers` | what must be true, a file each |

mod bootstrap;
mod checkers;
mod client;
mod client_calls;
mod cloned_processes;
mod copied_disks;
mod delayed_messages;
mod disk;
mod events;
mod fault_sequences;
mod faults;
mod files;
mod former_settings;
mod given_out;
mod host;
mod intruders;
mod lasting_partitions;
mod network;
mod options;
mod process;
mod reader_state;
mod readers;
mod recovery_checks;
mod removed_disks;
mod restore_from_backup;
mod set_back_disks;
mod settings_rollout;
mod shared_sessions;
mod stats;
mod swarm;
mod world;

use std::fmt;

pub use checkers::Check;
pub use options::{Kinds, Options};
pub use stats::Stats;
#[cfg(feature = "planted-bugs")]
pub use tenure_alpo::Bug;

use crate::kernel;
use world::World;

/// Something that must be true was not.
pub type Violation = kernel::Violation<Check>;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f, "tenure sim cluster")
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

/// The smallest world that still breaks the same rule: shorter, with fewer
/// servers and fewer kinds of faults. Gives the options and the verdict with
/// a trace of `trace` lines.
pub fn shrink(seed: u64, options: &Options, check: Check, trace: usize) -> (Options, Verdict) {
    let breaks = |options: &Options| {
        let found = run(seed, options).violation;
        found.is_some_and(|violation| violation.check == check)
    };
    let mut best = options.clone();
    for index in 0..best.kinds.all().len() {
        let mut less = best.clone();
        *less.kinds.all()[index] = false;
        if less != best && breaks(&less) {
            best = less;
        }
    }
    for servers in 1..=5 {
        let less = Options {
            servers: Some(servers),
            ..best.clone()
        };
        if breaks(&less) {
            best = less;
            break;
        }
    }
    while best.seconds > 1 {
        let less = Options {
            seconds: best.seconds / 2,
            ..best.clone()
        };
        if !breaks(&less) {
            break;
        }
        best = less;
    }
    best.trace = trace;
    let verdict = run(seed, &best);
    (best, verdict)
}
