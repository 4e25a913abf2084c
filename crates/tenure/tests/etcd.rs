//! The etcd store against private servers: the conformance suite, races
//! between processes, servers that go away or keep silent, users and TLS.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::calls::{
    WITHIN, broken, count_in_processes, held, key, opened, put, shows, store_to_count_in, until,
    write,
};
use crate::common::etcd::Etcd;
use crate::common::ports;
use crate::common::takeovers::{self, Notices};
use crate::common::versions::version;
use tenure::store::conformance::{self, count_of, count_up};
use tenure::store::{Expect, Selector, Sighting, Store};
use tenure::{StoreError, clock};

#[tokio::test]
async fn etcd_conforms() {
    let cluster = Etcd::start(1);
    conformance::all(&opened(&cluster.url()).await, "try/").await;
    // Behind another prefix, and behind none.
    for prefix in ["other%2F", ""] {
        let url = format!("{}?prefix={prefix}", cluster.url());
        conformance::all(&opened(&url).await, "try/").await;
    }
    let keys = cluster.ctl(&["get", "", "--prefix", "--keys-only"]);
    for first in ["tenure/try/", "other/try/", "try/"] {
        assert!(keys.lines().any(|key| key.starts_with(first)), "{first}");
    }
}

#[tokio::test]
async fn a_cluster_of_three_conforms() {
    let cluster = Etcd::start(3);
    conformance::all(&opened(&cluster.url()).await, "try/").await;
}

/// Not a test of its own: what a child process of the race below does.
#[tokio::test]
async fn child_counts() {
    if let Some(store) = store_to_count_in().await {
        count_up(&store, &key("processes/counter"), 25).await;
    }
}

#[tokio::test]
async fn processes_lose_no_update() {
    let cluster = Etcd::start(1);
    count_in_processes(module_path!(), 6, &cluster.url(), &[]);
    let key = key("processes/counter");
    let store = opened(&cluster.url()).await;
    let found = store.read(&key, WITHIN).await.expect("a read");
    assert_eq!(found.register.as_ref().map(count_of), Some(150));
}

#[tokio::test]
async fn the_writes_of_others_are_noticed_at_once() {
    let cluster = Etcd::start(1);
    let (writer, reader) = (opened(&cluster.url()).await, opened(&cluster.url()).await);
    let key = key("noticed");
    let mut watch = reader.watch(Selector::Key(key.clone()));
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    let (mut figures, mut expect) = (Vec::new(), Expect::Absent);
    for number in 0..100u8 {
        let version = put(&writer, &key, expect, &[number]).await;
        let done = clock::boot();
        until(&mut watch, shows(&version)).await;
        figures.push(clock::boot().since(done).as_secs_f64() * 1_000.0);
        expect = Expect::Version(version);
    }
    figures.sort_by(f64::total_cmp);
    let (median, most) = (figures[50], figures[99]);
    println!("etcd: noticed after a median of {median:.2} ms, at most {most:.2} ms, of 100");
    assert!(median < 25.0, "{figures:?}");
}

#[tokio::test]
async fn a_server_that_is_killed_costs_no_more_than_a_connection() {
    let mut cluster = Etcd::start(3);
    let store = opened(&cluster.url()).await;
    let key = key("key");
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    let mut version = put(&store, &key, Expect::Absent, b"before").await;
    cluster.kill(0);
    // The first calls may find the connection broken, or no leader yet; a
    // write among them may be unknown, and is settled by reading.
    let give_up = clock::boot().after(WITHIN);
    loop {
        let change = write(&key, Expect::Version(version.clone()), b"after");
        match store.compare_and_swap(change, Duration::from_secs(2)).await {
            Ok(written) => {
                version = written.version;
                break;
            }
            Err(StoreError::Broken(why)) => panic!("{why}"),
            Err(_) => {}
        }
        assert!(clock::boot() < give_up, "no write in time");
        if let Ok(found) = store.read(&key, Duration::from_secs(2)).await {
            version = found.register.expect("a register").version;
        }
    }
    until(&mut watch, shows(&version)).await;
    // What another process writes is told again too.
    let other = opened(&cluster.url()).await;
    let version = put(&other, &key, Expect::Version(version), b"more").await;
    until(&mut watch, shows(&version)).await;
}

