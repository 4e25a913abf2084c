//! What greedy clients and strangers do, round after round, until it is over.
//!
//! All of them come from one process, as from one machine; those with a token
//! have the same. What fails is not looked at: an attacker tries again.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::time::{Duration, Instant};

use hyper::body::Body;
use rustix::process::{Resource, getrlimit, setrlimit};
use tenure_api::v1;
use tenure_api::v1::registers_client::RegistersClient;
use tenure_api::v1::sessions_client::SessionsClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::body::Body as Content;
use tonic::codegen::{Bytes, Service as _, http};
use tonic::transport::{Channel, Endpoint};

use crate::attacked::{Whole, runtime};

/// How long what was asked for is held without reading it.
const HELD: Duration = Duration::from_secs(2);
/// How long an attacker waits for one of its calls: longer than a build for
/// tests on a slow machine takes for the first of a thousand watches.
const PATIENCE: Duration = Duration::from_secs(60);
/// Each of them has a right to its own share of what a server holds.
pub(crate) const TOKENS: [&str; 4] = ["greedy-1", "greedy-2", "greedy-3", "greedy-4"];

/// As many files as the system lets this process open.
pub(crate) fn open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to the maximum");
}

/// Who is attacked.
#[derive(Clone)]
struct Target {
    leader: String,
    all: Vec<String>,
    peers: Vec<String>,
}

type Round = Pin<Box<dyn Future<Output = u64> + Send>>;
type Attack = fn(Target) -> Round;

/// Each makes one round, and says how much of it the server took.
const ATTACKS: [(&str, Attack); 11] = [
    ("unread tails", |at| Box::pin(unread_tails(at))),
    ("unread reads", |at| Box::pin(unread_reads(at))),
    ("unread watches", |at| Box::pin(unread_watches(at))),
    ("unfinished bodies", |at| {
        Box::pin(halves(at, Some(TOKENS[2])))
    }),
    ("unfinished bodies of strangers", |at| {
        Box::pin(halves(at, None))
    }),
    ("connections for health", |at| Box::pin(crowd(at))),
    ("sessions of a day", |at| Box::pin(sessions(at))),
    ("large registers", |at| Box::pin(registers(at))),
    ("calls given up", |at| Box::pin(given_up(at))),
    ("pages of other origins", |at| Box::pin(pages(at))),
    ("strangers among servers", |at| Box::pin(strangers(at))),
];

/// How often each was tried, and what the servers took of it.
#[derive(Default, Debug)]
pub(crate) struct Made(BTreeMap<&'static str, (u64, u64)>);

impl Made {
    /// Whether the servers let each attack begin.
    pub(crate) fn all_were_tried(&self) -> bool {
        self.0.len() == ATTACKS.len() && self.0.values().all(|(_, taken)| *taken > 0)
    }
}

impl std::fmt::Display for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let one = |(name, (rounds, taken)): (_, &(u64, u64))| format!("{name} {taken} in {rounds}");
        let all: Vec<_> = self.0.iter().map(one).collect();
        f.write_str(&all.join(", "))
    }
}

/// All attacks, under way.
pub(crate) struct Attacks(std::thread::JoinHandle<Made>);

impl Attacks {
    pub(crate) fn start(
        (clients, peers): (&[String], &[String]),
        leader: usize,
        lasts: Duration,
    ) -> Self {
        let target = Target {
            leader: clients[leader].clone(),
            all: clients.to_vec(),
            peers: peers.to_vec(),
        };
        Self(std::thread::spawn(move || {
            runtime().block_on(attack(target, Instant::now() + lasts))
        }))
    }

    /// Waits until they are over.
    pub(crate) fn end(self) -> Made {
        self.0.join().expect("an attacker does not panic")
    }
}

async fn attack(target: Target, until: Instant) -> Made {
    let mut begun = JoinSet::new();
    for (name, round) in ATTACKS {
        let target = target.clone();
        begun.spawn(async move {
            let (mut rounds, mut taken) = (0, 0);
            // A round that is under way at the end counts, too.
            while Instant::now() < until {
                rounds += 1;
                taken += round(target.clone()).await;
            }
            (name, (rounds, taken))
        });
    }
    let made = begun.join_all().await;
    Made(made.into_iter().collect())
}

