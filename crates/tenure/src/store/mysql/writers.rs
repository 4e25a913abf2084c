//! Whether the hosts of a URL that take writes are one database.
//!
//! A fail-over makes a replica take writes. If the old primary is started again as it was,
//! it takes writes too, and candidates that use either lead beside each other. So where a
//! URL names several hosts, each handshake with one asks the others at the same time
//! whether they take writes. Of servers without a cluster one alone may take writes: while
//! two do, neither is used, because none is known to be the older.
//!
//! Servers of one cluster of Galera are one database if they see each other. All that do
//! have one view: its number, its size, and the addresses in it; and each has another place
//! in it. Two parts that were both made to go on alone (`pc.bootstrap`, or a cluster that
//! was begun twice from one state) have two views, or one place twice. Where two clusters
//! of one state tell the same of themselves, the numbers of their transactions tell them
//! apart, unless nothing was written to either since.
//!
//! A server without a cluster may have two names (a proxy's and its own). A named lock
//! tells it from two servers: the server that grants the lock says to every session that
//! it is held, and copies it to no other server. (Servers of Galera grant none.)
//!
//! A host that does not answer in time, is behind its cluster, takes no writes, or does not tell (a server that
//! only speaks MySQL's protocol) is passed over.
//!
//! What remains: a host is compared with those alone that answer when it is connected to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::settings::{Server, Settings};
use super::{rows, session};
use crate::clock;
use crate::error::{StoreError, quoted};
use crate::store::dial::{self, OTHERS_WITHIN, answers_of};
use crate::store::panics;

/// What a server says of its cluster of Galera. One of none has no such rows, or no
/// identifier.
const CLUSTER: &str = "SHOW STATUS WHERE Variable_name IN ('wsrep_cluster_state_uuid', \
     'wsrep_cluster_conf_id', 'wsrep_cluster_size', 'wsrep_incoming_addresses', \
     'wsrep_local_index', 'wsrep_gcomm_uuid')";
/// Answered once the server has applied what its cluster had committed: sessions wait for
/// that before a `SELECT`.
const CAUGHT_UP: &str = "SELECT 1";
/// How long a server of Galera may take for it. One that takes longer is left.
const BEHIND_WITHIN: Duration = Duration::from_secs(3);
/// The number of a server's last transaction, which is that of its cluster.
const LAST_COMMITTED: &str = "SHOW STATUS LIKE 'wsrep_last_committed'";
/// The identifier that a server has which has not joined its cluster.
const NO_CLUSTER: &str = "00000000-0000-0000-0000-000000000000";

/// What a server is of.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Membership {
    /// The identifier of a cluster of Galera; `None` of none.
    cluster: Option<String>,
    /// Which servers see each other: number, size and addresses.
    view: [String; 3],
    /// The server's place among them.
    place: String,
    /// The server itself, since it was started.
    server: String,
}

impl Membership {
    /// Whether two servers of one cluster of Galera see each other, or are one.
    fn sees(&self, other: &Self) -> bool {
        self.view == other.view && (self.place != other.place || self.server == other.server)
    }
}

/// A session with a host that takes writes.
struct Writer {
    host: String,
    session: Conn,
    of: Membership,
}

/// Questions to the other hosts that are under way.
pub(super) struct Asked(JoinSet<Option<Writer>>);

/// Asks each other host whether it takes writes. To be called on the background thread.
///
/// A handshake goes on when nothing waits for it any more. A server counts the handshakes
/// that are broken off, and after a hundred (`max_connect_errors`) it refuses this machine.
/// A process that only looks (`may_create` is off) may end during one. It acknowledges
/// nothing, so it asks no host.
pub(super) fn ask_others(settings: &Arc<Settings>, at: usize) -> Asked {
    let mut asked = JoinSet::new();
    let others = (0..settings.servers.len()).filter(|other| *other != at);
    for other in others.filter(|_| settings.may_create) {
        let answer = tokio::spawn(ask(Arc::clone(settings), other));
        asked.spawn(async move { answer.await.ok().flatten() });
    }
    Asked(asked)
}

/// What the host of this number says, if it takes writes.
async fn ask(settings: Arc<Settings>, host: usize) -> Option<Writer> {
    let server = settings.servers.get(host)?;
    let asked = async {
        // It fails if the host takes no writes.
        let opened = panics::caught(session::open(&settings, server, false)).await;
        let host = server.to_string();
        let mut session = dial::comparable(&host, opened)?;
        let of = membership(&mut session).await.ok()?;
        Some(Writer { host, session, of })
    };
    timeout(dial::HANDSHAKE_WITHIN, asked).await.ok()?
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
    // The others are asked the same, and have the time that this takes here, too.
    let Some(own) = own_membership(server, session).await? else {
        return Ok(());
    };
    let others = answers_of(asked, clock::boot().after(OTHERS_WITHIN)).await;
    if let Some(other) = others.iter().find(|it| it.of.cluster != own.cluster) {
        return Err(StoreError::broken(format!(
            "expected servers of one cluster, found two that take writes and are not: {server} of \
             {}, and {} of {}; name servers of one of them in the store's URL",
            shown(&own),
            other.host,
            shown(&other.of)
        )));
    }
    let other = if own.cluster.is_some() {
        match others.iter().position(|it| !it.of.sees(&own)) {
            Some(apart) => others.into_iter().nth(apart).map(|it| it.host),
            None => apart_by_transactions(session, others).await,
        }
    } else {
        another(session, others).await
    };
    let Some(other) = other else {
        return Ok(());
    };
    let why = if own.cluster.is_some() {
        format!(
            "expected servers of one cluster that see each other, found two parts that both take \
             writes: {server} is of one, and {other} of another; stop one part, and have its \
             servers join the other"
        )
    } else {
        format!(
            "expected one server that takes writes, found two: {server} and {other}; set the one \
             that is a replica, or was the primary before, read-only (read_only = ON in its \
             configuration)"
        )
    };
    tracing::warn!("{why}");
    Err(StoreError::unavailable(why))
}

