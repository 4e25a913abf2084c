//! A session with one server: the whole handshake, and what is asked of the server
//! before the session is used.
//!
//! What a session depends on is set in it, because a server, a user or a database may
//! have other defaults: each statement commits by itself, reads what is committed, is
//! refused where it does not fit, and waits for locks for a short time only. No
//! transaction spans two statements, so a client that is stopped holds no lock. Its
//! session ends a minute later.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error, OptsBuilder};
use rustls::crypto::{CryptoProvider, aws_lc_rs};

use super::settings::{Server, Settings};
use super::{classify, rows};
use crate::error::StoreError;
use crate::store::addresses::addresses;
use crate::store::dial::{self, Repeats};

/// How long a server keeps a session that asks nothing.
pub(super) const IDLE_SECONDS: u64 = 60;
/// The largest packet that this client takes or sends. A value is sent as text of
/// twice its length.
const PACKET_MAX: usize = 16 * 1024 * 1024;
/// What the server has to take.
const PACKET_NEEDED: u64 = 1024 * 1024;

/// What is set in each session: locks of rows are waited for one second, those of
/// tables two. An empty answer to a `SELECT` that a limit has cut would pass for no
/// register.
const SETTINGS: &str = "SET SESSION autocommit = 1, \
     sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 1, \
     lock_wait_timeout = 2, sql_select_limit = 18446744073709551615, wait_timeout = ";
const TRANSACTIONS: &str = "SET SESSION TRANSACTION READ WRITE, ISOLATION LEVEL REPEATABLE READ";
/// On a cluster of Galera each statement waits until what the cluster has
/// acknowledged before it is applied on this server: readings (1), updates and
/// deletions (2), insertions (4). One that is cut off answers nothing.
const GALERA: &str = "SET SESSION wsrep_sync_wait = 7, wsrep_dirty_reads = OFF";

/// Whether this server is a part of the cluster that takes writes.
const READY: &str = "SHOW STATUS LIKE 'wsrep_ready'";

/// The settings of a server that are looked at.
const VARIABLES: &str = "SHOW VARIABLES WHERE Variable_name IN ('read_only', \
     'innodb_read_only', 'innodb_force_recovery', 'innodb_flush_log_at_trx_commit', \
     'log_bin', 'sync_binlog', 'wsrep_on', 'wsrep_provider', 'max_allowed_packet', \
     'group_replication_single_primary_mode')";

/// Connects to one server, over the first of its addresses that answers, and looks
/// whether it takes writes; with `warns` says where an acknowledged write can be lost.
/// On the background thread.
pub(super) async fn open(
    settings: &Settings,
    server: &Server,
    warns: bool,
) -> Result<Conn, StoreError> {
    let name = server.host.as_str();
    let addresses = addresses(name, (name, server.port)).await?;
    let (mut is_broken, mut reasons) = (false, Vec::new());
    let connect = |address: SocketAddr| {
        let options = options(settings, server, address.ip());
        let label = server.to_string();
        async move {
            let connected = Conn::new(options).await;
            connected.map_err(|error| classify::connecting(&label, &error))
        }
    };
    let opened = dial::race(
        addresses.into_iter(),
        Repeats::Never,
        connect,
        |_, error| {
            if let Some(error) = error {
                is_broken |= matches!(error, StoreError::Broken(_));
                reasons.push(dial::reason(error));
            }
        },
    );
    let Some((_, mut connection)) = opened.await else {
        reasons.dedup();
        let why = reasons.join("; ");
        return Err(if is_broken {
            StoreError::broken(why)
        } else {
            StoreError::unavailable(why)
        });
    };
    set_up(&mut connection, &server.to_string(), warns).await?;
    Ok(connection)
}

fn options(settings: &Settings, server: &Server, address: IpAddr) -> OptsBuilder {
    if settings.tls.is_some() && CryptoProvider::get_default().is_none() {
        // The client takes the one of the process. If another thread was first, that
        // one is there.
        let _ = aws_lc_rs::default_provider().install_default();
    }
    OptsBuilder::default()
        .ip_or_hostname(server.host.clone())
        .resolved_ips(Some(vec![address]))
        .tcp_port(server.port)
        .user(Some(settings.user.clone()))
        .pass(settings.password.clone())
        .db_name(Some(settings.database.clone()))
        .ssl_opts(settings.tls.clone())
        // It would leave a connection to this machine for a socket of its choice.
        .prefer_socket(false)
        .tcp_keepalive(Some(Duration::from_secs(5)))
        .max_allowed_packet(Some(PACKET_MAX))
        .wait_timeout(Some(usize::try_from(IDLE_SECONDS).unwrap_or(60)))
        .stmt_cache_size(0)
}

