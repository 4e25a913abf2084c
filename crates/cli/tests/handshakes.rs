//! A stranger without a certificate that asks for one TLS handshake after the
//! other, on both ports of the leader: it gets few, the leader stays, and
//! clients are let in.
//!
//! `TENURE_ATTACKED` names another binary to attack, a released one: that of
//! before begins all handshakes that it is asked for.

#[path = "common/attacked.rs"]
mod attacked;
mod common;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attacked::attacked;
use common::certificates::{authority, certified};
use common::poll_until;
use common::servers::{Heard, SOON, free, objects};
use serde_json::Value;
use tenure_server::transport::{Tls, TlsFiles};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// From where the stranger comes, and from where clients.
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 10));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 20));
/// Connections that the stranger has at the same time on one port.
const OPEN: usize = 300;
/// Between two of them: no more come than a server takes and closes, on
/// whatever machine, but many more than may begin.
const PAUSE: Duration = Duration::from_millis(1);
const LASTS: Duration = Duration::from_secs(8);
/// Handshakes with strangers on the clients' port and on that of servers: at
/// once, and in a second.
const RATES: [[u32; 2]; 2] = [[256, 200], [64, 50]];
/// Clients that connect at once, as after a restart.
const CROWD: usize = 64;

/// How long a client may take to be let in and answered: a second, of a
/// released binary. A build for tests takes ten times as long for everything,
/// and other tests have the processors.
fn prompt() -> Duration {
    let seconds = std::env::var("TENURE_ATTACKED").map_or(10, |_| 1);
    Duration::from_secs(seconds)
}

/// Three servers that take TLS alone.
struct Servers {
    directory: tempfile::TempDir,
    peers: Vec<SocketAddr>,
    clients: Vec<SocketAddr>,
    heard: Vec<Heard>,
}

impl Servers {
    fn start() -> Self {
        let addresses = free::<6>().map(|it| it.parse().expect("an address"));
        let mut servers = Self {
            directory: common::memory_directory(),
            peers: addresses[..3].to_vec(),
            clients: addresses[3..].to_vec(),
            heard: Vec::new(),
        };
        let [certificate, key] = {
            let authority = authority();
            std::fs::write(servers.files().authority, authority.pem()).expect("written");
            certified(&authority, false)
        };
        std::fs::write(servers.files().certificate, certificate).expect("written");
        std::fs::write(servers.files().key, key).expect("written");
        let heard = (1..=3).map(|id| servers.serve(id)).collect();
        servers.heard = heard;
        servers
    }

    fn files(&self) -> TlsFiles {
        let file = |name: &str| self.directory.path().join(name);
        TlsFiles {
            certificate: file("cert.pem"),
            key: file("key.pem"),
            authority: file("ca.pem"),
        }
    }

    fn serve(&self, id: usize) -> Heard {
        let peers = self.peers.iter().zip(1..);
        let peers: Vec<_> = peers.map(|(it, id)| format!("{id}={it}")).collect();
        let files = self.files();
        let mut command = Command::new(attacked());
        // A second is too little where other tests have the processors.
        command
            .args(["serve", "--election-timeout", "8s"])
            .args(["--id", &id.to_string(), "--peers", &peers.join(",")])
            .args(["--listen", &self.clients[id - 1].to_string()])
            .arg("--data")
            .arg(self.directory.path().join(id.to_string()))
            .arg("--tls-cert")
            .arg(files.certificate)
            .arg("--tls-key")
            .arg(files.key)
            .arg("--tls-ca")
            .arg(files.authority);
        Heard::start(command)
    }

    fn url(&self) -> String {
        let hosts: Vec<_> = self.clients.iter().map(SocketAddr::to_string).collect();
        let show = |path: &Path| path.display().to_string();
        let files = self.files();
        let [ca, cert, key] = [files.authority, files.certificate, files.key].map(|it| show(&it));
        let hosts = hosts.join(",");
        format!("tenure://{hosts}?ca={ca}&cert={cert}&key={key}")
    }

    /// Which server leads, from 0, and in which term.
    fn leader(&self) -> Option<(usize, u64)> {
        let status = objects(&["status", "--json", "--store", &self.url()]);
        let leader = status.iter().find(|it: &&Value| it["role"] == "leader")?;
        let id = usize::try_from(leader["id"].as_u64()?).ok()?;
        Some((id - 1, leader["term"].as_u64()?))
    }
}

fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime")
}

async fn connect(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(to).await
}

