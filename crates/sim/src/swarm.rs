//! What kind of world a run is set in, drawn from its seed.
//!
//! Each kind of fault is on or off for a whole run, with an intensity of its
//! own (*swarm testing*, Groce et al. 2012). A world in which everything
//! fails a little finds less than many worlds in which a few things fail a
//! lot: with lost requests always on, say, no leader would stay long enough
//! for a slow clock to matter.
//!
//! What is drawn here also keeps the promises that exclusivity rests on: the
//! rates of clocks stay within the bound, a store clock that is judged by
//! does not step, and calendars stay within a stated skew.

use std::fmt;
use std::time::Duration;

use tenure_core::ids::Name;
use tenure_core::rng::Rng;
use tenure_core::time::Drift;
use tenure_election::{Config, Expiry, Priority};

use crate::clock::{MICRO, MILLI, SECOND, pick};
use crate::kernel::{fault_kinds, sometimes};
use crate::{Error, Options};

/// The clock that a store stamps its writes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreClock {
    None,
    /// The boot-time clock of the one machine that everything runs on.
    Steady,
    /// The database's own: steady, at a rate of its own.
    Even,
    /// The database's own, and it steps.
    Stepping,
}

/// What a process reads as the id of its machine's boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BootId {
    /// What it is.
    Own,
    /// Another one, which nobody else reads.
    Foreign,
    /// None.
    Hidden,
}

/// In how many of 100 calls what happens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    pub(crate) lose_request: u64,
    pub(crate) lose_answer: u64,
    pub(crate) unavailable: u64,
    pub(crate) unknown: u64,
    pub(crate) slow_request: u64,
    pub(crate) slow_answer: u64,
    pub(crate) corrupt: u64,
    pub(crate) broken: u64,
    pub(crate) stale_news: u64,
}

fault_kinds! {
    /// A kind of mishap.
    enum InjectedFault;
    /// What happens from time to time, and how rarely: the mean pause in
    /// thousandths of a lease; 0 is never.
    struct FaultRates;
    Pause: pause,
    Stall: stall,
    Crash: crash,
    Suspend: suspend,
    Reboot: reboot,
    Outage: outage,
    Cut: cut,
    Calendar: calendar,
    StoreWatch: line,
    Command: command,
    LeaderRequest: leader_request,
    /// The store breaks its promise.
    Tear: tear,
    /// A process, or the store, stands still for many leases.
    Standstill: standstill,
    /// The guardian of work that confirms hangs.
    Hang: hang,
}

/// The world of one run.
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
    /// One configuration a candidate, election by election.
    pub(crate) candidates: Vec<Config>,
    pub(crate) elections: usize,
    pub(crate) observers: usize,
    pub(crate) one_machine: bool,
    pub(crate) namespaces: bool,
    pub(crate) store_clock: StoreClock,
    /// Versions are hashes of the content, not numbers.
    pub(crate) hashed: bool,
    pub(crate) watch: bool,
    pub(crate) drift: Drift,
    pub(crate) expiry: Expiry,
    /// The store has sessions, and some candidates lead by them.
    pub(crate) sessions: bool,
    /// Processes keep their sessions alive for other elections as well.
    pub(crate) neighbours: bool,
    /// Some processes read a foreign boot id, or none.
    pub(crate) foreign: bool,
    /// Applications poll guarded work.
    pub(crate) guarded: bool,
    /// The longest time that a word takes between a candidate and the guardian
    /// of work that confirms, in nanoseconds.
    pub(crate) words: u64,
    /// The longest lease of any candidate, in nanoseconds.
    pub(crate) lease: u64,
    /// The time a message takes, in nanoseconds.
    pub(crate) net: (u64, u64),
    pub(crate) calls: Calls,
    pub(crate) fault_rates: FaultRates,
    /// In how many of 100 cases work takes longer to stop than it may.
    pub(crate) stubborn: u64,
    /// The longest time from the end of work to its being said.
    pub(crate) reap: u64,
    /// How far calendars may be off, in milliseconds.
    pub(crate) calendar_ms: u64,
    pub(crate) faults_until: u64,
}

