//! Clients under whom the servers suffer.
//!
//! They use the library as anybody would, and write down everything
//! (`record`). Some work on a few registers: reading, listing, writing and
//! deleting by compare-and-swap, with what they saw last. Some append to the
//! log, one entry or many at a time. One follows the log from its beginning;
//! what it was told is the log that is judged.
//!
//! To search for an order of calls is exponential in the calls that are open
//! together, and a call of which nobody knows stays open. So the registers
//! change: after some hundred calls everybody goes on to the next few.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::core::cas::{Bytes, Expect, Stamp, Write};
use tenure::core::ids::{Key, Version};
use tenure::core::rng::Rng;
use tenure_client::{Client, Config, Error};
use tenure_sim::linearize::{Answer, Invocation};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::record::{Log, Record};
use crate::servers::PATIENCE;

/// How long clients wait that are patient.
const PATIENT: Duration = Duration::from_secs(30);
/// Clients on registers, and clients that append.
const WRITERS: u64 = 6;
const APPENDERS: u64 = 3;
/// Registers in use at the same time, and calls until others are.
const KEYS: u64 = 3;
const ERA: u64 = 300;

pub(crate) struct Load {
    pub(crate) record: Arc<Record>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
    tail: tokio::task::JoinHandle<Log>,
    /// The number after which the one who follows may stop.
    last: watch::Sender<Option<u64>>,
}

/// The registers of an era.
fn key(era: u64, number: u64) -> Key {
    // No key begins as another ends: a list with one as its prefix is a read.
    Key::new(&format!("faults/{era:06}/{number}")).expect("a good key")
}

impl Load {
    /// Starts clients of the servers of `url`. What they choose to do comes
    /// from `seed`; `pause` is between two calls of one of them.
    pub(crate) fn start(url: &str, seed: u64, pause: Duration) -> Self {
        Self::start_with(url, seed, pause, None)
    }

    /// Clients that wait long: what they do not know is the cluster's fault.
    pub(crate) fn patient(url: &str, seed: u64, pause: Duration) -> Self {
        Self::start_with(url, seed, pause, Some(PATIENT))
    }

    fn start_with(url: &str, seed: u64, pause: Duration, within: Option<Duration>) -> Self {
        let record = Record::new();
        let (stop, stopped) = watch::channel(false);
        let (last, end) = watch::channel(None);
        let mut clients = JoinSet::new();
        let calls = Arc::new(AtomicU64::new(0));
        for client in 1..=WRITERS + APPENDERS {
            // Sessions of some are over soon, when their leader is.
            let brief = within.is_none() && client % 3 == 0;
            let ttl = Duration::from_secs(if brief { 2 } else { 60 });
            let short = Duration::from_millis(500 * (1 + client % 4));
            let within = within.unwrap_or(short);
            let config = Config::default().ttl(ttl).timeout(within);
            let servers = url.strip_prefix("tenure://").expect("a URL");
            let caller = Caller {
                number: client,
                client: Client::new(servers, &config).expect("a client"),
                record: Arc::clone(&record),
                rng: Rng::from_seed(seed.wrapping_mul(1_000).wrapping_add(client)),
                stopped: stopped.clone(),
                pause,
            };
            if client <= WRITERS {
                clients.spawn(caller.write(Arc::clone(&calls)));
            } else {
                clients.spawn(caller.append());
            }
        }
        let tail = tokio::spawn(follow(Client::open(url).expect("a client"), end));
        Self {
            record,
            stop,
            clients,
            tail,
            last,
        }
    }

    /// Ends all clients, and gives the log as it was told to the one who
    /// followed it: up to `last`, at least.
    pub(crate) async fn end(
        mut self,
        last: impl AsyncFnOnce(&Record) -> u64,
    ) -> (Arc<Record>, Log) {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("a client that did not panic");
        }
        let last = last(&self.record).await;
        self.last.send_replace(Some(last));
        let log = timeout(PATIENCE, &mut self.tail).await;
        let log = log.unwrap_or_else(|_| panic!("the log was not told up to entry {last}"));
        (self.record, log.expect("it did not panic"))
    }
}

/// Follows the log until it is told where it ends.
async fn follow(client: Client, mut end: watch::Receiver<Option<u64>>) -> Log {
    let mut tail = client.tail(1);
    let mut log = Log::new();
    loop {
        let told = log.last().map_or(0, |(number, _)| *number);
        if end.borrow_and_update().is_some_and(|last| told >= last) {
            return log;
        }
        tokio::select! {
            entry = tail.next() => {
                let entry = entry.expect("no end").expect("it is kept");
                log.push((entry.number, Bytes::from(&*entry.data)));
            }
            changed = end.changed() => if changed.is_err() {
                // The test has failed, and nobody asks any more.
                return log;
            },
        }
    }
}

struct Caller {
    number: u64,
    client: Client,
    record: Arc<Record>,
    rng: Rng,
    stopped: watch::Receiver<bool>,
    pause: Duration,
}

