//! Whether the hosts of a URL that take writes are one database.
//!
//! A standby that is promoted begins a new timeline. If the old primary is started again
//! as it was, it takes writes on the old one, and candidates that use either lead beside
//! each other. So where a URL names several hosts, each handshake with one asks the others
//! at the same time whether they take writes too, and which history they have: the
//! identifier that `initdb` gave to the server and all its standbys, and the timeline. An
//! old primary is not used, and neither are two databases: of two servers that have nothing
//! in common, or of one.
//!
//! A copy of a server's directory, and two standbys that were both promoted, have one
//! history and are two servers: each was started at another moment. Neither is used while
//! both take writes, because none is known to be the older. (The same is seen where one
//! server is started anew between two answers. It passes: hosts are tried again.)
//!
//! The timeline is that of the file which is written to now (`pg_walfile_name`).
//! `pg_control_checkpoint()` tells the old one until the first checkpoint after a promotion.
//!
//! A host that does not answer in time, takes no writes, or does not tell its history
//! (rights that were revoked, a server that only speaks PostgreSQL's protocol) is passed
//! over. One server twice is let be: two proxies before it look so.
//!
//! What remains: a host is compared with those alone that answer when it is connected to.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::connect::{self, PgConnection};
use super::settings::Settings;
use crate::clock;
use crate::error::StoreError;
use crate::store::dial::{OTHERS_WITHIN, answers_of, comparable};

/// A standby has no file that it writes to, and would fail to name it; it has no row.
const HISTORY: &str = "SELECT system_identifier, \
     pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8), \
     pg_catalog.current_database(), \
     pg_catalog.to_char(pg_catalog.timezone('UTC', pg_catalog.pg_postmaster_start_time()), \
     'YYYY-MM-DD HH24:MI:SS.US') \
     FROM pg_catalog.pg_control_system() WHERE NOT pg_catalog.pg_is_in_recovery()";

/// What a host that takes writes says of itself.
#[derive(Clone, Debug)]
struct Primary {
    label: String,
    system: String,
    timeline: u32,
    database: String,
    /// When the server was started, to the microsecond.
    started: String,
}

/// Questions to the other hosts that are under way. Dropping them ends them.
pub(super) struct Asked(JoinSet<Option<Primary>>);

/// Asks each other host for its history. To be called on the background thread.
pub(super) fn ask_others(settings: &Arc<Settings>, at: usize) -> Asked {
    let mut asked = JoinSet::new();
    for other in (0..settings.servers.len()).filter(|other| *other != at) {
        let settings = Arc::clone(settings);
        asked.spawn(async move {
            let server = settings.servers.get(other)?;
            // It fails if the host takes no writes.
            let connected = connect::open(&settings, server).await;
            let connected = comparable(&server.label, connected)?;
            primary(&server.label, &connected).await
        });
    }
    Asked(asked)
}

/// Fails if a host that was connected to is not to be used, for what the others say.
pub(super) async fn judge(
    label: &str,
    connected: &PgConnection,
    Asked(asked): Asked,
) -> Result<(), StoreError> {
    if asked.is_empty() {
        return Ok(());
    }
    let Some(own) = primary(label, connected).await else {
        return Ok(());
    };
    let others = answers_of(asked, clock::boot().after(OTHERS_WITHIN)).await;
    compare(&own, &others)
}

async fn primary(label: &str, connected: &PgConnection) -> Option<Primary> {
    let statements = connected.query(HISTORY).await.ok()?;
    let row = statements.first()?.first()?;
    Some(Primary {
        label: label.to_owned(),
        system: row.get(0)?.to_owned(),
        timeline: u32::from_str_radix(row.get(1)?, 16).ok()?,
        database: row.get(2)?.to_owned(),
        started: row.get(3)?.to_owned(),
    })
}