/// What a client sends first.
async fn hello(tls: &Tls) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let stream = TcpStream::connect(&address).await.expect("it listens");
    let heard = async {
        let (mut stream, _) = listener.accept().await.expect("it connects");
        let mut hello = vec![0; 16 * 1024];
        let length = stream.read(&mut hello).await.expect("a hello");
        hello.truncate(length);
        hello
    };
    let (hello, refused) = tokio::join!(heard, tls.connect(stream, &address));
    assert!(refused.is_err(), "it was not answered");
    hello
}

/// Sends one hello after the other, and says how many it sent and how many the
/// server has answered: with these it has begun a handshake.
async fn flood(to: SocketAddr, hello: Vec<u8>) -> (u32, u32) {
    let until = Instant::now() + LASTS;
    let (mut sent, mut answered) = (0, 0);
    let mut open = VecDeque::new();
    let mut count = |stream: TcpStream| {
        let read = stream.try_read(&mut [0]);
        answered += u32::from(read.is_ok_and(|read| read > 0));
    };
    while Instant::now() < until {
        let Ok(Ok(mut stream)) = timeout(Duration::from_secs(1), connect(STRANGER, to)).await
        else {
            continue;
        };
        sent += u32::from(stream.write_all(&hello).await.is_ok());
        open.push_back(stream);
        if open.len() > OPEN
            && let Some(oldest) = open.pop_front()
        {
            count(oldest);
        }
        sleep(PAUSE).await;
    }
    open.into_iter().for_each(count);
    (sent, answered)
}

/// Connects, asks and is answered; how long it took.
async fn get(tls: &Tls, to: SocketAddr, path: &str) -> (Duration, String) {
    let begun = Instant::now();
    let stream = connect(CLIENT, to).await.expect("it listens");
    let line = tls.connect(stream, &to.to_string()).await;
    let mut line = line.expect("it is let in");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    line.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    line.read_to_string(&mut answer).await.expect("an answer");
    (begun.elapsed(), answer)
}

/// Asks again and again for as long as it is polled, and notes how long it
/// took.
async fn get_on(tls: &Tls, to: SocketAddr, times: &mut Vec<Duration>) {
    loop {
        let (took, answer) = get(tls, to, "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        times.push(took);
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_flood_of_hellos_takes_neither_the_leader_nor_the_port() {
    let servers = Servers::start();
    let (leader, term) = poll_until(SOON, || servers.leader()).expect("a leader");
    let ports = [servers.clients[leader], servers.peers[leader]];
    let tls = Arc::new(Tls::open(servers.files()).expect("files"));

    let crowd = (0..CROWD).map(|_| {
        let tls = Arc::clone(&tls);
        async move { get(&tls, ports[0], "/healthz").await }
    });
    let crowd = crowd.collect::<JoinSet<_>>().join_all().await;
    assert!(crowd.iter().all(|(_, it)| it.starts_with("HTTP/1.1 200")));
    let (_, metrics) = get(&tls, ports[0], "/metrics").await;
    let delayed = "tenure_handshakes_delayed_total{";
    assert!(!metrics.contains(delayed), "a crowd waits: {metrics}");

    let hello = hello(&tls).await;
    // Each has a thread: what it keeps waiting is itself, and no client.
    let [clients, peers] = ports.map(|port| {
        let hello = hello.clone();
        let floods = move || runtime().block_on(flood(port, hello));
        tokio::task::spawn_blocking(floods)
    });
    let mut times = Vec::new();
    let floods = tokio::select! {
        floods = async { [clients.await, peers.await] } => floods,
        () = get_on(&tls, ports[0], &mut times) => unreachable!("it goes on"),
    };
    for (flood, [burst, rate]) in floods.into_iter().zip(RATES) {
        let (sent, answered) = flood.expect("it ends");
        let seconds = u32::try_from(LASTS.as_secs()).expect("few") + 2;
        let most = burst + rate * seconds;
        assert!(answered <= most, "{answered} of {sent}, expected {most}");
    }
    times.sort_unstable();
    let middle = times.get(times.len() / 2);
    let middle = middle.expect("one client was answered meanwhile");
    assert!(*middle < prompt(), "{times:?}");
    let leads = poll_until(SOON, || servers.leader()).expect("a leader");
    assert_eq!(leads, (leader, term), "it leads on");

    let (_, metrics) = get(&tls, ports[0], "/metrics").await;
    for port in ["Clients", "Servers"] {
        let closed = format!("{delayed}port=\"{port}\",fate=\"Closed\"}}");
        assert!(metrics.contains(&closed), "{metrics}");
        let words = [
            &*port.to_lowercase(),
            "WARN",
            "handshake",
            "from 127.0.0.10",
        ];
        servers.heard[leader].says(1, &words);
    }
}
