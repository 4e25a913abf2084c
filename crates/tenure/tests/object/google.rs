//! Google Cloud Storage, by fake-gcs-server, an emulator. It heeds the generations that
//! writes are conditional on, and keeps its objects on disk. It looks at no token; what
//! is sent to Google in that place is shown by the proxy.

use rcgen::{KeyPair, PKCS_RSA_SHA256};

use super::*;

/// Which store is in a bucket of the server.
fn url_at(endpoint: &str, bucket: &str) -> String {
    format!("gs://{bucket}/a/b?endpoint={endpoint}&poll=20ms")
}

fn url(server: &Server) -> String {
    url_at(&server.endpoint(), "bucket")
}

fn proxied(server: &Server) -> (Proxy, String) {
    let proxy = Proxy::before(server.port());
    let url = url_at(&proxy.endpoint(), "bucket");
    (proxy, url)
}

/// A file with the key of a service account.
fn account(directory: &tempfile::TempDir) -> std::path::PathBuf {
    let key = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key");
    let file = directory.path().join("account.json");
    let key = key.serialize_pem().replace('\n', "\\n");
    let text = format!(
        "{{\"type\": \"service_account\", \"client_email\": \"tenure@project\", \
         \"private_key_id\": \"k\", \"private_key\": \"{key}\"}}"
    );
    secret_file(&file, &text);
    file
}

/// An answer of Google's that refuses a request, by this status and reason.
macro_rules! refusal {
    ($status:literal, $reason:literal) => {
        concat!(
            "HTTP/1.1 ",
            $status,
            "\r\nConnection: close\r\nContent-Type: application/json\r\n\r\n",
            "{\"error\": {\"message\": \"No.\", \"errors\": [{\"reason\": \"",
            $reason,
            "\"}]}}"
        )
    };
}

#[tokio::test]
async fn an_emulator_of_google_conforms() {
    let server = Server::google();
    let store = opened(&url(&server)).await;
    conformance::all(&store, "try/").await;
    any_key_is_listed_in_its_place(&store).await;
    // The other spelling is the same store.
    let alias = opened(&url(&server).replace("gs://", "gcs://")).await;
    assert_eq!(
        alias.list("any/", None, WITHIN).await.expect("a page"),
        store.list("any/", None, WITHIN).await.expect("a page")
    );
}

#[tokio::test]
async fn processes_lose_no_update_of_google() {
    processes_count(&url(&Server::google())).await;
}

#[tokio::test]
async fn a_register_that_was_deleted_at_google_is_made_again_by_one() {
    is_made_again_by_one(&url(&Server::google())).await;
}

#[tokio::test]
async fn google_is_followed_nowhere_and_answers_have_a_limit() {
    let server = Server::google();
    let (proxy, url) = proxied(&server);
    follows_no_redirect(server.port(), &proxy, &url, "POST").await;
    limits_answers(&proxy, &url, "POST", "").await;
}

#[tokio::test]
async fn google_may_come_late_go_away_and_come_back() {
    let mut server = Server::google();
    let url = url(&server);
    comes_and_goes(&mut server, &url).await;
}

#[tokio::test]
async fn a_leader_is_elected_at_google_and_each_request_of_a_minute_is_counted() {
    let server = Server::google();
    let (leads, waits) = (proxied(&server), proxied(&server));
    counts_a_minute(&leads, &waits, "POST").await;
}

#[tokio::test]
async fn a_server_that_ignores_generations_is_refused() {
    let server = Server::google();
    let (proxy, url) = proxied(&server);
    proxy.set(Rule::ForgetConditions);
    let store = opened(&url).await;
    let made = store.compare_and_swap(write(&key("key"), Expect::Absent, b"x"), WITHIN);
    broken(made.await, "ifGenerationMatch does not hold");
    assert_eq!(held(&store, &key("key")).await, None, "nothing was written");
    proxy.set(Rule::Pass);
    put(&store, &key("key"), Expect::Absent, b"x").await;
}

