//! More than a server can do, and clients that do not read what they asked
//! for: everything has a limit, the limit is answered at once, and memory
//! stays bounded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure_api::v1::{
    self, log_client::LogClient, pipeline_client::PipelineClient,
    registers_client::RegistersClient, request,
};
use tenure_client::Client;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::healed::write;
use crate::network::Network;
use crate::room::within;
use crate::servers::{PATIENCE, Servers, until};

/// Runs a server whose memory is what it holds. Else the allocator keeps what was freed for
/// ten seconds, to use it again: the quicker the machine, the more.
const HELD_ALONE: [&str; 2] = ["env", "_RJEM_MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0"];

/// Watches the memory of a server; gives the most there was.
struct Memory {
    most: Arc<Mutex<u64>>,
    stop: Arc<AtomicBool>,
}

impl Memory {
    fn of(servers: &Servers, server: u64) -> Self {
        let (most, stop) = (Arc::new(Mutex::new(0)), Arc::new(AtomicBool::new(false)));
        let path = format!("/proc/{}/status", servers.pid(server));
        let (seen, over) = (Arc::clone(&most), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if let Some(now) = crate::servers::resident(&path) {
                    let mut seen = seen.lock().expect("nobody panics with it");
                    *seen = now.max(*seen);
                }
                std::thread::park_timeout(Duration::from_millis(10));
            }
        });
        Self { most, stop }
    }

    /// The most, in MiB.
    fn most(&self) -> u64 {
        *self.most.lock().expect("nobody panics with it") >> 20
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn overload_is_answered_at_once_and_does_not_grow() {
    within(
        "overload::overload_is_answered_at_once_and_does_not_grow",
        async |room| {
            /// Connections, and on each so many appends of so many bytes.
            const CONNECTIONS: usize = 8;
            const AT_ONCE: usize = 400;
            const BYTES: usize = 32 * 1024;
            const LASTING: Duration = Duration::from_secs(8);
            const AT_ONCE_IS: Duration = Duration::from_secs(10);
            let mut servers = Servers::new(1, Network::proxied(room, 1).await);
            servers.wrap(1, &HELD_ALONE, &[]);
            servers.start(1);
            servers.leader().await;
            let memory = Memory::of(&servers, 1);
            let before = servers.resident(1) >> 20;
            let end = Instant::now() + LASTING;
            let mut callers = JoinSet::new();
            for _ in 0..CONNECTIONS {
                let log = LogClient::new(servers.channel(1));
                for _ in 0..AT_ONCE {
                    callers.spawn(press(log.clone(), BYTES, end));
                }
            }
            // Somebody who wants little, meanwhile, and must hear at once.
            let mut probe = LogClient::new(servers.channel(1));
            let (mut asked, mut slowest) = (0, Duration::ZERO);
            while Instant::now() < end {
                let begun = Instant::now();
                append(&mut probe, 1).await;
                slowest = slowest.max(begun.elapsed());
                asked += 1;
                sleep(Duration::from_millis(50)).await;
            }
            let (mut done, mut refused) = (0, 0);
            while let Some(counts) = callers.join_next().await {
                let (more, others) = counts.expect("no panic");
                (done, refused) = (done + more, refused + others);
            }
            let most = memory.most();
            eprintln!(
                "  {done} appended, {refused} refused at once, {} MiB offered; {asked} small ones \
             meanwhile, the slowest in {slowest:?}; {before} MiB before, {most} MiB at most",
                (done + refused) * BYTES / (1 << 20)
            );
            assert!(
                done > 0 && refused > 0,
                "{done} appended, {refused} refused"
            );
            // Quickly for a server built for tests on a machine that is full.
            assert!(asked > 1 && slowest < AT_ONCE_IS, "{asked}: {slowest:?}");
            // The log as state, as entries and as a snapshot is 64 MiB each, a
            // snapshot is written while another is made, and 64 MiB may be on
            // their way.
            assert!(most < before + 350, "{before} MiB, then {most} MiB");
            write(&servers.url()).await;
        },
    );
}

/// Appends until `end`; how often that was done, and refused.
async fn press(mut log: Log, bytes: usize, end: Instant) -> (usize, usize) {
    let (mut done, mut refused) = (0, 0);
    while Instant::now() < end {
        if append(&mut log, bytes).await {
            done += 1;
        } else {
            refused += 1;
            // Not to spend this machine on being refused.
            sleep(Duration::from_millis(20)).await;
        }
    }
    (done, refused)
}

type Log = LogClient<tonic::transport::Channel>;

/// Appends, and says whether that was done: else there was too much to do.
async fn append(log: &mut Log, bytes: usize) -> bool {
    let append = v1::AppendRequest {
        entries: vec![vec![0; bytes].into()],
        numbered: None,
    };
    match log.append(append).await {
        Ok(_) => true,
        Err(status) => {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            false
        }
    }
}

#[test]
fn answers_that_nobody_reads_do_not_pile_up() {
    within(
        "overload::answers_that_nobody_reads_do_not_pile_up",
        async |room| {
            let servers = Servers::found(1, Network::proxied(room, 1).await).await;
            let client = Client::open(&servers.url()).expect("a client");
            client.append(vec![7; 1_000_000]).await.expect("appended");
            let memory = Memory::of(&servers, 1);
            let before = servers.resident(1) >> 20;
            // All of them first: who holds that much opens no more.
            let mut held = Vec::new();
            for _ in 0..4 {
                let (sender, requests) = tokio::sync::mpsc::channel(1);
                let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
                let mut pipeline = PipelineClient::new(servers.channel(1));
                let answers = pipeline.exchange(requests).await.expect("a stream");
                held.push((sender, answers));
            }
            for (sender, _) in &held {
                let read = v1::ReadLogRequest {
                    from: 1,
                    limit: 1,
                    stale: false,
                };
                let requests = (1..=2_000).map(|number| v1::Request {
                    number,
                    what: Some(request::What::ReadLog(read)),
                    ..v1::Request::default()
                });
                let message = v1::Requests {
                    requests: requests.collect(),
                };
                // It stays open, and nothing more is asked.
                sender.send(message).await.expect("there is room");
            }
            // A server that cannot tell its answers looks at no more requests.
            let (mut last, mut still) = (0.0, 0);
            until(
                "that no more is done, or refused for want of room",
                async || {
                    let done = "tenure_requests_total{result=\"Done\"}";
                    let mut all = servers.metric(1, done).await;
                    for of in ["Connection", "Caller", "Server"] {
                        let refused = format!("tenure_calls_without_room_total{{of=\"{of}\"}}");
                        all += servers.metric(1, &refused).await;
                    }
                    still = if all == last { still + 1 } else { 0 };
                    last = all;
                    (all >= 256.0 && still == 5).then_some(())
                },
            )
            .await;
            // Eight thousand answers of a megabyte each.
            write(&servers.url()).await;
            let most = memory.most();
            eprintln!("  {before} MiB before, {most} MiB at most");
            assert!(most < before + 128, "{before} MiB, then {most} MiB");
            drop(held);
        },
    );
}

#[test]
fn a_watch_that_is_not_read_is_cut_off_and_told_why() {
    within(
        "overload::a_watch_that_is_not_read_is_cut_off_and_told_why",
        async |room| {
            let servers = Servers::found(1, Network::proxied(room, 1).await).await;
            let mut registers = RegistersClient::new(servers.channel(1));
            let watch = v1::WatchRequest {
                prefix: "w/".into(),
                ..v1::WatchRequest::default()
            };
            let unread = registers.watch(watch).await.expect("a watch");
            let mut unread = unread.into_inner();
            let memory = Memory::of(&servers, 1);
            let before = servers.resident(1) >> 20;
            let client = Client::open(&servers.url()).expect("a client");
            let mut version = None;
            let mut written = 0;
            until("the end of the watch", async || {
                use tenure::core::cas::{Expect, Stamp, Write};
                for _ in 0..20 {
                    let write = Write {
                        key: tenure::core::ids::Key::new("w/x").expect("a good key"),
                        expect: version.clone().map_or(Expect::Absent, Expect::Version),
                        value: vec![1; 200 * 1024].into(),
                        stamp: Stamp::Now,
                    };
                    let swapped = client.compare_and_swap(write).await.expect("written");
                    version = Some(swapped.version);
                    written += 1;
                }
                (servers.metric(1, "tenure_watches_cut_total").await > 0.0).then_some(())
            })
            .await;
            let most = memory.most();
            eprintln!("  cut off after {written} changes; {before} MiB before, {most} MiB at most");
            assert!(most < before + 256, "{before} MiB, then {most} MiB");
            let why = loop {
                match timeout(PATIENCE, unread.message()).await.expect("told") {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("it ended without a word"),
                    Err(status) => break status,
                }
            };
            assert_eq!(why.code(), Code::ResourceExhausted, "{why}");
            assert!(
                why.message().contains("begin again from the last revision"),
                "{why}"
            );
        },
    );
}

#[test]
fn what_is_too_large_is_refused_by_name() {
    within(
        "overload::what_is_too_large_is_refused_by_name",
        async |room| {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let servers = Servers::found(3, Network::proxied(room, 3).await).await;
            let leader = servers.leader().await;
            let mut log = LogClient::new(servers.channel(leader));
            for (bytes, said) in [(1024 * 1024 + 1, "1048577"), (9 << 20, "too large")] {
                let append = v1::AppendRequest {
                    entries: vec![vec![0; bytes].into()],
                    numbered: None,
                };
                let refused = log.append(append).await.expect_err("too large");
                assert!(refused.message().contains(said), "{refused}");
            }
            let place = servers.network.place(leader);
            // By HTTP, a body that is longer than any.
            let mut stream = tokio::net::TcpStream::connect(&place.client)
                .await
                .expect("it listens");
            let head = "POST /v1/log/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n";
            stream.write_all(head.as_bytes()).await.expect("sent");
            let mut answer = [0; 12];
            let body = vec![b'x'; 1 << 20];
            let (mut reads, mut writes) = stream.split();
            let send = async {
                // Until it is closed.
                while writes.write_all(&body).await.is_ok() {}
                std::future::pending::<()>().await;
            };
            tokio::select! {
                read = timeout(PATIENCE, reads.read_exact(&mut answer)) => {
                    read.expect("in time").expect("an answer");
                }
                () = send => {}
            }
            assert_eq!(
                &answer,
                b"HTTP/1.1 413",
                "{}",
                String::from_utf8_lossy(&answer)
            );
            // Between servers, a greeting that claims to be long.
            let peers = place.listen_peers.expect("behind a proxy");
            let mut stream = tokio::net::TcpStream::connect(&peers)
                .await
                .expect("it listens");
            let mut greeting = b"tenure-1".to_vec();
            greeting.extend([255; 8]);
            stream.write_all(&greeting).await.expect("sent");
            let read = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
            let _ = read.expect("it is closed");
            let garbage = "tenure_connections_closed_total{reason=\"Garbage\"}";
            until("it is counted", async || {
                (servers.metric(leader, garbage).await >= 1.0).then_some(())
            })
            .await;
            write(&servers.url()).await;
        },
    );
}

#[test]
fn messages_that_lack_their_last_byte_are_kept_up_to_a_bound() {
    let name = "overload::messages_that_lack_their_last_byte_are_kept_up_to_a_bound";
    within(name, async |room| {
        /// More of them than a server keeps: 480 MiB, and 256 are kept.
        const CALLS: usize = 120;
        let servers = Servers::found(1, Network::proxied(room, 1).await).await;
        let address = servers.network.place(1).client;
        let memory = Memory::of(&servers, 1);
        let before = servers.resident(1) >> 20;
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            calls.spawn(almost(address.clone()));
        }
        let calls = calls.join_all().await;
        let mut kept = 0;
        let mut refused = 0;
        for call in &calls {
            match call {
                Some(_) => kept += 1,
                None => refused += 1,
            }
        }
        // Somebody who wants little is heard beside them.
        let mut probe = LogClient::new(servers.channel(1));
        assert!(append(&mut probe, 1).await, "a small call beside them");
        let most = memory.most();
        eprintln!("  {kept} kept, {refused} refused; {before} MiB before, {most} MiB at most");
        assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused");
        assert!(most < before + 400, "{before} MiB, then {most} MiB");
        // Who goes makes room.
        drop(calls);
        until("room for another", async || {
            almost(address.clone()).await.map(drop)
        })
        .await;
        write(&servers.url()).await;
    });
}

/// Sends a request of 4 MiB but for its last byte; nothing if that was
/// refused, and the connection if it is waited for.
async fn almost(address: String) -> Option<tokio::net::TcpStream> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    const BYTES: usize = 4 * 1024 * 1024;
    /// How long a refusal is waited for.
    const SOON: Duration = Duration::from_secs(2);
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    let head = format!(
        "POST /v1/log/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {BYTES}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(&vec![b' '; BYTES - 1]).await.ok()?;
    match timeout(SOON, stream.read(&mut [0; 64])).await {
        Ok(_) => None,
        Err(_) => Some(stream),
    }
}