/// A connection of an attacker's own address.
async fn connect(address: &str, from: u8) -> Option<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let endpoint = endpoint.local_address(Some(Ipv4Addr::new(127, 0, 0, from).into()));
    timeout(PATIENCE, endpoint.connect()).await.ok()?.ok()
}

/// Makes a call and reads of its answer nothing but the head; nothing if the
/// call was refused.
async fn head<B>(
    mut channel: Channel,
    path: &str,
    token: Option<&str>,
    body: B,
) -> Option<http::Response<Content>>
where
    B: Body<Data = Bytes, Error = std::convert::Infallible> + Send + 'static,
{
    let mut request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Content::new(body)).expect("a request");
    let call = async {
        poll_fn(|context| channel.poll_ready(context)).await.ok()?;
        channel.call(request).await.ok()
    };
    let head = timeout(PATIENCE, call).await.ok()??;
    head.headers().get("grpc-status").is_none().then_some(head)
}

/// Makes this call so many times over one connection, holds what comes, and
/// says how many were taken.
async fn unread(
    channel: Channel,
    calls: usize,
    (path, token, message): Call,
) -> Vec<http::Response<Content>> {
    let mut begun = JoinSet::new();
    for _ in 0..calls {
        let body = Whole(Some(Bytes::from_static(message)));
        let channel = channel.clone();
        begun.spawn(async move { head(channel, path, Some(token), body).await });
    }
    begun.join_all().await.into_iter().flatten().collect()
}

/// From entry 1 on: a message of two bytes.
const FROM_1: &[u8] = &[0, 0, 0, 0, 2, 8, 1];
/// All keys: an empty message.
const EVERYTHING: &[u8] = &[0; 5];

async fn held(channels: usize, from: u8, calls: usize, target: &str, call: Call) -> u64 {
    let mut begun = JoinSet::new();
    for _ in 0..channels {
        if let Some(channel) = connect(target, from).await {
            begun.spawn(unread(channel, calls, call));
        }
    }
    let heads: Vec<_> = begun.join_all().await.into_iter().flatten().collect();
    sleep(HELD).await;
    heads.len() as u64
}

/// A path, a token and a message.
type Call = (&'static str, &'static str, &'static [u8]);

async fn unread_tails(target: Target) -> u64 {
    held(
        1,
        11,
        200,
        &target.leader,
        ("/tenure.v1.Log/Tail", TOKENS[0], FROM_1),
    )
    .await
}

async fn unread_reads(target: Target) -> u64 {
    held(
        4,
        12,
        1_000,
        &target.leader,
        ("/tenure.v1.Log/Read", TOKENS[0], FROM_1),
    )
    .await
}

async fn unread_watches(target: Target) -> u64 {
    let watch = ("/tenure.v1.Registers/Watch", TOKENS[1], EVERYTHING);
    held(1, 13, 1_000, &target.leader, watch).await
}

/// A body that is not finished.
struct Half(Option<Bytes>);

impl Body for Half {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(half) => std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(half)))),
            None => std::task::Poll::Pending,
        }
    }
}

/// Appends of 16,000 bytes of which the last do not come.
async fn halves(target: Target, token: Option<&'static str>) -> u64 {
    let mut half = vec![0, 0, 0, 0x40, 0];
    half.resize(16_000, 7);
    let half = Bytes::from(half);
    let from = if token.is_some() { 14 } else { 15 };
    let (mut begun, mut sent) = (JoinSet::new(), 0);
    for _ in 0..20 {
        let Some(channel) = connect(&target.leader, from).await else {
            continue;
        };
        for _ in 0..1_000 {
            let body = Half(Some(half.clone()));
            let channel = channel.clone();
            let call = async move { head(channel, "/tenure.v1.Log/Append", token, body).await };
            begun.spawn(timeout(HELD, call));
            sent += 1;
        }
    }
    begun.join_all().await;
    sent
}

/// A connection over which something was asked, if an answer has come.
async fn send_request(to: SocketAddr, from: u8, request: &str) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind(([127, 0, 0, from], 0).into()).ok()?;
    let asking = async {
        let mut stream = socket.connect(to).await?;
        stream.write_all(request.as_bytes()).await?;
        stream.read_u8().await?;
        std::io::Result::Ok(stream)
    };
    timeout(PATIENCE, asking).await.ok()?.ok()
}

