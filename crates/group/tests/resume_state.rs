//! What a restarted node may go on from: a life on the very clock that it
//! reads, before its time (`docs/design/groups.md` §7.1).

use std::time::Duration;

use tenure_core::ids::Name;
use tenure_core::time::{ClockId, Instant};
use tenure_election::{Config, Grant};
use tenure_group::{Plant, is_one_clock, may_resume};

const fn clock(boot: u64, namespace: u64) -> Option<ClockId> {
    Some(ClockId { boot, namespace })
}

fn grant() -> Grant {
    let name = Name::new("a").expect("a name");
    let config = Config::new(name.clone(), name).with_lease(Duration::from_secs(10));
    Grant::new(Instant::from_nanos(7_000_000_000), &config)
}

#[test]
fn a_node_goes_on_before_kill_at_and_not_at_it() {
    let (grant, one) = (grant(), clock(1, 2));
    let at = |now| may_resume(one, one, now, &grant, Plant::NONE);
    assert!(at(grant.kill_at.before(Duration::from_nanos(1))));
    assert!(!at(grant.kill_at));
}

#[test]
fn another_clock_or_one_that_cannot_be_told_proves_nothing() {
    let grant = grant();
    let differ = [
        (clock(1, 2), clock(9, 2)),
        (clock(1, 2), clock(1, 3)),
        (clock(1, 2), None),
        (None, clock(1, 2)),
        (None, None),
    ];
    for (noted, read) in differ {
        assert!(
            !is_one_clock(noted, read, Plant::NONE),
            "{noted:?} {read:?}"
        );
        // However early that looks.
        let early = may_resume(noted, read, Instant::ZERO, &grant, Plant::NONE);
        assert!(!early, "{noted:?} {read:?}");
    }
    assert!(is_one_clock(clock(1, 2), clock(1, 2), Plant::NONE));
}
