//! Every store against the conformance suite, races between processes and
//! between handles, how soon changes are noticed, and bad input.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::calls::test_name;
use crate::common::postgres;
use crate::common::takeovers::{self, Notices};
use tenure::store::conformance::{self, count_of, count_up};
use tenure::store::{Expect, Key, Memory, Selector, Sighting, Sqlite, Stamp, Store, Write, open};
use tenure::{StoreError, clock};

const WITHIN: Duration = Duration::from_secs(20);
const COUNTER: &str = "TENURE_TEST_COUNTER";

fn sqlite_url(directory: &tempfile::TempDir) -> String {
    format!("sqlite://{}", directory.path().join("tenure.db").display())
}

/// A directory in memory, where there is one: how slow a disk is is nothing
/// that is tried by racing or measured here.
fn memory_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    directory.expect("a directory")
}

async fn opened(url: &str) -> Arc<dyn Store> {
    open(url).await.expect("a store")
}

#[tokio::test]
async fn postgres_conforms() {
    let server = postgres::Postgres::start();
    conformance::all(&opened(&server.url()).await, "try/").await;
    // By polling as well, and in a table of another name.
    let polled = format!("{}?watch=poll&poll=20ms&table=others", server.url());
    conformance::all(&opened(&polled).await, "try/").await;
    let log = server.sql("SELECT count(*) FROM tenure_register");
    assert_ne!(log, "0");
}

/// Its calls end in time while the server hangs, and everything goes on after a
/// restart.
#[tokio::test]
async fn postgres_conforms_when_it_hangs_and_after_a_restart() {
    let mut server = postgres::Postgres::start();
    let store = opened(&server.url()).await;
    let (hang, go_on) = (|| server.pause(), || server.resume());
    conformance::keeps_its_time_while_the_server_hangs(&store, "hang/", hang, go_on).await;
    let restart = async || server.crash();
    conformance::goes_on_after_a_restart(&store, "restart/", restart).await;
    let handles = [
        store,
        opened(&server.url()).await,
        opened(&server.url()).await,
    ];
    conformance::shares_registers_between_handles(&handles, "handles/").await;
}

#[tokio::test]
async fn handles_of_one_sqlite_file_share_its_registers() {
    let directory = memory_directory();
    let url = sqlite_url(&directory);
    let handles = [opened(&url).await, opened(&url).await, opened(&url).await];
    conformance::shares_registers_between_handles(&handles, "handles/").await;
}

#[tokio::test]
async fn postgres_conforms_behind_a_transaction_pooling_proxy() {
    let server = postgres::Postgres::start();
    let bouncer = postgres::Bouncer::start(&server);
    conformance::all(&opened(&bouncer.url()).await, "try/").await;
}

/// Not a test of its own: what a child process of the races below does.
#[tokio::test]
async fn child_counts() {
    let Ok(url) = std::env::var(COUNTER) else {
        return;
    };
    let key = Key::new("processes/counter").expect("a key");
    count_up(&opened(&url).await, &key, 25).await;
}

/// Six processes count in one register by compare-and-swap.
async fn race_between_processes(url: &str) {
    let program = std::env::current_exe().expect("this program");
    let mut children: Vec<_> = (0..6)
        .map(|_| {
            let mut child = Command::new(&program);
            child
                .args([
                    "--exact",
                    &test_name(module_path!(), "child_counts"),
                    "--nocapture",
                ])
                .env(COUNTER, url);
            child
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("a child")
        })
        .collect();
    for child in &mut children {
        assert!(child.wait().expect("it ends").success());
    }
    let key = Key::new("processes/counter").expect("a key");
    let found = opened(url).await.read(&key, WITHIN).await.expect("a read");
    assert_eq!(found.register.as_ref().map(count_of), Some(150));
}

#[tokio::test]
async fn processes_lose_no_update_on_sqlite() {
    let directory = memory_directory();
    race_between_processes(&sqlite_url(&directory)).await;
}

/// The first process makes the file; SQLite refuses those that come at the same
/// time at once, whatever they would wait.
#[test]
fn all_who_meet_on_a_new_file_open_it() {
    const AT_ONCE: usize = 8;
    for _ in 0..20 {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tenure.db");
        let line = std::sync::Barrier::new(AT_ONCE);
        let one = || {
            line.wait();
            Sqlite::open(&path).expect("a store");
        };
        std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(one))));
    }
}

#[tokio::test]
async fn processes_lose_no_update_on_postgres() {
    race_between_processes(&postgres::Postgres::start().url()).await;
}

