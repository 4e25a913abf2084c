//! Chaos: eight real processes stand in one election while one of them, drawn
//! at random, is killed, stopped or asked to end every second, and the store's
//! servers are restarted under them. What their commands wrote down must not
//! overlap, terms must grow, and nobody may lose its leadership while it, the
//! store and the machine are healthy.
//!
//! The bounds are the same for all stores and all ways of judging a grant (the
//! table of `docs/reference/stores.md`). A leader counts its lease by its own
//! clock, from before it sent the write that was confirmed last. So a fault
//! ends a leadership within a lease, by a store's clock as by observed silence.
//! What differs is how long the election is vacant afterwards. By a store's
//! clock it is for what is left of the lease. By silence it is for a whole
//! lease, counted from when a candidate saw the last write, which is up to
//! `poll=` later (200 ms here); after a restart of the store's server as well.
//! So an election is held for less of the time there, and a run fails only
//! where it was held for less than a fifth.
//!
//! The short form runs for 20 s on a few stores at a time, the long form on one
//! store after the other. The long form, and that of one store:
//!
//! ```sh
//! TENURE_CHAOS_SECONDS=120 cargo test --release -p tenure-cli --features full --test chaos -- --nocapture
//! TENURE_CHAOS=etcd TENURE_CHAOS_SECONDS=120 cargo test --release -p tenure-cli --features full --test chaos -- --nocapture
//! ```
//!
//! `TENURE_SEED` repeats the faults of a run (not its timing).

#![allow(clippy::print_stdout, reason = "figures are printed")]

mod common;

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(feature = "nats")]
use common::shared::block_on;
use common::{Candidate, Ledger, Run, Shared, poll_until};
use rustix::process::Signal;
use tenure::clock;
use tenure_core::rng::Rng;
use tenure_core::time::Instant;

const CANDIDATES: usize = 8;
const FLAGS: [&str; 2] = ["--lease", "2s"];
const LEASE: f64 = 2.0;
/// Of a store that runs on several.
const SERVERS: usize = 3;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Somebody who does what a leader does to stay one, a write and a sync every
/// few milliseconds, and takes note of when that took too long: then the
/// machine was not healthy, and no leadership need outlive that.
struct Witness {
    ended: Arc<AtomicBool>,
    slow: Arc<Mutex<Slow>>,
}

/// From when to when it took too long, each time.
type Slow = Vec<(f64, f64)>;

impl Witness {
    /// What a leader with this lease can wait for, twice in a renewal.
    const LONG: Duration = Duration::from_millis(400);

    /// On the disk of the store.
    fn start(disk: &Path) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let slow: Arc<Mutex<Slow>> = Arc::default();
        let (over, found) = (Arc::clone(&ended), Arc::clone(&slow));
        let mut file = tempfile::tempfile_in(disk).expect("a file");
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let (began, from) = (clock::boot(), seconds());
                file.write_all(b"a renewal\n").expect("room");
                file.sync_data().expect("a disk");
                std::thread::park_timeout(Duration::from_millis(20));
                if clock::boot().since(began) > Self::LONG {
                    let mut found = found.lock().expect("nobody panics");
                    found.push((from, seconds()));
                }
            }
        });
        Self { ended, slow }
    }

    fn end(self) -> Slow {
        self.ended.store(true, Ordering::Relaxed);
        self.slow.lock().expect("nobody panics").clone()
    }
}

/// What is to be done to a process later.
#[derive(Clone, Copy)]
enum Later {
    Resume,
    Restart,
}

/// What may end a leadership, from when to when.
#[derive(Clone, Debug)]
struct Fault {
    from: f64,
    to: f64,
    /// Which candidate it struck; else the store or the machine.
    whom: Option<String>,
    /// The term in which that one led by its own word when it was struck.
    led_in: Option<u64>,
}

impl Fault {
    /// On all candidates.
    const fn of_all(from: f64, to: f64) -> Self {
        Self {
            from,
            to,
            whom: None,
            led_in: None,
        }
    }