#[tokio::test]
async fn a_write_to_google_is_sent_once_and_carries_the_generation() {
    let server = Server::google();
    let (proxy, url) = proxied(&server);
    let store = opened(&url).await;
    let key = key("key");
    put(&store, &key, Expect::Absent, b"before").await;
    for (rule, is_done) in [
        (Rule::LoseAnswers("POST"), true),
        (
            Rule::Answer("POST", refusal!("503 x", "backendError")),
            false,
        ),
        (
            Rule::Answer("POST", refusal!("500 x", "internalError")),
            false,
        ),
        // What it is of an answer is not known.
        (
            Rule::Answer("POST", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}"),
            false,
        ),
    ] {
        let first = held(&store, &key).await.expect("a register");
        let before = put(&store, &key, Expect::Version(first.version), b"before").await;
        let generation = String::from_utf8_lossy(&before.as_bytes()[8..]).into_owned();
        proxy.set(rule);
        proxy.asked();
        let change = write(&key, Expect::Version(before), b"after");
        let lost = store.compare_and_swap(change, WITHIN).await;
        assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
        let asked = proxy.asked();
        let expected = format!("&ifGenerationMatch={generation}");
        assert!(
            asked.len() == 1 && asked[0].ends_with(&expected),
            "{asked:?}, {expected}"
        );
        proxy.set(Rule::Pass);
        let found = held(&store, &key).await.expect("a register");
        assert_eq!(*found.value == *b"after", is_done, "{found:?}");
    }
    // Deletions carry it, too.
    let version = held(&store, &key).await.expect("a register").version;
    let generation = String::from_utf8_lossy(&version.as_bytes()[8..]).into_owned();
    proxy.asked();
    store
        .delete(&key, &version, WITHIN)
        .await
        .expect("to delete");
    let asked = proxy.asked();
    assert!(
        asked.len() == 1 && asked[0].ends_with(&format!("={generation}")),
        "{asked:?}"
    );
    assert_eq!(held(&store, &key).await, None);
}

#[tokio::test]
async fn what_google_refuses_is_told_by_what_to_do() {
    let server = Server::google();
    let (proxy, url) = proxied(&server);
    let (store, key) = (opened(&url).await, key("key"));
    let version = put(&store, &key, Expect::Absent, b"x").await;
    let change = || {
        let change = write(&key, Expect::Version(version.clone()), b"y");
        store.compare_and_swap(change, WITHIN)
    };
    // An object may be written about once a second.
    for often in [
        refusal!("429 x", "rateLimitExceeded"),
        refusal!("403 x", "userRateLimitExceeded"),
    ] {
        proxy.set(Rule::Answer("POST", often));
        let late = change().await;
        assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
    }
    proxy.set(Rule::Answer("POST", refusal!("412 x", "conditionNotMet")));
    let lost = change().await;
    assert!(matches!(lost, Err(StoreError::Conflict)), "{lost:?}");
    for refused in [
        refusal!("401 x", "authError"),
        refusal!("403 x", "forbidden"),
    ] {
        proxy.set(Rule::Answer("POST", refused));
        broken(change().await, "Storage Object User");
        proxy.set(Rule::Answer("GET", refused));
        broken(store.read(&key, WITHIN).await, "check them");
        broken(store.list("", None, WITHIN).await, "check them");
    }
    proxy.set(Rule::Answer("GET", refusal!("503 x", "backendError")));
    let late = store.read(&key, WITHIN).await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
    // A proxy that takes the generation away.
    proxy.set(Rule::Answer(
        "GET",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
    ));
    broken(store.read(&key, WITHIN).await, "expected a generation");
    // No listing.
    let odd = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]";
    proxy.set(Rule::Answer("GET", odd));
    let listed = store.list("", None, WITHIN).await;
    assert!(
        matches!(listed, Err(StoreError::Unavailable(_))),
        "{listed:?}"
    );
}

#[tokio::test]
async fn a_bucket_of_google_that_is_missing_and_wrong_urls_are_told() {
    let server = Server::google();
    let key = key("key");
    let nowhere = opened(&url_at(&server.endpoint(), "missing")).await;
    broken(nowhere.read(&key, WITHIN).await, "make it");
    broken(nowhere.list("", None, WITHIN).await, "make it");
    let made = nowhere.compare_and_swap(write(&key, Expect::Absent, b"x"), WITHIN);
    broken(made.await, "make it");
    for url in [
        "gs://bucket?credentials_file=/does/not/exist".to_owned(),
        "gs:bucket".to_owned(),
        "gcs://".to_owned(),
        format!("{}&region=x", url(&server)),
        format!(
            "gs://tenure:tenure-secret@bucket?endpoint={}",
            server.endpoint()
        ),
    ] {
        let refused = open(&url).await.expect_err("a wrong URL").to_string();
        assert!(refused.contains("expected"), "{refused}");
        assert!(!refused.contains("tenure-secret"), "{refused}");
    }
}