/// How long after a write by one handle another one tells of it.
async fn notice(url: &str) -> Vec<f64> {
    let (writer, reader) = (opened(url).await, opened(url).await);
    let key = Key::new("noticed").expect("a key");
    let mut watch = reader.watch(Selector::Key(key.clone()));
    while watch.next().await != Sighting::Live {}
    let mut figures = Vec::new();
    let mut expect = Expect::Absent;
    for number in 0..100u8 {
        let value = [number].as_slice().into();
        let write = Write {
            key: key.clone(),
            expect,
            value,
            stamp: Stamp::Now,
        };
        let written = writer
            .compare_and_swap(write, WITHIN)
            .await
            .expect("a write");
        let done = clock::boot();
        let shown = |seen: &Sighting| match seen {
            Sighting::State(_, Some(held)) => held.version == written.version,
            _ => false,
        };
        while !shown(&watch.next().await) {}
        figures.push(clock::boot().since(done).as_secs_f64() * 1_000.0);
        expect = Expect::Version(written.version);
    }
    figures.sort_by(f64::total_cmp);
    figures
}

#[tokio::test]
async fn sqlite_notices_the_writes_of_others_within_25_ms() {
    let directory = memory_directory();
    let figures = notice(&sqlite_url(&directory)).await;
    let (median, most) = (figures[50], figures[99]);
    println!("sqlite: noticed after a median of {median:.2} ms, at most {most:.2} ms, of 100");
    assert!(median < 25.0, "{figures:?}");
}

#[tokio::test]
async fn postgres_notices_the_writes_of_others() {
    let figures = notice(&postgres::Postgres::start().url()).await;
    let (median, most) = (figures[50], figures[99]);
    println!("postgres: noticed after a median of {median:.2} ms, at most {most:.2} ms, of 100");
    assert!(median < 25.0, "{figures:?}");
}

/// How many connections to the server this process holds. Those of other
/// tests go to other ports.
fn connections_to(server: &postgres::Postgres) -> usize {
    const ESTABLISHED: &str = "01";
    let port = format!(":{:04X}", server.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("the kernel's table");
    let to_server = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|remote| remote.ends_with(&port))
            && fields.next() == Some(ESTABLISHED)
    };
    table.lines().filter(to_server).count()
}

#[tokio::test]
async fn calls_that_run_out_of_time_leave_no_connections_behind() {
    let server = postgres::Postgres::start();
    let key = Key::new("key").expect("a key");
    server.pause();
    let store = opened(&server.url()).await;
    for _ in 0..12 {
        let late = store.read(&key, Duration::from_millis(30)).await;
        assert!(
            matches!(late, Err(StoreError::Unavailable(_))),
            "a paused server answered: {late:?}"
        );
    }
    // The background thread works in order: after this it has ended whatever
    // the calls gave up.
    let turn = tenure::drive::background().spawn(async {});
    turn.await.expect("the background thread's turn");
    assert!(connections_to(&server) <= 2, "connections are left behind");
    server.resume();
}

#[tokio::test]
async fn a_follower_hears_on_after_a_table_was_made_anew() {
    let server = postgres::Postgres::start();
    let (writer, reader) = (opened(&server.url()).await, opened(&server.url()).await);
    let key = Key::new("key").expect("a key");
    let mut watch = reader.watch(Selector::Key(key.clone()));
    while watch.next().await != Sighting::Live {}
    let mut write = Write {
        key,
        expect: Expect::Absent,
        value: b"before".as_slice().into(),
        stamp: Stamp::Now,
    };
    for _ in 0..3 {
        let written = writer.compare_and_swap(write.clone(), WITHIN).await;
        write.expect = Expect::Version(written.expect("a write").version);
    }
    server.sql("TRUNCATE tenure_register RESTART IDENTITY");
    (write.expect, write.value) = (Expect::Absent, b"after".as_slice().into());
    writer
        .compare_and_swap(write, WITHIN)
        .await
        .expect("a write");
    let anew = |seen: &Sighting| match seen {
        Sighting::State(_, Some(held)) => *held.value == *b"after",
        _ => false,
    };
    let heard = async { while !anew(&watch.next().await) {} };
    let heard = tokio::time::timeout(WITHIN, heard).await;
    heard.expect("to hear of the write");
}

#[tokio::test]
async fn in_memory_another_takes_over_when_a_leader_resigns() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let open = async || Arc::clone(&store);
    takeovers::measure("memory", Notices::ByWatch, open).await;
}

#[tokio::test]
async fn on_sqlite_another_takes_over_when_a_leader_resigns() {
    // On a disk, as it is used.
    let directory = tempfile::tempdir().expect("a directory");
    let url = sqlite_url(&directory);
    takeovers::measure("SQLite", Notices::ByWatch, || opened(&url)).await;
}

#[tokio::test]
async fn on_postgres_another_takes_over_when_a_leader_resigns() {
    let server = postgres::Postgres::start_durable();
    let (url, store) = (server.url(), format!("PostgreSQL {}", server.version()));
    takeovers::measure(&store, Notices::ByWatch, || opened(&url)).await;
}