/// What the server of this session is of; nothing, if it does not tell.
async fn own_membership(
    server: &Server,
    session: &mut Conn,
) -> Result<Option<Membership>, StoreError> {
    let Ok(told) = status(session).await else {
        return Ok(None);
    };
    if told.cluster.is_none() {
        return Ok(Some(told));
    }
    match timeout(BEHIND_WITHIN, membership(session)).await {
        Ok(Ok(own)) => Ok(Some(own)),
        _ => Err(StoreError::unavailable(format!(
            "{server}: expected a server that has applied what its cluster has committed, found \
             one that is behind (SHOW STATUS LIKE 'wsrep_local_state_comment')"
        ))),
    }
}

/// What a server is of. One that is behind its cluster says late what it sees: until it has
/// applied that a server came or went, it tells the view of before, as a server of another
/// part would. So it is asked once it has applied what the cluster had committed.
async fn membership(session: &mut Conn) -> Result<Membership, Error> {
    let told = status(session).await?;
    if told.cluster.is_none() {
        return Ok(told);
    }
    session.query_drop(CAUGHT_UP).await?;
    status(session).await
}

async fn status(session: &mut Conn) -> Result<Membership, Error> {
    let rows = rows::rows(session, CLUSTER).await?;
    let rows = rows
        .into_iter()
        .map(mysql_async::from_row::<(String, String)>);
    let mut told: BTreeMap<_, _> = rows.collect();
    let mut take = |name: &str| told.remove(name).unwrap_or_default();
    let cluster = take("wsrep_cluster_state_uuid");
    if cluster.is_empty() || cluster == NO_CLUSTER {
        return Ok(Membership::default());
    }
    let mut addresses: Vec<_> = take("wsrep_incoming_addresses")
        .split(',')
        .map(str::to_owned)
        .collect();
    addresses.sort_unstable();
    Ok(Membership {
        cluster: Some(cluster),
        view: [
            take("wsrep_cluster_conf_id"),
            take("wsrep_cluster_size"),
            addresses.join(","),
        ],
        place: take("wsrep_local_index"),
        server: take("wsrep_gcomm_uuid"),
    })
}

fn shown(of: &Membership) -> String {
    let named = |cluster| format!("the cluster {}", quoted(cluster));
    let cluster = of.cluster.as_deref();
    cluster.map_or_else(|| "no cluster".to_owned(), named)
}

/// A host whose cluster of Galera has other transactions than that of this session, if
/// there is one.
///
/// The number of the last transaction of a cluster only grows. A server that is asked
/// between two questions to another of its cluster tells a number that is not below the
/// first answer and not above the second, since each waits for what the cluster has
/// committed before it answers.
async fn apart_by_transactions(session: &mut Conn, others: Vec<Writer>) -> Option<String> {
    if others.is_empty() {
        return None;
    }
    let first = last_committed(session).await?;
    let mut asked = JoinSet::new();
    for mut other in others {
        asked.spawn(async move {
            let number = last_committed(&mut other.session).await?;
            Some((other.host, number))
        });
    }
    let answers = answers_of(asked, clock::boot().after(OTHERS_WITHIN)).await;
    let last = last_committed(session).await?;
    let mut apart = answers
        .into_iter()
        .filter(|(_, number)| !(first..=last).contains(number));
    apart.next().map(|(host, _)| host)
}

/// The number of the last transaction that the server has committed, once it has committed
/// all that its cluster had.
async fn last_committed(session: &mut Conn) -> Option<u64> {
    session.query_drop(CAUGHT_UP).await.ok()?;
    let row: Option<(String, String)> = session.query_first(LAST_COMMITTED).await.ok()?;
    row?.1.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_galera_see_each_other_in_one_view_from_two_places() {
        let member = |number: &str, place: &str, server: &str| Membership {
            cluster: Some("c".into()),
            view: [number.into(), "2".into(), "AUTO".into()],
            place: place.into(),
            server: server.into(),
        };
        let one = member("3", "0", "a");
        assert!(one.sees(&member("3", "1", "b")));
        assert!(one.sees(&one), "under another name");
        assert!(
            !one.sees(&member("3", "0", "b")),
            "each has its own first place"
        );
        assert!(!one.sees(&member("4", "1", "b")));
    }
}
