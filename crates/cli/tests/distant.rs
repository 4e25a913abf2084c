//! Candidates that are far from their store (a cluster, PostgreSQL, etcd): each
//! byte takes its time in either direction, through a forwarder before each
//! server.
//!
//! A lease of at least eight round trips does, however far away the servers
//! are; a shorter one is refused at the start, with the one that would do.
//! `TENURE_DISTANT=all` tries all stores, distances and leases,
//! `TENURE_DISTANT=etcd` those of one store (`tenure`, `postgres`, `etcd`) and
//! `TENURE_DISTANT=etcd:200:2000` one cell (in milliseconds). It prints a table
//! of what came of each: how long the election and the take-over after a kill
//! took, or what it was refused with. All cells of a store run at once.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(feature = "etcd")]
use common::etcd;
use common::postgres::Postgres;
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

/// The stores that machines share.
#[cfg(feature = "etcd")]
const STORES: &[&str] = &["tenure", "postgres", "etcd"];
#[cfg(not(feature = "etcd"))]
const STORES: &[&str] = &["tenure", "postgres"];

/// Servers, stopped when this is dropped.
#[allow(dead_code, reason = "they are held")]
enum Servers {
    Cluster(Cluster),
    Postgres(Box<Postgres>),
    #[cfg(feature = "etcd")]
    Etcd(etcd::Etcd),
}

/// The servers of a store, and the URL of those who are far from them.
struct Far {
    _servers: Servers,
    directory: tempfile::TempDir,
    url: String,
}

impl Far {
    fn start(store: &str, round_trip: Duration) -> Self {
        let (servers, url) = match store {
            "tenure" => cluster(round_trip),
            "postgres" => {
                let server = Postgres::start();
                // Made from near by: candidates that make it make it one
                // after the other, some round trips each.
                server.sql(&tenure::store::postgres::migration("tenure_register"));
                let near = format!("127.0.0.1:{}", server.port());
                let url = server
                    .url_to_type()
                    .replace(&near, &forward(near.clone(), round_trip));
                (Servers::Postgres(Box::new(server)), url)
            }
            #[cfg(feature = "etcd")]
            "etcd" => {
                let servers = etcd::Etcd::start(3);
                let hosts = servers.url().replacen("etcd://", "", 1);
                let hosts = hosts.split(',').map(|it| forward(it.into(), round_trip));
                let url = format!("etcd://{}", hosts.collect::<Vec<_>>().join(","));
                (Servers::Etcd(servers), url)
            }
            other => panic!("expected one of {STORES:?}, found {other}"),
        };
        Self {
            _servers: servers,
            directory: tempfile::tempdir().expect("a directory"),
            url,
        }
    }

    fn candidate(&self, election: &str, lease: Duration) -> Command {
        self.candidate_with(election, lease, &[])
    }

    fn candidate_with(&self, election: &str, lease: Duration, args: &[&str]) -> Command {
        let mut command = Command::new(TENURE);
        let lease = format!("{}ms", lease.as_millis());
        command
            .args(["run", election, "--store", &self.url, "--lease", &lease])
            .args(["--timeout", "30s"])
            .args(args)
            .args(["--", "sh", "-c"])
            .arg(format!(
                "echo $TENURE_TERM >> {}; exec sleep 600",
                self.told(election)
            ))
            .stdout(Stdio::null());
        command
    }

    /// Where the commands of leaderships say that they run.
    fn told(&self, election: &str) -> String {
        self.directory.path().join(election).display().to_string()
    }

    fn terms(&self, election: &str) -> usize {
        let told = std::fs::read_to_string(self.told(election)).unwrap_or_default();
        told.lines().count()
    }

    /// Waits for the `nth` leadership, and says how long that took.
    fn await_leader(&self, election: &str, nth: usize, within: Duration) -> Duration {
        let begun = Instant::now();
        let reached = poll_until(within, || (self.terms(election) >= nth).then_some(()));
        assert!(
            reached.is_some(),
            "{}, {election}: no leadership {nth}",
            self.url
        );
        begun.elapsed()
    }

