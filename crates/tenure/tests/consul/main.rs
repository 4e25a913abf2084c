//! The Consul store against a stand-in (`standin.rs`): the conformance suite, races,
//! servers that go away, keep silent, lose answers or have no leader, indexes that go
//! back, tokens and TLS.
//!
//! No server of Consul itself was to be had here, and none was tried.

#![allow(clippy::print_stdout, reason = "figures are printed")]

mod bounds;
mod standin;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use crate::common::calls::{
    WITHIN, broken, count_in_processes, held, key, median, millis_since, opened, put, shows,
    store_to_count_in, until, write,
};
use crate::common::stand_in_trials::{comes_and_goes, sends_once};
use crate::common::takeovers::{self, Notices};
use crate::common::{certificates, stand_in};
use standin::Consul;
use tenure::store::conformance::{self, count_up};
use tenure::store::{Clock, Expect, Selector, Sighting, Version, open};
use tenure::{StoreError, clock};

#[tokio::test]
async fn consul_conforms() {
    let server = Consul::start();
    let store = opened(&server.url()).await;
    assert_eq!(store.features().clock, Clock::None);
    conformance::all(&store, "try/").await;
    // Behind another prefix, and behind none.
    for prefix in ["other.one/", ""] {
        let url = format!("{}?prefix={prefix}", server.url());
        conformance::all(&opened(&url).await, "try/").await;
    }
    let names = server.names();
    for first in ["tenure/try/", "other=", "other.one/try/", "try/"] {
        let is_there = names.iter().any(|name| name.starts_with(first));
        assert_eq!(is_there, first != "other=", "{first}");
    }
    // It can be read by hand.
    assert_eq!(server.value("tenure/try/read"), Some(Vec::new()));
    assert_eq!(server.value("tenure/try/equal"), Some(b"same".to_vec()));
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
    let server = Consul::start();
    // The token is in their environment.
    server.ask_for_tokens(&[("sesame", "tenure/", true)]);
    count_in_processes(
        module_path!(),
        6,
        &server.url(),
        &[("CONSUL_HTTP_TOKEN", "sesame")],
    );
    let count = server.value("tenure/processes/counter");
    assert_eq!(count, Some(150_u64.to_be_bytes().to_vec()));
}

#[tokio::test]
async fn the_writes_of_others_are_noticed_at_once_and_by_few_requests() {
    let server = Consul::start();
    let (writer, reader) = (opened(&server.url()).await, opened(&server.url()).await);
    let key = key("followed/key");
    let mut by_key = reader.watch(Selector::Key(key.clone()));
    let below = opened(&server.url()).await;
    let mut by_prefix = below.watch(Selector::Prefix("followed/".into()));
    for watch in [&mut by_key, &mut by_prefix] {
        until(watch, |seen| *seen == Sighting::Live).await;
    }
    let before = server.counts();
    let (mut figures, mut expect) = (Vec::new(), Expect::Absent);
    for number in 0..100u8 {
        let version = put(&writer, &key, expect, &[number]).await;
        let done = clock::boot();
        until(&mut by_key, shows(&version)).await;
        until(&mut by_prefix, shows(&version)).await;
        figures.push(millis_since(done));
        expect = Expect::Version(version);
    }
    let counts = server.counts();
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
    println!("consul: noticed after a median of {middle:.2} ms, at most {most:.2} ms, of 100");
    assert!(middle < 50.0, "{figures:?}");
    // Two watchers, one waiting query for each change.
    let waits = counts.waits - before.waits;
    assert!((150..=210).contains(&waits), "{counts:?} after {before:?}");
}

#[tokio::test]
async fn a_query_that_waits_in_vain_is_asked_again_and_tells_nothing() {
    let server = Consul::start();
    server.wait_at_most(Duration::from_millis(50));
    let store = opened(&server.url()).await;
    let key = key("rests");
    let version = put(&store, &key, Expect::Absent, b"x").await;
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, shows(&version)).await;
    let before = server.counts().waits;
    let idle = Duration::from_millis(500);
    let heard = tokio::time::timeout(idle, async {
        until(&mut watch, |seen| {
            matches!(seen, Sighting::State(..) | Sighting::Down(_))
        })
        .await;
    });
    assert!(heard.await.is_err(), "there is no news");
    let waits = server.counts().waits - before;
    assert!((3..=15).contains(&waits), "{waits} queries in {idle:?}");
    let version = put(
        &opened(&server.url()).await,
        &key,
        Expect::Version(version),
        b"y",
    )
    .await;
    until(&mut watch, shows(&version)).await;
}

