//! What a cluster does.

use tenure_api::v1;

use crate::servers::{Servers, cause, error, id};

fn swap(key: &str, expect: Option<u64>, value: &str) -> v1::Swap {
    v1::Swap {
        key: key.into(),
        expect,
        value: value.to_owned().into(),
        ..v1::Swap::default()
    }
}

fn read(key: &str) -> v1::ReadRequest {
    v1::ReadRequest {
        key: key.into(),
        stale: false,
    }
}

#[tokio::test]
async fn three_servers_found_a_cluster_and_keep_registers() {
    let servers = Servers::found(3, 0);
    let version = servers.write(swap("a", None, "one")).await;
    let again = v1::CompareAndSwapRequest {
        swap: Some(swap("a", None, "two")),
        numbered: None,
    };
    let again = loop {
        let leader = servers.leader().await;
        let mut registers = servers.registers(leader).await;
        match registers.compare_and_swap(again.clone()).await {
            Ok(answer) => break answer.into_inner(),
            Err(status) => assert!(crate::servers::again(&status), "{status}"),
        }
    };
    assert!(!again.swapped);
    let found = servers.read("a").await;
    let register = found.register.expect("it is there");
    assert_eq!(
        (&register.value[..], register.version),
        (&b"one"[..], version)
    );
    // The log's time goes on although nothing is written.
    let stamp = register.stamp.expect("stamped").nanos;
    assert!(found.now.expect("a time").nanos >= stamp);

    // A server that does not lead says which one does; another may lead by
    // then.
    let refused = loop {
        let leader = servers.leader().await;
        let other = leader % 3 + 1;
        let answer = servers.registers(other).await.read(read("a")).await;
        let Err(refused) = answer else { continue };
        if servers.leader().await == leader {
            break (leader, error(&refused));
        }
    };
    let (leader, refused) = refused;
    assert_eq!(refused.cause(), v1::Cause::NotLeader);
    assert_eq!(refused.leader, Some(leader));
    assert_eq!(refused.leader_address, servers.configs[&leader].listen);
}