#[tokio::test]
async fn what_others_wrote_at_google_is_a_value_and_troubles_no_other_register() {
    let server = Server::google();
    let store = opened(&url(&server)).await;
    put(&store, &key("own"), Expect::Absent, b"x").await;
    let large = vec![0; 300 * 1_024];
    for (name, bytes) in [
        ("garbage", &b"by hand"[..]),
        ("folder/garbage", b"by hand"),
        ("large", &large),
    ] {
        foreign(&server, name, bytes);
    }
    let found = held(&store, &key("garbage")).await.expect("a register");
    assert_eq!(*found.value, *b"by hand");
    broken(store.read(&key("large"), WITHIN).await, "delete it");
    broken(store.list("", None, WITHIN).await, "delete it");
    let listed = store.list("g", None, WITHIN).await.expect("a page");
    assert_eq!(listed.registers.len(), 1);
    let blind = store.compare_and_swap(write(&key("garbage"), Expect::Absent, b"x"), WITHIN);
    assert!(matches!(blind.await, Err(StoreError::Conflict)));
    let expect = Expect::Version(found.version.clone());
    let version = put(&store, &key("garbage"), expect, b"x").await;
    assert!(version > found.version);
    held(&store, &key("own")).await.expect("a register");
}

/// Puts an object there by other means.
pub(crate) fn foreign(server: &Server, name: &str, bytes: &[u8]) {
    use std::io::{Read as _, Write as _};
    let name = name.replace('/', "%2F");
    let head = format!(
        "POST /upload/storage/v1/b/bucket/o?uploadType=media&name=a%2Fb%2F{name} HTTP/1.1\r\n\
         Host: h\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        bytes.len()
    );
    let mut server = std::net::TcpStream::connect(("127.0.0.1", server.port())).expect("a server");
    server.write_all(head.as_bytes()).expect("sent");
    server.write_all(bytes).expect("sent");
    let mut answer = String::new();
    server.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains(" 200 "), "{answer}");
}

#[tokio::test]
async fn a_long_listing_of_google_comes_in_pages() {
    let server = Server::google();
    let (proxy, url) = proxied(&server);
    for number in 0..1_001 {
        foreign(&server, &format!("k{number:04}"), b"x");
    }
    let store = opened(&url).await;
    let last = store.list("k", Some(&key("k0997")), WITHIN).await;
    let last = last.expect("a page").registers;
    let keys: Vec<_> = last.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["k0998", "k0999", "k1000"]);
    let asked = proxy.asked();
    let next = asked.iter().find(|it| it.contains("pageToken="));
    assert!(next.is_some(), "{asked:?}");
}

#[tokio::test]
async fn requests_are_signed_by_the_key_of_a_service_account_where_there_is_one() {
    let server = Server::google();
    let (proxy, url) = proxied(&server);
    let directory = tempfile::tempdir().expect("a directory");
    let file = account(&directory);
    let signs = opened(&format!("{url}&credentials_file={}", file.display())).await;
    put(&signs, &key("key"), Expect::Absent, b"x").await;
    held(&signs, &key("key")).await.expect("a register");
    signs.list("", None, WITHIN).await.expect("a page");
    let (asked, tokens) = (proxy.asked(), proxy.tokens());
    // Of a JSON Web Token: header, claims, signature.
    let is_one = |token: &String| token.starts_with("eyJ") && token.split('.').count() == 3;
    assert_eq!(asked.len(), tokens.len(), "{asked:?}");
    assert!(
        !tokens.is_empty() && tokens.iter().all(is_one),
        "{tokens:?}"
    );
    assert!(!format!("{signs:?}").contains(&tokens[0]));
    let plain = opened(&url).await;
    held(&plain, &key("key")).await.expect("a register");
    assert_eq!((proxy.asked().len(), proxy.tokens().len()), (1, 0));
}

#[tokio::test]
async fn google_is_trusted_by_its_certificate_alone() {
    let authority = certificates::authority();
    let [certificate, secret] = certificates::certified(&authority, false);
    let server = Server::encrypted_google(&certificate, &secret);
    let directory = tempfile::tempdir().expect("a directory");
    let account = account(&directory);
    let url = format!("{}&credentials_file={}", url(&server), account.display());
    assert!(url.contains("https://"), "{url}");
    let doubted = opened(&url).await;
    let made = doubted.compare_and_swap(write(&key("key"), Expect::Absent, b"x"), WITHIN);
    match made.await {
        Err(StoreError::Unavailable(why)) => {
            assert!(why.to_string().contains("certificate"), "{why}");
        }
        other => panic!("expected that nothing was sent, found {other:?}"),
    }
    let file = directory.path().join("ca.pem");
    fs::write(&file, authority.pem()).expect("written");
    let trusted = opened(&format!("{url}&ca={}", file.display())).await;
    put(&trusted, &key("key"), Expect::Absent, b"x").await;
    assert!(held(&trusted, &key("key")).await.is_some());
}

#[tokio::test]
async fn at_google_another_takes_over_when_a_leader_resigns() {
    let server = Server::google();
    measure_take_overs("Google (fake-gcs-server)", &url(&server)).await;
}
