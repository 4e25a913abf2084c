//! The store of objects against private S3 servers: SeaweedFS, a real one, and moto,
//! an emulator of Amazon's. The conformance suite, races, answers that are lost,
//! servers that go away or ignore conditions, and what a minute costs. The same against
//! emulators of Azure's and Google's ([`google`]), and there elections that are shared with
//! another program ([`shared_elections`]).

#![allow(clippy::print_stdout, reason = "figures are printed")]

mod google;
mod proxy;
mod servers;
mod shared_elections;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::calls::{
    WITHIN, count_in_processes, held, key, opened, put, shows, store_to_count_in, until, write,
};
use crate::common::secrets::secret_file;
use crate::common::takeovers::{self, Notices};
use crate::common::versions::version;
use crate::common::{certificates, installed, ports, stopped};
use proxy::{Proxy, Rule};
use servers::Server;
use tenure::store::conformance::{self, count_of, count_up};
use tenure::store::{Expect, Key, Selector, Store, Version, open};
use tenure::{Election, StoreError, clock};

/// A server with a bucket, and files of credentials for it.
struct Place {
    server: Server,
    directory: tempfile::TempDir,
}

impl Place {
    fn of(server: Server) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, secret) in [("right", "tenure-secret"), ("wrong", "guessed-secret")] {
            let text = format!(
                "[default]\naws_access_key_id = tenure\naws_secret_access_key = {secret}\n"
            );
            secret_file(&directory.path().join(name), &text);
        }
        Self { server, directory }
    }

    fn seaweed() -> Self {
        Self::of(Server::seaweed())
    }

    fn moto() -> Self {
        Self::of(Server::moto())
    }

    fn url_at(&self, endpoint: &str, bucket: &str, credentials: &str) -> String {
        let file = self.directory.path().join(credentials);
        let file = file.display();
        format!("s3://{bucket}/a/b?endpoint={endpoint}&credentials_file={file}&poll=20ms")
    }

    fn url(&self) -> String {
        self.url_at(&self.server.endpoint(), "bucket", "right")
    }

    fn proxied(&self) -> (Proxy, String) {
        let proxy = Proxy::before(self.server.port());
        let url = self.url_at(&proxy.endpoint(), "bucket", "right");
        (proxy, url)
    }
}

fn broken<T: std::fmt::Debug>(result: Result<T, StoreError>, words: &str) {
    match result {
        Err(StoreError::Broken(why)) => assert!(why.to_string().contains(words), "{why}"),
        other => panic!("expected a store that is broken, found {other:?}"),
    }
}

#[tokio::test]
async fn a_real_server_conforms() {
    let place = Place::seaweed();
    let store = opened(&place.url()).await;
    conformance::all(&store, "try/").await;
    any_key_is_listed_in_its_place(&store).await;
}

/// What says which store is in a container of Azurite.
fn azure_url(server: &Server, key: &std::path::Path, container: &str) -> String {
    let (endpoint, key) = (server.endpoint(), key.display());
    let account = "devstoreaccount1";
    format!(
        "az://{container}/a/b?account={account}&endpoint={endpoint}/{account}&\
         credentials_file={key}&poll=20ms"
    )
}