impl Swarm {
    pub(crate) fn draw(rng: &mut Rng, options: &Options) -> Result<Self, Error> {
        let drift_ppm = *pick(rng, &[10_000, 10_000, 10_000, 1_000, 50_000]);
        let drift = Drift::from_ppm(drift_ppm).unwrap_or_default();
        let lease = *pick(rng, &[2, 3, 5, 10]) * SECOND;
        let kind = rng.below(25);
        let sessions = kind >= 20;
        let expiry = match kind {
            0..=13 => Expiry::Silence,
            14..=15 | 20.. => Expiry::SteadyClock,
            16..=17 => Expiry::StoreClock,
            _ => Expiry::BoundedSkew(Duration::from_nanos(lease / rng.between(2, 10))),
        };
        let store_clock = match expiry {
            // The time of a log: everybody's, and at a rate of its own.
            _ if sessions => StoreClock::Even,
            Expiry::SteadyClock => StoreClock::Steady,
            Expiry::StoreClock => StoreClock::Even,
            _ => *pick(
                rng,
                &[StoreClock::None, StoreClock::Even, StoreClock::Stepping],
            ),
        };
        let elections = if rng.chance(15) { 2 } else { 1 };
        let drawn = rng.between(1, 5) as usize;
        let stand = options.candidates.unwrap_or(drawn).clamp(1, 9);
        let stand = if elections == 2 { stand.min(3) } else { stand };
        let fastest = 50 * MICRO;
        let slowest = *pick(rng, &[MILLI, 5 * MILLI, 20 * MILLI, 60 * MILLI]);
        let calendar_ms = match expiry {
            Expiry::BoundedSkew(skew) => (skew.as_millis() as u64 / 2).saturating_sub(1),
            _ => *pick(rng, &[0, 500, 10_000, 3_600_000]),
        };
        let mut swarm = Self {
            candidates: Vec::new(),
            elections,
            observers: rng.below(3) as usize,
            one_machine: store_clock == StoreClock::Steady,
            namespaces: rng.chance(20),
            store_clock,
            hashed: rng.chance(50),
            watch: rng.chance(60),
            drift,
            expiry,
            sessions,
            neighbours: sessions && rng.chance(60),
            foreign: false,
            guarded: false,
            words: 0,
            lease,
            net: (fastest, slowest),
            calls: Calls::default(),
            fault_rates: FaultRates::default(),
            stubborn: *pick(rng, &[0, 10, 50]),
            reap: *pick(rng, &[MILLI, 30 * MILLI, SECOND]),
            calendar_ms,
            faults_until: lease * options.leases,
        };
        swarm.draw_candidates(rng, stand, options)?;
        if options.faults {
            swarm.draw_calls(rng);
            swarm.draw_mishaps(rng);
        } else {
            swarm.reap = MILLI;
            swarm.stubborn = 0;
        }
        Ok(swarm)
    }

    fn draw_candidates(
        &mut self,
        rng: &mut Rng,
        stand: usize,
        #[cfg_attr(not(feature = "planted-bugs"), expect(unused_variables))] options: &Options,
    ) -> Result<(), Error> {
        let ranked = rng.chance(30);
        let mixed = rng.chance(20);
        let custom = rng.chance(25);
        for election in 0..self.elections {
            for who in 0..stand {
                let mut config = Config::new(election_name(election)?, candidate_name(who)?);
                let lease = if mixed {
                    *pick(rng, &[2, 3, 5, 10]) * SECOND
                } else {
                    self.lease
                };
                config = config.with_lease(Duration::from_nanos(lease));
                config.drift = self.drift;
                config.expiry = self.expiry;
                if let Expiry::BoundedSkew(skew) = self.expiry
                    && config.lease < skew * 2
                {
                    config = config.with_lease(Duration::from_nanos(self.lease));
                }
                if ranked {
                    let rank = rng.below(11) as u8;
                    config.priority = Priority::new(rank).unwrap_or_default();
                }
                if custom {
                    vary_times(rng, &mut config);
                }
                #[cfg(feature = "planted-bugs")]
                {
                    config.planted = options.planted;
                }
                config.by_session = self.sessions && rng.chance(80);
                if election > 0 {
                    config.affinity = vec![election_name(0)?];
                }
                config
                    .validate()
                    .map_err(|error| Error(error.to_string()))?;
                self.candidates.push(config);
            }
        }
        let longest = self
            .candidates
            .iter()
            .map(|config| config.lease.as_nanos() as u64);
        self.lease = longest.max().unwrap_or(self.lease);
        Ok(())
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
            corrupt: some(15, &[1, 5, 20]),
            broken: some(8, &[1, 5]),
            stale_news: some(25, &[5, 30]),
        };
    }

    fn draw_mishaps(&mut self, rng: &mut Rng) {
        let mut some = |percent, most: &[u64]| sometimes(rng, percent, most);
        self.fault_rates = FaultRates {
            pause: some(55, &[1_500, 3_000, 6_000]),
            stall: some(25, &[200, 1_000]),
            crash: some(40, &[2_000, 5_000]),
            suspend: some(20, &[3_000, 6_000]),
            reboot: some(15, &[4_000, 8_000]),
            outage: some(20, &[3_000, 6_000]),
            cut: some(40, &[1_500, 4_000]),
            calendar: some(60, &[500, 2_000]),
            line: some(40, &[1_000, 3_000]),
            command: some(35, &[1_500, 4_000]),
            leader_request: some(35, &[1_500, 4_000]),
            ..FaultRates::default()
        };
    }

    /// What is drawn from a stream of its own.
    pub(crate) fn draw_more(&mut self, rng: &mut Rng, options: &Options) {
        if !options.faults {
            return;
        }
        self.guarded = rng.chance(40);
        let mut some = |percent, most: &[u64]| sometimes(rng, percent, most);
        self.fault_rates.standstill = some(12, &[4_000, 8_000]);
        let tear = some(15, &[3_000, 6_000, 12_000]);
        // What is bound to a session is not lost register by register.
        self.fault_rates.tear = if self.sessions { 0 } else { tear };
        self.foreign = self.store_clock == StoreClock::Steady && rng.chance(60);
    }

    /// Whose work confirms (§4.13), from another stream of its own.
    pub(crate) fn draw_words(&mut self, rng: &mut Rng, options: &Options) {
        if !options.faults || !rng.chance(30) {
            return;
        }
        for config in &mut self.candidates {
            config.require_work_confirmation = rng.chance(75);
        }
        self.words = *pick(rng, &[MILLI, 30 * MILLI, self.lease / 5]);
        self.fault_rates.hang = *pick(rng, &[0, 2_000, 5_000]);
    }

    /// What a process reads as the id of its machine's boot.
    pub(crate) fn boot_id(&self, rng: &mut Rng) -> BootId {
        let choices = [BootId::Own, BootId::Foreign, BootId::Hidden];
        if self.foreign {
            *pick(rng, &choices)
        } else {
            BootId::Own
        }
    }

    /// The longest time that one message takes when nothing is wrong.
    pub(crate) const fn hop(&self) -> u64 {
        self.net.1
    }
}

