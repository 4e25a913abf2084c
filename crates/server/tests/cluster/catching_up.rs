//! Watches at servers that have just started and do not yet know how much of
//! their log is committed.

use tenure::core::cas::{Expect, Stamp, Write};
use tenure::core::ids::Key;
use tenure_api::v1::{self, Cause};
use tenure_client::{Client, Config};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::servers::{PATIENCE, Servers, cause, error};

/// More than a server remembers.
const CHANGES: usize = 4_500;

/// So many registers are written, many at a time.
async fn write_many(servers: &Servers, prefix: &str, count: usize) {
    let all: Vec<String> = servers
        .configs
        .values()
        .map(|it| it.listen.clone())
        .collect();
    let config = Config::default().timeout(PATIENCE);
    let client = Client::new(&all.join(","), &config).expect("a client");
    let mut writes = JoinSet::new();
    for number in 0..count {
        let client = client.clone();
        let write = Write {
            key: Key::new(&format!("{prefix}{number}")).expect("a key"),
            expect: Expect::Absent,
            value: b"x".as_slice().into(),
            stamp: Stamp::Now,
        };
        writes.spawn(async move { client.compare_and_swap(write).await });
    }
    while let Some(written) = writes.join_next().await {
        written.expect("no panic").expect("written");
    }
    client.close().await;
}

async fn watch(
    servers: &Servers,
    number: u64,
    after_revision: Option<u64>,
) -> Result<tonic::Streaming<v1::WatchResponse>, tonic::Status> {
    let request = v1::WatchRequest {
        prefix: "k/".into(),
        after_revision,
        ..v1::WatchRequest::default()
    };
    let answer = servers.registers(number).await.watch(request).await;
    answer.map(tonic::Response::into_inner)
}

async fn message(messages: &mut tonic::Streaming<v1::WatchResponse>) -> v1::WatchResponse {
    let message = timeout(PATIENCE, messages.message()).await;
    let message = message.expect("in time").expect("a message");
    message.expect("no end")
}

/// The keys of the next `count` changes, each message from no lower a revision
/// than the one before.
async fn keys(
    messages: &mut tonic::Streaming<v1::WatchResponse>,
    count: usize,
    mut revision: u64,
) -> Vec<String> {
    let mut keys = Vec::new();
    while keys.len() < count {
        let message = message(messages).await;
        assert!(
            message.revision >= revision,
            "{} is lower",
            message.revision
        );
        revision = message.revision;
        keys.extend(message.changes.into_iter().map(|it| it.key));
    }
    keys
}

#[tokio::test]
async fn a_server_that_starts_tells_no_watch_less_than_it_had() {
    let mut servers = Servers::found(3, 0);
    write_many(&servers, "k/", CHANGES).await;
    let revision = CHANGES as u64;
    for number in 1..=3 {
        servers.stop(number).await;
    }
    // It cannot know how much of its log is committed.
    servers.start(1);
    let fresh = watch(&servers, 1, None).await.expect_err("nothing to tell");
    assert_eq!(cause(&fresh), Cause::NotReady);
    let tail = servers.log(1).await.tail(v1::TailRequest { from: 0 }).await;
    assert_eq!(cause(&tail.expect_err("as little")), Cause::NotReady);

    // Places that were told before are good here, and none is made lower.
    let mut last = watch(&servers, 1, Some(revision)).await.expect("a watch");
    let first = message(&mut last).await;
    assert_eq!((first.revision, first.changes.len()), (revision, 0));
    let mut some = watch(&servers, 1, Some(revision - 900))
        .await
        .expect("a watch");
    let mut few = watch(&servers, 1, Some(7)).await.expect("a watch");
    message(&mut few).await;

    // All of the log is applied at once.
    servers.start(2);
    servers.leader().await;
    let began = async {
        let mut messages = watch(&servers, 1, None).await.expect("a watch");
        let (mut count, mut began) = (0, false);
        while !began {
            let message = message(&mut messages).await;
            count += message.changes.len();
            began = message.began;
        }
        count
    };
    assert_eq!(began.await, CHANGES);
    write_many(&servers, "k/new-", 1).await;
    assert_eq!(keys(&mut last, 1, revision).await, ["k/new-0"]);
    let told = keys(&mut some, 901, revision - 900).await;
    assert_eq!(told.len(), 901);
    assert_eq!(told[900], "k/new-0");
    // Only what really is kept no more is refused, and where it begins is said.
    let refused = loop {
        match timeout(PATIENCE, few.message()).await.expect("in time") {
            Ok(Some(message)) => assert!(message.changes.is_empty(), "{message:?}"),
            Ok(None) => panic!("no reason"),
            Err(status) => break status,
        }
    };
    assert_eq!(cause(&refused), Cause::Compacted);
    assert!(error(&refused).expected >= revision, "{refused}");
}

#[tokio::test]
async fn a_blank_server_says_that_it_is_not_ready_whatever_the_place() {
    let mut servers = Servers::found(1, 1);
    servers.leader().await;
    servers.start(2);
    for cluster in [String::new(), "0".repeat(32)] {
        for after_revision in [None, Some(3)] {
            let request = v1::WatchRequest {
                prefix: "k/".into(),
                after_revision,
                cluster: cluster.clone(),
                ..v1::WatchRequest::default()
            };
            let refused = servers.registers(2).await.watch(request).await;
            let refused = refused.expect_err("it is blank");
            assert_eq!(cause(&refused), Cause::NotReady, "{refused}");
        }
    }
}
