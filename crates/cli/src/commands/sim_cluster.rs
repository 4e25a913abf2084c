//! `tenure sim cluster`: the simulator of clusters, its seeds split over
//! threads; a violation is shrunk before it is printed.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};
use tenure::clock;
use tenure_sim::cluster::{Options, Report, Stats, shrink, sweep};

use super::sim_block::BLOCK;
use crate::Context;
use crate::failure::Failure;

/// Lines of the trace that a violation shows.
const TRACE: usize = 60;

pub(super) fn sim_cluster(
    context: &Context,
    first: u64,
    runs: u64,
    threads: usize,
) -> Result<ExitCode, Failure> {
    let began = clock::boot();
    let (stats, failed) = split(first, runs, threads);
    let took = clock::boot().since(began).as_secs_f64();
    let rate = stats.runs as f64 / took.max(f64::EPSILON);
    let mut text = format!(
        "{stats}\n{} runs in {took:.1} s, {rate:.0} runs per second",
        stats.runs
    );
    let counts: Map<String, Value> = stats
        .all()
        .into_iter()
        .map(|(name, count)| (name.to_string(), count.into()))
        .collect();
    let mut object = json!({
        "first_seed": first,
        "runs": stats.runs,
        "seconds": took,
        "runs_per_second": rate,
        "counts": counts,
        "violation": null,
    });
    let Some(report) = failed else {
        text += "\nnothing was violated, from seed ";
        text += &first.to_string();
        context.output.line(&text, &object)?;
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(violation) = &report.violation {
        let (seed, found) = (report.seed, violation.check);
        object["violation"] = json!({
            "seed": seed,
            "check": found.to_string(),
            "detail": violation.detail,
        });
        let (options, small) = shrink(seed, &Options::default(), found, TRACE);
        text += &format!("\n\nshrunk to {options:?}:\n");
        text += &small.trace.join("\n");
        text += &format!(
            "\n\nseed {seed} violates '{found}': {}\n\
             again: tenure sim cluster --runs 1 --seed {seed}",
            violation.detail
        );
    }
    context.output.line(&text, &object)?;
    Ok(ExitCode::FAILURE)
}

/// Sweeps over the seeds with several threads, each taking the next few that
/// nobody has, until all are done or one of them broke a rule.
fn split(first: u64, runs: u64, threads: usize) -> (Stats, Option<Report>) {
    let next = AtomicU64::new(0);
    let work = || {
        let mut stats = Stats::default();
        loop {
            let from = next.fetch_add(BLOCK, Ordering::Relaxed);
            if from >= runs {
                return (stats, None);
            }
            let count = BLOCK.min(runs - from);
            let seed = first.wrapping_add(from);
            let report = sweep(seed, count, &Options::default(), |_| true);
            stats.add(&report.stats);
            if report.violation.is_some() {
                next.store(runs, Ordering::Relaxed);
                return (stats, Some(report));
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut stats = Stats::default();
        let mut failed: Option<Report> = None;
        for worker in workers {
            match worker.join() {
                Ok((part, report)) => {
                    stats.add(&part);
                    // The first seed, so that it does not depend on threads.
                    let earlier = |known: &Report, new: &Report| new.seed < known.seed;
                    match (&failed, report) {
                        (Some(known), Some(new)) if !earlier(known, &new) => {}
                        (_, Some(new)) => failed = Some(new),
                        (_, None) => {}
                    }
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        (stats, failed)
    })
}
