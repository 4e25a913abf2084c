//! Many elections that one process holds on one store: is each of them held all the
//! time, and what does that cost?
//!
//! The tests hold some hundreds for some seconds. The long form is a command with
//! variables (`docs/evidence/stores.md`): `TENURE_MANY` elections with a lease of
//! `TENURE_MANY_LEASE` seconds are held for `TENURE_MANY_SECONDS`, on servers that
//! wait for their disks.

#![allow(clippy::print_stdout, reason = "figures are printed")]

#[path = "common/counted.rs"]
mod counted;
#[path = "common/etcd.rs"]
mod etcd;
#[path = "common/intercepted.rs"]
mod intercepted;
#[path = "common/ports.rs"]
mod ports;
#[path = "common/postgres.rs"]
mod postgres;
#[path = "common/processes.rs"]
mod processes;
#[path = "common/stopped.rs"]
mod stopped;
#[path = "common/versions.rs"]
mod versions;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use counted::Counted;
use etcd::Etcd;
use intercepted::Intercepted;
use postgres::Postgres;
use processes::{memory_here, processor_time, processor_time_here};
use tenure::election::Why;
use tenure::store::open;
use tenure::{Election, clock};
use tokio::sync::watch;
use tokio::task::JoinSet;
use versions::version;

/// How long it may take until all are held, and until all are vacated.
const PATIENCE: Duration = Duration::from_secs(120);
/// Renewals are counted in slots of so long.
const SLOT: Duration = Duration::from_millis(100);

/// One at a time: the processor time of this process is measured.
static TURN: Mutex<()> = Mutex::new(());

/// What is asked for.
#[derive(Clone, Copy)]
struct Plan {
    elections: usize,
    lease: Duration,
    time: Duration,
    is_long: bool,
}

impl Plan {
    fn read() -> Self {
        let number = |name: &str| {
            let text = std::env::var(name).ok();
            text.map(|text| text.parse::<u32>().expect("a number"))
        };
        let seconds = |name, default| Duration::from_secs(number(name).unwrap_or(default).into());
        let elections = number("TENURE_MANY");
        Self {
            elections: elections.unwrap_or(300) as usize,
            lease: seconds("TENURE_MANY_LEASE", 5),
            time: seconds("TENURE_MANY_SECONDS", 5),
            is_long: elections.is_some(),
        }
    }

    /// How often an election is renewed (`Config::with_lease`).
    fn interval(&self) -> Duration {
        self.lease / 5
    }
}

/// What the server has done so far.
struct ServerLoad {
    processor: Duration,
    /// What it has carried out, by its own count.
    requests: u64,
}

/// The elections of this process.
struct Held {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
    held: Arc<watch::Sender<usize>>,
    lost: Arc<Mutex<Vec<Why>>>,
}

impl Held {
    /// Stands in so many elections, and holds each for as long as it can.
    fn stand(plan: &Plan, store: &Arc<Intercepted<Counted>>) -> Self {
        let mut held = Self {
            tasks: JoinSet::new(),
            stop: watch::Sender::new(false),
            held: Arc::new(watch::Sender::new(0)),
            lost: Arc::default(),
        };
        for number in 0..plan.elections {
            let name = format!("shard-{number}");
            let builder = Election::builder(Arc::clone(store) as _, name).lease(plan.lease);
            let election = builder.start().expect("a candidate");
            held.tasks.spawn(hold(
                election,
                held.stop.subscribe(),
                Arc::clone(&held.held),
                Arc::clone(&held.lost),
            ));
        }
        held
    }

    /// Waits until all are held.
    async fn all(&self, elections: usize) {
        let mut held = self.held.subscribe();
        let all = held.wait_for(|held| *held == elections);
        let in_time = tokio::time::timeout(PATIENCE, all).await.is_ok();
        assert!(in_time, "{} of {elections} are held", *self.held.borrow());
    }

    /// Stops all, and waits until they are vacated.
    async fn end(mut self) {
        self.stop.send_replace(true);
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        let ended = tokio::time::timeout(PATIENCE, ended).await;
        ended.expect("all to be vacated");
    }
}

async fn hold(
    mut election: Election,
    mut stop: watch::Receiver<bool>,
    held: Arc<watch::Sender<usize>>,
    lost: Arc<Mutex<Vec<Why>>>,
) {
    loop {
        let leadership = tokio::select! {
            leadership = election.elected() => leadership.expect("it stands"),
            _ = stop.wait_for(|stop| *stop) => break,
        };
        held.send_modify(|held| *held += 1);
        let why = tokio::select! {
            why = leadership.cancelled() => Some(why),
            _ = stop.wait_for(|stop| *stop) => None,
        };
        held.send_modify(|held| *held -= 1);
        let Some(why) = why else { break };
        lost.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(why);
    }
    election.stop().await;
}

/// What was measured of writes.
struct Writes {
    p50: Duration,
    p99: Duration,
    max: Duration,
    /// The most that were sent in one slot.
    burst: usize,
}

impl Writes {
    fn of(timed: &[(Duration, Duration)]) -> Self {
        let mut took: Vec<_> = timed.iter().map(|(_, took)| *took).collect();
        took.sort_unstable();
        let at = |percent: usize| took[(took.len() - 1) * percent / 100];
        let mut slots = std::collections::BTreeMap::<_, usize>::new();
        for (sent, _) in timed {
            *slots.entry(sent.as_nanos() / SLOT.as_nanos()).or_default() += 1;
        }
        Self {
            p50: at(50),
            p99: at(99),
            max: at(100),
            burst: slots.into_values().max().unwrap_or(0),
        }
    }
}

