//! Watches that go on where they were: at another server, after a restart,
//! and not at all in a cluster that was made from a copy.

use tenure_api::v1::{self, Cause};
use tenure_client::{Client, Config, WatchEvent, WatchTarget};
use tokio::time::timeout;

use crate::servers::{PATIENCE, Servers, again, cause, error, id};

/// Writes a new register by the leader; its version.
async fn put(servers: &Servers, key: &str) -> u64 {
    let swap = v1::Swap {
        key: key.to_owned(),
        value: "x".into(),
        ..v1::Swap::default()
    };
    servers.write(swap).await
}

/// Deletes it, by the leader.
async fn remove(servers: &Servers, key: &str, expect: u64) {
    let request = v1::DeleteRequest {
        key: key.to_owned(),
        expect,
        numbered: None,
    };
    loop {
        let leader = servers.leader().await;
        let mut registers = servers.registers(leader).await;
        match registers.delete(request.clone()).await {
            Ok(answer) => return assert!(answer.into_inner().deleted),
            Err(status) if cause(&status) == Cause::Interrupted => {
                if servers.read(key).await.register.is_none() {
                    return;
                }
            }
            Err(status) => assert!(again(&status), "{status}"),
        }
    }
}

type Messages = tonic::Streaming<v1::WatchResponse>;

async fn watch(
    servers: &Servers,
    number: u64,
    request: v1::WatchRequest,
) -> Result<Messages, tonic::Status> {
    let answer = servers.registers(number).await.watch(request).await;
    answer.map(tonic::Response::into_inner)
}

/// The keys of the next `count` changes, those that are gone with a minus,
/// and what the last message said of where it is.
async fn changes(messages: &mut Messages, count: usize) -> (Vec<String>, u64, String) {
    let (mut keys, mut revision, mut cluster) = (Vec::new(), 0, String::new());
    while keys.len() < count {
        let message = timeout(PATIENCE, messages.message()).await;
        let message = message.expect("in time").expect("a message");
        let message = message.expect("no end");
        assert!(!message.initial, "{message:?}");
        revision = message.revision;
        if !message.cluster.is_empty() {
            cluster = message.cluster;
        }
        keys.extend(message.changes.into_iter().map(|it| match it.register {
            Some(_) => it.key,
            None => format!("-{}", it.key),
        }));
    }
    (keys, revision, cluster)
}

#[tokio::test]
async fn a_watch_goes_on_at_another_server_and_in_another_reign() {
    let mut servers = Servers::found(3, 0);
    let first = put(&servers, "a/1").await;
    let after_id = |id| v1::WatchRequest {
        prefix: "a/".into(),
        after_id: Some(id),
        ..v1::WatchRequest::default()
    };
    let leader = servers.leader().await;
    let mut there = watch(&servers, leader, after_id(first))
        .await
        .expect("a watch");
    let second = put(&servers, "a/2").await;
    put(&servers, "b/1").await;
    let (keys, revision, cluster) = changes(&mut there, 1).await;
    assert_eq!(keys, ["a/2"]);
    assert_eq!(cluster.len(), 32);

    servers.stop(leader).await;
    put(&servers, "a/3").await;
    remove(&servers, "a/2", second).await;
    put(&servers, "a/4").await;
    let wanted = ["a/3", "-a/2", "a/4"].map(String::from);
    for number in (1..=3).filter(|number| *number != leader) {
        let by_revision = v1::WatchRequest {
            prefix: "a/".into(),
            after_revision: Some(revision),
            cluster: cluster.clone(),
            ..v1::WatchRequest::default()
        };
        let mut messages = watch(&servers, number, by_revision).await.expect("a watch");
        assert_eq!(changes(&mut messages, 3).await.0, wanted);
        // From what a write of one's own has said. Who has not come so far
        // says so, and may be asked again.
        let mut messages = loop {
            match watch(&servers, number, after_id(second)).await {
                Ok(messages) => break messages,
                Err(status) => assert_eq!(cause(&status), Cause::NotReady, "{status}"),
            }
        };
        assert_eq!(changes(&mut messages, 3).await.0, wanted);
    }
    let next = servers.leader().await;
    let future = watch(&servers, next, after_id(1 << 40)).await;
    assert_eq!(
        cause(&future.expect_err("it is not there")),
        Cause::NotReady
    );
    let both = v1::WatchRequest {
        after_revision: Some(1),
        ..after_id(1)
    };
    let both = watch(&servers, next, both).await.expect_err("one of them");
    assert_eq!(cause(&both), Cause::Invalid);
}

