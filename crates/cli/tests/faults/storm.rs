//! Faults of every kind under load, and what must be true after them.
//!
//! Faults begin at random and last a while; up to three are under way at the
//! same time, so that there need not be a majority all the time. Nothing is
//! asked of the cluster meanwhile but that no server ends by itself, unless
//! its disk is full or failed or was wiped and it says so, and that what it
//! says is true. Then everything is healed, and it must live again, in a
//! stated time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use tenure::core::rng::Rng;
use tenure_client::Client;

use crate::healed::{EQUAL_WITHIN, WRITABLE_WITHIN, end_of_log, equal, write};
use crate::load::Load;
use crate::machines::{FAILED, FULL, Machines};
use crate::mending::Mender;
use crate::network::{Edges, Network};
use crate::record::Counts;
use crate::room::Room;
use crate::servers::Servers;
use crate::weather::{Deck, Fault, Needs};

/// How often the weather is looked after.
const TICK: Duration = Duration::from_millis(50);
/// Faults under way at the same time.
const AT_ONCE: usize = 3;
/// For how long after a storm a server may end of a disk that failed in it.
const LATE: Duration = Duration::from_secs(1);

/// What a storm was, and what came of it.
pub(crate) struct Report {
    seed: u64,
    servers: u64,
    network: &'static str,
    lasted: Duration,
    /// How many there were of each kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// The kinds that could have been.
    pub(crate) kinds: BTreeSet<&'static str>,
    pub(crate) counts: Counts,
    pub(crate) terms: u64,
    /// To how many syncs something was done.
    syncs: usize,
    /// In what time the wiped servers were members again.
    mended: Vec<Duration>,
    writable: Duration,
    equal: Duration,
    verdict: String,
}

/// A fault that has begun.
struct Underway {
    fault: Fault,
    since: Instant,
    until: Instant,
    /// A server has ended of it.
    fatal: bool,
}

struct Storm<'a> {
    servers: &'a mut Servers,
    machines: Machines,
    rng: Rng,
    deck: Deck,
    faults: Vec<Underway>,
    mender: Option<Mender>,
    mended: Vec<Duration>,
    counted: BTreeMap<&'static str, u64>,
    /// How many messages had overtaken others when that was last looked at.
    overtaken: u64,
}

