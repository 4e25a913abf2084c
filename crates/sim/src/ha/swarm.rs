//! What kind of world a run of the HA simulator is set in, drawn from its
//! seed. Each kind of fault is on or off for a whole run.
//!
//! What is drawn here keeps the promises that safety rests on: the rates of
//! clocks stay within the bound, and the store loses no acknowledged write, but
//! where it is torn ([`lossy_store`](super::lossy_store)).

use super::options::Options;
use std::fmt;
use std::time::Duration;

use tenure_core::ids::Name;
use tenure_core::rng::Rng;
use tenure_core::time::Drift;
use tenure_group::{Config, Plant};

use crate::clock::{MICRO, MILLI, SECOND, pick};
use crate::kernel::{fault_kinds, sometimes};

/// In how many of 100 calls what happens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    pub(super) lose_request: u64,
    pub(super) lose_answer: u64,
    pub(super) unavailable: u64,
    pub(super) unknown: u64,
    pub(super) slow_request: u64,
    pub(super) slow_answer: u64,
    pub(super) corrupt: u64,
    pub(super) stale_news: u64,
}

fault_kinds! {
    /// A kind of mishap.
    enum GroupFault;
    /// The mean pause between two mishaps of a kind in thousandths of a lease; 0
    /// is never.
    struct GroupFaultRates;
    Pause: pause,
    Crash: crash,
    Reboot: reboot,
    Outage: outage,
    Cut: cut,
    GroupStoreWatch: line,
    Forget: forget,
    /// A machine is suspended.
    Suspend: suspend,
    /// An agent, or the store, stands still for many leases.
    Standstill: standstill,
    /// The store breaks its promise.
    Tear: tear,
}

/// The world of one run.
#[derive(Clone, Debug)]
pub(super) struct Swarm {
    /// One configuration an agent.
    pub(super) agents: Vec<Config>,
    /// Versions are hashes of the content, not numbers.
    pub(super) hashed: bool,
    pub(super) watch: bool,
    pub(super) drift: Drift,
    /// The lease of every agent, in nanoseconds.
    pub(super) lease: u64,
    /// The time a message takes, in nanoseconds.
    pub(super) net: (u64, u64),
    pub(super) calls: Calls,
    pub(super) fault_rates: GroupFaultRates,
    /// Whether an agent that crashed is back within a fraction of its lease.
    pub(super) quick: bool,
    /// Whether lives of agents are shown other boot ids and clocks, or none.
    pub(super) foreign: bool,
    /// The mean pause between two requests of users, in thousandths of a
    /// lease.
    pub(super) requests: u64,
    /// After how many of 100 requests the machine that was asked is suspended.
    pub(super) naps: u64,
    /// In how many of 100 cases a workload takes longer to stop than it may,
    /// and does not start.
    pub(super) stubborn: u64,
    pub(super) failing: u64,
    /// The longest time that a start and a stop take.
    pub(super) start: u64,
    pub(super) reap: u64,
    /// Whether some agents have labels and limits, and workloads wishes.
    pub(super) picky: bool,
    /// How many registers a page of the store has.
    pub(super) page: usize,
    /// Whether workloads have no content.
    pub(super) bare: bool,
    pub(super) faults_until: u64,
}

impl Swarm {
    pub(super) fn draw(rng: &mut Rng, options: &Options) -> Self {
        let drift_ppm = *pick(rng, &[10_000, 10_000, 1_000, 50_000]);
        let lease = *pick(rng, &[2, 3, 5, 10]) * SECOND;
        let slowest = *pick(rng, &[MILLI, 5 * MILLI, 20 * MILLI, 60 * MILLI]);
        let mut swarm = Self {
            agents: Vec::new(),
            hashed: rng.chance(40),
            watch: rng.chance(60),
            drift: Drift::from_ppm(drift_ppm).unwrap_or_default(),
            lease,
            net: (50 * MICRO, slowest),
            calls: Calls::default(),
            fault_rates: GroupFaultRates::default(),
            quick: false,
            foreign: false,
            requests: *pick(rng, &[100, 300, 1_000]),
            naps: 0,
            stubborn: *pick(rng, &[0, 10, 50]),
            failing: *pick(rng, &[0, 0, 5, 30]),
            start: *pick(rng, &[MILLI, 30 * MILLI, SECOND / 2]),
            reap: *pick(rng, &[MILLI, 30 * MILLI, SECOND / 2]),
            picky: rng.chance(25),
            page: 500,
            bare: false,
            faults_until: lease * options.leases,
        };
        swarm.draw_agents(rng, options);
        if options.faults {
            swarm.draw_calls(rng);
            swarm.draw_mishaps(rng);
        } else {
            (swarm.stubborn, swarm.failing) = (0, 0);
        }
        if !options.users {
            swarm.requests = 0;
        }
        swarm.draw_contents(rng);
        swarm
    }

