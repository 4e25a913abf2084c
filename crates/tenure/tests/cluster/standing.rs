//! What a server says of itself: how old what it has is, and how it stands.

use tenure::api::v1;
use tenure::clock;
use tenure::core::time::Instant;

use crate::servers::Servers;

/// What `age_millis` says of a state that may be of any age.
const ANY_AGE: u64 = u64::MAX;

async fn read(servers: &Servers, number: u64, stale: bool) -> v1::ReadResponse {
    let request = v1::ReadRequest {
        key: "a".into(),
        stale,
    };
    let answer = servers.registers(number).await.read(request).await;
    answer.expect("an answer").into_inner()
}

async fn age(servers: &Servers, number: u64) -> u64 {
    read(servers, number, true).await.age_millis
}

fn millis(since: Instant) -> u64 {
    u64::try_from(clock::boot().since(since).as_millis()).expect("a short test")
}

/// It is as old as the last moment at which a majority has confirmed it, from
/// when its followers are gone, and not by the time that it has led before.
#[tokio::test]
async fn a_leader_that_loses_its_followers_grows_old_from_then_on() {
    let mut servers = Servers::found(3, 0);
    let leader = servers.leader().await;
    // A read that is not stale has a round of its own, which begins after
    // this moment.
    let confirmed = clock::boot();
    assert_eq!(read(&servers, leader, false).await.age_millis, 0);
    assert!(age(&servers, leader).await <= millis(confirmed));

    for other in (1..=3).filter(|number| *number != leader) {
        servers.stop(other).await;
    }
    let alone = clock::boot();
    // Be it that it still leads or that it has noticed.
    loop {
        let leads = servers.running[&leader].standing().borrow().leads;
        let least = millis(alone);
        let found = age(&servers, leader).await;
        let most = millis(confirmed);
        // Each is cut off below the millisecond.
        assert!(
            (least..=most + 1).contains(&(found + 1)),
            "expected {least} to {most} ms, found {found} ms; it leads: {leads}"
        );
        if !leads {
            break;
        }
    }
    // Started again it knows what it has, and not how old that is.
    servers.stop(leader).await;
    servers.start(leader);
    servers
        .until(leader, |it| it.waiting.contains("no leader"))
        .await;
    assert_eq!(age(&servers, leader).await, ANY_AGE);
}

/// Who follows is as new as its leader's last word, and so is who has led
/// and follows now.
#[tokio::test]
async fn a_server_that_follows_is_as_new_as_its_leaders_last_word() {
    let servers = Servers::found(3, 0);
    let before = clock::boot();
    let first = servers.leader().await;
    let mut cluster = servers.cluster(first).await;
    let moved = cluster.transfer(v1::TransferRequest { to: None }).await;
    moved.expect("handed over");
    servers.until(first, |it| it.ready && !it.leads).await;
    servers.append("in the second reign").await;
    let second = servers.leader().await;
    for number in (1..=3).filter(|number| *number != second) {
        servers.entries(number, 1).await;
        let (found, most) = (age(&servers, number).await, millis(before));
        assert!(found <= most, "server {number}: {found} of {most} ms");
    }
}
