//! The guard of SQLite, in each of its two ways to keep a journal and with
//! transactions that begin by reading or by writing.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tenure_fence::sql::{Guard, SQLITE};
use tenure_fence::{Term, sqlite};

fn guard(term: u64) -> Guard {
    Guard::new("payroll", Term::new(term).expect("a term"))
}

fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("a database");
    let busy = connection.busy_timeout(Duration::from_millis(50));
    busy.expect("set");
    connection
}

fn prepare(path: &Path, journal: &str) {
    let connection = connect(path);
    let mode = format!("PRAGMA journal_mode = {journal}");
    let found: String = connection
        .query_row(&mode, (), |row| row.get(0))
        .expect("set");
    assert_eq!(found, journal);
    sqlite::create(&connection).expect("a table");
    let made = "CREATE TABLE ledger (id INTEGER PRIMARY KEY, paid_in INTEGER);
                INSERT INTO ledger VALUES (7, 0), (8, 0)";
    connection.execute_batch(made).expect("a table");
}

fn ledger(connection: &Connection) -> String {
    let sum = "SELECT group_concat(paid_in, ' ') FROM (SELECT * FROM ledger ORDER BY id)";
    connection
        .query_row(sum, (), |row| row.get(0))
        .expect("a row")
}

const PAY: &str = "UPDATE ledger SET paid_in = ?1 WHERE id = ?1";

#[test]
fn a_transaction_that_a_later_leader_has_overtaken_is_refused() {
    for journal in ["wal", "delete"] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("db");
        prepare(&path, journal);
        let (mut old, mut new) = (connect(&path), connect(&path));
        sqlite::record(&mut old, &guard(7)).expect("term 7");
        sqlite::record(&mut new, &guard(8)).expect("term 8");
        let theirs = new.transaction().expect("begun");
        theirs.execute(PAY, (8,)).expect("written");
        sqlite::commit(theirs, &guard(8)).expect("the leader commits");
        for behavior in [
            TransactionBehavior::Deferred,
            TransactionBehavior::Immediate,
        ] {
            let late = old.transaction_with_behavior(behavior).expect("begun");
            late.execute(PAY, (7,)).expect("written");
            match sqlite::commit(late, &guard(7)) {
                Err(sqlite::Error::Deposed(deposed)) => assert_eq!(deposed.seen, Term::new(8)),
                other => panic!("{other:?}"),
            }
            assert_eq!(ledger(&old), "0 8");
        }
        let again = sqlite::record(&mut old, &guard(7));
        assert!(matches!(again, Err(sqlite::Error::Deposed(_))), "{again:?}");
    }
}

/// A transaction that has only read so far, of a snapshot that is the past.
#[test]
fn a_snapshot_of_the_past_passes_no_check() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("db");
    prepare(&path, "wal");
    let (mut old, mut new) = (connect(&path), connect(&path));
    sqlite::record(&mut old, &guard(7)).expect("term 7");
    let late = old.transaction().expect("begun");
    let seen = |it: &Connection| -> i64 {
        let term = it.query_row(SQLITE.recorded, ("payroll",), |row| row.get(0));
        term.expect("a row")
    };
    assert_eq!(seen(&late), 7);
    sqlite::record(&mut new, &guard(8)).expect("term 8");
    assert_eq!(seen(&late), 7, "the past");
    match sqlite::commit(late, &guard(7)) {
        Err(sqlite::Error::Failed(error)) => {
            assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
        }
        other => panic!("{other:?}"),
    }
}

/// Nothing bounds the time: the successor gives up by its own limit, and
/// records its term when the transaction has ended.
#[test]
fn a_later_leader_waits_for_a_transaction_that_writes() {
    for journal in ["wal", "delete"] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("db");
        prepare(&path, journal);
        let (mut old, mut new) = (connect(&path), connect(&path));
        sqlite::record(&mut old, &guard(7)).expect("term 7");
        let earlier = old.transaction().expect("begun");
        earlier.execute(PAY, (7,)).expect("written");
        match sqlite::record(&mut new, &guard(8)) {
            Err(sqlite::Error::Failed(error)) => {
                assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
            }
            other => panic!("{other:?}"),
        }
        sqlite::commit(earlier, &guard(7)).expect("it is the first");
        sqlite::record(&mut new, &guard(8)).expect("term 8");
        assert_eq!(ledger(&new), "7 0", "what was done is read");
    }
}

#[test]
fn a_guard_that_is_gone_lets_no_leader_pass() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("db");
    prepare(&path, "wal");
    let mut leader = connect(&path);
    sqlite::record(&mut leader, &guard(7)).expect("term 7");
    leader
        .execute("DELETE FROM tenure_fence", ())
        .expect("done");
    let transaction = leader.transaction().expect("begun");
    transaction.execute(PAY, (7,)).expect("written");
    match sqlite::commit(transaction, &guard(7)) {
        Err(sqlite::Error::Deposed(deposed)) => assert_eq!(deposed.seen, None),
        other => panic!("{other:?}"),
    }
    assert_eq!(ledger(&leader), "0 0");
}
