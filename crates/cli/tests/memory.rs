//! Clients that make a server hold what they do not read, or do not finish.
//!
//! `TENURE_ATTACKED` names another binary to attack: that of before falls.

#[path = "common/attacked.rs"]
mod attacked;
mod common;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{Read as _, Write as _, sink};
use std::net::TcpStream;
use std::process::Stdio;
use std::task::{Context, Poll};

use attacked::{
    Alone, PROMPT, Probes, SOON, Whole, all, attacked, code, connect, growth, head, resident,
    runtime, worked,
};
use common::servers::{Cluster, answer, call, call_with, led, metric};
use hyper::body::{Body, Frame};
use tenure_api::v1::log_client::LogClient;
use tenure_api::v1::pipeline_client::PipelineClient;
use tenure_api::v1::registers_client::RegistersClient;
use tenure_api::v1::{self};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic::body::Body as Content;
use tonic::codegen::{Bytes, http};
use tonic::transport::{Channel, Endpoint};

const MIB: u64 = 1024 * 1024;
/// Entries of the log, each of nearly a mebibyte.
const ENTRIES: u64 = 32;
const ENTRY_BYTES: usize = 1024 * 1024 - 200;

/// The same. The server may send little of each answer at a time, and what is
/// not read of some keeps no other from coming: a client that lets them take all
/// of its connection's window waits for itself.
async fn narrow(address: &str, from: u8) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let local = std::net::Ipv4Addr::new(127, 0, 0, from);
    let endpoint = endpoint.local_address(Some(local.into()));
    let endpoint = endpoint
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(64 << 20);
    endpoint.connect().await.expect("it listens")
}

/// A body that is not finished.
struct Half(Option<Bytes>);

impl Body for Half {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let half = self.0.take();
        half.map_or(Poll::Pending, |it| Poll::Ready(Some(Ok(Frame::data(it)))))
    }
}

/// Fills the log with large entries, each with its number in front.
async fn fill(address: &str) {
    let channel = connect(address, 1).await;
    let mut log = LogClient::new(channel);
    for number in 1..=ENTRIES {
        let mut entry = vec![7; ENTRY_BYTES];
        entry[..8].copy_from_slice(&number.to_be_bytes());
        let append = v1::AppendRequest {
            entries: vec![entry.into()],
            numbered: None,
        };
        let appended = log.append(append).await.expect("appended").into_inner();
        assert_eq!(appended.numbers, [number]);
    }
}

type Tail = tonic::Streaming<v1::ReadLogResponse>;

async fn tail(channel: &Channel) -> Tail {
    let mut log = LogClient::new(channel.clone()).max_decoding_message_size(64 << 20);
    let tail = log.tail(v1::TailRequest { from: 1 });
    let tail = timeout(SOON, tail).await.expect("in time");
    tail.expect("a tail").into_inner()
}

/// Reads all of the log, slowly: each entry comes once, in order.
async fn follow(channel: &Channel) {
    let mut tail = tail(channel).await;
    let mut next = 1;
    while next <= ENTRIES {
        let message = timeout(SOON, tail.message()).await.expect("in time");
        for entry in message.expect("no error").expect("no end").entries {
            assert_eq!(entry.number, next);
            assert_eq!(entry.data[..8], next.to_be_bytes());
            assert_eq!(entry.data.len(), ENTRY_BYTES);
            next += 1;
        }
    }
}

/// So many calls of `Log.Read`, of which no answer is read.
async fn unread(channel: Channel, calls: usize) -> Vec<http::Response<Content>> {
    let mut begun = JoinSet::new();
    for _ in 0..calls {
        let channel = channel.clone();
        // From entry 1 on: a message of two bytes.
        let message = Bytes::from_static(&[0, 0, 0, 0, 2, 8, 1]);
        let body = Content::new(Whole(Some(message)));
        begun.spawn(async move { head(channel, "/tenure.v1.Log/Read", body).await });
    }
    all(begun).await
}

/// Calls that append an entry of which the last bytes do not come.
fn halves(channel: &Channel, calls: usize) -> JoinSet<http::Response<Content>> {
    let mut begun = JoinSet::new();
    let mut half = vec![0, 0, 0, 0x40, 0];
    half.resize(16_000, 7);
    let half = Bytes::from(half);
    for _ in 0..calls {
        let (channel, body) = (channel.clone(), Content::new(Half(Some(half.clone()))));
        begun.spawn(async move { head(channel, "/tenure.v1.Log/Append", body).await });
    }
    begun
}