    fn draw_agents(&mut self, rng: &mut Rng, options: &Options) {
        let drawn = 1 + usize::from(rng.chance(30));
        let groups = options.groups.unwrap_or(drawn);
        for group in 0..groups {
            let drawn = rng.between(1, 6) as usize;
            let count = options.agents.unwrap_or(drawn);
            let quorum = match options.quorum {
                Some(quorum) => quorum,
                None => *pick(rng, &[0, 0, 1, (count as u32).div_ceil(2)]),
            };
            let spread = options.spread.unwrap_or_else(|| rng.chance(30));
            for who in 0..count {
                let mut config =
                    Config::new(name(group_name(group)), name(&agent_name(group, who)))
                        .with_lease(Duration::from_nanos(self.lease));
                config.drift = self.drift;
                (config.quorum, config.spread) = (quorum, spread);
                // Never the first, so that every group has an HA node.
                config.ha = who == 0 || !options.faults || !rng.chance(12);
                if self.picky {
                    let zone = *pick(rng, &["zone=a", "zone=b"]);
                    config.labels = vec![name(zone)];
                    config.max = Some(*pick(rng, &[3, 10, 50]));
                }
                config.plant = options.plant();
                if config.validate().is_err() {
                    config.plant = Plant::NONE;
                }
                self.agents.push(config);
            }
        }
    }

    fn draw_calls(&mut self, rng: &mut Rng) {
        let mut some = |percent, most: &[u64]| sometimes(rng, percent, most);
        self.calls = Calls {
            lose_request: some(25, &[1, 5, 20]),
            lose_answer: some(25, &[1, 5, 20]),
            unavailable: some(25, &[1, 5, 20]),
            unknown: some(30, &[1, 5, 20]),
            slow_request: some(25, &[1, 5, 15]),
            slow_answer: some(25, &[1, 5, 15]),
            corrupt: some(15, &[1, 5]),
            stale_news: some(25, &[5, 30]),
        };
    }

    fn draw_mishaps(&mut self, rng: &mut Rng) {
        let mut some = |percent, most: &[u64]| sometimes(rng, percent, most);
        self.fault_rates = GroupFaultRates {
            pause: some(55, &[1_500, 3_000, 6_000]),
            crash: some(50, &[1_500, 4_000]),
            reboot: some(20, &[3_000, 8_000]),
            outage: some(20, &[3_000, 6_000]),
            cut: some(40, &[1_500, 4_000]),
            line: some(40, &[1_000, 3_000]),
            forget: some(10, &[3_000, 8_000]),
            ..GroupFaultRates::default()
        };
        // Agents that crash and are back before their calls have ended: what
        // the earlier life sent lands in the time of the next.
        if rng.chance(20) {
            (self.fault_rates.crash, self.fault_rates.reboot) = (700, 0);
            (self.quick, self.calls.slow_request) = (true, 40);
            self.requests = 100;
        }
    }
}

impl Swarm {
    /// What is drawn from a stream of its own.
    pub(super) fn draw_more(&mut self, rng: &mut Rng, options: &Options) {
        if !options.faults {
            return;
        }
        let mut some = |percent, most: &[u64]| sometimes(rng, percent, most);
        self.fault_rates.suspend = some(15, &[3_000, 8_000]);
        self.fault_rates.standstill = some(12, &[4_000, 8_000]);
        self.fault_rates.tear = some(15, &[3_000, 6_000, 12_000]);
        self.foreign = rng.chance(25);
        // That content is there rests on the promise of the store.
        self.bare |= self.fault_rates.tear > 0;
        if self.watch && rng.chance(20) {
            self.naps = 15;
        }
    }
}

pub(super) fn group_name(number: usize) -> &'static str {
    ["alpha", "beta"][number.min(1)]
}

fn agent_name(group: usize, who: usize) -> String {
    format!("{}-{}", &group_name(group)[..1], who + 1)
}

/// A name that is known to be one.
pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap_or_else(|error| unreachable!("{text}: {error}"))
}

impl fmt::Display for Swarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "world: lease {:?}, drift {} ppm, versions {}, watch {}, messages {:?} to {:?}",
            Duration::from_nanos(self.lease),
            self.drift.ppm(),
            if self.hashed { "hashed" } else { "counted" },
            self.watch,
            Duration::from_nanos(self.net.0),
            Duration::from_nanos(self.net.1),
        )?;
        for config in &self.agents {
            writeln!(
                f,
                "agent: {} of {}, ha {}, quorum {}, spread {}, labels {:?}, most {:?}",
                config.name,
                config.group,
                config.ha,
                config.quorum,
                config.spread,
                config.labels,
                config.max,
            )?;
        }
        writeln!(f, "of 100 calls: {:?}", self.calls)?;
        writeln!(f, "mean pause in 1/1000 lease: {:?}", self.fault_rates)?;
        write!(
            f,
            "content kept for {:?}, {} a page, foreign boot ids {}, requests every {}/1000 lease, \
             {} % followed by a nap, stubborn {} %, failing {} %, start {:?}, reap {:?}",
            self.agents.first().map_or(Duration::ZERO, |it| it.keep),
            self.page,
            self.foreign,
            self.requests,
            self.naps,
            self.stubborn,
            self.failing,
            Duration::from_nanos(self.start),
            Duration::from_nanos(self.reap),
        )
    }
}
