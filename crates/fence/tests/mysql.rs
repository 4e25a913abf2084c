//! The guard of MySQL and MariaDB at each level of isolation, on a private
//! server, and in a cluster of Galera.

#![allow(clippy::print_stdout, reason = "what was measured, and transcripts")]

#[path = "../../tenure/tests/common/mariadb.rs"]
mod mariadb;
#[path = "../../tenure/tests/common/ports.rs"]
mod ports;
#[path = "../../tenure/tests/common/stopped.rs"]
mod stopped;

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, IsolationLevel, Opts, TxOpts};
use tenure::clock;
use tenure_fence::sql::{Guard, MYSQL};
use tenure_fence::{Term, mysql};

use mariadb::MariaDb;

const LEVELS: [IsolationLevel; 3] = [
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];
const SOON: Duration = Duration::from_secs(30);

fn guard(term: u64) -> Guard {
    Guard::new("payroll", Term::new(term).expect("a term"))
}

async fn connect(server: &MariaDb) -> Conn {
    let url = server.url().replace(' ', "%20");
    let options = Opts::from_url(&url).expect("a URL");
    Conn::new(options).await.expect("a session")
}

/// Makes the guard's table and a row for each leader.
fn prepare(server: &MariaDb) {
    server.sql(MYSQL.create);
    server.sql("CREATE TABLE ledger (id BIGINT PRIMARY KEY, paid_in BIGINT) ENGINE=InnoDB");
    server.sql("INSERT INTO ledger VALUES (7, 0), (8, 0)");
}

/// Forgets what was seen and written, as no resource ever does.
fn begin_anew(server: &MariaDb) {
    server.sql("DELETE FROM tenure_fence; UPDATE ledger SET paid_in = 0");
}

fn ledger(server: &MariaDb) -> String {
    server.sql("SELECT GROUP_CONCAT(paid_in ORDER BY id SEPARATOR ' ') FROM ledger")
}

fn at(level: IsolationLevel) -> TxOpts {
    let mut options = TxOpts::new();
    options.with_isolation_level(level);
    options
}

