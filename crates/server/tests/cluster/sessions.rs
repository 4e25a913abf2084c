//! Whose a session is: by its secret, by its token; and what a serial stands
//! for, by whatever way it comes.

use std::time::Duration;

use tenure_api::v1::log_client::LogClient;
use tenure_api::v1::pipeline_client::PipelineClient;
use tenure_api::v1::sessions_client::SessionsClient;
use tenure_api::v1::{self, Cause, answer, command, request};
use tenure_client::{Client, Error};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Status;

use crate::servers::{PATIENCE, Servers, cause, error};
use crate::tokens::{guarded, named, put};

const TTL: Duration = Duration::from_secs(60);
const SECRET: &[u8] = b"0123456789abcdef";

/// A call over gRPC, by the token of this name.
fn with_token<T>(token: &str, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let header = format!("Bearer {token}").parse().expect("a header");
    request.metadata_mut().insert("authorization", header);
    request
}

/// Sessions have owners once all members speak version 2.
async fn owning(servers: &Servers, token: &str) {
    let mut cluster = servers.cluster(1).await;
    let risen = async {
        loop {
            let status = cluster.status(with_token(token, v1::StatusRequest::default()));
            if status.await.expect("a status").into_inner().cluster_version >= 2 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, risen)
        .await
        .expect("in time");
}

async fn open(
    servers: &Servers,
    token: &str,
    secret: &'static [u8],
) -> Result<v1::OpenSessionResponse, Status> {
    let mut sessions = SessionsClient::new(servers.channel(1).await);
    let request = v1::OpenSessionRequest {
        ttl_millis: u64::try_from(TTL.as_millis()).expect("a short time"),
        secret: bytes(secret),
    };
    let opened = sessions.open(with_token(token, request)).await?;
    Ok(opened.into_inner())
}

fn bytes(secret: &'static [u8]) -> bytes::Bytes {
    bytes::Bytes::from_static(secret)
}

fn numbered(session: u64, serial: u64, secret: &'static [u8]) -> Option<v1::Numbered> {
    Some(v1::Numbered {
        session,
        serial,
        outstanding: 1,
        secret: bytes(secret),
    })
}

async fn append(
    servers: &Servers,
    token: &str,
    data: &'static str,
    numbered: Option<v1::Numbered>,
) -> Result<u64, Status> {
    let mut log = LogClient::new(servers.channel(1).await);
    let request = v1::AppendRequest {
        entries: vec![data.into()],
        numbered,
    };
    let appended = log.append(with_token(token, request)).await?;
    Ok(appended.into_inner().numbers[0])
}

async fn keep_alive(
    servers: &Servers,
    token: &str,
    numbered: Option<v1::Numbered>,
) -> Result<(), Status> {
    let mut sessions = SessionsClient::new(servers.channel(1).await);
    let request = with_token(token, v1::KeepAliveRequest { numbered });
    sessions.keep_alive(request).await.map(|_| ())
}

async fn close(
    servers: &Servers,
    token: &str,
    numbered: Option<v1::Numbered>,
) -> Result<(), Status> {
    let mut sessions = SessionsClient::new(servers.channel(1).await);
    let request = with_token(token, v1::CloseSessionRequest { numbered });
    sessions.close(request).await.map(|_| ())
}

/// The same as `curl` would; the status and the body.
async fn post(servers: &Servers, path: &str, body: &str) -> (u16, String) {
    let address = servers.running[&1].address();
    let stream = tokio::net::TcpStream::connect(address).await;
    let mut stream = stream.expect("it listens");
    let request = format!(
        "POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.expect("a status"), body.to_owned())
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Status>) -> Cause {
    cause(&result.expect_err("it is refused"))
}

#[tokio::test]
async fn a_serial_stands_for_one_command_whichever_way_it_comes() {
    let servers = Servers::found(1, 0);
    servers.leader().await;
    owning(&servers, "none").await;
    let session = open(&servers, "none", b"").await.expect("a session");
    assert!(!session.owned, "nothing was given to know an owner by");
    let session = session.session;
    let by_http = |data: &'static str| {
        let numbered = format!(r#"{{"session":{session},"serial":1,"outstanding":1}}"#);
        let body = format!(r#"{{"entries":["{data}"],"numbered":{numbered}}}"#);
        let servers = &servers;
        async move { post(servers, "log/append", &body).await }
    };
    let first = append(&servers, "none", "A", numbered(session, 1, b"")).await;
    assert_eq!(first.expect("appended"), 1);
    // "QQ==" is "A", "Qg==" is "B".
    let (status, body) = by_http("QQ==").await;
    assert_eq!((status, body.trim()), (200, r#"{"numbers":[1]}"#));
    let (status, body) = by_http("Qg==").await;
    assert_eq!(status, 409, "{body}");
    assert!(body.contains("OTHER_CONTENT"), "{body}");
    let other = append(&servers, "none", "B", numbered(session, 1, b"")).await;
    assert_eq!(refusal(other), Cause::OtherContent);
    let other = keep_alive(&servers, "none", numbered(session, 1, b"")).await;
    assert_eq!(refusal(other), Cause::OtherContent);
    // Nothing of that is in the way of the rightful one, who goes on.
    let again = append(&servers, "none", "A", numbered(session, 1, b"")).await;
    assert_eq!(again.expect("done before"), 1);
    let next = append(&servers, "none", "B", numbered(session, 2, b"")).await;
    assert_eq!(next.expect("appended"), 2);
    assert_eq!(servers.entries(1, 2).await, ["A", "B"]);
}

#[tokio::test]
async fn a_stream_tells_whether_a_session_has_an_owner_as_a_call_does() {
    let servers = Servers::found(1, 0);
    servers.leader().await;
    owning(&servers, "none").await;
    let secrets = [SECRET, b""];
    let requests = (1..).zip(secrets).map(|(number, secret)| v1::Request {
        number,
        what: Some(request::What::Open(10_000)),
        secret: bytes(secret),
    });
    let requests = v1::Requests {
        requests: requests.collect(),
    };
    let mut client = PipelineClient::new(servers.channel(1).await);
    let answers = client.exchange(tokio_stream::iter([requests])).await;
    let mut answers = answers.expect("a stream").into_inner();
    let mut told = std::collections::BTreeMap::new();
    while let Some(message) = answers.message().await.expect("answers") {
        for answer in message.answers {
            assert!(matches!(answer.what, Some(answer::What::Opened(_))));
            told.insert(answer.number, answer.owned);
        }
    }
    assert_eq!(told.into_values().collect::<Vec<_>>(), [true, false]);
}

#[tokio::test]
async fn a_secret_is_asked_of_each_call_and_once_of_each_stream() {
    let servers = Servers::found(1, 0);
    servers.leader().await;
    owning(&servers, "none").await;
    let session = open(&servers, "none", SECRET).await.expect("a session");
    assert!(session.owned);
    let session = session.session;
    for wrong in [&b""[..], b"another secret, too"] {
        let appended = append(&servers, "none", "x", numbered(session, 1, wrong)).await;
        assert_eq!(refusal(appended), Cause::NotOwner);
        let kept = keep_alive(&servers, "none", numbered(session, 1, wrong)).await;
        assert_eq!(refusal(kept), Cause::NotOwner);
        let closed = close(&servers, "none", numbered(session, 1, wrong)).await;
        assert_eq!(refusal(closed), Cause::NotOwner);
    }
    let body = format!(r#"{{"numbered":{{"session":{session},"serial":1,"outstanding":1}}}}"#);
    let (status, text) = post(&servers, "sessions/close", &body).await;
    assert_eq!(status, 403, "{text}");
    let short = append(&servers, "none", "x", numbered(session, 1, b"short")).await;
    assert_eq!(refusal(short), Cause::Invalid);
    // "MDEyMzQ1Njc4OWFiY2RlZg==" is the secret.
    let proven = r#""outstanding":1,"secret":"MDEyMzQ1Njc4OWFiY2RlZg==""#;
    let body = format!(r#"{{"numbered":{{"session":{session},"serial":1,{proven}}}}}"#);
    let (status, text) = post(&servers, "sessions/keep_alive", &body).await;
    assert_eq!(status, 200, "{text}");
    let appended = append(&servers, "none", "x", numbered(session, 2, SECRET)).await;
    assert_eq!(appended.expect("appended"), 1);

    let alive = |number, serial, secret| v1::Request {
        number,
        what: Some(request::What::Command(v1::Command {
            session,
            serial,
            outstanding: 1,
            operation: Some(command::Operation::KeepAlive(true)),
        })),
        secret: bytes(secret),
    };
    let requests = vec![alive(1, 3, b""), alive(2, 3, SECRET), alive(3, 4, b"")];
    let stream = tokio_stream::iter([v1::Requests { requests }]);
    let mut client = PipelineClient::new(servers.channel(1).await);
    let answers = client.exchange(stream).await.expect("a stream");
    let mut answers = answers.into_inner();
    let mut told = Vec::new();
    while let Some(message) = answers.message().await.expect("answers") {
        told.extend(message.answers);
    }
    told.sort_by_key(|it| it.number);
    let told = told.into_iter().map(|it| match it.what.expect("content") {
        answer::What::Error(error) => Err(error.cause()),
        what => Ok(matches!(what, answer::What::Alive(_))),
    });
    let wanted = [Err(Cause::NotOwner), Ok(true), Ok(true)];
    assert_eq!(told.collect::<Vec<_>>(), wanted);
}

fn is_refused<T>(told: &Result<T, Error>, wanted: Cause) -> bool {
    matches!(told, Err(Error::Refused { cause, .. }) if *cause == wanted)
}

/// Clients that wait for a new cluster open their sessions as soon as it has a
/// leader, which is before the cluster's version has risen.
#[tokio::test]
async fn a_session_of_the_first_moment_of_a_cluster_has_an_owner() {
    let servers = Servers::found(1, 0);
    servers.leader().await;
    let session = open(&servers, "none", SECRET).await.expect("a session");
    assert!(session.owned);

    let servers = Servers::found(3, 0);
    let listen = servers.configs.values().map(|it| it.listen.clone());
    let config = tenure_client::Config::default().timeout(PATIENCE);
    let clients: Vec<_> = listen
        .map(|it| Client::new(&it, &config).expect("a client"))
        .collect();
    for client in &clients {
        let session = client.session(TTL);
        session.keep_alive(PATIENCE).await.expect("it is opened");
        let number = session.number().expect("it is open");
        let listed = client.sessions().await.expect("a list");
        let seen = listed.iter().find(|it| it.session == number);
        assert!(seen.expect("it is among them").secret);
    }
}

#[tokio::test]
async fn nobody_touches_the_session_of_anothers_token() {
    let tokens = [
        ("x", "write = [\"x/\"]\nlog = \"append\""),
        ("run", "write = [\"run/\"]\nlog = \"append\""),
        ("root", "admin = true"),
    ];
    let (servers, _) = guarded(1, &tokens).await;
    owning(&servers, "root").await;
    let client = named(&servers, "run");
    let session = client.session(TTL);
    let last = || Some(b"free".as_slice().into());
    let held = session.swap(put("run/a", b"held"), last(), PATIENCE).await;
    held.expect("it is free");
    let number = session.number().expect("it is open");
    for serial in [1, 2, 3] {
        let appended = append(&servers, "x", "forged", numbered(number, serial, b"")).await;
        assert_eq!(refusal(appended), Cause::NotOwner);
        let kept = keep_alive(&servers, "x", numbered(number, serial, b"")).await;
        assert_eq!(refusal(kept), Cause::NotOwner);
        let closed = close(&servers, "x", numbered(number, serial, b"")).await;
        assert_eq!(refusal(closed), Cause::NotOwner);
    }
    session.keep_alive(PATIENCE).await.expect("it lives");
    assert!(!session.is_over());

    // Without a secret the token that opened it stands for one.
    let plain = open(&servers, "run", b"").await.expect("a session");
    assert!(plain.owned);
    let plain = plain.session;
    let stolen = close(&servers, "x", numbered(plain, 1, b"")).await;
    assert_eq!(refusal(stolen), Cause::NotOwner);
    let appended = append(&servers, "run", "mine", numbered(plain, 1, b"")).await;
    assert_eq!(appended.expect("appended"), 1);

    // An operator sees them, and needs no secret.
    let barred = named(&servers, "x").sessions().await;
    assert!(is_refused(&barred, Cause::Denied));
    let root = named(&servers, "root");
    let listed = root.sessions().await.expect("a list");
    let seen = listed.iter().find(|it| it.session == number);
    let seen = seen.expect("it is among them");
    assert_eq!((&*seen.token, seen.secret, seen.bound), ("run", true, 1));
    let barred = named(&servers, "x").end_session(number, true).await;
    assert!(is_refused(&barred, Cause::Denied));
    let held = root.end_session(number, false).await;
    assert!(is_refused(&held, Cause::Held), "{held:?}");
    session
        .keep_alive(PATIENCE)
        .await
        .expect("it was left alone");
    root.end_session(number, true).await.expect("it is closed");
    let over = session.keep_alive(PATIENCE).await;
    assert!(over.is_err() && session.is_over(), "{over:?}");
    let key = tenure::store::Key::new("run/a").expect("a key");
    let freed = root.read(&key);
    let freed = freed
        .await
        .expect("a reading")
        .register
        .expect("it is there");
    assert_eq!(&*freed.value, b"free");
    assert!(root.end_session(number, true).await.is_err(), "it is gone");
}

#[tokio::test]
async fn one_token_has_so_many_sessions_and_is_told_who_has_them() {
    let tokens = [
        ("x", "log = \"append\""),
        ("y", "log = \"append\""),
        ("root", "admin = true"),
    ];
    let (mut servers, _) = guarded(1, &tokens).await;
    servers.stop(1).await;
    servers.configs.get_mut(&1).expect("a server").sessions_each = 2;
    servers.start(1);
    servers.leader().await;
    owning(&servers, "root").await;
    let first = open(&servers, "x", b"").await.expect("one");
    open(&servers, "x", SECRET).await.expect("two");
    let third = open(&servers, "x", SECRET).await.expect_err("one too many");
    assert_eq!(cause(&third), Cause::TooManySessions);
    let text = error(&third).message;
    let name = &tenure_server::fingerprint("x")[..32];
    assert!(text.contains("at most 2") && text.contains(name), "{text}");
    open(&servers, "y", b"")
        .await
        .expect("another's count is its own");
    for _ in 0..4 {
        open(&servers, "root", b"").await.expect("operators may");
    }
    let closed = close(&servers, "x", numbered(first.session, 1, b"")).await;
    closed.expect("it is its own");
    open(&servers, "x", b"").await.expect("there is room again");
}

#[tokio::test]
async fn a_client_goes_on_under_its_session_after_its_leader_was_lost() {
    let mut servers = Servers::found(1, 0);
    servers.leader().await;
    owning(&servers, "none").await;
    let listen = servers.configs[&1].listen.clone();
    let config = tenure_client::Config::default().timeout(PATIENCE);
    let client = Client::new(&listen, &config).expect("a client");
    let session = client.session(TTL);
    session.keep_alive(PATIENCE).await.expect("it is opened");
    let number = session.number();
    servers.stop(1).await;
    servers.start(1);
    session.keep_alive(PATIENCE).await.expect("it lives on");
    assert_eq!((session.number(), session.is_over()), (number, false));
}
