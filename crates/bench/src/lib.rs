//! `tenure bench`: load on one store, or on two in turns. Internal to Tenure.
//!
//! Two stores are compared in one run, slice by slice and in changing order,
//! because a machine's speed changes from minute to minute and a figure of
//! yesterday compares with nothing. Beside every result stands what the disk
//! took for one sync and what the processors had to do.
//!
//! `work` is what clients do, `load` when they do it, `record` what is
//! written down, `cost` what it costs, `report` and `plot` how it is
//! shown.

mod cost;
#[cfg(test)]
#[path = "../../tenure/tests/common/intercepted.rs"]
mod intercepted;
mod load;
mod plan;
mod plot;
mod record;
mod report;
mod side;
#[cfg(test)]
mod tests;
mod work;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tenure::clock;
use tenure::store::{Key, Registry, Store};
use tenure_runtime::failure::{Failure, store_failure, usage};
use tokio::task::JoinSet;

use self::cost::Disk;
pub use self::load::Pace;
pub use self::plan::{Plan, Target};
use self::record::Record;
use self::side::Side;
pub use self::work::Mix;
use self::work::{Registers, Work};

/// How many points a plot has at most.
const POINTS: u32 = 100;
/// The shortest time that a point stands for.
const POINT_MIN: Duration = Duration::from_millis(100);

/// What came of it, for people, for programs, and as a picture.
#[derive(Debug)]
pub struct Report {
    /// A text.
    pub text: String,
    /// An object of JSON.
    pub object: Value,
    /// A picture, in SVG.
    pub picture: String,
}

/// Measures what is planned.
///
/// # Errors
/// Wrong usage, and what a store fails with that only a person can mend.
pub async fn run(
    plan: &Plan,
    stores: &[Target],
    registry: &Registry,
    disk: Option<&Path>,
) -> Result<Report, Failure> {
    let mut disk = disk.map(Disk::new).transpose()?;
    let mut sides = Vec::new();
    let result = match open(plan, stores, registry, &mut sides).await {
        Ok(()) => measure(plan, &mut sides, &mut disk).await,
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
    let (text, object) = report::report(plan, &sides, disk.as_ref());
    Ok(Report {
        text,
        object,
        picture: plot::plot(&sides),
    })
}

/// Opens the stores and makes the registers.
async fn open(
    plan: &Plan,
    targets: &[Target],
    registry: &Registry,
    sides: &mut Vec<Side>,
) -> Result<(), Failure> {
    let interval = (plan.duration / POINTS).max(POINT_MIN);
    let run = format!("{:x}-{}", clock::wall().as_millis(), std::process::id());
    for Target { url, flag, pids } in targets {
        cost::used(flag, pids)?;
        let mut stores = Vec::new();
        for _ in 0..plan.connections {
            stores.push(registry.open(url).await.map_err(store_failure)?);
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
#[cfg(feature = "cluster")]
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
        connections.push(client.with_timeout(plan.mix.within));
    }
    let clients = connections.iter().cycle().take(plan.clients);
    let entries = entries as usize;
    let work = |client: &tenure_client::Client| {
        let entry = Arc::clone(&plan.mix.value);
        Work::Appends(work::Appends::new(client.clone(), entries, entry))
    };
    Ok(clients.map(work).collect())
}

#[cfg(not(feature = "cluster"))]
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
            disk.measure()?;
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
        disk.measure()?;
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
