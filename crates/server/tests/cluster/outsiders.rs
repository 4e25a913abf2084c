//! What a server tells those whom it does not know, and those who may not do
//! what they ask for.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;

use crate::servers::Servers;
use crate::tokens::{call, guarded, guarded_with, named, put, write};

/// The status of a call over HTTP, and the body.
async fn http(address: SocketAddr, head: &str, token: Option<&str>, body: &str) -> (u16, String) {
    let stream = tokio::net::TcpStream::connect(address).await;
    let mut stream = stream.expect("it listens");
    let token = token.map(|it| format!("Authorization: Bearer {it}\r\n"));
    let request = format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n{}\r\n{body}",
        body.len(),
        token.unwrap_or_default()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    let body = text.split_once("\r\n\r\n").expect("a body").1;
    (status.expect("a status"), body.to_owned())
}

async fn probe(servers: &Servers, path: &str, token: Option<&str>) -> (u16, Value) {
    let address = servers.running[&1].address();
    let (status, body) = http(address, &format!("GET {path}"), token, "").await;
    (status, serde_json::from_str(body.trim()).expect("JSON"))
}

/// The names of what it says.
fn names(said: &Value) -> Vec<&str> {
    said.as_object()
        .expect("an object")
        .keys()
        .map(|it| &**it)
        .collect()
}

/// The table *What is told without a token* of docs/reference/api.md.
#[tokio::test]
async fn who_is_not_known_is_told_yes_or_no() {
    let (servers, _) = guarded(1, &[("nothing", "")]).await;
    let open = Servers::found(1, 0);
    open.leader().await;
    let strangers = [None, Some("stranger"), Some("a b")];
    for (path, answer, all) in [
        ("/healthz", json!({"alive": true}), &["alive", "why"][..]),
        ("/readyz", json!({"ready": true}), &["full", "ready", "why"]),
        (
            "/leader",
            json!({"leads": true}),
            &["leader", "leader_address", "leads", "term"],
        ),
    ] {
        for token in strangers {
            assert_eq!(probe(&servers, path, token).await, (200, answer.clone()));
        }
        let (status, said) = probe(&servers, path, Some("nothing")).await;
        assert_eq!((status, names(&said)), (200, all.to_vec()));
        let (status, said) = probe(&open, path, None).await;
        assert_eq!((status, names(&said)), (200, all.to_vec()));
    }
    // All else asks for a token first, also what is not there.
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    for path in [
        reflection,
        "/tenure.v1.Cluster/Status",
        "/tenure.v1.No/Call",
    ] {
        for token in [None, Some("stranger")] {
            let refused = call(&servers, path, token).await.expect_err(path);
            assert_eq!(refused.code(), Code::Unauthenticated, "{path}");
        }
        let told = call(&servers, path, Some("nothing")).await;
        let code = told.err().map(|it| it.code());
        assert_ne!(code, Some(Code::Unauthenticated), "{path}");
    }
    for path in [
        "GET /metrics",
        "POST /v1/log/read",
        "POST /v1/no/call",
        "GET /v1/x",
    ] {
        let address = servers.running[&1].address();
        assert_eq!(http(address, path, None, "").await.0, 401, "{path}");
    }
    // Whether it serves, for those who know no other way to ask.
    call(&servers, "/grpc.health.v1.Health/Check", None)
        .await
        .expect("it serves");
    assert_ne!(
        call(&open, reflection, None)
            .await
            .err()
            .map(|it| it.code()),
        Some(Code::Unauthenticated)
    );
}

/// Names that are there, and names that are not, as long as these.
const NAMES: [&str; 2] = ["there", "where"];

/// What is answered to each call about something of this name, with the name
/// itself left out.
async fn answers(servers: &Servers, token: Option<&str>, name: &str) -> Vec<(u16, String)> {
    let address = servers.running[&1].address();
    let mut all = Vec::new();
    for key in [
        format!("state/{name}"),
        format!("elections/{name}"),
        format!("ha/{name}/view"),
        name.to_owned(),
    ] {
        let swap =
            |expect: &str| format!(r#"{{"swap": {{"key": "{key}", "value": "eA=="{expect}}}}}"#);
        for (call, body) in [
            ("registers/read", format!(r#"{{"key": "{key}"}}"#)),
            (
                "registers/read",
                format!(r#"{{"key": "{key}", "stale": true}}"#),
            ),
            ("registers/list", format!(r#"{{"prefix": "{key}"}}"#)),
            ("registers/watch", format!(r#"{{"key": "{key}"}}"#)),
            (
                "registers/watch",
                format!(r#"{{"prefix": "{key}", "after_revision": 1}}"#),
            ),
            (
                "registers/delete",
                format!(r#"{{"key": "{key}", "expect": 5}}"#),
            ),
            ("registers/compare_and_swap", swap("")),
            ("registers/compare_and_swap", swap(r#", "expect": 5"#)),
        ] {
            let head = format!("POST /v1/{call}");
            let (status, text) = http(address, &head, token, &body).await;
            assert!(
                [401, 403].contains(&status),
                "{call} {key}: {status} {text}"
            );
            all.push((status, text.replace(name, "_")));
        }
    }
    all
}

#[tokio::test]
async fn refusals_do_not_tell_names_that_are_there_from_others() {
    let narrow = "read = [\"o/\"]\nwrite = [\"o/\"]\ncampaign = [\"o\"]\noperate = [\"o\"]";
    let tokens = [
        ("boss", "admin = true"),
        ("nothing", ""),
        ("narrow", narrow),
    ];
    let (servers, file) = guarded(1, &tokens).await;
    let boss = named(&servers, "boss");
    let there = NAMES[0];
    for key in [
        format!("state/{there}"),
        format!("elections/{there}"),
        format!("ha/{there}/view"),
        there.to_owned(),
    ] {
        boss.compare_and_swap(put(&key, b"1"))
            .await
            .expect("written");
    }
    for token in [None, Some("stranger"), Some("nothing"), Some("narrow")] {
        let told = answers(&servers, token, there).await;
        assert_eq!(told, answers(&servers, token, NAMES[1]).await, "{token:?}");
    }
    // What the file says of a token is as good as anything else.
    let file = std::fs::read_to_string(file).expect("the tokens");
    let sha256 = file.split('"').nth(1).expect("a digest");
    let told = answers(&servers, Some(sha256), there).await;
    assert_eq!(told, answers(&servers, Some("stranger"), there).await);
}

/// A server whose file lacks a token may be the one that leads: then nothing
/// that the others say is as useful as what it says.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_only_the_leader_does_not_know_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |id: u64| dir.path().join(id.to_string());
    let (servers, all) = guarded_with(3, &[("clerk", "")], |config| {
        let all = config.tokens.replace(file(config.id.get()));
        std::fs::copy(all.expect("a file"), file(config.id.get())).expect("copied");
    })
    .await;
    let patient = || named(&servers, "clerk").with_timeout(Duration::from_secs(1));
    let clerk = patient();
    clerk.leader_status().await.expect("all know it");
    let leader = servers.leader().await;
    drop(all);
    write(&file(leader), &[("boss", "admin = true")]);
    let said = loop {
        match clerk.leader_status().await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error.to_string(),
        }
    };
    // Another search, which hears the others as well.
    let fresh = patient();
    let again = fresh
        .leader_status()
        .await
        .expect_err("it is not known")
        .to_string();
    let address = servers.running[&leader].address();
    let why = "found one that this server does not know";
    assert!(said.contains(why), "{said}");
    assert!(
        again.contains(why) && again.contains(&address.to_string()),
        "{again}"
    );
}
