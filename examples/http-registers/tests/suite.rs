//! The example against the suite that every store passes, and by its command line.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tenure::StoreError;
use tenure::store::{Key, Version, conformance};

/// Documents by name, with the tags that they have.
#[derive(Default)]
struct Documents {
    all: BTreeMap<String, (u64, Bytes)>,
    writes: u64,
}

type Shared = Arc<Mutex<Documents>>;

async fn serve(State(documents): State<Shared>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let name = decode(head.uri.path().trim_start_matches('/'));
    let header = |name| {
        head.headers
            .get(name)
            .map(|it| it.to_str().unwrap_or_default())
    };
    let body = axum::body::to_bytes(body, 1 << 20).await;
    let Ok(body) = body else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let mut documents = documents.lock().unwrap_or_else(PoisonError::into_inner);
    let found = documents.all.get(&name).cloned();
    let quoted = |tag: u64| format!("\"{tag}\"");
    if head.method == Method::GET && name.is_empty() {
        let option = |wanted: &str| {
            let mut pairs = head.uri.query().unwrap_or_default().split('&');
            decode(
                pairs
                    .find_map(|it| it.strip_prefix(wanted))
                    .unwrap_or_default(),
            )
        };
        let (prefix, after) = (option("prefix="), option("after="));
        let fits = |name: &&String| name.starts_with(&prefix) && **name > after;
        let encoded = |name| format!("{}\n", utf8_percent_encode(name, NON_ALPHANUMERIC));
        let names = documents.all.keys().filter(fits).take(501);
        return names
            .map(|name| encoded(name))
            .collect::<String>()
            .into_response();
    }
    if head.method == Method::GET {
        return match found {
            Some((tag, body)) => ([(ETAG, quoted(tag))], body).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        };
    }
    let as_expected = match (header(IF_MATCH), header(IF_NONE_MATCH)) {
        (Some(tag), None) => found.is_some_and(|(held, _)| quoted(held) == tag),
        (None, Some("*")) => found.is_none(),
        _ => return StatusCode::PRECONDITION_REQUIRED.into_response(),
    };
    if !as_expected {
        return StatusCode::PRECONDITION_FAILED.into_response();
    }
    if head.method == Method::DELETE {
        documents.all.remove(&name);
        return StatusCode::NO_CONTENT.into_response();
    }
    documents.writes += 1;
    let tag = documents.writes;
    documents.all.insert(name, (tag, body));
    ([(ETAG, quoted(tag))], ()).into_response()
}

/// A server of documents; its URL.
async fn server() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new().fallback(serve).with_state(Shared::default());
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("etags://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_a_store() {
    let url = server().await;
    let store = http_registers::registry()
        .open(&url)
        .await
        .expect("a store");
    conformance::all(&store, "try/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_has_it() {
    let url = server().await;
    let ran = tokio::task::spawn_blocking(move || {
        let run = |store: &str, args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_http-registers"));
            command.args(args).env("TENURE_STORE", store);
            command.output().expect("it runs")
        };
        let once = ["run", "x", "--once", "--lease", "2s", "--"];
        let ran = run(
            &url,
            &[&once[..], &["sh", "-c", "echo $TENURE_TERM"]].concat(),
        );
        let leader = run(&url, &["leader", "x"]);
        let unknown = run("none://x", &["leader", "x"]);
        (ran, leader, unknown)
    });
    let (ran, leader, unknown) = ran.await.expect("it ends");
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "1\n");
    assert_eq!(leader.status.code(), Some(3), "{leader:?}");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(said.contains("etags://host:port"), "{said}");
}

#[tokio::test]
async fn what_is_wrong_is_told() {
    let registry = http_registers::registry();
    for url in ["etags:", "etags://", "etags://h/path", "etags://u@h"] {
        let refused = registry
            .open(url)
            .await
            .expect_err("a wrong URL")
            .to_string();
        assert!(refused.contains("expected etags://host:port"), "{refused}");
    }
    // Nobody listens: what is asked for certainly did not happen.
    let store = registry.open("etags://127.0.0.1:1").await.expect("a URL");
    let key = Key::new("k").expect("a key");
    let version = Version::from_bytes(b"counter.tag");
    let refused = store.delete(&key, &version, Duration::from_secs(5)).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
}