/// Sets what the session depends on, and looks at what the server is set to.
async fn set_up(connection: &mut Conn, server: &str, warns: bool) -> Result<(), StoreError> {
    let failed = |error: Error| classify::connecting(server, &error);
    let settings = format!("{SETTINGS}{IDLE_SECONDS}");
    connection.query_drop(settings).await.map_err(failed)?;
    connection.query_drop(TRANSACTIONS).await.map_err(failed)?;
    let rows = rows::rows(connection, VARIABLES).await.map_err(failed)?;
    let variables = Variables(rows.into_iter().map(mysql_async::from_row).collect());
    if variables.is_read_only() {
        return Err(StoreError::unavailable(format!(
            "expected {server} to take writes, found it read-only"
        )));
    }
    if variables.replicates_nothing() {
        return Err(StoreError::unavailable(format!(
            "expected {server} to be a part of its cluster, found wsrep_on = OFF there: others \
             of the cluster never see what it is given; run: SET GLOBAL wsrep_on = ON"
        )));
    }
    if variables.is_on("wsrep_on") {
        // Asked first: a server that is cut off answers nothing that waits for others.
        let asked: Option<(String, String)> =
            connection.query_first(READY).await.map_err(failed)?;
        if asked.is_none_or(|(_, ready)| ready != "ON") {
            return Err(StoreError::unavailable(format!(
                "expected {server} to be a part of its cluster, found it cut off from it"
            )));
        }
        connection.query_drop(GALERA).await.map_err(failed)?;
    }
    if let Some(why) = variables.refusal() {
        return Err(StoreError::broken(format!("{server}: {why}")));
    }
    if warns {
        for risk in variables.risks() {
            tracing::warn!("{server}: {risk}");
        }
    }
    Ok(())
}

/// Settings of a server, by their names.
struct Variables(BTreeMap<String, String>);

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|it| !["OFF", "0"].contains(&it))
    }

    fn is_read_only(&self) -> bool {
        // Beyond 3 nothing is written to its tables.
        let recovery = self.get("innodb_force_recovery");
        let recovers = recovery.and_then(|it| it.parse().ok()) > Some(3);
        self.is_on("read_only") || self.is_on("innodb_read_only") || recovers
    }

    /// Whether it is a server of a cluster of Galera whose writes stay its own, by this
    /// session's setting.
    fn replicates_nothing(&self) -> bool {
        let provider = self.get("wsrep_provider").unwrap_or_default();
        let is_of_a_cluster = !provider.is_empty() && !provider.eq_ignore_ascii_case("none");
        is_of_a_cluster && !self.is_on("wsrep_on")
    }

    /// Why the server cannot be used as it is set.
    fn refusal(&self) -> Option<&'static str> {
        let several = self.get("group_replication_single_primary_mode") == Some("OFF");
        several.then_some(
            "expected a group of servers with a single primary, found one in which several take \
             writes (group_replication_single_primary_mode is OFF): there a reading may miss a \
             write that was acknowledged",
        )
    }

    /// How an acknowledged write can be lost, and what else will go wrong.
    fn risks(&self) -> Vec<String> {
        let mut risks = Vec::new();
        let flush = self.get("innodb_flush_log_at_trx_commit");
        if let Some(found) = flush.filter(|it| *it != "1" && *it != "3") {
            risks.push(format!(
                "expected innodb_flush_log_at_trx_commit = 1, found {found}: a crash of the \
                 server or its machine loses writes that it acknowledged, and two may lead"
            ));
        }
        let sync = self.get("sync_binlog").filter(|it| *it != "1");
        if let Some(found) = sync.filter(|_| self.is_on("log_bin")) {
            risks.push(format!(
                "expected sync_binlog = 1 beside a binary log, found {found}: after a crash of \
                 its machine the server rolls back what is not in that log, and two may lead"
            ));
        }
        let packet = self
            .get("max_allowed_packet")
            .and_then(|it| it.parse().ok());
        if let Some(found) = packet.filter(|bytes: &u64| *bytes < PACKET_NEEDED) {
            risks.push(format!(
                "expected max_allowed_packet to be {PACKET_NEEDED} or more, found {found}: large \
                 values will be refused"
            ));
        }
        risks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(all: &[(&str, &str)]) -> Variables {
        let pairs = all.iter().map(|(name, it)| ((*name).into(), (*it).into()));
        Variables(pairs.collect())
    }

    #[test]
    fn settings_that_lose_writes_are_told() {
        let risks = |all: &[(&str, &str)]| variables(all).risks().join("\n");
        let flush = "innodb_flush_log_at_trx_commit";
        assert_eq!(
            risks(&[(flush, "1"), ("log_bin", "OFF"), ("sync_binlog", "0")]),
            ""
        );
        assert!(risks(&[(flush, "2")]).contains("found 2"));
        // Without a binary log there is nothing to sync.
        let log = risks(&[(flush, "1"), ("log_bin", "ON"), ("sync_binlog", "0")]);
        assert!(
            log.contains("sync_binlog = 1") && !log.contains(flush),
            "{log}"
        );
        assert!(risks(&[("max_allowed_packet", "1024")]).contains("found 1024"));
    }

    #[test]
    fn a_server_that_recovers_takes_no_writes() {
        let is_read_only =
            |recovery| variables(&[("innodb_force_recovery", recovery)]).is_read_only();
        assert_eq!(
            ["0", "3", "4", "6"].map(is_read_only),
            [false, false, true, true]
        );
        assert!(variables(&[("read_only", "ON")]).is_read_only());
        assert!(!variables(&[]).is_read_only());
    }

    #[test]
    fn a_group_in_which_several_take_writes_is_refused() {
        let mode = "group_replication_single_primary_mode";
        assert!(variables(&[(mode, "OFF")]).refusal().is_some());
        assert!(variables(&[(mode, "ON")]).refusal().is_none());
        assert!(variables(&[]).refusal().is_none());
    }
}