const PAY: &str = "UPDATE ledger SET paid_in = ? WHERE id = ?";

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_a_later_leader_has_overtaken_is_refused() {
    let server = MariaDb::start();
    prepare(&server);
    for level in LEVELS {
        begin_anew(&server);
        let (mut old, mut new) = (connect(&server).await, connect(&server).await);
        mysql::record(&mut old, &guard(7)).await.expect("term 7");
        let mut transaction = old.start_transaction(at(level)).await.expect("begun");
        transaction.exec_drop(PAY, (7, 7)).await.expect("written");
        // A plain read at the default level sees the past from now on. (At the
        // highest it is a locking one, and the new leader would wait for it.)
        let plain = "SELECT term FROM tenure_fence";
        if level != IsolationLevel::Serializable {
            let seen: Option<u64> = transaction.query_first(plain).await.expect("an answer");
            assert_eq!(seen, Some(7));
        }
        mysql::record(&mut new, &guard(8)).await.expect("term 8");
        let mut theirs = new
            .start_transaction(TxOpts::default())
            .await
            .expect("begun");
        theirs.exec_drop(PAY, (8, 8)).await.expect("written");
        mysql::commit(theirs, &guard(8))
            .await
            .expect("the leader commits");
        if level == IsolationLevel::RepeatableRead {
            let seen: Option<u64> = transaction.query_first(plain).await.expect("an answer");
            assert_eq!(seen, Some(7), "the past");
        }
        match mysql::commit(transaction, &guard(7)).await {
            Err(mysql::Error::Deposed(deposed)) => assert_eq!(deposed.seen, Term::new(8)),
            other => panic!("{other:?}"),
        }
        assert_eq!(ledger(&server), "0 8");
        let again = mysql::record(&mut old, &guard(7)).await;
        assert!(matches!(again, Err(mysql::Error::Deposed(_))), "{again:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_leader_waits_for_a_transaction_that_has_been_checked() {
    let server = MariaDb::start();
    prepare(&server);
    for level in LEVELS {
        begin_anew(&server);
        let (mut old, mut new) = (connect(&server).await, connect(&server).await);
        mysql::record(&mut old, &guard(7)).await.expect("term 7");
        let mut transaction = old.start_transaction(at(level)).await.expect("begun");
        transaction.exec_drop(PAY, (7, 7)).await.expect("written");
        let check = transaction.exec_first(MYSQL.check, ("payroll", 7));
        let passed: Option<u64> = check.await.expect("an answer");
        assert_eq!(passed, Some(1));
        let recording = tokio::spawn(async move {
            mysql::record(&mut new, &guard(8)).await.expect("term 8");
            // It reads nothing before that.
            let read = new.query_first("SELECT paid_in FROM ledger WHERE id = 7");
            let read: Option<u64> = read.await.expect("an answer");
            read
        });
        let waits = "SELECT COUNT(*) FROM information_schema.innodb_trx \
                     WHERE trx_state = 'LOCK WAIT'";
        let give_up = clock::boot().after(SOON);
        while server.sql(waits) != "1" {
            assert!(clock::boot() < give_up, "the record does not wait");
            // The server caches this table, and renews the cache only if nobody has read the
            // table for 0.1 s.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        transaction.commit().await.expect("committed");
        assert_eq!(
            recording.await.expect("it ends"),
            Some(7),
            "what was done is read"
        );
    }
}

/// The process of the old leader says nothing more after its check.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_leader_keeps_its_successor_waiting_for_as_long_as_it_may() {
    let idle = Duration::from_secs(2);
    let server = MariaDb::start();
    prepare(&server);
    let (mut old, mut new) = (connect(&server).await, connect(&server).await);
    for session in [&mut old, &mut new] {
        mysql::limit(session, idle).await.expect("limits");
    }
    mysql::record(&mut old, &guard(7)).await.expect("term 7");
    let mut transaction = old
        .start_transaction(TxOpts::default())
        .await
        .expect("begun");
    transaction.exec_drop(PAY, (7, 7)).await.expect("written");
    let check = transaction.exec_first(MYSQL.check, ("payroll", 7));
    let passed: Option<u64> = check.await.expect("an answer");
    assert_eq!(passed, Some(1));
    let begun = clock::boot();
    mysql::record(&mut new, &guard(8)).await.expect("term 8");
    let waited = clock::boot().since(begun);
    println!("with a limit of {idle:?} the successor waited {waited:?}");
    transaction
        .commit()
        .await
        .expect_err("its session was ended");
    assert_eq!(ledger(&server), "0 0");
}

/// Locks of one server of a cluster are not known to the others, writes are.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_the_check_is_a_write() {
    let servers = MariaDb::start_cluster(2);
    prepare(&servers[0]);
    let (mut old, mut new) = (connect(&servers[0]).await, connect(&servers[1]).await);
    for session in [&mut old, &mut new] {
        let waits = "SET SESSION wsrep_sync_wait = 15";
        session.query_drop(waits).await.expect("set");
    }
    mysql::record(&mut old, &guard(7)).await.expect("term 7");
    let mut transaction = old
        .start_transaction(TxOpts::default())
        .await
        .expect("begun");
    transaction.exec_drop(PAY, (7, 7)).await.expect("written");
    let parameters = ("payroll", 7);
    let check = transaction.exec_drop(MYSQL.check_by_update, parameters);
    check.await.expect("an answer");
    assert_eq!(transaction.affected_rows(), 1, "it has passed");
    // The other server knows nothing of it, and is first.
    mysql::record(&mut new, &guard(8)).await.expect("term 8");
    let overtaken = transaction.commit().await.expect_err("it was overtaken");
    assert!(overtaken.to_string().contains("1213"), "{overtaken}");
    let mut theirs = new
        .start_transaction(TxOpts::default())
        .await
        .expect("begun");
    theirs.exec_drop(PAY, (8, 8)).await.expect("written");
    mysql::commit_by_update(theirs, &guard(8))
        .await
        .expect("the leader commits");
    assert_eq!(ledger(&servers[1]), "0 8");
    // A later one finds the term.
    let mut again = old
        .start_transaction(TxOpts::default())
        .await
        .expect("begun");
    again.exec_drop(PAY, (7, 7)).await.expect("written");
    match mysql::commit_by_update(again, &guard(7)).await {
        Err(mysql::Error::Deposed(deposed)) => assert_eq!(deposed.seen, Term::new(8)),
        other => panic!("{other:?}"),
    }
}
