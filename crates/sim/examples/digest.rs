//! One number for all that happens in the runs of each simulator:
//! `cargo run --release -p tenure-sim --example digest -- [RUNS]`.
//!
//! A run is a function of its seed, so a change that is to change no
//! behaviour leaves these three as they were.
#![expect(clippy::print_stdout, reason = "it is for people to read")]

use tenure_core::fnv::fnv1a;
use tenure_sim::{cluster, ha};

/// Chained from line to line over the traces of the seeds from 1 on.
fn digest(runs: u64, trace: impl Fn(u64) -> Vec<String>) -> u64 {
    let chain = |sum: u64, line: String| fnv1a(sum.to_be_bytes().into_iter().chain(line.bytes()));
    (1..=runs).flat_map(trace).fold(0, chain)
}

fn main() {
    let runs = std::env::args().nth(1);
    let runs = runs.map_or(1_000, |it| it.parse().expect("a number of runs"));
    let elections = |seed| tenure_sim::trace(seed, &tenure_sim::Options::default());
    let clusters = |seed| cluster::trace(seed, &cluster::Options::default());
    let groups = |seed| ha::trace(seed, &ha::Options::default());
    println!("election {:016x}", digest(runs, elections));
    println!("cluster  {:016x}", digest(runs, clusters));
    println!("ha       {:016x}", digest(runs, groups));
}
