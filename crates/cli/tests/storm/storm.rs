//! Eight agents while one after another is killed, stopped, cut off, drained
//! or restarted at random, and people deploy and undeploy all the time.
//!
//! In the end all is healed. What was deployed for certain must run, on one
//! node; what was undeployed for certain must not; and what the workloads
//! wrote down themselves must show no overlap and no fence that falls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tenure::clock;
use tenure_core::rng::Rng;
use tenure_core::time::Instant;

use super::common::poll_until;
use super::fixture::{Agent, Fixture};
use super::net::Net;
use super::number;

const NODES: usize = 8;
/// How many may be in trouble at a time, so that there is a quorum.
const TROUBLED_MAX: usize = 3;
const FLAGS: [&str; 5] = ["--quorum", "3", "--spread", "--lease", "2s"];
/// How long it may take until all is well when everything is healed.
const SETTLED: Duration = Duration::from_secs(60);
/// How long people wait for an answer.
const ANSWER: &str = "10";

/// What ends a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cure {
    Start,
    Continue,
    Heal,
}

struct Storm {
    /// They go first: what they have said lies in the fixture's directory.
    agents: Vec<Option<Agent>>,
    fixture: Fixture,
    net: Option<Net>,
    cures: Vec<(Instant, usize, Cure)>,
    rng: Rng,
    born: u32,
    there: BTreeSet<String>,
    gone: BTreeSet<String>,
    unsure: BTreeSet<String>,
    counts: BTreeMap<&'static str, u32>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let net = Net::new(NODES);
        if net.is_none() {
            // Who asks for the long form wants all of it.
            let long = number("TENURE_STORM_SECONDS").is_some();
            assert!(!long, "network namespaces, which need root and `ip`");
            println!("NO PARTITIONS: network namespaces need root and `ip`; the rest runs");
        }
        let host = net
            .as_ref()
            .map_or_else(|| "127.0.0.1".to_owned(), Net::host);
        Self {
            agents: Vec::new(),
            fixture: Fixture::cluster_at(&host),
            net,
            cures: Vec::new(),
            rng: Rng::from_seed(seed),
            born: 0,
            there: BTreeSet::new(),
            gone: BTreeSet::new(),
            unsure: BTreeSet::new(),
            counts: BTreeMap::new(),
        }
    }

    fn start(&self, node: usize) -> Agent {
        let prefix = self.net.as_ref().map(|net| net.inside(node));
        let prefix: Vec<&str> = prefix.iter().flatten().map(String::as_str).collect();
        self.fixture.start_in(&prefix, &format!("n{node}"), &FLAGS)
    }

    fn below(&mut self, most: usize) -> usize {
        let most = u64::try_from(most).expect("few");
        usize::try_from(self.rng.below(most)).expect("fewer")
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// One that nothing has been done to.
    fn sound(&mut self) -> Option<usize> {
        let troubled = |node: &usize| self.cures.iter().any(|(_, it, _)| it == node);
        let sound: Vec<usize> = (0..NODES).filter(|node| !troubled(node)).collect();
        if sound.is_empty() {
            return None;
        }
        let chosen = self.below(sound.len());
        Some(sound[chosen])
    }

    /// What a person asks of a sound agent; whether it was done.
    fn asked(&mut self, args: &[&str]) -> bool {
        let Some(node) = self.sound() else {
            return false;
        };
        let via = format!("n{node}");
        let args = [args, &["--via", &via]].concat();
        let ran = self.fixture.with_timeout(ANSWER, &args).status();
        ran.expect("it runs").success()
    }

    fn deploy(&mut self) {
        let name = format!("w{}", self.born);
        self.born += 1;
        let file = self.fixture.directory.path().join("w.toml");
        let command = serde_json::json!(self.fixture.stamps.command());
        let text = format!("[[workload]]\nname = \"{name}\"\ncommand = {command}\n");
        std::fs::write(&file, text).expect("a file");
        let file = file.display().to_string();
        if self.asked(&["deploy", "--no-wait", "--file", &file]) {
            self.there.insert(name);
        } else {
            self.unsure.insert(name);
        }
        self.count("deployed");
    }

    fn undeploy(&mut self) {
        let names: Vec<String> = self.there.iter().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.below(names.len())].clone();
        self.there.remove(&name);
        if self.asked(&["undeploy", &name]) {
            self.gone.insert(name);
        } else {
            self.unsure.insert(name);
        }
        self.count("undeployed");
    }

    fn trouble(&mut self) {
        if self.cures.len() >= TROUBLED_MAX {
            return;
        }
        let Some(node) = self.sound() else { return };
        let millis = 200 + self.below(4_000);
        let millis = u64::try_from(millis).expect("few");
        let until = clock::boot().after(Duration::from_millis(millis));
        let kinds = if self.net.is_some() { 6 } else { 5 };
        let kind = self.below(kinds);
        let agent = self.agents[node].as_mut().expect("a sound one lives");
        let (what, cure) = match kind {
            0 => {
                agent.kill();
                ("agents killed", Cure::Start)
            }
            1 => {
                agent.kill_all();
                ("machines killed", Cure::Start)
            }
            2 => {
                agent.signal(Signal::STOP);
                ("agents stopped", Cure::Continue)
            }
            3 => {
                agent.signal(Signal::TERM);
                ("agents drained", Cure::Start)
            }
            4 => {
                // One that has just been started may have none yet.
                if let Some(shim) = agent.try_below("__steward") {
                    let _ = kill_process(shim, Signal::KILL);
                }
                return self.count("stewards killed");
            }
            _ => {
                let net = self.net.as_ref().expect("there is one");
                net.cut(node, true);
                ("agents cut off", Cure::Heal)
            }
        };
        self.cures.push((until, node, cure));
        self.count(what);
    }

    /// Ends the faults whose time has come.
    fn cure(&mut self, now: Instant) {
        let (due, later) = self.cures.iter().partition(|(at, _, _)| *at <= now);
        self.cures = later;
        let due: Vec<(Instant, usize, Cure)> = due;
        for (_, node, cure) in due {
            match cure {
                Cure::Start => {
                    // A drained one is given its time.
                    let mut former = self.agents[node].take().expect("it was there");
                    former.process.wait().expect("it ends");
                    self.agents[node] = Some(self.start(node));
                }
                Cure::Continue => {
                    let agent = self.agents[node].as_ref().expect("it is there");
                    agent.signal(Signal::CONT);
                }
                Cure::Heal => {
                    let net = self.net.as_ref().expect("there is one");
                    net.cut(node, false);
                }
            }
        }
    }

    /// Waits until everything is as it should be.
    fn settle(&mut self) {
        self.cure(Instant::MAX);
        // What runs and what is shown to run are the same: nothing runs that
        // nobody knows of. What was asked for without an answer may come up,
        // or go, while the others are fine already.
        let settled = || {
            let shown: BTreeSet<String> = self.fixture.running();
            let fresh = self.fixture.stamps.fresh();
            let same = shown.iter().eq(fresh.keys());
            (same && self.there.is_subset(&shown) && self.all_are_members()).then_some(shown)
        };
        let shown = poll_until(SETTLED, settled).unwrap_or_else(|| {
            let fresh: BTreeSet<String> = self.fixture.stamps.fresh().into_keys().collect();
            let shown = self.fixture.running();
            let missing: Vec<_> = self.there.difference(&fresh).collect();
            let strangers: Vec<_> = fresh.difference(&shown).collect();
            panic!(
                "missing: {missing:?}; they run, and are not shown: {strangers:?}; {}",
                self.fixture.done(&["ps"])
            );
        });
        assert!(shown.is_disjoint(&self.gone), "undeployed, and there");
        let known: BTreeSet<String> = self.there.union(&self.unsure).cloned().collect();
        assert!(shown.is_subset(&known), "never deployed, and there");
    }

    /// Whether every agent has joined, and its group knows that it lives.
    fn all_are_members(&self) -> bool {
        let shown = self.fixture.ps();
        (0..NODES).all(|node| {
            let name = format!("n{node}");
            let lives = |it: &&serde_json::Value| it["type"] == "node" && it["state"] == "ha";
            shown.iter().filter(lives).any(|it| it["node"] == *name)
        })
    }
}