/// Founds `count` servers, lets them suffer for `lasting`, heals them, and
/// judges.
pub(crate) async fn storm(
    seed: u64,
    count: u64,
    (room, network): (Room, Network),
    lasting: Duration,
) -> Report {
    let (kind, needs) = match &network {
        Network::Namespaces(_) => ("namespaces", Needs::Packets),
        Network::Proxies(_) => ("proxies", Needs::Streams),
    };
    let machines = Machines::new(room);
    let mut means = machines.means();
    means.push(needs);
    let mut servers = Servers::new(count, network);
    machines.furnish(&mut servers);
    (1..=count).for_each(|server| servers.start(server));
    servers.leader().await;
    let url = servers.url();
    let load = Load::start(&url, seed, Duration::from_millis(8));
    let mut storm = Storm {
        servers: &mut servers,
        machines,
        rng: Rng::from_seed(seed),
        deck: Deck::new(means),
        faults: Vec::new(),
        mender: None,
        mended: Vec::new(),
        counted: BTreeMap::new(),
        overtaken: 0,
    };
    storm.rage(lasting).await;
    storm.heal().await;
    let healed = Instant::now();
    // The load ends after the proof of life: it must not end in the storm.
    write(&url).await;
    let writable = healed.elapsed();
    storm.settle().await;
    let Storm {
        machines,
        deck,
        mended,
        counted: faults,
        ..
    } = storm;
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
        kinds: deck.kinds(),
        counts: record.counts(),
        terms,
        syncs: machines.syncs,
        mended,
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
            let now = Instant::now();
            for it in self
                .faults
                .extract_if(.., |it| it.until <= now)
                .collect::<Vec<_>>()
            {
                self.over(it.fault).await;
            }
            self.tend().await;
            let at_once = self.faults.len() + usize::from(self.mender.is_some());
            if next <= Instant::now() && at_once < AT_ONCE {
                self.begin().await;
                next = Instant::now() + self.rng.span(Duration::from_millis(1_200));
            }
            self.put().await;
            tokio::time::sleep(TICK).await;
        }
    }

    fn count(&mut self, kind: &'static str) {
        *self.counted.entry(kind).or_default() += 1;
    }

    async fn begin(&mut self) {
        let leader = self.servers.leads().await;
        let count = self.servers.count;
        let fault = Fault::draw(&mut self.rng, &mut self.deck, count, leader);
        let lasts = fault.lasts(&mut self.rng);
        if self.hit(fault).await {
            if !fault.is_to_be_seen() {
                self.count(fault.kind());
            }
            let since = Instant::now();
            self.faults.push(Underway {
                fault,
                since,
                until: since + lasts,
                fatal: false,
            });
        }
    }

    /// Lets a fault begin; whether it did.
    async fn hit(&mut self, fault: Fault) -> bool {
        match fault {
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
            Fault::FullDisk(who) => self.hits(who, |servers, who| servers.excuse(who, FULL)),
            Fault::SlowDisk(who, _) => self.runs(who) && !self.is_traced(who),
            Fault::FailedSync(who) if self.is_traced(who) => false,
            Fault::FailedSync(who) => self.hits(who, |servers, who| servers.excuse(who, FAILED)),
            Fault::Wiped(who) => {
                let wipes = self.mender.is_none() && self.runs(who);
                if wipes {
                    self.mender = Some(Mender::wipe(self.servers, who));
                }
                wipes
            }
            Fault::Clock(who, seconds) => {
                let runs = self.runs(who);
                if runs {
                    self.machines.move_clock(self.servers, who, seconds);
                }
                runs
            }
            Fault::Calendar(who, days) => {
                self.machines.set_calendar(self.servers, who, days);
                true
            }
            _ => true,
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

    /// Whether there is, or will be, a tracer: there can be one only.
    fn is_traced(&self, who: u64) -> bool {
        let traces = |it: &Underway| match it.fault {
            Fault::SlowDisk(whose, _) | Fault::FailedSync(whose) => whose == who,
            _ => false,
        };
        self.machines.is_traced(who) || self.faults.iter().any(traces)
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
        let client = client.with_timeout(Duration::from_secs(1));
        client.transfer(None).await.is_ok()
    }

    async fn over(&mut self, fault: Fault) {
        if let Fault::Pause(who) = fault {
            self.servers.pause(who, false);
        }
        if self.machines.relieve(fault).await {
            self.count(fault.kind());
        }
        if let Fault::Reordered(..) = fault {
            let overtaken = self.servers.network.overtaken();
            if overtaken > self.overtaken {
                self.count(fault.kind());
            }
            self.overtaken = overtaken;
        }
    }

    /// Looks after servers that have ended by themselves, and starts those
    /// that nothing keeps down any more.
    async fn tend(&mut self) {
        for (who, words) in self.servers.fallen() {
            self.count(if words == FULL {
                "full disk"
            } else {
                "failed sync"
            });
            for it in &mut self.faults {
                it.fatal |= match it.fault {
                    Fault::FullDisk(whose) => words == FULL && whose == who,
                    Fault::FailedSync(whose) => words == FAILED && whose == who,
                    _ => false,
                };
            }
        }
        let mut mender = self.mender.as_mut();
        if mender.as_mut().is_some_and(|it| it.refused(self.servers)) {
            self.count("wiped");
        }
        if let Some(mender) = self.mender.take_if(|it| it.is_done()) {
            let took = mender.done(EQUAL_WITHIN).await;
            self.mended.push(took);
        }
        for kind in self.machines.seen(self.servers) {
            self.count(kind);
        }
        for who in self.servers.ids() {
            if !self.servers.running.contains_key(&who) && !self.is_held_down(who) {
                self.servers.start(who);
            }
        }
    }

    fn is_held_down(&self, who: u64) -> bool {
        let holds = |it: &Underway| match it.fault {
            Fault::KillAll => true,
            Fault::Kill(whose) => whose == who,
            Fault::FullDisk(whose) | Fault::FailedSync(whose) => whose == who && it.fatal,
            _ => false,
        };
        self.faults.iter().any(holds)
    }

    /// Lets the network and the disks be as the faults of the moment make
    /// them.
    async fn put(&mut self) {
        let mut edges = Edges::new();
        for it in &self.faults {
            it.fault.put(&mut edges, self.servers.count, it.since);
        }
        self.servers.network.apply(&edges);
        for it in &self.faults {
            let (Fault::FullDisk(who) | Fault::SlowDisk(who, _) | Fault::FailedSync(who)) =
                it.fault
            else {
                continue;
            };
            if self.runs(who) {
                self.machines.press(self.servers, it.fault).await;
            }
        }
    }

    /// Ends every fault; wiped servers are not mended yet.
    async fn heal(&mut self) {
        for it in std::mem::take(&mut self.faults) {
            self.over(it.fault).await;
        }
        self.put().await;
        self.tend().await;
    }

    /// Waits for what takes a while: a wiped server that is taken in again,
    /// and the end of one whose disk failed in the last moment.
    async fn settle(&mut self) {
        let begun = Instant::now();
        while self.mender.is_some() || begun.elapsed() < LATE {
            self.tend().await;
            assert!(
                begun.elapsed() < EQUAL_WITHIN,
                "a wiped server was not mended"
            );
            tokio::time::sleep(TICK).await;
        }
        for who in self.servers.ids() {
            assert!(self.runs(who), "server {who} was not healed");
            self.servers.expect_to_live(who, FULL);
            self.servers.expect_to_live(who, FAILED);
        }
    }
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
        let slowest = self.mended.iter().max().copied().unwrap_or_default();
        writeln!(
            f,
            "  {} wiped servers were members again, after {slowest:?} at most; {} syncs were \
             delayed or failed",
            self.mended.len(),
            self.syncs
        )?;
        write!(f, "  {}", self.verdict)
    }
}
