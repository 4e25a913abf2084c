//! Reads over other connections, at once after a write was acknowledged: a replica
//! that is late shows what was there before.

use tokio::task::JoinSet;

use super::connection::{Connection, Stop};
use super::finding::{Fault, Finding};
use crate::clock;
use crate::error::about;
use crate::store::{Key, Version};

/// How many writes are looked for.
const ROUNDS: u8 = 40;

/// Writes over `writer`, and looks over each of the others.
pub(super) async fn reads(
    writer: &Connection,
    readers: &[Connection],
    key: &Key,
) -> Result<String, Stop> {
    let mut version = writer.create(key, &[0]).await?;
    see(readers, key, Some(&version)).await?;
    for round in 1..ROUNDS {
        version = writer.update(key, &version, &[round]).await?;
        see(readers, key, Some(&version)).await?;
    }
    writer.remove(key, &version).await?;
    see(readers, key, None).await?;
    Ok(format!(
        "{} other connections saw each of {ROUNDS} writes and a deletion at once",
        readers.len()
    ))
}

/// All readers at a time have to see this version.
async fn see(readers: &[Connection], key: &Key, version: Option<&Version>) -> Result<(), Stop> {
    let acknowledged = clock::boot();
    let mut reads = JoinSet::new();
    for reader in readers {
        let (reader, key) = (reader.clone(), key.clone());
        reads.spawn(async move {
            let began = clock::boot();
            (began, reader.register(&key).await)
        });
    }
    for (began, found) in reads.join_all().await {
        let found = found?.map(|held| held.version);
        if found.as_ref() == version {
            continue;
        }
        let after = about(began.since(acknowledged));
        let what = match (version, found) {
            (None, _) => "a register that was deleted",
            (Some(_), None) => "no register",
            (Some(_), Some(_)) => "an older version",
        };
        let text = format!(
            "a read over another connection, begun {after} after a write was acknowledged: \
             expected that write, found {what}"
        );
        return Err(Finding::new(Fault::StaleReads, text).into());
    }
    Ok(())
}