/// A large read of the log, by a client that reads it.
async fn read(channel: &Channel) {
    let mut log = LogClient::new(channel.clone());
    let request = v1::ReadLogRequest {
        from: 1,
        limit: 0,
        stale: false,
    };
    let page = timeout(SOON, log.read(request)).await.expect("in time");
    let page = page.expect("a page").into_inner();
    assert_eq!(page.entries[0].data.len(), ENTRY_BYTES);
}

#[test]
fn tails_that_are_not_read_hold_little_and_others_get_everything() {
    let alone = Alone::start(None);
    runtime().block_on(async {
        fill(&alone.address).await;
        let before = resident(alone.server.id());
        let channel = narrow(&alone.address, 1).await;
        let mut tails = Vec::new();
        for _ in 0..200 {
            tails.push(tail(&channel).await);
        }
        // The same caller on another connection, and on this one what is no
        // tail.
        follow(&narrow(&alone.address, 1).await).await;
        read(&channel).await;
        let watch = v1::WatchRequest {
            key: Some("kept".into()),
            ..v1::WatchRequest::default()
        };
        let mut registers = RegistersClient::new(channel.clone());
        let watch = registers.watch(watch).await.expect("a watch");
        let told = timeout(SOON, { watch }.get_mut().message()).await;
        assert!(told.expect("in time").expect("no error").is_some());
        let grew = growth(alone.server.id(), before);
        assert!(grew < 96 * MIB, "{} MiB", grew / MIB);
        // Each of those goes on when it is read.
        let mut begun = JoinSet::new();
        for mut tail in tails.into_iter().take(20) {
            begun.spawn(async move {
                let mut next = 1;
                while next <= ENTRIES {
                    let message = tail.message().await.expect("no error").expect("no end");
                    for entry in message.entries {
                        assert_eq!(entry.number, next);
                        next += 1;
                    }
                }
            });
        }
        all(begun).await;
        drop(channel);
        let given = || (metric(&alone.address, "held_answers_bytes ") < 1e6).then_some(());
        common::poll_until(SOON, given).expect("all is given back");
    });
}

#[test]
fn without_a_token_no_body_is_read() {
    let sha256 = tenure_server::fingerprint("operator");
    let tokens = format!("[tokens.operator]\nsha256 = \"{sha256}\"\nadmin = true\n");
    let alone = Alone::start(Some(&tokens));
    runtime().block_on(async {
        let before = resident(alone.server.id());
        for _ in 0..20 {
            let channel = connect(&alone.address, 1).await;
            for head in all(halves(&channel, 1_000)).await {
                assert_eq!(code(&head), Some(Code::Unauthenticated));
            }
        }
        let grew = growth(alone.server.id(), before);
        assert!(grew < 64 * MIB, "{} MiB", grew / MIB);
    });
    // Over HTTP/1 neither: nothing of it is sent.
    let mut stream = TcpStream::connect(&alone.address).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    let head = "POST /v1/log/append HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).expect("an answer");
    assert_eq!(&begun, b"HTTP/1.1 401");
}

