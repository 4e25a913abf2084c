//! The race: threads of this process and processes of their own count up in the same
//! registers by compare-and-swap. Each count is made once, or a write got lost.
//!
//! A store that loses one write in a hundred at random passes with a probability of
//! one in 400: of 600 writes all have to be kept.

use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as GoReceiver, Sender as GoSender, channel as go_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::connection::{Connection, Meter, Stop};
use super::finding::{Fault, Finding};
use super::plan::Plan;
use super::report::Outcome;
use super::worker::{Asked, Ready};
use super::writer::{Log, Order, count, count_in};
use crate::error::StoreError;
use crate::store::Key;

/// How many writes all writers make together.
const WRITES: u64 = 600;
/// For how long they try.
const LASTING: Duration = Duration::from_secs(120);
/// What the trials after it may need of the budget.
const RESERVE: u64 = 300;
/// How often the count is read in the end, and how often that is tried.
const LOOKS: usize = 4;
const ATTEMPTS: u32 = 8;

/// What a writer tells the trial.
enum WriterEvent {
    /// It is connected, and waits for the start.
    Ready,
    /// It has ended: the place of its register, and its log.
    Ended(usize, Result<Log, String>),
}

/// The writers. Dropping this ends them.
struct Racers {
    ended: Arc<AtomicBool>,
    children: Arc<Mutex<Vec<Arc<Mutex<Child>>>>>,
    threads: Vec<JoinHandle<()>>,
    starts: Vec<GoSender<()>>,
}

impl Drop for Racers {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Those that wait for the start hear that there is none.
        self.starts.clear();
        for child in lock(&self.children).iter() {
            drop(lock(child).kill());
        }
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a writer's thread needs.
struct Seat {
    /// The place of its register.
    place: usize,
    asked: Asked,
    /// Starts its process, if it is one.
    process: Option<Command>,
    meter: Arc<Meter>,
    ended: Arc<AtomicBool>,
    children: Arc<Mutex<Vec<Arc<Mutex<Child>>>>>,
    told: Sender<WriterEvent>,
    start: GoReceiver<()>,
}

impl Seat {
    /// Tells that this writer is ready, and waits; `false` if there is no start.
    fn is_started(&self) -> bool {
        self.told.try_send(WriterEvent::Ready).is_ok() && self.start.recv().is_ok()
    }

    /// Races in a process of its own.
    fn race_apart(&self, command: Command) -> Result<Log, String> {
        let ready = Ready::start(command, &self.asked)?;
        lock(&self.children).push(ready.child());
        if !self.is_started() {
            return Err("there was no start".to_owned());
        }
        let said = ready.race()?;
        self.meter
            .account(self.asked.budget, said.reads, said.writes);
        Ok(said.log)
    }

    /// Races in this thread, over a connection of its own.
    fn race_here(&self, plan: &Plan) -> Result<Log, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let opened = plan.open().await.map_err(|error| error.to_string())?;
            let meter = Meter::new(self.asked.budget);
            let store = Connection::new(opened, Arc::clone(&meter), plan.within);
            // The connection is made before the race.
            drop(store.read(&self.asked.order.key).await);
            if !self.is_started() {
                return Err("there was no start".to_owned());
            }
            let ended = || self.ended.load(Ordering::Relaxed);
            let log = count(&store, &self.asked.order, ended).await;
            let (reads, writes) = meter.used();
            self.meter.account(self.asked.budget, reads, writes);
            Ok(log)
        })
    }
}