    /// Whether it can have ended this leadership. What the command wrote last may be
    /// much older than the fault, where the command waited for a processor meanwhile: so
    /// the candidate's own word counts as well.
    fn explains(&self, run: &Run) -> bool {
        let concerned = self.whom.as_ref().is_none_or(|it| *it == run.candidate);
        let begun = self.from - 0.2 <= run.last || self.led_in == Some(run.term);
        concerned && begun && run.last <= self.to + LEASE * 1.3
    }
}

/// In which term a candidate leads, by its log.
fn leads_in(log: &str) -> Option<u64> {
    let (_, after) = log.rsplit_once("elected in term ")?;
    let term: u64 = after.split_whitespace().next()?.parse().ok()?;
    let ends = [
        format!("leaving term {term}:"),
        format!("term {term} is over"),
    ];
    (!ends.iter().any(|end| after.contains(end))).then_some(term)
}

struct Arena<'a> {
    shared: &'a mut Shared,
    url: String,
    ledger: &'a Ledger,
    candidates: Vec<(String, Candidate)>,
    later: Vec<(Instant, usize, Later)>,
    faults: Vec<Fault>,
    counts: [u32; 4],
    born: u32,
}

impl Arena<'_> {
    fn spawn(&mut self) -> (String, Candidate) {
        self.born += 1;
        let name = format!("c{}", self.born);
        let candidate = Candidate::start(&self.url, &name, self.ledger, &FLAGS);
        (name, candidate)
    }

    /// A fault on a process drawn uniformly: 40 % KILL, 30 % STOP of 0.5 to
    /// 5 s, 30 % TERM. Those that end are started again after a second.
    fn strike(&mut self, rng: &mut Rng) {
        let now = clock::boot();
        let victim = usize::try_from(rng.below(CANDIDATES as u64)).unwrap_or(0);
        if self.later.iter().any(|(_, busy, _)| *busy == victim) {
            return;
        }
        let wall = seconds();
        let dice = rng.below(100);
        let (name, candidate) = &self.candidates[victim];
        let led_in = leads_in(&candidate.log());
        let lasts = if dice < 40 {
            self.counts[0] += 1;
            candidate.signal(Signal::KILL);
            self.later
                .push((now.after(Duration::from_secs(1)), victim, Later::Restart));
            1.0
        } else if dice < 70 {
            self.counts[1] += 1;
            let pause = Duration::from_millis(rng.between(500, 5_000));
            candidate.signal(Signal::STOP);
            self.later.push((now.after(pause), victim, Later::Resume));
            pause.as_secs_f64()
        } else {
            self.counts[2] += 1;
            candidate.signal(Signal::TERM);
            self.later
                .push((now.after(Duration::from_secs(1)), victim, Later::Restart));
            1.0
        };
        self.faults.push(Fault {
            from: wall,
            to: wall + lasts,
            whom: Some(name.clone()),
            led_in,
        });
    }

    fn catch_up(&mut self) {
        let now = clock::boot();
        let due: Vec<_> = self
            .later
            .iter()
            .filter(|(at, ..)| now >= *at)
            .copied()
            .collect();
        self.later.retain(|(at, ..)| now < *at);
        for (_, victim, what) in due {
            match what {
                Later::Resume => self.candidates[victim].1.signal(Signal::CONT),
                Later::Restart => {
                    let fresh = self.spawn();
                    self.candidates[victim] = fresh;
                }
            }
        }
    }

    /// Restarts the store's servers, if it has any: of several first all at
    /// once, then one after the other.
    fn restart_store(&mut self) {
        let before = seconds();
        let again = self.counts[3] > 0;
        match &mut *self.shared {
            Shared::Sqlite(_) | Shared::File(_) => return,
            Shared::Postgres(server) => server.restart(),
            Shared::MariaDb(server) => server.restart(),
            Shared::Redis(server) => server.restart(),
            #[cfg(feature = "nats")]
            Shared::Nats(servers) if again => block_on(servers.restart_each("KV_tenure")),
            #[cfg(feature = "nats")]
            Shared::Nats(servers) => servers.restart_all(),
            Shared::S3(server) => server.restart(),
            Shared::Etcd(servers) if again => (0..SERVERS).for_each(|at| {
                servers.kill(at);
                servers.restart(at);
            }),
            Shared::Etcd(servers) => servers.restart_all(),
            Shared::Cluster(servers) if again => (1..=SERVERS).for_each(|id| servers.restart(id)),
            Shared::Cluster(servers) => servers.restart_all(),
        }
        if self.shared.says_too_early_that_it_serves() {
            self.shared.await_write();
        }
        self.counts[3] += 1;
        self.faults.push(Fault::of_all(before, seconds()));
    }
}

