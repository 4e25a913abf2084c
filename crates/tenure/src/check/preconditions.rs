//! Writes and deletions that do not fit, one at a time: each has to be refused, and
//! to change nothing. And versions, of which none may come again.

use std::collections::BTreeSet;

use super::connection::{Connection, Stop, refused};
use super::finding::{Fault, Finding};
use crate::store::{Expect, Key, Version};

/// How often a register is made, written and deleted.
const ROUNDS: usize = 5;

/// Asks for what does not fit.
pub(super) async fn refusals(store: &Connection, key: &Key) -> Result<String, Stop> {
    let at = |version: &Version| Expect::Version(version.clone());
    let first = store.create(key, b"1").await?;
    let again = store.write(key, Expect::Absent, b"again").await;
    refused(again, "creating a register that is there")?;
    let second = store.update(key, &first, b"2").await?;
    let stale = store.write(key, at(&first), b"stale").await;
    refused(stale, "writing over an older version")?;
    let stale = store.delete(key, &first).await;
    refused(stale, "deleting at an older version")?;
    unchanged(store, key, &first, &second).await?;
    store.remove(key, &second).await?;
    let gone = store.write(key, at(&second), b"gone").await;
    refused(
        gone,
        "writing over the version of a register that was deleted",
    )?;
    let gone = store.delete(key, &second).await;
    refused(gone, "deleting a register that was deleted")?;
    let third = store.create(key, b"3").await?;
    let before = store.write(key, at(&second), b"before").await;
    refused(before, "writing over a version from before a deletion")?;
    let before = store.delete(key, &second).await;
    refused(before, "deleting at a version from before a deletion")?;
    store.remove(key, &third).await?;
    Ok("7 writes and deletions that did not fit were refused".to_owned())
}

/// What was refused must not have been done.
async fn unchanged(
    store: &Connection,
    key: &Key,
    older: &Version,
    version: &Version,
) -> Result<(), Stop> {
    let found = store.register(key).await?;
    let fault = match found {
        Some(held) if held.version == *version && *held.value == *b"2" => return Ok(()),
        Some(held) if held.version != *older => Fault::WrongAnswers,
        _ => Fault::StaleReads,
    };
    let text = "a register was written, and three changes of it that do not fit were refused: \
                expected it as it was written, found another";
    Err(Finding::new(fault, text).into())
}

/// Makes, writes and deletes a register again and again with the same bytes.
pub(super) async fn versions(store: &Connection, key: &Key) -> Result<String, Stop> {
    let mut seen = BTreeSet::new();
    let mut fresh = |version: &Version| -> Result<(), Stop> {
        if seen.insert(version.clone()) {
            return Ok(());
        }
        let text = format!(
            "a register was made, written and deleted again and again with the same bytes: \
             expected a new version each time, found {version} twice"
        );
        Err(Finding::new(Fault::ReusesVersions, text).into())
    };
    for _ in 0..ROUNDS {
        let first = store.create(key, b"same").await?;
        fresh(&first)?;
        let second = store.update(key, &first, b"same").await?;
        fresh(&second)?;
        store.remove(key, &second).await?;
    }
    let versions = 2 * ROUNDS;
    Ok(format!(
        "{versions} versions of one register, made and deleted {ROUNDS} times with the same \
         bytes: all different"
    ))
}
