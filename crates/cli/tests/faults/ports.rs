//! Strangers at the ports: those who send garbage, those who send nothing, by
//! the thousand, and those who do not read.
//!
//! All of it must end in a closed connection that is counted, or in an error
//! that says what is wrong, and the cluster must go on as if nothing were.

use std::time::{Duration, Instant};

use tenure_client::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::healed::{end_of_log, write};
use crate::load::Load;
use crate::network::{Network, Place};
use crate::room::within;
use crate::servers::{PATIENCE, Servers, until, until_within};

/// How long a client may take to say what it wants, and some more.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How long a server may take to say who it is, and some more.
const GREET_WITHIN: Duration = Duration::from_secs(3);
const MORE: Duration = Duration::from_secs(5);

/// Both ports of a server.
fn ports(place: &Place) -> [String; 2] {
    let peers = place.listen_peers.as_ref().unwrap_or(&place.peer);
    [peers.clone(), place.client.clone()]
}

/// How soon a connection of a flood that was closed is opened again: a flood
/// is to fill the servers, and not this machine's processors.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

fn closed(reason: &str) -> String {
    format!("tenure_connections_closed_total{{reason=\"{reason}\"}}")
}

/// Waits until a server has counted so many that it closed for this reason: it
/// does so when they are closed, which the client at the other end may learn
/// first. How many it has counted then.
async fn counted(servers: &Servers, server: u64, reason: &str, least: f64) -> f64 {
    until(&format!("{least} closed, {reason}"), async || {
        let counted = servers.metric(server, &closed(reason)).await;
        (counted >= least).then_some(counted)
    })
    .await
}

/// Connections of which so many are held open all the time, saying `what` and
/// nothing more, until this is dropped.
struct Flood(JoinSet<()>);

impl Flood {
    fn start(address: &str, count: usize, what: &'static [u8]) -> Self {
        let mut holders = JoinSet::new();
        for _ in 0..count {
            let address = address.to_owned();
            holders.spawn(async move {
                loop {
                    if let Ok(mut stream) = TcpStream::connect(&address).await
                        && stream.write_all(what).await.is_ok()
                    {
                        // Until it is closed.
                        let _ = stream.read_to_end(&mut Vec::new()).await;
                    }
                    sleep(AGAIN_AFTER).await;
                }
            });
        }
        Self(holders)
    }

    async fn end(mut self) {
        self.0.shutdown().await;
    }
}

/// Lets this process have as many files open as it may.
fn many_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
    current.unwrap_or(u64::MAX)
}

#[test]
fn garbage_is_closed_and_counted() {
    within("ports::garbage_is_closed_and_counted", async |room| {
        let servers = Servers::found(3, Network::proxied(room, 3).await).await;
        let url = servers.url();
        let load = Load::patient(&url, 23, Duration::from_millis(10));
        let mut garbage = vec![0; 1 << 20];
        let mut rng = tenure::core::rng::Rng::from_seed(23);
        for _ in 0..4 {
            garbage.fill_with(|| rng.next_u64() as u8);
            for server in servers.ids() {
                for port in ports(&servers.network.place(server)) {
                    let mut stream = TcpStream::connect(port).await.expect("it listens");
                    // It may be closed before all is written.
                    let _ = stream.write_all(&garbage).await;
                    let _ = stream.shutdown().await;
                    let read = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
                    let _ = read.expect("it is closed");
                }
            }
        }
        for server in servers.ids() {
            counted(&servers, server, "Garbage", 8.0).await;
        }
        let (record, log) = load
            .end(async |record| end_of_log(&url, record).await)
            .await;
        let counts = record.counts();
        assert_eq!(counts.unknown + counts.appends_unknown, 0, "{counts:?}");
        record
            .copy()
            .judge(&log)
            .unwrap_or_else(|why| panic!("{why}"));
    });
}

#[test]
fn whoever_is_slow_to_speak_is_cut_off() {
    within("ports::whoever_is_slow_to_speak_is_cut_off", async |room| {
        let servers = Servers::found(1, Network::proxied(room, 1).await).await;
        let [peers, clients] = ports(&servers.network.place(1));
        let mut slow = JoinSet::new();
        let h2 = &b"PRI * HTTP/2.0\r\n"[..];
        let cases = [
            (&clients, &b""[..], HEADERS_WITHIN),
            (&clients, b"G", HEADERS_WITHIN),
            (
                &clients,
                b"GET /leader HTTP/1.1\r\nHost: localhost\r\nX-",
                HEADERS_WITHIN,
            ),
            (&clients, h2, HEADERS_WITHIN),
            (&peers, b"", GREET_WITHIN),
            (&peers, b"tenure-1", GREET_WITHIN),
        ];
        for (address, start, within) in cases {
            for _ in 0..20 {
                slow.spawn(trickle(address.clone(), start.to_vec(), within + MORE));
            }
        }
        while let Some(ended) = slow.join_next().await {
            ended.expect("it was closed");
        }
        let counted = counted(&servers, 1, "Slow", 120.0).await;
        assert_eq!(counted, 120.0, "all of them, and each once");
        write(&servers.url()).await;
    });
}

