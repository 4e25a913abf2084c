//! The contract of a store, as far as it applies where there are elections alone: the
//! values are records, and the keys those of elections.

use std::sync::Arc;
use std::time::Duration;

use tenure::core::election::{Holder, Occupancy, Record};
use tenure::core::ids::LeaderId;
use tenure::core::time::WallTime;
use tenure::store::{Expect, Key, Register, Stamp, Store, Version, Write, Written};
use tenure::{Election, Name, StoreError, Term};
use tokio::task::JoinSet;

use super::SOON;
use super::foreign::{Database, T};

pub(super) fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub(super) fn key(election: &str) -> Key {
    Key::of_election(&name(election))
}

/// A record of an election, held by this id, or vacant if that is 0.
pub(super) fn record(election: &str, sequence: u64, id: u128) -> Record {
    let holder = Holder {
        id: LeaderId::from_u128(id),
        name: name("ours"),
        addresses: [name("h:1")].into(),
        params: [1, 2, 3].into(),
        request: None,
    };
    Record {
        election: name(election),
        term: Term::new(sequence).expect("a term"),
        sequence,
        renewal: sequence,
        lease: T,
        acquired_at: WallTime::from_millis(7),
        renewed_at: WallTime::from_millis(8),
        occupancy: match id {
            0 => Occupancy::Vacant { successor: None },
            _ => Occupancy::Held(holder),
        },
    }
}

pub(super) async fn write(
    store: &Arc<dyn Store>,
    expect: Expect,
    record: &Record,
    stamp: Stamp,
) -> Result<Written, StoreError> {
    let write = Write {
        key: Key::of_election(&record.election),
        expect,
        value: record.encode(),
        stamp,
    };
    store.compare_and_swap(write, SOON).await
}

pub(super) async fn register(store: &Arc<dyn Store>, election: &str) -> Option<Register> {
    let read = store.read(&key(election), SOON).await;
    read.expect("a read").register
}

fn assert_conflict<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::Conflict)), "{result:?}");
}

async fn keeps_the_contract(database: Database) {
    let store = tenure::store::open(&database.url()).await.expect("a store");
    // What was written is read, byte for byte, by another handle as well.
    assert_eq!(register(&store, "a").await, None);
    let first = record("a", 1, 5);
    let made = write(&store, Expect::Absent, &first, Stamp::Now).await;
    let made = made.expect("a register");
    let other = tenure::store::open_existing(&database.url()).await;
    let other = other.expect("another handle");
    let read = register(&other, "a").await.expect("the register");
    assert_eq!(
        (&read.value, &read.version),
        (&first.encode(), &made.version)
    );
    assert_eq!(read.stamp, made.now, "the time of the row");

    // What was not expected is refused.
    assert_conflict(write(&other, Expect::Absent, &first, Stamp::Now).await);
    let elsewhere = Expect::Version(Version::from_u64(1 << 40));
    assert_conflict(write(&other, elsewhere, &first, Stamp::Now).await);
    let nonsense = Expect::Version(Version::from_bytes(b"none of ours"));
    assert_conflict(write(&other, nonsense, &first, Stamp::Now).await);

    // A request keeps the stamp and the row.
    let row = database.row("a");
    let asked = write(
        &other,
        Expect::Version(made.version.clone()),
        &first,
        Stamp::Keep,
    );
    let asked = asked.await.expect("a request");
    let read = register(&store, "a").await.expect("the register");
    assert_eq!((read.stamp, &read.version), (made.now, &asked.version));
    assert_ne!(asked.version, made.version, "a version is not used twice");
    assert_eq!(database.row("a"), row);

    // No version is used twice, deletion included.
    let at = Expect::Version(made.version.clone());
    assert_conflict(write(&store, at, &first, Stamp::Now).await);
    assert_conflict(store.delete(&key("a"), &made.version, SOON).await);
    let deleted = store.delete(&key("a"), &asked.version, SOON).await;
    deleted.expect("it is deleted");
    assert_eq!(register(&store, "a").await, None);
    assert_eq!(database.row("a"), None);
    assert_conflict(store.delete(&key("a"), &asked.version, SOON).await);
    let again = write(&store, Expect::Absent, &first, Stamp::Now).await;
    let again = again.expect("a register").version;
    assert!(again != made.version && again != asked.version);

    // Of a race to make one, one wins; of a race to change it, no write is lost.
    let mut racers = JoinSet::new();
    for id in 1..=8 {
        let store = Arc::clone(if id % 2 == 0 { &store } else { &other });
        racers.spawn(async move {
            let made = write(&store, Expect::Absent, &record("race", 1, id), Stamp::Now).await;
            let won = made.is_ok();
            for _ in 0..5 {
                while !counted(&store, id).await {}
            }
            won
        });
    }
    let won = racers.join_all().await;
    assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    let last = register(&store, "race").await.expect("the register");
    let last = Record::decode(&last.value).expect("a record");
    assert_eq!(last.sequence, 1 + 8 * 5);

    lists_in_order(&store, &other).await;
}