#[test]
fn storm() {
    let seconds = number("TENURE_STORM_SECONDS").unwrap_or(25);
    let seed = number("TENURE_SEED").unwrap_or_else(|| clock::boot().as_nanos());
    println!("seed {seed}, {seconds} s");
    let most = if seconds > 60 { 60 } else { 16 };
    let mut storm = Storm::new(seed);
    storm.agents = (0..NODES).map(|node| Some(storm.start(node))).collect();
    for agent in storm.agents.iter().flatten() {
        agent.wait_for_log("joined as");
    }
    for _ in 0..8 {
        storm.deploy();
    }
    let until = clock::boot().after(Duration::from_secs(seconds));
    while clock::boot() < until {
        match storm.below(10) {
            0..=2 if storm.there.len() < most => storm.deploy(),
            3 => storm.undeploy(),
            _ => storm.trouble(),
        }
        let step = clock::boot().after(Duration::from_millis(350));
        poll_until(Duration::from_secs(1), || {
            (clock::boot() >= step).then_some(())
        });
        storm.cure(clock::boot());
    }
    storm.settle();
    let runs = storm.fixture.stamps.runs();
    println!(
        "{} runs of {} workloads; {:?}",
        runs.len(),
        storm.born,
        storm.counts
    );
    let moved = runs.len() > usize::try_from(storm.born).expect("few");
    assert!(moved, "nothing was ever started again");
}