/// What anybody may ask for, from many addresses: streams that stay open, and
/// calls whose message never comes.
#[test]
fn strangers_who_ask_for_health_keep_nobody_with_a_token_out() {
    let rights = [("operator", "admin = true"), ("clerk", "read = [\"\"]")];
    let tokens = rights.map(|(name, right)| {
        let sha256 = tenure_server::fingerprint(name);
        format!("[tokens.{name}]\nsha256 = \"{sha256}\"\n{right}\n")
    });
    let alone = Alone::start(Some(&tokens.concat()));
    let before = resident(alone.server.id());
    let probes = Probes::start(&alone.address, alone.server.id());
    let runtime = runtime();
    let held = runtime.block_on(async {
        let (mut waiting, mut answers) = (Vec::new(), Vec::new());
        for from in 1..=30 {
            let channel = connect(&alone.address, from).await;
            let (mut watches, mut checks) = (JoinSet::new(), JoinSet::new());
            for _ in 0..500 {
                let empty = Content::new(Whole(Some(Bytes::from_static(&[0; 5]))));
                let (to, silent) = (channel.clone(), Content::new(Half(None)));
                watches.spawn(head(to, "/grpc.health.v1.Health/Watch", empty));
                checks.spawn(head(
                    channel.clone(),
                    "/grpc.health.v1.Health/Check",
                    silent,
                ));
            }
            answers.extend(all(watches).await);
            waiting.push(checks);
        }
        (waiting, answers)
    });
    let busy = |it: &&http::Response<Content>| code(it) == Some(Code::ResourceExhausted);
    assert!(held.1.iter().filter(busy).count() > 1_000);
    for (token, call, body) in [
        ("clerk", "registers/list", r#"{"prefix": ""}"#),
        ("operator", "cluster/status", "{}"),
    ] {
        let bearer = format!("Authorization: Bearer {token}\r\n");
        let told = call_with(&alone.address, &format!("POST /v1/{call}"), &bearer, body);
        let told = answer(told);
        assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    }
    let (slowest, grew) = (probes.end(), growth(alone.server.id(), before));
    assert!(grew < 384 * MIB, "{} MiB", grew / MIB);
    assert!(slowest < PROMPT, "{slowest:?}");
    drop(held);
}

#[test]
fn bodies_that_are_not_finished_are_held_up_to_a_bound() {
    let alone = Alone::start(None);
    runtime().block_on(async {
        let before = resident(alone.server.id());
        let probes = Probes::start(&alone.address, alone.server.id());
        let mut channels = Vec::new();
        let mut under_way = Vec::new();
        for _ in 0..20 {
            let channel = connect(&alone.address, 1).await;
            under_way.push(halves(&channel, 1_000));
            channels.push(channel);
        }
        // Those of the last connection find no room.
        let mut last = under_way.pop().expect("twenty");
        let refused = timeout(SOON, last.join_next()).await.expect("in time");
        let refused = refused.expect("a thousand").expect("no panic");
        assert_eq!(code(&refused), Some(Code::ResourceExhausted));
        let grew = growth(alone.server.id(), before);
        assert!(grew < 256 * MIB, "{} MiB", grew / MIB);
        // Another caller has room.
        let mut log = LogClient::new(connect(&alone.address, 2).await);
        let append = v1::AppendRequest {
            entries: vec![vec![7; 100_000].into()],
            numbered: None,
        };
        log.append(append).await.expect("another caller has room");
        let slowest = probes.end();
        assert!(slowest < PROMPT, "{slowest:?}");
        let counted = metric(&alone.address, "calls_without_room_total{of=\"Caller\"} ");
        assert!(counted >= 1.0, "{counted}");
    });
}

#[test]
fn answers_that_are_not_read_are_held_up_to_a_bound() {
    let alone = Alone::start(None);
    runtime().block_on(async {
        fill(&alone.address).await;
        let before = resident(alone.server.id());
        let probes = Probes::start(&alone.address, alone.server.id());
        let mut begun = JoinSet::new();
        for _ in 0..4 {
            let channel = connect(&alone.address, 1).await;
            begun.spawn(unread(channel, 1_000));
        }
        let heads: Vec<_> = all(begun).await.into_iter().flatten().collect();
        let slowest = probes.end();
        let refused = heads.iter().filter_map(code).collect::<Vec<_>>();
        assert!(refused.iter().all(|it| *it == Code::ResourceExhausted));
        assert!(refused.len() > 3_000, "{}", refused.len());
        let grew = growth(alone.server.id(), before);
        assert!(grew < 128 * MIB, "{} MiB", grew / MIB);
        assert!(slowest < PROMPT, "{slowest:?}");
        // The same caller goes on by another connection, and so does a reader.
        let channel = connect(&alone.address, 1).await;
        read(&channel).await;
        follow(&channel).await;
    });
}

#[test]
fn over_http_1_tails_that_are_not_read_hold_little_too() {
    let alone = Alone::start(None);
    runtime().block_on(fill(&alone.address));
    let before = resident(alone.server.id());
    let tails: Vec<_> = (0..80)
        .map(|_| {
            let tail = call(&alone.address, "POST /v1/log/tail", r#"{"from": 1}"#);
            tail.set_read_timeout(Some(SOON)).expect("a timeout");
            tail
        })
        .collect();
    // Each has begun when its head is there.
    for mut tail in tails.iter() {
        let mut begun = [0; 12];
        tail.read_exact(&mut begun).expect("an answer");
        assert_eq!(&begun, b"HTTP/1.1 200");
    }
    runtime().block_on(async { follow(&narrow(&alone.address, 2).await).await });
    let grew = growth(alone.server.id(), before);
    assert!(grew < 192 * MIB, "{} MiB", grew / MIB);
    drop(tails);
}

/// Bytes that the system holds for clients of this server.
fn queued(address: &str) -> u64 {
    let (_, port) = address.rsplit_once(':').expect("a port");
    let port = port.parse::<u16>().expect("a port");
    let ours = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").expect("connections");
    let sums = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (unsent, _) = words.get(4)?.split_once(':')?;
        words[1].ends_with(&ours).then_some(())?;
        u64::from_str_radix(unsent, 16).ok()
    });
    sums.sum()
}