#[tokio::test]
async fn a_server_that_keeps_silent_leaves_a_write_unknown_and_is_left() {
    let cluster = Etcd::start(1);
    let store = opened(&cluster.url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    cluster.pause(0);
    let short = Duration::from_millis(200);
    let change = write(&key, Expect::Version(version), b"after");
    // On a busy machine the time may be up before it is sent, which is known.
    let give_up = clock::boot().after(WITHIN);
    let late = loop {
        let late = store.compare_and_swap(change.clone(), short).await;
        if !matches!(late, Err(StoreError::Unavailable(_))) || clock::boot() > give_up {
            break late;
        }
    };
    assert!(matches!(late, Err(StoreError::Unknown(_))), "{late:?}");
    // Nothing is sent any more where no connection opens.
    let read = store.read(&key, short).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    cluster.resume(0);
    // The write that was sent once happened at most once.
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
async fn a_stopped_cluster_is_unavailable_and_certainly_did_nothing() {
    let mut cluster = Etcd::start(1);
    let store = opened(&cluster.url()).await;
    cluster.kill(0);
    let key = key("key");
    let refused = store
        .compare_and_swap(write(&key, Expect::Absent, b"x"), WITHIN)
        .await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    cluster.restart(0);
    put(&store, &key, Expect::Absent, b"x").await;
}

/// Asks for users, and lets one have what the store needs.
fn let_user_in(cluster: &Etcd) {
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "web:open sesame"],
        &["role", "add", "elects"],
        &[
            "role",
            "grant-permission",
            "elects",
            "readwrite",
            "tenure/",
            "--prefix",
        ],
        &["user", "grant-role", "web", "elects"],
        &["auth", "enable"],
    ] {
        cluster.ctl(command);
    }
}

#[tokio::test]
async fn a_user_needs_a_password_and_a_role() {
    let cluster = Etcd::start(1);
    let_user_in(&cluster);
    let with = |user: &str| cluster.url().replacen("//", &format!("//{user}@"), 1);
    let store = opened(&with("web:open%20sesame")).await;
    let key = key("key");
    put(&store, &key, Expect::Absent, b"x").await;
    assert!(!store.to_string().contains("sesame"), "{store}");
    let elsewhere = format!("{}?prefix=other/", with("web:open%20sesame"));
    for (url, expected) in [
        (with("web:wrong"), "password"),
        (cluster.url(), "user"),
        (elsewhere, "role"),
    ] {
        let store = opened(&url).await;
        let read = store.read(&key, WITHIN).await;
        let Err(StoreError::Broken(why)) = &read else {
            panic!("{url}: {read:?}");
        };
        assert!(why.to_string().contains(expected), "{url}: {why}");
    }
}

#[tokio::test]
async fn tls_is_spoken_where_it_is_asked_for() {
    let cluster = Etcd::start_encrypted();
    let key = key("key");
    let url = format!("{}?ca={}", cluster.url(), cluster.certificate().display());
    let store = opened(&url).await;
    let version = put(&store, &key, Expect::Absent, b"secret").await;
    let found = store.read(&key, WITHIN).await.expect("a read").register;
    assert_eq!(found.map(|held| held.version), Some(version));
    // A certificate of nobody we know, and a line without TLS.
    for url in [format!("{}?tls=on", cluster.url()), cluster.url()] {
        let refused = opened(&url).await.read(&key, WITHIN).await;
        assert!(
            matches!(refused, Err(StoreError::Unavailable(_))),
            "{refused:?}"
        );
    }
}

/// A listener that takes connections and says nothing.
fn mute() -> std::net::TcpListener {
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

#[tokio::test]
async fn the_server_after_a_mute_one_is_reached_by_impatient_calls() {
    let cluster = Etcd::start(1);
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        cluster.ctl(command);
    }
    let mute = mute();
    let mute = mute.local_addr().expect("bound");
    let url = cluster
        .url()
        .replacen("//", &format!("//root:secret@{mute},"), 1);
    let store = opened(&url).await;
    let key = key("key");
    let give_up = clock::boot().after(Duration::from_secs(10));
    loop {
        match store.read(&key, Duration::from_millis(200)).await {
            Ok(_) => break,
            Err(StoreError::Unavailable(why)) => {
                let why = why.to_string();
                assert!(why.contains(&mute.to_string()), "{why}");
            }
            Err(other) => panic!("{other}"),
        }
        assert!(clock::boot() < give_up, "the second was not reached");
    }
}

