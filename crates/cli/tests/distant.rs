//! Candidates that are far from their cluster: each byte takes its time in
//! either direction, through a forwarder before each server.
//!
//! A lease of at least eight round trips does, however far away the servers
//! are; a shorter one is refused at the start, with the one that would do.
//! `TENURE_DISTANT=all` tries all distances and leases, `TENURE_DISTANT=200:2000`
//! one (in milliseconds); it prints what came of each and how long elections
//! and take-overs took.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::servers::{Cluster, Heard, SOON, free, led};
use common::{TENURE, poll_until};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn is_long() -> bool {
    std::env::var_os("TENURE_DISTANT").is_some()
}

/// Forwards connections to `to`, and all that goes either way half a round
/// trip late. Ends with the process.
fn forward(to: String, round_trip: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let to = to.clone();
            thread::spawn(move || {
                // A connection is there after a round trip.
                thread::sleep(round_trip);
                let Ok(server) = TcpStream::connect(to) else {
                    return;
                };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let clone = |it: &TcpStream| it.try_clone().expect("a handle");
                let (from, into) = (clone(&client), clone(&server));
                thread::spawn(move || carry(from, into, round_trip / 2));
                carry(server, client, round_trip / 2);
            });
        }
    });
    address
}

fn carry(mut from: TcpStream, mut into: TcpStream, delay: Duration) {
    let (under_way, arriving) = mpsc::channel::<(Instant, Vec<u8>)>();
    let arrive = thread::spawn(move || {
        for (due, bytes) in arriving {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if bytes.is_empty() || into.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = into.shutdown(Shutdown::Write);
    });
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).unwrap_or(0);
        let sent = under_way.send((Instant::now() + delay, buffer[..read].to_vec()));
        if read == 0 || sent.is_err() {
            break;
        }
    }
    let _ = arrive.join();
}

/// Three servers, and the URL of those who are far from them.
struct Far {
    cluster: Cluster,
    url: String,
}

impl Far {
    fn start(round_trip: Duration) -> Self {
        let [one, two, three, clients @ ..] = free::<6>();
        let mut cluster = Cluster {
            directory: tempfile::tempdir().expect("a directory"),
            peers: format!("1={one},2={two},3={three}"),
            clients: clients.into(),
            servers: Vec::new(),
        };
        let forwarded: Vec<_> = cluster
            .clients
            .iter()
            .map(|it| forward(it.clone(), round_trip))
            .collect();
        for id in 1..=3 {
            let mut command = cluster.command(TENURE, id);
            // What clients are told leads through the forwarders too.
            command.args(["--advertise", &forwarded[id - 1]]);
            let server = command.stdout(Stdio::null()).spawn().expect("a server");
            cluster.servers.push(server);
        }
        led(&cluster.url());
        Self {
            cluster,
            url: format!("tenure://{}", forwarded.join(",")),
        }
    }

    fn candidate(&self, election: &str, lease: Duration) -> Command {
        let mut command = Command::new(TENURE);
        let lease = format!("{}ms", lease.as_millis());
        command
            .args(["run", election, "--store", &self.url, "--lease", &lease])
            .args(["--timeout", "30s", "--", "sh", "-c"])
            .arg(format!(
                "echo $TENURE_TERM >> {}; exec sleep 600",
                self.told()
            ))
            .stdout(Stdio::null());
        command
    }

    /// Where the commands of reigns say that they run.
    fn told(&self) -> String {
        let told = self.cluster.directory.path().join("told");
        told.display().to_string()
    }

    fn terms(&self) -> usize {
        let told = std::fs::read_to_string(self.told()).unwrap_or_default();
        told.lines().count()
    }

    /// Waits for the `nth` reign, and says how long that took.
    fn reigns(&self, nth: usize) -> Duration {
        let begun = Instant::now();
        let reached = poll_until(SOON, || (self.terms() >= nth).then_some(()));
        assert!(reached.is_some(), "no reign {nth}");
        begun.elapsed()
    }

    /// How long it took until the first was elected, and until another had
    /// taken over from it after it was killed.
    fn elects(&self, lease: Duration) -> (Duration, Duration) {
        let _ = std::fs::remove_file(self.told());
        let election = format!("e{}", lease.as_millis());
        let mut first = Candidate(self.candidate(&election, lease).spawn().expect("it starts"));
        let elected = self.reigns(1);
        let second = Heard::start(self.candidate(&election, lease));
        second.says(1, &["leads in term 1"]);
        if is_long() {
            thread::sleep(lease * 2);
        }
        assert_eq!(self.terms(), 1, "the first leads on and was never deposed");
        first.kill();
        (elected, self.reigns(2))
    }

    fn refused(&self, lease: Duration) -> Output {
        let mut command = self.candidate("refused", lease);
        command.stderr(Stdio::piped()).output().expect("it runs")
    }
}

/// Killed, with what it runs, when this is dropped.
struct Candidate(Child);

impl Candidate {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.kill();
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_lease_of_eight_round_trips_is_enough_and_a_shorter_one_is_refused() {
    let far = Far::start(ms(500));
    let refused = far.refused(ms(2_000));
    let why = said(&refused);
    assert_eq!(refused.status.code(), Some(2), "{why}");
    for words in ["at least 8 round trips", "found 2s", "give --lease"] {
        assert!(why.contains(words), "{words}: {why}");
    }
    let lease = ms(5_000);
    let (_, taken_over) = far.elects(lease);
    // docs/election.md: a lease, its drift and its jitter, and round trips.
    let most = lease.mul_f64(1.12) + ms(500) * 4 + ms(2_000);
    assert!(taken_over <= most, "{taken_over:?} > {most:?}");
}

#[test]
fn the_status_of_distant_servers_is_shown() {
    let far = Far::start(ms(1_000));
    let status = Command::new(TENURE)
        .args(["status", "--timeout", "20s", "--store", &far.url])
        .output()
        .expect("it runs");
    assert!(status.status.success(), "{}", said(&status));
    let shown = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(!shown.contains("unreachable"), "{shown}");
}

/// The long form: every distance with every lease.
#[test]
fn every_distance_with_every_lease() {
    let Ok(wanted) = std::env::var("TENURE_DISTANT") else {
        return;
    };
    let mut table = String::from("round trip | lease | elected | taken over after a kill\n");
    for trip in [0, 50, 200, 500, 1_000] {
        let leases = [1_000, 2_000, 5_000, 10_000];
        let is_wanted = |lease: &u64| wanted == "all" || wanted == format!("{trip}:{lease}");
        let leases: Vec<_> = leases.into_iter().filter(is_wanted).collect();
        if leases.is_empty() {
            continue;
        }
        let far = Far::start(ms(trip));
        for lease in leases {
            let row = if lease >= trip * 8 {
                let (elected, over) = far.elects(ms(lease));
                format!(
                    "{:.1} s | {:.1} s",
                    elected.as_secs_f64(),
                    over.as_secs_f64()
                )
            } else {
                let refused = far.refused(ms(lease));
                assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
                said(&refused)
            };
            table += &format!("{trip} ms | {lease} ms | {}\n", row.trim());
        }
    }
    std::io::stderr()
        .write_all(table.as_bytes())
        .expect("a stderr");
}
