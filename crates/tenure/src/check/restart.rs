//! What a store has forgotten after a restart, which a command of the user's makes.
//!
//! A writer goes on while the command runs, so that there are writes that were
//! acknowledged a moment before the end: those are what a store loses that answers
//! before it has written to disk. A process that is killed keeps what the system has
//! in its cache; only a machine that fails shows whether a disk was synced.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::connection::{Connection, Stop};
use super::finding::{Fault, Finding};
use super::report::Outcome;
use super::writer::{Log, Order, count, count_in};
use crate::clock;
use crate::error::StoreError;
use crate::store::{Expect, Key, Version};

/// How long the command may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(120);
/// How long the store may take to answer after it.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// How long the writer goes on before and after.
const AROUND: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(20);

/// The registers of this trial.
pub(super) struct Keys {
    /// One that is written all the time.
    pub(super) counter: Key,
    /// One that rests.
    pub(super) resting: Key,
    /// One that is deleted before.
    pub(super) deleted: Key,
}

/// The trial. `writer` is a connection of its own.
pub(super) async fn restart(
    store: &Connection,
    writer: &Connection,
    keys: &Keys,
    command: &str,
) -> Result<Outcome, Stop> {
    let resting = store.create(&keys.resting, b"rests").await?;
    let deleted = store.create(&keys.deleted, b"same").await?;
    store.remove(&keys.deleted, &deleted).await?;
    let ended = AtomicBool::new(false);
    let order = Order {
        key: keys.counter.clone(),
        writes: u64::MAX,
        lasting: COMMAND_WITHIN + BACK_WITHIN,
        pause: PAUSE,
    };
    let restarting = async {
        tokio::time::sleep(AROUND).await;
        let restarted = run(command).await;
        let back = back(store, &keys.resting).await;
        tokio::time::sleep(AROUND).await;
        ended.store(true, Ordering::Relaxed);
        (restarted, back)
    };
    let counting = count(writer, &order, || ended.load(Ordering::Relaxed));
    let (log, (restarted, back)) = tokio::join!(counting, restarting);
    if let Err(why) = restarted {
        return Ok(Outcome::NotTried(why));
    }
    back?;
    let mut findings = rested(store, &keys.resting, &resting).await?;
    findings.extend(counted(store, &keys.counter, &log).await?);
    let again = store.write(&keys.deleted, Expect::Absent, b"same").await?;
    if again.version == deleted {
        let text = "a register was made again after the restart: expected a new version, found \
                    one from before";
        findings.push(Finding::new(Fault::ReusesVersions, text));
    }
    if !findings.is_empty() {
        return Ok(Outcome::Found(findings));
    }
    let acknowledged = log.acknowledged.len();
    Ok(Outcome::Passed(format!(
        "{acknowledged} writes were acknowledged before, during and after the restart, and none \
         was forgotten"
    )))
}

/// Runs the command, to its end.
async fn run(command: &str) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command);
    shell.stdin(Stdio::null()).stdout(Stdio::null());
    let child = shell.spawn();
    let mut child = child.map_err(|error| format!("the restart command did not start: {error}"))?;
    let until = clock::boot().after(COMMAND_WITHIN);
    while clock::boot() < until {
        match ended(&mut child)? {
            Some(Ok(())) => return Ok(()),
            Some(Err(code)) => {
                return Err(format!("the restart command failed ({code})"));
            }
            None => tokio::time::sleep(PAUSE).await,
        }
    }
    drop(child.kill());
    drop(child.wait());
    Err(format!(
        "the restart command took longer than {COMMAND_WITHIN:?}, and was killed"
    ))
}

fn ended(child: &mut Child) -> Result<Option<Result<(), String>>, String> {
    let status = child.try_wait().map_err(|error| error.to_string())?;
    Ok(status.map(|it| {
        if it.success() {
            Ok(())
        } else {
            Err(it.to_string())
        }
    }))
}

/// Waits until the store answers again.
async fn back(store: &Connection, key: &Key) -> Result<(), Stop> {
    let until = clock::boot().after(BACK_WITHIN);
    loop {
        match store.read(key).await {
            Err(Stop::Failed(StoreError::Unavailable(_))) if clock::boot() < until => {
                tokio::time::sleep(PAUSE).await;
            }
            read => return read.map(drop),
        }
    }
}

/// The register that nobody wrote has to be as it was.
async fn rested(store: &Connection, key: &Key, version: &Version) -> Result<Vec<Finding>, Stop> {
    let found = store.register(key).await?;
    let what = match found {
        Some(held) if held.version == *version && *held.value == *b"rests" => {
            return Ok(Vec::new());
        }
        Some(_) => "another",
        None => "none",
    };
    let text = format!("a register that nobody wrote: expected it after the restart, found {what}");
    Ok(vec![Finding::new(Fault::Forgets, text)])
}

/// What was acknowledged to the writer has to be there.
async fn counted(store: &Connection, key: &Key, log: &Log) -> Result<Option<Finding>, Stop> {
    let found = count_in(store.register(key).await?.as_ref());
    let known = log.acknowledged.iter().max().copied().unwrap_or_default();
    if let Some((before, after)) = log.stale {
        let text = format!(
            "a writer had been told that its count was {before}: expected it after the restart, \
             found {after}"
        );
        return Ok(Some(Finding::new(Fault::Forgets, text)));
    }
    Ok((found < known).then(|| {
        let text = format!("the count {known} was acknowledged: found {found} after the restart");
        Finding::new(Fault::Forgets, text)
    }))
}
