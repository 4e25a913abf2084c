//! `Config::validate`, each relation both ways and at its boundary (§4.10 of
//! `docs/design/election.md`). The scripts of `validate/` show the messages whole;
//! here a table holds every edge.

use std::time::Duration;

use tenure_core::ids::Name;
use tenure_core::time::{Drift, Instant};
use tenure_election::{Config, ConfigError, Expiry, Grant, Priority};

fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const NANO: Duration = Duration::from_nanos(1);

/// A default configuration, changed by `change`.
fn with(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::new(name("payroll"), name("web-1"));
    change(&mut config);
    config
}

/// A configuration in which only `lease > 2 x interval` can fail: no grace, no
/// margin, no drift.
fn bare(lease: Duration, interval: Duration) -> Config {
    with(|config| {
        config.lease = lease;
        config.interval = interval;
        config.grace = Duration::ZERO;
        config.kill_margin = Duration::ZERO;
        config.drift = Drift::NONE;
    })
}

#[track_caller]
fn good(config: &Config) {
    assert_eq!(config.validate(), Ok(()));
}

/// It is refused, and the message has all of `parts`.
#[track_caller]
fn refused(config: &Config, parts: &[&str]) -> ConfigError {
    let error = config.validate().expect_err("it should be refused");
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
    error
}

#[test]
fn the_defaults_of_every_lease_from_863_ms_are_good() {
    for lease in [863, 1_000, 2_000, 5_000, 10_000, 60_000, 3_600_000] {
        good(&with(|config| {
            *config = config.clone().with_lease(ms(lease));
        }));
    }
    good(&with(|config| {
        *config = config.clone().with_lease(Config::LEASE_MAX);
    }));
    let short = with(|config| *config = config.clone().with_lease(ms(862)));
    refused(&short, &["344.78ms < 2 x interval 172.4ms"]);
}

#[test]
fn a_lease_is_longer_than_two_intervals() {
    // The drain relation is the stricter one: T - I >= 2 I, so the first one
    // is what is told only up to there.
    let refusal = refused(
        &bare(ms(10_000), ms(5_000)),
        &["lease > 2 x interval", "10s <= 2 x 5s"],
    );
    assert!(matches!(refusal, ConfigError::Interval { .. }));
    let refusal = refused(&bare(ms(10_000), ms(5_000) - NANO), &["2 x interval"]);
    assert!(matches!(refusal, ConfigError::Drain { .. }));
    refused(&bare(ms(10_000), Duration::MAX), &["lease > 2 x interval"]);
}

#[test]
fn there_is_room_for_two_renewals_before_work_must_stop() {
    // T - I >= 2 I exactly at a third of the lease.
    good(&bare(ms(9_000), ms(3_000)));
    refused(
        &bare(ms(9_000), ms(3_000) + NANO),
        &["5.999999999s < 2 x interval 3.000000001s"],
    );
    // kill_at - grace >= 2 I: 9.9 - 0.25 - grace >= 4.
    good(&with(|config| config.grace = ms(5_650)));
    refused(
        &with(|config| config.grace = ms(5_650) + NANO),
        &["found 3.999999999s < 2 x interval 2s", "grace 5.650000001s"],
    );
    // 9.9 - margin - 3 >= 4.
    good(&with(|config| config.kill_margin = ms(2_900)));
    refused(
        &with(|config| config.kill_margin = ms(2_900) + NANO),
        &["kill margin 2.900000001s"],
    );
    // 10 x (1 - drift) - 0.25 - 5.65 >= 4 at 1 % and not above.
    let drifting = |ppm| {
        with(|config| {
            config.grace = ms(5_650);
            config.drift = Drift::from_ppm(ppm).expect("a good drift");
        })
    };
    good(&drifting(10_000));
    refused(&drifting(10_001), &["9.89999s of validity"]);
    // What cannot be subtracted leaves nothing, and does not panic.
    refused(&with(|config| config.grace = Duration::MAX), &["found 0ns"]);
    refused(
        &with(|config| config.kill_margin = Duration::MAX),
        &["found 0ns"],
    );
}

