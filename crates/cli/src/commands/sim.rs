//! `tenure sim`: the deterministic simulator, its seeds split over threads.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use tenure::clock;
use tenure_sim::{Options, Report, sweep};

use super::sim_block::BLOCK;
use super::sim_cluster::sim_cluster;
use super::sim_ha::sim_ha;
use crate::failure::{Failure, usage};
use crate::{Context, args};

pub(crate) fn sim(context: &Context, args: &args::Sim) -> Result<ExitCode, Failure> {
    let threads = match args.threads {
        Some(0) => return Err(usage("--threads: expected at least 1, found 0")),
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let seed = first_seed(context, args.seed);
    match args.simulation {
        args::Simulation::Election => {}
        args::Simulation::Cluster => return sim_cluster(context, seed, args.runs, threads),
        args::Simulation::Ha => return sim_ha(context, seed, args.runs, threads),
    }
    let began = clock::boot();
    let report = split(seed, args.runs, threads);
    let took = clock::boot().since(began).as_secs_f64();
    let rate = args.runs as f64 / took.max(f64::EPSILON);
    let speed = format!(
        "{} runs in {took:.1} s, {rate:.0} runs per second",
        args.runs
    );
    let object = json!({
        "runs": args.runs,
        "seconds": took,
        "runs_per_second": rate,
        "report": serde_json::from_str::<serde_json::Value>(&report.to_json())?,
    });
    context
        .output
        .line(&format!("{report}\n{speed}"), &object)?;
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The seed that a sweep begins with. A fresh one comes from the calendar, in
/// steps of a thousand for each millisecond, so that two sweeps hardly meet;
/// it stays below 2^53, which JSON can hold. It is told before the sweep
/// begins, so that a sweep that never ends can be begun again too.
fn first_seed(context: &Context, asked: args::FirstSeed) -> u64 {
    match asked {
        args::FirstSeed::Given(seed) => seed,
        args::FirstSeed::Random => {
            let seed = clock::wall().as_millis() % (1 << 43) * 1_000;
            context.output.note(&format!("from seed {seed}"));
            seed
        }
    }
}

/// Sweeps over the seeds with several threads, each taking the next few that
/// nobody has. What is found depends on the seeds alone.
fn split(first_seed: u64, runs: u64, threads: usize) -> Report {
    let next = AtomicU64::new(0);
    let work = || {
        let mut report = Report {
            first_seed,
            ..Report::default()
        };
        loop {
            let from = next.fetch_add(BLOCK, Ordering::Relaxed);
            if from >= runs {
                return report;
            }
            let count = BLOCK.min(runs - from);
            let options = Options::default();
            let swept = sweep(first_seed.wrapping_add(from), count, &options, |_| true);
            report.merge(swept);
            report.first_seed = first_seed;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut report = Report {
            first_seed,
            ..Report::default()
        };
        for worker in workers {
            match worker.join() {
                Ok(part) => report.merge(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        report.first_seed = first_seed;
        report
    })
}
