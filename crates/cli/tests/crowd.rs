//! More connections than a server takes, by those who want nothing: others
//! get in, and keep what they have.
//!
//! `TENURE_ATTACKED` names another binary to attack: that of before falls.

#[path = "common/attacked.rs"]
mod attacked;
mod common;

use std::net::SocketAddr;

use attacked::{Alone, SOON, Whole, all, code, head, runtime};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::{Bytes, http};
use tonic::transport::{Channel, Endpoint};

/// More than there are places for.
const CROWD: usize = 2_300;
/// How many of them come at a time.
const TOGETHER: usize = 100;
/// More addresses than there are places for callers without a token, where
/// there are tokens; than there are for all; and than there are for newcomers.
const STRANGERS: u16 = 400;
const CALLERS: u16 = 1_600;
const NEWCOMERS: u16 = 700;

/// As many files as the system lets this process open.
fn raise() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to the maximum");
}

/// A connection over which something was asked, and what came first.
struct Asked {
    stream: TcpStream,
    said: String,
}

impl Asked {
    fn is_answered(&self) -> bool {
        self.said.starts_with("HTTP/1.1 200")
    }

    /// Reads on until this has come.
    async fn hears(&mut self, text: &str) {
        while !self.said.contains(text) {
            let mut bytes = [0; 1_024];
            let read = timeout(SOON, self.stream.read(&mut bytes)).await;
            let read = read.expect("in time").expect("it is open");
            assert!(read > 0, "expected {text:?}, found {:?}", self.said);
            self.said.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
}

/// One of this machine's addresses.
fn local(number: u16) -> [u8; 4] {
    let [high, low] = number.to_be_bytes();
    [127, 0, high, low]
}

/// Connects from one of this machine's addresses.
async fn connect(to: SocketAddr, from: u16) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((local(from), 0).into()).expect("bound");
    socket.connect(to).await.expect("it listens")
}

/// Connects from one of this machine's addresses and asks; nothing is said if
/// the connection ends without an answer.
async fn send_request(to: SocketAddr, from: u16, token: &str, what: &str, body: &str) -> Asked {
    let stream = connect(to, from).await;
    send_over(stream, token, what, body).await
}

async fn send_over(mut stream: TcpStream, token: &str, what: &str, body: &str) -> Asked {
    let token = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    let length = body.len();
    let request = format!(
        "{what} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{token}\r\n{body}"
    );
    let mut said = Vec::new();
    if stream.write_all(request.as_bytes()).await.is_ok() {
        let read = timeout(SOON, stream.read_buf(&mut said)).await;
        // It may have been closed.
        let _ = read.expect("in time");
    }
    let said = String::from_utf8_lossy(&said).into_owned();
    Asked { stream, said }
}

const TAIL: (&str, &str) = ("POST /v1/log/tail", r#"{"from": 1}"#);

/// So many connections from one address that ask for the same.
async fn crowd(to: SocketAddr, from: u16, count: usize, (what, body): (&str, &str)) -> Vec<Asked> {
    let mut begun = JoinSet::new();
    for _ in 0..TOGETHER {
        let (what, body) = (what.to_owned(), body.to_owned());
        begun.spawn(async move {
            let mut held = Vec::new();
            for _ in 0..count / TOGETHER {
                held.push(send_request(to, from, "", &what, &body).await);
            }
            held
        });
    }
    all(begun).await.into_iter().flatten().collect()
}

fn answered(held: &[Asked]) -> usize {
    held.iter().filter(|it| it.is_answered()).count()
}

/// Calls gRPC's health service by a connection of its own, and reads the head
/// of the answer alone.
async fn health(to: SocketAddr, from: u16, call: &str) -> (Channel, http::Response<Body>) {
    let endpoint = Endpoint::from_shared(format!("http://{to}")).expect("an address");
    let endpoint = endpoint.local_address(Some(local(from).into()));
    let channel = endpoint.connect().await.expect("it listens");
    let asked = Body::new(Whole(Some(Bytes::from_static(&[0; 5]))));
    let path = format!("/grpc.health.v1.Health/{call}");
    (channel.clone(), head(channel, &path, asked).await)
}

/// Each way to ask for health is answered, from an address with one connection
/// and from one with more.
async fn probes_are_answered(to: SocketAddr, addresses: std::ops::Range<u16>) {
    let shared = addresses.start;
    for own in addresses {
        for from in [own, shared] {
            for what in ["GET /healthz", "GET /readyz", "GET /leader"] {
                let probe = send_request(to, from, "", what, "").await;
                assert!(probe.is_answered(), "{from} {what}: {}", probe.said);
            }
            let (_channel, check) = health(to, from, "Check").await;
            assert_eq!(code(&check), None, "{from}: {:?}", check.headers());
        }
    }
}

/// Tokens of an operator and of a reader, who show their names.
fn tokens() -> String {
    let token = |name: &str, right: &str| {
        let sha256 = tenure_server::fingerprint(name);
        format!("[tokens.{name}]\nsha256 = \"{sha256}\"\n{right}\n")
    };
    token("operator", "admin = true") + &token("reader", "log = \"read\"")
}

#[test]
fn who_only_asks_for_health_keeps_nobody_out() {
    raise();
    let alone = Alone::start(Some(&tokens()));
    let to: SocketAddr = alone.address.parse().expect("an address");
    runtime().block_on(async {
        let mut tail = send_request(to, 2, "reader", TAIL.0, TAIL.1).await;
        assert!(tail.is_answered(), "{}", tail.said);
        let held = crowd(to, 1, CROWD, ("GET /healthz", "")).await;
        assert_eq!(answered(&held), CROWD, "the oldest of them made room");
        let status = "GET /v1/cluster/status";
        for (from, token) in [(1, "reader"), (1, "operator"), (2, "reader")] {
            let status = send_request(to, from, token, status, "").await;
            assert!(status.is_answered(), "{from} {token}: {}", status.said);
        }
        assert!(
            send_request(to, 2, "", "GET /healthz", "")
                .await
                .is_answered()
        );
        let append = r#"{"entries": ["aGVhcmQ="]}"#;
        let append = send_request(to, 1, "operator", "POST /v1/log/append", append).await;
        assert!(append.is_answered(), "{}", append.said);
        tail.hears("aGVhcmQ=").await;
    });
}

#[test]
fn one_address_with_a_call_on_each_connection_keeps_no_other_out() {
    raise();
    let alone = Alone::start(None);
    let to: SocketAddr = alone.address.parse().expect("an address");
    runtime().block_on(async {
        let held = crowd(to, 1, CROWD, TAIL).await;
        let before = answered(&held);
        assert!(before > 1_300, "{before} of {CROWD}");
        // Another one gets in, and keeps what it has, whatever they try.
        let mut tails = crowd(to, 2, TOGETHER, TAIL).await;
        assert_eq!(answered(&tails), TOGETHER);
        let _more = crowd(to, 1, 2 * TOGETHER, TAIL).await;
        let append = r#"{"entries": ["aGVhcmQ="]}"#;
        let append = send_request(to, 3, "", "POST /v1/log/append", append).await;
        assert!(append.is_answered(), "{}", append.said);
        for tail in &mut tails {
            tail.hears("aGVhcmQ=").await;
        }
    });
}

#[test]
fn a_watch_of_health_from_each_of_many_addresses_keeps_no_probe_out() {
    raise();
    let alone = Alone::start(Some(&tokens()));
    let to: SocketAddr = alone.address.parse().expect("an address");
    runtime().block_on(async {
        let mut watches = Vec::new();
        for from in 1_000..1_000 + STRANGERS {
            let (channel, watch) = health(to, from, "Watch").await;
            assert_eq!(code(&watch), None, "{from}: {:?}", watch.headers());
            watches.push((channel, watch));
        }
        probes_are_answered(to, 10..30).await;
        let (_channel, watch) = health(to, 30, "Watch").await;
        assert_eq!(code(&watch), None, "{:?}", watch.headers());
        drop(watches);
    });
}

#[test]
fn a_call_from_each_of_many_addresses_keeps_no_probe_out() {
    raise();
    let alone = Alone::start(None);
    let to: SocketAddr = alone.address.parse().expect("an address");
    runtime().block_on(async {
        let mut tails = Vec::new();
        for from in 1_000..1_000 + CALLERS {
            tails.push(send_request(to, from, "", TAIL.0, TAIL.1).await);
        }
        let held = answered(&tails);
        assert!((1_300..usize::from(CALLERS)).contains(&held), "{held}");
        probes_are_answered(to, 10..30).await;
    });
}

#[test]
fn connections_from_many_addresses_that_say_nothing_close_none_from_one_that_belongs_here() {
    raise();
    let alone = Alone::start(Some(&tokens()));
    let to: SocketAddr = alone.address.parse().expect("an address");
    runtime().block_on(async {
        let status = "GET /v1/cluster/status";
        let first = send_request(to, 1, "reader", status, "").await;
        assert!(first.is_answered(), "{}", first.said);
        let mut begun = Vec::new();
        for _ in 0..TOGETHER {
            begun.push(connect(to, 1).await);
        }
        let mut silent = Vec::new();
        for from in 1_000..1_000 + NEWCOMERS {
            silent.push(connect(to, from).await);
        }
        for stream in begun {
            let status = send_over(stream, "reader", status, "").await;
            assert!(status.is_answered(), "{:?}", status.said);
        }
        drop(silent);
    });
}