#[tokio::test]
async fn a_watch_of_what_is_kept_no_more_is_told_so() {
    let mut servers = Servers::found(1, 0);
    let first = put(&servers, "a").await;
    let last = put(&servers, "b").await;
    // A server that starts from a snapshot does not know what led to it.
    let mut cluster = servers.cluster(1).await;
    let taken = cluster.snapshot(v1::SnapshotRequest {}).await;
    assert!(taken.expect("taken").into_inner().upto >= last);
    servers.stop(1).await;
    servers.start(1);
    servers.leader().await;
    for request in [
        v1::WatchRequest {
            after_revision: Some(1),
            ..v1::WatchRequest::default()
        },
        v1::WatchRequest {
            after_id: Some(first),
            ..v1::WatchRequest::default()
        },
    ] {
        let refused = watch(&servers, 1, request).await;
        let refused = refused.expect_err("it is kept no more");
        assert_eq!(refused.code(), tonic::Code::OutOfRange);
        assert_eq!(cause(&refused), Cause::Compacted);
        assert_eq!(error(&refused).expected, 2, "here it begins now");
    }
    // The newest of what the snapshot covers is a place to go on from.
    let request = v1::WatchRequest {
        after_id: Some(last),
        ..v1::WatchRequest::default()
    };
    let mut messages = watch(&servers, 1, request).await.expect("a watch");
    put(&servers, "c").await;
    assert_eq!(changes(&mut messages, 1).await.0, ["c"]);
}

#[tokio::test]
async fn a_watch_does_not_go_on_in_a_cluster_made_from_a_backup() {
    let mut servers = Servers::found(1, 0);
    put(&servers, "a/kept").await;
    let config = Config::default().timeout(PATIENCE);
    let client = Client::new(&servers.configs[&1].listen, &config).expect("a client");
    let mut copy = Vec::new();
    let mut parts = client.backup().await.expect("a backup");
    while let Some(part) = parts.next().await {
        copy.extend_from_slice(&part.expect("a part"));
    }
    for number in 1..=3 {
        put(&servers, &format!("a/lost-{number}")).await;
    }
    let request = v1::WatchRequest {
        prefix: "a/".into(),
        after_revision: Some(1),
        ..v1::WatchRequest::default()
    };
    let mut messages = watch(&servers, 1, request.clone()).await.expect("a watch");
    let (_, revision, old) = changes(&mut messages, 3).await;
    let mut news = client.watch(WatchTarget::Prefix("a/".into()));
    assert_eq!(began(&mut news).await.len(), 4);

    // The same server at the same place, made anew.
    servers.stop(1).await;
    let (_, state) = tenure_server::read_backup(&copy).expect("a backup");
    let data = servers.dir.path().join("anew");
    tenure_server::restore(state, &data, id(1)).expect("restored");
    servers.configs.get_mut(&1).expect("a server").data = data;
    servers.start(1);
    servers.leader().await;
    let request = v1::WatchRequest {
        after_revision: Some(revision),
        cluster: old.clone(),
        ..request
    };
    let refused = watch(&servers, 1, request)
        .await
        .expect_err("another cluster");
    assert_eq!(cause(&refused), Cause::Restored);
    assert!(refused.message().contains(&old), "{refused}");
    // A client that was watching all along begins again, although the new
    // cluster has counted fewer changes than it has heard of.
    let keys = began(&mut news).await;
    assert_eq!(keys, ["a/kept"]);
    put(&servers, "a/new").await;
    let changed = async {
        loop {
            if let WatchEvent::Changed(key, _) = news.next().await {
                return key;
            }
        }
    };
    let key = timeout(PATIENCE, changed).await.expect("it is told");
    assert_eq!(key.as_str(), "a/new");
}

/// The keys of the registers that a watch begins with (again).
async fn began(news: &mut tenure_client::Watch) -> Vec<String> {
    let began = async {
        loop {
            if let WatchEvent::Began(registers) = news.next().await {
                return registers;
            }
        }
    };
    let registers = timeout(PATIENCE, began).await;
    let keys = registers
        .expect("it begins")
        .into_iter()
        .map(|(key, _)| key);
    keys.map(|key| key.as_str().to_owned()).collect()
}
