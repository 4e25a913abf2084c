//! The guard of PostgreSQL at each level of isolation, on a private server: a
//! transaction of an old leader, a new leader that records its term meanwhile,
//! and who of the two is refused or waits.

#![allow(clippy::print_stdout, reason = "what was measured, and transcripts")]

#[path = "../../tenure/tests/common/ports.rs"]
mod ports;
#[path = "../../tenure/tests/common/postgres.rs"]
mod server;
#[path = "../../tenure/tests/common/stopped.rs"]
mod stopped;

use std::time::Duration;

use tenure::clock;
use tenure_fence::sql::{Guard, POSTGRES};
use tenure_fence::{Term, postgres};
use tokio_postgres::{Client, IsolationLevel, NoTls};

const LEVELS: [IsolationLevel; 3] = [
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];
const SOON: Duration = Duration::from_secs(30);

fn guard(term: u64) -> Guard {
    Guard::new("payroll", Term::new(term).expect("a term"))
}

async fn connect(server: &server::Postgres) -> Client {
    let connected = tokio_postgres::connect(&server.url(), NoTls).await;
    let (client, connection) = connected.expect("a connection");
    tokio::spawn(connection);
    client
}

/// A server with the guard's table and a row for each leader.
fn start() -> server::Postgres {
    let server = server::Postgres::start();
    server.sql(POSTGRES.create);
    server.sql("CREATE TABLE ledger (id int PRIMARY KEY, paid_in bigint)");
    server.sql("INSERT INTO ledger VALUES (7, 0), (8, 0)");
    server
}

/// Forgets what was seen and written, as no resource ever does.
fn begin_anew(server: &server::Postgres) {
    server.sql("TRUNCATE tenure_fence; UPDATE ledger SET paid_in = 0");
}

fn ledger(server: &server::Postgres) -> String {
    server.sql("SELECT string_agg(paid_in::text, ' ' ORDER BY id) FROM ledger")
}

