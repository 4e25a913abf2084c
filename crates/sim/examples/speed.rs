//! How fast the simulator is, and what happens in it:
//! `cargo run --release -p tenure-sim --example speed -- [RUNS] [SEED]`.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it measures and prints"
)]

use std::time::Instant;

use tenure_sim::{Options, sweep};

fn main() {
    let mut args = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse().ok());
    let (runs, seed) = (args.next().unwrap_or(1_000), args.next().unwrap_or(1));
    let hours = |ns: u64| ns as f64 / 3.6e12;
    let report = sweep(seed, runs, &Options::default(), |_| true);
    println!("{report}");
    for (what, faults) in [("with faults", true), ("without faults", false)] {
        let options = Options {
            candidates: Some(5),
            faults,
            ..Options::default()
        };
        let begin = Instant::now();
        let report = sweep(seed, runs, &options, |_| true);
        let minutes = begin.elapsed().as_secs_f64() / 60.0;
        let simulated = hours(report.stats.simulated_ns);
        println!(
            "five candidates {what}: {:.0} simulated hours in a real minute ({:.0} runs a second)",
            simulated / minutes,
            runs as f64 / minutes / 60.0
        );
    }
}
