//! Which tables are taken that another program, or a person, has made. One that would
//! have several lead, or none, is refused at the start, by an error whose statement mends
//! it.

use std::sync::Arc;

use tenure::StoreError;
use tenure::store::{Expect, Stamp, Store};

use super::contract::{key, record, register, why, write};
use super::foreign::{Database, T, uuid};
use super::{SOON, led, stand};

async fn open(database: &Database, table: &str) -> Result<Arc<dyn Store>, StoreError> {
    let options = format!("format=hpc&heartbeat_timeout=3s&poll=50ms&table={table}");
    tenure::store::open(&database.url_with(&options)).await
}

/// Why a table is refused: of a file when it is opened, of a server when it is asked.
async fn refusal(database: &Database, table: &str) -> String {
    match open(database, table).await {
        Ok(store) => why(store.read(&key("a"), SOON).await),
        refused => why(refused.map(drop)),
    }
}

/// An election can be made and renewed, and the time of its row is what was answered.
async fn takes_an_election(database: &Database, table: &str) -> Arc<dyn Store> {
    let store = open(database, table).await.expect("a store");
    let first = record("a", 1, 5);
    let made = write(&store, Expect::Absent, &first, Stamp::Now).await;
    let made = made.expect("a register").version;
    let again = write(&store, Expect::Version(made), &first, Stamp::Now).await;
    let again = again.expect("a renewal");
    let read = register(&store, "a").await.expect("the register");
    assert_eq!((read.version, read.stamp), (again.version, again.now));
    store
}

/// A table that these statements make is refused in such words, and taken once the
/// statement of the error was run. They call it `heartbeattable`, and it is gone at the
/// end.
async fn is_refused_and_mended(database: &Database, statements: &[&str], words: &str) {
    for statement in statements {
        database.sql(statement);
    }
    let said = refusal(database, "heartbeattable").await;
    assert!(said.contains(words), "{statements:?}: {said}");
    let (_, mend) = said.split_once("run: ").expect("what to do");
    database.sql(mend);
    drop(takes_an_election(database, "heartbeattable").await);
    database.sql("DROP TABLE heartbeattable");
    database.sql("DROP TABLE heartbeattable_tenure");
}