/// Says `start`, and then a byte a second, until it is closed.
async fn trickle(address: String, start: Vec<u8>, within: Duration) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let said = String::from_utf8_lossy(&start).into_owned();
    stream.write_all(&start).await.expect("it is open");
    let begun = Instant::now();
    let mut byte = [0; 1_024];
    loop {
        let read = timeout(Duration::from_secs(1), stream.read(&mut byte)).await;
        if matches!(read, Ok(Ok(0) | Err(_))) {
            return;
        }
        assert!(
            begun.elapsed() < within,
            "{said:?} is let be for {within:?}"
        );
        // A header that never ends; nothing, from a client that has said
        // nothing.
        if said.starts_with("GET") {
            let _ = stream.write_all(b"a").await;
        }
    }
}

#[test]
fn thousands_that_say_nothing_keep_nobody_out() {
    within(
        "ports::thousands_that_say_nothing_keep_nobody_out",
        async |room| {
            let files = many_files();
            // Both ends of each connection are open files of somebody's.
            let each = usize::try_from((files / 4).min(1_800)).expect("it is small");
            let mut servers = Servers::found(3, Network::proxied(room, 3).await).await;
            let url = servers.url();
            let load = Load::start(&url, 29, Duration::from_millis(15));
            let before = servers
                .ids()
                .into_iter()
                .map(|it| servers.resident(it))
                .max();
            let mut floods = Vec::new();
            for server in servers.ids() {
                let [peers, clients] = ports(&servers.network.place(server));
                floods.push(Flood::start(&peers, each / 3, b""));
                floods.push(Flood::start(&clients, each / 3, b"GET"));
                floods.push(Flood::start(&clients, each / 3, b""));
            }
            for server in servers.ids() {
                until("the flood", async || {
                    let full = servers.metric(server, &closed("Full")).await;
                    (full > 100.0).then_some(())
                })
                .await;
            }
            // A server that comes back is let in by the others, and a client that
            // was not there before gets through.
            let leader = servers.leader().await;
            servers.kill(leader);
            write(&url).await;
            servers.start(leader);
            until_within(Duration::from_secs(10), "the way back", async || {
                servers.status(leader).await.filter(|it| it.ready)
            })
            .await;
            let after = servers
                .ids()
                .into_iter()
                .map(|it| servers.resident(it))
                .max();
            let [before, after] = [before, after].map(|it| it.expect("three") >> 20);
            eprintln!("  {each} connections: {before} MiB before, {after} MiB with them");
            assert!(after < before + 64, "{before} MiB, then {after} MiB");
            let (record, log) = load
                .end(async |record| end_of_log(&url, record).await)
                .await;
            for flood in floods {
                flood.end().await;
            }
            let verdict = record
                .copy()
                .judge(&log)
                .unwrap_or_else(|why| panic!("{why}"));
            eprintln!("  {verdict}");
        },
    );
}

#[test]
fn few_open_files_are_enough_under_a_flood() {
    within(
        "ports::few_open_files_are_enough_under_a_flood",
        async |room| {
            many_files();
            let mut servers = Servers::new(1, Network::proxied(room, 1).await);
            let few = ["sh", "-c", "ulimit -n 128; exec \"$@\"", "sh"];
            servers.wrap(1, &few, &[]);
            servers.start(1);
            servers.leader().await;
            let [peers, clients] = ports(&servers.network.place(1));
            let floods = [
                Flood::start(&peers, 200, b""),
                Flood::start(&clients, 200, b""),
            ];
            until("the flood", async || {
                let full = servers.metric(1, &closed("Full")).await;
                (full > 100.0).then_some(())
            })
            .await;
            // The log needs another file for every 64 MiB.
            let client = Client::open(&servers.url()).expect("a client");
            for _ in 0..140 {
                client.append(vec![0; 512 * 1024]).await.expect("appended");
            }
            servers.assert_all_live();
            let segments = std::fs::read_dir(servers.data(1)).expect("its data");
            let logs = segments.filter(|it| {
                let name = it.as_ref().expect("an entry").file_name();
                name.to_string_lossy().ends_with(".wal")
            });
            assert!(logs.count() >= 2, "the log fits one segment");
            for flood in floods {
                flood.end().await;
            }
        },
    );
}
