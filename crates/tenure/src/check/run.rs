//! The trials in their order, and what becomes of their ends.

use std::sync::Arc;

use super::advice::{Advice, dollars};
use super::clean_up::clean_up;
use super::clock_trial;
use super::collisions;
use super::connection::{Connection, Meter, Stop};
use super::cuts;
use super::finding::{Fault, Finding};
use super::latency;
use super::plan::Plan;
use super::preconditions;
use super::race;
use super::report::{Outcome, Report, Trial};
use super::restart;
use super::stale;
use crate::error::{StoreError, about};
use crate::store::{Clock, Durability, Key};

/// How many connections look for what another one wrote.
const READERS: usize = 3;
/// How many connections write at one version at the same moment.
const COLLIDING: usize = 4;
/// In how many registers writers race.
const REGISTERS: usize = 2;
/// How often a trial is begun again whose calls failed.
const ATTEMPTS: u32 = 3;
/// Why a trial is left out that looks for what was acknowledged.
const UNSETTLED: &str = "reads show older states here, so they settle nothing";

/// Checks a store until all is tried or `stop` ends; `told` hears of each trial as it
/// ends. What was made is deleted, in either case.
///
/// To be awaited on a runtime of tokio.
///
/// # Errors
/// What the store fails with before anything is tried, and
/// [`StoreError::Broken`] whenever a person must do something first.
pub async fn run(
    plan: &Plan,
    stop: impl Future<Output = ()>,
    told: impl FnMut(&Trial),
) -> Result<Report, StoreError> {
    let meter = Meter::new(plan.budget);
    let store = plan.open().await?;
    let shown = store.to_string();
    let store = Connection::new(store, Arc::clone(&meter), plan.within);
    let prefix = prefix()?;
    let mut check = Check {
        plan,
        store: store.clone(),
        told,
        report: Report {
            store: shown,
            prefix: prefix.clone(),
            trials: Vec::new(),
            latencies: None,
            clock: None,
            advice: None,
            reads: 0,
            writes: 0,
            dollars: None,
            left_behind: None,
            interrupted: false,
        },
    };
    // Whether it is there; nothing has been made yet.
    match store.read(&check.key("there")?).await {
        Ok(_) | Err(Stop::Budget | Stop::Found(_)) => {}
        Err(Stop::Failed(error)) => return Err(error),
    }
    let ended = tokio::select! {
        ended = check.trials() => Some(ended),
        () = stop => None,
    };
    let mut report = check.report;
    report.interrupted = ended.is_none();
    let looks = if report.interrupted { 2 } else { 1 };
    report.left_behind = clean_up(&store, &prefix, looks).await;
    (report.reads, report.writes) = meter.used();
    report.dollars = dollars(&plan.url, report.writes, report.reads);
    match ended {
        Some(Err(error)) => {
            if let Some(left) = &report.left_behind {
                tracing::warn!("left behind below {prefix}: {left}");
            }
            Err(error)
        }
        _ => Ok(report),
    }
}

/// What the keys of one check begin with: no other check has it.
fn prefix() -> Result<String, StoreError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(StoreError::unavailable)?;
    Ok(format!("check/{:016x}/", u64::from_be_bytes(random)))
}

/// A check that is under way.
struct Check<'a, F> {
    plan: &'a Plan,
    store: Connection,
    told: F,
    report: Report,
}