/// Seats all writers, one after the other at each register.
fn seat(
    plan: &Plan,
    meter: &Arc<Meter>,
    keys: &[Key],
) -> Result<(Racers, Receiver<WriterEvent>), String> {
    let writers = plan.threads + plan.processes;
    let share = meter.left().saturating_sub(RESERVE) / u64::from(writers.max(1));
    let mut racers = Racers {
        ended: Arc::default(),
        children: Arc::default(),
        threads: Vec::new(),
        starts: Vec::new(),
    };
    // Room for all that is ever told: no thread waits to tell.
    let (told, hear) = channel(2 * writers as usize + 1);
    for number in 0..writers {
        let place = number as usize % keys.len().max(1);
        let key = keys.get(place).ok_or("there is no register")?.clone();
        let apart = number >= plan.threads;
        let process = apart.then(|| (plan.worker)()).transpose();
        let (go, start) = go_channel();
        let seat = Seat {
            place,
            asked: Asked {
                url: plan.url.clone(),
                within: plan.within,
                budget: meter.set_aside(share),
                order: Order {
                    key,
                    writes: WRITES.div_ceil(u64::from(writers)),
                    lasting: LASTING,
                    pause: Duration::ZERO,
                },
            },
            process: process.map_err(|error| format!("no process can be started: {error}"))?,
            meter: Arc::clone(meter),
            ended: Arc::clone(&racers.ended),
            children: Arc::clone(&racers.children),
            told: told.clone(),
            start,
        };
        let plan = plan.clone();
        let race = move || {
            let mut seat = seat;
            let log = match seat.process.take() {
                Some(command) => seat.race_apart(command),
                None => seat.race_here(&plan),
            };
            drop(seat.told.try_send(WriterEvent::Ended(seat.place, log)));
        };
        let thread = thread::Builder::new()
            .name("tenure-writer".into())
            .spawn(race);
        racers
            .threads
            .push(thread.map_err(|error| error.to_string())?);
        racers.starts.push(go);
    }
    Ok((racers, hear))
}

/// Has all writers race; the logs of each register.
async fn logs(plan: &Plan, meter: &Arc<Meter>, keys: &[Key]) -> Result<Vec<Vec<Log>>, String> {
    let (racers, mut hear) = seat(plan, meter, keys)?;
    let mut logs = vec![Vec::new(); keys.len()];
    let (mut ready, mut under_way) = (0, racers.threads.len());
    while under_way > 0 {
        match hear.recv().await.ok_or("the writers have gone")? {
            WriterEvent::Ready => {
                ready += 1;
                if ready == racers.starts.len() {
                    for go in &racers.starts {
                        // One that has gone meanwhile says so itself.
                        let _ = go.send(());
                    }
                }
            }
            WriterEvent::Ended(place, log) => {
                under_way -= 1;
                if let Some(of) = logs.get_mut(place) {
                    of.push(log?);
                }
            }
        }
    }
    Ok(logs)
}

/// The trial.
pub(super) async fn race(plan: &Plan, store: &Connection, keys: &[Key]) -> Result<Outcome, Stop> {
    let logs = match logs(plan, store.meter(), keys).await {
        Ok(logs) => logs,
        Err(why) => return Ok(Outcome::NotTried(why)),
    };
    let mut findings = Vec::new();
    for (key, logs) in keys.iter().zip(&logs) {
        let last = last(store, key).await?;
        findings.extend(judge(logs, &last));
    }
    if !findings.is_empty() {
        return Ok(Outcome::Found(findings));
    }
    let all = || logs.iter().flatten();
    let acknowledged: usize = all().map(|log| log.acknowledged.len()).sum();
    let unknown: usize = all().map(|log| log.unknown.len()).sum();
    let conflicts: u64 = all().map(|log| log.conflicts).sum();
    if let Some(why) = all().find_map(|log| log.stopped.as_deref()) {
        return Ok(Outcome::NotTried(format!(
            "of {WRITES} writes {acknowledged} were acknowledged, none was lost, and then a \
             writer stopped: {why}"
        )));
    }
    let registers = keys.len();
    Ok(Outcome::Passed(format!(
        "{} threads and {} processes made {acknowledged} writes to {registers} registers, and \
         none was lost ({conflicts} more were refused, {unknown} unknown)",
        plan.threads, plan.processes
    )))
}