/// What the system holds is counted for nobody, and to hand it over keeps a
/// thread of the server busy.
#[test]
fn the_system_holds_little_of_what_is_not_read() {
    const TAILS: usize = 200;
    let alone = Alone::start(None);
    runtime().block_on(fill(&alone.address));
    let mut tails = tails_of(&alone.address, 3, TAILS);
    for tail in &mut tails {
        let mut begun = [0; 12];
        tail.read_exact(&mut begun).expect("an answer");
        assert_eq!(&begun, b"HTTP/1.1 200");
    }
    runtime().block_on(async { follow(&narrow(&alone.address, 2).await).await });
    let queued = queued(&alone.address);
    assert!(queued > 0, "nothing is unread");
    assert!(queued < TAILS as u64 * 256 * 1024, "{} KiB", queued / 1024);
}

/// So many tails over HTTP/1 from one address, of which nothing is read.
fn tails_of(address: &str, from: u8, count: usize) -> Vec<TcpStream> {
    let begin = |_| {
        let tail = runtime().block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.bind(([127, 0, 0, from], 0).into()).expect("bound");
            socket.set_recv_buffer_size(4_096).expect("small");
            let to = address.parse().expect("an address");
            socket.connect(to).await.expect("it listens").into_std()
        });
        let mut tail = tail.expect("a socket");
        tail.set_nonblocking(false).expect("it blocks");
        tail.set_read_timeout(Some(SOON)).expect("a timeout");
        let head = "POST /v1/log/tail HTTP/1.1\r\nHost: localhost\r\n\
                    Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{\"from\":1}";
        tail.write_all(head.as_bytes()).expect("it reads");
        tail
    };
    (0..count).map(begin).collect()
}

#[test]
fn unread_streams_of_two_callers_keep_no_third_out_nor_their_own_calls() {
    let alone = Alone::start(None);
    runtime().block_on(fill(&alone.address));
    let held = || metric(&alone.address, "held_answers_bytes ");
    let tails: Vec<_> = [2, 3]
        .into_iter()
        .flat_map(|from| tails_of(&alone.address, from, 40))
        .collect();
    // Until what they hold grows no more.
    let grown = common::poll_until(SOON, || {
        let before = held();
        std::thread::sleep(PROMPT / 4);
        (before > 8e6 && held() <= before).then_some(before)
    });
    let grown = grown.expect("they hold as much as they may");
    runtime().block_on(async {
        for from in [4, 3] {
            let channel = connect(&alone.address, from).await;
            read(&channel).await;
            let mut log = LogClient::new(channel);
            let append = v1::AppendRequest {
                entries: vec![vec![7; 100].into()],
                numbered: None,
            };
            let appended = log.append(append).await;
            appended.unwrap_or_else(|error| panic!("with {grown} bytes held: {error}"));
        }
    });
    drop(tails);
}

#[test]
fn a_message_of_millions_of_parts_is_refused_before_it_is_decoded() {
    let alone = Alone::start(None);
    // Empty requests, and empty entries: two bytes each.
    let parts = [10, 0].repeat(3_900_000);
    let mut message = vec![0];
    message.extend(u32::try_from(parts.len()).expect("short").to_be_bytes());
    message.extend(parts);
    let message = Bytes::from(message);
    let probes = Probes::start(&alone.address, alone.server.id());
    runtime().block_on(async {
        let before = resident(alone.server.id());
        for path in ["/tenure.v1.Pipeline/Exchange", "/tenure.v1.Log/Append"] {
            let channel = connect(&alone.address, 2).await;
            let mut answer = head(channel, path, Content::new(Whole(Some(message.clone())))).await;
            let mut found = code(&answer);
            while found.is_none() {
                let frame =
                    poll_fn(|context| std::pin::Pin::new(answer.body_mut()).poll_frame(context));
                let frame = timeout(SOON, frame).await.expect("in time");
                let frame = frame.expect("an end").expect("no error");
                let trailers = frame.trailers_ref();
                found = trailers
                    .and_then(tonic::Status::from_header_map)
                    .map(|it| it.code());
            }
            assert_eq!(found, Some(Code::InvalidArgument), "{path}");
        }
        let entries = "\"\",".repeat(1_200_000);
        let body = format!("{{\"entries\": [{entries}\"\"]}}");
        let said = answer(call(&alone.address, "POST /v1/log/append", &body));
        assert!(said.starts_with("HTTP/1.1 400"), "{said}");
        assert!(said.contains("at most 16384"), "{said}");
        let grew = growth(alone.server.id(), before);
        assert!(grew < 96 * MIB, "{} MiB", grew / MIB);
    });
    let slowest = probes.end();
    assert!(slowest < PROMPT, "{slowest:?}");
}

