//! Answers that come late say nothing of the present. Both schedules were
//! found by the simulator.

use std::time::Duration;

use tenure_core::cas::{Reading, Register};
use tenure_core::ids::{LeaderId, Name, Term, Version};
use tenure_core::time::{Instant, Now, WallTime};
use tenure_election::{
    Config, Expiry, Holder, LeaseJudge, LeaseState, Occupancy, ReadOutcome, Record,
};

fn at(ms: u64) -> Now {
    Now {
        boot: Instant::from_nanos(ms * 1_000_000),
        wall: WallTime::from_millis(ms),
    }
}

fn config(expiry: Expiry) -> Config {
    let name = |text| Name::new(text).expect("a good name");
    Config {
        expiry,
        ..Config::new(name("payroll"), name("web-1"))
    }
}

/// What `leader` wrote at `ms` as the register's `sequence`th write.
fn register(config: &Config, leader: u128, sequence: u64, ms: u64) -> Register {
    let record = Record {
        election: config.election.clone(),
        term: Term::new(leader as u64).expect("a small term"),
        sequence,
        renewal: sequence,
        lease: config.lease,
        acquired_at: WallTime::from_millis(ms),
        renewed_at: WallTime::from_millis(ms),
        occupancy: Occupancy::Held(Holder {
            id: LeaderId::from_u128(leader),
            name: config.name.clone(),
            addresses: [].into(),
            params: [].into(),
            request: None,
        }),
    };
    Register {
        value: record.encode(),
        version: Version::from_u64(sequence),
        stamp: None,
    }
}

fn reading(register: Register) -> Reading {
    Reading {
        register: Some(register),
        now: None,
        bound: None,
    }
}

#[test]
fn a_read_that_a_watch_has_overtaken_changes_nothing() {
    let config = config(Expiry::Silence);
    let mut judge = LeaseJudge::new();
    let (old, new) = (register(&config, 1, 1, 0), register(&config, 2, 2, 0));
    judge.read(&config, at(10), at(0).boot, &reading(old.clone()));
    // Asked at 20, overtaken at 30, answered at 40.
    judge.hint(&config, at(30), Some(&new));
    let outcome = judge.read(&config, at(40), at(20).boot, &reading(old.clone()));
    assert_eq!(outcome, ReadOutcome::Nothing);
    assert_eq!(judge.leader().map(|leader| leader.term.get()), Some(2));
    // A read asked afterwards is believed: the register was restored.
    let outcome = judge.read(&config, at(60), at(50).boot, &reading(old));
    assert_eq!(outcome, ReadOutcome::LeaderChanged);
}

#[test]
fn by_the_calendar_a_read_is_judged_by_when_it_was_asked() {
    let config = config(Expiry::BoundedSkew(Duration::from_secs(1)));
    let mut judge = LeaseJudge::new();
    let held = register(&config, 1, 1, 0);
    // Asked at 5 ms, and handled after a long pause.
    judge.read(&config, at(60_000), at(5).boot, &reading(held.clone()));
    assert!(matches!(judge.lease_state(), LeaseState::Held { .. }));
    judge.read(&config, at(60_010), at(60_005).boot, &reading(held));
    assert!(matches!(judge.lease_state(), LeaseState::Expired(_)));
}
