//! Servers whose clocks tell another time, by namespaces of the kernel's.
//!
//! The clock that counts for a server is the one that runs since boot. In a
//! namespace of time it is days ahead, as on a machine that was up longer.
//! Whoever leads stamps entries by it, sessions and leases are judged by those
//! stamps, and the stamps must go on as real time does, whoever takes over.

use std::time::{Duration, Instant};

use tenure::core::ids::Key;
use tenure::log::Client;

use crate::load::Load;
use crate::network::Network;
use crate::room::{can, sh, within};
use crate::servers::{Servers, until};
use crate::storm::{end_of_log, equal};

/// By server: seconds that its clock is ahead.
const AHEAD: [(u64, u64); 2] = [(2, 3_600), (3, 30_000_000)];

/// How far a server's clock is ahead of this process', by what a program in
/// its namespace reads.
fn ahead(servers: &Servers, server: u64) -> f64 {
    let seconds = |text: String| text.split(' ').next().and_then(|it| it.parse().ok());
    let pid = servers.pid(server);
    let theirs = sh(&format!(
        "nsenter --time=/proc/{pid}/ns/time cat /proc/uptime"
    ));
    let ours = sh("cat /proc/uptime");
    let [theirs, ours]: [Option<f64>; 2] = [theirs, ours].map(seconds);
    theirs.expect("a number") - ours.expect("a number")
}

#[test]
fn clocks_that_are_a_year_apart() {
    let name = "clocks::clocks_that_are_a_year_apart";
    within(name, async |room| {
        if !can("unshare --time --boottime 1000 true") {
            eprintln!("\n*** {name}: LEFT OUT, clocks cannot be moved here\n");
            return;
        }
        let mut servers = Servers::new(3, Network::best(room, 3).await);
        for (server, seconds) in AHEAD {
            let seconds = seconds.to_string();
            let words = ["unshare", "--time", "--monotonic", &seconds];
            let prefix = [&words[..], &["--boottime", &seconds]].concat();
            servers.wrap(server, &prefix, &[]);
        }
        (1..=3).for_each(|server| servers.start(server));
        servers.leader().await;
        for (server, seconds) in AHEAD {
            let found = ahead(&servers, server);
            assert!(
                (found - seconds as f64).abs() < 5.0,
                "server {server}: {found} s"
            );
        }
        let url = servers.url();
        let load = Load::start(&url, 19, Duration::from_millis(10));
        let client = Client::open(&url).expect("a client");
        let (begun, first) = (Instant::now(), now(&client).await);
        // Each leads, is killed, and is followed by another.
        for leader in [1, 2, 3, 2] {
            until("the hand-over", async || {
                if servers.leads().await == Some(leader) {
                    return Some(());
                }
                let _ = client.transfer(Some(leader)).await;
                None
            })
            .await;
            let passed = Duration::from_nanos(now(&client).await - first);
            let real = begun.elapsed() + Duration::from_millis(500);
            assert!(
                passed <= real,
                "{leader} leads: {passed:?} of the log in {real:?}"
            );
            servers.kill(leader);
            servers.leader().await;
            servers.start(leader);
        }
        let passed = Duration::from_nanos(now(&client).await - first);
        eprintln!("  {passed:?} of the log's time in {:?}", begun.elapsed());
        assert!(
            passed > begun.elapsed() / 4,
            "the log's time stood still: {passed:?}"
        );
        let (record, log) = load
            .end(async |record| end_of_log(&url, record).await)
            .await;
        equal(&servers).await;
        let verdict = record
            .copy()
            .judge(&log)
            .unwrap_or_else(|why| panic!("{why}"));
        eprintln!("  {verdict}");
    });
}

/// The log's time, by a read that is up to date.
async fn now(client: &Client) -> u64 {
    let key = Key::new("faults/clock").expect("a good key");
    let read = until("a read", async || client.read(&key).await.ok()).await;
    read.now.expect("the log's time").nanos
}