/// More connections than there are places.
async fn crowd(target: Target) -> u64 {
    const TOGETHER: usize = 50;
    const EACH: usize = 86;
    let mut begun = JoinSet::new();
    for at in 0..TOGETHER {
        let to: SocketAddr = target.all[at % 3].parse().expect("an address");
        begun.spawn(async move {
            let mut held = Vec::new();
            for _ in 0..EACH {
                let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
                held.extend(send_request(to, 16, request).await);
            }
            held
        });
    }
    let held: Vec<_> = begun.join_all().await.into_iter().flatten().collect();
    sleep(HELD).await;
    held.len() as u64
}

fn with_token<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let token = format!("Bearer {}", TOKENS[3]).parse().expect("a header");
    request.metadata_mut().insert("authorization", token);
    request
}

async fn sessions(target: Target) -> u64 {
    let mut begun = JoinSet::new();
    for _ in 0..4 {
        let Some(channel) = connect(&target.leader, 17).await else {
            continue;
        };
        for _ in 0..16 {
            let mut sessions = SessionsClient::new(channel.clone());
            begun.spawn(async move {
                let mut opened = 0;
                for _ in 0..256 {
                    let open = v1::OpenSessionRequest {
                        ttl_millis: 86_400_000,
                        ..v1::OpenSessionRequest::default()
                    };
                    let answer = timeout(PATIENCE, sessions.open(with_token(open))).await;
                    opened += u64::from(matches!(answer, Ok(Ok(_))));
                }
                opened
            });
        }
    }
    let opened = begun.join_all().await.into_iter().sum();
    sleep(HELD).await;
    opened
}

/// Writes the same registers of 60,000 bytes again and again.
async fn registers(target: Target) -> u64 {
    let mut begun = JoinSet::new();
    let Some(channel) = connect(&target.leader, 18).await else {
        return 0;
    };
    for number in 0..256 {
        let mut registers = RegistersClient::new(channel.clone());
        let key = format!("greedy/{number}");
        begun.spawn(async move {
            let read = v1::ReadRequest {
                key: key.clone(),
                stale: true,
            };
            let read = timeout(PATIENCE, registers.read(with_token(read)))
                .await
                .ok()?;
            let expect = read.ok()?.into_inner().register.map(|it| it.version);
            let swap = v1::Swap {
                key,
                value: vec![7; 60_000].into(),
                expect,
                ..v1::Swap::default()
            };
            let request = v1::CompareAndSwapRequest {
                swap: Some(swap),
                numbered: None,
            };
            let call = registers.compare_and_swap(with_token(request));
            timeout(PATIENCE, call).await.ok()?.ok()
        });
    }
    let written = begun.join_all().await.into_iter().flatten().count();
    sleep(HELD).await;
    written as u64
}

/// Calls that are begun and given up.
async fn given_up(target: Target) -> u64 {
    let Some(channel) = connect(&target.leader, 19).await else {
        return 0;
    };
    let mut begun = JoinSet::new();
    for _ in 0..4_000 {
        let body = Whole(Some(Bytes::from_static(FROM_1)));
        let call = head(
            channel.clone(),
            "/tenure.v1.Log/Read",
            Some(TOKENS[3]),
            body,
        );
        begun.spawn(timeout(Duration::from_millis(20), call));
    }
    let tried = begun.join_all().await.len();
    sleep(HELD / 4).await;
    tried as u64
}

/// A page of another origin, whose browser carries no token.
async fn pages(target: Target) -> u64 {
    let body = r#"{"entries": ["ZXZpbA=="]}"#;
    let length = body.len();
    let mut answered = 0;
    for address in &target.all {
        let to = address.parse().expect("an address");
        let request = format!(
            "POST /v1/log/append HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\
             Content-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        answered += u64::from(send_request(to, 20, &request).await.is_some());
    }
    sleep(HELD / 4).await;
    answered
}

/// Who connects where servers do, and says nothing, or nothing that makes
/// sense.
async fn strangers(target: Target) -> u64 {
    let mut held = Vec::new();
    for at in 0..900 {
        let to: SocketAddr = target.peers[at % 3].parse().expect("an address");
        let Ok(Ok(mut stream)) = timeout(PATIENCE, TcpStream::connect(to)).await else {
            continue;
        };
        if at % 2 == 0 && stream.write_all(&[0x5a; 64]).await.is_err() {
            continue;
        }
        held.push(stream);
    }
    sleep(HELD).await;
    held.len() as u64
}