/// A file that nobody else reads.
#[tokio::test]
async fn an_emulator_of_azure_conforms() {
    let server = Server::azurite();
    let directory = tempfile::tempdir().expect("a directory");
    let (right, wrong) = (
        directory.path().join("right"),
        directory.path().join("wrong"),
    );
    secret_file(&right, servers::AZURITE_KEY);
    secret_file(&wrong, "Z3Vlc3NlZA==");
    let store = opened(&azure_url(&server, &right, "bucket")).await;
    conformance::all(&store, "try/").await;
    any_key_is_listed_in_its_place(&store).await;
    let key = key("key");
    let doubted = opened(&azure_url(&server, &wrong, "bucket")).await;
    broken(doubted.read(&key, WITHIN).await, "check them");
    let nowhere = opened(&azure_url(&server, &right, "missing")).await;
    broken(nowhere.read(&key, WITHIN).await, "make it");
    let made = nowhere.compare_and_swap(write(&key, Expect::Absent, b"x"), WITHIN);
    broken(made.await, "make it");
    // Listings keep what they have read, whatever their tags look like.
    let proxy = Proxy::before(server.port());
    let url = azure_url(&server, &right, "bucket").replace(&server.endpoint(), &proxy.endpoint());
    let store = opened(&url).await;
    for expected in [14, 1] {
        let page = store.list("any/", None, WITHIN).await.expect("a page");
        assert_eq!(page.registers.len(), 13);
        let asked = proxy.asked();
        assert!(
            asked.len() >= expected && (expected > 1 || asked.len() == 1),
            "{asked:?}"
        );
    }
    follows_no_redirect(server.port(), &proxy, &url, "PUT").await;
    limits_answers(&proxy, &url, "PUT", "at most 16 MiB").await;
}

#[tokio::test]
async fn an_emulator_of_amazon_conforms() {
    let place = Place::moto();
    let store = opened(&place.url()).await;
    conformance::all(&store, "try/").await;
    any_key_is_listed_in_its_place(&store).await;
}

/// Keys that would be paths, that are long, and that were deleted.
async fn any_key_is_listed_in_its_place(store: &Arc<dyn Store>) {
    let long = |first: &str| first.repeat(Key::MAX_BYTES / first.len());
    let mut keys: Vec<_> = [
        "any/.", "any/..", "any//", "any/a//b", "any/a", "any/a/b", "any/%2F", "any/=", "any/ä",
    ]
    .map(key)
    .into();
    for last in ["a", "/", "ä", "zz"] {
        let text = format!("any/{}", long(last));
        let cut = (0..=Key::MAX_BYTES)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        keys.push(key(&text[..cut.expect("a boundary")]));
    }
    for key in &keys {
        put(store, key, Expect::Absent, key.as_str().as_bytes()).await;
    }
    let gone = key("any/gone");
    let version = put(store, &gone, Expect::Absent, b"").await;
    store
        .delete(&gone, &version, WITHIN)
        .await
        .expect("to delete");
    put(store, &key("/any"), Expect::Absent, b"").await;
    keys.sort();
    let page = store.list("any/", None, WITHIN).await.expect("a page");
    let found: Vec<_> = page.registers.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(found, keys);
    for (key, register) in &page.registers {
        assert_eq!(*register.value, *key.as_str().as_bytes());
        assert_eq!(held(store, key).await.as_ref(), Some(register));
    }
    let beginning = format!("any/{}", "a".repeat(200));
    let one = store.list(&beginning, None, WITHIN);
    assert_eq!(one.await.expect("a page").registers.len(), 1);
    let after = store
        .list("any/", keys.get(3), WITHIN)
        .await
        .expect("a page");
    assert_eq!(after.registers.len(), keys.len() - 4);
}

/// Not a test of its own: what a child process of the race below does.
#[tokio::test]
async fn child_counts() {
    if let Some(store) = store_to_count_in().await {
        count_up(&store, &key("processes/counter"), 10).await;
    }
}

#[tokio::test]
async fn processes_lose_no_update() {
    processes_count(&Place::seaweed().url()).await;
}

async fn processes_count(url: &str) {
    // Without TLS no authorities are needed.
    count_in_processes(
        module_path!(),
        4,
        url,
        &[
            ("SSL_CERT_FILE", "/nonexistent"),
            ("SSL_CERT_DIR", "/nonexistent"),
        ],
    );
    let store = opened(url).await;
    let found = held(&store, &key("processes/counter")).await;
    assert_eq!(found.as_ref().map(count_of), Some(40));
}

#[tokio::test]
async fn a_register_that_was_deleted_is_made_again_by_one() {
    is_made_again_by_one(&Place::moto().url()).await;
}

