//! More connections than a server takes, by those who want nothing: others
//! get in, and keep what they have.
//!
//! `TENURE_ATTACKED` names another binary to attack: that of before falls.

#[path = "common/attacked.rs"]
mod attacked;
mod common;

use std::net::SocketAddr;

use attacked::{Alone, SOON, all, runtime};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// More than there are places for.
const CROWD: usize = 2_300;
/// How many of them come at a time.
const TOGETHER: usize = 100;

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

/// Connects from one of this machine's addresses and asks; nothing is said if
/// the connection ends without an answer.
async fn send_request(to: SocketAddr, from: u8, token: &str, what: &str, body: &str) -> Asked {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, from], 0).into()).expect("bound");
    let mut stream = socket.connect(to).await.expect("it listens");
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
async fn crowd(to: SocketAddr, from: u8, count: usize, (what, body): (&str, &str)) -> Vec<Asked> {
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

#[test]
fn who_only_asks_for_health_keeps_nobody_out() {
    raise();
    let token = |name: &str, right: &str| {
        let sha256 = tenure_server::fingerprint(name);
        format!("[tokens.{name}]\nsha256 = \"{sha256}\"\n{right}\n")
    };
    let tokens = token("operator", "admin = true") + &token("reader", "log = \"read\"");
    let alone = Alone::start(Some(&tokens));
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