#[test]
fn a_lease_is_at_least_twice_the_skew() {
    let skewed = |skew| with(|config| config.expiry = Expiry::BoundedSkew(skew));
    good(&skewed(Duration::ZERO));
    good(&skewed(ms(5_000)));
    refused(
        &skewed(ms(5_000) + NANO),
        &["lease >= 2 x max clock skew", "10s < 2 x 5.000000001s"],
    );
    refused(&skewed(Duration::MAX), &["max clock skew"]);
}

#[test]
fn nothing_is_shorter_than_a_millisecond() {
    good(&bare(ms(3), ms(1)));
    refused(
        &bare(ms(3), ms(1) - NANO),
        &["interval >= 1ms", "999.999µs"],
    );
    refused(&bare(ms(1) - NANO, ms(1)), &["lease >= 1ms", "999.999µs"]);
    refused(&bare(Duration::ZERO, ms(1)), &["lease >= 1ms", "0ns"]);
    refused(&bare(ms(3), Duration::ZERO), &["interval >= 1ms", "0ns"]);
}

#[test]
fn a_lease_is_at_most_a_week() {
    good(&bare(Config::LEASE_MAX, ms(1_000)));
    refused(
        &bare(Config::LEASE_MAX + NANO, ms(1_000)),
        &["at most 7 days"],
    );
}

#[test]
fn what_clients_get_is_bounded() {
    let address = name("10.0.0.7:8443");
    let addresses = |count| with(|config| config.addresses = vec![address.clone(); count]);
    good(&addresses(Config::ADDRESSES_MAX));
    refused(
        &addresses(Config::ADDRESSES_MAX + 1),
        &["at most 16 addresses, found 17"],
    );
    let params = |bytes| with(|config| config.params = vec![0u8; bytes].into());
    good(&params(Config::PARAMS_MAX));
    refused(
        &params(Config::PARAMS_MAX + 1),
        &["at most 16384 bytes of params, found 16385"],
    );
}

#[test]
fn an_affinity_is_to_another_election() {
    good(&with(|config| {
        config.affinity = vec![name("cache"), name("queue")];
    }));
    refused(
        &with(|config| config.affinity = vec![name("cache"), name("payroll")]),
        &["to itself"],
    );
}

#[test]
fn an_affinity_names_each_election_once_and_sixteen_at_most() {
    refused(
        &with(|config| config.affinity = vec![name("cache"), name("queue"), name("cache")]),
        &["each election of an affinity once, found cache twice"],
    );
    let several = |count: usize| {
        let numbered = (0..count).map(|number| name(&format!("other-{number}")));
        with(|config| config.affinity = numbered.collect())
    };
    good(&several(Config::AFFINITIES_MAX));
    refused(
        &several(Config::AFFINITIES_MAX + 1),
        &["at most 16 elections in an affinity, found 17"],
    );
}

#[test]
fn a_time_table_is_in_order_for_every_good_configuration() {
    let start = Instant::from_nanos(5_000_000_000);
    for lease in [863, 1_000, 2_000, 7_777, 10_000, 604_800_000] {
        let config = with(|config| *config = config.clone().with_lease(ms(lease)));
        let grant = Grant::new(start, &config);
        assert!(grant.start < grant.drain_at, "{grant:?}");
        assert!(grant.drain_at <= grant.kill_at, "{grant:?}");
        assert!(grant.kill_at <= grant.valid_until, "{grant:?}");
        let judged_over = start.after(config.drift.lengthen(config.lease));
        assert!(grant.valid_until < judged_over, "{grant:?}");
        assert!(grant.is_valid(grant.valid_until.before(NANO)));
        assert!(!grant.is_valid(grant.valid_until));
    }
}

#[test]
fn a_priority_is_0_to_10_and_waits_2_percent_a_step() {
    assert_eq!(Priority::new(11), None);
    let waits = |priority| Priority::new(priority).map(|priority| priority.wait(ms(10_000)));
    assert_eq!(waits(10), Some(Duration::ZERO));
    assert_eq!(waits(9), Some(ms(200)));
    assert_eq!(waits(0), Some(ms(2_000)));
}
