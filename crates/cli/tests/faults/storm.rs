//! Faults of every kind under load, and what must be true after them.
//!
//! Faults begin at random and last a while; up to three are under way at the
//! same time, so that there need not be a majority all the time. Nothing is
//! asked of the cluster meanwhile but that no server ends by itself, and that
//! what it says is true. Then everything is healed, and it must live again,
//! in a stated time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use tenure::api::v1::{self, log_client::LogClient, registers_client::RegistersClient};
use tenure::core::rng::Rng;
use tenure::log::Client;

use crate::load::Load;
use crate::network::{Edges, Network};
use crate::record::{Counts, Record};
use crate::servers::{Servers, until_within};
use crate::weather::Fault;

/// After everything is healed: until a write is acknowledged, and until all
/// servers have the same log and the same registers.
pub(crate) const WRITABLE_WITHIN: Duration = Duration::from_secs(10);
pub(crate) const EQUAL_WITHIN: Duration = Duration::from_secs(20);

/// How often the weather is looked after.
const TICK: Duration = Duration::from_millis(50);
/// Faults under way at the same time.
const AT_ONCE: usize = 3;

/// What a storm was, and what came of it.
pub(crate) struct Report {
    seed: u64,
    servers: u64,
    network: &'static str,
    lasted: Duration,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) counts: Counts,
    pub(crate) terms: u64,
    writable: Duration,
    equal: Duration,
    verdict: String,
}

struct Storm<'a> {
    servers: &'a mut Servers,
    rng: Rng,
    /// What is under way, since when and until when.
    faults: Vec<(Fault, Instant, Instant)>,
    counted: BTreeMap<&'static str, u64>,
}

/// Founds `count` servers, lets them suffer for `lasting`, heals them, and
/// judges.
pub(crate) async fn storm(seed: u64, count: u64, network: Network, lasting: Duration) -> Report {
    let kind = match &network {
        Network::Namespaces(_) => "namespaces",
        Network::Proxies(_) => "proxies",
    };
    let mut servers = Servers::found(count, network).await;
    let load = Load::start(&servers.url(), seed, Duration::from_millis(8));
    let mut storm = Storm {
        servers: &mut servers,
        rng: Rng::from_seed(seed),
        faults: Vec::new(),
        counted: BTreeMap::new(),
    };
    storm.rage(lasting).await;
    storm.heal().await;
    let (faults, healed) = (storm.counted, Instant::now());
    let url = servers.url();
    // The load ends after the proof of life: it must not end in the storm.
    write(&url).await;
    let writable = healed.elapsed();
    let (record, log) = load
        .end(async |record| end_of_log(&url, record).await)
        .await;
    let terms = equal(&servers).await;
    let equal = healed.elapsed();
    servers.assert_all_live();
    let verdict = record.copy().judge(&log).unwrap_or_else(|why| {
        panic!("seed {seed}, {count} servers: {why}\nfaults: {faults:?}");
    });
    let report = Report {
        seed,
        servers: count,
        network: kind,
        lasted: lasting,
        faults,
        counts: record.counts(),
        terms,
        writable,
        equal,
        verdict,
    };
    eprintln!("{report}");
    assert!(writable <= WRITABLE_WITHIN, "writable after {writable:?}");
    assert!(equal <= EQUAL_WITHIN, "all equal after {equal:?}");
    report
}

impl Storm<'_> {
    async fn rage(&mut self, lasting: Duration) {
        let end = Instant::now() + lasting;
        let mut next = Instant::now();
        while Instant::now() < end {
            self.servers.assert_all_live();
            for (fault, ..) in self
                .faults
                .extract_if(.., |(.., until)| *until <= Instant::now())
                .collect::<Vec<_>>()
            {
                self.over(fault);
            }
            if next <= Instant::now() && self.faults.len() < AT_ONCE {
                self.begin().await;
                next = Instant::now() + self.rng.span(Duration::from_millis(1_200));
            }
            self.put();
            tokio::time::sleep(TICK).await;
        }
    }

    async fn begin(&mut self) {
        let leader = self.servers.leads().await;
        let (count, lossy) = (self.servers.count, self.servers.network.is_lossy());
        let fault = Fault::draw(&mut self.rng, count, leader, lossy);
        let lasts = fault.lasts(&mut self.rng);
        let hit = match fault {
            Fault::Kill(who) => self.hits(who, Servers::kill),
            Fault::KillAll => {
                for who in self.servers.ids() {
                    self.hits(who, Servers::kill);
                }
                true
            }
            Fault::Pause(who) => self.hits(who, |servers, who| servers.pause(who, true)),
            Fault::Restart(who) => self.restart(who).await,
            Fault::Rolling => {
                for who in self.servers.ids() {
                    self.restart(who).await;
                }
                true
            }
            Fault::Reset => {
                self.servers.network.reset();
                true
            }
            Fault::HandOver => self.hand_over().await,
            _ => true,
        };
        if hit {
            *self.counted.entry(fault.kind()).or_default() += 1;
            let now = Instant::now();
            self.faults.push((fault, now, now + lasts));
        }
    }

    /// Does something to a server that runs and is not paused.
    fn hits(&mut self, who: u64, with: impl FnOnce(&mut Servers, u64)) -> bool {
        let hit = self.runs(who);
        if hit {
            with(self.servers, who);
        }
        hit
    }

    fn runs(&self, who: u64) -> bool {
        let process = self.servers.running.get(&who);
        process.is_some_and(|it| !it.paused)
    }

    async fn restart(&mut self, who: u64) -> bool {
        if !self.runs(who) {
            return false;
        }
        self.servers.terminate(who).await;
        self.servers.start(who);
        true
    }

    async fn hand_over(&self) -> bool {
        let client = Client::open(&self.servers.url()).expect("a client");
        let client = client.within(Duration::from_secs(1));
        client.transfer(None).await.is_ok()
    }

    fn over(&mut self, fault: Fault) {
        let whole = match fault {
            Fault::Kill(who) | Fault::Pause(who) => vec![who],
            Fault::KillAll => self.servers.ids(),
            _ => Vec::new(),
        };
        for who in whole {
            match self.servers.running.get(&who) {
                None => self.servers.start(who),
                Some(process) if process.paused && matches!(fault, Fault::Pause(_)) => {
                    self.servers.pause(who, false);
                }
                Some(_) => {}
            }
        }
    }

    /// Lets the network be as the faults of the moment make it.
    fn put(&mut self) {
        let mut edges = Edges::new();
        for (fault, since, _) in &self.faults {
            fault.put(&mut edges, self.servers.count, *since);
        }
        self.servers.network.apply(&edges);
    }

    async fn heal(&mut self) {
        for (fault, ..) in std::mem::take(&mut self.faults) {
            self.over(fault);
        }
        self.put();
        let all = self.servers.ids();
        assert!(
            all.iter().all(|who| self.runs(*who)),
            "a server was not healed"
        );
    }
}

