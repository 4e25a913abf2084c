//! The Redis store against private servers: the conformance suite, races between
//! processes, servers that go away, are emptied or become replicas, users, TLS,
//! sentinels, what is said of servers that can lose writes, and servers that send more
//! than they may.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::sync::{Mutex, Once};
use std::time::Duration;

use crate::common::calls::{
    WITHIN, broken, count_in_processes, held, key, opened, put, shows, store_to_count_in, until,
    write,
};
use crate::common::redis::{self, Redis};
use crate::common::takeovers::{self, Notices};
use crate::common::versions::version;
use crate::common::{misanswered, ports};
use tenure::store::conformance::{self, count_of, count_up};
use tenure::store::{Clock, Durability, Expect, Selector, Sighting, Version, open};
use tenure::{StoreError, clock};

#[tokio::test]
async fn redis_conforms() {
    let server = Redis::start();
    conformance::all(&opened(&server.url()).await, "try/").await;
    // Behind another prefix, behind none, and in another database.
    for rest in ["?prefix=other%2F", "/3?prefix="] {
        let url = format!("{}{rest}&expiry=store-clock&poll=20ms", server.url());
        let store = opened(&url).await;
        assert!(store.features().judge_by_store_clock);
        assert_eq!(store.features().clock, Clock::MayStep);
        conformance::all(&store, "try/").await;
    }
    let keys = server.cli(&["--scan"]);
    for first in ["tenure:register:try/", "other/register:try/"] {
        assert!(keys.lines().any(|key| key.starts_with(first)), "{first}");
    }
    let keys = server.cli(&["-n", "3", "--scan"]);
    for first in ["register:try/", "names", "count"] {
        assert!(keys.lines().any(|key| key.starts_with(first)), "{first}");
    }
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
    let server = Redis::start();
    count_in_processes(module_path!(), 6, &server.url(), &[]);
    let store = opened(&server.url()).await;
    let found = held(&store, &key("processes/counter")).await;
    assert_eq!(found.as_ref().map(count_of), Some(150));
}

#[tokio::test]
async fn the_writes_of_others_are_noticed_at_once() {
    let server = Redis::start();
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
        figures.push(clock::boot().since(done).as_secs_f64() * 1_000.0);
        expect = Expect::Version(version);
    }
    let Expect::Version(version) = expect else {
        panic!("it was written");
    };
    writer
        .delete(&key, &version, WITHIN)
        .await
        .expect("to delete");
    for watch in [&mut by_key, &mut by_prefix] {
        until(watch, |seen| matches!(seen, Sighting::State(_, None))).await;
    }
    figures.sort_by(f64::total_cmp);
    let (median, most) = (figures[50], figures[99]);
    println!("redis: noticed after a median of {median:.2} ms, at most {most:.2} ms, of 100");
    assert!(median < 25.0, "{figures:?}");
}

#[tokio::test]
async fn a_server_may_come_later_go_and_come_back_with_what_it_had() {
    let mut server = Redis::prepared(&redis::SAFE);
    let store = opened(&server.url()).await;
    let key = key("key");
    let absent = || write(&key, Expect::Absent, b"before");
    let refused = store.compare_and_swap(absent(), WITHIN).await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("refused"), "{why}");
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, |seen| matches!(seen, Sighting::Down(_))).await;

    server.launch();
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    let version = put(&store, &key, Expect::Absent, b"before").await;
    until(&mut watch, shows(&version)).await;

    server.kill();
    until(&mut watch, |seen| matches!(seen, Sighting::Down(_))).await;
    let refused = store
        .compare_and_swap(write(&key, Expect::Version(version.clone()), b"x"), WITHIN)
        .await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );

    // It does not know our scripts any more.
    server.launch();
    assert_eq!(server.cli(&["DBSIZE"]), "3");
    let version = put(&store, &key, Expect::Version(version), b"after").await;
    until(&mut watch, shows(&version)).await;
}

