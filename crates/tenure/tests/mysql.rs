//! The MySQL store against private servers of MariaDB: the conformance suite, races,
//! servers that are away, mute or read-only, rights, TLS, what others do to the table,
//! answers on which the library panics, and an election from end to end.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::common::calls::{
    WITHIN, count_in_processes, key, opened, put, shows, store_to_count_in, until, value, write,
};
use crate::common::mariadb::{MariaDb, PASSWORD};
use crate::common::takeovers::{self, Notices};
use crate::common::versions::version;
use crate::common::{certificates, misanswered};
use tenure::store::conformance::{self, count_of, count_up};
use tenure::store::{Expect, Key, Selector, Sighting, Store, Version, open, open_existing};
use tenure::{StoreError, clock};

/// What a store says that a person must do something about.
async fn broken(store: &Arc<dyn Store>) -> String {
    match store.read(&key("key"), WITHIN).await {
        Err(StoreError::Broken(why)) => why.to_string(),
        other => panic!("expected a store that is broken, found {other:?}"),
    }
}

/// The same URL with several hosts.
fn with_hosts(server: &MariaDb, hosts: &[&str]) -> String {
    server.url().replacen(&server.host(), &hosts.join(","), 1)
}

#[tokio::test]
async fn mysql_conforms() {
    let server = MariaDb::start();
    conformance::all(&opened(&server.url()).await, "try/").await;
    // In a table of another name, judged by the server's clock.
    let other = format!("{}?table=others&poll=20ms&expiry=store-clock", server.url());
    let other = opened(&other).await;
    assert!(other.features().judge_by_store_clock);
    conformance::all(&other, "try/").await;
    for table in ["tenure_register", "others"] {
        let rows = server.sql(&format!("SELECT COUNT(*) FROM {table}"));
        assert!(rows.parse::<u64>().expect("a number") > 500, "{rows}");
    }
}

#[tokio::test]
async fn a_server_with_other_defaults_and_a_binary_log_conforms() {
    let server = MariaDb::start_with(&[
        "--log-bin=log",
        "--binlog-format=STATEMENT",
        "--sql-mode=ANSI_QUOTES",
        "--autocommit=0",
        "--transaction-isolation=READ-UNCOMMITTED",
        "--default-time-zone=+05:30",
        "--character-set-server=latin1",
    ]);
    server.sql("SET GLOBAL sql_select_limit = 1, GLOBAL tx_read_only = 1");
    conformance::all(&opened(&server.url()).await, "try/").await;
}

/// Not a test of its own: what a child process of the race below does.
#[tokio::test]
async fn child_counts() {
    if let Some(store) = store_to_count_in().await {
        count_up(&store, &key("processes/counter"), 25).await;
    }
}

/// They meet on a database without a table, too, and have the password in their
/// environment.
#[tokio::test]
async fn processes_lose_no_update() {
    let server = MariaDb::start();
    count_in_processes(
        module_path!(),
        6,
        &server.url_without_password(),
        &[("MYSQL_PWD", PASSWORD)],
    );
    let store = opened(&server.url()).await;
    let found = store.read(&key("processes/counter"), WITHIN).await;
    let found = found.expect("a read").register;
    assert_eq!(found.as_ref().map(count_of), Some(150));
}