/// What was measured while all were held.
struct Measured {
    seconds: f64,
    /// Those that are held at the end, and why others were not all the time.
    held: usize,
    lost: Vec<Why>,
    /// What this process has used of a core.
    cores: f64,
    writes: u64,
    reads: u64,
    timed: Writes,
    server_cores: f64,
    server_requests: f64,
}

impl Measured {
    async fn take(
        plan: &Plan,
        store: &Counted,
        held: &Held,
        load: &impl Fn() -> ServerLoad,
    ) -> Self {
        store.take_timed();
        let (before, used, (reads, writes)) = (load(), processor_time_here(), counts(store));
        let began = clock::boot();
        tokio::time::sleep(plan.time).await;
        let (after, used, counts) = (load(), processor_time_here() - used, counts(store));
        let seconds = clock::boot().since(began).as_secs_f64();
        let lost = held.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let server = after.processor.saturating_sub(before.processor);
        Self {
            seconds,
            held: *held.held.borrow(),
            lost: lost.clone(),
            cores: used.as_secs_f64() / seconds,
            reads: counts.0 - reads,
            writes: counts.1 - writes,
            timed: Writes::of(&store.take_timed()),
            server_cores: server.as_secs_f64() / seconds,
            server_requests: (after.requests - before.requests) as f64 / seconds,
        }
    }

    fn print(&self, what: &str, plan: &Plan) {
        let (memory, memory_max) = memory_here();
        let (timed, seconds) = (&self.timed, self.seconds);
        println!(
            "{what}: {} of {} elections held at a lease of {:?} after {seconds:.0} s, {} lost; client \
             {:.3} of a core, {} MB of memory, at most {} MB; {:.0} writes and {:.1} reads a second, \
             at most {} writes in {SLOT:?}; a write takes {:.1?} (p50), {:.1?} (p99), {:.1?} (max); \
             server {:.3} of a core, {:.0} requests a second by its own count",
            self.held,
            plan.elections,
            plan.lease,
            self.lost.len(),
            self.cores,
            memory >> 20,
            memory_max >> 20,
            self.writes as f64 / seconds,
            self.reads as f64 / seconds,
            timed.burst,
            timed.p50,
            timed.p99,
            timed.max,
            self.server_cores,
            self.server_requests,
        );
    }

    fn judge(&self, plan: &Plan) {
        let lost = self.lost.len();
        let first = self.lost.first();
        assert_eq!(
            first, None,
            "{lost} were ousted though their store was well"
        );
        assert_eq!(self.held, plan.elections);
        assert!(self.cores < 1.0, "{} of a core", self.cores);
        // Each is renewed once an interval, and nothing is read meanwhile.
        let (writes, reads) = (self.writes as f64, self.reads as f64);
        let due = plan.elections as f64 * self.seconds / plan.interval().as_secs_f64();
        let most = 1.2 * due + plan.elections as f64;
        assert!(writes <= most, "{writes} writes, {due} due");
        assert!(reads <= due / 10.0, "{reads} reads, {due} writes due");
    }
}

/// How many reads and writes there were.
fn counts(store: &Counted) -> (u64, u64) {
    let reads = store.reads.load(Ordering::Relaxed);
    (reads, store.writes.load(Ordering::Relaxed))
}

/// Holds elections on the store of this URL, and prints and judges what it costs.
async fn measure(what: &str, url: &str, load: impl Fn() -> ServerLoad) {
    let plan = Plan::read();
    let store = Intercepted::new(open(url).await.expect("a store"), Counted::default());
    let (began, used) = (clock::boot(), processor_time_here());
    let held = Held::stand(&plan, &store);
    held.all(plan.elections).await;
    let (reads, writes) = counts(&store.interceptor);
    println!(
        "{what}: {} elections were held {:.1?} after they were stood in ({:.1?} of processor time, \
         {writes} writes, {reads} reads)",
        plan.elections,
        clock::boot().since(began),
        processor_time_here() - used
    );
    // What the start left behind has been done.
    tokio::time::sleep(plan.interval()).await;
    let measured = Measured::take(&plan, &store.interceptor, &held, &load).await;
    measured.print(what, &plan);
    let ending = clock::boot();
    held.end().await;
    let took = clock::boot().since(ending);
    println!("{what}: all were vacated {took:.1?} after they were told to");
    measured.judge(&plan);
}

/// Runs a test by itself, on a thread of its own beside that of the library.
fn alone<F: Future<Output = ()>>(test: impl FnOnce(Plan) -> F) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    runtime.block_on(test(Plan::read()));
}

/// The sum of all counters of this name that an etcd server shows.
fn metric((host, port): (&str, u16), name: &str) -> u64 {
    let mut stream = TcpStream::connect((host, port)).expect("it listens");
    let request = "GET /metrics HTTP/1.0\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

#[test]
fn etcd_holds_many_elections_of_one_process() {
    alone(async |_| {
        let server = Etcd::start(1);
        let load = || ServerLoad {
            processor: processor_time(&server.processes()),
            requests: metric(server.first(), "grpc_server_handled_total"),
        };
        let version = version("etcd", &["--version"]);
        measure(&format!("etcd {version}"), &server.url(), load).await;
    });
}

#[test]
fn postgres_holds_many_elections_of_one_process() {
    alone(async |plan| {
        let server = match plan.is_long {
            true => Postgres::start_durable(),
            false => Postgres::start(),
        };
        let load = || ServerLoad {
            processor: processor_time(&server.processes()),
            requests: server
                .sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")
                .parse()
                .expect("a number"),
        };
        let store = format!("PostgreSQL {}", server.version());
        measure(&store, &server.url(), load).await;
    });
}