async fn is_made_again_by_one(url: &str) {
    let key = key("again");
    let stores = [opened(url).await, opened(url).await];
    let mut last = put(&stores[0], &key, Expect::Absent, b"first").await;
    for round in 0..10u8 {
        let deleted = last.clone();
        stores[0]
            .delete(&key, &deleted, WITHIN)
            .await
            .expect("to delete");
        assert_eq!(held(&stores[1], &key).await, None);
        let twice = stores[1].delete(&key, &deleted, WITHIN).await;
        assert!(matches!(twice, Err(StoreError::Conflict)), "{twice:?}");
        let make =
            |at: usize| stores[at].compare_and_swap(write(&key, Expect::Absent, &[round]), WITHIN);
        let (one, other) = tokio::join!(make(0), make(1));
        let (won, lost) = if one.is_ok() {
            (one, other)
        } else {
            (other, one)
        };
        last = won.expect("one of the two").version;
        assert!(matches!(lost, Err(StoreError::Conflict)), "{lost:?}");
        assert!(last > deleted, "versions grow");
        // A late deletion of what was there before deletes nothing.
        let late = stores[1].delete(&key, &deleted, WITHIN).await;
        assert!(matches!(late, Err(StoreError::Conflict)), "{late:?}");
    }
    assert_eq!(
        held(&stores[1], &key).await.map(|held| held.version),
        Some(last)
    );
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let place = Place::moto();
    let (proxy, url) = place.proxied();
    follows_no_redirect(place.server.port(), &proxy, &url, "PUT").await;
}

/// What `proxy` redirects to `port` is not asked there, and a write is none.
async fn follows_no_redirect(port: u16, proxy: &Proxy, url: &str, writes: &'static str) {
    let (store, other, key) = (opened(url).await, Proxy::before(port), key("redirected"));
    let version = put(&store, &key, Expect::Absent, b"before").await;
    for status in [301, 302, 303, 307, 308] {
        for method in [writes, "GET"] {
            let place = other.endpoint();
            let answer = format!(
                "HTTP/1.1 {status} Elsewhere\r\nLocation: {place}/bucket/login\r\n\
                 Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
            proxy.set(Rule::Answer(method, answer.leak()));
            let change = write(&key, Expect::Version(version.clone()), b"after");
            if method == writes {
                broken(store.compare_and_swap(change, WITHIN).await, "check the");
            } else {
                broken(store.read(&key, WITHIN).await, "check the");
                broken(store.list("", None, WITHIN).await, "check the");
            }
            proxy.set(Rule::Pass);
            assert_eq!(other.asked(), Vec::<String>::new(), "{status}");
        }
    }
    assert_eq!(held(&store, &key).await.expect("it").version, version);
}

/// A portal that asks for a login, say.
#[tokio::test]
async fn an_answer_that_is_no_listing_is_not_an_empty_one() {
    let place = Place::moto();
    let (proxy, url) = place.proxied();
    let store = opened(&url).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 13\r\nConnection: close\r\n\r\n<html></html>",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ] {
        proxy.set(Rule::Answer("GET", answer));
        let listed = store.list("", None, WITHIN).await;
        let why = listed.expect_err("no listing").to_string();
        assert!(why.contains("ListBucketResult"), "{why}");
    }
    proxy.set(Rule::Pass);
    let listed = store.list("", None, WITHIN).await.expect("a listing");
    assert_eq!(listed.registers.len(), 1);
}

#[tokio::test]
async fn an_answer_has_a_limit() {
    let place = Place::moto();
    let (proxy, url) = place.proxied();
    limits_answers(&proxy, &url, "PUT", "at most 16 MiB").await;
}