const PAY: &str = "UPDATE ledger SET paid_in = $1 WHERE id = $1::bigint";

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_a_later_leader_has_overtaken_is_refused() {
    let server = start();
    for level in LEVELS {
        begin_anew(&server);
        let (mut old, mut new) = (connect(&server).await, connect(&server).await);
        postgres::record(&mut old, &guard(7)).await.expect("term 7");
        let transaction = old.build_transaction().isolation_level(level).start().await;
        let transaction = transaction.expect("a transaction");
        transaction.execute(PAY, &[&7_i64]).await.expect("written");
        // What a plain statement sees of the fence at the two higher levels is
        // the past, whatever is recorded.
        let plain = "SELECT term FROM tenure_fence";
        let seen: i64 = transaction
            .query_one(plain, &[])
            .await
            .expect("a row")
            .get(0);
        assert_eq!(seen, 7);
        // The new leader waits for nothing, and writes.
        postgres::record(&mut new, &guard(8)).await.expect("term 8");
        let theirs = new.transaction().await.expect("a transaction");
        theirs.execute(PAY, &[&8_i64]).await.expect("written");
        postgres::commit(theirs, &guard(8))
            .await
            .expect("the leader commits");

        let seen: i64 = transaction
            .query_one(plain, &[])
            .await
            .expect("a row")
            .get(0);
        let is_past = !matches!(level, IsolationLevel::ReadCommitted);
        assert_eq!(seen, if is_past { 7 } else { 8 });
        match postgres::commit(transaction, &guard(7)).await {
            Err(postgres::Error::Deposed(deposed)) => {
                assert!(!is_past);
                assert_eq!(deposed.seen, Term::new(8));
            }
            Err(postgres::Error::Failed(error)) => {
                let code = error.code().map(|it| it.code().to_owned());
                assert_eq!(code.as_deref(), Some("40001"), "{error}");
                assert!(is_past);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(ledger(&server), "0 8");
        // Nor does it begin again.
        let again = postgres::record(&mut old, &guard(7)).await;
        assert!(
            matches!(again, Err(postgres::Error::Deposed(_))),
            "{again:?}"
        );
        let again = old.transaction().await.expect("a transaction");
        again.execute(PAY, &[&7_i64]).await.expect("written");
        let again = postgres::commit(again, &guard(7)).await;
        assert!(
            matches!(again, Err(postgres::Error::Deposed(_))),
            "{again:?}"
        );
        assert_eq!(ledger(&server), "0 8");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_leader_waits_for_a_transaction_that_has_been_checked() {
    let server = start();
    for level in LEVELS {
        begin_anew(&server);
        let (mut old, mut new) = (connect(&server).await, connect(&server).await);
        postgres::record(&mut old, &guard(7)).await.expect("term 7");
        let transaction = old.build_transaction().isolation_level(level).start().await;
        let transaction = transaction.expect("a transaction");
        transaction.execute(PAY, &[&7_i64]).await.expect("written");
        let passed = transaction
            .query(POSTGRES.check, &[&"payroll", &7_i64])
            .await;
        assert_eq!(passed.expect("an answer").len(), 1);
        let recording = tokio::spawn(async move {
            postgres::record(&mut new, &guard(8)).await.expect("term 8");
            // It reads nothing before that.
            let read = "SELECT paid_in FROM ledger WHERE id = 7";
            new.query_one(read, &[])
                .await
                .expect("a row")
                .get::<_, i64>(0)
        });
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let give_up = clock::boot().after(SOON);
        while server.sql(waits) != "1" {
            assert!(clock::boot() < give_up, "the record does not wait");
        }
        transaction.commit().await.expect("committed");
        assert_eq!(
            recording.await.expect("it ends"),
            7,
            "what was done is read"
        );
    }
}

/// The process of the old leader says nothing more after its check.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_leader_keeps_its_successor_waiting_for_as_long_as_it_may() {
    let idle = Duration::from_millis(1_500);
    let server = start();
    let (mut old, mut new) = (connect(&server).await, connect(&server).await);
    for client in [&old, &new] {
        postgres::limit(client, idle).await.expect("limits");
    }
    postgres::record(&mut old, &guard(7)).await.expect("term 7");
    let transaction = old.transaction().await.expect("a transaction");
    transaction.execute(PAY, &[&7_i64]).await.expect("written");
    let passed = transaction
        .query(POSTGRES.check, &[&"payroll", &7_i64])
        .await;
    assert_eq!(passed.expect("an answer").len(), 1);
    let begun = clock::boot();
    postgres::record(&mut new, &guard(8)).await.expect("term 8");
    let waited = clock::boot().since(begun);
    println!("with a limit of {idle:?} the successor waited {waited:?}");
    transaction
        .commit()
        .await
        .expect_err("its session was ended");
    assert_eq!(ledger(&server), "0 0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_was_set_back_lets_no_leader_pass() {
    let server = start();
    let mut leader = connect(&server).await;
    postgres::record(&mut leader, &guard(7))
        .await
        .expect("term 7");
    for (reset, seen) in [
        ("UPDATE tenure_fence SET term = 6", Term::new(6)),
        ("DELETE FROM tenure_fence", None),
    ] {
        server.sql(reset);
        let transaction = leader.transaction().await.expect("a transaction");
        transaction.execute(PAY, &[&7_i64]).await.expect("written");
        match postgres::commit(transaction, &guard(7)).await {
            Err(postgres::Error::Deposed(deposed)) => assert_eq!(deposed.seen, seen),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ledger(&server), "0 0");
    // Another election has a row of its own.
    let other = Guard::new("backup", Term::new(1).expect("a term"));
    postgres::record(&mut leader, &other).await.expect("term 1");
    let transaction = leader.transaction().await.expect("a transaction");
    postgres::commit(transaction, &other)
        .await
        .expect("it leads");
}