#[test]
fn exchanges_that_wait_hold_nothing_of_what_was_asked() {
    let alone = Alone::start(None);
    runtime().block_on(async {
        let before = resident(alone.server.id());
        // It asks for nothing, in seven megabytes.
        let request = v1::Request {
            number: 1,
            secret: vec![7; 7_000_000].into(),
            ..v1::Request::default()
        };
        let message = v1::Requests {
            requests: vec![request],
        };
        let channel = connect(&alone.address, 1).await;
        let mut held = Vec::new();
        for _ in 0..40 {
            let first = tokio_stream::once(message.clone());
            let requests = first.chain(tokio_stream::pending());
            let mut pipeline = PipelineClient::new(channel.clone());
            let answers = timeout(SOON, pipeline.exchange(requests)).await;
            let mut answers = answers.expect("in time").expect("it is let in");
            let answer = timeout(SOON, answers.get_mut().message()).await;
            let answer = answer.expect("in time").expect("no error");
            assert_eq!(answer.expect("no end").answers[0].number, 1);
            held.push(answers);
        }
        let grew = growth(alone.server.id(), before);
        assert!(grew < 128 * MIB, "{} MiB", grew / MIB);
        drop(held);
    });
}

/// All of it at once, against the leader of three.
#[test]
fn a_leader_that_is_attacked_leads_on() {
    let mut cluster = Cluster::apart();
    // So long that nobody stands because the machine is busy.
    cluster.args = ["--election-timeout", "8s"].map(str::to_owned).into();
    let start = |id| {
        cluster
            .command(&attacked(), id)
            .stdout(Stdio::null())
            .spawn()
    };
    cluster.servers = (1..=3).map(|id| start(id).expect("a server")).collect();
    led(&cluster.url());
    let leader = cluster.leader() - 1;
    let address = cluster.clients[leader].clone();
    let process = cluster.servers[leader].id();
    let runtime = runtime();
    runtime.block_on(fill(&address));
    let (term, before) = (cluster.term(), resident(process));
    let probes = Probes::start(&address, process);
    let held = runtime.block_on(async {
        let (mut tails, mut under_way, mut reads) = (Vec::new(), Vec::new(), JoinSet::new());
        let channel = connect(&address, 1).await;
        for _ in 0..200 {
            tails.push(tail(&channel).await);
        }
        for _ in 0..4 {
            reads.spawn(unread(connect(&address, 1).await, 1_000));
        }
        for _ in 0..20 {
            under_way.push(halves(&connect(&address, 3).await, 1_000));
        }
        let rightful = connect(&address, 2).await;
        follow(&rightful).await;
        read(&rightful).await;
        (tails, under_way, all(reads).await, rightful)
    });
    let slowest = probes.end();
    let grew = growth(process, before);
    assert!(grew < 512 * MIB, "{} MiB", grew / MIB);
    assert!(slowest < PROMPT, "{slowest:?}");
    assert_eq!(cluster.leader() - 1, leader);
    assert_eq!(cluster.term(), term);
    drop(held);
}

/// The beginning of a connection over HTTP/2, and no settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A header of so many bytes goes with each call. A client that sends more
/// calls at once than this leaves room for is told to calm down.
const HEADER_BYTES: u8 = 90;

/// `GET /` on the stream of this number, and its reset.
fn reset_at_once(stream: u32, into: &mut Vec<u8>) {
    let stream = stream.to_be_bytes();
    // HEADERS with END_HEADERS and END_STREAM: method, scheme and path by
    // their numbers in the static table, and a literal header.
    into.extend([0, 0, 7 + HEADER_BYTES, 1, 5]);
    into.extend(stream);
    into.extend([0x82, 0x86, 0x84, 0, 1, b'x', HEADER_BYTES]);
    into.extend([b'a'; HEADER_BYTES as usize]);
    // RST_STREAM, CANCEL.
    into.extend([0, 0, 4, 3, 0]);
    into.extend(stream);
    into.extend([0, 0, 0, 8]);
}

