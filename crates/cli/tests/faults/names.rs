//! Host names that take long to look up, as where one of two name servers is dead.

use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tenure_client::{Client, Config, Token};

use crate::room::{Room, sh, within};
use crate::servers::{TENURE, until};

/// Longer than any attempt to connect to a server that is near.
const LOOKUP_TAKES: Duration = Duration::from_secs(2);
const SERVERS: &str = "h1.test:7401,h2.test:7402,h3.test:7403";
/// Many lookups, and an election.
const WITHIN: Duration = Duration::from_secs(15);

/// A name server in the network namespace of this test. It resolves every name to 127.0.0.1.
/// The returned number is its delay in milliseconds.
fn name_server(directory: &std::path::Path) -> Arc<AtomicU64> {
    let socket = UdpSocket::bind("127.0.0.1:53").expect("a network namespace of its own");
    let (socket, delay) = (Arc::new(socket), Arc::default());
    let takes: Arc<AtomicU64> = Arc::clone(&delay);
    thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            let (answer, socket) = (answer(&query[..length]), Arc::clone(&socket));
            let takes = Duration::from_millis(takes.load(Ordering::Relaxed));
            thread::spawn(move || {
                thread::sleep(takes);
                socket.send_to(&answer, from)
            });
        }
    });
    let file = directory.join("resolv.conf");
    let file = file.display();
    sh(&format!(
        "echo nameserver 127.0.0.1 > {file}; mount --bind {file} /etc/resolv.conf"
    ));
    delay
}

/// The same, once the test has a network namespace of its own.
fn own_name_server(test: &str, room: &Room, directory: &std::path::Path) -> Option<Arc<AtomicU64>> {
    if !matches!(room, Room::Own) {
        eprintln!("*** {test}: nothing was tried without a network namespace of its own");
        return None;
    }
    sh("ip link set lo up");
    Some(name_server(directory))
}

/// The answer to a query (RFC 1035, 4.1).
fn answer(query: &[u8]) -> Vec<u8> {
    let mut end = 12;
    while query[end] != 0 {
        end += 1 + usize::from(query[end]);
    }
    let (kind, end) = (&query[end + 1..end + 3], end + 5);
    let is_address = kind == [0, 1];
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
    answer.extend(&query[12..end]);
    if is_address {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
    }
    answer
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Server 1 alone, the first of its cluster.
fn start_alone(directory: &std::path::Path) -> Server {
    start_with("1=h1.test:7501", 1, directory)
}

fn start(id: u64, directory: &std::path::Path) -> Server {
    let peers = "1=h1.test:7501,2=h2.test:7502,3=h3.test:7503";
    start_with(peers, id, directory)
}

fn start_with(peers: &str, id: u64, directory: &std::path::Path) -> Server {
    let listen = format!("h{id}.test:740{id}");
    let mut command = Command::new(TENURE);
    command.args(["serve", "--id", &id.to_string(), "--peers", peers]);
    command.args(["--no-token", "--listen", &listen, "--data"]);
    command.arg(directory.join(id.to_string()));
    command.stdout(Stdio::null());
    Server(command.spawn().expect("tenure runs"))
}

fn bearing(token: &str) -> Config {
    let mut config = Config::default();
    config.token = Some(Token::Text(token.to_owned()));
    config
}

/// The clients know how near the servers are, and give each attempt to connect a fraction of
/// a second. One of them sends a token to any server that it finds.
#[test]
fn a_leader_is_found_whose_name_takes_longer_to_look_up_than_an_attempt_to_connect() {
    let name =
        "names::a_leader_is_found_whose_name_takes_longer_to_look_up_than_an_attempt_to_connect";
    within(name, async |room| {
        let directory = tempfile::tempdir().expect("a directory");
        let Some(delay) = own_name_server(name, &room, directory.path()) else {
            return;
        };
        let mut servers: Vec<_> = (1..=3).map(|id| start(id, directory.path())).collect();
        let [plain, bears_token] = [&Config::default(), &bearing("tenure_a_token")]
            .map(|config| Client::new(SERVERS, config).expect("a client"));
        until("the first entry", async || plain.append("first").await.ok()).await;
        bears_token.append("second").await.expect("a leader");
        let leader = plain.leader_status().await.expect("it leads").id;
        let takes = u64::try_from(LOOKUP_TAKES.as_millis()).expect("short");
        delay.store(takes, Ordering::Relaxed);
        drop(servers.remove(usize::try_from(leader).expect("small") - 1));
        // It waits for lookups, and the other one uses the addresses of before.
        let third = bears_token.with_timeout(WITHIN).append("third").await;
        third.expect("another leader is found");
        let fourth = plain.with_timeout(WITHIN).append("fourth").await;
        fourth.expect("another leader is found");
    });
}

/// A server of another cluster has the address of this client's, and the name server has
/// fallen silent: the name may mean another address by now.
#[test]
fn no_client_goes_to_another_cluster_at_the_address_that_a_name_had_before() {
    let name = "names::no_client_goes_to_another_cluster_at_the_address_that_a_name_had_before";
    within(name, async |room| {
        let directory = tempfile::tempdir().expect("a directory");
        let Some(delay) = own_name_server(name, &room, directory.path()) else {
            return;
        };
        let ours = start_alone(&directory.path().join("ours"));
        let client = Client::new("h1.test:7401", &Config::default()).expect("a client");
        until("the first entry", async || {
            client.append("first").await.ok()
        })
        .await;
        drop(ours);
        let _other = start_alone(&directory.path().join("other"));
        let other = Client::new("127.0.0.1:7401", &Config::default()).expect("a client");
        until("another cluster", async || other.append("its").await.ok()).await;
        delay.store(3_600_000, Ordering::Relaxed);
        let client = client.with_timeout(WITHIN);
        let refused = client.append("second").await.expect_err("not ours");
        assert!(
            refused.to_string().contains("this name had before"),
            "{refused}"
        );
        // Its own is gone, and the name leads to this one.
        delay.store(0, Ordering::Relaxed);
        assert_eq!(client.append("second").await.expect("appended"), 2);
    });
}
