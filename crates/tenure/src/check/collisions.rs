//! Collisions: connections that all write at one version at the same moment. One of
//! them may be told that it was done.
//!
//! Writers that race by themselves (`race`) read before each write, and meet by chance.
//! Here all have read, and none does anything else. A server that looks at a condition
//! and writes in two steps has a gap between the two, in which another one may look. It
//! is longer where the value has to arrive, to be hashed or to be stored in between; so
//! some rounds have large values. Where it is short only many rounds meet it, so a store
//! that is quick has more of them. Registers that are made have rounds of their own,
//! since a server may see to that in another way than to a change.

use std::time::Duration;

use tokio::task::JoinSet;

use super::connection::{Connection, Stop};
use super::finding::{Fault, Finding};
use crate::clock;
use crate::error::StoreError;
use crate::store::{Expect, Key, Register, Version};

/// How often all make a register.
const CREATIONS: usize = 8;
/// How often all write over one version: at least, and at most.
const ROUNDS_MIN: usize = 24;
const ROUNDS_MAX: usize = 400;
/// When there is time for no more than the least.
const LASTING: Duration = Duration::from_secs(8);
/// The part of what is left of the budget that is used.
const PART: u64 = 4;
/// In one round of so many of the first ones the values are large. Not in all: a
/// system may keep everything that it was sent for a while.
const LARGE_EVERY: usize = 3;
/// The size of large values.
const LARGE: usize = 128 * 1024;
/// How often what was acknowledged is looked for.
const LOOKS: usize = 3;

/// The outcomes of writes at the same moment.
#[derive(Debug, Default)]
struct Outcomes {
    /// The values that were acknowledged, with their versions.
    done: Vec<(Vec<u8>, Version)>,
    refused: usize,
}

/// Has all writers collide, in the register `key` and in new ones beside it.
pub(super) async fn collisions(writers: &[Connection], key: &Key) -> Result<String, Stop> {
    let first = writers.first().ok_or(Stop::Budget)?;
    // The connections are made before they are needed.
    for writer in writers {
        writer.read(key).await?;
    }
    let until = clock::boot().after(LASTING);
    let requests = u64::try_from(writers.len()).unwrap_or(u64::MAX) + 1;
    let most = first.meter().left() / PART / requests;
    let most = usize::try_from(most).unwrap_or(ROUNDS_MAX).min(ROUNDS_MAX);
    let (mut done, mut refused, mut rounds) = (0, 0, 0);
    for number in 0..CREATIONS {
        let key = Key::new(&format!("{key}-new-{number}"));
        let key = key.map_err(|error| Stop::Failed(StoreError::broken(error)))?;
        let told = at_once(writers, &key, &Expect::Absent, number).await?;
        settle(first, &key, &told, writers.len()).await?;
        (done, refused) = (done + told.done.len(), refused + told.refused);
    }
    let mut version = first.create(key, b"").await?;
    while rounds < most && (rounds < ROUNDS_MIN || clock::boot() < until) {
        let expect = Expect::Version(version);
        let told = at_once(writers, key, &expect, rounds).await?;
        let held = settle(first, key, &told, writers.len()).await?;
        (done, refused) = (done + told.done.len(), refused + told.refused);
        rounds += 1;
        let Some(held) = held else {
            let text = "a register was written over and over: expected it, found none";
            return Err(Finding::new(Fault::LosesUpdates, text).into());
        };
        version = held.version;
    }
    let rounds = rounds + CREATIONS;
    Ok(format!(
        "{} connections wrote at one version at the same moment, {rounds} times: {done} writes \
         were acknowledged, never two of one version, and {refused} refused",
        writers.len()
    ))
}

/// All writers write at the same moment, each a value of its own.
async fn at_once(
    writers: &[Connection],
    key: &Key,
    expect: &Expect,
    number: usize,
) -> Result<Outcomes, Stop> {
    let mut writes = JoinSet::new();
    for (writer, connection) in writers.iter().enumerate() {
        let mut value = format!("{number} {writer}").into_bytes();
        if number < ROUNDS_MIN && number % LARGE_EVERY == 1 {
            value.resize(LARGE, b'.');
        }
        let (connection, key, expect) = (connection.clone(), key.clone(), expect.clone());
        writes.spawn(async move {
            let written = connection.write(&key, expect, &value).await;
            (value, written)
        });
    }
    let mut told = Outcomes::default();
    for (value, written) in writes.join_all().await {
        match written {
            Ok(written) => told.done.push((value, written.version)),
            Err(Stop::Failed(StoreError::Conflict)) => told.refused += 1,
            // It may have been done, and then no other one is.
            Err(Stop::Failed(StoreError::Unavailable(_) | StoreError::Unknown(_))) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(told)
}

/// Reads the register, which has to be as the writers were told.
async fn settle(
    reader: &Connection,
    key: &Key,
    told: &Outcomes,
    writers: usize,
) -> Result<Option<Register>, Stop> {
    let mut wrong = None;
    for _ in 0..LOOKS {
        let held = reader.register(key).await?;
        match (judge(told, writers, held.as_ref()), wrong.is_some()) {
            (Ok(()), false) => return Ok(held),
            (Ok(()), true) => {
                let text = "a write was acknowledged: expected it in the next read, found it in \
                            a later one";
                return Err(Finding::new(Fault::StaleReads, text).into());
            }
            (Err(finding), _) => wrong = Some(finding),
        }
    }
    Err(wrong.map_or(Stop::Budget, Stop::Found))
}

/// What is wrong with what `writers` were told, where the register is `held` in the end.
fn judge(told: &Outcomes, writers: usize, held: Option<&Register>) -> Result<(), Finding> {
    let (value, version) = match told.done.as_slice() {
        [] => return Ok(()),
        [one] => one,
        more => {
            let text = format!(
                "{writers} connections wrote at one version at the same moment: expected one of \
                 them at most to be told that it was done, found {}",
                more.len()
            );
            return Err(Finding::new(Fault::LosesUpdates, text));
        }
    };
    if held.is_some_and(|held| held.version == *version && *held.value == **value) {
        return Ok(());
    }
    let text = format!(
        "{writers} connections wrote at one version at the same moment, and one of them was told \
         that it was done: expected what it wrote, found {}",
        if held.is_some() {
            "another value"
        } else {
            "no register"
        }
    );
    Err(Finding::new(Fault::LosesUpdates, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(done: &[(&[u8], u64)]) -> Outcomes {
        let version = Version::from_u64;
        let done = done
            .iter()
            .map(|(value, at)| (value.to_vec(), version(*at)));
        Outcomes {
            done: done.collect(),
            refused: 0,
        }
    }

    #[test]
    fn one_at_most_is_done_and_is_there() {
        let held = |value: &[u8], at| Register {
            value: value.into(),
            version: Version::from_u64(at),
            stamp: None,
        };
        let one = told(&[(b"a", 2)]);
        assert_eq!(judge(&one, 8, Some(&held(b"a", 2))), Ok(()));
        assert_eq!(judge(&told(&[]), 8, Some(&held(b"old", 1))), Ok(()));
        for (told, held) in [
            (told(&[(b"a", 2), (b"b", 3)]), Some(held(b"b", 3))),
            (told(&[(b"a", 2)]), Some(held(b"b", 3))),
            (told(&[(b"a", 2)]), Some(held(b"b", 2))),
            (told(&[(b"a", 2)]), None),
        ] {
            let found = judge(&told, 8, held.as_ref()).expect_err("a breach");
            assert_eq!(found.fault, Fault::LosesUpdates, "{}", found.text);
        }
    }
}