fn seconds() -> f64 {
    Duration::from_millis(clock::wall().as_millis()).as_secs_f64()
}

fn chaos(name: &str, mut shared: Shared) {
    let lasting = number("TENURE_CHAOS_SECONDS").unwrap_or(20);
    let seed = number("TENURE_SEED").unwrap_or_else(|| clock::boot().as_nanos());
    let mut rng = Rng::from_seed(seed);
    let ledger = Ledger::new();
    let url = shared.url();
    println!("chaos on {name} for {lasting} s, TENURE_SEED={seed}");
    let mut arena = Arena {
        shared: &mut shared,
        url,
        ledger: &ledger,
        candidates: Vec::new(),
        later: Vec::new(),
        faults: Vec::new(),
        counts: [0; 4],
        born: 0,
    };
    let witness = Witness::start(arena.shared.disk());
    // One after the other: to prove a password takes a debug build a while, and
    // all of them at once would starve the first that leads.
    for _ in 0..CANDIDATES {
        let (name, candidate) = arena.spawn();
        let stands = || candidate.log().contains(" leads in term ").then_some(());
        poll_until(Duration::from_secs(60), stands).expect("it stands");
        arena.candidates.push((name, candidate));
    }
    ledger.await_term_above(0, Duration::from_secs(60));
    let (began, start) = (seconds(), clock::boot());
    for second in 1..=lasting {
        let until = start.after(Duration::from_secs(second));
        poll_until(until.since(clock::boot()), || {
            arena.catch_up();
            None::<()>
        });
        // Seconds that a restart took are not made up for all at once.
        if clock::boot() < until.after(Duration::from_secs(1)) {
            arena.strike(&mut rng);
        }
        if second == lasting / 3 || second == lasting * 2 / 3 {
            arena.restart_store();
        }
    }
    let ended = seconds();
    let slow = witness.end();
    println!("{name}: the machine was slow {} times", slow.len());
    let slow = slow.into_iter().map(|(from, to)| Fault::of_all(from, to));
    arena.faults.extend(slow);
    // Whatever was done, somebody leads again once it stops.
    let term = ledger.runs().last().map_or(0, |run| run.term);
    poll_until(Duration::from_secs(30), || {
        arena.catch_up();
        arena.later.is_empty().then_some(())
    })
    .expect("all are back");
    arena
        .candidates
        .retain(|(_, candidate)| candidate.log().contains("leads"));
    let alive = || {
        ledger
            .runs()
            .last()
            .filter(|run| run.last > ended + 6.0)
            .cloned()
    };
    let last = poll_until(Duration::from_secs(60), alive).expect("somebody leads in the end");
    assert!(last.term >= term);
    report(name, &arena, (began, ended), &ledger.runs());
}

/// Prints the figures, and fails on a take-over that nothing explains.
fn report(name: &str, arena: &Arena<'_>, (began, ended): (f64, f64), runs: &[Run]) {
    let held: f64 = runs
        .iter()
        .map(|run| (run.last.min(ended) - run.first.max(began)).max(0.0))
        .sum();
    let share = 100.0 * held / (ended - began);
    let take_overs = runs
        .iter()
        .filter(|run| run.first > began && run.first < ended)
        .count();
    // The end of a leadership is explained by a fault on its holder or on the
    // store from a lease before to the end itself.
    let healthy_end =
        |run: &&Run| run.last < ended && !arena.faults.iter().any(|fault| fault.explains(run));
    let falsely: Vec<_> = runs.iter().filter(healthy_end).collect();
    let [kills, stops, terms, restarts] = arena.counts;
    println!(
        "{name}: {kills} KILL, {stops} STOP, {terms} TERM, {restarts} restarts of the store; \
         {} leaderships, {take_overs} take-overs, held {share:.1} % of the time, {} false oustings, \
         no overlap, terms 1 to {}",
        runs.len(),
        falsely.len(),
        runs.last().map_or(0, |run| run.term)
    );
    let near = |fault: &&Fault| {
        let around = |run: &&Run| (run.last - fault.from).abs() < 5.0;
        falsely.iter().any(around)
    };
    let near: Vec<_> = arena.faults.iter().filter(near).collect();
    assert!(
        falsely.is_empty(),
        "lost without cause: {falsely:?}, faults near: {near:?}"
    );
    assert!(
        share > 20.0,
        "the election was held {share:.1} % of the time"
    );
}