/// Makes and deletes one register, with others who do the same.
async fn make_and_delete(store: Arc<dyn Store>) -> Vec<Version> {
    let (key, mut made) = (key("made"), Vec::new());
    while made.len() < 20 {
        match store
            .compare_and_swap(write(&key, Expect::Absent, b"x"), WITHIN)
            .await
        {
            Ok(written) => made.push(written.version.clone()),
            // A deadlock with a deletion is one that has not happened.
            Err(StoreError::Conflict | StoreError::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
        let found = store.read(&key, WITHIN).await.expect("a read").register;
        if let Some(found) = found {
            match store.delete(&key, &found.version, WITHIN).await {
                Ok(()) | Err(StoreError::Conflict | StoreError::Unavailable(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
    made
}

async fn assert_no_version_comes_again(stores: &[Arc<dyn Store>; 2]) {
    let racers = stores.iter().cycle().take(4);
    let racers: Vec<_> = racers
        .map(|store| tokio::spawn(make_and_delete(Arc::clone(store))))
        .collect();
    let mut versions = Vec::new();
    for racer in racers {
        versions.extend(racer.await.expect("it ends"));
    }
    let all = versions.len();
    versions.sort();
    versions.dedup();
    assert_eq!((all, versions.len()), (80, 80));
}

#[tokio::test]
async fn no_version_comes_again_however_a_register_is_made_and_deleted() {
    let server = MariaDb::start();
    let store = opened(&server.url()).await;
    let stores = [Arc::clone(&store), Arc::clone(&store)];
    assert_no_version_comes_again(&stores).await;
    // A row is left for none of them but the floor.
    let last = store.read(&key("made"), WITHIN).await.expect("a read");
    if let Some(last) = last.register {
        let gone = store.delete(&key("made"), &last.version, WITHIN).await;
        gone.expect("to delete it");
    }
    assert_eq!(server.sql("SELECT COUNT(*) FROM tenure_register"), "1");
}

#[tokio::test]
async fn a_server_that_is_away_at_the_start_or_later_keeps_its_data() {
    let mut server = MariaDb::start();
    server.stop();
    let store = opened(&server.url()).await;
    let key = key("key");
    let refused = store.compare_and_swap(write(&key, Expect::Absent, b"1"), WITHIN);
    let refused = refused.await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    server.launch();
    let mut version = put(&store, &key, Expect::Absent, b"1").await;
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, shows(&version)).await;
    server.kill();
    until(&mut watch, |seen| matches!(seen, Sighting::Down(_))).await;
    let away = store.read(&key, WITHIN).await;
    assert!(matches!(away, Err(StoreError::Unavailable(_))), "{away:?}");
    server.launch();
    assert_eq!(value(&store, &key).await.as_deref(), Some(&b"1"[..]));
    // What another process writes is told again.
    let other = opened(&server.url()).await;
    version = put(&other, &key, Expect::Version(version), b"2").await;
    until(&mut watch, shows(&version)).await;
    // A write whose connection was ended unnoticed is not known to have happened.
    server.sql("KILL USER tenure");
    let change = write(&key, Expect::Version(version.clone()), b"3");
    let cut = store.compare_and_swap(change.clone(), WITHIN).await;
    match cut {
        Err(StoreError::Unknown(_)) => {
            assert_eq!(value(&store, &key).await.as_deref(), Some(&b"2"[..]));
            put(&store, &key, Expect::Version(version), b"3").await;
        }
        // The watch found it out first.
        Err(StoreError::Unavailable(_)) | Ok(_) => {}
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_mute_server_leaves_a_write_unknown_which_happens_at_most_once() {
    let server = MariaDb::start();
    let store = opened(&server.url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    server.pause();
    let short = Duration::from_millis(200);
    let change = write(&key, Expect::Version(version), b"after");
    let began = clock::boot();
    let late = store.compare_and_swap(change, short).await;
    assert!(matches!(late, Err(StoreError::Unknown(_))), "{late:?}");
    for _ in 0..20 {
        let read = store.read(&key, short).await;
        assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    }
    let took = clock::boot().since(began);
    assert!(took < 21 * short + Duration::from_secs(2), "{took:?}");
    server.resume();
    let mut conflicts = 0;
    loop {
        let found = store.read(&key, WITHIN).await.expect("a read").register;
        let found = found.expect("a register");
        assert!([&b"before"[..], b"after"].contains(&&*found.value));
        let last = write(&key, Expect::Version(found.version), b"last");
        match store.compare_and_swap(last, WITHIN).await {
            Ok(_) => break,
            // It was sent on a line that was left, and may come after a read.
            Err(StoreError::Conflict) => conflicts += 1,
            Err(other) => panic!("{other}"),
        }
        assert!(conflicts < 2, "it happened again");
    }
}

#[tokio::test]
async fn a_lock_of_others_is_waited_for_shortly_and_nothing_happens() {
    let server = MariaDb::start();
    let store = opened(&server.url()).await;
    let (key, other) = (key("key"), key("other"));
    let version = put(&store, &key, Expect::Absent, b"1").await;
    let held = server.hold("BEGIN; SELECT 1 FROM tenure_register WHERE `key` = 'key' FOR UPDATE");
    let change = write(&key, Expect::Version(version.clone()), b"2");
    let refused = store.compare_and_swap(change, WITHIN).await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("1205"), "{why}");
    // Others are not held up, nor are readings.
    put(&store, &other, Expect::Absent, b"x").await;
    assert_eq!(value(&store, &key).await.as_deref(), Some(&b"1"[..]));
    drop(held);
    put(&store, &key, Expect::Version(version), b"2").await;
}

/// Counts up while others do so through another server; how many writes were refused,
/// which has not happened.
async fn count_beside_others(store: &Arc<dyn Store>, key: &Key, times: u64) -> u64 {
    let mut refused = 0;
    for _ in 0..times {
        loop {
            let found = store.read(key, WITHIN).await.expect("a read").register;
            let count = found.as_ref().map_or(0, count_of) + 1;
            let expect = found.map_or(Expect::Absent, |held| Expect::Version(held.version));
            let change = write(key, expect, &count.to_be_bytes());
            match store.compare_and_swap(change, WITHIN).await {
                Ok(_) => break,
                Err(StoreError::Conflict | StoreError::Unavailable(_)) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    refused
}

#[tokio::test]
async fn a_cluster_of_galera_conforms_on_all_of_its_servers() {
    let mut servers = MariaDb::start_cluster(2);
    let (first, second) = (
        opened(&servers[0].url()).await,
        opened(&servers[1].url()).await,
    );
    conformance::all(&second, "try/").await;
    // What one has acknowledged the other shows.
    let (read, mut expect) = (key("read"), Expect::Absent);
    for number in 0..100_u8 {
        expect = Expect::Version(put(&first, &read, expect, &[number]).await);
        assert_eq!(value(&second, &read).await, Some(vec![number]));
    }
    // Both write one register.
    let counter = key("counter");
    let refused = tokio::join!(
        count_beside_others(&first, &counter, 50),
        count_beside_others(&second, &counter, 50)
    );
    println!("mysql: of 100 writes through two servers of Galera {refused:?} were refused");
    let found = first.read(&counter, WITHIN).await.expect("a read").register;
    assert_eq!(found.as_ref().map(count_of), Some(100));
    assert_no_version_comes_again(&[Arc::clone(&first), second]).await;
    // One whose writes stay its own is left for the other.
    servers[0].sql("SET GLOBAL wsrep_on = OFF");
    let alone = opened(&servers[0].url()).await;
    let refused = alone.read(&counter, WITHIN).await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("wsrep_on = ON"), "{why}");
    let both = opened(&with_hosts(
        &servers[1],
        &[&servers[0].host(), &servers[1].host()],
    ))
    .await;
    assert!(value(&both, &counter).await.is_some());
    servers[0].sql("SET GLOBAL wsrep_on = ON");
    assert!(value(&alone, &counter).await.is_some());
    // A server of no cluster is another database.
    let stranger = MariaDb::start();
    let apart = with_hosts(&servers[1], &[&servers[1].host(), &stranger.host()]);
    let why = broken(&opened(&apart).await).await;
    assert!(
        why.contains("of the cluster") && why.contains("of no cluster"),
        "{why}"
    );
    drop(stranger);
    // The one that is left goes on alone.
    let url = with_hosts(&servers[0], &[&servers[0].host(), &servers[1].host()]);
    let both = opened(&url).await;
    put_at_last(&both, &key("both"), b"before").await;
    servers[0].stop();
    put_at_last(&both, &key("both"), b"after").await;
    let alone = opened(&servers[1].url()).await;
    assert_eq!(
        value(&alone, &key("both")).await.as_deref(),
        Some(&b"after"[..])
    );
}

/// As a server of which a backup is taken: it answers readings, and no write.
#[tokio::test]
async fn a_server_that_hangs_in_writes_is_left_for_the_next() {
    let servers = MariaDb::start_cluster(2);
    let url = with_hosts(&servers[0], &[&servers[0].host(), &servers[1].host()]);
    let both = opened(&url).await;
    let key = key("key");
    put(&both, &key, Expect::Absent, b"before").await;
    let _locked = servers[0].hold("FLUSH TABLES WITH READ LOCK");
    put_at_last(&both, &key, b"after").await;
    let alone = opened(&servers[1].url()).await;
    assert_eq!(value(&alone, &key).await.as_deref(), Some(&b"after"[..]));
}

/// It tells what its cluster was, as a server of another part would.
#[tokio::test]
async fn a_server_that_is_behind_its_cluster_is_not_taken_for_another_part() {
    let mut servers = MariaDb::start_cluster(3);
    let key = key("key");
    let first = opened(&servers[0].url()).await;
    let version = put(&first, &key, Expect::Absent, b"before").await;
    // As for a backup. What is written from now on it applies later, and also that a
    // server has gone.
    servers[2].sql("SET GLOBAL wsrep_desync = ON");
    let _locked = servers[2].hold("FLUSH TABLES WITH READ LOCK");
    put(&first, &key, Expect::Version(version), b"after").await;
    servers[1].stop();
    servers[0].await_status("wsrep_cluster_size", "2");
    assert!(
        servers[2]
            .sql("SHOW STATUS LIKE 'wsrep_cluster_size'")
            .contains('3')
    );
    for hosts in [[0, 2], [2, 0]] {
        let hosts = hosts.map(|at: usize| servers[at].host());
        let both = opened(&with_hosts(&servers[0], &[&hosts[0], &hosts[1]])).await;
        put_at_last(&both, &key, b"written").await;
        assert_eq!(value(&first, &key).await.as_deref(), Some(&b"written"[..]));
    }
}

/// They are cut off from each other, and somebody makes both go on alone.
#[tokio::test]
async fn two_parts_of_a_cluster_of_galera_are_no_store() {
    let servers = MariaDb::start_cluster(2);
    let url = with_hosts(&servers[0], &[&servers[0].host(), &servers[1].host()]);
    let both = opened(&url).await;
    let key = key("key");
    put(&both, &key, Expect::Absent, b"x").await;
    servers[1].sql("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'");
    for server in &servers {
        server.await_status("wsrep_cluster_status", "non-Primary");
    }
    for server in &servers {
        server.sql("SET GLOBAL wsrep_provider_options = 'pc.bootstrap=1'");
        server.await_status("wsrep_ready", "ON");
        let alone = opened(&server.url()).await;
        put_at_last(&alone, &key, b"each by itself").await;
    }
    expect_two_parts(&url, &key).await;
}

/// A host that is slower than others by half a second is not compared, so on a busy machine
/// it may take several handshakes.
async fn expect_two_parts(url: &str, key: &Key) {
    let give_up = clock::boot().after(WITHIN);
    loop {
        let read = opened(url).await.read(key, WITHIN).await;
        if matches!(&read, Err(StoreError::Unavailable(why))
            if why.to_string().contains("that see each other"))
        {
            return;
        }
        assert!(clock::boot() < give_up, "{read:?}");
    }
}

/// Machines were copied, and the copies tell the same names and addresses of themselves.
#[tokio::test]
async fn a_copy_of_a_cluster_of_galera_is_no_part_of_it() {
    let [[first, second], [_other, copy]] = MariaDb::start_twin_clusters();
    let url = |hosts: [&MariaDb; 2]| {
        with_hosts(
            hosts[0],
            &hosts.map(MariaDb::host).each_ref().map(String::as_str),
        )
    };
    let key = key("key");
    let store = opened(&url([&first, &second])).await;
    put(&store, &key, Expect::Absent, b"x").await;
    for hosts in [[&first, &copy], [&copy, &first]] {
        expect_two_parts(&url(hosts), &key).await;
    }
    // Servers of one are compared while it is written to, and nothing is refused.
    let writing = async {
        for number in 0..100_u8 {
            put_at_last(&store, &key, &[number]).await;
        }
    };
    let connecting = async {
        for _ in 0..20 {
            let store = opened(&url([&second, &first])).await;
            assert!(value(&store, &key).await.is_some());
        }
    };
    tokio::join!(writing, connecting);
}

#[tokio::test]
async fn a_server_that_is_cut_off_from_its_cluster_acknowledges_nothing() {
    let mut servers = MariaDb::start_cluster(2);
    let store = opened(&servers[0].url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    servers[1].kill();
    // The server waits some seconds for the other, and then gives up. What was to be
    // committed meanwhile may have reached the other.
    let change = write(&key, Expect::Version(version), b"after");
    let cut = store.compare_and_swap(change.clone(), WITHIN).await;
    assert!(matches!(cut, Err(StoreError::Unknown(_))), "{cut:?}");
    // Over the same connection, which was told to show what it has.
    let read = store.read(&key, WITHIN).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    for _ in 0..3 {
        let refused = store.compare_and_swap(change.clone(), WITHIN).await;
        assert!(
            matches!(refused, Err(StoreError::Unavailable(_))),
            "{refused:?}"
        );
    }
    // Until it has given up, what was to be committed keeps its lock.
    let give_up = clock::boot().after(3 * WITHIN);
    loop {
        let why = store.read(&key, WITHIN).await.expect_err("it is cut off");
        assert!(matches!(why, StoreError::Unavailable(_)), "{why:?}");
        let why = why.to_string();
        if why.contains("cut off") {
            break;
        }
        assert!(clock::boot() < give_up, "{why}");
    }
}

/// A server that has the table, as a replica does.
async fn with_table() -> MariaDb {
    let server = MariaDb::start();
    let store = opened(&server.url()).await;
    store.read(&key("key"), WITHIN).await.expect("a table");
    server
}

/// Tries until it has happened; calls that meet a server that is left may fail.
async fn put_at_last(store: &Arc<dyn Store>, key: &Key, bytes: &[u8]) {
    let give_up = clock::boot().after(WITHIN);
    loop {
        if let Ok(found) = store.read(key, Duration::from_secs(2)).await {
            let expect = match found.register {
                Some(held) if *held.value == *bytes => return,
                Some(held) => Expect::Version(held.version),
                None => Expect::Absent,
            };
            let change = write(key, expect, bytes);
            let tried = store.compare_and_swap(change, Duration::from_secs(2)).await;
            if let Err(StoreError::Broken(why)) = tried {
                panic!("{why}");
            }
        }
        assert!(clock::boot() < give_up, "no write in time");
    }
}

/// Two servers that share nothing stand for a primary and its replica.
#[tokio::test]
async fn a_server_that_is_read_only_is_left_for_the_next() {
    let (first, second) = (with_table().await, with_table().await);
    first.sql("SET GLOBAL read_only = ON");
    let url = with_hosts(&first, &[&first.host(), &second.host()]);
    let store = opened(&url).await;
    let key = key("key");
    put(&store, &key, Expect::Absent, b"on the second").await;
    let here = "SELECT COUNT(*) FROM tenure_register WHERE `key` = 'key'";
    assert_eq!(second.sql(here), "1");
    // It is turned while it is in use: as a fail-over does.
    first.sql("SET GLOBAL read_only = OFF");
    second.sql("SET GLOBAL read_only = ON");
    let stale = store.read(&key, WITHIN).await;
    assert!(
        matches!(stale, Err(StoreError::Unavailable(_))),
        "{stale:?}"
    );
    put_at_last(&store, &key, b"on the first").await;
    assert_eq!(first.sql(here), "1");
    // A write finds it out as well, and has not happened.
    let version = store.read(&key, WITHIN).await.expect("a read");
    let version = version.register.expect("a register").version;
    first.sql("SET GLOBAL read_only = ON");
    let refused = store
        .compare_and_swap(write(&key, Expect::Version(version), b"x"), WITHIN)
        .await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("1290"), "{why}");
    // Without one that takes writes, each is named.
    let none = store.read(&key, WITHIN).await.expect_err("none is left");
    let none = none.to_string();
    for host in [first.host(), second.host()] {
        assert!(none.contains(&host) && none.contains("read-only"), "{none}");
    }
}

/// Two servers that share nothing stand for a new primary and the old one.
#[tokio::test]
async fn of_two_servers_that_take_writes_none_is_used() {
    let (first, second) = (with_table().await, with_table().await);
    let url = with_hosts(&first, &[&first.host(), &second.host()]);
    let store = opened(&url).await;
    let refused = store.read(&key("key"), WITHIN).await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    let why = why.to_string();
    let both = format!("{} and {}", first.host(), second.host());
    assert!(why.contains("found two") && why.contains(&both), "{why}");
    first.sql("SET GLOBAL read_only = ON");
    put_at_last(&store, &key("key"), b"on the second").await;
    let here = "SELECT COUNT(*) FROM tenure_register WHERE `key` = 'key'";
    assert_eq!(
        (first.sql(here), second.sql(here)),
        ("0".into(), "1".into())
    );
}

#[tokio::test]
async fn one_server_may_have_two_names() {
    let server = with_table().await;
    let other = server.host().replace("127.0.0.1", "localhost");
    assert_ne!(other, server.host());
    let store = opened(&with_hosts(&server, &[&server.host(), &other])).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
}

#[tokio::test]
async fn the_server_after_a_mute_one_is_reached_by_impatient_calls() {
    let (mute, server) = (with_table().await, with_table().await);
    let url = with_hosts(&server, &[&mute.host(), &server.host()]);
    let store = opened(&url).await;
    let key = key("key");
    server.sql("SET GLOBAL read_only = ON");
    put(&store, &key, Expect::Absent, b"x").await;
    mute.pause();
    server.sql("SET GLOBAL read_only = OFF");
    let give_up = clock::boot().after(WITHIN);
    let (short, began) = (Duration::from_millis(200), clock::boot());
    while store.read(&key, short).await.is_err() {
        assert!(clock::boot() < give_up, "the second was not reached");
    }
    let took = clock::boot().since(began);
    println!("mysql: the server after a mute one was reached after {took:.1?}");
    mute.resume();
}

/// The file of an authority.
fn authority(server: &MariaDb) -> String {
    let file = server.directory().join("authority");
    std::fs::write(&file, certificates::authority().pem()).expect("written");
    file.display().to_string()
}

/// Registers whose names begin alike would be one.
#[tokio::test]
async fn a_table_whose_key_is_not_the_whole_name_is_refused() {
    let server = MariaDb::start();
    server.sql(
        "CREATE TABLE tenure_register (`key` VARBINARY(512) NOT NULL, version BIGINT UNSIGNED \
         NOT NULL, value MEDIUMBLOB NOT NULL, stamp BIGINT UNSIGNED, PRIMARY KEY (`key`(4)))",
    );
    let why = broken(&opened(&server.url()).await).await;
    assert!(why.contains("primary by its first bytes"), "{why}");
}

#[tokio::test]
async fn credentials_rights_and_a_missing_database_are_told() {
    let server = MariaDb::start();
    let root = server
        .sql("CREATE USER reader@'%' IDENTIFIED BY 'r'; GRANT SELECT ON elections.* TO reader@'%'");
    assert_eq!(root, "");
    let wrong = opened(&server.url_of("tenure", "wrong")).await;
    assert!(!wrong.to_string().contains("wrong"), "{wrong}");
    let why = broken(&wrong).await;
    assert!(why.contains("1045") && why.contains("$MYSQL_PWD"), "{why}");
    let why = broken(&opened(&format!("{}?ca={}", server.url(), authority(&server))).await).await;
    assert!(why.contains("SSL") && why.contains("tls="), "{why}");
    let missing = server.url().replacen("/elections", "/nowhere", 1);
    let why = broken(&opened(&missing).await).await;
    assert!(why.contains("nowhere"), "{why}");
    // Nothing is made by one that only looks, and a user who may not make the table
    // is told how.
    let looks = open_existing(&server.url()).await.expect("a store");
    let nothing = looks.read(&key("key"), WITHIN).await.expect_err("no table");
    assert!(nothing.to_string().contains("no store there"), "{nothing}");
    let reader = opened(&server.url_of("reader", "r")).await;
    let why = broken(&reader).await;
    assert!(why.contains("CREATE TABLE IF NOT EXISTS"), "{why}");
    assert_eq!(server.sql("SHOW TABLES"), "");
    let store = opened(&server.url()).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    assert_eq!(value(&looks, &key("key")).await.as_deref(), Some(&b"x"[..]));
    // The server shows the columns that a user has rights on.
    server.sql(
        "CREATE USER part@'%' IDENTIFIED BY 'p'; \
         GRANT SELECT (`key`, version) ON elections.tenure_register TO part@'%'",
    );
    // Of another user it shows none: the table is ours all the same.
    server.sql(
        "CREATE USER blind@'%' IDENTIFIED BY 'b'; \
         GRANT CREATE, DROP ON elections.* TO blind@'%'",
    );
    for (user, password) in [("part", "p"), ("blind", "b")] {
        let why = broken(&opened(&server.url_of(user, password)).await).await;
        assert!(why.contains("GRANT SELECT, INSERT"), "{user}: {why}");
    }
    // Who may only read is told so by a write.
    assert_eq!(
        value(&reader, &key("key")).await.as_deref(),
        Some(&b"x"[..])
    );
    let refused = reader
        .compare_and_swap(write(&key("other"), Expect::Absent, b"x"), WITHIN)
        .await;
    assert!(matches!(refused, Err(StoreError::Broken(_))), "{refused:?}");
    // A password may be in a file.
    let file = server.directory().join("password");
    std::fs::write(&file, PASSWORD).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).expect("a mode");
    let url = server.url_without_password();
    let url = format!("{url}?password_file={}", file.display());
    assert_eq!(
        value(&opened(&url).await, &key("key")).await.as_deref(),
        Some(&b"x"[..])
    );
}

#[tokio::test]
async fn what_others_write_or_take_away_is_told() {
    let server = MariaDb::start();
    for (name, made) in [
        ("of_others", "CREATE TABLE of_others (id INT PRIMARY KEY)"),
        (
            "unsafe_one",
            "CREATE TABLE unsafe_one LIKE tenure_register; ALTER TABLE unsafe_one ENGINE=Aria",
        ),
        ("seen", "CREATE VIEW seen AS SELECT * FROM tenure_register"),
        (
            "changed",
            "CREATE TABLE changed LIKE tenure_register; CREATE TRIGGER t BEFORE UPDATE ON changed FOR EACH ROW SET NEW.version = 1",
        ),
    ] {
        let first = opened(&server.url()).await;
        first.read(&key("key"), WITHIN).await.expect("a table");
        server.sql(made);
        let why = broken(&opened(&format!("{}?table={name}", server.url())).await).await;
        assert!(why.contains(name) && why.contains("expected"), "{why}");
    }
    let store = opened(&server.url()).await;
    let key = key("elections/garbage");
    let version = put(&store, &key, Expect::Absent, b"x").await;
    // Bytes that are no record, keys that are none, a stamp that no clock has shown.
    server.sql(
        "UPDATE tenure_register SET value = x'00ff27', stamp = 18446744073709551615 \
         WHERE `key` = 'elections/garbage'; \
         INSERT INTO tenure_register VALUES (x'ff00', 1, x'', NULL), (x'0a', 2, x'', NULL)",
    );
    assert_eq!(
        value(&store, &key).await.as_deref(),
        Some(&b"\x00\xff'"[..])
    );
    let page = store.list("", None, WITHIN).await.expect("a page");
    assert_eq!(page.registers.len(), 1);
    let name = tenure::Name::new("garbage").expect("a name");
    let looked = tenure::election::leader(Arc::clone(&store), &name, WITHIN).await;
    assert!(looked.is_err(), "{looked:?}");
    put(&store, &key, Expect::Version(version), b"y").await;
    // Without the floor no version is known to be new.
    server.sql("DELETE FROM tenure_register WHERE `key` = ''");
    let refused = store
        .compare_and_swap(write(&self::key("new"), Expect::Absent, b"x"), WITHIN)
        .await;
    assert!(matches!(refused, Err(StoreError::Broken(_))), "{refused:?}");
    let anew = opened(&server.url()).await;
    put(&anew, &self::key("new"), Expect::Absent, b"x").await;
    // A table that is lost is not made again by a process that has used it.
    server.sql("DROP TABLE tenure_register");
    let why = broken(&store).await;
    assert!(why.contains("tenure repair"), "{why}");
    assert!(!server.sql("SHOW TABLES").contains("tenure_register"));
}

#[tokio::test]
async fn tls_is_spoken_where_it_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let authority = certificates::authority();
    let [certificate, secret] = certificates::certified(&authority, false);
    for (name, text) in [
        ("ca", authority.pem()),
        ("other", certificates::authority().pem()),
        ("cert", certificate),
        ("key", secret),
    ] {
        std::fs::write(at(name), text).expect("written");
    }
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open_to_all).expect("a mode");
    let server = MariaDb::start_with(&[
        &format!("--ssl-cert={}", at("cert").display()),
        &format!("--ssl-key={}", at("key").display()),
        "--require-secure-transport=ON",
    ]);
    let url = |options: &str| format!("{}?{options}", server.url());
    let store = opened(&url(&format!("ca={}", at("ca").display()))).await;
    put(&store, &key("key"), Expect::Absent, b"secret").await;
    // A certificate of an authority that we do not know.
    let other = opened(&url(&format!("ca={}", at("other").display()))).await;
    let why = broken(&other).await;
    assert!(why.contains("invalid peer certificate"), "{why}");
    // The server wants TLS, and says no more than that it denies access.
    let why = broken(&opened(&url("tls=off")).await).await;
    assert!(why.contains("tls="), "{why}");
    let Err(StoreError::Broken(why)) = open(&url(&format!("ca={}", at("key").display()))).await
    else {
        panic!("a key was taken for an authority");
    };
    assert!(why.to_string().contains("no certificate"), "{why}");
}

#[tokio::test]
async fn a_leader_is_elected_and_another_takes_over_when_it_resigns() {
    let server = MariaDb::start();
    let version = version("mariadbd", &["--version"]);
    let url = format!("{}?poll=200ms", server.url());
    let polls = Notices::ByPolls(Duration::from_millis(200));
    let store = format!("MariaDB {version}");
    takeovers::measure(&store, polls, || opened(&url)).await;
}

/// Sends a packet with this number.
fn send(stream: &mut TcpStream, number: u8, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).expect("short").to_le_bytes();
    let [low, middle, high, _] = length;
    stream.write_all(&[&[low, middle, high, number], body].concat())
}

/// Takes a packet.
fn take(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let [low, middle, high, _] = head;
    let length = u32::from_le_bytes([low, middle, high, 0]);
    stream.read_exact(&mut vec![0; usize::try_from(length).expect("short")])
}

/// Says who it is, as MySQL 8.0 without TLS and `DEPRECATE_EOF`, and takes who we are.
fn greet(stream: &mut TcpStream) -> io::Result<()> {
    let greeting = [
        &b"\x0a8.0.1\0\x01\0\0\0saltsalt\0\xff\xf7\x21\x02\0\xff\xc0\x15"[..],
        &[0; 10],
        b"saltsaltsalt\0mysql_native_password\0",
    ];
    send(stream, 0, &greeting.concat())?;
    take(stream)
}

/// Why a read fails with such a server.
async fn refusal(answer: fn(&mut TcpStream) -> io::Result<()>) -> String {
    let port = misanswered::start(move |stream| greet(stream).and_then(|()| answer(stream)));
    let store = opened(&format!("mysql://u:p@127.0.0.1:{port}/db")).await;
    match store.read(&key("key"), WITHIN).await {
        Err(StoreError::Unavailable(why)) => why.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answer_on_which_the_library_panics_is_an_error() {
    // A key that is none, for the password to be encrypted by.
    let why = refusal(|stream| {
        send(
            stream,
            2,
            b"\xfecaching_sha2_password\0saltsaltsaltsaltsalt\0",
        )?;
        take(stream)?;
        send(stream, 4, b"\x01\x04")?;
        take(stream)?;
        send(stream, 6, b"\x01no key")
    });
    let why = why.await;
    assert!(
        why.contains("panicked: valid PEM is mandatory here"),
        "{why}"
    );
    // An answer of 2^63 columns.
    let why = refusal(|stream| {
        send(stream, 2, b"\0\0\0\x02\0\0\0")?;
        take(stream)?;
        send(
            stream,
            1,
            &[&[0xfe][..], &(1_u64 << 63).to_le_bytes()].concat(),
        )
    });
    let why = why.await;
    assert!(why.contains("panicked: capacity overflow"), "{why}");
}

#[tokio::test]
async fn an_answer_of_too_many_rows_is_an_error() {
    let why = refusal(|stream| {
        send(stream, 2, b"\0\0\0\x02\0\0\0")?;
        // What is set in the session, twice, and then what is asked of the server.
        for _ in 0..2 {
            take(stream)?;
            send(stream, 1, b"\0\0\0\x02\0\0\0")?;
        }
        take(stream)?;
        send(stream, 1, b"\x01")?;
        let column = b"\x03def\0\0\0\x01a\0\x0c\x21\0\xff\xff\0\0\xfd\0\0\0\0\0";
        send(stream, 2, column)?;
        // The end of the columns; that of the rows is the same.
        send(stream, 3, b"\xfe\0\0\x02\0")?;
        let row = |number: u32| number.to_le_bytes()[0];
        (4..1_006).try_for_each(|number| send(stream, row(number), b"\x01x"))?;
        send(stream, row(1_006), b"\xfe\0\0\x02\0")
    });
    let why = why.await;
    assert!(why.contains("at most 1000 rows"), "{why}");
}
