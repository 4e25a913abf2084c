//! `tenure bench`: load on one store, or on two in turns.
//!
//! Two stores are compared in one run, slice by slice and in changing order,
//! because a machine's speed changes from minute to minute and a figure of
//! yesterday compares with nothing. Beside every result stands what the disk
//! took for one sync and what the processors had to do.
//!
//! [`work`] is what clients do, [`load`] when they do it, [`record`] what is
//! written down, [`cost`] what it costs, [`report`] and [`plot`] how it is
//! shown.

mod cost;
mod load;
mod plot;
mod record;
mod report;
#[cfg(test)]
mod tests;
mod work;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tenure::clock;
use tenure::store::{Key, MAX_VALUE_BYTES, Store};
use tokio::task::JoinSet;

use self::cost::Disk;
use self::load::Pace;
use self::record::Record;
use self::work::{Mix, Registers, Work};
use crate::config::{self, store_failure};
use crate::failure::{Failure, usage};
use crate::{Context, args};

/// How many points a plot has at most.
const POINTS: u32 = 100;
/// The shortest time that a point stands for.
const POINT_MIN: Duration = Duration::from_millis(100);

/// What was asked for, checked.
#[derive(Debug)]
struct Plan {
    clients: usize,
    connections: usize,
    keys: usize,
    /// Entries of the log a call, if that is what is done.
    append: Option<u32>,
    mix: Mix,
    pace: Pace,
    /// How long each store is measured in all.
    duration: Duration,
    warm_up: Duration,
    slices: u32,
}

/// One of the stores, or the only one.
#[derive(Debug)]
struct Side {
    /// The store, without its password.
    name: String,
    flag: &'static str,
    pids: Vec<u32>,
    clients: Vec<Work>,
    record: Record,
    /// Processor time of the servers, if they were named, and of this
    /// process while this store was measured.
    servers: Option<Duration>,
    here: Duration,
}