    /// How long it took until the first was elected, and until another had
    /// taken over from it after it was killed.
    fn elects(&self, election: &str, lease: Duration) -> (Duration, Duration) {
        let mut first = Candidate(self.candidate(election, lease).spawn().expect("it starts"));
        let elected = self.await_leader(election, 1, SOON);
        let second = Heard::start(self.candidate(election, lease));
        second.says(1, &["leads in term 1"]);
        if is_long() {
            thread::sleep(lease * 2);
        }
        let terms = self.terms(election);
        assert_eq!(terms, 1, "the first leads on and was never deposed");
        first.kill();
        (elected, self.await_leader(election, 2, lease * 2 + SOON))
    }

    fn refused(&self, lease: Duration) -> Output {
        let election = format!("refused{}", lease.as_millis());
        let mut command = self.candidate(&election, lease);
        command.stderr(Stdio::piped()).output().expect("it runs")
    }
}

/// Three servers, of which all that clients are told leads through forwarders.
fn cluster(round_trip: Duration) -> (Servers, String) {
    let [one, two, three, clients @ ..] = free::<6>();
    let mut cluster = Cluster {
        directory: tempfile::tempdir().expect("a directory"),
        peers: format!("1={one},2={two},3={three}"),
        clients: clients.into(),
        servers: Vec::new(),
        args: Vec::new(),
    };
    let forwarded: Vec<_> = cluster
        .clients
        .iter()
        .map(|it| forward(it.clone(), round_trip))
        .collect();
    for id in 1..=3 {
        let mut command = cluster.command(TENURE, id);
        command.args(["--advertise", &forwarded[id - 1]]);
        let server = command.stdout(Stdio::null()).spawn().expect("a server");
        cluster.servers.push(server);
    }
    led(&cluster.url());
    (
        Servers::Cluster(cluster),
        format!("tenure://{}", forwarded.join(",")),
    )
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

/// A lease that is long enough does, and one that is not is refused.
fn eight_round_trips_are_enough(store: &str) {
    let far = Far::start(store, ms(500));
    let refused = far.refused(ms(2_000));
    let why = said(&refused);
    assert_eq!(refused.status.code(), Some(2), "{store}: {why}");
    for words in ["at least 8 round trips", "found 2s", "give --lease"] {
        assert!(why.contains(words), "{store}: {words}: {why}");
    }
    let lease = ms(5_000);
    let (_, taken_over) = far.elects("enough", lease);
    // docs/design/election.md: a lease, its drift and its jitter, and round trips.
    let most = lease.mul_f64(1.12) + ms(500) * 4 + ms(2_000);
    assert!(taken_over <= most, "{store}: {taken_over:?} > {most:?}");
}

#[test]
fn a_lease_of_eight_round_trips_is_enough_and_a_shorter_one_is_refused() {
    thread::scope(|scope| {
        for store in STORES {
            scope.spawn(|| eight_round_trips_are_enough(store));
        }
    });
}

/// A round trip is more than half of the leader's interval (1.2 s): a register
/// that was read at any time but right after a renewal has mostly changed when
/// a write arrives, and always if it was read twice. On PostgreSQL a register
/// is read when a change of it is told, so two round trips have to fit in.
fn requests_are_written_between_renewals(store: &str) {
    let trip = if store == "postgres" { 450 } else { 700 };
    let far = Far::start(store, ms(trip));
    let lease = ms(6_000);
    let named = |name: &str| far.candidate_with("asked", lease, &["--name", name]);
    let _first = Candidate(named("first").spawn().expect("it starts"));
    far.await_leader("asked", 1, SOON);
    let second = Heard::start(named("second"));
    second.says(1, &["leads in term 1"]);
    let does = |args: &[&str]| {
        let done = Command::new(TENURE)
            .args(args)
            .args(["--timeout", "20s", "--store", &far.url])
            .output()
            .expect("it runs");
        assert!(done.status.success(), "{store}: {args:?}: {}", said(&done));
    };
    does(&["transfer", "asked", "--to", "second"]);
    does(&["transfer", "asked", "--to", "first"]);
    does(&["repair", "asked", "--term-above", "77"]);
}

#[test]
fn a_leader_is_asked_from_afar() {
    thread::scope(|scope| {
        for store in STORES {
            scope.spawn(|| requests_are_written_between_renewals(store));
        }
    });
}

#[test]
fn the_status_of_distant_servers_is_shown() {
    let far = Far::start("tenure", ms(1_000));
    let status = Command::new(TENURE)
        .args(["status", "--timeout", "20s", "--store", &far.url])
        .output()
        .expect("it runs");
    assert!(status.status.success(), "{}", said(&status));
    let shown = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(!shown.contains("unreachable"), "{shown}");
}

/// How often a cell is tried.
const TRIES: u32 = 3;

/// What came of one cell, as a row of a table.
fn cell(far: &Far, store: &str, trip: u64, lease: u64) -> String {
    let row = if lease >= trip * 8 {
        let seconds = |it: Duration| format!("{:.1} s", it.as_secs_f64());
        // A busy machine may take a lease of 1 s from its leader.
        let election = |attempt| format!("e{lease}-{attempt}");
        let elects = |attempt| far.elects(&election(attempt), ms(lease));
        let tries = 1..=TRIES;
        let mut tries =
            tries.map(|at| catch_unwind(AssertUnwindSafe(|| elects(at))).map(|it| (at, it)));
        match tries.find_map(Result::ok) {
            Some((at, (elected, over))) => {
                let note = if at > 1 {
                    format!(", at try {at}")
                } else {
                    String::new()
                };
                format!(
                    "elected after {}{note} | {}",
                    seconds(elected),
                    seconds(over)
                )
            }
            None => format!("lost its leader in each of {TRIES} tries | –"),
        }
    } else {
        let refused = far.refused(ms(lease));
        let why = said(&refused);
        assert_eq!(
            refused.status.code(),
            Some(2),
            "{store} {trip} {lease}: {why}"
        );
        let advice = why
            .split("give ")
            .nth(1)
            .and_then(|it| it.split(',').next());
        format!("refused: \"give {}\" | –", advice.unwrap_or("nothing"))
    };
    format!("| {store} | {trip} ms | {} s | {row} |", lease / 1_000)
}

/// The long form: every store, every distance with every lease.
#[test]
fn every_distance_with_every_lease() {
    let Ok(wanted) = std::env::var("TENURE_DISTANT") else {
        return;
    };
    let wanted: Vec<_> = wanted.split(':').collect();
    let is_wanted = |at: usize, name: &str| match wanted.get(at) {
        Some(wanted) => *wanted == name || wanted == &"all",
        None => true,
    };
    let mut table = String::from(
        "| store | round trip | lease | | taken over after a kill |\n|---|---|---|---|---|\n",
    );
    for store in STORES.iter().filter(|store| is_wanted(0, store)) {
        let trips = [0, 50, 200, 500, 1_000].into_iter();
        let trips: Vec<u64> = trips.filter(|it| is_wanted(1, &it.to_string())).collect();
        let fars: Vec<_> = trips
            .iter()
            .map(|trip| Far::start(store, ms(*trip)))
            .collect();
        thread::scope(|scope| {
            let mut cells = Vec::new();
            for (trip, far) in trips.iter().zip(&fars) {
                let leases = [1_000_u64, 2_000, 5_000, 10_000, 30_000].into_iter();
                for lease in leases.filter(|it| is_wanted(2, &it.to_string())) {
                    cells.push(scope.spawn(move || cell(far, store, *trip, lease)));
                }
            }
            for cell in cells {
                table += &cell.join().expect("no cell fails");
                table += "\n";
            }
        });
    }
    std::io::stderr()
        .write_all(table.as_bytes())
        .expect("a stderr");
}