/// The server rounds what is written to the digits of the column: a heartbeat would be
/// older than it is, by up to half a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_times_without_milliseconds_are_refused() {
    let database = Database::postgres();
    for digits in [0, 1, 2] {
        let make = format!(
            "CREATE TABLE heartbeattable (uuid text, utype text PRIMARY KEY, uname text, timestamp \
             timestamp({digits}))"
        );
        let words = format!("3 digits of a second or more, found {digits}");
        is_refused_and_mended(&database, &[&make], &words).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_times_of_milliseconds_or_more_are_taken() {
    let database = Database::postgres();
    for (number, digits) in ["(3)", "(6)", ""].into_iter().enumerate() {
        let table = format!("beats{number}");
        database.sql(&format!(
            "CREATE TABLE {table} (timestamp timestamp{digits}, uname varchar(99), utype \
             varchar(99) PRIMARY KEY, uuid varchar(36))"
        ));
        let store = takes_an_election(&database, &table).await;
        // The heartbeat of another program has microseconds, which the column may round.
        database.sql(&format!(
            "INSERT INTO {table} VALUES ('2026-01-01 00:00:00.123456', 'theirs', 'b', '{}')",
            uuid(1)
        ));
        let noted = register(&store, "b").await.expect("a register");
        let again = register(&store, "b").await.expect("a register");
        assert_eq!(noted, again, "{digits}: it is noted once");
        // It is long dead: a candidate leads, and goes on to lead.
        let mut ours = stand(store, "b", "ours");
        let leadership = led(&mut ours).await;
        assert_eq!(leadership.term().get(), 2);
        leadership.extended().await.expect("a renewal");
        let age = database.sql(&format!(
            "SELECT extract(epoch from (clock_timestamp() AT TIME ZONE 'UTC') - timestamp) \
             BETWEEN 0 AND {} FROM {table} WHERE utype = 'b'",
            T.as_secs_f64()
        ));
        assert_eq!(age, "t", "{digits}: a heartbeat is not before its time");
        drop(leadership);
        ours.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_tables_without_a_key_are_refused() {
    const COLUMNS: &str = "CREATE TABLE heartbeattable (uuid text, utype text, uname text, \
                           timestamp timestamp)";
    let database = Database::postgres();
    for (key, words) in [
        (
            "CREATE INDEX ON heartbeattable (utype)",
            "expected public.heartbeattable to have a primary key or a unique index of utype \
             alone, for all rows and not deferrable, found no unique index",
        ),
        (
            "ALTER TABLE heartbeattable ADD PRIMARY KEY (uuid, utype)",
            "(uuid, utype); run",
        ),
        (
            "CREATE UNIQUE INDEX ON heartbeattable (utype) WHERE utype <> 'x'",
            "WHERE",
        ),
        (
            "CREATE UNIQUE INDEX ON heartbeattable (lower(utype))",
            "lower(utype)",
        ),
        (
            "ALTER TABLE heartbeattable ADD UNIQUE (utype) DEFERRABLE",
            "(utype) DEFERRABLE; run",
        ),
        // The server refuses a deferrable one beside one that is not, too.
        (
            "ALTER TABLE heartbeattable ADD PRIMARY KEY (utype), ADD CONSTRAINT \"Later\" UNIQUE \
             (utype) DEFERRABLE",
            "DROP CONSTRAINT \"Later\"",
        ),
    ] {
        is_refused_and_mended(&database, &[COLUMNS, key], words).await;
    }
    // Other columns may be beside utype in the index, and are no part of the key.
    let key = "CREATE UNIQUE INDEX ON heartbeattable (utype) INCLUDE (uuid)";
    database.sql(&format!("{COLUMNS}; {key}"));
    drop(takes_an_election(&database, "heartbeattable").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_notes_without_a_key_are_refused() {
    let database = Database::postgres();
    drop(takes_an_election(&database, "heartbeattable").await);
    database.sql("DELETE FROM heartbeattable; DELETE FROM heartbeattable_tenure");
    let drop_key = "ALTER TABLE heartbeattable_tenure DROP CONSTRAINT heartbeattable_tenure_pkey";
    let words = "heartbeattable_tenure to have a primary key";
    is_refused_and_mended(&database, &[drop_key], words).await;
}

/// Nothing is made beside a table that cannot be used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_no_notes_are_made_beside_a_refused_table() {
    let database = Database::postgres();
    for columns in [
        "uuid text, utype text PRIMARY KEY, uname text, timestamp timestamp(0)",
        "uuid text, utype text, uname text, timestamp timestamp",
    ] {
        database.sql(&format!("CREATE TABLE heartbeattable ({columns})"));
        refusal(&database, "heartbeattable").await;
        database.sql("DROP TABLE heartbeattable");
        let found = database.sql("SELECT to_regclass('heartbeattable_tenure') IS NULL");
        assert_eq!(found, "t", "{columns}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_tables_without_a_key_are_refused() {
    const COLUMNS: &str = "CREATE TABLE heartbeattable (uuid, utype TEXT, uname, timestamp)";
    let database = Database::sqlite();
    for key in [
        "CREATE INDEX i ON heartbeattable (utype)",
        "CREATE UNIQUE INDEX i ON heartbeattable (uuid, utype)",
        "CREATE UNIQUE INDEX i ON heartbeattable (utype) WHERE utype <> 'x'",
        "CREATE UNIQUE INDEX i ON heartbeattable (lower(utype))",
    ] {
        let words = "heartbeattable to have a primary key or a unique index of utype alone";
        is_refused_and_mended(&database, &[COLUMNS, key], words).await;
    }
    database.sql("CREATE TABLE real (uuid, utype TEXT PRIMARY KEY, uname, timestamp DATETIME)");
    database.sql("CREATE VIEW seen AS SELECT * FROM real");
    let said = refusal(&database, "seen").await;
    assert!(said.contains("found one of the kind view"), "{said}");
}

/// What type a column is declared of does not matter to the times in it: they are text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_other_forms_of_the_table_are_taken() {
    let database = Database::sqlite();
    for (table, make) in [
        (
            "rows",
            "rows (uuid, utype TEXT PRIMARY KEY, uname, timestamp DATETIME) WITHOUT ROWID",
        ),
        (
            "capitals",
            "Capitals (uuid, UType TEXT UNIQUE, uname, Timestamp INTEGER)",
        ),
        (
            "reals",
            "reals (uuid, utype TEXT UNIQUE, uname, timestamp REAL)",
        ),
    ] {
        database.sql(&format!("CREATE TABLE {make}"));
        drop(takes_an_election(&database, table).await);
    }
}

/// Where a number comes again that was deleted, a candidate that has seen it before would
/// write over another's record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_notes_whose_versions_come_again_are_refused() {
    let database = Database::sqlite();
    drop(takes_an_election(&database, "beats").await);
    database.sql("DROP TABLE beats_tenure");
    database.sql(
        "CREATE TABLE beats_tenure (version INTEGER PRIMARY KEY, utype TEXT NOT NULL UNIQUE, uuid, \
         timestamp, term INTEGER NOT NULL, origin TEXT NOT NULL, record BLOB NOT NULL)",
    );
    let said = refusal(&database, "beats").await;
    assert!(said.contains("INTEGER PRIMARY KEY AUTOINCREMENT"), "{said}");
}

/// In narrower columns a note is another one than the row that it is on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_notes_with_other_columns_are_refused() {
    let database = Database::mysql();
    drop(takes_an_election(&database, "beats").await);
    for (change, back, words) in [
        (
            "timestamp DATETIME",
            "timestamp DATETIME(6)",
            "timestamp datetime(0)",
        ),
        (
            "timestamp DATETIME(3)",
            "timestamp DATETIME(6)",
            "timestamp datetime(3)",
        ),
        (
            "version BIGINT NOT NULL",
            "version BIGINT UNSIGNED NOT NULL",
            "version bigint, uuid",
        ),
        (
            "utype VARBINARY(16)",
            "utype VARBINARY(512)",
            "found utype varbinary(16) primary",
        ),
        (
            "record BLOB NOT NULL",
            "record MEDIUMBLOB NOT NULL",
            "record blob;",
        ),
    ] {
        database.sql(&format!("ALTER TABLE beats_tenure MODIFY {change}"));
        let said = refusal(&database, "beats").await;
        assert!(said.contains(words), "{change}: {said}");
        database.sql(&format!("ALTER TABLE beats_tenure MODIFY {back}"));
    }
    let store = open(&database, "beats").await.expect("a store");
    register(&store, "a")
        .await
        .expect("what was written before");
}