#[tokio::test]
async fn a_watch_of_what_is_followed_already_hears_of_what_is_not_there() {
    let server = Consul::start();
    let store = opened(&server.url()).await;
    let mut all = store.watch(Selector::Prefix("a/".into()));
    until(&mut all, |seen| *seen == Sighting::Live).await;
    // Its query waits at the server by now.
    let give_up = clock::boot().after(WITHIN);
    while server.counts().waits == 0 {
        assert!(clock::boot() < give_up, "no query waits");
        tokio::task::yield_now().await;
    }
    let mut one = store.watch(Selector::Key(key("a/none")));
    until(&mut one, |seen| matches!(seen, Sighting::State(_, None))).await;
    // More keys than have a query each.
    let mut many: Vec<_> = (0..100)
        .map(|number| store.watch(Selector::Key(key(&format!("b/{number}")))))
        .collect();
    for watch in &mut many {
        until(watch, |seen| matches!(seen, Sighting::State(_, None))).await;
    }
    let version = put(
        &opened(&server.url()).await,
        &key("b/7"),
        Expect::Absent,
        b"x",
    )
    .await;
    until(&mut many[7], shows(&version)).await;
    drop(many);
    let version = put(
        &opened(&server.url()).await,
        &key("a/none"),
        Expect::Absent,
        b"x",
    )
    .await;
    until(&mut one, shows(&version)).await;
}

#[tokio::test]
async fn a_server_may_come_later_go_and_come_back_with_what_it_had() {
    let server = Consul::prepared(None);
    comes_and_goes(&server, &server.url(), &key("key")).await;
}

#[tokio::test]
async fn a_write_without_an_answer_is_unknown_and_was_sent_once() {
    let server = Consul::start();
    let writes = || server.counts().writes;
    sends_once(&server, &server.url(), &key("key"), writes).await;
}

#[tokio::test]
async fn without_a_leader_a_read_fails_and_a_write_is_unknown() {
    let server = Consul::start();
    let store = opened(&server.url()).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"x").await;
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, shows(&version)).await;
    server.lose_the_leader(true);
    let change = write(&key, Expect::Version(version.clone()), b"y");
    let unknown = store.compare_and_swap(change, WITHIN).await;
    let Err(StoreError::Unknown(why)) = unknown else {
        panic!("{unknown:?}");
    };
    assert!(why.to_string().contains("No cluster leader"), "{why}");
    let read = store.read(&key, WITHIN).await;
    let Err(StoreError::Unavailable(why)) = read else {
        panic!("{read:?}");
    };
    assert!(why.to_string().contains("No cluster leader"), "{why}");
    // From now on nothing is sent to it but the question whether it has one.
    let change = write(&key, Expect::Version(version.clone()), b"y");
    let refused = store.compare_and_swap(change, WITHIN).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    server.lose_the_leader(false);
    let version = put(&store, &key, Expect::Version(version), b"y").await;
    until(&mut watch, shows(&version)).await;
}

#[tokio::test]
async fn the_host_after_one_that_is_away_is_used() {
    let (first, second) = (Consul::start(), Consul::start());
    // Of one datacenter, for all that can be seen.
    first.follow("10.1.1.1:8300");
    second.follow("10.1.1.1:8300");
    let url = format!("{},{}", first.url(), second.host());
    let store = opened(&url).await;
    let key = key("key");
    put(&store, &key, Expect::Absent, b"x").await;
    assert_eq!(second.names(), Vec::<String>::new());
    first.stop();
    let give_up = clock::boot().after(WITHIN);
    while store.read(&key, WITHIN).await.is_err() {
        assert!(clock::boot() < give_up, "the second was not reached");
    }
    assert!(second.counts().reads > 0);
}

#[tokio::test]
async fn hosts_of_two_datacenters_are_no_store() {
    let (one, two, away) = (Consul::start(), Consul::start(), Consul::prepared(None));
    let url = format!("{},{},{}", away.url(), one.host(), two.host());
    let store = opened(&url).await;
    let key = key("key");
    let change = write(&key, Expect::Absent, b"x");
    let refused = store.compare_and_swap(change, WITHIN).await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    let why = why.to_string();
    assert!(why.contains("found two leaders"), "{why}");
    assert_eq!([one.counts().writes, two.counts().writes], [0, 0]);
    // One without a leader has no registers to offer.
    two.lose_the_leader(true);
    let give_up = clock::boot().after(WITHIN);
    while let Err(error) = store.read(&key, WITHIN).await {
        assert!(clock::boot() < give_up, "{error}");
    }
    put(&store, &key, Expect::Absent, b"x").await;
    assert_eq!((one.names().len(), two.names().len()), (1, 0));
}

#[tokio::test]
async fn an_index_that_goes_back_is_noticed() {
    let server = Consul::start();
    let (store, writer) = (opened(&server.url()).await, opened(&server.url()).await);
    let key = key("key");
    let mut watch = store.watch(Selector::Key(key.clone()));
    let mut below = store.watch(Selector::Prefix("other/".into()));
    let old = put(&writer, &key, Expect::Absent, b"old").await;
    until(&mut watch, shows(&old)).await;
    let news = async {
        let mut last = old.clone();
        for _ in 0..5 {
            last = put(&writer, &key, Expect::Version(last), b"new").await;
        }
        until(&mut watch, shows(&last)).await;
        let other = self::key("other/one");
        let version = put(&writer, &other, Expect::Absent, b"x").await;
        until(&mut below, shows(&version)).await;
    };
    // A backup is put back under the watch.
    server.restored_after(news).await;
    until(&mut watch, shows(&old)).await;
    until(&mut below, |seen| matches!(seen, Sighting::State(_, None))).await;
    let next = put(&writer, &key, Expect::Version(old), b"next").await;
    until(&mut watch, shows(&next)).await;
}

