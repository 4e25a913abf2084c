//! Runs of the HA simulator, one after the other, until one goes wrong.
//!
//! `cargo run --release -p tenure-sim --example ha -- FIRST RUNS [AGENTS]`; with
//! one run the whole trace is printed.
#![expect(clippy::print_stdout, reason = "an example prints")]

use tenure_sim::ha::{Options, run, sweep, trace};

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |usual| {
        args.next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(usual)
    };
    let (first, runs, agents) = (number(1), number(1_000), number(0));
    let options = Options {
        agents: (agents > 0).then_some(agents as usize),
        groups: (agents > 0).then_some(1),
        ..Options::default()
    };
    if runs == 1 {
        for line in trace(first, &options) {
            println!("{line}");
        }
        println!("{}", run(first, &options).stats);
        return;
    }
    let report = sweep(first, runs, &options, |_| true);
    println!("{}", report.stats);
    match report.violations.first() {
        Some(violation) => println!("{violation}"),
        None => println!("nothing was violated, from seed {first}"),
    }
}