/// Answers that say that they are longer than any memory, and those that have no end.
/// What is said of a listing has these `words`.
async fn limits_answers(proxy: &Proxy, url: &str, writes: &'static str, words: &str) {
    let (store, key) = (opened(url).await, key("long"));
    let version = put(&store, &key, Expect::Absent, b"before").await;
    let change = || write(&key, Expect::Version(version.clone()), b"after");
    for head in [
        "HTTP/1.1 412 No\r\nContent-Length: 9223372036854775807\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n",
        "HTTP/1.1 500 No\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    ] {
        proxy.set(Rule::Endless("GET", head));
        let listed = store.list("", None, WITHIN).await;
        let why = listed.expect_err("no listing").to_string();
        assert!(why.contains(words), "{head}: {why}");
        let read = store.read(&key, WITHIN).await;
        assert!(read.is_err(), "{head}: {read:?}");
        proxy.set(Rule::Endless(writes, head));
        let written = store.compare_and_swap(change(), WITHIN).await;
        assert!(written.is_err(), "{head}: {written:?}");
    }
    proxy.set(Rule::Pass);
    put(&store, &key, Expect::Version(version), b"after").await;
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_unknown_and_sent_once() {
    let place = Place::moto();
    let (proxy, url) = place.proxied();
    let store = opened(&url).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    for (rule, value) in [
        (Rule::LoseAnswers("PUT"), &b"after"[..]),
        (
            Rule::Answer(
                "PUT",
                "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            ),
            b"before",
        ),
        (
            Rule::Answer(
                "PUT",
                "HTTP/1.1 500 Internal\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            ),
            b"before",
        ),
    ] {
        let version = if let Some(held) = held(&store, &key).await {
            held.version
        } else {
            version.clone()
        };
        let _ = put(&store, &key, Expect::Version(version), b"before").await;
        let version = held(&store, &key).await.expect("a register").version;
        proxy.set(rule);
        proxy.asked();
        let change = write(&key, Expect::Version(version), b"after");
        let lost = store.compare_and_swap(change, WITHIN).await;
        assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
        assert_eq!(proxy.asked(), ["PUT /bucket/a/b/key"]);
        proxy.set(Rule::Pass);
        assert_eq!(*held(&store, &key).await.expect("a register").value, *value);
    }
    // A proxy that compresses answers weakens their tags.
    proxy.set(Rule::Answer(
        "GET",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\nETag: W/\"a\"\r\n\
         Last-Modified: Fri, 27 Nov 2026 12:00:00 GMT\r\n\r\nx",
    ));
    broken(store.read(&key, WITHIN).await, "strong ETag");
    // A read is refused for the moment.
    proxy.set(Rule::Answer(
        "GET",
        "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ));
    proxy.asked();
    let late = store.read(&key, WITHIN).await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
    assert_eq!(proxy.asked().len(), 1, "sent once");
}

#[tokio::test]
async fn a_server_that_ignores_conditions_is_refused() {
    let place = Place::moto();
    let (proxy, url) = place.proxied();
    proxy.set(Rule::ForgetConditions);
    let store = opened(&url).await;
    let made = store.compare_and_swap(write(&key("key"), Expect::Absent, b"x"), WITHIN);
    broken(made.await, "two would lead");
    assert_eq!(held(&store, &key("key")).await, None, "nothing was written");
    // It is asked again, and heeds them now.
    proxy.set(Rule::Pass);
    put(&store, &key("key"), Expect::Absent, b"x").await;
}

#[tokio::test]
async fn a_server_may_come_late_go_away_and_come_back() {
    let mut place = Place::seaweed();
    let url = place.url();
    comes_and_goes(&mut place.server, &url).await;
}

async fn comes_and_goes(server: &mut Server, url: &str) {
    server.kill();
    let store = opened(url).await;
    let key = key("key");
    let mut watch = store.watch(Selector::Key(key.clone()));
    let refused = store.compare_and_swap(write(&key, Expect::Absent, b"x"), WITHIN);
    match refused.await {
        Err(StoreError::Unavailable(why)) => {
            let why = why.to_string();
            assert!(
                why.contains("refused") && why.contains("://bucket/a/b"),
                "{why}"
            );
        }
        other => panic!("expected that nothing was sent, found {other:?}"),
    }
    server.launch();
    let version = put_when_it_serves(&store, &key).await;
    until(&mut watch, shows(&version)).await;
    // Frozen in mid use.
    server.pause();
    let change = write(&key, Expect::Version(version.clone()), b"late");
    let late = store
        .compare_and_swap(change, Duration::from_millis(300))
        .await;
    assert!(matches!(late, Err(StoreError::Unknown(_))), "{late:?}");
    let late = store.read(&key, Duration::from_millis(300)).await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
    server.resume();
    // The late write may take effect at any time from now on, or never.
    let version = loop {
        let before = held(&store, &key).await.expect("a register");
        let after = write(&key, Expect::Version(before.version), b"after");
        match store.compare_and_swap(after, WITHIN).await {
            Ok(written) => break written.version,
            Err(StoreError::Conflict) => {}
            Err(other) => panic!("{other}"),
        }
    };
    until(&mut watch, shows(&version)).await;
    // Killed, and back with its data.
    server.kill();
    let gone = store.read(&key, WITHIN).await;
    assert!(matches!(gone, Err(StoreError::Unavailable(_))), "{gone:?}");
    server.launch();
    let give_up = clock::boot().after(WITHIN);
    let held = loop {
        match store.read(&key, WITHIN).await {
            Ok(found) => break found.register.expect("what was acknowledged"),
            Err(other) => assert!(clock::boot() < give_up, "{other}"),
        }
    };
    assert_eq!((&*held.value, &held.version), (&b"after"[..], &version));
    let version = put(&store, &key, Expect::Version(version), b"more").await;
    until(&mut watch, shows(&version)).await;
}

/// A server that has just come up may say 503, or that it has no bucket yet.
async fn put_when_it_serves(store: &Arc<dyn Store>, key: &Key) -> Version {
    let give_up = clock::boot().after(WITHIN);
    loop {
        let made = store.compare_and_swap(write(key, Expect::Absent, b"x"), WITHIN);
        match made.await {
            Ok(written) => return written.version,
            Err(StoreError::Conflict) => {
                return held(store, key).await.expect("a register").version;
            }
            Err(other) => assert!(clock::boot() < give_up, "{other}"),
        }
    }
}

#[tokio::test]
async fn what_a_person_must_do_is_said() {
    let place = Place::seaweed();
    let (endpoint, key) = (place.server.endpoint(), key("key"));
    let wrong = opened(&place.url_at(&endpoint, "bucket", "wrong")).await;
    broken(wrong.read(&key, WITHIN).await, "check them");
    let made = wrong.compare_and_swap(write(&key, Expect::Absent, b"x"), WITHIN);
    broken(made.await, "s3:PutObject");
    broken(wrong.list("", None, WITHIN).await, "s3:ListBucket");
    let emulated = Place::moto();
    for place in [&place, &emulated] {
        let endpoint = place.server.endpoint();
        let nowhere = opened(&place.url_at(&endpoint, "missing", "right")).await;
        broken(nowhere.read(&key, WITHIN).await, "make it");
        broken(nowhere.list("", None, WITHIN).await, "make it");
    }
    let nowhere = emulated.url_at(&emulated.server.endpoint(), "missing", "right");
    let made = opened(&nowhere).await;
    let made = made.compare_and_swap(write(&key, Expect::Absent, b"x"), WITHIN);
    broken(made.await, "make it");
    for url in [
        "s3://bucket?credentials_file=/does/not/exist".to_owned(),
        format!("{}&unknown=1", place.url()),
        format!("s3://tenure:tenure-secret@bucket?endpoint={endpoint}"),
    ] {
        let refused = open(&url).await.expect_err("a wrong URL").to_string();
        assert!(refused.contains("expected"), "{refused}");
        assert!(!refused.contains("tenure-secret"), "{refused}");
    }
}

#[tokio::test]
async fn a_server_is_trusted_by_its_certificate_alone() {
    let authority = certificates::authority();
    let [certificate, secret] = certificates::certified(&authority, false);
    let place = Place::of(Server::encrypted_moto(&certificate, &secret));
    let url = place.url_at(&place.server.endpoint(), "bucket", "right");
    assert!(url.contains("https://"), "{url}");
    let doubted = opened(&url).await;
    let made = doubted.compare_and_swap(write(&key("key"), Expect::Absent, b"x"), WITHIN);
    match made.await {
        Err(StoreError::Unavailable(why)) => {
            assert!(why.to_string().contains("certificate"), "{why}");
        }
        other => panic!("expected that nothing was sent, found {other:?}"),
    }
    let file = place.directory.path().join("ca.pem");
    fs::write(&file, authority.pem()).expect("written");
    let trusted = opened(&format!("{url}&ca={}", file.display())).await;
    put(&trusted, &key("key"), Expect::Absent, b"x").await;
    assert!(held(&trusted, &key("key")).await.is_some());
}

/// Puts an object there by other means.
fn foreign(place: &Place, name: &str, bytes: &[u8]) {
    use std::io::{Read as _, Write as _};
    let head = format!(
        "PUT /bucket/a/b/{name} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        bytes.len()
    );
    let port = place.server.port();
    let mut server = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a server");
    server.write_all(head.as_bytes()).expect("sent");
    server.write_all(bytes).expect("sent");
    let mut answer = String::new();
    server.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains(" 200 "), "{answer}");
}

#[tokio::test]
async fn what_others_wrote_is_a_value_and_troubles_no_other_register() {
    let place = Place::moto();
    let store = opened(&place.url()).await;
    foreign(&place, "garbage", b"by hand");
    foreign(&place, "folder/garbage", b"by hand");
    put(&store, &key("own"), Expect::Absent, b"x").await;
    let found = held(&store, &key("garbage")).await.expect("a register");
    assert_eq!(*found.value, *b"by hand");
    let listed = store
        .list("", None, WITHIN)
        .await
        .expect("a page")
        .registers;
    let keys: Vec<_> = listed.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["garbage", "own"]);
    // It is written over, and not by those who have not seen it.
    let blind = store.compare_and_swap(write(&key("garbage"), Expect::Absent, b"x"), WITHIN);
    assert!(matches!(blind.await, Err(StoreError::Conflict)));
    let version = put(
        &store,
        &key("garbage"),
        Expect::Version(found.version.clone()),
        b"x",
    )
    .await;
    assert!(version > found.version);
    foreign(&place, "double//slash", b"by hand");
    broken(store.list("", None, WITHIN).await, "delete that object");
    assert_eq!(
        store
            .list("o", None, WITHIN)
            .await
            .expect("a page")
            .registers
            .len(),
        1
    );
    foreign(&place, "large", &vec![0; 300 * 1_024]);
    broken(store.read(&key("large"), WITHIN).await, "delete it");
    held(&store, &key("own")).await.expect("a register");
}

#[tokio::test]
async fn a_listing_reads_what_has_changed_and_no_more() {
    let place = Place::moto();
    let (proxy, url) = place.proxied();
    let store = opened(&url).await;
    let mut versions = Vec::new();
    for number in 0..5 {
        versions.push(put(&store, &key(&format!("k{number}")), Expect::Absent, b"x").await);
    }
    proxy.asked();
    let gets = || {
        let asked = proxy.asked();
        let gets = asked.iter().filter(|it| !it.contains('?')).count();
        (gets, asked.len() - gets)
    };
    store.list("k", None, WITHIN).await.expect("a page");
    assert_eq!(gets(), (5, 1));
    let first = store.list("k", None, WITHIN).await.expect("a page");
    assert_eq!(gets(), (0, 1));
    let other = opened(&place.url()).await;
    let expect = Expect::Version(versions[2].clone());
    let changed = put(&other, &key("k2"), expect, b"x").await;
    let second = store.list("k", None, WITHIN).await.expect("a page");
    assert_eq!(gets(), (1, 1));
    assert_eq!(second.registers[2].1.version, changed);
    assert_eq!(first.registers[3], second.registers[3]);
}

/// A leader, and a candidate that waits; what that costs.
#[tokio::test]
async fn leaders_are_elected_and_each_request_of_a_minute_is_counted() {
    let place = Place::seaweed();
    let (leads, waits) = (place.proxied(), place.proxied());
    counts_a_minute(&leads, &waits, "PUT").await;
}

/// `leads` and `waits` are proxies before one store, with its URLs there;
/// `writes` is what requests begin with that write.
async fn counts_a_minute(
    (leads, leads_url): &(Proxy, String),
    (waits, waits_url): &(Proxy, String),
    writes: &str,
) {
    // As the defaults look, for a lease of two fifths of the default.
    let scaled = |url: &str| url.replace("poll=20ms", "poll=400ms&poll_max=4s");
    let stand = async |url: &str, name: &str| {
        let store = opened(&scaled(url)).await;
        let builder = Election::builder(store, "payroll").name(name);
        builder
            .lease(Duration::from_secs(4))
            .start()
            .expect("a candidate")
    };
    let mut first = stand(leads_url, "one").await;
    let leadership = first.elected().await.expect("a leadership");
    let second = stand(waits_url, "two").await;
    while second.leader().is_none() {
        second.events().next().await.expect("an event");
    }
    let puts = |asked: &[String]| asked.iter().filter(|it| it.starts_with(writes)).count();
    // Begins with a renewal.
    let mut valid = leadership.extended().await.expect("it leads");
    leads.asked();
    waits.asked();
    let (begun, mut renewals) = (clock::boot(), 0);
    while renewals < 6 {
        let next = leadership.extended().await.expect("it leads");
        renewals += usize::from(next != valid);
        valid = next;
    }
    let took = clock::boot().since(begun).as_secs_f64();
    let (of_leader, of_waiting) = (leads.asked(), waits.asked());
    // With the default lease all of it takes two and a half times as long.
    let minute = |count: usize| count as f64 * 60.0 / took / 2.5;
    println!(
        "requests a minute, with the default lease: a leader {:.0} {writes} and {:.0} GET, a candidate \
         that waits {:.0} {writes} and {:.0} GET ({renewals} renewals in {took:.1} s of a lease of 4 s)",
        minute(puts(&of_leader)),
        minute(of_leader.len() - puts(&of_leader)),
        minute(puts(&of_waiting)),
        minute(of_waiting.len() - puts(&of_waiting)),
    );
    assert_eq!(puts(&of_waiting), 0, "{of_waiting:?}");
    assert!(puts(&of_leader) <= renewals + 2, "{of_leader:?}");
    assert!(of_leader.len() <= 4 * renewals + 4, "{of_leader:?}");
    assert!(of_waiting.len() <= 4 * renewals + 4, "{of_waiting:?}");
    drop(leadership);
    second.stop().await;
    first.stop().await;
}

/// The store looks every 100 ms.
async fn measure_take_overs(store: &str, url: &str) {
    let url = url.replace("poll=20ms", "poll=100ms&poll_max=100ms");
    let polls = Notices::ByPolls(Duration::from_millis(100));
    takeovers::measure(store, polls, || opened(&url)).await;
}

#[tokio::test]
async fn on_a_real_server_another_takes_over_when_a_leader_resigns() {
    let place = Place::seaweed();
    let version = version(installed::installed("bin/weed"), &["version"]);
    measure_take_overs(&format!("S3 (SeaweedFS {version})"), &place.url()).await;
}

#[tokio::test]
async fn at_azure_another_takes_over_when_a_leader_resigns() {
    let server = Server::azurite();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("key");
    secret_file(&file, servers::AZURITE_KEY);
    let program = installed::installed(servers::AZURITE).display().to_string();
    let version = version(installed::installed("node"), &[&program, "--version"]);
    let store = format!("Azure (Azurite {version})");
    measure_take_overs(&store, &azure_url(&server, &file, "bucket")).await;
}