/// Writes by a client of its own.
pub(crate) async fn write(url: &str) {
    use tenure::core::cas::{Expect, Stamp, Write};
    let client = Client::open(url).expect("a client");
    let key = tenure::core::ids::Key::new("faults/life").expect("a good key");
    until_within(WRITABLE_WITHIN, "a write", async || {
        let found = client.read(&key).await.ok()?.register;
        let write = Write {
            key: key.clone(),
            expect: found.map_or(Expect::Absent, |it| Expect::Version(it.version)),
            value: b"alive"[..].into(),
            stamp: Stamp::Now,
        };
        client.compare_and_swap(write).await.ok()
    })
    .await;
}

/// The number of the newest entry, and of all that were acknowledged.
pub(crate) async fn end_of_log(url: &str, record: &Record) -> u64 {
    let client = Client::open(url).expect("a client");
    let newest = until_within(WRITABLE_WITHIN, "the log's end", async || {
        let status = client.leader_status().await.ok()?;
        Some(status.log_next - 1)
    })
    .await;
    newest.max(record.last_number())
}

/// Waits until all servers have the same log and the same registers, and
/// gives the term.
pub(crate) async fn equal(servers: &Servers) -> u64 {
    let mut seen = Vec::new();
    let found = until_within(EQUAL_WITHIN, "all servers equal", async || {
        seen.clear();
        for server in servers.ids() {
            seen.push(content(servers, server).await?);
        }
        let (term, first) = (seen[0].0, &seen[0].1);
        seen.iter().all(|(_, it)| it == first).then_some(term)
    })
    .await;
    assert_eq!(seen.len() as u64, servers.count);
    found
}

type Content = (Vec<v1::LogEntry>, Vec<v1::Named>, u64);

/// What one server has applied, as it says itself.
async fn content(servers: &Servers, server: u64) -> Option<(u64, Content)> {
    let status = servers.status(server).await?;
    let channel = servers.channel(server);
    let mut log = LogClient::new(channel.clone()).max_decoding_message_size(32 << 20);
    let mut registers = RegistersClient::new(channel).max_decoding_message_size(32 << 20);
    let (mut entries, mut all) = (Vec::new(), Vec::new());
    let mut from = status.log_first;
    while from < status.log_next {
        let read = v1::ReadLogRequest {
            from,
            limit: 0,
            stale: true,
        };
        let page = log.read(read).await.ok()?.into_inner().entries;
        from = page.last()?.number + 1;
        entries.extend(page);
    }
    loop {
        let list = v1::ListRequest {
            prefix: String::new(),
            after: all.last().map(|it: &v1::Named| it.key.clone()),
            limit: 0,
            stale: true,
        };
        let page = registers.list(list).await.ok()?.into_inner();
        all.extend(page.registers);
        if !page.more {
            break;
        }
    }
    Some((status.term, (entries, all, status.revision)))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            done,
            conflicts,
            refused,
            unknown,
            appended,
            appends_refused,
            appends_unknown,
        } = self.counts;
        writeln!(
            f,
            "storm of {:?}, seed {}, {} servers, {}:",
            self.lasted, self.seed, self.servers, self.network
        )?;
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|(k, n)| format!("{k} {n}"))
            .collect();
        let total: u64 = self.faults.values().sum();
        writeln!(f, "  {total} faults: {}", faults.join(", "))?;
        writeln!(
            f,
            "  registers: {done} done, {conflicts} conflicts, {refused} certainly not done, \
             {unknown} unknown"
        )?;
        writeln!(
            f,
            "  log: {appended} appended, {appends_refused} certainly not, {appends_unknown} unknown"
        )?;
        writeln!(
            f,
            "  healed: writable after {:?}, all equal after {:?}, term {}",
            self.writable, self.equal, self.terms
        )?;
        write!(f, "  {}", self.verdict)
    }
}