/// A store's name, and what starts it.
type Start = (&'static str, fn() -> Shared);

/// The stores that this build has. Those of a row run at the same time in the
/// short form: each takes its part of the machine, and all at once are too many
/// for two processors.
const STORES: &[&[Start]] = &[
    &[
        ("sqlite", Shared::sqlite),
        ("postgres", Shared::postgres),
        #[cfg(feature = "etcd")]
        ("etcd", || Shared::etcd(SERVERS)),
        #[cfg(feature = "tenure")]
        ("tenure", Shared::cluster),
    ],
    &[
        #[cfg(feature = "file")]
        ("file", Shared::directory),
        #[cfg(feature = "mysql")]
        ("mysql", Shared::mariadb),
        #[cfg(feature = "redis")]
        ("redis", Shared::redis),
        #[cfg(feature = "nats")]
        ("nats", || Shared::nats(1)),
        #[cfg(feature = "s3")]
        ("s3", Shared::s3),
    ],
];

/// Those of the long form alone. A stream of NATS has another leader 4 to 9 s
/// after its leader was killed, too much of 20 s.
const LONG: &[Start] = &[
    #[cfg(feature = "nats")]
    ("nats-cluster", || Shared::nats(SERVERS)),
];

/// A few at the same time, since mostly they wait; in the long form, whose
/// figures are read, one after the other.
#[test]
fn every_store() {
    let all = || STORES.iter().copied().flatten().chain(LONG);
    if let Ok(store) = std::env::var("TENURE_CHAOS") {
        let known: Vec<_> = all().map(|(name, _)| *name).collect();
        let found = all().find(|(name, _)| *name == store);
        let (name, start) = found.unwrap_or_else(|| panic!("expected one of {known:?}"));
        return chaos(name, start());
    }
    if number("TENURE_CHAOS_SECONDS").is_some() {
        return all().for_each(|(name, start)| chaos(name, start()));
    }
    for group in STORES {
        std::thread::scope(|scope| {
            for (name, start) in *group {
                scope.spawn(|| chaos(name, start()));
            }
        });
    }
}

#[test]
fn a_fault_explains_what_it_can_have_ended() {
    let run = Run {
        candidate: "c1".into(),
        term: 3,
        first: 100.0,
        last: 110.0,
    };
    let fault = |from, whom: &str, led_in| Fault {
        from,
        to: from + 1.0,
        whom: Some(whom.into()),
        led_in,
    };
    assert!(fault(109.0, "c1", None).explains(&run));
    assert!(!fault(109.0, "c2", None).explains(&run));
    assert!(!fault(105.0, "c1", None).explains(&run), "long before");
    // The command was still for half a second; its candidate led.
    assert!(fault(110.5, "c1", Some(3)).explains(&run));
    assert!(!fault(110.5, "c1", None).explains(&run));
    assert!(!fault(110.5, "c1", Some(4)).explains(&run));
    assert!(Fault::of_all(109.0, 110.0).explains(&run));
    assert!(!Fault::of_all(110.5, 111.0).explains(&run));

    assert_eq!(leads_in("c1 leads in term 2"), None);
    let log = "elected in term 3\nrenewed term 3\n";
    assert_eq!(leads_in(log), Some(3));
    assert_eq!(leads_in(&format!("{log}leaving term 3: asked")), None);
    assert_eq!(leads_in(&format!("{log}term 3 is over for us: late")), None);
}
