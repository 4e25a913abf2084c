//! What rows mean that another program, or a person, has written: garbage, and times
//! that the clock contradicts.

use std::sync::Arc;

use tenure::core::election::{Occupancy, Record, Request};
use tenure::election::Why;
use tenure::store::{Expect, Stamp, Store};
use tenure::{StoreError, clock};

use super::contract::{name, record, register, write};
use super::foreign::{Database, T, uuid};
use super::{candidate, led};

/// What the store makes of the row of an election.
async fn shown(store: &Arc<dyn Store>, election: &str) -> Record {
    let register = register(store, election).await.expect("a register");
    Record::decode(&register.value).expect("a record")
}

fn put(database: &Database, utype: &str, uuid: &str, timestamp: &str) {
    database.sql(&format!(
        "DELETE FROM heartbeattable WHERE utype = '{utype}'"
    ));
    database.sql(&format!(
        "INSERT INTO heartbeattable (uuid, utype, uname, timestamp) \
         VALUES ({uuid}, '{utype}', NULL, {timestamp})"
    ));
}

/// Rows that no program writes.
fn put_garbage(database: &Database) {
    let now = database.ha_time();
    put(database, "nobody", "NULL", now);
    put(database, "empty", "''", now);
    put(database, "hash", "'no GUID at all, but a text'", now);
    put(database, "undated", &format!("'{}'", uuid(1)), "NULL");
    put(
        database,
        "ancient",
        &format!("'{}'", uuid(1)),
        "'1000-01-01 00:00:00'",
    );
    match database {
        Database::Sqlite(..) => {
            put(database, "words", &format!("'{}'", uuid(1)), "'soon'");
            put(database, "bytes", "x'00ff'", "x'00ff'");
        }
        Database::Postgres(_) => {
            put(database, "words", &format!("'{}'", uuid(1)), "'infinity'");
        }
        Database::MySql(_) => {
            put(database, "words", &format!("'{}'", uuid(1)), "'9999-12-31'");
        }
    }
    // A utype that is no name is listed nowhere.
    let long = if matches!(database, Database::MySql(_)) {
        "x\ty".to_owned()
    } else {
        "x".repeat(300)
    };
    put(database, &long, "'a'", now);
}