impl<F: FnMut(&Trial)> Check<'_, F> {
    fn key(&self, name: &str) -> Result<Key, StoreError> {
        Key::new(&format!("{}{name}", self.report.prefix)).map_err(StoreError::broken)
    }

    /// Takes down what came of a trial.
    fn note(&mut self, name: &'static str, outcome: Outcome) {
        let trial = Trial { name, outcome };
        (self.told)(&trial);
        self.report.trials.push(trial);
    }

    async fn trials(&mut self) -> Result<(), StoreError> {
        let store = self.store.clone();
        let preconditions = async |key: &Key| preconditions::refusals(&store, key).await;
        self.attempt("preconditions", preconditions).await?;
        let versions = async |key: &Key| preconditions::versions(&store, key).await;
        self.attempt("versions", versions).await?;
        let readers = self.others(READERS).await?;
        let reads = async |key: &Key| stale::reads(&store, &readers, key).await;
        self.attempt("reads", reads).await?;
        self.durability();
        self.collisions().await?;
        self.race().await?;
        self.cuts().await?;
        self.latency().await?;
        self.clock().await?;
        self.restart().await
    }

    /// What the system said of itself when it was connected to.
    fn durability(&mut self) {
        let outcome = match self.store.durability() {
            Durability::Untold => {
                Outcome::LeftOut("the store is not told how its system is set up".to_owned())
            }
            Durability::Kept => {
                Outcome::Passed("what it acknowledges is on its disk, as it is set up".to_owned())
            }
            Durability::Lossy(why) => Outcome::Found(vec![Finding::new(Fault::MayLose, why)]),
        };
        self.note("durability", outcome);
    }

    /// So many more connections to the store.
    async fn others(&self, count: usize) -> Result<Vec<Connection>, StoreError> {
        let mut others = Vec::new();
        for _ in 0..count {
            let (meter, within) = (Arc::clone(self.store.meter()), self.plan.within);
            others.push(Connection::new(self.plan.open().await?, meter, within));
        }
        Ok(others)
    }

    /// Makes a trial, again in another register if a call fails.
    async fn attempt(
        &mut self,
        name: &'static str,
        trial: impl AsyncFn(&Key) -> Result<String, Stop>,
    ) -> Result<(), StoreError> {
        let mut attempt = 1;
        let outcome = loop {
            let key = self.key(&format!("{name}-{attempt}"))?;
            match trial(&key).await {
                Ok(text) => break Outcome::Passed(text),
                Err(Stop::Failed(StoreError::Unavailable(_) | StoreError::Unknown(_)))
                    if attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(stop) => break self.outcome(stop)?,
            }
        };
        self.note(name, outcome);
        Ok(())
    }

    /// What a trial came to that goes no further.
    fn outcome(&self, stop: Stop) -> Result<Outcome, StoreError> {
        Ok(match stop {
            Stop::Budget => Outcome::NotTried(format!(
                "the budget of {} requests is used up; give a larger one",
                self.plan.budget
            )),
            Stop::Found(finding) => Outcome::Found(vec![finding]),
            Stop::Failed(error) if error.is_unfit() => {
                Outcome::Found(vec![Finding::new(Fault::Refused, error)])
            }
            Stop::Failed(error @ StoreError::Broken(_)) => return Err(error),
            Stop::Failed(error) => Outcome::NotTried(error.to_string()),
        })
    }

    async fn collisions(&mut self) -> Result<(), StoreError> {
        if self.shows_older_states() {
            let why = Outcome::LeftOut(UNSETTLED.to_owned());
            self.note("collisions", why);
            return Ok(());
        }
        let writers = self.others(COLLIDING).await?;
        let trial = async |key: &Key| collisions::collisions(&writers, key).await;
        self.attempt("collisions", trial).await
    }

    async fn race(&mut self) -> Result<(), StoreError> {
        let keys = (0..REGISTERS).map(|number| self.key(&format!("race-{number}")));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let outcome = match race::race(self.plan, &self.store, &keys).await {
            Ok(outcome) => outcome,
            Err(stop) => self.outcome(stop)?,
        };
        self.note("race", outcome);
        Ok(())
    }

    async fn cuts(&mut self) -> Result<(), StoreError> {
        if self.shows_older_states() {
            self.note("cuts", Outcome::LeftOut(UNSETTLED.to_owned()));
            return Ok(());
        }
        let outcome = match cuts::cuts(self.plan, &self.store, &self.key("cuts")?).await {
            Ok(outcome) => outcome,
            Err(stop) => self.outcome(stop)?,
        };
        self.note("cuts", outcome);
        Ok(())
    }

    /// Whether what a read shows proves nothing here.
    fn shows_older_states(&self) -> bool {
        let mut findings = self.report.findings();
        findings.any(|it| it.fault == Fault::StaleReads)
    }

    async fn latency(&mut self) -> Result<(), StoreError> {
        let outcome = match latency::measure(&self.store, &self.key("latency")?).await {
            Ok(found) => {
                self.report.latencies = Some(found);
                self.report.advice = Some(Advice::new(&self.plan.url, &found));
                Outcome::Passed(format!(
                    "a read takes {}, one in a hundred {}; a write {}, one in a hundred {}",
                    about(found.read.p50),
                    about(found.read.p99),
                    about(found.write.p50),
                    about(found.write.p99)
                ))
            }
            Err(stop) => self.outcome(stop)?,
        };
        self.note("latency", outcome);
        Ok(())
    }

    async fn clock(&mut self) -> Result<(), StoreError> {
        let features = self.store.features();
        let outcome = match features.clock {
            Clock::None => Outcome::LeftOut(
                "the store has none that could be trusted: grants are judged by silence".to_owned(),
            ),
            clock => match clock_trial::look(&self.store, &self.key("clock")?).await {
                Ok(()) => self.clock_outcome(clock, features.judge_by_store_clock),
                Err(stop) => self.outcome(stop)?,
            },
        };
        self.note("clock", outcome);
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), StoreError> {
        let Some(command) = &self.plan.restart else {
            let why = "there is no command that restarts the store";
            self.note("restart", Outcome::LeftOut(why.to_owned()));
            return Ok(());
        };
        if self.shows_older_states() {
            self.note("restart", Outcome::LeftOut(UNSETTLED.to_owned()));
            return Ok(());
        }
        let keys = restart::Keys {
            counter: self.key("restart-counter")?,
            resting: self.key("restart-resting")?,
            deleted: self.key("restart-deleted")?,
        };
        let writers = self.others(1).await?;
        let writer = writers.first().unwrap_or(&self.store);
        let outcome = match restart::restart(&self.store, writer, &keys, command).await {
            Ok(outcome) => outcome,
            Err(stop) => self.outcome(stop)?,
        };
        self.note("restart", outcome);
        Ok(())
    }

    fn clock_outcome(&mut self, clock: Clock, judges: bool) -> Outcome {
        let Some(seen) = clock_trial::seen(self.store.meter().samples()) else {
            return Outcome::LeftOut("the store told no time".to_owned());
        };
        self.report.clock = Some(seen);
        match clock_trial::verdict(&seen, clock, judges) {
            Ok(text) => Outcome::Passed(format!("{text}; {seen}")),
            Err(finding) => Outcome::Found(vec![finding]),
        }
    }
}
