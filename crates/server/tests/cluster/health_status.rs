//! What a server says of itself: how old what it has is, and how it stands.

use tenure::clock;
use tenure::core::time::Instant;
use tenure_api::v1;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::cases::{admit, remove};
use crate::servers::{PATIENCE, Servers, again, cause};

/// What `age_millis` says of a state that may be of any age.
const ANY_AGE: u64 = u64::MAX;

async fn try_read(
    servers: &Servers,
    number: u64,
    stale: bool,
) -> Result<v1::ReadResponse, tonic::Status> {
    let request = v1::ReadRequest {
        key: "a".into(),
        stale,
    };
    let answer = servers.registers(number).await.read(request).await;
    answer.map(tonic::Response::into_inner)
}

async fn age(servers: &Servers, number: u64) -> u64 {
    let answer = try_read(servers, number, true).await;
    answer.expect("an answer").age_millis
}

fn millis(since: Instant) -> u64 {
    u64::try_from(clock::boot().since(since).as_millis()).expect("a short test")
}

/// It is as old as the last moment at which a majority has confirmed it, from
/// when its followers are gone, and not by the time that it has led before.
#[tokio::test]
async fn a_leader_that_loses_its_followers_grows_old_from_then_on() {
    let mut servers = Servers::found(3, 0);
    // A read that is not stale has a round of its own, which begins after
    // this moment. Who leads may be another by the time it is asked.
    let confirmed = clock::boot();
    let leader = loop {
        let leader = servers.leader().await;
        match try_read(&servers, leader, false).await {
            Ok(answer) => {
                assert_eq!(answer.age_millis, 0);
                break leader;
            }
            Err(status) => assert!(again(&status), "{status}"),
        }
    };
    assert!(age(&servers, leader).await <= millis(confirmed));

    for other in (1..=3).filter(|number| *number != leader) {
        servers.stop(other).await;
    }
    let alone = clock::boot();
    // Be it that it still leads or that it has noticed.
    loop {
        let leads = servers.running[&leader].health_status().borrow().leads;
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
    let first = loop {
        let first = servers.leader().await;
        let mut cluster = servers.cluster(first).await;
        let moved = cluster.transfer(v1::TransferRequest { to: None }).await;
        // It may have lost leadership before it was asked, or may not have
        // found anybody in time who could have it.
        match moved.map_err(|status| cause(&status)) {
            Ok(_) => break first,
            Err(v1::Cause::NotLeader | v1::Cause::NotReady | v1::Cause::NotHandedOver) => {}
            Err(other) => panic!("{other:?}"),
        }
    };
    servers.until(first, |it| it.ready && !it.leads).await;
    servers.append("in the second term").await;
    let second = servers.leader().await;
    for number in (1..=3).filter(|number| *number != second) {
        servers.entries(number, 1).await;
        let (found, most) = (age(&servers, number).await, millis(before));
        assert!(found <= most, "server {number}: {found} of {most} ms");
    }
}

/// By gRPC and in JSON: where a server would stand in an election, and how
/// far it is behind, which is nothing that one without a leader can say.
#[tokio::test]
async fn a_server_says_its_rank_and_how_far_it_is_behind() {
    let mut servers = Servers::found(3, 0);
    let entry = servers.append("something").await;
    let leader = servers.leader().await;
    for number in 1..=3 {
        servers.entries(number, 1).await;
        let caught_up = async {
            loop {
                let seen = status(&servers, number).await;
                if seen.lag == Some(0) {
                    return seen;
                }
            }
        };
        let seen = tokio::time::timeout(PATIENCE, caught_up).await;
        let seen = seen.expect("it knows that nothing is missing");
        let wanted = v1::Rank {
            last_log_term: seen.last_log_term,
            last_log_id: seen.last_log_id,
            server: number,
        };
        assert_eq!(seen.rank, Some(wanted));
        assert!(seen.last_log_id > entry && seen.last_log_term > 0);
        let caught_up = async {
            loop {
                let seen = json_status(&servers, number).await;
                if seen["lag"] == 0 {
                    return seen;
                }
            }
        };
        let json = tokio::time::timeout(PATIENCE, caught_up).await;
        let json = json.expect("it knows that nothing is missing");
        assert_eq!(json["rank"]["server"], number, "{json}");
        assert_eq!(json["rank"]["last_log_id"], json["last_log_id"], "{json}");
    }
    let other = leader % 3 + 1;
    for gone in (1..=3).filter(|number| *number != other) {
        servers.stop(gone).await;
    }
    servers.until(other, |it| it.leader.is_none()).await;
    let seen = status(&servers, other).await;
    assert_eq!(seen.lag, None);
    assert_eq!(seen.rank.map(|rank| rank.server), Some(other));
    let json = json_status(&servers, other).await;
    assert!(json["lag"].is_null(), "{json}");
}

async fn status(servers: &Servers, number: u64) -> v1::StatusResponse {
    let mut cluster = servers.cluster(number).await;
    let status = cluster.status(v1::StatusRequest::default()).await;
    status.expect("a status").into_inner()
}

async fn get(servers: &Servers, number: u64, path: &str) -> String {
    let stream = TcpStream::connect(servers.running[&number].address()).await;
    let mut stream = stream.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    text
}

async fn json_status(servers: &Servers, number: u64) -> serde_json::Value {
    let text = get(servers, number, "/v1/cluster/status").await;
    let body = text.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).expect("JSON")
}

async fn metrics(servers: &Servers, number: u64) -> String {
    let request = v1::MetricsRequest {};
    let answer = servers.cluster(number).await.metrics(request).await;
    answer.expect("metrics").into_inner().text
}

/// Nobody sends the entry that removes a server to that server: it hears of
/// it from those that it is connected to, at once; and from those that it
/// meets, if it was away.
#[tokio::test]
async fn a_server_that_was_removed_learns_it_and_says_what_to_do() {
    let mut servers = Servers::found(3, 0);
    let leader = servers.leader().await;
    let all: Vec<_> = (1..=3).filter(|number| *number != leader).collect();
    let [awake, away] = all[..] else {
        unreachable!()
    };
    servers.append("kept").await;
    assert_eq!(servers.entries(awake, 1).await, ["kept"]);
    assert!(metrics(&servers, awake).await.contains("tenure_removed 0"));

    remove(&servers, awake).await;
    let stands = servers.until(awake, |it| it.removed).await;
    assert!(!stands.ready && stands.alive, "{stands:?}");
    let shown = status(&servers, awake).await;
    let again = format!("tenure member add {awake} --storage {}", shown.storage);
    assert!(stands.waiting.contains(&again), "{}", stands.waiting);
    assert!(shown.removed && !shown.ready, "{shown:?}");
    assert_eq!(shown.waiting, stands.waiting);
    assert!(metrics(&servers, awake).await.contains("tenure_removed 1"));
    let said = get(&servers, awake, "/readyz").await;
    assert!(said.contains(" 503 ") && said.contains(&again), "{said}");

    // The other one is away, and removed when the first is back.
    admit(&servers, awake).await;
    let stands = servers.until(awake, |it| it.ready).await;
    assert!(!stands.removed, "{stands:?}");
    servers.stop(away).await;
    remove(&servers, away).await;
    servers.append("without").await;
    servers.start(away);
    let stands = servers.until(away, |it| it.removed).await;
    let again = format!("tenure member add {away} --storage");
    assert!(stands.waiting.contains(&again), "{}", stands.waiting);
    servers.until(awake, |it| it.ready && !it.removed).await;
}