#[tokio::test]
async fn health_is_told_of_each_service_by_name() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    let servers = Servers::found(1, 0);
    servers.leader().await;
    let mut health = HealthClient::new(servers.channel(1).await);
    for service in ["", "Registers", "Log", "Sessions", "Cluster", "Pipeline"] {
        let service = match service {
            "" => String::new(),
            name => format!("tenure.v1.{name}"),
        };
        // The watch gives one answer after the other as the server stands.
        let request = HealthCheckRequest { service };
        let mut told = health.watch(request).await.expect("known").into_inner();
        loop {
            let told = told.message().await.expect("told").expect("another");
            match told.status() {
                ServingStatus::Serving => break,
                ServingStatus::NotServing => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let service = "tenure.v1.Nothing".to_owned();
    let unknown = health.check(HealthCheckRequest { service }).await;
    let code = unknown.expect_err("no such service").code();
    assert_eq!(code, tonic::Code::NotFound);
}

#[tokio::test]
async fn a_leader_that_is_stopped_hands_over_and_nothing_is_lost() {
    let mut servers = Servers::found(3, 0);
    let mut wanted = Vec::new();
    for round in 0..4 {
        let data = format!("entry {round}");
        servers.append(&data).await;
        wanted.push(data);
        let leader = servers.leader().await;
        servers.stop(leader).await;
        let next = servers.leader().await;
        assert_ne!(next, leader);
        servers.start(leader);
        // On a busy machine another may lead by now.
        servers.until(leader, |it| it.ready).await;
    }
    for number in [1, 2, 3] {
        assert_eq!(servers.entries(number, wanted.len()).await, wanted);
    }
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_all_have_stopped() {
    let mut servers = Servers::found(3, 0);
    servers.append("kept").await;
    for number in [1, 2, 3] {
        servers.stop(number).await;
    }
    for number in [1, 2, 3] {
        servers.start(number);
    }
    servers.append("new").await;
    for number in [1, 2, 3] {
        assert_eq!(servers.entries(number, 2).await, ["kept", "new"]);
    }
}

#[tokio::test]
async fn one_server_grows_to_three_and_shrinks_again() {
    let mut servers = Servers::found(1, 2);
    let mut wanted = vec!["alone".to_owned()];
    servers.append("alone").await;
    for number in [2, 3] {
        servers.start(number);
        let waiting = servers
            .until(number, |it| it.waiting.contains("member add"))
            .await;
        assert!(!waiting.ready);
        admit(&servers, number).await;
        servers.until(number, |it| it.ready).await;
        let data = format!("with {number}");
        servers.append(&data).await;
        wanted.push(data);
        assert_eq!(servers.entries(number, wanted.len()).await, wanted);
    }
    for number in [1, 2] {
        remove(&servers, number).await;
        servers.stop(number).await;
        let data = format!("without {number}");
        servers.append(&data).await;
        wanted.push(data);
    }
    assert_eq!(servers.entries(3, wanted.len()).await, wanted);
}

/// Takes a waiting server in and lets it count.
pub(crate) async fn admit(servers: &Servers, number: u64) {
    let status = servers
        .cluster(number)
        .await
        .status(v1::StatusRequest::default())
        .await;
    let storage = status.expect("a status").into_inner().storage;
    let add = v1::AddMemberRequest {
        id: number,
        storage,
        peer_address: String::new(),
    };
    until_done(servers, number, async |mut cluster| {
        cluster.add_member(add.clone()).await.map(drop)
    })
    .await;
    until_done(servers, number, async |mut cluster| {
        let promote = v1::PromoteMemberRequest {
            id: number,
            storage: String::new(),
        };
        cluster.promote_member(promote).await.map(drop)
    })
    .await;
}

pub(crate) async fn remove(servers: &Servers, number: u64) {
    until_done(servers, 0, async |mut cluster| {
        let remove = v1::RemoveMemberRequest {
            id: number,
            storage: String::new(),
        };
        cluster.remove_member(remove).await.map(drop)
    })
    .await;
}

type Cluster = v1::cluster_client::ClusterClient<tonic::transport::Channel>;

/// Asks the leader until it is done. Those of the running servers that have
/// joined agree on a leader; `new` need not have.
async fn until_done(
    servers: &Servers,
    new: u64,
    call: impl AsyncFn(Cluster) -> Result<(), tonic::Status>,
) {
    loop {
        let old = servers
            .running
            .keys()
            .copied()
            .find(|n| *n != new)
            .expect("one");
        let health_status = servers.until(old, |it| it.ready).await;
        let leader = health_status.leader.expect("ready").get();
        if !servers.running.contains_key(&leader) {
            continue;
        }
        match call(servers.cluster(leader).await).await {
            Ok(()) => return,
            Err(status) => match cause(&status) {
                v1::Cause::NotLeader | v1::Cause::Members => {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                _ => panic!("{status}"),
            },
        }
    }
}

#[tokio::test]
async fn a_server_that_moves_is_found_again() {
    let mut servers = Servers::found(3, 0);
    servers.append("before").await;
    let [peer, client] = crate::servers::ports();
    servers.stop(2).await;
    let config = servers.configs.get_mut(&2).expect("server 2");
    config.peers.insert(id(2), format!("127.0.0.1:{peer}"));
    config.listen = format!("127.0.0.1:{client}");
    servers.start(2);
    servers.until(2, |it| it.ready).await;
    // It counts again: without it and one other there is no majority.
    let leader = servers.leader().await;
    let other = [1, 3].into_iter().find(|n| *n != leader).expect("one");
    servers.stop(if leader == 2 { 1 } else { other }).await;
    servers.append("after").await;
    assert_eq!(servers.entries(2, 2).await, ["before", "after"]);
}

#[tokio::test]
async fn a_watch_tells_every_change_from_any_server_and_goes_on_elsewhere() {
    let servers = Servers::found(3, 0);
    let mut version = servers.write(swap("x/a", None, "0")).await;
    let leader = servers.leader().await;
    let follower = (1..=3).find(|n| *n != leader).expect("three");
    let watch = v1::WatchRequest {
        prefix: "x/".into(),
        ..v1::WatchRequest::default()
    };
    let mut changes = servers.registers(follower).await.watch(watch.clone()).await;
    let mut seen = Vec::new();
    let mut revision = 0;
    for round in 1..=6 {
        let value = round.to_string();
        version = servers.write(swap("x/a", Some(version), &value)).await;
        if round == 3 {
            // Another server, from where the first had come to.
            while seen.last().is_none_or(|last| last != "3") {
                let stream = changes.as_mut().expect("a watch").get_mut();
                let message = stream.message().await.expect("told").expect("no end");
                revision = message.revision;
                seen.extend(values(message));
            }
            let resumed = v1::WatchRequest {
                after_revision: Some(revision),
                ..watch.clone()
            };
            changes = servers.registers(leader).await.watch(resumed).await;
        }
    }
    while seen.last().is_none_or(|last| last != "6") {
        let stream = changes.as_mut().expect("a watch").get_mut();
        let message = stream.message().await.expect("told").expect("no end");
        seen.extend(values(message));
    }
    let all: Vec<_> = (0..=6).map(|n| n.to_string()).collect();
    // The first is what was there when the watch began, be it 0 or later.
    assert!(all.ends_with(&seen), "{seen:?}");
}

fn values(message: v1::WatchResponse) -> impl Iterator<Item = String> {
    let changed = message.changes.into_iter();
    let registers = changed.filter_map(|changed| changed.register);
    registers.map(|register| String::from_utf8_lossy(&register.value).into_owned())
}

#[tokio::test]
async fn a_backup_begins_a_new_cluster_that_others_join() {
    let servers = Servers::found(3, 0);
    servers.append("one").await;
    servers.append("two").await;
    let leader = servers.leader().await;
    let backup = servers
        .cluster(leader)
        .await
        .backup(v1::BackupRequest {})
        .await;
    let mut parts = backup.expect("a backup").into_inner();
    let mut file = Vec::new();
    while let Some(part) = parts.message().await.expect("whole") {
        file.extend_from_slice(&part.part);
    }
    for (cut, said) in [(0, "too short"), (file.len() - 1, "cut short")] {
        let error = tenure_server::read_backup(&file[..cut]).expect_err("not whole");
        assert!(error.to_string().contains(said), "{error}");
    }
    let longer = [&file[..], b"xyz"].concat();
    let error = tenure_server::read_backup(&longer).expect_err("too long");
    assert!(
        error.to_string().contains("3 bytes behind its end"),
        "{error}"
    );
    for byte in 0..file.len() {
        let mut damaged = file.clone();
        damaged[byte] ^= 1;
        assert!(tenure_server::read_backup(&damaged).is_err(), "byte {byte}");
    }
    let (_, state) = tenure_server::read_backup(&file).expect("whole");
    drop(servers);

    let mut anew = Servers::found(0, 2);
    tenure_server::restore(state.clone(), &anew.data(1), id(1)).expect("restored");
    let again = tenure_server::restore(state, &anew.data(1), id(2));
    let used = again.expect_err("there is a log").to_string();
    assert!(used.contains("found the log of server 1"), "{used}");
    anew.start(1);
    anew.append("three").await;
    anew.start(2);
    admit(&anew, 2).await;
    anew.until(2, |it| it.ready).await;
    for number in [1, 2] {
        let entries = anew.entries_across(number, 3).await;
        assert_eq!(entries, ["one", "two", "three"]);
    }
}

#[tokio::test]
async fn metrics_tell_who_leads_and_what_was_done() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let servers = Servers::found(1, 0);
    servers.append("one").await;
    let address = servers.running[&1].address();
    let mut stream = tokio::net::TcpStream::connect(address)
        .await
        .expect("it listens");
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    for line in [
        "tenure_leads 1",
        "tenure_term 1",
        "tenure_reigns_total 1",
        "tenure_entries_next 2",
        "tenure_requests_total{result=\"Done\"} 2",
    ] {
        assert!(text.contains(line), "expected {line} in {text}");
    }
}

/// What is refused has not been done, and what has been done in part is not
/// called refused.
#[tokio::test]
async fn an_append_that_cannot_be_done_is_not_begun() {
    let servers = Servers::found(1, 0);
    servers.append("one").await;
    let request = v1::AppendRequest {
        entries: vec![b"two".to_vec().into(), vec![7; 1_100_000].into()],
        numbered: None,
    };
    let refused = servers.log(1).await.append(request).await;
    let refused = refused.expect_err("the second is too large");
    assert_eq!(cause(&refused), v1::Cause::TooLarge);
    assert_eq!(servers.append("three").await, 2, "nothing was in between");
}

/// A name that is misspelt must not be what was left out.
#[tokio::test]
async fn fields_that_nobody_knows_are_refused() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let servers = Servers::found(1, 0);
    servers.append("one").await;
    let body = r#"{"entries": ["dHdv"], "numbred": {"session": 1}}"#;
    let request = format!(
        "POST /v1/log/append HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let address = servers.running[&1].address();
    let stream = tokio::net::TcpStream::connect(address).await;
    let mut stream = stream.expect("it listens");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    assert!(text.starts_with("HTTP/1.1 400"), "{text}");
    assert!(text.contains("numbred"), "{text}");
    assert_eq!(servers.append("two").await, 2, "nothing was in between");
}

/// Whatever is wrong with a request, programs are told in one form.
#[tokio::test]
async fn every_error_over_http_is_json() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let servers = Servers::found(1, 0);
    let address = servers.running[&1].address();
    let large = " ".repeat(4 * 1024 * 1024 + 1);
    // What is wrong with these is as long as they are.
    let long = "k".repeat(1_000_000);
    let unknown = format!(r#"{{"{long}": 1}}"#);
    let key = format!(r#"{{"key": "{long}"}}"#);
    let number = format!(r#"{{"entries": "{long}"}}"#);
    for (request, body, code, cause) in [
        ("POST /v1/log/append", &*unknown, 400, "INVALID"),
        ("POST /v1/log/append", &*number, 400, "INVALID"),
        ("POST /v1/registers/read", &*key, 400, "INVALID"),
        ("POST /v1/log/append", &large, 413, "TOO_LARGE"),
        ("POST /v1/log/push", "{}", 404, "INVALID"),
        ("GET /v2", "", 404, "INVALID"),
        ("GET /v1/log/append", "", 405, "INVALID"),
        ("POST /healthz", "", 405, "INVALID"),
    ] {
        let head = format!(
            "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = tokio::net::TcpStream::connect(address).await;
        let mut stream = stream.expect("it listens");
        stream.write_all(head.as_bytes()).await.expect("sent");
        // It may be answered before all of it was sent.
        let _ = stream.write_all(body.as_bytes()).await;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("answered");
        let status = format!("HTTP/1.1 {code}");
        assert!(text.starts_with(&status), "{request}: {text}");
        let (_, json) = text.split_once("\r\n\r\n").expect("a body");
        let error: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(error["error"]["cause"], cause, "{request}: {error}");
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(message.len() <= 1_000, "{request}: {} bytes", message.len());
    }
}

#[tokio::test]
async fn a_snapshot_is_taken_when_it_is_asked_for() {
    let mut servers = Servers::found(3, 0);
    for data in ["one", "two", "three"] {
        servers.append(data).await;
    }
    let leader = servers.leader().await;
    for number in 1..=3 {
        servers.entries(number, 3).await;
        let mut cluster = servers.cluster(number).await;
        let answer = cluster.snapshot(v1::SnapshotRequest {}).await;
        let upto = answer.expect("taken").into_inner().upto;
        let status = cluster.status(v1::StatusRequest::default()).await;
        let status = status.expect("a status").into_inner();
        assert!(status.snapshot >= upto && upto >= 4, "{upto}, {status:?}");
        // Nothing new: the same again.
        if number != leader {
            let again = cluster.snapshot(v1::SnapshotRequest {}).await;
            assert!(again.expect("there").into_inner().upto >= upto);
        }
        // Another snapshot may come in between; then both are asked again.
        let mut seen = (status.snapshot, String::new(), 0);
        while seen.0 != seen.2 {
            let metrics = cluster.metrics(v1::MetricsRequest {}).await;
            let text = metrics.expect("metrics").into_inner().text;
            let status = cluster.status(v1::StatusRequest::default()).await;
            let after = status.expect("a status").into_inner().snapshot;
            seen = (after, text, seen.0);
        }
        let line = format!("tenure_log_snapshot {}", seen.0);
        assert!(seen.1.contains(&line), "expected {line} in {}", seen.1);
    }
    // It is what a server starts from.
    servers.stop(leader).await;
    servers.start(leader);
    assert_eq!(servers.entries(leader, 3).await, ["one", "two", "three"]);
}