/// Calls that are begun and reset, until the server closes the connection or
/// so many were sent.
fn reset_calls(address: &str, calls: u32) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let mut answers = stream.try_clone().expect("a second handle");
    let reading = std::thread::spawn(move || drop(std::io::copy(&mut answers, &mut sink())));
    let mut sent = stream.write_all(PREFACE);
    let mut batch = Vec::new();
    for call in 0..calls {
        reset_at_once(2 * call + 1, &mut batch);
        if batch.len() > 16_000 && sent.is_ok() {
            sent = stream.write_all(&batch);
            batch.clear();
        }
    }
    // It has come to all of them when it ends the connection, too.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    reading.join().expect("no panic");
}

#[test]
fn calls_that_are_reset_as_they_begin_hold_little() {
    // Nobody needs a token for it.
    let alone = Alone::start(Some(&format!("[tokens.a]\nsha256 = \"{:064}\"\n", 7)));
    let before = resident(alone.server.id());
    let probes = Probes::start(&alone.address, alone.server.id());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| reset_calls(&alone.address, 30_000));
        }
    });
    let slowest = probes.end();
    let grew = growth(alone.server.id(), before);
    assert!(grew < 128 * MIB, "{} MiB", grew / MIB);
    assert!(slowest < PROMPT, "{slowest:?}");
}

/// How many requests one message has that are all refused, and how many such
/// messages are sent.
const REFUSED: [u64; 2] = [8_000, 4];

/// A token may ask for thousands of things in one message that it has no right
/// to. Each refusal is a text that is made and sent: others have their turn
/// before the last of them.
#[test]
fn a_message_of_refused_requests_keeps_nobody_waiting_to_its_end() {
    let tokens = format!(
        "[tokens.x]\nsha256 = \"{}\"\ncampaign = [\"x\"]\n",
        tenure_server::fingerprint("x")
    );
    let alone = Alone::start(Some(&tokens));
    let swap = v1::Swap {
        // As long as a key may be, and each character is escaped.
        key: format!("secret/{}", "\u{202e}".repeat(165)),
        ..v1::Swap::default()
    };
    let command = v1::Command {
        operation: Some(v1::command::Operation::Swap(swap)),
        ..v1::Command::default()
    };
    let request = |number| v1::Request {
        number,
        what: Some(v1::request::What::Command(command.clone())),
        ..v1::Request::default()
    };
    let requests = v1::Requests {
        requests: (1..=REFUSED[0]).map(request).collect(),
    };
    let before = worked(alone.server.id());
    let probes = Probes::start(&alone.address, alone.server.id());
    runtime().block_on(async {
        let mut pipeline = PipelineClient::new(connect(&alone.address, 2).await)
            .max_decoding_message_size(64 << 20);
        for _ in 0..REFUSED[1] {
            let mut call = tonic::Request::new(tokio_stream::once(requests.clone()));
            let token = "Bearer x".parse().expect("a header");
            call.metadata_mut().insert("authorization", token);
            let answers = pipeline.exchange(call).await.expect("a stream");
            let (mut answers, mut refused) = (answers.into_inner(), 0);
            while let Some(message) = answers.message().await.expect("answers") {
                refused += message.answers.len() as u64;
            }
            assert_eq!(refused, REFUSED[0]);
        }
    });
    let slowest = probes.end();
    let all = worked(alone.server.id()).saturating_sub(before);
    assert!(slowest * 10 < all, "{slowest:?} of {all:?}");
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// So many calls without a token, each with its headers alone: `GET /v1/x`, or
/// one of gRPC.
fn refused_calls(first: u32, count: u32, grpc: bool) -> Vec<u8> {
    let mut block = vec![if grpc { 0x83 } else { 0x82 }, 0x86];
    block.extend(b"\x01\x09localhost\x04\x05/v1/x");
    if grpc {
        block.extend(b"\x0f\x10\x10application/grpc");
    }
    let streams = (0..count).map(|number| first + 2 * number);
    streams.flat_map(|it| frame(1, 5, it, &block)).collect()
}

/// `GET` of a short path.
fn get(stream: u32, path: &str) -> Vec<u8> {
    let mut block = b"\x82\x86\x01\x09localhost\x04".to_vec();
    block.push(u8::try_from(path.len()).expect("short"));
    block.extend(path.as_bytes());
    frame(1, 5, stream, &block)
}

/// A connection from there that leaves no room for bodies.
fn roomless(address: &str, from: u8) -> TcpStream {
    let connected = runtime().block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, from], 0).into()).expect("bound");
        socket.set_recv_buffer_size(4_096).expect("small");
        let to = address.parse().expect("an address");
        socket.connect(to).await.expect("it listens").into_std()
    });
    let mut stream = connected.expect("a socket");
    stream.set_nonblocking(false).expect("it blocks");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    // INITIAL_WINDOW_SIZE: 0.
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let begin = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
    stream.write_all(&begin).expect("it reads");
    stream
}