/// The URL of all servers of these clusters.
fn url_of(clusters: &[&Etcd]) -> String {
    let hosts = clusters.iter().map(|cluster| cluster.url());
    let hosts: Vec<_> = hosts.map(|url| url.replacen("etcd://", "", 1)).collect();
    format!("etcd://{}", hosts.join(","))
}

/// Expects that a URL of both is refused, whichever is first, and returns why.
async fn refused(one: &Etcd, other: &Etcd) -> Vec<String> {
    let mut reasons = Vec::new();
    for clusters in [[one, other], [other, one]] {
        let store = opened(&url_of(&clusters)).await;
        let written = store
            .compare_and_swap(write(&key("key"), Expect::Absent, b"x"), WITHIN)
            .await;
        let Err(StoreError::Broken(why)) = &written else {
            panic!("{written:?}");
        };
        let why = why.to_string();
        assert!(why.contains("expected servers of one cluster"), "{why}");
        reasons.push(why);
    }
    reasons
}

fn expect_empty(cluster: &Etcd) {
    assert_eq!(cluster.ctl(&["get", "", "--prefix", "--keys-only"]), "");
}

/// Leases that were granted end by themselves.
fn expect_no_lease(cluster: &Etcd) {
    let give_up = clock::boot().after(WITHIN);
    while cluster.ctl(&["lease", "list"]) != "found 0 leases" {
        assert!(clock::boot() < give_up, "a lease stays");
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

#[tokio::test]
async fn servers_of_two_clusters_are_no_store() {
    let (one, other) = (Etcd::start(1), Etcd::start(1));
    refused(&one, &other).await;
    expect_empty(&one);
    expect_empty(&other);
}

/// So are those of two servers that were both started with etcd's defaults.
#[tokio::test]
async fn servers_of_two_clusters_with_equal_ids_are_no_store() {
    let one = Etcd::start(1);
    let twin = one.twin();
    for why in refused(&one, &twin).await {
        assert!(why.contains("both say that they are member"), "{why}");
    }
    for cluster in [&one, &twin] {
        expect_empty(cluster);
        expect_no_lease(cluster);
    }
}

/// It has the cluster's id still, and an id of its own; the others go on without it.
#[tokio::test]
async fn a_member_that_was_begun_anew_by_force_is_of_another_cluster() {
    let mut cluster = Etcd::start(3);
    let url = cluster.url();
    put(&opened(&url).await, &key("key"), Expect::Absent, b"x").await;
    cluster.force_new_cluster(0);
    let [forced, other, third] = [0, 1, 2].map(|at| cluster.host(at));
    // They have a leader again.
    let others = opened(&format!("etcd://{other},{third}")).await;
    put(&others, &key("others"), Expect::Absent, b"x").await;
    for two in [[&forced, &other], [&other, &forced]] {
        let why = broken(&format!("etcd://{},{}", two[0], two[1])).await;
        assert!(why.contains("say that they are of one cluster"), "{why}");
    }
    // Of three most are of the other one.
    let store = opened(&url).await;
    let before = held(&store, &key("key")).await.expect("it");
    put(&store, &key("key"), Expect::Version(before.version), b"y").await;
    let forced = opened(&format!("etcd://{forced}")).await;
    let still = held(&forced, &key("key")).await;
    assert!(still.is_none_or(|it| &*it.value == b"x"), "it is apart");
}

#[tokio::test]
async fn a_copied_data_directory_is_another_cluster() {
    let mut one = Etcd::start(1);
    put(
        &opened(&one.url()).await,
        &key("before"),
        Expect::Absent,
        b"x",
    )
    .await;
    let copy = one.copy();
    refused(&one, &copy).await;
    for cluster in [&one, &copy] {
        let keys = cluster.ctl(&["get", "", "--prefix", "--keys-only"]);
        assert_eq!(keys, "tenure/before");
    }
}

/// A server that was away when another candidate began is compared when it is back.
#[tokio::test]
async fn a_server_with_equal_ids_that_comes_back_is_refused_to_a_newcomer() {
    let mut one = Etcd::start(1);
    let twin = one.twin();
    one.kill(0);
    let first = opened(&url_of(&[&one, &twin])).await;
    put(&first, &key("before"), Expect::Absent, b"x").await;
    one.restart(0);
    refused(&one, &twin).await;
    expect_empty(&one);
}

/// A process that could never compare two servers that say they are the same member does
/// not go from one to the other.
#[tokio::test]
async fn a_server_with_equal_ids_does_not_succeed_one_that_is_away() {
    let mut one = Etcd::start(1);
    let mut twin = one.twin();
    twin.kill(0);
    let store = opened(&url_of(&[&one, &twin])).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    twin.restart(0);
    one.kill(0);
    let why = refused_in_time(&store).await;
    assert!(
        why.contains("which was used before, does not answer"),
        "{why}"
    );
    expect_empty(&twin);
}

/// A server may have two names in a URL, such as a load balancer's beside its own, with a
/// user or without one. Which server of the cluster leads makes no difference.
#[tokio::test]
async fn servers_under_two_names_are_used() {
    for (servers, user) in [(1, ""), (3, ""), (1, "web:open%20sesame@")] {
        let cluster = Etcd::start(servers);
        if !user.is_empty() {
            let_user_in(&cluster);
        }
        let hosts = cluster.url().replacen("etcd://", "", 1);
        let names = hosts.replace("127.0.0.1", "localhost");
        for round in 0..5 {
            let store = opened(&format!("etcd://{user}{hosts},{names}")).await;
            put(&store, &key(&format!("key{round}")), Expect::Absent, b"x").await;
        }
        if user.is_empty() {
            expect_no_lease(&cluster);
        }
    }
}

/// One server that was emptied and begun by itself keeps no candidate from the others.
#[tokio::test]
async fn a_server_of_another_cluster_than_most_is_not_used() {
    let (emptied, cluster) = (Etcd::start(1), Etcd::start(2));
    let store = opened(&url_of(&[&emptied, &cluster])).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    assert_eq!(emptied.ctl(&["get", "", "--prefix", "--keys-only"]), "");
    let found = opened(&cluster.url()).await.read(&key("key"), WITHIN).await;
    assert!(found.expect("a read").register.is_some());
}

/// Writes until the store refuses its servers, and returns why.
async fn refused_in_time(store: &Arc<dyn Store>) -> String {
    let give_up = clock::boot().after(WITHIN);
    loop {
        let change = write(&key("key"), Expect::Absent, b"y");
        match store.compare_and_swap(change, WITHIN).await {
            // The one that is away may come back, so this may pass.
            Err(StoreError::Broken(why) | StoreError::Unavailable(why))
                if why.to_string().contains("expected servers of one cluster") =>
            {
                return why.to_string();
            }
            // The connection broke, or the call waits for the first one.
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => {}
            done => panic!("{done:?}"),
        }
        assert!(clock::boot() < give_up, "it is never refused");
    }
}

/// The cluster that a process has used is cut off from it, and the other server is not
/// taken for what the cluster has become.
#[tokio::test]
async fn a_server_of_another_cluster_does_not_succeed_one_that_is_away() {
    let (mut one, mut other) = (Etcd::start(1), Etcd::start(1));
    let key = key("key");
    other.kill(0);
    let store = opened(&url_of(&[&one, &other])).await;
    put(&store, &key, Expect::Absent, b"x").await;
    other.restart(0);
    one.kill(0);
    let why = refused_in_time(&store).await;
    assert!(why.contains("expected servers of one cluster"), "{why}");
    expect_empty(&other);
}

/// Servers that were restored elsewhere, or begun anew, are another cluster to etcd.
#[tokio::test]
async fn a_cluster_that_was_begun_anew_is_taken_by_a_process_that_runs() {
    for servers in [1, 3] {
        let mut cluster = Etcd::start(servers);
        let store = opened(&cluster.url()).await;
        let key = key("key");
        let version = put(&store, &key, Expect::Absent, b"x").await;
        let mut watch = store.watch(Selector::Key(key.clone()));
        until(&mut watch, shows(&version)).await;
        cluster.begin_anew();
        until(&mut watch, |seen| matches!(seen, Sighting::State(_, None))).await;
        put(&store, &key, Expect::Absent, b"y").await;
    }
}

#[tokio::test]
async fn a_leader_is_elected_and_another_takes_over_when_it_resigns() {
    let cluster = Etcd::start(1);
    let (url, version) = (cluster.url(), version("etcd", &["--version"]));
    let store = format!("etcd {version}");
    takeovers::measure(&store, Notices::ByWatch, || opened(&url)).await;
}
