//! A store's time may go back, and no verdict comes too early.
//!
//! A cluster tells the log's time in its answers. A new leader goes on from the
//! newest that it has heard of, which may be before what the one before has
//! told: by milliseconds after a change of leader, by seconds after a restart
//! of all, since nothing was written meanwhile. A judge that judges a grant by
//! it compares the time of an answer with the stamp *in the same answer*, so a
//! time that went back makes a grant look younger, never older.

use std::time::Duration;

use tenure_core::cas::{Reading, Register};
use tenure_core::ids::{LeaderId, Name, Term, Version};
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, StoreTime, WallTime};
use tenure_election::{Config, Expiry, Holder, LeaseJudge, LeaseState, Occupancy, Record};

const MILLI: u64 = 1_000_000;
const CLOCK: ClockId = ClockId {
    boot: 1,
    namespace: 2,
};

/// A log's time, as leaders tell it one after the other.
struct Log {
    /// What it said when this leadership began, and the true time of that.
    began: (u64, u64),
    /// The newest that a leader has written down.
    stamped: u64,
}

impl Log {
    const fn now(&self, at: u64) -> u64 {
        self.began.0 + (at - self.began.1)
    }

    fn stamp(&mut self, at: u64) -> StoreTime {
        self.stamped = self.stamped.max(self.now(at));
        StoreTime {
            clock: CLOCK,
            nanos: self.stamped,
        }
    }

    /// Another leads, and has heard of no more than what was written.
    fn change(&mut self, at: u64) {
        self.began = (self.stamped, at);
    }
}

fn config() -> Config {
    let name = |text| Name::new(text).expect("a good name");
    Config {
        expiry: Expiry::SteadyClock,
        ..Config::new(name("payroll"), name("web-1"))
    }
}

fn register(config: &Config, sequence: u64, stamp: StoreTime) -> Register {
    let record = Record {
        election: config.election.clone(),
        term: Term::new(1).expect("a term"),
        sequence,
        renewal: sequence,
        lease: config.lease,
        acquired_at: WallTime::from_millis(0),
        renewed_at: WallTime::from_millis(0),
        occupancy: Occupancy::Held(Holder {
            id: LeaderId::from_u128(7),
            name: config.name.clone(),
            addresses: [].into(),
            params: [].into(),
            request: None,
        }),
    };
    Register {
        value: record.encode(),
        version: Version::from_u64(sequence),
        stamp: Some(stamp),
    }
}

/// Renewals, changes of leader and looks at random. After how much true time
/// since a renewal a judge ever called the grant over, at the earliest and at
/// the latest; `ahead`: a new leader's time begins so much too late.
fn verdicts(seed: u64, ahead: u64) -> (Option<u64>, u64) {
    let (config, mut rng) = (config(), Rng::from_seed(seed));
    let mut log = Log {
        began: (0, 0),
        stamped: 0,
    };
    let mut judge = LeaseJudge::new();
    let (mut now, mut sequence) = (0, 1);
    let (mut held, mut renewed) = (register(&config, 1, log.stamp(0)), 0);
    let (mut earliest, mut back) = (None, 0);
    let lease = config.lease.as_nanos() as u64;
    for _ in 0..2_000 {
        now += rng.between(MILLI, lease / 20);
        match rng.below(12) {
            0 if rng.chance(20) => {
                sequence += 1;
                held = register(&config, sequence, log.stamp(now));
                renewed = now;
            }
            1 => {
                let reported = log.now(now);
                log.change(now);
                log.began.0 += ahead;
                back = back.max(reported.saturating_sub(log.now(now)));
            }
            _ => {
                let boot = Instant::from_nanos(now);
                let reading = Reading {
                    register: Some(held.clone()),
                    now: Some(StoreTime {
                        clock: CLOCK,
                        nanos: log.now(now),
                    }),
                    bound: None,
                };
                let at = Now {
                    boot,
                    wall: WallTime::from_millis(0),
                };
                judge.read(&config, at, boot, &reading);
                if let LeaseState::Expired(_) = judge.lease_state() {
                    let age = now - renewed;
                    earliest = Some(earliest.map_or(age, |known: u64| known.min(age)));
                }
            }
        }
    }
    (earliest, back)
}

#[test]
fn a_time_that_goes_back_makes_no_verdict_come_early() {
    let lease = config().lease;
    let (mut judged, mut most) = (0, 0);
    for seed in 0..200 {
        let (earliest, back) = verdicts(seed, 0);
        most = most.max(back);
        if let Some(earliest) = earliest {
            judged += 1;
            assert!(
                Duration::from_nanos(earliest) >= lease,
                "seed {seed}: {earliest}"
            );
        }
    }
    assert!(judged > 20, "{judged} verdicts: nothing was tried");
    assert!(Duration::from_nanos(most) > Duration::from_secs(1));
}

#[test]
fn a_time_that_runs_ahead_would_be_noticed() {
    let lease = config().lease;
    let early = |seed| {
        let (earliest, _) = verdicts(seed, lease.as_nanos() as u64);
        earliest.is_some_and(|earliest| Duration::from_nanos(earliest) < lease)
    };
    assert!((0..200).any(early));
}