/// Reads until so many calls have the head of their answer, or were reset.
fn answered(stream: &mut TcpStream, calls: u32) {
    let mut answers = 0;
    while answers < calls {
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).expect("a payload");
        answers += u32::from(head[3] == 1 || head[3] == 3);
        assert_ne!(head[3], 7, "the connection is ended");
    }
}

fn operated() -> Alone {
    let sha256 = tenure_server::fingerprint("operator");
    let tokens = format!("[tokens.operator]\nsha256 = \"{sha256}\"\nadmin = true\n");
    Alone::start(Some(&tokens))
}

#[test]
fn refusals_for_whose_bodies_there_is_no_room_cost_little() {
    let alone = operated();
    let before = resident(alone.server.id());
    let mut held = Vec::new();
    for from in 2..=61 {
        let mut stream = roomless(&alone.address, from);
        stream
            .write_all(&refused_calls(1, 1_000, false))
            .expect("it reads");
        answered(&mut stream, 1_000);
        held.push(stream);
    }
    let grew = growth(alone.server.id(), before);
    assert!(grew < 48 * MIB, "{} MiB", grew / MIB);
}

/// Waits until a server has come to everything that was sent.
fn settled(process: u32) {
    let settled = || {
        let before = worked(process);
        std::thread::sleep(PROMPT / 4);
        (worked(process) - before < PROMPT / 50).then_some(())
    };
    common::poll_until(SOON, settled).expect("it has come to all");
}

/// Connections, one from each of these addresses, on which calls are sent and no
/// answer is read. The server may close them while they are written to.
fn unread_calls(address: &str, from: impl Iterator<Item = u8>, calls: &[u8]) -> Vec<TcpStream> {
    let one = |from| {
        let mut stream = roomless(address, from);
        let _ = stream.write_all(calls);
        stream
    };
    from.map(one).collect()
}