#[tokio::test]
async fn a_server_that_keeps_silent_leaves_a_write_unknown_and_is_left() {
    let server = Redis::start();
    let store = opened(&server.url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    server.pause();
    let short = Duration::from_millis(200);
    let change = write(&key, Expect::Version(version), b"after");
    let late = store.compare_and_swap(change, short).await;
    assert!(matches!(late, Err(StoreError::Unknown(_))), "{late:?}");
    let read = store.read(&key, short).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    server.resume();
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

/// Whatever becomes of the counter, and of everything.
#[tokio::test]
async fn no_version_is_given_twice() {
    let mut server = Redis::start();
    let store = opened(&server.url()).await;
    let (one, other) = (key("one"), key("other"));
    let (mut seen, mut last) = (BTreeSet::new(), None::<Version>);
    let counter = "tenure:count";
    let mut old = String::new();
    let lost: [&[&str]; 6] = [
        &["DEL", "tenure:register:one"],
        &["DEL", counter],
        &["SET", counter, "0000000000000007"],
        &["SET", counter, "garbage"],
        &["FLUSHALL"],
        &[],
    ];
    for loss in lost {
        for _ in 0..2 {
            let expect = held(&store, &one).await;
            let expect = expect.map_or(Expect::Absent, |it| Expect::Version(it.version));
            let version = put(&store, &one, expect, b"x").await;
            assert!(last.is_none_or(|last| last < version), "they grow");
            assert!(seen.insert(version.to_string()), "{version} came again");
            last = Some(version);
            let expect = held(&store, &other).await;
            let expect = expect.map_or(Expect::Absent, |it| Expect::Version(it.version));
            let version = put(&store, &other, expect, b"y").await;
            assert!(seen.insert(version.to_string()), "{version} came again");
        }
        if old.is_empty() {
            old = server.cli(&["GET", counter]);
        }
        if loss.is_empty() {
            server.wipe();
        } else {
            server.cli(loss);
        }
    }
    assert_eq!(held(&store, &one).await, None, "all is gone");
    // An older copy of the counter.
    server.cli(&["SET", counter, &old]);
    let version = put(&store, &one, Expect::Absent, b"x").await;
    assert!(seen.insert(version.to_string()), "{version} came again");
    // And one that is ahead of the clock, so that the same count is given again.
    for _ in 0..2 {
        server.cli(&["DEL", "tenure:register:one"]);
        server.cli(&["SET", counter, "5000000000000000"]);
        let version = put(&store, &one, Expect::Absent, b"x").await.to_string();
        assert!(version.starts_with("5000000000000001-"), "{version}");
        assert!(seen.insert(version.clone()), "{version} came again");
    }
    server.cli(&["SET", counter, "9007199254740000"]);
    let full = store
        .compare_and_swap(write(&other, Expect::Absent, b"y"), WITHIN)
        .await;
    let Err(StoreError::Broken(why)) = full else {
        panic!("{full:?}");
    };
    assert!(why.to_string().contains("counter"), "{why}");
    // A write that expects a version from before changes nothing.
    let stale = write(&one, Expect::Version(last.expect("a version")), b"stale");
    let refused = store.compare_and_swap(stale, WITHIN).await;
    assert!(matches!(refused, Err(StoreError::Conflict)), "{refused:?}");
}

#[tokio::test]
async fn what_is_no_register_troubles_no_other() {
    let server = Redis::start();
    let store = opened(&server.url()).await;
    let good = put(&store, &key("elections/good"), Expect::Absent, b"x").await;
    let old = put(&store, &key("elections/hand"), Expect::Absent, b"y").await;
    for command in [
        &["SET", "tenure:register:elections/text", "x"][..],
        &["HSET", "tenure:register:elections/hash", "field", "x"],
        &[
            "HSET",
            "tenure:register:elections/odd",
            "version",
            "7",
            "value",
            "x",
        ],
        &["HSET", "tenure:register:elections/hand", "value", "by hand"],
        &[
            "ZADD",
            "tenure:names",
            "0",
            "elections/text",
            "0",
            "elections/hash",
        ],
        &[
            "ZADD",
            "tenure:names",
            "0",
            "elections/odd",
            "0",
            "elections/none",
            "0",
            "\t",
        ],
    ] {
        server.cli(command);
    }
    for name in ["elections/text", "elections/hash", "elections/odd"] {
        let key = key(name);
        let found = held(&store, &key).await.expect("something");
        let shown = String::from_utf8_lossy(&found.value);
        assert!(shown.contains("expected a hash"), "{shown}");
        // It may be somebody else's: it is not written over.
        for expect in [Expect::Absent, Expect::Version(found.version.clone())] {
            let refused = store
                .compare_and_swap(write(&key, expect, b"z"), WITHIN)
                .await;
            assert!(matches!(refused, Err(StoreError::Conflict)), "{refused:?}");
        }
        let refused = store.delete(&key, &found.version, WITHIN).await;
        assert!(matches!(refused, Err(StoreError::Conflict)), "{refused:?}");
    }
    let page = store
        .list("elections/", None, WITHIN)
        .await
        .expect("a page");
    let names: Vec<_> = page.registers.iter().map(|(key, _)| key.as_str()).collect();
    assert!(names.contains(&"elections/good") && names.contains(&"elections/text"));
    assert!(!names.contains(&"elections/none"), "{names:?}");
    // What was edited by hand is read as it is.
    let hand = held(&store, &key("elections/hand")).await.expect("it");
    assert_eq!((&*hand.value, &hand.version), (&b"by hand"[..], &old));
    put(&store, &key("elections/good"), Expect::Version(good), b"y").await;
}

#[tokio::test]
async fn the_names_of_registers_may_be_lost_and_may_be_somebody_elses() {
    let server = Redis::start();
    let store = opened(&server.url()).await;
    let version = put(&store, &key("one"), Expect::Absent, b"x").await;
    put(&store, &key("other"), Expect::Absent, b"y").await;
    // A name that was lost comes back with the next write.
    server.cli(&["DEL", "tenure:names"]);
    put(&store, &key("one"), Expect::Version(version), b"z").await;
    let page = store.list("", None, WITHIN).await.expect("a page");
    assert_eq!(page.registers.len(), 1);
    // Keys of the store's own that are another's.
    server.cli(&["SET", "tenure:names", "x"]);
    let refused = store
        .compare_and_swap(write(&key("new"), Expect::Absent, b"z"), WITHIN)
        .await;
    let Err(StoreError::Broken(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("another type"), "{why}");
    assert_eq!(held(&store, &key("new")).await, None, "nothing was written");
    let listed = store.list("", None, WITHIN).await;
    assert!(matches!(listed, Err(StoreError::Broken(_))), "{listed:?}");
}

#[tokio::test]
async fn a_server_without_memory_refuses_and_does_nothing() {
    let server = Redis::start();
    let store = opened(&server.url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let change = || write(&key, Expect::Version(version.clone()), b"after");
    let refused = store.compare_and_swap(change(), WITHIN).await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("OOM"), "{why}");
    assert_eq!(&*held(&store, &key).await.expect("it").value, b"before");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    store
        .compare_and_swap(change(), WITHIN)
        .await
        .expect("a write");
}

/// The rights that docs/reference/stores.md names, but for a look at the settings.
fn rights() -> Vec<&'static str> {
    let text = include_str!("../../../docs/reference/stores.md");
    let line = text
        .lines()
        .find(|line| line.starts_with("ACL SETUSER tenure"));
    let words = line.expect("the rights").split_whitespace();
    let rights = words.filter(|it| it.starts_with(['~', '&', '+']) || *it == "resetchannels");
    rights.filter(|it| *it != "+config|get").collect()
}

#[tokio::test]
async fn a_user_needs_a_password_and_rights() {
    let server = Redis::start();
    let mut web = vec!["ACL", "SETUSER", "web", "on", ">open sesame"];
    web.extend(rights());
    server.cli(&web);
    let with = |user: &str| server.url().replacen("//", &format!("//{user}@"), 1);
    let store = opened(&with("web:open%20sesame")).await;
    let all = key("key");
    let version = put(&store, &all, Expect::Absent, b"x").await;
    store.list("", None, WITHIN).await.expect("a page");
    store
        .delete(&all, &version, WITHIN)
        .await
        .expect("to delete");
    assert!(!format!("{store} {store:?}").contains("sesame"), "{store}");
    // CONFIG is not among its rights.
    let said = warning_of(&server, &with("web:open%20sesame")).await;
    let unknown = "appendfsync, no-appendfsync-on-rewrite be looked at";
    assert!(said.contains(unknown), "{said}");

    server.cli(&[
        "ACL",
        "SETUSER",
        "looks",
        "on",
        ">x",
        "~tenure:*",
        "+time",
        "+role",
    ]);
    server.cli(&["ACL", "SETUSER", "looks", "+exists", "+hmget"]);
    let looks = opened(&with("looks:x")).await;
    assert_eq!(held(&looks, &all).await, None);
    let refused = looks
        .compare_and_swap(write(&all, Expect::Absent, b"y"), WITHIN)
        .await;
    let Err(StoreError::Broken(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("NOPERM"), "{why}");
    let elsewhere = format!("{}?prefix=other:", with("web:open%20sesame"));
    for (url, words) in [(with("web:wrong"), "password"), (elsewhere, "NOPERM")] {
        let why = broken(&url).await;
        assert!(
            why.contains(words) && !why.contains("sesame"),
            "{url}: {why}"
        );
    }
    server.cli(&["CONFIG", "SET", "requirepass", "secret"]);
    let why = broken(&server.url()).await;
    assert!(why.contains("user and password"), "{why}");
    put(&opened(&with(":secret")).await, &all, Expect::Absent, b"x").await;
}

#[tokio::test]
async fn a_database_that_is_missing_and_a_cluster_are_refused() {
    let server = Redis::start();
    let why = broken(&format!("{}/99", server.url())).await;
    assert!(why.contains("database"), "{why}");
    // Its other port would be one that the kernel may have given to a connection.
    let bus = ports::free().to_string();
    let part = Redis::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
    let why = broken(&part.url()).await;
    assert!(why.contains("without cluster mode"), "{why}");
}

#[tokio::test]
async fn wrong_urls_say_what_was_expected() {
    for url in [
        "redis:h",
        "redis://h,g",
        "redis://user@h",
        "redis://h/x",
        "redis+sentinel://h",
        "rediss+sentinel://h/m?ca=/does/not/exist",
    ] {
        let refused = open(url).await;
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{url} was taken");
        };
        assert!(why.to_string().contains("expected"), "{url}: {why}");
    }
}

#[tokio::test]
async fn tls_is_spoken_where_it_is_asked_for() {
    let server = Redis::start_encrypted();
    let key = key("key");
    let url = format!("{}?ca={}", server.url(), server.authority().display());
    let store = opened(&url).await;
    let version = put(&store, &key, Expect::Absent, b"secret").await;
    assert_eq!(held(&store, &key).await.map(|it| it.version), Some(version));
    // A certificate of nobody we know.
    let why = broken(&server.url()).await;
    assert!(why.contains("certificate"), "{why}");
    // A line without TLS to a server that speaks nothing else.
    let bare = server.url().replacen("rediss:", "redis:", 1);
    let refused = opened(&bare).await.read(&key, WITHIN).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_replica_is_not_believed() {
    let (primary, server) = (Redis::start(), Redis::start());
    let store = opened(&server.url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"x").await;
    // What it says from now on may be old.
    server.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    for store in [&store, &opened(&server.url()).await] {
        let read = store.read(&key, WITHIN).await;
        assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
        let listed = store.list("", None, WITHIN).await;
        assert!(
            matches!(listed, Err(StoreError::Unavailable(_))),
            "{listed:?}"
        );
        let change = write(&key, Expect::Version(version.clone()), b"y");
        let refused = store.compare_and_swap(change, WITHIN).await;
        assert!(
            matches!(refused, Err(StoreError::Unavailable(_))),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn sentinels_that_watch_two_servers_are_no_store() {
    let (one, two) = (Redis::start(), Redis::start());
    let [first, second] = [&one, &one].map(Redis::sentinel_of);
    let other = Redis::sentinel_of(&two);
    let url = |sentinels: [&Redis; 2]| {
        let hosts = sentinels.map(|it| format!("127.0.0.1:{}", it.port()));
        format!("redis+sentinel://{}/main", hosts.join(","))
    };
    let key = key("key");
    // Whether the two have found each other yet or not.
    let store = opened(&url([&first, &second])).await;
    put(&store, &key, Expect::Absent, b"x").await;
    for sentinels in [[&first, &other], [&other, &first]] {
        until_refused(&url(sentinels), "do not list each other").await;
    }
    // One that watches another server from now on is known to the former others still.
    for (one, other) in [(&first, &second), (&second, &first)] {
        let give_up = clock::boot().after(WITHIN);
        let found = || one.cli(&["SENTINEL", "SENTINELS", "main"]);
        while !found().contains(&other.port().to_string()) {
            assert!(clock::boot() < give_up, "they do not find each other");
        }
    }
    let port = two.port().to_string();
    second.cli(&["SENTINEL", "REMOVE", "main"]);
    second.cli(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "1"]);
    for sentinels in [[&first, &second], [&second, &first]] {
        until_refused(&url(sentinels), "more than half").await;
    }
}

/// Opens the store until it is refused with these words. A sentinel that is slower by half
/// a second is not compared: on a busy machine it may take several handshakes.
async fn until_refused(url: &str, words: &str) {
    let give_up = clock::boot().after(WITHIN);
    loop {
        let read = opened(url).await.read(&key("key"), WITHIN).await;
        if matches!(&read, Err(StoreError::Unavailable(why)) if why.to_string().contains(words)) {
            return;
        }
        assert!(clock::boot() < give_up, "{read:?}");
    }
}

#[tokio::test]
async fn sentinels_lead_to_the_server_that_took_over() {
    let mut primary = Redis::start();
    let replica = Redis::start();
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let sentinel = Redis::sentinel_of(&primary);
    // The first is nobody's.
    let nobody = ports::address();
    let url = |name: &str| {
        format!(
            "redis+sentinel://{nobody},127.0.0.1:{}/{name}",
            sentinel.port()
        )
    };
    let store = opened(&url("main")).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    // The sentinel that is away may know it.
    let refused = opened(&url("other")).await.read(&key, WITHIN).await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    let why = why.to_string();
    assert!(why.contains("\"other\""), "{why}");
    // The replica has what was written, and the sentinel knows of the replica.
    assert_eq!(primary.cli(&["WAIT", "1", "0"]), "1");
    let give_up = clock::boot().after(WITHIN);
    while !sentinel
        .cli(&["SENTINEL", "replicas", "main"])
        .contains(&replica.port().to_string())
    {
        assert!(clock::boot() < give_up, "the sentinel hears of no replica");
    }
    let killed = clock::boot();
    primary.kill();
    let give_up = clock::boot().after(Duration::from_secs(30));
    let mut expected = version;
    let version = loop {
        let change = write(&key, Expect::Version(expected.clone()), b"after");
        match store.compare_and_swap(change, Duration::from_secs(2)).await {
            Ok(written) => break written.version,
            Err(StoreError::Broken(why)) => panic!("{why}"),
            // The first may find the connection broken, which is settled by reading.
            Err(_) => {}
        }
        assert!(clock::boot() < give_up, "no write in time");
        if let Ok(found) = store.read(&key, Duration::from_secs(2)).await {
            expected = found.register.expect("a register").version;
        }
    };
    let took = clock::boot().since(killed).as_secs_f64();
    println!("redis: by sentinels a write succeeds {took:.2} s after the server died");
    // The old one comes back, and is told to follow: the store stays where it is.
    primary.launch();
    assert_eq!(held(&store, &key).await.map(|it| it.version), Some(version));
    let there = replica.cli(&["HGET", "tenure:register:key", "value"]);
    assert_eq!(there, "after");
}

/// The warnings of this process so far.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps warnings.
struct Warnings;

impl tracing::Subscriber for Warnings {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        *about.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(
            &mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                WARNINGS.lock().expect("a list").push(format!("{value:?}"));
            },
        );
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// What is warned of when this store is opened and read.
async fn warning_of(server: &Redis, url: &str) -> String {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Warnings).expect("the first"));
    let store = opened(url).await;
    WARNINGS
        .lock()
        .expect("a list")
        .retain(|it| !it.contains(&server.port().to_string()));
    store.read(&key("key"), WITHIN).await.expect("a read");
    let all = WARNINGS.lock().expect("a list");
    let ours = all
        .iter()
        .filter(|it| it.contains(&server.port().to_string()));
    ours.cloned().collect()
}

/// What a store says of the server, before it has asked and then.
async fn durability(url: &str) -> [Durability; 2] {
    let store = opened(url).await;
    let before = store.durability();
    store.read(&key("key"), WITHIN).await.expect("a read");
    [before, store.durability()]
}

#[tokio::test]
async fn a_server_that_can_lose_what_it_acknowledged_is_warned_of() {
    let safe = Redis::start();
    assert_eq!(warning_of(&safe, &safe.url()).await, "");
    let told = durability(&safe.url()).await;
    assert_eq!(told, [Durability::Untold, Durability::Kept]);
    // As the package sets it up.
    let usual = Redis::start_with(&[]);
    let [_, told] = durability(&usual.url()).await;
    assert!(
        matches!(&told, Durability::Lossy(why) if why.contains("no log")),
        "{told:?}"
    );
    let said = warning_of(&usual, &usual.url()).await;
    assert!(
        said.contains("can lose writes") && said.contains("no log"),
        "{said}"
    );
    let usual = Redis::start_with(&["--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"]);
    let said = warning_of(&usual, &usual.url()).await;
    assert!(
        said.contains("everysec") && said.contains("allkeys-lru"),
        "{said}"
    );
}

#[tokio::test]
async fn a_leader_is_elected_and_another_takes_over_when_it_resigns() {
    let server = Redis::start();
    let (url, version) = (server.url(), version("redis-server", &["--version"]));
    let store = format!("Redis {version}, in memory");
    takeovers::measure(&store, Notices::ByWatch, || opened(&url)).await;
}

/// Why a read fails with a server that answers like that.
async fn refusal(answer: Vec<u8>) -> String {
    let port = misanswered::start(move |stream| {
        stream.read_exact(&mut [0; 4])?;
        stream.write_all(&answer)
    });
    let store = opened(&format!("redis://127.0.0.1:{port}")).await;
    let read = store.read(&key("key"), WITHIN).await;
    let Err(StoreError::Unavailable(why)) = read else {
        panic!("{read:?}");
    };
    why.to_string()
}

#[tokio::test]
async fn an_answer_beyond_its_bounds_ends_a_call() {
    // Each begins like that, and does not go on.
    for (line, why) in [
        (
            "$2147483647",
            "strings of at most 524288 bytes, found one of 2147483647",
        ),
        ("$9223372036854775807", "strings of at most 524288 bytes"),
        ("*2147483647", "lists of at most 1002 answers"),
        ("%9223372036854775807", "lists of at most 501 pairs"),
        ("$-5", "found one of -5"),
    ] {
        let found = refusal(format!("{line}\r\n").into_bytes()).await;
        assert!(found.contains(why), "{found}");
    }
    let found = refusal(b"*1\r\n".repeat(9)).await;
    assert!(found.contains("at most 8 levels"), "{found}");
    let found = refusal([&b"-ERR "[..], &[b'a'; 70_000]].concat()).await;
    assert!(found.contains("lines of at most 65536 bytes"), "{found}");
    let part = [&b"$500000\r\n"[..], &vec![b'x'; 500_000], b"\r\n"].concat();
    let found = refusal([&b"*4\r\n"[..], &part.repeat(3)].concat()).await;
    assert!(
        found.contains("answers of at most 1048576 bytes"),
        "{found}"
    );
}
