//! The PostgreSQL store against private servers: hosts that are mute, a server
//! that stops to take writes, replication that does not happen, impatient
//! calls, forged notifications (`hints.rs`), how the table is made
//! (`making.rs`) and which are taken (`tables.rs`), tables whose versions do
//! not rise (`versions.rs`), what others put on the search path
//! (`shadows.rs`), who holds up notifications (`notified.rs`), servers that
//! send more than they may (`bounds.rs`), and which of several primaries is used
//! (`histories.rs`).

#[path = "../common/calls.rs"]
mod calls;
#[path = "../common/misanswered.rs"]
mod misanswered;
#[path = "../common/ports.rs"]
mod ports;
#[path = "../common/postgres.rs"]
mod postgres;
#[path = "../common/stopped.rs"]
mod stopped;

mod batches;
mod bounds;
mod hints;
mod histories;
mod making;
mod notified;
mod shadows;
mod tables;
mod versions;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use calls::{WITHIN, key, opened, put, until, value, write};
use postgres::Postgres;
use tenure::error::QUOTED_MAX;
use tenure::store::{
    Expect, Key, Selector, Sighting, Stamp, Store, Version, Watch, Write, open_existing,
};
use tenure::{StoreError, clock};

/// Waits until a query says `wanted`.
async fn says(server: &Postgres, query: &str, wanted: &str) {
    let give_up = clock::boot().after(WITHIN);
    while server.sql(query) != wanted {
        assert!(clock::boot() < give_up, "never {wanted}: {query}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Has a server take no writes, or take them again.
async fn set_read_only(server: &Postgres, to: &str) {
    server.sql(&format!(
        "ALTER SYSTEM SET default_transaction_read_only = {to}"
    ));
    server.sql("SELECT pg_reload_conf()");
    says(server, "SHOW transaction_read_only", to).await;
}

/// A listener that takes connections and says nothing.
fn mute() -> TcpListener {
    let listener = ports::listener();
    let accepts = listener.try_clone().expect("a handle");
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok(taken) = accepts.accept() {
            held.push(taken);
        }
    });
    listener
}

/// A listener that answers each connection with an error of a mebibyte: it shuts down.
fn wordy() -> TcpListener {
    let listener = ports::listener();
    let accepts = listener.try_clone().expect("a handle");
    std::thread::spawn(move || {
        let mut said = b"SFATAL\0VFATAL\0C57P03\0M".to_vec();
        said.extend(vec![b'x'; 1 << 19]);
        said.extend(b"\0Hwait\0\0");
        let length = u32::try_from(said.len() + 4).expect("it fits");
        while let Ok((mut taken, _)) = accepts.accept() {
            // The client is heard out, or the connection would be reset under the answer.
            let answer = [&b"E"[..], &length.to_be_bytes(), &said].concat();
            let _ = taken.read(&mut [0; 1_024]);
            let _ = taken.write_all(&answer);
            let _ = std::io::copy(&mut taken, &mut std::io::sink());
        }
    });
    listener
}

/// The URL of several servers, by their ports.
fn of_ports(server: &Postgres, ports: &[u16]) -> String {
    let hosts: Vec<_> = ports.iter().map(|it| format!("127.0.0.1:{it}")).collect();
    let own = format!("127.0.0.1:{}", server.port());
    server.url().replace(&own, &hosts.join(","))
}

#[tokio::test]
async fn the_server_after_a_mute_one_is_reached_by_impatient_calls() {
    let server = Postgres::start();
    let mute = mute();
    let mute = mute.local_addr().expect("bound").port();
    let store = opened(&of_ports(&server, &[mute, server.port()])).await;
    let give_up = clock::boot().after(Duration::from_secs(10));
    let short = Duration::from_millis(200);
    loop {
        match store.read(&key("key"), short).await {
            Ok(_) => break,
            Err(StoreError::Unavailable(why)) => {
                let why = why.to_string();
                assert!(why.contains(&format!("127.0.0.1:{mute}")), "{why}");
            }
            Err(other) => panic!("{other}"),
        }
        assert!(clock::boot() < give_up, "the second was not reached");
    }
}

#[tokio::test]
async fn when_no_host_can_be_used_each_is_named_with_its_reason() {
    let server = Postgres::start();
    let held = ports::listener();
    let closed = held.local_addr().expect("bound").port();
    drop(held);
    let url = server.url_with_wrong_password();
    let own = format!("127.0.0.1:{}", server.port());
    let url = url.replace(&own, &format!("127.0.0.1:{closed},{own}"));
    let refused = opened(&url).await.read(&key("key"), WITHIN).await;
    // The one that refuses the connection may come back.
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    let why = why.to_string();
    for words in [
        &format!("127.0.0.1:{closed}: "),
        "refused",
        &own,
        "password",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
}

#[tokio::test]
async fn a_long_error_of_a_server_is_told_by_its_beginning() {
    let server = wordy();
    let port = server.local_addr().expect("bound").port();
    let url = format!("postgres://tenure@127.0.0.1:{port}/db?sslmode=disable");
    let short = Duration::from_secs(2);
    let refused = opened(&url).await.read(&key("key"), short).await;
    let why = refused.expect_err("it says no").to_string();
    assert!(why.contains("xxx … (SQLSTATE 57P03); wait"), "{why}");
    assert!(why.len() < 2 * QUOTED_MAX, "{} bytes", why.len());
}

#[tokio::test]
async fn a_server_that_stops_to_take_writes_is_left_for_the_next() {
    let (first, second) = (Postgres::start(), Postgres::start());
    // Both have the table; registers are their own.
    opened(&second.url())
        .await
        .read(&key("key"), WITHIN)
        .await
        .expect("a table");
    // Of two databases that take writes neither would be used.
    set_read_only(&second, "on").await;
    let store = opened(&of_ports(&first, &[first.port(), second.port()])).await;
    let version = put(&store, &key("key"), Expect::Absent, b"x").await;
    set_read_only(&first, "on").await;
    set_read_only(&second, "off").await;
    // The session hears of it before its next statement, or after.
    let give_up = clock::boot().after(WITHIN);
    loop {
        match store.read(&key("key"), WITHIN).await {
            // Another server, with registers of its own.
            Ok(reading) if reading.register.is_none() => break,
            Ok(_) => {}
            Err(StoreError::Unavailable(why)) => {
                assert!(why.to_string().contains("to take writes"), "{why}");
            }
            Err(other) => panic!("{other}"),
        }
        assert!(clock::boot() < give_up, "it was kept");
    }
    // A write finds out as well.
    set_read_only(&second, "on").await;
    set_read_only(&first, "off").await;
    let give_up = clock::boot().after(WITHIN);
    let change = write(&key("key"), Expect::Version(version), b"y");
    loop {
        match store.compare_and_swap(change.clone(), WITHIN).await {
            Ok(_) => break,
            Err(StoreError::Unavailable(_) | StoreError::Conflict) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(clock::boot() < give_up, "it was kept");
    }
}

#[tokio::test]
async fn a_commit_whose_replication_was_cancelled_is_unknown_and_not_read_either() {
    let server = Postgres::start();
    let store = opened(&server.url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.sql("SELECT pg_reload_conf()");
    says(&server, "SHOW synchronous_standby_names", "nobody").await;
    let change = write(&key, Expect::Version(version), b"after");
    let writer = Arc::clone(&store);
    let writing = tokio::spawn(async move { writer.compare_and_swap(change, WITHIN).await });
    let waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    says(&server, &format!("SELECT count(*) {waits}"), "1").await;
    server.sql(&format!("SELECT pg_cancel_backend(pid) {waits}"));
    let written = writing.await.expect("no panic");
    let Err(StoreError::Unknown(why)) = written else {
        panic!("{written:?}");
    };
    assert!(
        why.to_string().contains("not have been replicated"),
        "{why}"
    );
    // It is there, on one disk; a reader would take it for settled.
    says(
        &server,
        "SELECT encode(value, 'escape') FROM tenure_register",
        "after",
    )
    .await;
    let read = store.read(&key, Duration::from_secs(1)).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    // Nor when the wait of the reading is cancelled.
    let reader = Arc::clone(&store);
    let again = key.clone();
    let reading = tokio::spawn(async move { reader.read(&again, WITHIN).await });
    let waiting = || server.sql(&format!("SELECT count(*) {waits}"));
    while !reading.is_finished() {
        if waiting() != "0" {
            server.sql(&format!("SELECT pg_cancel_backend(pid) {waits}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let read = reading.await.expect("no panic");
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    // Until nobody waits for a standby any more.
    server.sql("ALTER SYSTEM RESET synchronous_standby_names");
    server.sql("SELECT pg_reload_conf()");
    assert_eq!(value(&store, &key).await.as_deref(), Some(&b"after"[..]));
}

/// A user, a database or a URL that asks for errors alone hears of a cancelled
/// wait all the same: of a write, a deletion, and a reading that settles one.
#[tokio::test]
async fn no_setting_hides_a_cancelled_replication() {
    let server = Postgres::start();
    let (user, other) = (key("user"), key("url"));
    let version = put(&opened(&server.url()).await, &user, Expect::Absent, b"x").await;
    let second = put(&opened(&server.url()).await, &other, Expect::Absent, b"x").await;
    server.sql("ALTER ROLE tenure SET client_min_messages = error");
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.sql("SELECT pg_reload_conf()");
    says(&server, "SHOW synchronous_standby_names", "nobody").await;
    let by_role = opened(&server.url()).await;
    let change = write(&user, Expect::Version(version), b"y");
    let writer = Arc::clone(&by_role);
    let written = cancelled(&server, async move {
        writer.compare_and_swap(change, WITHIN).await.map(drop)
    });
    let written = written.await;
    assert!(
        matches!(written, Err(StoreError::Unknown(_))),
        "{written:?}"
    );
    let read = cancelled(&server, async move {
        by_role.read(&user, WITHIN).await.map(drop)
    });
    let read = read.await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    // It must not wait itself.
    let reset = "ALTER ROLE tenure RESET client_min_messages";
    server.sql(&format!("SET synchronous_commit = local; {reset}"));
    let url = format!("{}?options=-c%20client_min_messages%3Derror", server.url());
    let by_url = opened(&url).await;
    let deleted = cancelled(&server, async move {
        by_url.delete(&other, &second, WITHIN).await
    });
    let deleted = deleted.await;
    assert!(
        matches!(deleted, Err(StoreError::Unknown(_))),
        "{deleted:?}"
    );
}

/// Makes a call, and cancels its wait for a standby.
async fn cancelled(
    server: &Postgres,
    call: impl Future<Output = Result<(), StoreError>> + Send + 'static,
) -> Result<(), StoreError> {
    let calling = tokio::spawn(call);
    let waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let give_up = clock::boot().after(WITHIN);
    while !calling.is_finished() {
        server.sql(&format!("SELECT pg_cancel_backend(pid) {waits}"));
        assert!(clock::boot() < give_up, "it never ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    calling.await.expect("no panic")
}

#[tokio::test]
async fn an_impatient_call_costs_no_other_its_answer() {
    let server = Postgres::start();
    let store = opened(&server.url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    // Holds the row for a while, as a rival does that waits for its disk.
    let holding = server.hold("LOCK TABLE tenure_register", Duration::from_millis(900));
    let held = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted";
    says(&server, held, "1").await;
    let change = write(&key, Expect::Version(version), b"after");
    let writer = Arc::clone(&store);
    let writing = tokio::spawn(async move { writer.compare_and_swap(change, WITHIN).await });
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    says(&server, waits, "1").await;
    let late = store.read(&key, Duration::from_millis(50)).await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
    writing
        .await
        .expect("no panic")
        .expect("the write was done");
    holding.wait();
    assert_eq!(value(&store, &key).await.as_deref(), Some(&b"after"[..]));
}

#[tokio::test]
async fn a_connection_on_which_nothing_comes_is_given_up() {
    let server = Postgres::start();
    let store = opened(&server.url()).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    server.pause();
    let asked = clock::boot();
    let late = store.read(&key("key"), WITHIN).await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
    let took = clock::boot().since(asked);
    assert!(took < WITHIN / 2, "it was kept for {took:?}");
    assert!(took > Duration::from_secs(2), "it was not waited for");
    server.resume();
    assert!(value(&store, &key("key")).await.is_some());
}

/// A setting of a user or a database must not give it other keys than the rest.
#[tokio::test]
async fn a_connection_that_reads_backslashes_in_strings_has_the_same_registers() {
    let server = Postgres::start();
    let key = Key::new("elections/payroll").expect("a key");
    let plain = opened(&server.url()).await;
    put(&plain, &key, Expect::Absent, b"\\x00 \xff").await;
    let url = format!(
        "{}?options=-c%20standard_conforming_strings%3Doff",
        server.url()
    );
    let odd = opened(&url).await;
    assert_eq!(value(&odd, &key).await.as_deref(), Some(&b"\\x00 \xff"[..]));
    let other = Key::new("elections/other").expect("a key");
    put(&odd, &other, Expect::Absent, b"\xfe").await;
    assert_eq!(value(&plain, &other).await.as_deref(), Some(&b"\xfe"[..]));
}

/// What stands in a row by hand costs neither the others of its page nor the
/// row itself.
#[tokio::test]
async fn a_stamp_that_is_no_number_counts_as_none() {
    let server = Postgres::start();
    let store = opened(&server.url()).await;
    let sound = key("a/sound");
    put(&store, &sound, Expect::Absent, b"x").await;
    let odd = ["infinity", "-infinity", "294276-12-31", "1901-01-01"];
    let mut watch = store.watch(Selector::Prefix("a/".into()));
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    for (at, stamp) in odd.into_iter().enumerate() {
        let key = key(&format!("a/{at}"));
        let version = put(&store, &key, Expect::Absent, b"x").await;
        server.sql(&format!(
            "UPDATE tenure_register SET stamp = '{stamp}' WHERE key = '{key}'"
        ));
        // One that keeps the stamp is told of as well.
        let keeps = Write {
            stamp: Stamp::Keep,
            ..write(&key, Expect::Version(version), b"y")
        };
        store.compare_and_swap(keeps, WITHIN).await.expect("kept");
        let told = |seen: &Sighting| match seen {
            Sighting::State(of, Some(held)) => *of == key && *held.value == *b"y",
            _ => false,
        };
        until(&mut watch, told).await;
        let reading = store.read(&key, WITHIN).await.expect("a read");
        assert_eq!(reading.register.expect("it is there").stamp, None);
    }
    let page = store.list("a/", None, WITHIN).await.expect("a page");
    let stamped = page.registers.iter().filter(|(_, it)| it.stamp.is_some());
    let keys: Vec<_> = stamped.map(|(key, _)| key.as_str()).collect();
    assert_eq!((page.registers.len(), keys), (5, vec!["a/sound"]));
    let fresh = opened(&server.url()).await;
    let mut watch = fresh.watch(Selector::Prefix("a/".into()));
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    // The next renewal mends it.
    let held = store.read(&key("a/0"), WITHIN).await.expect("a read");
    let version = held.register.expect("it is there").version;
    put(&store, &key("a/0"), Expect::Version(version), b"z").await;
    let reading = store.read(&key("a/0"), WITHIN).await.expect("a read");
    assert!(reading.register.expect("it is there").stamp.is_some());
}
