//! Whether the hosts of a URL that take writes are one database.
//!
//! A fail-over makes a replica take writes. If the old primary is started again as it was,
//! it takes writes too, and candidates that use either lead beside each other. So where a
//! URL names several hosts, each handshake with one asks the others at the same time
//! whether they take writes. Servers of one cluster of Galera are one database. Of servers
//! without a cluster one alone may take writes: while two do, neither is used, because none
//! is known to be the older.
//!
//! One server under two names (a proxy's and its own) is told from two by a named lock.
//! The server that grants one says to every session that it is held, and copies it to no
//! other server.
//!
//! A host that does not answer in time, takes no writes, or does not tell (a server that
//! only speaks MySQL's protocol) is passed over.
//!
//! What remains: a host is compared with those alone that answer when it is connected to.

use std::sync::Arc;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error};
use tokio::task::JoinSet;

use super::session;
use super::settings::{Server, Settings};
use crate::clock;
use crate::error::StoreError;
use crate::store::dial::{self, OTHERS_WITHIN, answers_of};

/// The cluster of Galera that a server is of. One of none has no such row, or nothing in it.
const CLUSTER: &str = "SHOW STATUS LIKE 'wsrep_cluster_state_uuid'";
/// What a server that has not joined its cluster says.
const NO_CLUSTER: &str = "00000000-0000-0000-0000-000000000000";

/// A session with a host that takes writes.
struct Writer {
    host: String,
    session: Conn,
    cluster: Option<String>,
}

/// Questions to the other hosts that are under way. Dropping them ends them.
pub(super) struct Asked(JoinSet<Option<Writer>>);

/// Asks each other host whether it takes writes. To be called on the background thread.
pub(super) fn ask_others(settings: &Arc<Settings>, at: usize) -> Asked {
    let mut asked = JoinSet::new();
    for other in (0..settings.servers.len()).filter(|other| *other != at) {
        let settings = Arc::clone(settings);
        asked.spawn(async move {
            let server = settings.servers.get(other)?;
            // It fails if the host takes no writes.
            let opened = dial::caught(session::open(&settings, server, false)).await;
            let mut session = opened.ok()?;
            let cluster = cluster(&mut session).await.ok()?;
            let host = server.to_string();
            Some(Writer {
                host,
                session,
                cluster,
            })
        });
    }
    Asked(asked)
}

/// Fails if a host that was connected to is not to be used, for what the others say.
pub(super) async fn judge(
    server: &Server,
    session: &mut Conn,
    Asked(asked): Asked,
) -> Result<(), StoreError> {
    if asked.is_empty() {
        return Ok(());
    }
    let others = answers_of(asked, clock::boot().after(OTHERS_WITHIN)).await;
    let Ok(own) = cluster(session).await else {
        return Ok(());
    };
    if let Some(other) = others.iter().find(|it| it.cluster != own) {
        return Err(StoreError::broken(format!(
            "expected servers of one cluster, found two that take writes and are not: {server} of \
             {}, and {} of {}; name servers of one of them in the store's URL",
            shown(own.as_deref()),
            other.host,
            shown(other.cluster.as_deref())
        )));
    }
    if own.is_some() {
        return Ok(());
    }
    match another(session, others).await {
        None => Ok(()),
        Some(other) => {
            let why = format!(
                "expected one server that takes writes, found two: {server} and {other}; set the \
                 one that is a replica, or was the primary before, read-only (read_only = ON in \
                 its configuration)"
            );
            tracing::warn!("{why}");
            Err(StoreError::unavailable(why))
        }
    }
}

async fn cluster(session: &mut Conn) -> Result<Option<String>, Error> {
    let row: Option<(String, String)> = session.query_first(CLUSTER).await?;
    let named = row.map(|(_, uuid)| uuid);
    Ok(named.filter(|uuid| !uuid.is_empty() && uuid != NO_CLUSTER))
}

fn shown(cluster: Option<&str>) -> String {
    cluster.map_or_else(
        || "no cluster".to_owned(),
        |it| format!("the cluster {it:?}"),
    )
}

/// A host that is another server than that of this session, if there is one. Both are of
/// no cluster.
async fn another(session: &mut Conn, others: Vec<Writer>) -> Option<String> {
    if others.is_empty() {
        return None;
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).ok()?;
    let name = format!("tenure-{:016x}", u64::from_be_bytes(random));
    let lock = format!("SELECT GET_LOCK('{name}', 0)");
    let locked: Option<Option<u64>> = session.query_first(lock).await.ok()?;
    locked.flatten().filter(|it| *it == 1)?;
    let mut asked = JoinSet::new();
    for mut other in others {
        let question = format!("SELECT IS_USED_LOCK('{name}')");
        asked.spawn(async move {
            let holder: Option<Option<u64>> = other.session.query_first(question).await.ok()?;
            holder.map(|holder| (other.host, holder.is_some()))
        });
    }
    let answers = answers_of(asked, clock::boot().after(OTHERS_WITHIN)).await;
    // It would end with the session, too, which is used for long.
    let _ = session
        .query_drop(format!("DO RELEASE_LOCK('{name}')"))
        .await;
    let mut apart = answers.into_iter().filter(|(_, is_held)| !is_held);
    apart.next().map(|(host, _)| host)
}