fn compare(own: &Primary, others: &[Primary]) -> Result<(), StoreError> {
    let label = &own.label;
    if let Some(other) = others.iter().find(|it| it.system != own.system) {
        return Err(StoreError::broken(format!(
            "expected hosts of one database, found two that take writes and have nothing in \
             common: {label} with system identifier {}, and {} with {}; name a primary and its \
             standbys in the store's URL",
            own.system, other.label, other.system
        )));
    }
    if let Some(other) = others.iter().find(|it| it.database != own.database) {
        return Err(StoreError::broken(format!(
            "expected hosts of one database, found two of one server: {label} leads to {:?}, and \
             {} to {:?}; name one of them in the store's URL, or correct the proxy",
            own.database, other.label, other.database
        )));
    }
    // The one that goes on may be connected to first, and is all that is logged of then.
    for old in others.iter().filter(|it| it.timeline < own.timeline) {
        tracing::warn!("{}", ended(old, own));
    }
    let newest = others.iter().max_by_key(|it| it.timeline);
    match newest.filter(|it| it.timeline > own.timeline) {
        None => is_one_server(own, others),
        Some(newest) => {
            let why = ended(own, newest);
            tracing::warn!("{why}");
            Err(StoreError::unavailable(why))
        }
    }
}

/// Fails if another host is a server of its own with the same history.
fn is_one_server(own: &Primary, others: &[Primary]) -> Result<(), StoreError> {
    let mut same = others.iter().filter(|it| it.timeline == own.timeline);
    let Some(other) = same.find(|it| it.started != own.started) else {
        return Ok(());
    };
    let why = format!(
        "expected one primary, found two with one history that take writes: {}, started at {}, \
         and {}, started at {} (UTC); one is a copy of the other, or both were promoted: stop one, \
         or make it a standby",
        own.label, own.started, other.label, other.started
    );
    tracing::warn!("{why}");
    Err(StoreError::unavailable(why))
}

/// What is wrong with an old primary.
fn ended(old: &Primary, new: &Primary) -> String {
    format!(
        "{}: expected the primary, found one whose history has ended: it is on timeline {}, and \
         {}, which takes writes too, on timeline {}; stop it, or make it a standby (pg_rewind)",
        old.label, old.timeline, new.label, new.timeline
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(label: &str, system: &str, timeline: u32) -> Primary {
        Primary {
            label: label.into(),
            system: system.into(),
            timeline,
            database: "app".into(),
            started: "2026-11-29 10:00:00.000001".into(),
        }
    }

    #[test]
    fn two_servers_with_one_history_are_not_used() {
        let one = primary("a", "7", 1);
        let mut two = primary("b", "7", 1);
        two.started = "2026-11-29 10:00:00.000002".into();
        let refused = compare(&one, &[two.clone(), primary("c", "7", 1)]);
        let Err(StoreError::Unavailable(why)) = refused else {
            panic!("{refused:?}");
        };
        let why = why.to_string();
        assert!(
            why.contains("a, started at 2026-11-29 10:00:00.000001, and b"),
            "{why}"
        );
        // It was promoted since, so it is known which one goes on.
        let newer = primary("c", "7", 2);
        compare(&newer, &[one.clone(), two]).expect("it is used");
        let mut other = primary("b", "7", 1);
        other.database = "app2".into();
        let refused = compare(&one, &[other]);
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{refused:?}");
        };
        let why = why.to_string();
        assert!(
            why.contains("a leads to \"app\", and b to \"app2\""),
            "{why}"
        );
    }

    #[test]
    fn the_newest_history_of_one_database_is_used() {
        let (one, two) = (primary("a", "7", 1), primary("b", "7", 2));
        for (own, others) in [
            (&one, vec![]),
            (&one, vec![primary("c", "7", 1)]),
            (&two, vec![one.clone(), primary("c", "7", 2)]),
        ] {
            compare(own, &others).expect("it is used");
        }
        let refused = compare(&one, &[primary("c", "7", 1), two.clone()]);
        let Err(StoreError::Unavailable(why)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(
            why.to_string(),
            "a: expected the primary, found one whose history has ended: it is on timeline 1, \
             and b, which takes writes too, on timeline 2; stop it, or make it a standby \
             (pg_rewind)"
        );
        let refused = compare(&two, &[one, primary("c", "8", 1)]);
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{refused:?}");
        };
        let why = why.to_string();
        assert!(why.contains("identifier 7, and c with 8;"), "{why}");
    }
}