/// Closes all of them at once, and says for how long the server works before it
/// comes to others.
fn closed_at_once(alone: &Alone, held: Vec<TcpStream>) -> std::time::Duration {
    let probes = Probes::start(&alone.address, alone.server.id());
    for stream in &held {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    drop(held);
    let files = format!("/proc/{}/fd", alone.server.id());
    let gone = || {
        let open = std::fs::read_dir(&files).expect("it runs").count();
        // Others than these, and those of the probes.
        (open < 50).then_some(())
    };
    common::poll_until(SOON, gone).expect("all of them are closed");
    probes.end()
}

/// The HTTP library keeps a thousand answers for each connection: refusals of
/// callers without a token, and answers to callers that name no page.
#[test]
fn connections_whose_answers_nobody_reads_cost_little_and_are_closed_quickly() {
    let servers = [(operated(), "/v1/x", 96), (Alone::start(None), "/x/y", 144)];
    for (alone, path, most) in servers {
        let before = resident(alone.server.id());
        let calls: Vec<_> = (0..1_000).flat_map(|it| get(1 + 2 * it, path)).collect();
        let held = unread_calls(&alone.address, 2..=101, &calls);
        settled(alone.server.id());
        let grew = growth(alone.server.id(), before);
        assert!(grew < most * MIB, "{path}: {} MiB", grew / MIB);
        let slowest = closed_at_once(&alone, held);
        assert!(slowest < PROMPT / 2, "{path}: {slowest:?}");
    }
}

/// A client that takes its answers, but slowly, keeps its connection: a
/// thousand calls at once, and each is answered.
#[test]
fn who_reads_slowly_gets_all_answers() {
    let alone = Alone::start(None);
    let calls: Vec<_> = (0..1_000)
        .flat_map(|it| get(1 + 2 * it, "/healthz"))
        .collect();
    let mut held = unread_calls(&alone.address, 2..=3, &calls);
    settled(alone.server.id());
    for stream in &mut held {
        answered(stream, 1_000);
    }
}

/// Calls whose heads have come and whose bodies have not: more than there is room
/// for.
#[test]
fn calls_whose_bodies_never_come_cost_what_they_count() {
    let alone = Alone::start(None);
    let before = resident(alone.server.id());
    let mut block = vec![0x83, 0x86];
    block.extend(b"\x01\x09localhost\x04\x15/tenure.v1.Log/Append\x0f\x10\x10application/grpc");
    let calls = (0..1_000).flat_map(|it| frame(1, 4, 1 + 2 * it, &block));
    let calls: Vec<_> = calls.collect();
    let mut held = Vec::new();
    // Of five callers, six connections each.
    for _ in 0..6 {
        held.extend(unread_calls(&alone.address, 2..=6, &calls));
    }
    settled(alone.server.id());
    let counted = metric(&alone.address, "held_requests_bytes ");
    assert!(counted > 60e6, "{counted}");
    let grew = growth(alone.server.id(), before);
    assert!(grew < 144 * MIB, "{} MiB", grew / MIB);
    let slowest = closed_at_once(&alone, held);
    assert!(slowest < PROMPT / 2, "{slowest:?}");
}

/// Connections on which so many calls are refused and nothing is read. What the
/// server does not read of the calls the system may take.
fn unread_refusals(alone: &Alone, from: impl Iterator<Item = u8>) -> Vec<TcpStream> {
    const CALLS: u32 = 30_000;
    let writers: Vec<_> = from
        .map(|from| {
            let mut stream = roomless(&alone.address, from);
            let pause = std::time::Duration::from_secs(2);
            stream.set_write_timeout(Some(pause)).expect("a timeout");
            std::thread::spawn(move || {
                let _ = stream.write_all(&refused_calls(1, CALLS, true));
                stream
            })
        })
        .collect();
    let writers = writers.into_iter();
    writers.map(|it| it.join().expect("no panic")).collect()
}

/// A client that reads nothing at all.
#[test]
fn refusals_that_nobody_reads_cost_little() {
    let alone = operated();
    let before = resident(alone.server.id());
    let probes = Probes::start(&alone.address, alone.server.id());
    let held = unread_refusals(&alone, 2..=9);
    let slowest = probes.end();
    let grew = growth(alone.server.id(), before);
    drop(held);
    assert!(grew < 64 * MIB, "{} MiB", grew / MIB);
    assert!(slowest < PROMPT, "{slowest:?}");
}

/// Beyond the share of their caller such connections are closed.
#[test]
fn connections_that_read_nothing_are_closed_where_there_is_no_room() {
    let alone = operated();
    let held = unread_refusals(&alone, std::iter::repeat_n(2, 8));
    let operator = "Authorization: Bearer operator\r\n";
    let is_closed = || {
        let metrics = answer(call_with(&alone.address, "GET /metrics", operator, ""));
        let unread = "tenure_connections_closed_total{reason=\"Unread\"}";
        metrics.contains(unread).then_some(())
    };
    common::poll_until(SOON, is_closed).expect("some are closed");
    drop(held);
}

/// A read of a register from this address, which is neither a probe nor an operator's
/// call; the code of its failure.
async fn read_from(address: &str, from: u8) -> Option<Code> {
    let mut registers = RegistersClient::new(connect(address, from).await);
    let read = v1::ReadRequest {
        key: "a".into(),
        ..Default::default()
    };
    let read = registers.read(read);
    read.await.err().map(|it| it.code())
}

/// Each caller takes half of what the callers before it have left. It gives HTTP/2 no
/// room for the answers, and stays.
#[test]
fn callers_that_hold_what_they_got_keep_no_other_out() {
    let alone = Alone::start(None);
    let status = |it: u32| {
        let mut block = b"\x83\x86\x01\x09localhost\x04\x19/tenure.v1.Cluster/Status".to_vec();
        block.extend(b"\x0f\x10\x10application/grpc");
        let stream = 1 + 2 * it;
        [frame(1, 4, stream, &block), frame(0, 1, stream, &[0; 5])].concat()
    };
    let calls: Vec<_> = (0..200).flat_map(status).collect();
    let mut held = Vec::new();
    for from in 2..=31 {
        held.extend(unread_calls(&alone.address, [from; 6].into_iter(), &calls));
    }
    settled(alone.server.id());
    let counted = metric(&alone.address, "held_requests_bytes ");
    assert!(counted > 70e6, "{counted}");
    runtime().block_on(async {
        for from in 101..=110 {
            assert_eq!(read_from(&alone.address, from).await, None);
        }
    });
    drop(held);
}