/// Listed in the order of the names, in pages that go on. `a` and `race` are there.
async fn lists_in_order(store: &Arc<dyn Store>, other: &Arc<dyn Store>) {
    for election in ["é", "b", "B", "a b"] {
        let made = write(store, Expect::Absent, &record(election, 1, 9), Stamp::Now).await;
        made.expect("a register");
    }
    let listed = async |prefix: &str, after: Option<Key>| -> Vec<String> {
        let page = other.list(prefix, after.as_ref(), SOON).await;
        let keys = page.expect("a page").registers.into_iter();
        keys.map(|(key, _)| key.as_str().to_owned()).collect()
    };
    let all = ["B", "a", "a b", "b", "race", "é"].map(|it| format!("elections/{it}"));
    assert_eq!(listed("elections/", None).await, all);
    assert_eq!(listed("", None).await, all);
    assert_eq!(listed("elections/a", None).await, all[1..3]);
    assert_eq!(listed("elections/", Some(key("b"))).await, all[4..]);
}

/// Whether a write that raises the sequence by one was the one that landed.
async fn counted(store: &Arc<dyn Store>, id: u128) -> bool {
    let Some(held) = register(store, "race").await else {
        return false;
    };
    let last = Record::decode(&held.value).expect("a record");
    let next = record("race", last.sequence + 1, id);
    let written = write(store, Expect::Version(held.version), &next, Stamp::Now).await;
    match written {
        Ok(_) => true,
        Err(StoreError::Conflict | StoreError::Unavailable(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_the_contract_is_kept() {
    keeps_the_contract(Database::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_the_contract_is_kept() {
    keeps_the_contract(Database::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_the_contract_is_kept() {
    keeps_the_contract(Database::mysql()).await;
}

pub(super) fn why(result: Result<impl std::fmt::Debug, StoreError>) -> String {
    match result {
        Err(StoreError::Broken(why)) => why.to_string(),
        other => panic!("expected a refusal, found {other:?}"),
    }
}

#[tokio::test]
async fn what_the_format_does_not_have_is_said() {
    let database = Database::sqlite();
    let store = tenure::store::open(&database.url()).await.expect("a store");
    for text in ["ha/web/nodes/1", "election/a", "x"] {
        let other = Key::new(text).expect("a key");
        let said = why(store.read(&other, SOON).await);
        assert!(said.contains("has no other registers"), "{said}");
    }
    let said = why(store.list("ha/", None, SOON).await);
    assert!(said.contains("has no other registers"), "{said}");
    let said = why(store
        .compare_and_swap(
            Write {
                key: key("a"),
                expect: Expect::Absent,
                value: (*b"no record").into(),
                stamp: Stamp::Now,
            },
            SOON,
        )
        .await);
    assert!(said.contains("the record of the election a"), "{said}");
    // A lease that outlives T: another program would lead beside this one.
    let mut long = record("a", 1, 5);
    long.lease = T + Duration::from_millis(1);
    let said = why(write(&store, Expect::Absent, &long, Stamp::Now).await);
    assert!(said.contains("a lease of at most 3s"), "{said}");
    assert_eq!(database.row("a"), None);
    let stands = Election::builder(store, "a").lease(T * 2).start();
    let said = stands.map(drop).expect_err("a refusal").to_string();
    assert!(said.contains("a lease of at most 3s"), "{said}");
}

#[tokio::test]
async fn wrong_options_are_refused() {
    let sqlite = Database::sqlite();
    let [postgres, mysql] = ["postgres", "mysql"].map(|it| format!("{it}://u@h/d?"));
    for (options, words) in [
        ("format=k8s", "expected hpc"),
        ("heartbeat_timeout=5s", "together with format=hpc"),
        ("format=hpc&heartbeat_timeout=soon", "10ms to 604800s"),
        ("format=hpc&heartbeat_timeout=0s", "10ms to 604800s"),
        ("format=hpc&expiry=never", "store-clock or silence"),
        ("format=hpc&table=a;b", "table=: expected"),
    ] {
        for url in [
            sqlite.url_with(options),
            format!("{postgres}{options}"),
            format!("{mysql}{options}"),
        ] {
            let said = why(tenure::store::open(&url).await);
            assert!(said.contains(words), "{url}: {said}");
        }
    }
    for (options, words) in [
        ("table=beats", "with format=hpc"),
        ("x=1", "no options but"),
    ] {
        let said = why(tenure::store::open(&sqlite.url_with(options)).await);
        assert!(said.contains(words), "{options}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_other_tables_are_refused() {
    let database = Database::mysql();
    let key_of_election = key("a");
    let first = record("a", 1, 5);
    for (number, (columns, words)) in [
        (
            "uuid TEXT, utype VARCHAR(99) PRIMARY KEY, uname TEXT",
            "timestamp (datetime",
        ),
        (
            "uuid TEXT, utype VARCHAR(99) PRIMARY KEY, uname TEXT, timestamp DATETIME",
            "times of 0 digits",
        ),
        (
            "uuid TEXT, utype VARCHAR(99) PRIMARY KEY, uname TEXT, timestamp TIMESTAMP(3)",
            "timestamp timestamp",
        ),
        (
            "uuid TEXT, utype VARCHAR(99), uname TEXT, timestamp DATETIME(3), \
             UNIQUE (utype, uname(9))",
            "0 such keys",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let table = format!("beats{number}");
        database.sql(&format!("CREATE TABLE {table} ({columns})"));
        let url = database.url_with(&format!("format=hpc&table={table}"));
        let store = tenure::store::open(&url).await.expect("a store");
        let said = why(store.read(&key_of_election, SOON).await);
        assert!(said.contains(words), "{columns}: {said}");
    }
    // As another program may have made it, with a collation that takes `A` for `a`.
    database.sql(
        "CREATE TABLE theirs (utype VARCHAR(99) CHARACTER SET latin1 UNIQUE, uname TEXT, \
         timestamp DATETIME(6), uuid CHAR(40)) CHARACTER SET latin1",
    );
    let url = database.url_with("format=hpc&table=theirs");
    let store = tenure::store::open(&url).await.expect("a store");
    let made = write(&store, Expect::Absent, &first, Stamp::Now).await;
    let made = made.expect("a register").version;
    assert_eq!(register(&store, "A").await, None);
    let other = write(&store, Expect::Absent, &record("A", 1, 5), Stamp::Now).await;
    let said = why(other);
    assert!(said.contains("a binary collation"), "{said}");
    let again = write(&store, Expect::Version(made), &first, Stamp::Now).await;
    again.expect("a renewal");
}

/// A trigger may write another time than that of the heartbeat, and then a living leader
/// looks dead.
async fn triggers_are_refused(database: Database, make: &[&str]) {
    let store = tenure::store::open(&database.url()).await.expect("a store");
    let made = write(&store, Expect::Absent, &record("a", 1, 5), Stamp::Now).await;
    made.expect("a register");
    drop(store);
    for statement in make {
        database.sql(statement);
    }
    let store = tenure::store::open(&database.url()).await;
    let said = match store {
        Ok(store) => why(store.read(&key("a"), SOON).await),
        refused => why(refused.map(drop)),
    };
    assert!(said.contains("without triggers, found late"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_triggers_are_refused() {
    let trigger = "CREATE TRIGGER late AFTER UPDATE ON heartbeattable BEGIN UPDATE heartbeattable \
                   SET timestamp = '2000-01-01' WHERE utype = new.utype; END";
    triggers_are_refused(Database::sqlite(), &[trigger]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_triggers_are_refused() {
    let function = "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS \
                    'BEGIN new.timestamp := ''2000-01-01''; RETURN new; END'";
    let trigger = "CREATE TRIGGER late BEFORE UPDATE ON heartbeattable FOR EACH ROW EXECUTE \
                   FUNCTION late()";
    triggers_are_refused(Database::postgres(), &[function, trigger]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_triggers_are_refused() {
    let database = Database::mysql();
    let store = tenure::store::open(&database.url()).await.expect("a store");
    let made = write(&store, Expect::Absent, &record("a", 1, 5), Stamp::Now).await;
    made.expect("a register");
    database.sql(
        "CREATE TRIGGER late BEFORE UPDATE ON heartbeattable FOR EACH ROW SET new.timestamp = \
         '2000-01-01'",
    );
    let store = tenure::store::open(&database.url()).await.expect("a store");
    let said = why(store.read(&key("a"), SOON).await);
    assert!(
        said.contains("found triggers") && said.contains("(late)"),
        "{said}"
    );
}
