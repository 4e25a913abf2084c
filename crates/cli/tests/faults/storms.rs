//! Storms: short ones always, long ones when they are asked for.

use std::time::Duration;

use crate::network::Network;
use crate::room::within;
use crate::storm::{Report, storm};

/// A storm that lasts so long has faults of every kind.
const ALL_KINDS_FROM: Duration = Duration::from_secs(180);

/// How long a storm lasts, and from what it is drawn: short and always the
/// same, unless `TENURE_FAULTS_SECONDS` and `TENURE_FAULTS_SEED` say other.
fn asked() -> (Duration, u64) {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(
            text.parse()
                .unwrap_or_else(|_| panic!("{name}: expected a number, found {text:?}")),
        )
    };
    let seconds = number("TENURE_FAULTS_SECONDS").unwrap_or(18);
    let seed = number("TENURE_FAULTS_SEED").unwrap_or(1);
    (Duration::from_secs(seconds), seed)
}

/// A storm in which nothing happened proves nothing.
fn assert_stormy(report: &Report, lasted: Duration) {
    let faults: u64 = report.faults.values().sum();
    let wanted = lasted.as_secs() / 4;
    assert!(faults >= wanted, "expected {wanted} faults, found {faults}");
    if lasted >= ALL_KINDS_FROM {
        let missing = |kind: &&&str| !report.faults.contains_key(**kind);
        let missing: Vec<_> = report.kinds.iter().filter(missing).collect();
        assert!(missing.is_empty(), "there was none of {missing:?}");
    }
    assert!(report.faults.len() >= 4, "{:?}", report.faults);
    assert!(report.terms > 1, "nobody else came to lead");
    let counts = &report.counts;
    let seconds = lasted.as_secs();
    // Enough for the checkers to have something to judge between two faults.
    assert!(counts.done > 20 * seconds, "{counts:?}");
    assert!(counts.appended > 20 * seconds, "{counts:?}");
}

#[test]
fn three_servers_with_a_network_that_the_kernel_cuts() {
    let name = "storms::three_servers_with_a_network_that_the_kernel_cuts";
    within(name, async |room| {
        let (lasting, seed) = asked();
        let network = Network::best(room, 3).await;
        let report = storm(seed, 3, (room, network), lasting).await;
        assert_stormy(&report, lasting);
    });
}

#[test]
fn five_servers_with_streams_that_stall_and_break() {
    let name = "storms::five_servers_with_streams_that_stall_and_break";
    within(name, async |room| {
        let (lasting, seed) = asked();
        let network = Network::proxied(room, 5).await;
        let report = storm(seed, 5, (room, network), lasting).await;
        assert_stormy(&report, lasting);
    });
}