impl Caller {
    fn is_over(&self) -> bool {
        *self.stopped.borrow()
    }

    async fn rest(&mut self) {
        let pause = self.rng.span(self.pause);
        sleep(pause).await;
    }

    /// Works on registers.
    async fn write(mut self, calls: Arc<AtomicU64>) {
        let mut known: BTreeMap<Key, Option<Version>> = BTreeMap::new();
        let mut era = 0;
        let mut writes = 0;
        while !self.is_over() {
            let now = calls.fetch_add(1, Ordering::Relaxed) / ERA;
            if now != era {
                known.clear();
                era = now;
            }
            let key = key(era, self.rng.below(KEYS));
            match (known.get(&key), self.rng.below(100)) {
                (None, _) | (_, 0..35) => self.read(key, &mut known).await,
                (_, 35..45) => self.list(key, &mut known).await,
                (Some(Some(version)), 45..55) => {
                    let version = version.clone();
                    self.delete(key, version, &mut known).await;
                }
                (Some(version), _) => {
                    let expect = version.clone().map_or(Expect::Absent, Expect::Version);
                    writes += 1;
                    self.swap(key, expect, writes, &mut known).await;
                }
            }
            self.rest().await;
        }
        self.client.close().await;
    }

    async fn read(&mut self, key: Key, known: &mut BTreeMap<Key, Option<Version>>) {
        let call = self.record.invokes(self.number, &key, Invocation::Read);
        let answer = self.client.read(&key).await.map(|it| it.register);
        self.saw(call, key, answer, known);
    }

    async fn list(&mut self, key: Key, known: &mut BTreeMap<Key, Option<Version>>) {
        let call = self.record.invokes(self.number, &key, Invocation::Read);
        let answer = self.client.list(key.as_str(), None, 2).await;
        let answer = answer.map(|page| {
            assert!(!page.more && page.registers.len() < 2, "{page:?}");
            page.registers.into_iter().next().map(|(_, found)| found)
        });
        self.saw(call, key, answer, known);
    }

    fn saw(
        &self,
        call: tenure_sim::linearize::CallId,
        key: Key,
        answer: Result<Option<tenure::core::cas::Register>, Error>,
        known: &mut BTreeMap<Key, Option<Version>>,
    ) {
        if let Ok(register) = &answer {
            known.insert(key, register.as_ref().map(|it| it.version.clone()));
        }
        let answer = answer.map(|register| match register {
            None => Answer::Absent,
            Some(it) => Answer::Holds {
                value: it.value,
                version: it.version,
            },
        });
        self.record.hears(call, answer);
    }

    async fn delete(
        &mut self,
        key: Key,
        expect: Version,
        known: &mut BTreeMap<Key, Option<Version>>,
    ) {
        let invocation = Invocation::Delete {
            expect: expect.clone(),
        };
        let call = self.record.invokes(self.number, &key, invocation);
        let answer = self.client.delete(&key, &expect).await;
        known.remove(&key);
        if answer.is_ok() {
            known.insert(key, None);
        }
        self.record.hears(call, answer.map(|()| Answer::Deleted));
    }

    async fn swap(
        &mut self,
        key: Key,
        expect: Expect,
        count: u64,
        known: &mut BTreeMap<Key, Option<Version>>,
    ) {
        let value: Bytes = Bytes::from(format!("{}.{count}", self.number).as_bytes());
        let invocation = Invocation::Swap {
            expect: expect.clone(),
            value: value.clone(),
        };
        let call = self.record.invokes(self.number, &key, invocation);
        let write = Write {
            key: key.clone(),
            expect,
            value,
            stamp: Stamp::Now,
        };
        let answer = self.client.compare_and_swap(write).await;
        known.remove(&key);
        if let Ok(swapped) = &answer {
            known.insert(key, Some(swapped.version.clone()));
        }
        let answer = answer.map(|swapped| Answer::Swapped(swapped.version));
        self.record.hears(call, answer);
    }

    /// Appends to the log.
    async fn append(mut self) {
        let mut serial = 0;
        while !self.is_over() {
            let many = if self.rng.chance(20) {
                self.rng.between(2, 50)
            } else {
                1
            };
            let first = serial + 1;
            let mut payloads = Vec::new();
            for _ in 0..many {
                serial += 1;
                // Some are large, so that logs are cut and sent as snapshots.
                let most = if self.rng.chance(3) { 8_192 } else { 64 };
                let padding = usize::try_from(self.rng.below(most)).expect("it is small");
                let text = format!("{} {serial} {:.>padding$}", self.number, "");
                let payload: Bytes = Bytes::from(text.as_bytes());
                self.record.appends(self.number, serial, &payload);
                payloads.push(payload.to_vec());
            }
            let came = if many == 1 {
                let one = payloads.pop().expect("one");
                self.client.append(one).await.map(|number| vec![number])
            } else {
                self.client.append_many(payloads).await
            };
            self.record.appended(self.number, first, &came, many);
            self.rest().await;
        }
        self.client.close().await;
    }
}
