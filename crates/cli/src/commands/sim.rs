//! `tenure sim`: the deterministic simulators, their seeds split over threads.

use std::fmt::Display;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use tenure::clock;
use tenure_core::time::Instant;
use tenure_sim::kernel::{Counts, Report, Violation};
use tenure_sim::{cluster, ha};

use super::sim_seeds::Seeds;
use crate::failure::{Failure, usage};
use crate::{Context, args};

/// Lines of the trace that a violation of a cluster shows.
const TRACE: usize = 60;

/// More than any machine has processors for.
const THREADS_MAX: usize = 1_024;

pub(crate) fn sim(context: &Context, args: &args::Sim) -> Result<ExitCode, Failure> {
    let threads = match args.threads {
        Some(threads) if (1..=THREADS_MAX).contains(&threads) => threads,
        Some(threads) => {
            return Err(usage(format!(
                "--threads: expected 1 to {THREADS_MAX}, found {threads}"
            )));
        }
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let seeds = Seeds {
        first: first_seed(context, args.seed),
        runs: args.runs,
        threads,
    };
    match args.simulation {
        args::Simulation::Election => election(context, seeds),
        args::Simulation::Cluster => cluster(context, seeds),
        args::Simulation::Ha => ha(context, seeds),
    }
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

/// `tenure sim election`: all seeds are tried, whatever is found.
fn election(context: &Context, seeds: Seeds) -> Result<ExitCode, Failure> {
    let began = clock::boot();
    let options = tenure_sim::Options::default();
    let report = seeds.split(
        |first, runs| tenure_sim::sweep(first, runs, &options, |_| true),
        |_| true,
    );
    let (took, rate, speed) = speed(began, seeds.runs);
    let object = json!({
        "runs": seeds.runs,
        "seconds": took,
        "runs_per_second": rate,
        "report": serde_json::from_str::<Value>(&report.to_json())?,
    });
    context
        .output
        .line(&format!("{report}\n{speed}"), &object)?;
    Ok(verdict(report.is_clean()))
}

/// `tenure sim cluster`: a violation is shrunk before it is printed.
fn cluster(context: &Context, seeds: Seeds) -> Result<ExitCode, Failure> {
    let options = cluster::Options::default();
    let shrunk = |violation: &cluster::Violation| {
        let (least, small) = cluster::shrink(violation.seed, &options, violation.check, TRACE);
        let trace = small.violation.map_or_else(Vec::new, |it| it.trace);
        format!("\n\nshrunk to {least:?}:\n{}", trace.join("\n"))
    };
    let sweep = |first, runs| cluster::sweep(first, runs, &options, |_| true);
    until_one_fails(context, seeds, sweep, shrunk)
}

/// `tenure sim ha`.
fn ha(context: &Context, seeds: Seeds) -> Result<ExitCode, Failure> {
    let options = ha::Options::default();
    let sweep = |first, runs| ha::sweep(first, runs, &options, |_| true);
    until_one_fails(context, seeds, sweep, |_| String::new())
}

/// Sweeps until one of the threads finds a violation, and tells the first one,
/// after what `more` says of it.
fn until_one_fails<S: Counts + Send, C: Display + Send>(
    context: &Context,
    seeds: Seeds,
    sweep: impl Fn(u64, u64) -> Report<S, C> + Sync,
    more: impl FnOnce(&Violation<C>) -> String,
) -> Result<ExitCode, Failure>
where
    Violation<C>: Display,
{
    let began = clock::boot();
    let Report {
        stats, violations, ..
    } = seeds.split(sweep, Report::is_clean);
    let (took, rate, speed) = speed(began, stats.runs());
    let mut text = format!("{stats}\n{speed}");
    let counts = stats.fields().into_iter();
    let counts: Map<String, Value> = counts
        .map(|(_, name, count)| (name.to_string(), count.into()))
        .collect();
    let mut object = json!({
        "first_seed": seeds.first,
        "runs": stats.runs(),
        "seconds": took,
        "runs_per_second": rate,
        "counts": counts,
        "violation": null,
    });
    if let Some(violation) = violations.first() {
        object["violation"] = json!({
            "seed": violation.seed,
            "check": violation.check.to_string(),
            "detail": violation.text,
        });
        text += &format!("{}\n\n{violation}", more(violation));
    } else {
        text += &format!("\nnothing was violated, from seed {}", seeds.first);
    }
    context.output.line(&text, &object)?;
    Ok(verdict(violations.is_empty()))
}

/// How many seconds so many runs took, how many of them one second had, and
/// both in words.
fn speed(began: Instant, runs: u64) -> (f64, f64, String) {
    let took = clock::boot().since(began).as_secs_f64();
    let rate = runs as f64 / took.max(f64::EPSILON);
    let words = format!("{runs} runs in {took:.1} s, {rate:.0} runs per second");
    (took, rate, words)
}

const fn verdict(clean: bool) -> ExitCode {
    if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
