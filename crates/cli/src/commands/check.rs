//! `tenure check`: what was typed, as a plan of [`tenure::check`], and what came of it
//! in plain words.

use std::fmt::Write as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use serde_json::{Value, json};
use tenure::check::{self, Outcome, PerDay, Plan, Report, Trial, Verdict};
use tokio::sync::oneshot;

use crate::failure::{Failure, store_failure, usage};
use crate::guard::SignalRequests;
use crate::{Context, args, config};

/// The exit code of the contract for an unfit store.
const UNFIT: u8 = 4;

pub(crate) async fn check(context: &Context, args: &args::Check) -> Result<ExitCode, Failure> {
    let plan = plan(context, args)?;
    let mut signals = SignalRequests::install()?;
    let (ask, asked) = oneshot::channel();
    let stop = async {
        // An error is no request.
        if asked.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let twice = async {
        signals.stop().await;
        let _ = ask.send(());
        signals.stop().await;
    };
    let mut printed = Ok(());
    let told = |trial: &Trial| {
        let line = context.output.line(&shown(trial), &object(trial));
        if printed.is_ok() {
            printed = line;
        }
    };
    let report = tokio::select! {
        report = check::run(&plan, stop, told) => report.map_err(store_failure)?,
        () = twice => return Err(Failure::Other(anyhow::anyhow!(
            "stopped before everything was deleted: registers below check/ are left in the store"
        ))),
    };
    printed?;
    context.output.line(&verdict(&report), &result(&report))?;
    Ok(match report.verdict() {
        Verdict::Fit => ExitCode::SUCCESS,
        Verdict::Unfit => ExitCode::from(UNFIT),
        Verdict::Incomplete => ExitCode::FAILURE,
    })
}

/// What the arguments mean together.
fn plan(context: &Context, args: &args::Check) -> Result<Plan, Failure> {
    let url = match &args.url {
        Some(url) => config::completed(url.clone(), &context.common, &context.file),
        None => config::store_url(&context.common, &context.file)?,
    };
    if url.starts_with("memory:") {
        return Err(usage(
            "expected a store that several processes share, found memory:, which is of one",
        ));
    }
    let worker = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(check::WORKER);
        Ok(command)
    };
    Ok(Plan {
        url,
        registry: context.registry.clone(),
        within: context.timeout,
        budget: args.budget,
        threads: args.threads,
        processes: args.processes,
        worker: Arc::new(worker),
        restart: args.restart_command.clone(),
    })
}

/// A word for what came of a trial, and what was seen.
fn outcome(trial: &Trial) -> (&'static str, String) {
    match &trial.outcome {
        Outcome::Passed(text) => ("passed", text.clone()),
        Outcome::Found(findings) => {
            let all = findings.iter().map(|it| it.text.as_str());
            ("found", all.collect::<Vec<_>>().join("; "))
        }
        Outcome::NotTried(why) => ("not tried", why.clone()),
        Outcome::LeftOut(why) => ("left out", why.clone()),
    }
}

fn shown(trial: &Trial) -> String {
    let (word, text) = outcome(trial);
    let word = match word {
        "passed" => "ok".to_owned(),
        "found" => "BREACH".to_owned(),
        other => other.to_owned(),
    };
    format!("{:<14} {word}: {text}", trial.name)
}

fn object(trial: &Trial) -> Value {
    let (word, text) = outcome(trial);
    let mut object = json!({ "trial": trial.name, "outcome": word.replace(' ', "_") });
    match &trial.outcome {
        Outcome::Found(findings) => {
            let finding =
                |it: &check::Finding| json!({ "fault": it.fault.name(), "text": it.text });
            object["findings"] = findings.iter().map(finding).collect();
        }
        _ => object["text"] = text.into(),
    }
    object
}

/// The verdict, and what to make of it.
fn verdict(report: &Report) -> String {
    let store = &report.store;
    let mut text = match report.verdict() {
        Verdict::Fit => {
            format!("fit: {store} may keep elections; no trial found a breach of the contract")
        }
        Verdict::Unfit => {
            let mut faults: Vec<_> = report.findings().map(|it| it.fault).collect();
            faults.sort_unstable();
            faults.dedup();
            let faults: Vec<_> = faults.iter().map(|it| it.meaning()).collect();
            format!(
                "unfit: do not keep elections in {store}: {}",
                faults.join("; and ")
            )
        }
        Verdict::Incomplete if report.interrupted => {
            format!("undecided: {store}: stopped before all was tried; no breach was found so far")
        }
        Verdict::Incomplete => {
            let undone = |it: &&Trial| matches!(it.outcome, Outcome::NotTried(_));
            let names = report.trials.iter().filter(undone).map(|it| it.name);
            let names: Vec<_> = names.collect();
            format!(
                "undecided: {store}: no breach was found, and this could not be tried to its \
                 end: {}",
                names.join(", ")
            )
        }
    };
    if let (Some(advice), false) = (&report.advice, report.verdict() == Verdict::Unfit) {
        let _ = write!(
            text,
            "\n  the shortest sensible lease from here: {:?}, with an interval of {:?}\n  one \
             election: {}",
            advice.lease,
            advice.interval,
            cost(&advice.per_day)
        );
    }
    let _ = write!(
        text,
        "\n  this check: {} reads, {} writes",
        report.reads, report.writes
    );
    if let Some(dollars) = report.dollars {
        let _ = write!(text, ", about ${dollars:.3} by Amazon's list price");
    }
    if let Some(left) = &report.left_behind {
        let _ = write!(text, "\n  left behind below {}: {left}", report.prefix);
    }
    text
}

fn cost(day: &PerDay) -> String {
    let price = day.dollars.map_or_else(String::new, |dollars| {
        format!(", about ${dollars:.2} by Amazon's list price")
    });
    format!(
        "with a lease of {:?} its leader writes {} times a day; where changes are found by \
         looking, it and a candidate that waits read {} times at most{price}",
        day.lease, day.writes, day.reads_max
    )
}

fn result(report: &Report) -> Value {
    let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    let latencies = report.latencies.map(|found| {
        json!({
            "read_p50_us": micros(found.read.p50),
            "read_p99_us": micros(found.read.p99),
            "write_p50_us": micros(found.write.p50),
            "write_p99_us": micros(found.write.p99),
        })
    });
    let clock = report.clock.map(|seen| {
        json!({
            "is_of_this_machine": seen.is_of_this_machine,
            "ahead_ms": seen.ahead_ms.map(|it| it.0),
            "rate_ppm": seen.rate_ppm.map(|it| it.0),
            "jumped_forward_ms": seen.forward.as_secs_f64() * 1e3,
            "jumped_back_ms": seen.back.as_secs_f64() * 1e3,
        })
    });
    let advice = report.advice.as_ref().map(|advice| {
        json!({
            "lease_ms": advice.lease.as_secs_f64() * 1e3,
            "interval_ms": advice.interval.as_secs_f64() * 1e3,
            "a_day": {
                "lease_ms": advice.per_day.lease.as_secs_f64() * 1e3,
                "writes": advice.per_day.writes,
                "reads_at_most": advice.per_day.reads_max,
                "dollars": advice.per_day.dollars,
            },
        })
    });
    let faults: std::collections::BTreeSet<_> =
        report.findings().map(|it| it.fault.name()).collect();
    json!({
        "store": report.store,
        "verdict": report.verdict().name(),
        "faults": faults,
        "latencies": latencies,
        "clock": clock,
        "advice": advice,
        "reads": report.reads,
        "writes": report.writes,
        "dollars": report.dollars,
        "prefix": report.prefix,
        "left_behind": report.left_behind,
    })
}