async fn garbage_costs_no_other_row_its_answer(database: Database) {
    let store = tenure::store::open(&database.url()).await.expect("a store");
    let sound = record("sound", 1, 5);
    let made = write(&store, Expect::Absent, &sound, Stamp::Now).await;
    made.expect("a register");
    put_garbage(&database);

    for election in ["nobody", "empty"] {
        let found = shown(&store, election).await;
        assert_eq!(found.occupancy, Occupancy::Vacant { successor: None });
        assert_eq!(found.term.get(), 0, "nobody has led");
    }
    let hash = shown(&store, "hash").await;
    assert_eq!(hash.term.get(), 1);
    let holder = hash.holder().expect("a holder");
    assert_eq!(holder.name.as_str(), "no GUID at all, but a text");
    for election in ["undated", "ancient", "words"] {
        let read = register(&store, election).await.expect("a register");
        assert_eq!(read.stamp, None, "{election}: silence judges");
        assert!(shown(&store, election).await.holder().is_some());
    }
    let page = store.list("elections/", None, super::SOON).await;
    let page = page.expect("a page").registers;
    assert!(
        page.iter()
            .any(|(_, register)| register.value == sound.encode())
    );
    let others = if matches!(database, Database::Sqlite(..)) {
        7
    } else {
        6
    };
    assert_eq!(page.len(), 1 + others);

    // Each of them is led in the end, and an undated one not before T.
    let began = clock::boot();
    let mut ours = candidate(&database, "words", "ours").await;
    let led_words = led(&mut ours).await;
    assert_eq!(led_words.term().get(), 2);
    assert!(clock::boot().since(began) >= T, "T of silence");
    let mut ours = candidate(&database, "nobody", "ours").await;
    assert_eq!(led(&mut ours).await.term().get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_garbage_costs_no_other_row_its_answer() {
    garbage_costs_no_other_row_its_answer(Database::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_garbage_costs_no_other_row_its_answer() {
    garbage_costs_no_other_row_its_answer(Database::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_garbage_costs_no_other_row_its_answer() {
    garbage_costs_no_other_row_its_answer(Database::mysql()).await;
}

/// A time so many seconds from `ha_time`.
fn ago(database: &Database, seconds: f64) -> String {
    match database {
        Database::Sqlite(..) => {
            format!(
                "strftime('%Y-%m-%d %H:%M:%f', 'now', '{} seconds')",
                -seconds
            )
        }
        Database::Postgres(_) => {
            format!("{} - interval '{seconds} seconds'", database.ha_time())
        }
        Database::MySql(_) => {
            format!("{} - interval {seconds} second", database.ha_time())
        }
    }
}

async fn the_databases_clock_judges(database: Database) {
    let store = tenure::store::open(&database.url()).await.expect("a store");
    store
        .list("elections/", None, super::SOON)
        .await
        .expect("a list");
    let id = format!("'{}'", uuid(1));
    // Dead for long: a candidate that has just begun takes it without a wait.
    put(&database, "dead", &id, &ago(&database, 60.0));
    let began = clock::boot();
    let mut ours = candidate(&database, "dead", "ours").await;
    assert_eq!(led(&mut ours).await.term().get(), 2);
    let took = clock::boot().since(began);
    assert!(took < T, "{took:?}");

    // Half of T old: what is left of it is waited for.
    put(
        &database,
        "old",
        &id,
        &ago(&database, T.as_secs_f64() / 2.0),
    );
    let began = clock::boot();
    let mut ours = candidate(&database, "old", "ours").await;
    led(&mut ours).await;
    let took = clock::boot().since(began);
    assert!(took >= T / 3 && took < T * 2, "{took:?}");

    // From the future (the local time of a program that does not write UTC): silence
    // judges, and no program of its own keeps it from being taken.
    put(&database, "ahead", &id, &ago(&database, -3600.0));
    let began = clock::boot();
    let mut ours = candidate(&database, "ahead", "ours").await;
    led(&mut ours).await;
    assert!(clock::boot().since(began) >= T, "T of silence");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_the_databases_clock_judges() {
    the_databases_clock_judges(Database::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_the_databases_clock_judges() {
    the_databases_clock_judges(Database::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_the_databases_clock_judges() {
    the_databases_clock_judges(Database::mysql()).await;
}

async fn terms_are_counted_by_what_is_seen(database: Database) {
    let store = tenure::store::open(&database.url()).await.expect("a store");
    let ours = record("payroll", 7, 5);
    let made = write(&store, Expect::Absent, &ours, Stamp::Now).await;
    let made = made.expect("a register");
    let now = database.ha_time();
    let mut last = ours.clone();
    let mut version = made.version.clone();
    // Each other uuid is another leader; the same one again is a renewal.
    for (number, term) in [(1, 8), (1, 8), (2, 9), (1, 10)] {
        put(&database, "payroll", &format!("'{}'", uuid(number)), now);
        let read = register(&store, "payroll").await.expect("a register");
        let found = Record::decode(&read.value).expect("a record");
        assert_eq!(found.term.get(), term);
        assert!(found.renewal > last.renewal, "a sign of life");
        assert!(read.version > version, "versions grow");
        assert_eq!(found.lease, T);
        (last, version) = (found, read.version);
    }
    // What was written over before is a conflict, and nothing is written.
    let row = database.row("payroll");
    let next = record("payroll", 8, 5);
    for seen in [made.version, version.clone()] {
        put(&database, "payroll", &format!("'{}'", uuid(3)), now);
        let late = write(&store, Expect::Version(seen), &next, Stamp::Now).await;
        assert!(matches!(late, Err(StoreError::Conflict)), "{late:?}");
    }
    assert_ne!(database.row("payroll"), row);
    let third = shown(&store, "payroll").await;
    assert_eq!(third.term.get(), 11);

    // A program hears no requests, and is asked none.
    let read = register(&store, "payroll").await.expect("a register");
    let mut asked = third.clone();
    asked.sequence += 1;
    if let Occupancy::Held(holder) = &mut asked.occupancy {
        holder.request = Some(Request::Transfer(name("ours")));
    }
    let refused = write(&store, Expect::Version(read.version), &asked, Stamp::Keep).await;
    let Err(StoreError::Broken(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("hears no requests"), "{why}");

    // A row that somebody deletes is a vacancy; the term stays.
    database.sql("DELETE FROM heartbeattable WHERE utype = 'payroll'");
    let vacant = shown(&store, "payroll").await;
    assert_eq!((vacant.holder(), vacant.term.get()), (None, 11));
    let mut candidate = candidate(&database, "payroll", "ours").await;
    assert_eq!(led(&mut candidate).await.term().get(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_terms_are_counted_by_what_is_seen() {
    terms_are_counted_by_what_is_seen(Database::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_terms_are_counted_by_what_is_seen() {
    terms_are_counted_by_what_is_seen(Database::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_terms_are_counted_by_what_is_seen() {
    terms_are_counted_by_what_is_seen(Database::mysql()).await;
}

#[tokio::test]
async fn a_request_to_a_candidate_is_heard() {
    let database = Database::sqlite();
    let mut ours = candidate(&database, "payroll", "ours").await;
    let leadership = led(&mut ours).await;
    let store = tenure::store::open_existing(&database.url()).await;
    let store = store.expect("a store");
    let id = leadership.fence().leader;
    let payroll = name("payroll");
    let ask = tenure::election::ask_to_resign(store, &payroll, Some(id), super::SOON, super::SOON);
    let goes = async {
        let why = leadership.cancelled().await;
        drop(leadership);
        why
    };
    let (asked, why) = tokio::join!(ask, goes);
    assert_eq!(asked.expect("it went").id, id);
    assert!(matches!(why, Why::Requested), "{why}");
}
