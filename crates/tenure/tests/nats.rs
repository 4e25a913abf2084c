//! The NATS store against private servers: the conformance suite, races between
//! processes, servers that go away or keep silent, a cluster that loses the leader of
//! its stream, users, tokens, credentials, TLS, and buckets that are no stores.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::calls::{
    WITHIN, broken, count_in_processes, held, key, median, millis_since, opened, put, shows,
    store_to_count_in, until, write,
};
use crate::common::installed::installed;
use crate::common::nats::{JETSTREAM, Nats};
use crate::common::takeovers::{self, Notices};
use crate::common::versions::version;
use crate::common::{certificates, ports};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tenure::store::conformance::{self, count_of, count_up};
use tenure::store::{Clock, Expect, Key, Selector, Sighting, Store, Version, open, open_existing};
use tenure::{Election, StoreError, clock};
use tokio::task::JoinSet;

#[tokio::test]
async fn nats_conforms() {
    let server = Nats::start();
    let store = opened(&server.url()).await;
    assert_eq!(store.features().clock, Clock::None);
    conformance::all(&store, "try/").await;
    let info = server.api("STREAM.INFO.KV_tenure", &json!({})).await;
    assert_eq!(info["config"]["num_replicas"], 1, "it is alone: {info}");
    assert_eq!(info["config"]["allow_direct"], false);
    // A bucket as another client makes it, with a history and reads from replicas.
    let other = json!({
        "name": "KV_other", "subjects": ["$KV.other.>"], "max_msgs_per_subject": 5,
        "discard": "new", "allow_direct": true, "allow_rollup_hdrs": true, "deny_delete": true,
    });
    let made = server.api("STREAM.CREATE.KV_other", &other).await;
    assert_eq!(made["error"], Value::Null, "{made}");
    let store = opened(&format!("{}/other?poll=20ms", server.url())).await;
    conformance::all(&store, "try/").await;
    // Two buckets of one server are two stores.
    put(&store, &key("elections/one"), Expect::Absent, b"x").await;
    let first = opened(&server.url()).await;
    assert_eq!(held(&first, &key("elections/one")).await, None);
    let subject = json!({ "last_by_subj": "$KV.other.elections.one" });
    let found = server.api("STREAM.MSG.GET.KV_other", &subject).await;
    assert_eq!(found["message"]["data"], "eA==", "{found}");
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
    let server = Nats::start();
    count_in_processes(module_path!(), 6, &server.url(), &[]);
    let store = opened(&server.url()).await;
    let found = held(&store, &key("processes/counter")).await;
    assert_eq!(found.as_ref().map(count_of), Some(150));
}

#[tokio::test]
async fn the_writes_of_others_are_noticed_at_once() {
    let server = Nats::start();
    let (writer, reader) = (opened(&server.url()).await, opened(&server.url()).await);
    let key = key("followed/key");
    let mut by_key = reader.watch(Selector::Key(key.clone()));
    let below = opened(&server.url()).await;
    let mut by_prefix = below.watch(Selector::Prefix("followed/".into()));
    for watch in [&mut by_key, &mut by_prefix] {
        until(watch, |seen| *seen == Sighting::Live).await;
    }
    let (mut figures, mut expect) = (Vec::new(), Expect::Absent);
    for number in 0..100u8 {
        let version = put(&writer, &key, expect, &[number]).await;
        let done = clock::boot();
        until(&mut by_key, shows(&version)).await;
        until(&mut by_prefix, shows(&version)).await;
        figures.push(millis_since(done));
        expect = Expect::Version(version);
    }
    let Expect::Version(version) = expect else {
        panic!("it was written");
    };
    let deleted = writer.delete(&key, &version, WITHIN).await;
    deleted.expect("to delete");
    for watch in [&mut by_key, &mut by_prefix] {
        until(watch, |seen| matches!(seen, Sighting::State(_, None))).await;
    }
    let middle = median(&mut figures);
    let most = figures[99];
    println!("nats: noticed after a median of {middle:.2} ms, at most {most:.2} ms, of 100");
    assert!(middle < 25.0, "{figures:?}");
}

