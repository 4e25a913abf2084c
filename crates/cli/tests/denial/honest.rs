//! Clients that behave, and what they notice.

use std::io::Read as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::Election;
use tenure::core::cas::{Bytes, Expect, Stamp, Write};
use tenure::core::ids::Key;
use tenure_client::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::attacked::all;
use crate::common::servers::call;

/// Clients that read and write, and the pause that each makes.
const CLIENTS: u64 = 16;
const PAUSE: Duration = Duration::from_millis(20);
/// Elections with a leader each.
const ELECTIONS: u64 = 20;
/// How often each server is asked for its health.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// How long calls took, and how many failed.
#[derive(Clone, Default, Debug)]
pub(crate) struct Times {
    all: Vec<Duration>,
    failed: Vec<String>,
}

/// The times that are being taken.
pub(crate) type Taking = Arc<Mutex<Times>>;

impl Times {
    /// What was noted since this was called last.
    pub(crate) fn take(taking: &Taking) -> Self {
        let mut taken = std::mem::take(&mut *taking.lock().expect("whole"));
        taken.all.sort_unstable();
        taken
    }

    fn note(taking: &Taking, begun: Instant, result: Result<(), String>) {
        let mut times = taking.lock().expect("whole");
        times.all.push(begun.elapsed());
        if let Err(why) = result {
            times.failed.push(why);
        }
    }

    pub(crate) fn failed(&self) -> usize {
        self.failed.len()
    }

    fn of(&self, of_1_000: usize) -> Duration {
        let at = self.all.len() * of_1_000 / 1_000;
        let at = at.min(self.all.len().saturating_sub(1));
        *self.all.get(at).expect("some were made")
    }

    pub(crate) fn worst_of_100(&self) -> Duration {
        self.of(990)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [middle, p99, most] = [500, 990, 1_000].map(|it| self.of(it));
        let count = self.all.len();
        let failed: Vec<_> = self.failed.iter().take(3).collect();
        write!(
            f,
            "{count} (p50 {middle:.1?}, p99 {p99:.1?}, most {most:.1?}, failed {}: {failed:?})",
            self.failed.len()
        )
    }
}

fn swap(key: &Key, value: &[u8], expect: Expect) -> Write {
    Write {
        key: key.clone(),
        expect,
        value: Bytes::from(value),
        stamp: Stamp::Keep,
    }
}

/// Entries of the log, each of nearly a mebibyte.
const ENTRIES: u64 = 32;
const ENTRY_BYTES: usize = 1024 * 1024 - 200;

/// Writes what is there before the attacks.
pub(crate) async fn prepare(url: &str, registers: u64) {
    let mut begun = JoinSet::new();
    for from in 0..100 {
        let client = Client::open(url).expect("a client");
        begun.spawn(async move {
            for number in (from..registers).step_by(100) {
                let key = Key::new(&format!("honest/registers/{number:05}")).expect("a key");
                let write = swap(&key, &[7; 64], Expect::Absent);
                client.compare_and_swap(write).await.expect("written");
            }
            client.close().await;
        });
    }
    all(begun).await;
    let client = Client::open(url).expect("a client");
    for _ in 0..ENTRIES {
        client.append(vec![7; ENTRY_BYTES]).await.expect("appended");
    }
}

/// Clients that write a register, read it, and begin anew.
pub(crate) struct Calls {
    times: Taking,
    _clients: JoinSet<()>,
}

impl Calls {
    pub(crate) async fn start(url: &str) -> Self {
        let times = Taking::default();
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let client = Client::open(url).expect("a client");
            clients.spawn(write_and_read(client, number, Arc::clone(&times)));
        }
        Self {
            times,
            _clients: clients,
        }
    }

    pub(crate) const fn times(&self) -> &Taking {
        &self.times
    }
}

async fn write_and_read(client: Client, number: u64, times: Taking) {
    let key = Key::new(&format!("honest/{number}")).expect("a key");
    let mut expect = Expect::Absent;
    for value in 0_u64.. {
        let write = swap(&key, &value.to_be_bytes(), expect.clone());
        let begun = Instant::now();
        let written = client.compare_and_swap(write).await;
        let failed = |error: &dyn std::fmt::Display| format!("a write: {error}");
        Times::note(&times, begun, written.map(drop).map_err(|it| failed(&it)));
        sleep(PAUSE).await;

        let begun = Instant::now();
        let read = client.read(&key).await;
        let result = match &read {
            Ok(reading) => {
                let found = reading.register.as_ref();
                let found = found.map(|it| (it.version.clone(), it.value.clone()));
                match found {
                    Some((version, bytes)) if bytes == Bytes::from(&value.to_be_bytes()[..]) => {
                        expect = Expect::Version(version);
                        Ok(())
                    }
                    other => Err(format!("expected {value}, found {other:?}")),
                }
            }
            Err(error) => Err(format!("a read: {error}")),
        };
        Times::note(&times, begun, result);
        sleep(PAUSE).await;
    }
}

/// Leaders that want to stay it.
pub(crate) struct Elections {
    lost: Arc<AtomicU64>,
    _held: JoinSet<()>,
}

impl Elections {
    /// Returns when each has its leader.
    pub(crate) async fn start(url: &str, lease: Duration) -> Self {
        let lost = Arc::new(AtomicU64::new(0));
        let (mut held, mut elected) = (JoinSet::new(), JoinSet::new());
        for number in 0..ELECTIONS {
            let store = tenure::store::open(url).await.expect("a store");
            let election = Election::builder(store, format!("denial-{number}"))
                .name("the-only-one")
                .lease(lease);
            let mut election = election.start().expect("it starts");
            let (tell, told) = tokio::sync::oneshot::channel();
            let lost = Arc::clone(&lost);
            held.spawn(async move {
                let mut tell = Some(tell);
                while let Some(leadership) = election.elected().await {
                    if let Some(tell) = tell.take() {
                        tell.send(()).expect("it is waited for");
                    }
                    let why = leadership.cancelled().await;
                    eprintln!("a leadership was lost: {why:?}");
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            });
            elected.spawn(async move { told.await.expect("it is elected") });
        }
        all(elected).await;
        Self { lost, _held: held }
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Whether a server says that it is well.
fn probe(address: &str, path: &str) -> Result<(), String> {
    let mut said = String::new();
    let mut asked = call(address, path, "");
    let read = asked.read_to_string(&mut said);
    read.map_err(|it| format!("{path} of {address}: {it} after {said:?}"))?;
    said.starts_with("HTTP/1.1 200").then_some(()).ok_or(said)
}

/// Asks each server for its health, each time anew.
pub(crate) struct Probes {
    times: Taking,
    over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Probes {
    pub(crate) fn start(servers: &[String]) -> Self {
        let times = Taking::default();
        let over = Arc::new(AtomicBool::new(false));
        let threads = servers.iter().map(|address| {
            let (address, times, over) = (address.clone(), Arc::clone(&times), Arc::clone(&over));
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    for path in ["GET /healthz", "GET /readyz"] {
                        let begun = Instant::now();
                        Times::note(&times, begun, probe(&address, path));
                    }
                    std::thread::sleep(PROBE_EVERY);
                }
            })
        });
        let threads = threads.collect();
        Self {
            times,
            over,
            threads,
        }
    }

    pub(crate) const fn times(&self) -> &Taking {
        &self.times
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "each is answered"
            );
        }
    }
}