#[tokio::test]
async fn a_deletion_is_by_comparison_and_no_version_comes_again() {
    let server = Consul::start();
    let store = opened(&server.url()).await;
    let key = key("key");
    let mut last = None::<Version>;
    for _ in 0..3 {
        let version = put(&store, &key, Expect::Absent, b"x").await;
        assert!(last.is_none_or(|last| last < version), "they grow");
        let same = put(&store, &key, Expect::Version(version.clone()), b"x").await;
        assert!(version < same, "the same bytes are another version");
        let stale = store.delete(&key, &version, WITHIN).await;
        assert!(matches!(stale, Err(StoreError::Conflict)), "{stale:?}");
        store.delete(&key, &same, WITHIN).await.expect("to delete");
        let again = store.delete(&key, &same, WITHIN).await;
        assert!(matches!(again, Err(StoreError::Conflict)), "{again:?}");
        last = Some(same);
    }
}

#[tokio::test]
async fn what_others_write_is_read_as_it_is_and_troubles_no_other() {
    let server = Consul::start();
    let store = opened(&server.url()).await;
    put(&store, &key("elections/good"), Expect::Absent, b"x").await;
    server.set("tenure/elections/hand", b"\0\x01garbage");
    for nobodys in [
        "tenure/elections/",
        "tenure/elections/a b",
        "tenure/elections/=zz",
        "else",
    ] {
        server.set(nobodys, b"");
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
    assert_eq!(
        server.value("tenure/elections/hand"),
        Some(b"mended".to_vec())
    );
}

#[tokio::test]
async fn a_token_needs_rights() {
    let server = Consul::start();
    server.ask_for_tokens(&[
        ("sesame", "tenure/", true),
        ("looks", "tenure/", false),
        ("other", "other/", true),
    ]);
    let dir = tempfile::tempdir().expect("a directory");
    let with = |token: &str| {
        let path = dir.path().join(token);
        fs::write(&path, format!("{token}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
        format!("{}?token_file={}", server.url(), path.display())
    };
    let store = opened(&with("sesame")).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"x").await;
    assert!(!format!("{store} {store:?}").contains("sesame"), "{store}");
    let looks = opened(&with("looks")).await;
    assert!(held(&looks, &key).await.is_some());
    let change = write(&key, Expect::Version(version), b"y");
    let refused = looks.compare_and_swap(change, WITHIN).await;
    let Err(StoreError::Broken(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("Permission denied"), "{why}");
    for (url, token) in [
        (with("other"), "other"),
        (with("stranger"), "stranger"),
        (server.url(), "sesame"),
    ] {
        let why = broken(&url).await;
        assert!(why.contains("403") && why.contains("token_file="), "{why}");
        // The server repeats it.
        assert!(!why.contains(token), "{why}");
    }
}

#[tokio::test]
async fn tls_is_spoken_where_it_is_asked_for() {
    let authority = certificates::authority();
    let [certificate, own_key] = certificates::certified(&authority, false);
    let server = Consul::start_encrypted(&certificate, &own_key);
    let dir = tempfile::tempdir().expect("a directory");
    let ca = dir.path().join("ca");
    fs::write(&ca, authority.pem()).expect("written");
    let key = key("key");
    let store = opened(&format!("{}?ca={}", server.url(), ca.display())).await;
    let version = put(&store, &key, Expect::Absent, b"secret").await;
    assert_eq!(held(&store, &key).await.map(|it| it.version), Some(version));
    // A certificate of nobody we know.
    let stranger = certificates::authority();
    fs::write(&ca, stranger.pem()).expect("written");
    let why = broken(&format!("{}?ca={}", server.url(), ca.display())).await;
    assert!(why.contains("certificate"), "{why}");
    // A line without TLS to a server that speaks nothing else.
    let refused = opened(&server.url()).await.read(&key, WITHIN).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn wrong_urls_say_what_was_expected() {
    for url in [
        "consul:h",
        "consul://user@h",
        "consul://h/path",
        "consul://h?prefix=a//b",
        "consul://h?ca=/does/not/exist",
        "consul://h?token_file=/does/not/exist",
    ] {
        let refused = open(url).await;
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{url} was taken");
        };
        assert!(why.to_string().contains("expected"), "{url}: {why}");
    }
}

#[tokio::test]
async fn what_is_no_consul_is_refused() {
    let server = Consul::start();
    // Of the bare path every server says 404, and only Consul says an index.
    let answered = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = answered.local_addr().expect("bound");
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        while let Ok((mut stream, _)) = answered.accept() {
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let why = broken(&format!("consul://{address}")).await;
    assert!(
        why.contains("expected the HTTP interface of Consul"),
        "{why}"
    );
    assert_eq!(held(&opened(&server.url()).await, &key("key")).await, None);
}

#[tokio::test]
async fn a_leader_is_elected_and_another_takes_over_when_it_resigns() {
    let server = Consul::start();
    let url = server.url();
    let store = "Consul (stand-in)";
    takeovers::measure(store, Notices::ByWatch, || opened(&url)).await;
}
