//! Disks that are full, slow, or fail to sync.
//!
//! How they are made so is in `faulty`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure_client::{Client, Error};

use crate::faulty::{resize, small_disk, strace, traceable};
use crate::healed::{end_of_log, equal, write};
use crate::load::Load;
use crate::network::Network;
use crate::room::{Room, within};
use crate::servers::{Servers, TENURE, until};

/// Room for the first two segments of the log, a short one and one of 64 MiB,
/// and for no third.
const SMALL: &str = "100m";
const LARGE: &str = "400m";
/// How large the entries are that fill it.
const ENTRY: usize = 512 * 1024;

/// Appends large entries until `over`; gives those that were acknowledged.
async fn fill(url: &str, mut over: impl FnMut() -> bool) -> Vec<u64> {
    let client = Client::open(url).expect("a client");
    let client = client.with_timeout(Duration::from_secs(3));
    let mut numbers = Vec::new();
    for mark in 0_u8.. {
        if over() {
            break;
        }
        match client.append(vec![mark; ENTRY]).await {
            Ok(number) => numbers.push(number),
            Err(Error::Unknown(_) | Error::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(mark < 250, "the disk does not fill");
    }
    client.close().await;
    numbers
}

fn left_out(test: &str, why: &str) {
    eprintln!("\n*** {test}: LEFT OUT, {why}\n");
}

#[test]
fn a_disk_that_is_full_stops_its_server_and_no_other() {
    let name = "disks::a_disk_that_is_full_stops_its_server_and_no_other";
    within(name, async |room| {
        if room == Room::Shared {
            return left_out(name, "a small file system cannot be mounted");
        }
        let mut servers = Servers::new(3, Network::best(room, 3).await);
        small_disk(&mut servers, 1, SMALL);
        (1..=3).for_each(|server| servers.start(server));
        servers.leader().await;
        let url = servers.url();
        let load = Load::start(&url, 11, Duration::from_millis(20));
        // Its disk fills up as the others' do, but is smaller.
        let mut ended = None;
        let big = fill(&url, || {
            ended = servers.try_ended(1);
            ended.is_some()
        })
        .await;
        assert!(!ended.expect("it has").success());
        let said = servers.log(1);
        assert!(said.contains("free some space"), "{said}");
        write(&url).await;
        resize(1, LARGE);
        servers.start(1);
        let (record, log) = load
            .end(async |record| end_of_log(&url, record).await)
            .await;
        equal(&servers).await;
        let log: Vec<_> = log
            .into_iter()
            .filter(|(n, it)| !is_big(*n, it, &big))
            .collect();
        judge_without(&record.copy(), log);
    });
}

/// Whether it is one of those that `fill` appended, acknowledged or not.
fn is_big(number: u64, data: &[u8], acknowledged: &[u64]) -> bool {
    let big = data.len() == ENTRY;
    assert!(big || !acknowledged.contains(&number), "{number} was lost");
    big
}

/// Judges what clients of the load were told by a log from which other
/// entries were taken out: numbers are moved together in both.
fn judge_without(inner: &crate::record::Inner, log: crate::record::Log) {
    let mut inner = inner.clone();
    let places: std::collections::BTreeMap<u64, u64> =
        log.iter().map(|(number, _)| *number).zip(1..).collect();
    for append in inner.appends.values_mut() {
        if let Some((_, number)) = &mut append.answered {
            *number = *places.get(number).expect("what was acknowledged is there");
        }
    }
    let log = log.into_iter().map(|(_, data)| data);
    let log = (1..).zip(log).collect();
    let verdict = inner.judge(&log).unwrap_or_else(|why| panic!("{why}"));
    eprintln!("  {verdict}");
}

/// There is room for the log and its spare segment, or for a snapshot.
#[test]
fn a_snapshot_takes_the_room_of_the_spare_segment() {
    const SMALL: &str = "170m";
    let name = "disks::a_snapshot_takes_the_room_of_the_spare_segment";
    within(name, async |room| {
        if room == Room::Shared {
            return left_out(name, "a small file system cannot be mounted");
        }
        let mut servers = Servers::new(3, Network::best(room, 3).await);
        small_disk(&mut servers, 1, SMALL);
        (1..=3).for_each(|server| servers.start(server));
        servers.leader().await;
        let url = servers.url();
        let mut large = 0..;
        fill(&url, || large.next() == Some(100)).await;
        equal(&servers).await;
        let spare = Path::new("/mnt/1/data/spare");
        let is_whole = |it: std::fs::Metadata| it.len() == 64 * 1024 * 1024;
        let made = async || spare.metadata().is_ok_and(is_whole).then_some(());
        until("the spare segment", made).await;
        let mut snapshot = Command::new(TENURE);
        snapshot.args(["snapshot", "--store", &url]);
        let said = tokio::task::block_in_place(|| snapshot.output()).expect("it runs");
        let errors = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{errors}");
        assert!(!spare.exists(), "there was room for both");
        write(&url).await;
        equal(&servers).await;
    });
}

#[test]
fn disks_that_are_all_full_lose_nothing() {
    let name = "disks::disks_that_are_all_full_lose_nothing";
    within(name, async |room| {
        if room == Room::Shared {
            return left_out(name, "small file systems cannot be mounted");
        }
        let mut servers = Servers::new(3, Network::best(room, 3).await);
        for server in servers.ids() {
            small_disk(&mut servers, server, SMALL);
            servers.start(server);
        }
        servers.leader().await;
        let url = servers.url();
        let mut gone = Vec::new();
        let big = fill(&url, || {
            for server in 1..=3 {
                if servers.running.contains_key(&server) && servers.try_ended(server).is_some() {
                    gone.push(server);
                }
            }
            gone.len() >= 2
        })
        .await;
        for server in servers.ids() {
            resize(server, LARGE);
            if gone.contains(&server) {
                servers.start(server);
            }
        }
        write(&url).await;
        // One that still ran may have ended meanwhile.
        for server in servers.ids() {
            if !gone.contains(&server) && servers.try_ended(server).is_some() {
                servers.start(server);
            }
        }
        equal(&servers).await;
        let client = Client::open(&url).expect("a client");
        let mut kept = 0;
        for number in &big {
            match client.read_log(*number, 1).await {
                Ok(found) => {
                    assert_eq!((found[0].number, found[0].data.len()), (*number, ENTRY));
                    kept += 1;
                }
                // Of the log 64 MiB are kept; it was trimmed, not lost.
                Err(Error::Compacted { first }) => assert!(*number < first, "{number}"),
                Err(other) => panic!("{number}: {other}"),
            }
        }
        assert!(kept > 10 && kept * 2 > big.len(), "{kept} of {}", big.len());
        eprintln!(
            "  {} entries acknowledged, {kept} kept and there; {gone:?} stopped",
            big.len()
        );
    });
}

/// The median of so many writes, one after the other.
async fn median_write(url: &str) -> Duration {
    let client = Client::open(url).expect("a client");
    let mut times = Vec::new();
    for _ in 0..60 {
        let begun = Instant::now();
        client.append("x").await.expect("appended");
        times.push(begun.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

/// What a small write and a sync take here.
fn median_sync() -> Duration {
    use std::io::Write as _;
    let mut file = tempfile::tempfile().expect("a file");
    let mut times: Vec<_> = (0..20)
        .map(|_| {
            let begun = Instant::now();
            file.write_all(&[7; 512]).expect("room");
            file.sync_data().expect("a disk");
            begun.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

#[test]
fn one_slow_disk_slows_nobody_down() {
    let name = "disks::one_slow_disk_slows_nobody_down";
    /// How much longer each sync of the slow one takes, at least.
    const SLOWER: Duration = Duration::from_millis(60);
    within(name, async |room| {
        if !traceable() {
            return left_out(name, "strace is not there, or may not trace");
        }
        // Where all disks are slow it is slower by so much that it stands out.
        let slower = SLOWER.max(median_sync() * 5);
        let mut servers = Servers::new(3, Network::best(room, 3).await);
        strace(
            &mut servers,
            1,
            &format!("delay_enter={}", slower.as_micros()),
        );
        (1..=3).for_each(|server| servers.start(server));
        servers.leader().await;
        let url = servers.url();
        let client = Client::open(&url).expect("a client");
        for leader in [2, 1] {
            // A machine that stands still deposes a leader too, but not each time.
            let mut tries = 0;
            let median = loop {
                tries += 1;
                until("the hand-over", async || {
                    if servers.leads().await == Some(leader) {
                        return Some(());
                    }
                    let _ = client.transfer(Some(leader)).await;
                    None
                })
                .await;
                let median = median_write(&url).await;
                if servers.leader().await == leader {
                    break median;
                }
                assert!(tries < 4, "server {leader} is deposed each time");
            };
            eprintln!("  the slow one is server 1, {leader} leads: median write {median:?}");
            // Two others are a majority, whichever server leads.
            assert!(median < slower, "{median:?}, server {leader} leads");
        }
        let syncs = servers.metric(1, "tenure_disk_sync_seconds_count").await;
        let took = servers.metric(1, "tenure_disk_sync_seconds_sum").await;
        assert!(
            took / syncs >= slower.as_secs_f64(),
            "{syncs} syncs took {took} s: not slow"
        );
        equal(&servers).await;
    });
}

#[test]
fn a_sync_that_fails_stops_its_server_and_loses_nothing() {
    let name = "disks::a_sync_that_fails_stops_its_server_and_loses_nothing";
    within(name, async |room| {
        if !traceable() {
            return left_out(name, "strace is not there, or may not trace");
        }
        let mut servers = Servers::new(3, Network::best(room, 3).await);
        strace(&mut servers, 2, "error=EIO:when=200+");
        (1..=3).for_each(|server| servers.start(server));
        servers.leader().await;
        let url = servers.url();
        let load = Load::start(&url, 13, Duration::from_millis(10));
        let status = servers.ended(2).await;
        assert!(!status.success(), "{status}");
        let said = servers.log(2);
        assert!(said.contains("Input/output error"), "{said}");
        write(&url).await;
        servers.wrap(2, &[], &[]);
        servers.start(2);
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
