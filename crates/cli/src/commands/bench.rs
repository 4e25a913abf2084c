//! `tenure bench`: what was typed, as a plan of `tenure-bench`.

use std::process::ExitCode;
use std::time::Duration;

use tenure::store::MAX_VALUE_BYTES;
use tenure_bench::{Mix, Pace, Plan, Target};

use crate::config;
use crate::failure::{Failure, usage};
use crate::{Context, args};

pub(crate) async fn bench(context: &Context, args: &args::Bench) -> Result<ExitCode, Failure> {
    let plan = plan(context, args)?;
    let disk = args.disk.as_deref();
    let report =
        tenure_bench::run(&plan, &targets(context, args)?, &context.registry, disk).await?;
    context.output.line(&report.text, &report.object)?;
    if let Some(path) = &args.plot {
        std::fs::write(path, report.picture)
            .map_err(|error| usage(format!("--plot {}: {error}", path.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The stores, each with the processes that are its.
fn targets(context: &Context, args: &args::Bench) -> Result<Vec<Target>, Failure> {
    let complete = |url: &String| config::completed(url.clone(), &context.common, &context.file);
    let urls = match (&args.compare[..], &args.url) {
        ([], Some(url)) => vec![complete(url)],
        ([], None) => vec![config::store_url(&context.common, &context.file)?],
        (both, _) => both.iter().map(complete).collect(),
    };
    if urls.len() < 2 && !args.server_pid_b.is_empty() {
        return Err(usage("--server-pid-b: expected --compare with it"));
    }
    let pids = [
        ("--server-pid", &args.server_pid),
        ("--server-pid-b", &args.server_pid_b),
    ];
    let targets = urls
        .into_iter()
        .zip(pids)
        .map(|(url, (flag, pids))| Target {
            url,
            flag,
            pids: pids.clone(),
        });
    Ok(targets.collect())
}

/// What the arguments mean together.
fn plan(context: &Context, args: &args::Bench) -> Result<Plan, Failure> {
    let clients = args.clients as usize;
    let connections = args.connections.unwrap_or_else(|| args.clients.min(4)) as usize;
    let keys = args.keys.unwrap_or(args.clients) as usize;
    if connections > clients {
        return Err(usage(format!(
            "--connections: expected at most one for each of {clients} clients, found {connections}"
        )));
    }
    if keys < clients {
        return Err(usage(format!(
            "--keys: expected at least one for each of {clients} clients, found {keys}"
        )));
    }
    if !(0.0..=1.0).contains(&args.reads) {
        return Err(usage(format!(
            "--reads: expected a share from 0 to 1, found {}",
            args.reads
        )));
    }
    if args.value_bytes > MAX_VALUE_BYTES {
        return Err(usage(format!(
            "--value-bytes: expected at most {MAX_VALUE_BYTES}, found {}",
            args.value_bytes
        )));
    }
    let pace = match args.rate {
        None => Pace::Closed,
        Some(rate) if (0.1..=1_000_000.0).contains(&rate) => {
            Pace::Open(Duration::from_secs_f64(1.0 / rate))
        }
        Some(rate) => {
            return Err(usage(format!(
                "--rate: expected 0.1 to 1000000 operations a second, found {rate}"
            )));
        }
    };
    let mix = Mix {
        reads: args.reads,
        value: (0..=u8::MAX).cycle().take(args.value_bytes).collect(),
        within: context.timeout,
    };
    Ok(Plan {
        clients,
        connections,
        keys,
        append: args.append,
        mix,
        pace,
        duration: config::duration("--duration", &args.duration)?,
        warm_up: config::duration("--warm-up", &args.warm_up)?,
        slices: if args.compare.is_empty() {
            1
        } else {
            args.slices
        },
    })
}