#[tokio::test]
async fn a_server_may_come_later_go_and_come_back_with_what_it_had() {
    let mut server = Nats::prepared(JETSTREAM);
    let store = opened(&server.url()).await;
    let key = key("key");
    let refused = store
        .compare_and_swap(write(&key, Expect::Absent, b"before"), WITHIN)
        .await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("refused"), "{why}");
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, |seen| matches!(seen, Sighting::Down(_))).await;

    server.launch(0);
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    let version = put(&store, &key, Expect::Absent, b"before").await;
    until(&mut watch, shows(&version)).await;

    server.kill(0);
    until(&mut watch, |seen| matches!(seen, Sighting::Down(_))).await;
    let refused = store
        .compare_and_swap(write(&key, Expect::Version(version.clone()), b"x"), WITHIN)
        .await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );

    server.launch(0);
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    assert_eq!(&*held(&store, &key).await.expect("it").value, b"before");
    let version = put(&store, &key, Expect::Version(version), b"after").await;
    until(&mut watch, shows(&version)).await;
    // What another process writes is told again too.
    let other = opened(&server.url()).await;
    let version = put(&other, &key, Expect::Version(version), b"more").await;
    until(&mut watch, shows(&version)).await;
}

#[tokio::test]
async fn a_server_that_keeps_silent_leaves_a_write_unknown_and_is_left() {
    let server = Nats::start();
    let store = opened(&server.url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    server.pause(0);
    let short = Duration::from_millis(200);
    let change = write(&key, Expect::Version(version), b"after");
    let late = store.compare_and_swap(change, short).await;
    assert!(matches!(late, Err(StoreError::Unknown(_))), "{late:?}");
    let read = store.read(&key, short).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    server.resume(0);
    // The write that was sent once happened at most once.
    let mut conflicts = 0;
    loop {
        let found = held(&store, &key).await.expect("a register");
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

#[tokio::test]
async fn the_server_after_a_mute_one_is_reached() {
    let server = Nats::start();
    let mute = mute();
    let mute = mute.local_addr().expect("bound");
    let url = format!("nats://{mute},{}", server.host(0));
    let store = opened(&url).await;
    let began = clock::boot();
    assert_eq!(held(&store, &key("key")).await, None);
    let took = clock::boot().since(began);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Makes the register `key` on a server, and the bucket where it is missing.
async fn put_on(server: &Nats, value: &[u8]) {
    let store = opened(&server.url()).await;
    put(&store, &key("key"), Expect::Absent, value).await;
}

async fn with_register(value: &[u8]) -> Nats {
    let server = Nats::start();
    put_on(&server, value).await;
    server
}

/// Each is alone, and has a bucket of its own.
#[tokio::test]
async fn servers_of_two_buckets_are_no_store() {
    let (first, second) = (with_register(b"x").await, Nats::start());
    let both = format!("nats://{},{}", second.host(0), first.host(0));
    // The one that has it is used, and nothing is made on the other.
    let seen = held(&opened(&both).await, &key("key")).await;
    assert_eq!(seen.as_ref().map(|it| &*it.value), Some(&b"x"[..]));
    let there = open_existing(&second.url()).await.expect("a store");
    let missing = there.read(&key("key"), WITHIN).await;
    assert!(
        matches!(missing, Err(StoreError::Unavailable(_))),
        "{missing:?}"
    );
    put_on(&second, b"y").await;
    let why = broken(&both).await;
    assert!(why.contains("found two buckets"), "{why}");
    // One server under two names has one.
    let other = first.host(0).replace("127.0.0.1", "localhost");
    assert_ne!(other, first.host(0));
    let twice = opened(&format!("nats://{},{other}", first.host(0))).await;
    let held = held(&twice, &key("key")).await;
    assert_eq!(held.as_ref().map(|it| &*it.value), Some(&b"x"[..]));
}

/// Its stream was made at the same moment as that of the other.
#[tokio::test]
async fn a_copy_of_a_server_is_no_second_one_of_it() {
    let mut first = with_register(b"x").await;
    first.kill(0);
    let mut copy = Nats::prepared(JETSTREAM);
    let files = Command::new("cp")
        .arg("-r")
        .arg(first.directory().join("jetstream"))
        .arg(copy.directory())
        .status();
    assert!(files.expect("cp").success());
    first.launch(0);
    copy.launch(0);
    let both = format!("nats://{},{}", copy.host(0), first.host(0));
    let refused = opened(&both).await.read(&key("key"), WITHIN).await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("is a copy of the other"), "{why}");
    copy.kill(0);
    assert!(held(&opened(&both).await, &key("key")).await.is_some());
}

/// Over a link of leaf nodes answers of one come to the other.
#[tokio::test]
async fn a_copy_that_is_a_leaf_node_is_no_second_server() {
    let port = ports::free();
    let mut hub = Nats::start_with(&format!(
        "{JETSTREAM}\nleafnodes {{ listen: \"127.0.0.1:{port}\" }}"
    ));
    put_on(&hub, b"x").await;
    hub.kill(0);
    let mut leaf = Nats::prepared(&format!(
        "{JETSTREAM}\nserver_name: leaf\n\
         leafnodes {{ remotes: [{{ url: \"nats-leaf://127.0.0.1:{port}\" }}] }}"
    ));
    let files = Command::new("cp")
        .arg("-r")
        .arg(hub.directory().join("jetstream"))
        .arg(leaf.directory())
        .status();
    assert!(files.expect("cp").success());
    hub.launch(0);
    leaf.launch(0);
    leaf.await_log("Leafnode connection created");
    for [one, other] in [[&hub, &leaf], [&leaf, &hub]] {
        let both = format!("nats://{},{}", one.host(0), other.host(0));
        let refused = opened(&both).await.read(&key("key"), WITHIN).await;
        let Err(StoreError::Unavailable(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.to_string().contains("is a copy of the other"), "{why}");
    }
}

/// Each process finds no bucket anywhere, and makes one on the first server of its URL.
#[tokio::test]
async fn of_two_servers_without_a_bucket_one_at_most_takes_writes() {
    let (first, second) = (Nats::start(), Nats::start());
    let hosts = [first.host(0), second.host(0)];
    let urls = [[0, 1], [1, 0]].map(|[a, b]| format!("nats://{},{}", hosts[a], hosts[b]));
    let make = async |url: &str| {
        let change = write(&key("key"), Expect::Absent, b"x");
        opened(url).await.compare_and_swap(change, WITHIN).await
    };
    let made = tokio::join!(make(&urls[0]), make(&urls[1]));
    assert!(made.0.is_err() || made.1.is_err(), "{made:?}");
}

/// Passes connections on to `host`. Its address, and each connection once the server has
/// let the client in, which it says by a `PONG`.
fn proxy(host: String) -> (String, Receiver<TcpStream>) {
    let listener = ports::listener();
    let address = listener.local_addr().expect("an address").to_string();
    let (say, let_in) = channel();
    let pass = move |mut from: TcpStream, mut to: TcpStream| {
        let say = say.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 64 * 1024];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
                if bytes[..count].windows(4).any(|word| word == b"PONG") {
                    let _ = say.send(to.try_clone().expect("a handle"));
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
    };
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(&host).expect("a server");
            let again = |it: &TcpStream| it.try_clone().expect("a handle");
            pass(again(&client), again(&server));
            pass(server, client);
        }
    });
    (address, let_in)
}

/// The client library connects again by itself, and looks at nothing then.
#[tokio::test]
async fn a_connection_that_broke_is_not_used_again() {
    let first = with_register(b"x").await;
    let mut second = Nats::prepared(JETSTREAM);
    let (near, let_in) = proxy(first.host(0));
    let store = opened(&format!("nats://{near},{}", second.host(0))).await;
    assert!(held(&store, &key("key")).await.is_some());
    second.launch(0);
    put_on(&second, b"y").await;
    let connection = let_in.recv().expect("a connection");
    connection.shutdown(Shutdown::Both).expect("it is up");
    let_in.recv_timeout(WITHIN).expect("another one");
    let refused = store.read(&key("key"), WITHIN).await;
    let Err(StoreError::Broken(why)) = refused else {
        panic!("{refused:?}");
    };
    let why = why.to_string();
    assert!(why.contains("found two buckets"), "{why}");
}

/// Whatever becomes of the register, and of the mark that a deletion leaves.
#[tokio::test]
async fn no_version_is_given_twice() {
    let server = Nats::start();
    let store = opened(&server.url()).await;
    let key = key("one");
    let purge = json!({ "filter": "$KV.tenure.one" });
    let mut last = None::<Version>;
    for round in 0..4 {
        let first = put(&store, &key, Expect::Absent, b"x").await;
        assert!(last.is_none_or(|last| last < first), "round {round}");
        let second = put(&store, &key, Expect::Version(first.clone()), b"x").await;
        assert!(first < second, "they grow");
        store
            .delete(&key, &second, WITHIN)
            .await
            .expect("to delete");
        assert_eq!(held(&store, &key).await, None);
        let again = store.delete(&key, &second, WITHIN).await;
        assert!(matches!(again, Err(StoreError::Conflict)), "{again:?}");
        if round % 2 == 1 {
            // A person takes the marks away.
            let purged = server.api("STREAM.PURGE.KV_tenure", &purge).await;
            assert_eq!(purged["success"], true, "{purged}");
        }
        last = Some(second);
    }
    // A write that expects a version from before changes nothing.
    put(&store, &key, Expect::Absent, b"new").await;
    let stale = write(&key, Expect::Version(last.expect("a version")), b"stale");
    let refused = store.compare_and_swap(stale, WITHIN).await;
    assert!(matches!(refused, Err(StoreError::Conflict)), "{refused:?}");
}

#[tokio::test]
async fn what_others_write_is_read_as_it_is_and_troubles_no_other() {
    let server = Nats::start();
    let store = opened(&server.url()).await;
    let good = put(&store, &key("elections/good"), Expect::Absent, b"x").await;
    let gone = key("elections/gone");
    put(&store, &gone, Expect::Absent, b"y").await;
    let client = server.client().await;
    for (subject, operation) in [
        ("$KV.tenure.elections.hand", None),
        ("$KV.tenure.elections.=zz", None),
        ("$KV.tenure.elections.a b", None),
        ("$KV.tenure.elections.gone", Some("PURGE")),
    ] {
        let mut headers = async_nats::HeaderMap::new();
        if let Some(operation) = operation {
            headers.insert("KV-Operation", operation);
        }
        let subject = subject.replace(' ', "\u{2003}");
        let stored = client
            .request_with_headers(subject, headers, "\0\u{1}garbage".into())
            .await;
        stored.expect("it is stored");
    }
    let page = store
        .list("elections/", None, WITHIN)
        .await
        .expect("a page");
    let names: Vec<_> = page.registers.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(names, ["elections/good", "elections/hand"]);
    let hand = key("elections/hand");
    let found = held(&store, &hand).await.expect("it");
    assert_eq!(&*found.value, b"\0\x01garbage");
    put(&store, &hand, Expect::Version(found.version), b"mended").await;
    // What another client has deleted can be made again.
    assert_eq!(held(&store, &gone).await, None);
    put(&store, &gone, Expect::Absent, b"z").await;
    put(&store, &key("elections/good"), Expect::Version(good), b"y").await;
}

#[tokio::test]
async fn a_bucket_that_is_missing_is_made_by_who_may_and_never_again() {
    let server = Nats::start();
    let key = key("key");
    let looks = open_existing(&server.url()).await.expect("a store");
    let read = looks.read(&key, WITHIN).await;
    let Err(StoreError::Unavailable(why)) = read else {
        panic!("{read:?}");
    };
    let why = why.to_string();
    assert!(
        why.contains("`tenure run` makes it") && why.contains("KV_tenure"),
        "{why}"
    );
    let store = opened(&server.url()).await;
    put(&store, &key, Expect::Absent, b"x").await;
    assert_eq!(&*held(&looks, &key).await.expect("it").value, b"x");
    // It goes, with all registers: who used it does not begin anew.
    let deleted = server.api("STREAM.DELETE.KV_tenure", &json!({})).await;
    assert_eq!(deleted["success"], true, "{deleted}");
    for _ in 0..3 {
        let refused = store
            .compare_and_swap(write(&key, Expect::Absent, b"y"), WITHIN)
            .await;
        assert!(
            matches!(refused, Err(StoreError::Unavailable(_))),
            "{refused:?}"
        );
        let read = store.read(&key, WITHIN).await;
        let Err(StoreError::Unavailable(why)) = read else {
            panic!("{read:?}");
        };
        assert!(why.to_string().contains("tenure repair"), "{why}");
    }
    // Another process does.
    put(&opened(&server.url()).await, &key, Expect::Absent, b"z").await;
    assert_eq!(&*held(&store, &key).await.expect("it").value, b"z");
}

#[tokio::test]
async fn what_can_lose_registers_is_refused() {
    let server = Nats::start();
    for (bucket, option, value) in [
        ("memory", "storage", json!("memory")),
        ("ages", "max_age", json!(3_600_000_000_000_u64)),
    ] {
        let mut config = json!({
            "name": format!("KV_{bucket}"), "subjects": [format!("$KV.{bucket}.>")],
            "max_msgs_per_subject": 1, "discard": "new",
        });
        config[option] = value;
        let made = server
            .api(&format!("STREAM.CREATE.KV_{bucket}"), &config)
            .await;
        assert_eq!(made["error"], Value::Null, "{made}");
        let why = broken(&format!("{}/{bucket}", server.url())).await;
        assert!(why.contains(option) && why.contains("on disk"), "{why}");
    }
    // Another stream has the subjects of the bucket.
    let taken = json!({ "name": "OTHER", "subjects": ["$KV.taken.>"] });
    let made = server.api("STREAM.CREATE.OTHER", &taken).await;
    assert_eq!(made["error"], Value::Null, "{made}");
    let why = broken(&format!("{}/taken", server.url())).await;
    assert!(
        why.contains("overlap") && why.contains("nats kv add"),
        "{why}"
    );
    let bare = Nats::start_with("");
    let why = broken(&bare.url()).await;
    assert!(why.contains("JetStream"), "{why}");
    let small = Nats::start_with(&format!("{JETSTREAM}\nmax_payload: 65536"));
    let why = broken(&small.url()).await;
    assert!(why.contains("max_payload"), "{why}");
}

/// The rights that docs/reference/stores.md names.
fn rights(what: &str) -> Vec<String> {
    let text = include_str!("../../../docs/reference/stores.md");
    let line = text.lines().find(|line| line.trim().starts_with(what));
    let line = line.expect("the rights");
    let quoted = line.split('"').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_user_needs_a_password_and_rights() {
    let (publish, subscribe) = (rights("publish:"), rights("subscribe:"));
    let looks: Vec<_> = publish.iter().filter(|it| !it.starts_with("$KV")).collect();
    let server = Nats::start_with(&format!(
        "{JETSTREAM}\nauthorization {{ users: [
           {{ user: web, password: \"open sesame\",
              permissions: {{ publish: {publish:?}, subscribe: {subscribe:?} }} }}
           {{ user: looks, password: x,
              permissions: {{ publish: {looks:?}, subscribe: {subscribe:?} }} }}
           {{ user: nothing, password: x, permissions: {{ publish: [\"other\"], subscribe: [\"_INBOX.>\"] }} }}
           {{ user: deaf, password: x, permissions: {{ publish: {publish:?}, subscribe: [\"other\"] }} }}
         ] }}"
    ));
    let with = |user: &str| server.url().replacen("//", &format!("//{user}@"), 1);
    let store = opened(&with("web:open%20sesame")).await;
    let all = key("key");
    let mut watch = store.watch(Selector::Key(all.clone()));
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    let version = put(&store, &all, Expect::Absent, b"x").await;
    store.list("", None, WITHIN).await.expect("a page");
    assert!(!format!("{store} {store:?}").contains("sesame"), "{store}");

    let looks = opened(&with("looks:x")).await;
    let found = held(&looks, &all).await.map(|it| it.version);
    assert_eq!(found.as_ref(), Some(&version));
    let began = clock::boot();
    let refused = looks
        .compare_and_swap(write(&all, Expect::Version(version), b"y"), WITHIN)
        .await;
    let Err(StoreError::Broken(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("Permissions Violation"), "{why}");
    let took = clock::boot().since(began);
    assert!(
        took < Duration::from_secs(5),
        "it is told at once: {took:?}"
    );

    for (url, words) in [
        (with("nothing:x"), "Permissions Violation"),
        (with("deaf:x"), "Permissions Violation for Subscription"),
        (with("web:wrong"), "password"),
        (server.url(), "password"),
    ] {
        let why = broken(&url).await;
        assert!(
            why.contains(words) && !why.contains("sesame"),
            "{url}: {why}"
        );
    }
}

/// A file that only its owner reads.
fn secret(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("secret");
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
    path
}

#[tokio::test]
async fn a_token_may_be_asked_for() {
    let config = format!("{JETSTREAM}\nauthorization {{ token: \"open sesame\" }}");
    let server = Nats::start_with(&config);
    let dir = tempfile::tempdir().expect("a directory");
    let file = secret(dir.path(), "open sesame\n");
    let store = opened(&format!("{}?token_file={}", server.url(), file.display())).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    let why = broken(&server.url()).await;
    assert!(why.contains("token_file="), "{why}");
}

/// A token of NATS: what one key says of another.
fn signed(by: &KeyPair, of: &KeyPair, name: &str, claims: Value) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encode(&json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let body = encode(&json!({
        "jti": name, "iat": 1_700_000_000, "name": name,
        "iss": by.public_key(), "sub": of.public_key(), "nats": claims,
    }));
    let text = format!("{header}.{body}");
    let signature = URL_SAFE_NO_PAD.encode(by.sign(text.as_bytes()).expect("signed"));
    format!("{text}.{signature}")
}

#[tokio::test]
async fn credentials_may_be_asked_for() {
    let (operator, account, system) = (
        KeyPair::new_operator(),
        KeyPair::new_account(),
        KeyPair::new_account(),
    );
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1,
        "consumer": -1,
    });
    let of_operator = json!({ "type": "operator", "version": 2 });
    let of_account = json!({ "type": "account", "version": 2, "limits": limits });
    let mut of_system = of_account.clone();
    of_system["limits"]["disk_storage"] = json!(0);
    of_system["limits"]["mem_storage"] = json!(0);
    let of_user = json!({
        "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {},
    });
    let config = format!(
        "{JETSTREAM}\noperator: {}\nsystem_account: {}\nresolver: MEMORY\n\
         resolver_preload: {{ {}: {}, {}: {} }}",
        signed(&operator, &operator, "operator", of_operator),
        system.public_key(),
        account.public_key(),
        signed(&operator, &account, "account", of_account),
        system.public_key(),
        signed(&operator, &system, "system", of_system),
    );
    let server = Nats::start_with(&config);
    let dir = tempfile::tempdir().expect("a directory");
    let token = signed(&account, &user, "user", of_user);
    let credentials = |key: &KeyPair| {
        let seed = key.seed().expect("a seed");
        format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    };
    let file = secret(dir.path(), &credentials(&user));
    let url = format!("{}?creds={}", server.url(), file.display());
    let store = opened(&url).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    // The token of the one with the key of another.
    secret(dir.path(), &credentials(&stranger));
    let why = broken(&url).await;
    assert!(why.contains("creds="), "{why}");
    secret(dir.path(), "garbage");
    let why = broken(&url).await;
    assert!(why.contains("creds="), "{why}");
}

#[tokio::test]
async fn tls_is_spoken_where_it_is_asked_for() {
    let authority = certificates::authority();
    let [certificate, own_key] = certificates::certified(&authority, false);
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("to write it");
        path.display().to_string()
    };
    let (cert_file, key_file) = (file("cert", &certificate), file("key", &own_key));
    let ca_file = file("ca", &authority.pem());
    let tls = |verify: bool| {
        Nats::start_with(&format!(
            "{JETSTREAM}\ntls {{ cert_file: \"{cert_file}\", key_file: \"{key_file}\", \
             ca_file: \"{ca_file}\", verify: {verify} }}"
        ))
    };
    let server = tls(false);
    let key = key("key");
    let store = opened(&format!("{}?ca={ca_file}", server.url())).await;
    let version = put(&store, &key, Expect::Absent, b"secret").await;
    assert_eq!(held(&store, &key).await.map(|it| it.version), Some(version));
    // A certificate of nobody we know: the server asks for TLS without an option.
    for url in [format!("{}?tls=on", server.url()), server.url()] {
        let why = broken(&url).await;
        assert!(why.contains("ca="), "{why}");
    }
    // A server that speaks no TLS, where it is asked for.
    let bare = Nats::start();
    let refused = opened(&format!("{}?ca={ca_file}", bare.url())).await;
    let refused = refused.read(&key, WITHIN).await;
    assert!(refused.is_err(), "{refused:?}");
    // One that wants a certificate of ours.
    let strict = tls(true);
    let url = format!("{}?ca={ca_file}", strict.url());
    let refused = opened(&url).await.read(&key, WITHIN).await;
    assert!(refused.is_err(), "{refused:?}");
    let store = opened(&format!("{url}&cert={cert_file}&key={key_file}")).await;
    put(&store, &key, Expect::Absent, b"x").await;
}

#[tokio::test]
async fn wrong_urls_say_what_was_expected() {
    for url in [
        "nats:h",
        "nats://token@h",
        "nats://h/a.b",
        "nats://h?token=x",
        "nats://h?ca=/does/not/exist",
        "nats://h?creds=/does/not/exist",
    ] {
        let refused = open(url).await;
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{url} was taken");
        };
        assert!(why.to_string().contains("expected"), "{url}: {why}");
    }
}

#[tokio::test]
async fn a_leader_is_elected_and_another_takes_over_when_it_resigns() {
    let server = Nats::start();
    let version = version(installed("bin/nats-server"), &["--version"]);
    let (url, store) = (server.url(), format!("NATS {version}, in memory"));
    takeovers::measure(&store, Notices::ByWatch, || opened(&url)).await;
}

/// What a counter was told of its writes.
#[derive(Default)]
struct WriteCounts {
    done: u64,
    unknown: u64,
}

/// Counts up until `done` writes are acknowledged, through whatever happens.
async fn count_through(store: Arc<dyn Store>, key: Key, done: u64) -> WriteCounts {
    let (mut told, short) = (WriteCounts::default(), Duration::from_secs(2));
    let give_up = clock::boot().after(Duration::from_secs(60));
    while told.done < done {
        assert!(clock::boot() < give_up, "only {} in time", told.done);
        let Ok(found) = store.read(&key, short).await else {
            continue;
        };
        let count = found.register.as_ref().map_or(0, count_of);
        let expect = found
            .register
            .map_or(Expect::Absent, |it| Expect::Version(it.version));
        let next = write(&key, expect, &(count + 1).to_be_bytes());
        match store.compare_and_swap(next, short).await {
            Ok(_) => told.done += 1,
            Err(StoreError::Unknown(_)) => told.unknown += 1,
            Err(StoreError::Conflict | StoreError::Unavailable(_)) => {}
            Err(StoreError::Broken(why)) => panic!("{why}"),
        }
    }
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_loses_the_leader_of_its_stream_loses_no_update() {
    let mut cluster = Nats::cluster(3);
    let url = cluster.url();
    let store = opened(&url).await;
    let key = key("counter");
    // The first call may come before the cluster can make a stream.
    let give_up = clock::boot().after(Duration::from_secs(30));
    while let Err(error) = store.read(&key, Duration::from_secs(5)).await {
        assert!(clock::boot() < give_up, "no bucket: {error}");
    }
    let info = cluster.api("STREAM.INFO.KV_tenure", &json!({})).await;
    assert_eq!(info["config"]["num_replicas"], 3, "{info}");
    conformance::loses_no_update_in_a_race(&store, "try/").await;
    conformance::refuses_what_was_not_expected(&store, "try/").await;
    conformance::never_uses_a_version_twice(&store, "try/").await;
    conformance::has_one_winner_of_a_create_race(&store, "try/").await;

    let begin = async |name: &str| {
        let candidate = Election::builder(opened(&url).await, "payroll").name(name);
        let candidate = candidate.lease(Duration::from_secs(60));
        candidate.start().expect("a candidate")
    };
    let mut first = begin("a").await;
    let leadership = first.elected().await.expect("a leadership");
    let (term, held_until) = (leadership.term(), leadership.view());
    let mut second = begin("b").await;
    let mut counters = JoinSet::new();
    for _ in 0..4 {
        counters.spawn(count_through(opened(&url).await, key.clone(), 25));
    }
    // Some have been acknowledged.
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, |seen| match seen {
        Sighting::State(_, Some(held)) => count_of(held) >= 10,
        _ => false,
    })
    .await;
    let leader = cluster.leader("KV_tenure").await;
    let killed = clock::boot();
    cluster.kill(leader);
    let mut all = WriteCounts::default();
    for told in counters.join_all().await {
        all.done += told.done;
        all.unknown += told.unknown;
    }
    let took = clock::boot().since(killed).as_secs_f64();
    let found = held(&store, &key).await;
    let count = found.as_ref().map_or(0, count_of);
    println!(
        "nats: {} writes were acknowledged and {} unknown, the counter is at {count}; all were \
         done {took:.2} s after the leader of the stream was killed",
        all.done, all.unknown
    );
    assert!(count >= all.done, "an acknowledged write is lost");
    assert!(count <= all.done + all.unknown, "a write happened twice");
    // Its lease is longer than that, and another takes over by a write to the others.
    assert!(
        held_until.is_valid(),
        "its lease is longer than the fail-over"
    );
    let resigned = clock::boot();
    drop(leadership);
    let next = tokio::time::timeout(WITHIN, second.elected()).await;
    let next = next.expect("in time").expect("a leadership");
    assert!(next.term() > term && !held_until.is_valid());
    println!(
        "nats: another leads {:.1} ms after a resignation",
        millis_since(resigned)
    );
    drop(next);
    second.stop().await;
    first.stop().await;
    // The dead one comes back, and what it had does not count.
    cluster.launch(leader);
    assert_eq!(held(&store, &key).await.as_ref().map(count_of), Some(count));
}
