//! Data directories that were set back to an earlier copy, or of which there
//! are two; and rightful starts, which look much the same.

use std::fs;
use std::path::Path;

use tenure_api::v1;
use tenure_server::Server;

use crate::cases::{admit, remove};
use crate::servers::{Servers, id, ports};

/// Copies a directory with all that is in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        // The server that uses it may rename and remove files meanwhile.
        let _ = fs::copy(entry.path(), to.join(entry.file_name()));
    }
}

/// Puts a copy in the place of a directory.
fn put_back(copied: &Path, data: &Path) {
    fs::remove_dir_all(data).expect("removed");
    copy(copied, data);
}

/// The cluster's version, and what a server has on its disk.
async fn last(servers: &Servers, number: u64) -> (u64, u64) {
    let mut cluster = servers.cluster(number).await;
    let status = cluster.status(v1::StatusRequest::default()).await;
    let status = status.expect("a status").into_inner();
    (status.cluster_version, status.durable)
}

/// Two servers that follow the leader.
fn followers(leader: u64) -> [u64; 2] {
    [leader % 3 + 1, (leader + 1) % 3 + 1]
}

#[tokio::test]
async fn a_directory_that_was_set_back_counts_for_nothing_and_says_what_to_do() {
    let mut servers = Servers::found(3, 0);
    servers.append("before").await;
    let [old, other] = followers(servers.leader().await);
    servers.entries(old, 1).await;
    servers.stop(old).await;
    let copied = servers.dir.path().join("copied");
    copy(&servers.data(old), &copied);
    servers.start(old);
    servers.append("after").await;
    assert_eq!(servers.entries(old, 2).await, ["before", "after"]);
    servers.stop(old).await;

    put_back(&copied, &servers.data(old));
    servers.start(old);
    let stands = servers.until(old, |it| it.set_back).await;
    assert!(!stands.ready && !stands.leads && stands.alive, "{stands:?}");
    for part in [
        format!("of server {old}"),
        format!("tenure member remove {old}"),
        format!("tenure member add {old} --storage"),
        format!("tenure member promote {old}"),
    ] {
        assert!(stands.waiting.contains(&part), "{part}: {}", stands.waiting);
    }
    // With one more server gone there is no majority: it does not count.
    servers.stop(other).await;
    let leader = 6 - old - other;
    servers.until(leader, |it| it.leader.is_none()).await;
    // Its counter grows with each start; what was found stays found.
    for _ in 0..3 {
        servers.stop(old).await;
        servers.start(old);
        servers.until(old, |it| it.set_back && !it.ready).await;
    }
    assert_eq!(
        servers.running[&leader].health_status().borrow().leader,
        None
    );
    servers.start(other);
    servers.until(other, |it| it.ready).await;

    // What it says to do.
    servers.stop(old).await;
    remove(&servers, old).await;
    fs::remove_dir_all(servers.data(old)).expect("removed");
    servers.start(old);
    servers
        .until(old, |it| it.waiting.contains("member add"))
        .await;
    admit(&servers, old).await;
    servers.until(old, |it| it.ready && !it.set_back).await;
    assert_eq!(servers.entries(old, 2).await, ["before", "after"]);
}

#[tokio::test]
async fn a_second_process_waits_for_the_first_and_then_goes_before_it() {
    let mut servers = Servers::found(3, 1);
    servers.append("before").await;
    let [first, other] = followers(servers.leader().await);
    servers.entries(first, 1).await;
    let copied = servers.dir.path().join("copied");
    // Nothing is written while it is copied: else it would be an earlier one.
    loop {
        let leader = servers.leader().await;
        let before = last(&servers, leader).await;
        if last(&servers, first).await == before {
            copy(&servers.data(first), &copied);
            if last(&servers, leader).await == before && before.0 >= 2 {
                break;
            }
            fs::remove_dir_all(&copied).expect("removed");
        }
        tokio::task::yield_now().await;
    }
    let [peer, client] = ports();
    let mut twin = servers.configs[&first].clone();
    twin.data = copied;
    twin.peers.insert(id(first), format!("127.0.0.1:{peer}"));
    twin.listen = format!("127.0.0.1:{client}");
    // As server 4 for this test, since another is server `first`.
    servers
        .running
        .insert(4, Server::start(twin).expect("it starts"));
    let stands = servers
        .until(4, |it| it.waiting.contains("found a second one"))
        .await;
    assert!(!stands.ready && !stands.set_back, "{stands:?}");
    let health_status = servers.running[&first].health_status().borrow().clone();
    assert!(health_status.ready, "{health_status:?}");

    servers.stop(first).await;
    servers.until(4, |it| it.ready).await;
    // It counts: with one of the others gone there is a majority.
    servers.stop(other).await;
    let twin = servers.running.remove(&4).expect("it runs");
    servers.running.insert(first, twin);
    servers.append("after").await;
    let original = Server::start(servers.configs[&first].clone());
    servers.running.insert(4, original.expect("it starts"));
    let stands = servers.until(4, |it| it.set_back).await;
    assert!(!stands.ready, "{stands:?}");
    servers.stop(4).await;
    servers.append("later").await;
}

/// What changes no promise is no reason to refuse anybody.
#[tokio::test]
async fn rightful_starts_are_let_in() {
    let mut servers = Servers::found(3, 0);
    for round in 0..3 {
        let written = format!("round {round}");
        servers.append(&written).await;
        // One after the other, at once.
        for number in 1..=3 {
            servers.stop(number).await;
            servers.start(number);
            servers.leader().await;
        }
        // All of them.
        for number in 1..=3 {
            servers.stop(number).await;
        }
        for number in 1..=3 {
            servers.start(number);
        }
        let leader = servers.leader().await;
        assert_eq!(servers.entries(leader, round + 1).await[round], written);
    }
    // A directory that was moved, with the server off, is the same one.
    let moved = servers.dir.path().join("moved");
    servers.stop(2).await;
    fs::rename(servers.data(2), &moved).expect("moved");
    let [peer, client] = ports();
    let mut config = servers.configs[&2].clone();
    config.data = moved;
    config.peers.insert(id(2), format!("127.0.0.1:{peer}"));
    config.listen = format!("127.0.0.1:{client}");
    servers.configs.insert(2, config);
    servers.start(2);
    servers.until(2, |it| it.ready).await;
}

/// More servers greet than the book has room for; a member that is added
/// after them is dialled and promoted.
#[tokio::test]
async fn members_always_have_room_in_the_book() {
    let mut servers = Servers::found(1, 1);
    servers.append("kept").await;
    for stranger in 100..170 {
        let [peer, client] = ports();
        let mut config = servers.configs[&2].clone();
        config.id = id(stranger);
        config.data = servers.dir.path().join(stranger.to_string());
        config.listen = format!("127.0.0.1:{client}");
        config.peers.remove(&id(2));
        config
            .peers
            .insert(id(stranger), format!("127.0.0.1:{peer}"));
        let server = Server::start(config).expect("it starts");
        servers.running.insert(stranger, server);
        // It has greeted, and heard that it is no member.
        servers
            .until(stranger, |it| it.waiting.contains("member add"))
            .await;
        servers.stop(stranger).await;
    }
    servers.start(2);
    servers
        .until(2, |it| it.waiting.contains("member add"))
        .await;
    admit(&servers, 2).await;
    servers.until(2, |it| it.ready).await;
    assert_eq!(servers.entries(2, 1).await, ["kept"]);
}