/// Other times than the default ones, where they are valid.
fn vary_times(rng: &mut Rng, config: &mut Config) {
    let usual = config.clone();
    config.interval = config.lease / *pick(rng, &[4, 5, 6, 8]);
    config.grace = config.lease / *pick(rng, &[4, 5, 10, 100]);
    config.kill_margin = Duration::from_millis(*pick(rng, &[10, 100, 400]));
    if config.validate().is_err() {
        *config = usual;
    }
}

fn election_name(number: usize) -> Result<Name, Error> {
    let text = ["payroll", "ledger"][number.min(1)];
    Name::new(text).map_err(|error| Error(error.to_string()))
}

pub(crate) fn candidate_name(number: usize) -> Result<Name, Error> {
    Name::new(&format!("web-{}", number + 1)).map_err(|error| Error(error.to_string()))
}

impl fmt::Display for Swarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "world: {} elections, {} observers, expiry {:?} (sessions {}, neighbours {}), drift {} ppm, store clock {:?}, \
             versions {}, watch {}, one machine {} (namespaces {}, foreign boot ids {}), guarded work {}, \
             messages {:?} to {:?}, calendars within {} ms",
            self.elections,
            self.observers,
            self.expiry,
            self.sessions,
            self.neighbours,
            self.drift.ppm(),
            self.store_clock,
            if self.hashed { "hashed" } else { "counted" },
            self.watch,
            self.one_machine,
            self.namespaces,
            self.foreign,
            self.guarded,
            Duration::from_nanos(self.net.0),
            Duration::from_nanos(self.net.1),
            self.calendar_ms,
        )?;
        for config in &self.candidates {
            writeln!(
                f,
                "candidate: {} in {}, lease {:?}, interval {:?}, grace {:?}, kill margin {:?}, \
                 priority {}{}{}",
                config.name,
                config.election,
                config.lease,
                config.interval,
                config.grace,
                config.kill_margin,
                config.priority.get(),
                if config.by_session {
                    ", by session"
                } else {
                    ""
                },
                if config.require_work_confirmation {
                    ", work confirms"
                } else {
                    ""
                },
            )?;
        }
        writeln!(f, "of 100 calls: {:?}", self.calls)?;
        writeln!(f, "mean pause in 1/1000 lease: {:?}", self.fault_rates)?;
        let until = Duration::from_nanos(self.faults_until);
        write!(
            f,
            "stubborn work {} %, reaped within {:?}, words of work within {:?}, faults until {until:?}",
            self.stubborn,
            Duration::from_nanos(self.reap),
            Duration::from_nanos(self.words),
        )
    }
}
