//! `tenure sim ha`: the simulator of HA groups, its seeds split over threads.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};
use tenure::clock;
use tenure_sim::ha::{Options, Stats, Violation, sweep};

use super::sim_block::BLOCK;
use crate::Context;
use crate::failure::Failure;

pub(super) fn sim_ha(
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
    let Some(violation) = failed else {
        text += "\nnothing was violated, from seed ";
        text += &first.to_string();
        context.output.line(&text, &object)?;
        return Ok(ExitCode::SUCCESS);
    };
    object["violation"] = json!({
        "seed": violation.seed,
        "check": violation.check.to_string(),
        "detail": violation.text,
    });
    text += &format!("\n\n{violation}");
    context.output.line(&text, &object)?;
    Ok(ExitCode::FAILURE)
}

/// Sweeps over the seeds with several threads, each taking the next few that
/// nobody has, until all are done or one of them broke a rule. Of several the
/// first seed is told, so that it does not depend on threads.
fn split(first: u64, runs: u64, threads: usize) -> (Stats, Option<Box<Violation>>) {
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
                return (stats, report.violation);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let (mut stats, mut found) = (Stats::default(), Vec::new());
        for worker in workers {
            match worker.join() {
                Ok((part, violation)) => {
                    stats.add(&part);
                    found.extend(violation);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        found.sort_by_key(|violation| violation.seed);
        (stats, found.into_iter().next())
    })
}