pub(crate) async fn bench(context: &Context, args: &args::Bench) -> Result<ExitCode, Failure> {
    let plan = plan(context, args)?;
    let mut disk = args.disk.as_deref().map(Disk::new).transpose()?;
    let mut sides = Vec::new();
    let result = match open(context, args, &plan, &mut sides).await {
        Ok(()) => measure(&plan, &mut sides, &mut disk).await,
        Err(failure) => Err(failure),
    };
    // What was made goes again, however it went.
    for side in &mut sides {
        let left = tear_down(&mut side.clients).await;
        if left > 0 {
            let name = &side.name;
            tracing::warn!("{name}: {left} registers below bench/ could not be deleted");
        }
    }
    result?;
    let (text, object) = report::report(&plan, &sides, disk.as_ref());
    context.output.line(&text, &object)?;
    if let Some(path) = &args.plot {
        let picture = plot::plot(&sides);
        std::fs::write(path, picture)
            .map_err(|error| usage(format!("--plot {}: {error}", path.display())))?;
    }
    Ok(ExitCode::SUCCESS)
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

/// Opens the stores and makes the registers.
async fn open(
    context: &Context,
    args: &args::Bench,
    plan: &Plan,
    sides: &mut Vec<Side>,
) -> Result<(), Failure> {
    let urls = match (&args.compare[..], &args.url) {
        ([], Some(url)) => vec![url.clone()],
        ([], None) => vec![config::store_url(&context.common, &context.file)?],
        (both, _) => both.to_vec(),
    };
    let pids = [
        ("--server-pid", &args.server_pid),
        ("--server-pid-b", &args.server_pid_b),
    ];
    if urls.len() < 2 && !args.server_pid_b.is_empty() {
        return Err(usage("--server-pid-b: expected --compare with it"));
    }
    let interval = (plan.duration / POINTS).max(POINT_MIN);
    let run = format!("{:x}-{}", clock::wall().as_millis(), std::process::id());
    for (url, (flag, pids)) in urls.iter().zip(pids) {
        cost::used(flag, pids)?;
        let mut stores = Vec::new();
        for _ in 0..plan.connections {
            stores.push(tenure::store::open(url).await.map_err(store_failure)?);
        }
        let name = stores
            .first()
            .map_or_else(|| url.clone(), ToString::to_string);
        let below = format!("bench/{run}/{}", sides.len());
        let clients = match plan.append {
            None => clients(plan, &stores, &below)?,
            Some(entries) => appending(plan, url, entries)?,
        };
        sides.push(Side {
            name,
            flag,
            pids: pids.clone(),
            clients,
            record: Record::new(interval),
            servers: (!pids.is_empty()).then_some(Duration::ZERO),
            here: Duration::ZERO,
        });
    }
    for side in sides {
        set_up(&mut side.clients).await?;
    }
    Ok(())
}

/// The clients of a store; the registers and the connections are dealt out in
/// turn.
fn clients(plan: &Plan, stores: &[Arc<dyn Store>], below: &str) -> Result<Vec<Work>, Failure> {
    let mut clients = Vec::new();
    for (client, store) in stores.iter().cycle().take(plan.clients).enumerate() {
        let numbers = (client..plan.keys).step_by(plan.clients);
        let keys = numbers.map(|number| Key::new(&format!("{below}/{number}")));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let (store, mix) = (Arc::clone(store), plan.mix.clone());
        let registers = Registers::new(store, keys, mix, client as u64);
        clients.push(Work::Registers(registers));
    }
    Ok(clients)
}

/// Clients that append to the log of a cluster.
#[cfg(feature = "tenure")]
fn appending(plan: &Plan, url: &str, entries: u32) -> Result<Vec<Work>, Failure> {
    if !url.starts_with("tenure:") {
        let scheme = url.split(':').next().unwrap_or_default();
        return Err(usage(format!(
            "--append: expected tenure://host:port,…, found a store without a log, {scheme}:"
        )));
    }
    let mut connections = Vec::new();
    for _ in 0..plan.connections {
        let client =
            tenure_client::Client::open(url).map_err(|error| store_failure(error.into()))?;
        connections.push(client.within(plan.mix.within));
    }
    let clients = connections.iter().cycle().take(plan.clients);
    let entries = entries as usize;
    let work = |client: &tenure_client::Client| {
        let entry = Arc::clone(&plan.mix.value);
        Work::Appends(work::Appends::new(client.clone(), entries, entry))
    };
    Ok(clients.map(work).collect())
}

#[cfg(not(feature = "tenure"))]
fn appending(_: &Plan, _: &str, _: u32) -> Result<Vec<Work>, Failure> {
    Err(usage(
        "--append: this binary was built without the feature \"tenure\"",
    ))
}

async fn set_up(clients: &mut Vec<Work>) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for mut client in clients.drain(..) {
        tasks.spawn(async move { (client.set_up().await, client) });
    }
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let (made, client) = ended?;
        clients.push(client);
        result = result.and(made);
    }
    result.map_err(store_failure)
}

async fn tear_down(clients: &mut Vec<Work>) -> u64 {
    let mut tasks = JoinSet::new();
    for mut client in clients.drain(..) {
        tasks.spawn(async move { client.tear_down().await });
    }
    tasks.join_all().await.into_iter().sum()
}

/// Measures all slices: of one store its only one, of two each in turn, and
/// each first every other time.
async fn measure(plan: &Plan, sides: &mut [Side], disk: &mut Option<Disk>) -> Result<(), Failure> {
    for side in &mut *sides {
        let thrown_away = Record::new(plan.warm_up);
        load::run(&mut side.clients, thrown_away, plan.pace, plan.warm_up).await?;
    }
    for round in 0..plan.slices {
        if let Some(disk) = disk {
            disk.ask()?;
        }
        for turn in 0..sides.len() {
            let at = if round % 2 == 0 {
                turn
            } else {
                sides.len() - 1 - turn
            };
            if let Some(side) = sides.get_mut(at) {
                slice(plan, side).await?;
            }
        }
    }
    if let Some(disk) = disk {
        disk.ask()?;
    }
    Ok(())
}

/// Measures one slice of one store.
async fn slice(plan: &Plan, side: &mut Side) -> Result<(), Failure> {
    let servers = cost::used(side.flag, &side.pids)?;
    let here = cost::used_here();
    let record = std::mem::replace(&mut side.record, Record::new(POINT_MIN));
    let lasting = plan.duration / plan.slices;
    side.record = load::run(&mut side.clients, record, plan.pace, lasting).await?;
    side.here += cost::used_here().saturating_sub(here);
    if let Some(total) = &mut side.servers {
        *total += cost::used(side.flag, &side.pids)?.saturating_sub(servers);
    }
    Ok(())
}