/// The count in the end, as several readings show it.
async fn last(store: &Connection, key: &Key) -> Result<Vec<u64>, Stop> {
    let (mut counts, mut attempt) = (Vec::new(), 1);
    while counts.len() < LOOKS {
        match store.register(key).await {
            Err(Stop::Failed(StoreError::Unavailable(_))) if attempt < ATTEMPTS => attempt += 1,
            found => counts.push(count_in(found?.as_ref())),
        }
    }
    Ok(counts)
}

/// What is wrong with the logs of those who counted in one register, in which `looks`
/// were the counts that readings showed when all had ended.
fn judge(logs: &[Log], looks: &[u64]) -> Vec<Finding> {
    let last = looks.iter().max().copied().unwrap_or_default();
    let mut findings = Vec::new();
    let (mut made, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for count in logs.iter().flat_map(|log| &log.acknowledged) {
        if !made.insert(*count) {
            twice.insert(*count);
        }
    }
    if let Some(count) = twice.first() {
        findings.push(Finding::new(
            Fault::LosesUpdates,
            format!(
                "expected each count to be made by one writer, found {} that two or more were \
                 told to have made, {count} first",
                twice.len()
            ),
        ));
    }
    let total = |pick: fn(&Log) -> usize| -> u64 {
        let total: usize = logs.iter().map(pick).sum();
        u64::try_from(total).unwrap_or(u64::MAX)
    };
    let acknowledged = total(|log| log.acknowledged.len());
    let possible = acknowledged + total(|log| log.unknown.len());
    if last < acknowledged {
        findings.push(Finding::new(
            Fault::LosesUpdates,
            format!(
                "{acknowledged} writes were acknowledged, and {} of them are not there: the \
                 count is {last}",
                acknowledged - last
            ),
        ));
    } else if last > possible {
        findings.push(Finding::new(
            Fault::WrongAnswers,
            format!(
                "at most {possible} writes can have been done, by what the writers were told; \
                 found the count {last}"
            ),
        ));
    }
    let after_the_end = looks.windows(2).find_map(|two| match two {
        [before, after] if after < before => Some((*before, *after)),
        _ => None,
    });
    let of_a_writer = logs.iter().find_map(|log| log.stale);
    if let Some((known, shown)) = of_a_writer.or(after_the_end) {
        findings.push(Finding::new(
            Fault::StaleReads,
            format!("the count {known} was known, and a later read showed {shown}"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(acknowledged: &[u64], unknown: &[u64]) -> Log {
        Log {
            acknowledged: acknowledged.to_vec(),
            unknown: unknown.to_vec(),
            ..Log::default()
        }
    }

    #[test]
    fn counts_that_add_up_are_no_breach() {
        let logs = [log(&[1, 3], &[4]), log(&[2], &[])];
        assert_eq!(judge(&logs, &[3, 3]), []);
        assert_eq!(judge(&logs, &[3, 4]), [], "the unknown one was done");
    }

    #[test]
    fn what_does_not_add_up_is_told() {
        let faults = |logs: &[Log], last| -> Vec<Fault> {
            judge(logs, &[last]).iter().map(|it| it.fault).collect()
        };
        let twice = [log(&[1, 2], &[]), log(&[2], &[])];
        assert_eq!(faults(&twice, 2), [Fault::LosesUpdates; 2]);
        assert_eq!(faults(&[log(&[1, 2, 3], &[])], 2), [Fault::LosesUpdates]);
        assert_eq!(faults(&[log(&[1], &[2])], 3), [Fault::WrongAnswers]);
        let stale = Log {
            stale: Some((2, 1)),
            ..log(&[1, 2], &[])
        };
        assert_eq!(faults(&[stale], 2), [Fault::StaleReads]);
        let fell = judge(&[log(&[1, 2], &[])], &[2, 1]);
        assert_eq!(fell[0].fault, Fault::StaleReads);
    }
}
