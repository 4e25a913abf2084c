//! Runs worlds of clusters: `cluster [first seed] [runs] [trace]`.

#![allow(clippy::print_stdout, clippy::disallowed_methods)]

use std::time::Instant;

use tenure_sim::cluster::{Options, shrink, sweep};

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let first = args.next().unwrap_or(1);
    let runs = args.next().unwrap_or(100);
    let trace = args.next().unwrap_or(0) as usize;
    let options = options();
    let start = Instant::now();
    let report = sweep(first, runs, &options, |_| true);
    let seconds = start.elapsed().as_secs_f64();
    println!("{report}");
    println!(
        "{} runs in {seconds:.1} s, {:.1} a second",
        report.stats.runs,
        report.stats.runs as f64 / seconds
    );
    if let Some(violation) = report.violations.first()
        && trace > 0
    {
        let (options, verdict) = shrink(violation.seed, &options, violation.check, trace);
        println!("{options:?}\n{}", verdict.stats);
        verdict.violation.iter().for_each(|it| println!("{it}"));
    }
}

#[cfg(not(feature = "planted-bugs"))]
fn options() -> Options {
    Options::default()
}

/// `TENURE_BUG` plants one.
#[cfg(feature = "planted-bugs")]
fn options() -> Options {
    let name = std::env::var("TENURE_BUG").unwrap_or_default();
    let named = |bug: &tenure_sim::cluster::Bug| format!("{bug:?}") == name;
    Options {
        planted: tenure_sim::cluster::Bug::ALL.iter().copied().find(named),
        ..Options::default()
    }
}
